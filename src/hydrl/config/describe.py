"""Components as they are typed, for messages."""

from collections.abc import Sequence

from hydrl.config import CONFIGS
from hydrl.config.overrides import chosen_options
from hydrl.config.schema import WITHIN, Node, Values
from hydrl.config.signatures import targets
from hydrl.config.suggestions import join_or
from hydrl.config.tree import option_names, read_option


def advise_options(group: str, able: Sequence[str | None]) -> str:
    """Advice to use one of the options, without the full stop."""
    names = [option or "null" for option in able]
    if len(names) > 3:
        return f"Use {group}={join_or(names)}"
    return f"Use {join_or(f'{group}={name}' for name in names)}"


def give_reason(rules: Values, key: str) -> str:
    """The reason of a rule, ``because`` of all or of its key, as the end of a sentence."""
    because = rules.get("because", {})
    reason = because if isinstance(because, str) else because.get(key)
    return f", which {reason}" if reason else ""


def name_component(group: str, node: Node | None) -> str:
    """A component as it is typed: its option, or its ``_target_`` if it has none."""
    names = matching_options(group, node) or [(node or {}).get("_target_", "")]
    return f"{group}={min(names, key=len)}"  # a loss of several agents has the longer name


def name_env(task: str, env: Node) -> str:
    """An environment as it is typed."""
    keys = (key for key in ("id", "scenario", "_target_") if env.get(key) == task)
    key = None if task in option_names(CONFIGS / "env") else next(keys, None)
    return f"env.{key}={task}" if key else f"env={task}"


def matching_options(group: str, node: Node | None) -> list[str]:
    """Options of a group with the targets of ``node``: the typed one, if it is among them.

    A component of the user's own matches none.
    """
    if node is None:
        return ["null"]
    wanted = {component["_target_"] for path, component in targets(node) if path not in WITHIN}

    def is_same(name: str) -> bool:
        return {component["_target_"] for _, component in targets(read_option(f"/{group}/{name}"))} == wanted

    known = option_names(CONFIGS / group)
    typed = chosen_options().get(group)
    if typed in known and is_same(typed):
        return [typed]
    own = [typed] if typed and typed not in known else []
    return [*own, *(name for name in known if is_same(name))]
