"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023): grid worlds as one-hot cells, missions in words."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from threading import get_ident
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete

from hydrl.envs.optional import game_name, require_package
from hydrl.envs.spaces import ChannelsFirstBox
from hydrl.errors import UserError, warn_once

PREFIXES = ("MiniGrid-", "BabyAI-")
MAX_WORDS = 50  # of a mission; BabyAI's BossLevel has longer ones, very rarely
MAX_NAVIGATIONS = 8  # places that a mission of BabyAI's names; each adds to its time limit
# MiniGrid's list of words, then the nine that only BabyAI's missions have.
WORDS = (
    *("red", "green", "blue", "yellow", "purple", "grey"),
    *("unseen", "empty", "wall", "floor", "box", "key", "ball", "door", "goal", "agent", "lava"),
    *("pick", "avoid", "get", "find", "put", "use", "open", "go", "fetch", "reach", "unlock", "traverse"),
    *("up", "the", "a", "at", ",", "square", "and", "then", "to", "of", "rooms", "near", "opening", "must"),
    *("you", "matching", "end", "hallway", "object", "from", "room", "maze"),
    *("after", "behind", "front", "in", "left", "next", "on", "right", "your"),
)
WORD_INDEX = {word: index for index, word in enumerate(WORDS, 1)}  # 0 is no word


