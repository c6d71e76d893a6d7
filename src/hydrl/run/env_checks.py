"""Check of algorithms against their environments before a sweep starts; in a process of its own."""

from collections.abc import Sequence
from typing import Any

from hydrl import envs, specs
from hydrl.config.settings import Settings
from hydrl.errors import UserError
from hydrl.library_setup import quieten_libraries


def check_envs(members: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Builds each member's environment and checks that its algorithm can act there.

    Args:
        members: resolved settings of each, and the same as they are saved.

    Returns:
        The messages of those that cannot.
    """
    quieten_libraries()
    messages = []
    for values, shown in members:
        settings = Settings.of(values, shown)
        make: Any = settings.build("env")
        try:
            env = envs.make_env(make, settings.transform_builders, device="cpu")
            kind = envs.find_family(make).action_kind(env)
            settings.check_env(kind, [*specs.agent_groups(env)], alike=specs.are_alike(env))
            env.close()
        except UserError as error:
            messages.append(str(error))
    return messages
