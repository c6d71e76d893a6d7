"""Trust: which code and addresses an untrusted run folder may name."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import get_object

from hydrl.config import CONFIGS
from hydrl.config.overrides import key_of
from hydrl.config.tree import show
from hydrl.config.user_dirs import option_folders
from hydrl.errors import UserError

PACKAGES = ("torchrl.envs", "torchrl.modules", "torch.nn", "torch.optim", "gymnasium.wrappers")
# Other simulators, rendering to windows or files, and downloads of weights or code.
REFUSED = (
    *("torchrl.envs.libs", "gymnasium.wrappers.rendering", "torchrl.modules.vla"),
    *(f"torchrl.envs.transforms.{name}" for name in ("r3m", "vc1", "vip")),
)

ADDRESSES = ("collector.address", "eval.address")  # of clusters that a run joins
URL = re.compile(r"(?!file:)\b[a-z][\w+.-]*://", re.IGNORECASE)


def check_addresses(values: Mapping[str, Any], setting: str, typed: Sequence[str] = ()) -> None:
    """Refuses to reach another machine whose address came with a run folder.

    That is the address of a cluster, and any URL: neither ``auto`` nor an account's or a project's name at a
    server that this machine is set up for. Arguments as for :func:`check_trust`.

    Raises:
        UserError: naming the address.
    """
    for key, address in leaves(values):
        cluster = key in ADDRESSES and address not in (None, "auto")
        if not cluster and not (isinstance(address, str | list) and URL.search(str(address))):
            continue
        within = [word for word in typed if key.startswith(f"{key_of(word)}.") and str(address) in word]
        if key not in map(key_of, typed) and not within and str(address) not in option_texts():
            raise UserError(
                f"{setting}: {key}={show(address)} reaches another machine. Type it yourself, or add "
                "trust=true if you trust it."
            )


def leaves(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested dictionaries by their dotted keys."""
    if not isinstance(values, Mapping):
        yield key, values
    for name, entry in values.items() if isinstance(values, Mapping) else ():
        yield from leaves(entry, f"{key}.{name}" if key else str(name))


def check_trust(values: Mapping[str, Any], setting: str, typed: Sequence[str] = ()) -> None:
    """Refuses what would import or run code that is neither hydrl's nor TorchRL's; imports none of it.

    Args:
        values: the configuration that came with a run folder.
        setting: how the user named that folder.
        typed: overrides the user has typed now, whose values are trusted.

    Raises:
        UserError: naming the foreign code.
    """
    trusted = trusted_names() | {word.partition("=")[2] for word in typed}
    if names := sorted(set(foreign_names(values, trusted))):
        raise UserError(
            f"{setting}: its configuration names {', '.join(names)}, which is not one of hydrl's components. "
            "Add trust=true if you trust that code."
        )


def trusted_names() -> set[str]:
    """Names in the options of hydrl and of each ``--config-dir``."""
    return set(re.findall(r"^\s*(?:_target_|id|env_name): (\S+)", option_texts(), re.MULTILINE))


def option_texts() -> str:
    """The text of these options."""
    files = {file for folder in option_folders() for file in folder.rglob("*.yaml")}
    files -= {
        *CONFIGS.glob("search/*"),
        CONFIGS / "eval_backends.yaml",
        CONFIGS / "networks.yaml",
        CONFIGS / "precisions.yaml",
    }  # which no saved run holds
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def foreign_names(values: Any, trusted: Collection[str]) -> Iterator[str]:
    """Names in nested ``values`` that could run code not in ``trusted``."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    for key, value in values.items() if isinstance(values, Mapping) else ():
        name = str(value)
        if key == "_target_":
            if name not in trusted and not is_library_class(name):
                yield name
        elif str(key).startswith("_") and key != "_partial_":  # Hydra's own, as _args_
            yield str(key)
        elif key in ("id", "env_name") and ":" in name and name not in trusted:
            yield name  # Gymnasium imports MODULE for MODULE:NAME
        elif isinstance(value, str) and "${" in value:
            yield name  # Hydra would resolve it once more, past all of this
        yield from foreign_names(value, trusted)


def is_library_class(name: str) -> bool:
    """Whether one of the packages itself exports ``name`` as a class of its own; imports nothing else.

    Functions are left out, as ``torch.load`` runs code, and so is what :data:`REFUSED` names.
    """
    package, _, attribute = name.rpartition(".")
    value = vars(get_object(package)).get(attribute) if package in PACKAGES else None
    return isinstance(value, type) and not value.__module__.startswith(REFUSED)
