"""Parts as they are typed, for the lines that tell what would do."""

from collections.abc import Sequence

from hydrl.config import CONFIGS
from hydrl.config.overrides import choices_made
from hydrl.config.schema import WITHIN, Part
from hydrl.config.signatures import targets
from hydrl.config.tree import choices, content


def use(group: str, able: Sequence[str | None]) -> str:
    """The choices that would do, for the end of a sentence."""
    names = [each or "null" for each in able]
    if len(names) > 3:
        return f"use {group}={', '.join(names[:-1])} or {names[-1]}"
    return "use " + " or ".join(f"{group}={name}" for name in names)


def named(group: str, node: Part | None) -> str:
    """The choice that ``node`` is, as it is typed; a part that is no choice by what it is built from."""
    alike = chosen(group, node) or [(node or {}).get("_target_", "")]
    return f"{group}={min(alike, key=len)}"  # a loss of several agents has the longer name


def env_named(task: str, env: Part) -> str:
    """The environment, as it is typed."""
    said = (each for each in ("id", "scenario", "_target_") if env.get(each) == task)
    key = None if task in choices(CONFIGS / "env") else next(said, None)
    return f"env.{key}={task}" if key else f"env={task}"


def chosen(group: str, node: Part | None) -> list[str]:
    """The choices of a group that ``node`` may be: what was typed, where that is what it is built from.

    Without any it is a part of one's own.
    """
    if node is None:
        return ["null"]
    wanted = {each["_target_"] for path, each in targets(node) if path not in WITHIN}

    def gives(name: str) -> bool:
        return {each["_target_"] for _, each in targets(content(f"/{group}/{name}"))} == wanted

    known = choices(CONFIGS / group)
    typed = choices_made().get(group)
    if typed in known and gives(typed):
        return [typed]
    own = [typed] if typed and typed not in known else []
    return [*own, *(name for name in known if gives(name))]
