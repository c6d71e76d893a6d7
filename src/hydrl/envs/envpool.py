"""EnvPool (Weng et al. 2022): environments stepped together by threads in C++, as one TorchRL environment."""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from tensordict import TensorDict, TensorDictBase
from torchrl.data import OneHot
from torchrl.envs import EnvBase, SignTransform

from hydrl.envs.action_masks import MaskSetting, MaskTracker
from hydrl.envs.episode_info import SUCCESS, EpisodeInfo
from hydrl.envs.gymnasium import find_wrappers, gymnasium_env
from hydrl.envs.minigrid import MAX_WORDS, PREFIXES, WORDS, encode_mission, one_hot_cells
from hydrl.envs.optional import check_id, require_package
from hydrl.envs.spaces import (
    ChannelsFirstBox,
    adapt_entry,
    entry_channels_first,
    get_path,
    is_image,
    is_vector,
    leaf_spaces,
)
from hydrl.errors import UserError, warn_once
from hydrl.limits import Reduction
from hydrl.specs import INFO, MASK, first_gym_env

EXAMPLES = ("HalfCheetah-v4", "Pong-v5", "Jumanji/Snake-v1")
OTHER_KEYS = {"seed": "seed", "env_seed": "seed", "batch_size": "collector.num_envs"}
# As env=atari sets them; evaluations play whole games.
ATARI = {"episodic_life": True, "reward_clip": False, "use_fire_reset": False, "noop_max": 30}
GRID_SIZES = [11, 6, 3]  # MiniGrid's objects, colours and states
TIME, STEPS = "time_step", "step_count"  # the latter is an entry of TorchRL's StepCounter
NO_LIMIT = (0, 2**31 - 1)
HIDDEN_GOAL = "partially_observable"  # Meta-World's keyword, true unless it is set


def envpool_env(
    id: str,
    num_envs: int = 1,
    device: str = "cpu",
    num_threads: int | None = None,
    mission: Literal["words"] | None = None,
    info_keys: list[str] | dict[str, Reduction] | None = None,
    action_mask: MaskSetting = None,
    whole_games: bool = False,
    render_mode: str | None = None,
    **kwargs: Any,
) -> EnvBase:
    """TorchRL environment of ``num_envs`` environments of EnvPool's.

    Environment ``k`` is seeded with the run's seed + ``k``. Entries are those that
    :func:`hydrl.envs.gymnasium_env` gives: images ``[C, H, W]``, vectors of floats, ``action_mask``.

    Args:
        id: as EnvPool lists it, such as ``HalfCheetah-v4``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where the tensors live.
        num_threads: threads that step them; ``None``: as many as environments, at most one a core.
        mission: ``words`` observes a MiniGrid mission, see :func:`hydrl.envs.minigrid.make`.
        info_keys: as for :func:`hydrl.envs.gymnasium_env`.
        action_mask: as for :func:`hydrl.envs.gymnasium_env`.
        whole_games: plays Atari games to their end, whatever ``episodic_life`` is.
        render_mode: refused.
        **kwargs: EnvPool's own keywords, such as ``max_episode_steps``.

    Raises:
        UserError: for an unknown id or keyword, a missing package, a render mode, or several players.
    """
    if render_mode is not None:
        raise UserError(
            f"env.id={id}: EnvPool's renderer ends the process without a display. Leave video and render out."
        )
    if num_threads is not None and (not isinstance(num_threads, int) or num_threads < 1):
        raise UserError(f"env.num_threads={num_threads}: should be an integer, 1 or more.")
    maker = partial(make, mission=mission, whole_games=whole_games, **kwargs)
    example = gymnasium_env(id, 1, device, info_keys=info_keys, make=maker, action_mask=action_mask)
    return EnvPoolEnv(example, num_envs, num_threads or 0)


def make(
    id: str, mission: Literal["words"] | None = None, whole_games: bool = False, **kwargs: Any
) -> gymnasium.Env:
    """Makes one environment of EnvPool's as a Gymnasium environment; arguments as of :func:`envpool_env`."""
    return SingleEnv(Task(id, mission, whole_games, kwargs))