def make(
    id: str,
    view: int | None = None,
    full: bool = False,
    max_steps: int | None = None,
    mission: Literal["words"] | None = None,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes a MiniGrid or BabyAI environment that observes one-hot cells and the agent's direction.

    Args:
        id: as ``MiniGrid-DoorKey-5x5-v0``, or ``MODULE:ID`` for your own subclass of ``MiniGridEnv``.
        view: side of the square that the agent sees, an odd number of cells; ``None``: the environment's, 7.
        full: observes the whole grid instead.
        max_steps: steps after which an episode is truncated; ``None``: the environment's.
        mission: ``words`` observes the mission; ``None`` leaves it out.
        **kwargs: passed to ``gymnasium.make``.

    Raises:
        UserError: for an unknown id, a wrong keyword, or if MiniGrid is not installed.
    """
    require_package("minigrid", "minigrid")
    check_keywords(view, full, max_steps, mission, kwargs)
    check_minigrid_id(id)
    sizes = {"agent_view_size": view, "max_steps": max_steps}
    kwargs |= {name: size for name, size in sizes.items() if size is not None}
    try:  # Gymnasium's checker warns of missions that MiniGrid's own space does not recognise
        env = gymnasium.make(id, disable_env_checker=True, **kwargs)
    except TypeError as error:
        if (match := re.search(r"unexpected keyword argument '(\w+)'", str(error))) is None:
            raise
        raise UserError(f"env.{match[1]}: {id} takes no {match[1]}. Leave it out.") from error
    if not isinstance(env.unwrapped, import_module("minigrid.minigrid_env").MiniGridEnv):
        env.close()
        raise UserError(f"env.id={id}: it is not a MiniGrid environment. Write env=gym env.id={id}.")
    return MiniGridWrapper(env, f"env.id={id}", full=full, mission=mission)


def check_keywords(
    view: int | None, full: bool, max_steps: int | None, mission: str | None, kwargs: dict[str, Any]
) -> None:
    """Refuses wrong values of keywords, and a keyword of MiniGrid's that another key sets.

    Raises:
        UserError: naming the key.
    """
    if view is not None and full:
        raise UserError(f"env.view={view}: env.full=true observes the whole grid. Leave env.view out.")
    if view is not None and (not is_integer(view) or view < 3 or view % 2 == 0):
        raise UserError(f"env.view={view}: should be an odd number of cells, 3 or more.")
    if not isinstance(full, bool):
        raise UserError(f"env.full={full}: should be true or false.")
    if max_steps is not None and (not is_integer(max_steps) or max_steps < 1):
        raise UserError(f"env.max_steps={max_steps}: should be an integer, 1 or more.")
    if mission not in (None, "words"):
        raise UserError(f"env.mission={mission}: should be null or words.")
    if "agent_view_size" in kwargs:
        size = kwargs["agent_view_size"]
        raise UserError(f"env.agent_view_size={size}: another key sets this. Write env.view={size}.")


def is_integer(number: Any) -> bool:
    """Whether a value is an integer, and not a boolean."""
    return isinstance(number, int) and not isinstance(number, bool)


def check_minigrid_id(id: str) -> None:
    """Refuses an id that is not registered; ``MODULE:ID`` is left to Gymnasium, which imports the module.

    Raises:
        UserError: naming close matches.
    """
    if ":" in id or id in gymnasium.registry:
        return
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith(PREFIXES)]
    names = {game_name(env_id): env_id for env_id in ids} | {
        game_name(env_id.partition("-")[2]): env_id for env_id in ids
    }
    matches = dict.fromkeys(names[name] for name in get_close_matches(game_name(id), names, 4))
    nearest = [*matches][:3] or ["MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToRedBall-v0"]
    raise UserError(f"env.id={id}: no such environment. Write {' or '.join(nearest)}.")


class MiniGridWrapper(gymnasium.Wrapper):
    """Gymnasium wrapper that observes one-hot cells, the agent's direction and maybe the mission's words.

    ``pixels`` is ``[objects + colours + states, view, view]``: 11, 6 and 3 channels of 0 and 1, columns
    before rows as in MiniGrid. With ``full`` it is ``[20, width, height]``; the agent's cell is of the
    object ``agent``, and also shows what it carries. ``mission`` has the index of each word, 0 after the
    last.

    Args:
        env: a ``MiniGridEnv`` in any wrappers that leave its observations alone.
        label: its name in messages.
        full: observes the whole grid.
        mission: ``words`` or ``None``.
    """

    def __init__(self, env: gymnasium.Env, label: str, *, full: bool, mission: str | None) -> None:
        super().__init__(env)
        constants = import_module("minigrid.core.constants")
        babyai = import_module("minigrid.envs.babyai.core.roomgrid_level")
        raw, tables = env.unwrapped, ("OBJECT_TO_IDX", "COLOR_TO_IDX", "STATE_TO_IDX")
        self.label, self.full, self.mission = label, full, mission
        self.sizes = [len(getattr(constants, table)) for table in tables]
        self.agent_codes = (constants.OBJECT_TO_IDX["agent"], constants.COLOR_TO_IDX["red"], 0)
        self.first_mission: str | None = None
        self.prints = isinstance(raw, babyai.RoomGridLevel)
        # The limit as Gymnasium's TimeLimit names it; BabyAI's follows from each mission.
        varies = self.prints and not raw.fixed_max_steps
        rooms = raw.room_size**2 * raw.num_rows * raw.num_cols if varies else 0
        self._max_episode_steps = MAX_NAVIGATIONS * rooms if varies else raw.max_steps
        sides = (raw.width, raw.height) if full else (raw.agent_view_size,) * 2
        spaces: dict[str, gymnasium.Space] = {
            "pixels": ChannelsFirstBox(0, 1, (sum(self.sizes), *sides), np.uint8),
            "direction": Discrete(4),
        }
        if mission:
            spaces["mission"] = MultiDiscrete([len(WORDS) + 1] * MAX_WORDS)
        self.observation_space = Dict(spaces)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode.

        Raises:
            UserError: for a mission with an unknown word, or a file that MiniGrid's package lacks.
        """
        try:
            with drop_prints() if self.prints else nullcontext():  # "Sampling rejected: …"
                observation, info = self.env.reset(seed=seed, options=options)
        except FileNotFoundError as error:  # the WFC environments' patterns
            raise UserError(
                f"{self.label}: MiniGrid's package lacks {error.filename or error}. Choose another env.id."
            ) from error
        if self.mission is None:
            self.warn_of_missions(observation["mission"])
        return self.encode(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        """One step; MiniGrid's own limit truncates."""
        observation, *outcome = self.env.step(action)
        return self.encode(observation), *outcome

    def encode(self, observation: dict[str, Any]) -> dict[str, Any]:
        """MiniGrid's observation as one-hot cells, direction and words."""
        cells = self.encode_grid() if self.full else one_hot_cells(observation["image"], self.sizes)
        encoded = {"pixels": cells.transpose(2, 0, 1), "direction": int(observation["direction"])}
        if self.mission:
            encoded["mission"] = encode_mission(observation["mission"], self.label)
        return encoded

    def encode_grid(self) -> np.ndarray:
        """The whole grid, ``[width, height, channels]``, with the agent and what it carries."""
        env = self.unwrapped
        cells = one_hot_cells(env.grid.encode(), self.sizes)
        codes = env.carrying.encode() if env.carrying else self.agent_codes
        agent_cell = one_hot_cells(np.array(codes), self.sizes)
        agent_cell[self.agent_codes[0]] = 1
        cells[tuple(env.agent_pos)] = agent_cell
        return cells

    def warn_of_missions(self, mission: str) -> None:
        """Warns once of missions that differ between episodes and are not observed."""
        if self.first_mission is None:
            self.first_mission = mission
        elif mission != self.first_mission:
            warn_once(
                f"{self.label}: its mission differs between episodes, and the policy does not observe it. "
                "Write env.mission=words."
            )


def one_hot_cells(codes: np.ndarray, sizes: list[int]) -> np.ndarray:
    """MiniGrid's codes of object, colour and state, ``[..., 3]``, as 0 and 1, ``[..., sum(sizes)]`` uint8."""
    parts = [np.eye(size, dtype=np.uint8)[codes[..., kind]] for kind, size in enumerate(sizes)]
    return np.concatenate(parts, -1)


def encode_mission(mission: str, label: str) -> np.ndarray:
    """The indices of a mission's words, ``[MAX_WORDS]``, 0 after the last; warns where it cuts a longer one.

    Raises:
        UserError: for a word that neither MiniGrid nor BabyAI has.
    """
    words = mission.lower().replace(",", " , ").split()
    for word in words:
        if word not in WORD_INDEX:
            raise UserError(
                f"env.mission=words: {label}: the word {word} of its mission is not in "
                "hydrl.envs.minigrid.WORDS. Use those words, or write env.mission=null."
            )
    if len(words) > MAX_WORDS:
        warn_once(f"{label}: a mission of {len(words)} words is cut to its first {MAX_WORDS}.")
    indices = [WORD_INDEX[word] for word in words[:MAX_WORDS]]
    return np.array(indices + [0] * (MAX_WORDS - len(indices)))


class ThreadSilencer:
    """Text stream that drops what the thread that made it prints, and passes on what others print.

    Args:
        stream: where other threads print.
    """

    def __init__(self, stream: Any) -> None:
        self.stream, self.thread = stream, get_ident()

    def write(self, text: str) -> int:
        """Writes, or drops, a text."""
        return len(text) if get_ident() == self.thread else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """The stream's own attributes, such as ``isatty``."""
        return getattr(self.stream, name)


@contextmanager
def drop_prints() -> Iterator[None]:
    """Drops what this thread prints in the block."""
    with redirect_stdout(ThreadSilencer(sys.stdout)):
        yield
