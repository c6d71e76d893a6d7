"""Language models: prompts and verifiers as an environment, a policy that answers, and its losses."""