def find_success_keys(id: str) -> list[str]:
    """The success flags in an environment's ``info``."""
    names = make_spec(id, {}).state_array_spec
    return [name for name in SUCCESS if f"info:{name}" in names]


make.success_keys = find_success_keys  # type: ignore[attr-defined]


def gym_maker(maker: Any) -> partial[EnvBase]:
    """A partial of :func:`gymnasium_env` with the spaces of a partial of :func:`envpool_env`."""
    keywords = {name: value for name, value in maker.keywords.items() if name != "num_threads"}
    own = {name: keywords.pop(name) for name in ("id", "info_keys", "action_mask") if name in keywords}
    return partial(gymnasium_env, make=partial(make, **keywords), **own)


def reward_sign(env: EnvBase | None = None) -> SignTransform | None:
    """For Atari games: TorchRL's transform to rewards -1, 0 and 1; logged returns are the game's score."""
    return SignTransform(in_keys=["reward"]) if getattr(env, "is_atari", False) else None


def make_spec(id: str, kwargs: Mapping[str, Any]) -> Any:
    """EnvPool's specs of an environment, without making it.

    Raises:
        UserError: for an unknown id or keyword, or a missing package or library.
    """
    with warnings.catch_warnings(action="ignore"):  # of bounds that are rounded
        envpool = require_package("envpool", "envpool")
        check_id(id, envpool.list_all_envs(), "environment of EnvPool", EXAMPLES)
        try:
            return envpool.make_spec(id, **kwargs)
        except ImportError as error:
            if "Qt 5" not in str(error):
                raise
            raise UserError(
                f"env.id={id}: Procgen needs Qt 5, which is not installed. Run apt install libqt5gui5."
            ) from error
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            if match := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
                word = f"env.{match[1]}={kwargs[match[1]]}"
                raise UserError(f"{word}: {id} takes no {match[1]}. Leave it out.") from error
            reason = " ".join(str(error).split())[:100].rstrip(".")
            words = " ".join(f"env.{key}={value}" for key, value in kwargs.items())
            raise UserError(
                f"{words or f'env.id={id}'}: EnvPool refuses it: {reason}. EnvPool's documentation lists the "
                "keywords of each environment."
            ) from error


