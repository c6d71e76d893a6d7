"""Ray: collectors, background evaluation and a Hydra launcher on a cluster."""

import os

# Ray reads it when it is imported: where a node is lost, it prints thirty lines of another node's state.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
