"""Overrides as they are typed, ``key=value``, and the commands before them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from hydrl.config import CONFIGS, ROOT


def as_typed(text: str) -> str:
    """Commands in a text as they can be typed here: ``hydrl search`` for ``python scripts/search.py``."""
    if command := os.environ.get("HYDRL_COMMAND"):  # of hydrl.__main__
        text = re.sub(r"python scripts/(\w+)\.py", rf"{command} \1", text)
        return text.replace("python train.py", command)
    at = os.path.relpath(ROOT)
    return text if at == "." else re.sub(r"python ((scripts/\w+|train)\.py)", rf"python {at}/\1", text)


def key_of(override: str) -> str:
    """``+optim.lr=1`` to ``optim.lr``."""
    return override.partition("=")[0].lstrip("+~")


def words() -> list[str]:
    """The overrides of this process' run as they were typed, where Hydra has begun one."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def choices_made() -> Mapping[str, str]:
    """The choice of each group in this process' run, where Hydra has begun one."""
    return HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}


def quoted(path: Path | str) -> str:
    """A path as Hydra reads it back, whatever is in it."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """As Hydra has it what is typed shorter, and all else as it is.

    ``GROUP=none`` and ``GROUP=null`` are ``~GROUP``; ``logger.KEY`` is that of the one logger there is.
    """
    said = [each.partition("=") for each in arguments]
    logger = {key: value for key, _, value in said}.get("logger", "")
    if re.fullmatch(r"\w+", logger) and (CONFIGS / "logger" / f"{logger}.yaml").is_file():
        own = rf"(\+*logger)\.(?!{logger}\.)"
        said = [(re.sub(own, rf"\1.{logger}.", key), equals, value) for key, equals, value in said]
    return [
        f"~{key}" if value in ("none", "null") and (CONFIGS / key).is_dir() else f"{key}{equals}{value}"
        for key, equals, value in said
    ]