class Task:
    """A task of EnvPool's: its spaces as hydrl has them, and how batches are converted from and to them.

    ``step_count`` becomes the entry ``time_step``, a share of its highest value. MiniGrid's codes become
    one-hot cells. Integer boxes become multi-discrete actions, or one discrete action where the mask is of
    all combinations.

    Args:
        id: of EnvPool's list.
        mission: see :func:`envpool_env`.
        whole_games: see :func:`envpool_env`.
        kwargs: EnvPool's keywords.

    Raises:
        UserError: see :func:`envpool_env`.
    """

    def __init__(
        self, id: str, mission: Literal["words"] | None, whole_games: bool, kwargs: Mapping[str, Any]
    ) -> None:
        self.id, self.mission, self.kwargs = id, mission, dict(kwargs)
        for key in kwargs.keys() & OTHER_KEYS:
            raise UserError(f"env.{key}={kwargs[key]}: another key sets this. Write {OTHER_KEYS[key]}=N.")
        if mission not in (None, "words"):
            raise UserError(f"env.mission={mission}: should be null or words.")
        self.is_atari = hasattr(make_spec(id, {}).config, "use_fire_reset")
        if self.is_atari:
            self.kwargs = ATARI | self.kwargs | ({"episodic_life": False} if whole_games else {})
        spec = make_spec(id, self.kwargs)
        if getattr(spec.config, "max_num_players", 1) > 1:
            raise UserError(f"env.id={id}: it has several players, which are not supported with EnvPool.")
        if getattr(spec.config, HIDDEN_GOAL, False) and HIDDEN_GOAL not in kwargs:
            warn_once(
                f"env.id={id}: its observation has zeros in place of the goal. Write "
                f"+env.{HIDDEN_GOAL}=false to observe the goal; =true is as now, without this line."
            )
        with warnings.catch_warnings(action="ignore"):
            observations, actions = spec.gymnasium_observation_space, spec.gymnasium_action_space
        self.has_grid = id.startswith(PREFIXES) and {*observations} >= {"image", "direction", "mission"}
        if mission and not self.has_grid:
            raise UserError(f"env.mission={mission}: env.id={id} has no mission. Leave env.mission out.")
        self.first_mission: bytes | None = None
        self.limit = None if (limit := spec.config.max_episode_steps) in NO_LIMIT else limit
        self.stack_size = getattr(spec.config, "stack_num", 1)
        self.info_names = [
            name.removeprefix("info:")
            for name, array in spec.state_array_spec.items()
            if name.startswith("info:") and tuple(array.shape) in ((), (-1,))
        ]
        has_steps = isinstance(observations, Dict) and STEPS in observations.spaces
        self.last_step = max(1, int(observations[STEPS].n) - 1) if has_steps else None
        self.raw_actions = actions
        self.observation_space = self.convert_space(observations)
        self.action_space, self.choices = convert_actions(actions, observations)

    def convert_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """EnvPool's observation space as hydrl has it."""
        if self.has_grid:
            side = space["image"].shape[:2]
            spaces = {"pixels": ChannelsFirstBox(0, 1, (sum(GRID_SIZES), *side), np.uint8)}
            words = {"mission": MultiDiscrete([len(WORDS) + 1] * MAX_WORDS)} if self.mission else {}
            return Dict({**spaces, "direction": Discrete(4), **words})
        if not isinstance(space, Dict):
            return without_odd_bounds(space)
        spaces = {name: without_odd_bounds(subspace) for name, subspace in space.items() if name != STEPS}
        return Dict(spaces | ({TIME: Box(0, 1, (1,), np.float32)} if STEPS in space.spaces else {}))

    def convert(self, raw: Any) -> Any:
        """A batch of EnvPool's observations as one in :attr:`observation_space`, ``[n, ...]`` each array."""
        if self.has_grid:
            cells = one_hot_cells(raw["image"], GRID_SIZES).transpose(0, 3, 1, 2)
            entries = {"pixels": cells, "direction": raw["direction"]}
            if self.mission:
                entries["mission"] = np.stack(
                    [read_mission(row.tobytes(), self.id) for row in raw["mission"]]
                )
            else:
                self.warn_of_missions(raw["mission"])
            return entries
        if not isinstance(raw, dict) or STEPS not in raw:
            return raw
        shares = raw[STEPS].astype(np.float32)[:, None] / np.float32(self.last_step)
        return {name: values for name, values in raw.items() if name != STEPS} | {TIME: shares}

    def warn_of_missions(self, missions: np.ndarray) -> None:
        """Warns once of missions that differ between episodes and are not observed."""
        if self.first_mission is None:
            self.first_mission = missions[0].tobytes()
        elif any(row.tobytes() != self.first_mission for row in missions):
            self.first_mission = None
            warn_once(
                f"env.id={self.id}: its mission differs between episodes, and the policy does not observe "
                "it. Write env.mission=words."
            )

    def to_raw(self, actions: np.ndarray) -> np.ndarray:
        """A batch of actions, ``[n]`` or ``[n, numbers]``, as EnvPool takes them."""
        raw = self.raw_actions
        if isinstance(raw, Discrete):
            return actions.astype(np.int32)
        if self.choices:
            actions = np.stack(np.unravel_index(actions, self.choices), -1)
        if isinstance(self.action_space, MultiDiscrete) or self.choices:
            actions = actions + raw.low.ravel()
        return np.ascontiguousarray(actions.reshape(len(actions), *raw.shape), raw.dtype)

    def make_pool(self, num_envs: int, num_threads: int, seed: int) -> Any:
        """A pool of EnvPool's whose environment ``k`` has the seed + ``k``."""
        envpool = require_package("envpool", "envpool")
        seeds = [(seed + index) % 2**31 for index in range(num_envs)]
        with warnings.catch_warnings(action="ignore"):
            pool = envpool.make(
                self.id,
                env_type="gymnasium",
                num_envs=num_envs,
                num_threads=num_threads,
                seed=seeds,
                **self.kwargs,
            )
            assert pool.observation_space is not None  # made when it is first read, with warnings
            return pool


