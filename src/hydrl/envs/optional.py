"""Checks shared by environment families: optional packages, ids and probabilities."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from hydrl.errors import UserError


def require_package(name: str, extra: str, family: str = "") -> ModuleType:
    """Imports a package of one of hydrl's extras; ``family`` is the option of ``env``, if named differently.

    Raises:
        UserError: if it cannot be imported, with the command that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        reason = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else str(error)
        raise UserError(f"env={family or extra}: {reason}. Run pip install 'hydrl[{extra}]'.") from error


def check_id(id: str, valid_ids: Iterable[str], noun: str = "game", examples: Iterable[str] = ()) -> None:
    """Refuses an id that a family does not have.

    Args:
        id: as the user typed it.
        valid_ids: the family's ids, as ``FAMILY/Game-v1``.
        noun: what an id names.
        examples: ids to show if none is close; none: all.

    Raises:
        UserError: naming close matches, or else the examples.
    """
    if id in (ids := [*valid_ids]):
        return
    games = {game_name(env_id): env_id for env_id in ids}  # the last of several versions
    matches = [games[game] for game in get_close_matches(game_name(id), games, 3)]
    matches = matches or [*examples] or [games[game] for game in sorted(games)]
    raise UserError(f"env.id={id}: no such {noun}. Write {' or '.join(matches)}.")


def check_probability(key: str, value: float) -> None:
    """Refuses values outside [0, 1); at 1 an action would be repeated for ever.

    Raises:
        UserError: naming the key.
    """
    if not 0 <= value < 1:
        raise UserError(f"{key}={value}: should be a probability, at least 0 and below 1.")


def game_name(id: str) -> str:
    """A game's name in an id, in lower-case letters and digits, without version."""
    game = re.sub(r"(NoFrameskip|Deterministic|-ram)*(-v\d+)?$", "", id.rpartition("/")[2])
    return re.sub(r"[^a-z0-9]", "", game.lower())
