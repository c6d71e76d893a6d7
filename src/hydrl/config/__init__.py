"""From YAML and the command line to checked settings.

Knows parts by their dotted names only and imports no other room; PyTorch only where a signature must
be looked at, by name, so that a typo is answered at once.
"""

from pathlib import Path

from omegaconf import OmegaConf

from hydrl.config import automatic

PACKAGE = Path(__file__).resolve().parents[1]
# What lies at the top of the repository lies in app/ of a wheel: hatch_build.py puts it there.
ROOT = PACKAGE / "app" if (PACKAGE / "app").is_dir() else PACKAGE.parents[1]
CONFIGS = ROOT / "configs"

OmegaConf.register_new_resolver("discount", automatic.discount, replace=True)
OmegaConf.register_new_resolver("sequence", automatic.sequence, replace=True)
