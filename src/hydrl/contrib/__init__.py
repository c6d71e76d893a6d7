"""Optional integrations, chosen by dotted names in configs; no other room imports them."""
