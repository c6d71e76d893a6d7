"""What a run folder may name: hydrl's own parts and TorchRL's transforms, unless its owner is trusted."""

from collections.abc import Iterator, Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.signatures import targets
from hydrl.errors import UserError


def check_trust(values: Mapping[str, Any]) -> None:
    """Refuses what would import or run code that is neither hydrl's nor TorchRL's; imports none of it.

    Args:
        values: the configuration that came with a run folder.

    Raises:
        UserError: naming the foreign code.
    """
    named = {str(node["_target_"]) for _, node in targets(values)} - set(own_targets())
    foreign = {name for name in named if not is_transform(name)}
    # Gymnasium imports MODULE for the id MODULE:NAME.
    foreign |= {str(node["id"]) for _, node in targets(values) if ":" in str(node.get("id", ""))}
    if foreign:
        raise UserError(
            f"its configuration names {', '.join(sorted(foreign))}, which is not one of hydrl's parts; "
            "add trust=true if you trust that code"
        )


def own_targets() -> Iterator[str]:
    """Every ``_target_`` in ``configs/`` that a run can be made of."""
    for file in set(CONFIGS.rglob("*.yaml")) - set(CONFIGS.glob("search/*")):
        for _, node in targets(OmegaConf.to_container(OmegaConf.load(file))):
            yield node["_target_"]


def is_transform(name: Any) -> bool:
    """Whether ``torchrl.envs`` itself exports ``name`` as a transform; imports nothing else."""
    package, _, attribute = str(name).rpartition(".")
    if package != "torchrl.envs":
        return False
    envs = get_object(package)
    found = getattr(envs, attribute, None)
    return isinstance(found, type) and issubclass(found, envs.Transform)