class Pool:
    """The environments of a task that EnvPool steps together; rows are ordered by environment.

    EnvPool takes seeds only when it makes its environments, so that they are made at the first reset after a
    seed. Those whose episode has ended are reset before the next step, which would otherwise ignore their
    action.

    Args:
        task: what they are.
        num_envs: number of environments.
        num_threads: threads that step them; 0: as many as environments, at most one a core.
    """

    def __init__(self, task: Task, num_envs: int, num_threads: int) -> None:
        self.task, self.num_envs, self.num_threads = task, num_envs, num_threads
        self.seed: int = 0
        self.envs: Any = None

    @property
    def checkpoint_label(self) -> str:
        """What a message calls the state that checkpoints lack."""
        return f"EnvPool's {self.task.id}"

    def reset(self, indices: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Begins episodes: observations ``[k, ...]`` of the environments, and their indices ``[k]``."""
        if self.envs is None:
            self.envs, indices = self.task.make_pool(self.num_envs, self.num_threads, self.seed), None
        raw, info = self.envs.reset(indices)
        return self.task.convert(raw), np.array(info["env_id"])

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all environments, as Gymnasium's vectors do."""
        raw, rewards, terminated, truncated, info = self.envs.step(self.task.to_raw(actions))
        if (info["env_id"] != np.arange(self.num_envs)).any():
            order = np.argsort(info["env_id"])
            raw, info = take_rows(raw, order), take_rows(info, order)
            rewards, terminated, truncated = rewards[order], terminated[order], truncated[order]
        return self.task.convert(raw), rewards, terminated, truncated & ~terminated, info

    def close(self) -> None:
        """Frees the environments; a reset makes them anew."""
        if self.envs is not None:
            self.envs.close()
        self.envs = None


class SingleEnv(gymnasium.Env):
    """Gymnasium environment of a pool of one.

    Args:
        task: what it is.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.pool = task, Pool(task, 1, 1)
        self.observation_space, self.action_space = task.observation_space, task.action_space
        self.spec = EnvSpec(task.id, max_episode_steps=task.limit)
        self.stack_size = task.stack_size

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode; a seed makes the environment anew."""
        super().reset(seed=seed)
        if seed is not None:
            self.pool.close()
            self.pool.seed = seed
        return first_row(self.pool.reset()[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """One step."""
        batch, rewards, terminated, truncated, info = self.pool.step(np.asarray(action)[None])
        values = {name: info[name][0] for name in self.task.info_names if name in info}
        return first_row(batch), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), values

    def close(self) -> None:
        """Frees the pool."""
        self.pool.close()


class EnvPoolEnv(EnvBase):
    """TorchRL environment of all environments of a pool.

    Args:
        example: one environment, whose specs these are.
        num_envs: number of environments.
        num_threads: see :class:`Pool`.
    """

    has_consecutive_seeds = True

    def __init__(self, example: EnvBase, num_envs: int, num_threads: int) -> None:
        super().__init__(device=example.device, batch_size=[] if num_envs == 1 else [num_envs])
        gym_env = first_gym_env(example)
        task: Task = gym_env.unwrapped.task
        self.pool = Pool(task, num_envs, num_threads)  # first: a checkpoint's message names it
        self.gym_env, self.shows_all = gym_env, True
        self.label, self.is_atari = f"env.id={task.id}", task.is_atari
        for kind in ("observation", "state", "action", "reward", "done"):
            name = f"full_{kind}_spec_unbatched"
            setattr(self, name, getattr(example, name))
        trackers, followed = find_wrappers(example, MaskTracker), find_wrappers(example, EpisodeInfo)
        space = (trackers[0] if trackers else self.gym_env.unwrapped).observation_space
        self.mask_entry = trackers[0].source[1] if trackers else None
        self.num_actions = len(trackers[0].mask) if trackers else 0
        name = "pixels" if is_image(space) else "observation"
        self.leaves = dict(leaf_spaces(space)) if isinstance(space, Dict) else {name: ((), space)}
        self.followed = FollowedInfo(followed[0], num_envs, task.info_names) if followed else None
        self.entries: dict[str, np.ndarray] = {}

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.pool.close()
            self.pool.seed = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        indices, num_envs = None, self.pool.num_envs
        if tensordict is not None and (reset_mask := tensordict.get("_reset", None)) is not None:
            indices = np.flatnonzero(reset_mask.reshape(-1).numpy(force=True))
            indices = indices if len(indices) < num_envs else None
        batch, rows = self.pool.reset(indices)
        fresh = self.convert(batch)
        if len(rows) == num_envs:
            self.entries = {name: np.empty_like(values) for name, values in fresh.items()}
        for name, values in fresh.items():
            self.entries[name][rows] = values
        if self.followed is not None:
            self.followed.clear(rows)
        return self.to_tensordict(*np.zeros((2, num_envs), bool))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.get(self.action_key)
        actions = actions.argmax(-1) if isinstance(self.action_spec, OneHot) else actions
        numbers = actions.numpy(force=True)
        numbers = numbers[None] if self.pool.num_envs == 1 else numbers
        batch, rewards, terminated, truncated, info = self.pool.step(numbers)
        self.entries = self.convert(batch)
        if self.followed is not None:
            self.followed.update(info)
        return self.to_tensordict(terminated, truncated, reward=np.array(rewards, np.float32))

    def convert(self, batch: Any) -> dict[str, np.ndarray]:
        """A batch of a task's observations as new arrays by entry, ``[n, ...]``."""
        entries = {
            name: convert_entry(get_path(batch, path), space) for name, (path, space) in self.leaves.items()
        }
        if self.mask_entry is not None:
            masks = np.array(batch[self.mask_entry], bool).reshape(-1, self.num_actions)
            masks[~masks.any(-1)] = True  # of ended episodes, and of a walled-in agent of Jumanji/Maze-v0
            entries[MASK] = masks
        return entries

    def to_tensordict(
        self, terminated: np.ndarray, truncated: np.ndarray, **columns: np.ndarray
    ) -> TensorDictBase:
        """The present observations with ends and more columns, ``[n]``, as a tensordict of copies."""
        columns |= {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        entries = {name: torch.tensor(values) for name, values in self.entries.items()}
        entries |= {name: torch.tensor(values)[:, None] for name, values in columns.items()}
        batch = TensorDict(entries, [self.pool.num_envs], device=self.device)
        if self.followed is not None:
            batch[INFO] = TensorDict(self.followed.columns(), [self.pool.num_envs], device=self.device)
        return batch if self.batch_size else batch[0]

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Frees the pool."""
        self.pool.close()
        super().close(raise_if_closed=raise_if_closed)


class FollowedInfo:
    """Values of ``info`` followed through the episodes of several environments.

    Args:
        wrapper: says what is followed, and how.
        num_envs: number of environments.
        names: of the numbers in the environments' ``info``.

    Raises:
        UserError: for a key that the user named and that is not there.
    """

    def __init__(self, wrapper: EpisodeInfo, num_envs: int, names: Sequence[str]) -> None:
        self.reductions = wrapper.reductions
        for name in wrapper.required:
            if name not in names:
                raise UserError(
                    f"env.info_keys: {wrapper.label} has no number {name} in info. Write some of "
                    f"{', '.join(names)}."
                )
        self.values = np.full((num_envs, len(self.reductions)), math.nan)
        self.counts = np.zeros(num_envs)

    def clear(self, rows: np.ndarray) -> None:
        """Begins the episodes of some environments."""
        self.values[rows], self.counts[rows] = math.nan, 0

    def update(self, info: Mapping[str, np.ndarray]) -> None:
        """Adds a step of all environments."""
        for column, (name, reduction) in enumerate(self.reductions.items()):
            values = np.array(info[name], np.float64)
            before = self.values[:, column]
            if reduction == "last":
                self.values[:, column] = values
            elif reduction == "max":
                self.values[:, column] = np.fmax(before, values)
            else:
                self.values[:, column] = np.where(self.counts > 0, before, 0.0) + values
        self.counts += 1

    def columns(self) -> dict[str, torch.Tensor]:
        """The values so far by name, ``[n, 1]``; NaN before the first step."""
        means = self.values / np.maximum(self.counts, 1)[:, None]
        return {
            name: torch.tensor((means if reduction == "mean" else self.values)[:, [column]]).float()
            for column, (name, reduction) in enumerate(self.reductions.items())
        }


def convert_actions(
    actions: gymnasium.Space, observations: gymnasium.Space
) -> tuple[gymnasium.Space, tuple[int, ...]]:
    """EnvPool's action space as hydrl has it, and the sizes of choices that are one discrete action."""
    if not isinstance(actions, Box):
        return actions, ()
    if actions.dtype.kind == "f":
        with warnings.catch_warnings(action="ignore"):  # of rounded bounds
            return Box(actions.low, actions.high, actions.shape, np.float32), ()
    sizes = tuple((actions.high.astype(int) - actions.low + 1).ravel().tolist())
    mask = observations.spaces.get(MASK) if isinstance(observations, Dict) else None
    if mask is not None and mask.shape == sizes and len(sizes) > 1:
        return Discrete(math.prod(sizes)), sizes
    return MultiDiscrete(sizes), ()


def without_odd_bounds(space: gymnasium.Space) -> gymnasium.Space:
    """A space whose vectors of floats are unbounded: EnvPool's Control Suite begins at 2e-308."""
    if isinstance(space, Dict):
        return Dict({name: without_odd_bounds(subspace) for name, subspace in space.items()})
    if isinstance(space, Box) and space.dtype.kind == "f" and len(space.shape) < 3:
        return Box(-np.inf, np.inf, space.shape, space.dtype.type)
    return space


def convert_entry(values: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """A batch of an entry as a new array, as :func:`hydrl.envs.spaces.adapt_entry` does one value."""
    rows = len(values)
    if is_image(space):
        order = channel_order(space)
        images = values if order is None else values.reshape(rows, -1)[:, order]
        dtype = np.uint8 if space.dtype in (np.uint8, np.bool_) else np.float32
        return np.array(images.reshape(rows, *adapted_shape(space)), dtype)
    if is_vector(space):
        return np.array(values, space.dtype)
    if isinstance(space, Discrete):
        return np.eye(int(space.n), dtype=np.float32)[values - space.start]
    if isinstance(space, Box | MultiBinary):
        return values.reshape(rows, -1).astype(np.float32)
    return np.stack([adapt_entry(value, space) for value in values]).astype(np.float32)


def channel_order(space: Box) -> np.ndarray | None:
    """The order of an image's numbers once its channels come first; ``None`` if they do already."""
    numbers = np.arange(math.prod(space.shape))
    order = entry_channels_first(numbers.reshape(space.shape), space).ravel()
    return None if (order == numbers).all() else order


def adapted_shape(space: Box) -> tuple[int, ...]:
    """The shape of an image once its channels come first."""
    return entry_channels_first(np.empty(space.shape, bool), space).shape


@lru_cache(maxsize=4_096)
def read_mission(text: bytes, id: str) -> np.ndarray:
    """The indices of the words of a mission in EnvPool's bytes, see :func:`encode_mission`."""
    return encode_mission(text.rstrip(b"\0").decode(), f"env.id={id}")


def take_rows(values: Any, order: np.ndarray) -> Any:
    """Rows of nested arrays in another order."""
    if isinstance(values, dict):
        return {name: take_rows(part, order) for name, part in values.items()}
    return values[order]


def first_row(batch: Any) -> Any:
    """The first row of nested arrays, copied."""
    if isinstance(batch, dict):
        return {name: first_row(values) for name, values in batch.items()}
    return np.array(batch[0])
