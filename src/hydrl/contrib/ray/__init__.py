"""Ray: collectors, background evaluation and a Hydra launcher on a cluster."""
