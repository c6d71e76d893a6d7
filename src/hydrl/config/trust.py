"""What a run folder may name: hydrl's own parts and TorchRL's transforms, unless its owner is trusted."""

import re
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object

from hydrl.config import CONFIGS
from hydrl.config.signatures import targets
from hydrl.errors import UserError


def check_trust(values: Mapping[str, Any], told: str) -> None:
    """Refuses what would import or run code that is neither hydrl's nor TorchRL's; imports none of it.

    Args:
        values: the configuration that came with a run folder.
        told: how the user named that folder.

    Raises:
        UserError: naming the foreign code.
    """
    files = set(CONFIGS.rglob("*.yaml")) - set(CONFIGS.glob("search/*"))  # those that a run is made of
    own = {
        name for file in files for name in re.findall(r"^\s*_target_: (\S+)", file.read_text(), re.MULTILINE)
    }
    named = {str(node["_target_"]) for _, node in targets(values)} - own
    foreign = {name for name in named if not is_transform(name)}
    # Gymnasium imports MODULE for the id MODULE:NAME.
    foreign |= {str(node["id"]) for _, node in targets(values) if ":" in str(node.get("id", ""))}
    if foreign:
        raise UserError(
            f"{told}: its configuration names {', '.join(sorted(foreign))}, which is not one of hydrl's "
            "parts; add trust=true if you trust that code"
        )


def is_transform(name: str) -> bool:
    """Whether ``torchrl.envs`` itself exports ``name`` as a transform; imports nothing else."""
    package, _, attribute = name.rpartition(".")
    if package != "torchrl.envs":
        return False
    envs = get_object(package)
    found = getattr(envs, attribute, None)
    return isinstance(found, type) and issubclass(found, envs.Transform)
