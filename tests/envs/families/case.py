"""Cases of the test over all families, and their raw simulators; nothing of hydrl is imported here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Entries = dict[Any, np.ndarray]  # arrays by entry of hydrl's tensordict: a name, or (GROUP, NAME)


class RawStep(NamedTuple):
    """What a raw simulator's ``step`` returns for one environment."""

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool


@dataclass
class Rows:
    """Steps of several environments, arrays ``[envs, time, ...]``.

    Attributes:
        before: observations that the actions were chosen from, with action masks.
        actions: by entry.
        after: observations after the actions; of the ended episode, not of the next one.
        rewards: by entry, ``[envs, time, ...]``.
        ends: ``terminated``, ``truncated`` and ``done``, booleans.
        bounds: lowest and highest values of observations, by entry, of those that have some.
    """

    before: Entries
    actions: Entries
    after: Entries
    rewards: Entries
    ends: dict[str, np.ndarray]
    bounds: dict[Any, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass
class Replay(Rows):
    """Steps of raw simulators.

    Attributes:
        in_space: whether the simulator's action space has the action.
        valid: whether the simulator's mask allows it; all true without a mask.
        low, high: the bounds of continuous actions, else ``None``.
    """

    in_space: np.ndarray = field(default_factory=lambda: np.ones(0, bool))
    valid: np.ndarray = field(default_factory=lambda: np.ones(0, bool))
    low: Any = None
    high: Any = None


class SeparateEnvs:
    """Raw simulators of one environment each, stepped one after the other.

    A simulator that steps all environments together has a class of its own with these methods.

    Args:
        case: whose simulators they are.
        rows: of the run that is replayed. Only what a simulator cannot repeat is read off them, such as the
            moves of an opponent who plays at random.
    """

    def __init__(self, case: "Case", rows: Rows) -> None:
        self.case, self.rows = case, rows
        self.envs = [case.make_raw() for _ in rows.ends["done"]]

    def begin(self, seed: int) -> list[Any]:
        """Seeds the environments and returns their first observations."""
        return [self.case.begin(env, seed + index) for index, env in enumerate(self.envs)]

    def reset(self, indices: Sequence[int]) -> list[Any]:
        """Begins the next episodes of some environments."""
        return [self.envs[index].reset()[0] for index in indices]

    def step(self, actions: Sequence[Any]) -> list[RawStep]:
        """Steps all environments."""
        return [RawStep(*env.step(action)[:4]) for env, action in zip(self.envs, actions, strict=True)]

    def close(self) -> None:
        """Frees them."""
        for env in self.envs:
            env.close()


def begin_seeded(env: Any, seed: int) -> Any:
    """The first observation of a Gymnasium environment: TorchRL resets once when it is seeded."""
    env.reset(seed=seed)
    return env.reset()[0]


def plain_action(action: np.ndarray) -> Any:
    """One environment's action as Gymnasium has it: an integer, or an array of its own."""
    return action.copy() if action.ndim else np.int64(action)


@dataclass(frozen=True)
class Case:
    """A task of a family, as hydrl runs it and as its raw simulator is stepped by hand.

    Args:
        name: of its tests.
        overrides: as typed after ``train.py``; ``transforms=plain`` and PPO unless they say otherwise.
        make_raw: makes one raw environment with Gymnasium's ``reset(seed=None)`` and ``step(action)``.
        read: a raw observation by entry of hydrl's tensordict.
        ends: the ends that the task has, ``terminated`` and ``truncated``; three of each are awaited.
        script: ``script(episode, step)``, the action in the second half of the run: an index, or floats;
            ``None`` lets hydrl's actor act.
        plan: ``plan(entries)``, the same by what hydrl observes in one environment.
        action: hydrl's action of one environment, of several entries a dictionary, to the raw one.
        reward: a raw reward as a number, or by entry.
        mask: the raw simulator's valid actions, ``[actions]``, or by entry; ``None``: no mask.
        is_valid: whether a raw action is valid by a mask.
        action_space: of a raw environment.
        begin: seeds a raw environment and returns its first observation.
        make_vector: makes the simulators, see :class:`SeparateEnvs`.
        package: without which it is skipped.
        num_envs: numbers of environments.
        steps: of each environment, at least.
        random_starts: whether episodes begin differently.
        fast_num_envs: those of ``num_envs`` that the fast tests have; ``None``: all.
        slow: whether the fast tests have none.
    """

    name: str
    overrides: Sequence[str]
    make_raw: Callable[..., Any]
    read: Callable[[Any], Entries] = lambda observation: {"observation": observation}
    ends: frozenset[str] | set[str] = frozenset({"terminated", "truncated"})
    script: Callable[[int, int], Any] | None = None
    plan: Callable[[Entries], Any] | None = None
    action: Callable[[Any], Any] = plain_action
    reward: Callable[[Any], Any] = float
    mask: Callable[[Any], Any] | None = None
    is_valid: Callable[[Any, Any], bool] = lambda mask, action: bool(mask[action])
    action_space: Callable[[Any], Any] = lambda env: env.action_space
    begin: Callable[[Any, int], Any] = begin_seeded
    make_vector: Callable[["Case", Rows], Any] = SeparateEnvs
    package: str = "gymnasium"
    num_envs: Sequence[int] = (1, 3)
    steps: int = 512
    random_starts: bool = True
    fast_num_envs: Sequence[int] | None = None
    slow: bool = False


@dataclass(frozen=True)
class Guard:
    """A guard of hydrl's, without which data would be wrong in silence.

    Args:
        what: it guards, in a few words.
        target: its dotted name, ``MODULE:NAME`` or ``MODULE:CLASS.NAME``.
        without: stands in its place.
        case: the case that shows it.
        check: the check that fails without it.
        num_envs: environments.
    """

    what: str
    target: str
    without: Any
    case: str
    check: str
    num_envs: int = 3


def as_entries(value: Any, name: str) -> Entries:
    """A value by entry: itself, or the only one."""
    return value if isinstance(value, dict) else {name: value}


def stack(rows: list[list[Entries]]) -> Entries:
    """Entries ``[envs][time]`` as arrays ``[envs, time, ...]``, copied."""
    return {
        key: np.stack([np.stack([np.asarray(entries[key]) for entries in steps]) for steps in rows])
        for key in rows[0][0]
    }


def replay(case: Case, rows: Rows, seed: int) -> Replay:
    """Steps raw simulators by the actions of a run from the same seed."""
    simulators = case.make_vector(case, rows)
    actions, (num_envs, num_steps) = rows.actions, rows.ends["done"].shape
    observations, space = simulators.begin(seed), case.action_space(simulators.envs[0])
    names = ("before", "after", "rewards", "ends", "in_space", "valid")
    columns: dict[str, list[list[Any]]] = {name: [[] for _ in range(num_envs)] for name in names}

    def observe(name: str, index: int) -> Any:
        mask = None if case.mask is None else case.mask(simulators.envs[index])
        entries = dict(case.read(observations[index]))
        entries |= {} if mask is None else as_entries(mask, "action_mask")
        columns[name][index].append({key: np.array(value) for key, value in entries.items()})
        return mask

    for step in range(num_steps):
        raw_actions = []
        for index in range(num_envs):
            mask, row = observe("before", index), {key: array[index, step] for key, array in actions.items()}
            raw_action = case.action(row["action"] if [*row] == ["action"] else row)
            columns["in_space"][index].append(space is None or space.contains(raw_action))
            columns["valid"][index].append(mask is None or case.is_valid(mask, raw_action))
            raw_actions.append(raw_action)
        ended = []
        for index, result in enumerate(simulators.step(raw_actions)):
            observations[index] = result.observation
            observe("after", index)
            flags = {"terminated": bool(result.terminated), "truncated": bool(result.truncated)}
            flags["done"] = flags["terminated"] or flags["truncated"]
            columns["rewards"][index].append(as_entries(case.reward(result.reward), "reward"))
            columns["ends"][index].append(flags)
            ended += [index] * flags["done"]
        for index, observation in zip(ended, simulators.reset(ended) if ended else [], strict=True):
            observations[index] = observation
    simulators.close()
    tables = {name: stack(columns[name]) for name in ("before", "after", "rewards", "ends")}
    flags = {name: np.array(columns[name]) for name in ("in_space", "valid")}
    bounds = {name: getattr(space, name, None) for name in ("low", "high")}
    return Replay(actions=actions, **tables, **flags, **bounds)
