"""From YAML and the command line to checked settings.

Knows parts by their dotted names only and imports no other room; PyTorch only where a signature must
be looked at, by name, so that a typo is answered at once.
"""

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
