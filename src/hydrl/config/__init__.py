"""Configuration: from YAML and the command line to checked settings."""

from pathlib import Path

from omegaconf import OmegaConf

from hydrl.config import auto_values

PACKAGE = Path(__file__).resolve().parents[1]
# What lies at the top of the repository lies in app/ of a wheel: hatch_build.py puts it there.
ROOT = PACKAGE / "app" if (PACKAGE / "app").is_dir() else PACKAGE.parents[1]
CONFIGS = ROOT / "configs"

OmegaConf.register_new_resolver("fraction_of_frames", auto_values.fraction_of_frames, replace=True)
OmegaConf.register_new_resolver("discount", auto_values.discount, replace=True)
OmegaConf.register_new_resolver("sequence", auto_values.sequence, replace=True)
# An environment such as my_envs:MyEnv-v0 in the name of a folder, and one such as ALE/Pong-v5 as one folder.
OmegaConf.register_new_resolver("without_colons", lambda name: str(name).replace(":", "-"), replace=True)
OmegaConf.register_new_resolver(
    "as_folder", lambda name: str(name).replace(":", "-").replace("/", "_"), replace=True
)
