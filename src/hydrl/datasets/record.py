"""Recording of a run's policy as an offline dataset, in the environment's own units."""

import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule
from torch import Tensor
from torchrl.data import Categorical, Composite, OneHot
from torchrl.envs import EnvBase, RenameTransform, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.datasets import files
from hydrl.datasets.convert import ABOUT, FORMAT, column_name
from hydrl.datasets.files import NEXT_OBSERVATIONS, Columns
from hydrl.envs.evaluation import without_log_probabilities
from hydrl.envs.spaces import stack_values
from hydrl.envs.time_limits import episode_limit
from hydrl.envs.transforms import ActionScaling
from hydrl.envs.transitions import (
    TransitionRecorder,
    action_entries,
    entry_paths,
    find_recorders,
    flat_arrays,
    mask_entry,
    record_transitions,
)
from hydrl.errors import SaveError, UserError
from hydrl.library_setup import seed_generators
from hydrl.run.atomic_files import atomically
from hydrl.run.trained_run import TrainedRun
from hydrl.specs import INFO, MASK, random_action
from hydrl.training.evaluator import PolicyEvaluator, episode_seed

MAX_ENVS = 8  # environments stepped together
RAW_PREFIX = "raw_"  # of the names of untransformed copies
MAX_LISTED_BOUNDS = 64  # an entry's bounds are described up to this many
UNBOUNDED = 1e38  # TorchRL's value for no bound
Transition = tuple[Any, Any, Any]  # observation, action, next observation


def observation_entries(env: EnvBase) -> list[NestedKey]:
    """The environment's own observation entries."""
    return [key for key in env.observation_spec.keys(True, True) if INFO not in (key, key[0])]


def copy_raw_entries(env: EnvBase) -> RenameTransform:
    """Transform that copies observations and rewards before other transforms change them."""
    keys = [*observation_entries(env), env.reward_keys[0]]
    return RenameTransform(keys, [RAW_PREFIX + column_name(key) for key in keys], create_copy=True)


def record_episodes(
    run: TrainedRun,
    evaluator: PolicyEvaluator,
    trained: int,
    *,
    frames: int,
    sampled: bool,
    stream: int,
    random: float = 0.0,
) -> Columns:
    """Records complete episodes of at least ``frames`` steps in total.

    Args:
        run: the run whose policy plays.
        evaluator: holds the policy and its normalizer.
        trained: frames that the policy was trained for.
        frames: steps to record.
        sampled: samples actions from the policy's distribution instead of taking its mode.
        stream: seed stream of the episodes, as for an evaluation.
        random: share of the frames with uniformly random valid actions, in episodes after the policy's.

    Returns:
        ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and ``next_observations``.

    Raises:
        UserError: if actions should be sampled and the policy has no distribution.
    """
    modules = evaluator.actor.modules()
    if sampled and not any(isinstance(module, ProbabilisticTensorDictModule) for module in modules):
        raise UserError(
            f"sampled=true: the policy of algo={run.algo} has no distribution. "
            "Remove it, or use random=0.5 for a share of random actions."
        )
    random_frames = round(frames * random)
    parts = []
    for count, is_random in ((frames - random_frames, False), (random_frames, True)):
        if count:
            seed = episode_seed(run.seed, 0 if is_random else trained, stream)
            parts += [play_episodes(run, evaluator, count, seed=seed, sampled=sampled, random=is_random)]
    return {name: np.concatenate([columns[name] for columns in parts]) for name in parts[0]}


def play_episodes(
    run: TrainedRun, evaluator: PolicyEvaluator, frames: int, *, seed: int, sampled: bool, random: bool
) -> Columns:
    """Episodes of :func:`record_episodes`, all by the policy or all random.

    Environments are stepped together, each until it has its share of the frames and the episode ends. Without
    a time limit an episode may be truncated.
    """
    count = min(MAX_ENVS, frames)
    seed_generators(seed)
    env = envs.make_env(
        record_transitions(run.build("env")),
        [copy_raw_entries, *run.transform_builders],
        num_envs=count,
        device=str(evaluator.make_env.keywords["device"]),
        normalizer=evaluator.normaliser(),
        policy=evaluator.actor,
        seed=seed,
    )
    try:
        min_steps = -(-frames // count)
        steps, transitions, lengths = step_envs(env, evaluator, min_steps, sampled=sampled, random=random)
        columns = to_columns(env, torch.cat([steps[:length, index] for index, length in enumerate(lengths)]))
        if find_recorders(env.base_env):
            in_order = [step[index] for index, length in enumerate(lengths) for step in transitions[:length]]
            columns = env_space_columns(env.base_env, in_order) | columns
        last = np.cumsum(lengths) - 1
        columns["timeouts"][last] |= ~columns["terminals"][last]
        ends = np.flatnonzero(columns["terminals"] | columns["timeouts"])
        row_count = ends[np.searchsorted(ends, frames - 1)] + 1
        return {name: values[:row_count] for name, values in columns.items()}
    finally:
        env.close(raise_if_closed=False)


@torch.no_grad()
def step_envs(
    env: TransformedEnv, evaluator: PolicyEvaluator, min_steps: int, *, sampled: bool, random: bool
) -> tuple[TensorDictBase, list[list[Transition]], list[int]]:
    """Steps environments until each has ``min_steps`` steps and its episode ends.

    Returns:
        steps ``[time, envs]``; the same steps as the environments' own values, empty without recorders; and
        the number of steps of each environment.
    """
    entries = (*entries_without_recorder(env.base_env), env.base_env.reward_keys[0])
    keys = [RAW_PREFIX + column_name(key) for key in entries]
    recorders, transitions = find_recorders(env.base_env), list[list[Transition]]()
    count, limit = env.numel(), episode_limit(env)
    steps: list[TensorDictBase] = []
    lengths, ages = [0] * count, torch.zeros(count, dtype=torch.int64)
    kind = ExplorationType.RANDOM if sampled else ExplorationType.DETERMINISTIC
    with set_exploration_type(kind), without_log_probabilities(evaluator.actor):
        now = env.reset()
        while not all(lengths):
            acted = evaluator.actor(now)  # for random actions too: it updates the RNN state
            before = [recorder.observation for recorder in recorders]
            now, following = env.step_and_maybe_reset(random_action(env, acted) if random else acted)
            after = [(recorder.action, recorder.next_observation) for recorder in recorders]
            transitions.append([(first, *rest) for first, rest in zip(before, after, strict=True)])
            step = now.reshape(count).select(*keys, "action", strict=False).cpu().clone()
            ends = ("terminated", "truncated", "done")
            next_step = now["next"].reshape(count).select(*keys, *ends, strict=False)
            step.set("next", next_step.cpu().clone())
            steps.append(step)
            done, ages = step["next", "done"].reshape(count), ages + 1
            for index in range(count):
                is_over = done[index] or ages[index] >= limit
                if not lengths[index] and len(steps) >= min_steps and is_over:
                    lengths[index] = len(steps)
            ages[done] = 0
            now = following
    return torch.stack(steps), transitions, lengths


def entries_without_recorder(env: EnvBase) -> list[NestedKey]:
    """Entries written as TorchRL has them: all, or with a recorder the mask outside the observation."""
    entries = observation_entries(env)
    if not (recorders := find_recorders(env)):
        return entries
    return [MASK] if MASK in entries and MASK not in observation_paths(env, recorders[0]) else []


def observation_paths(env: EnvBase, recorder: TransitionRecorder) -> dict[str, tuple[tuple, Space]]:
    """Path and space of each entry of the environment's own observations, by name."""
    return entry_paths(recorder.observation_space, mask_entry(env))


def env_space_columns(env: EnvBase, rows: list[Transition]) -> Columns:
    """Observation and action columns of transitions, in the environment's own spaces."""
    recorder = find_recorders(env)[0]
    before, actions, after = ([row[index] for row in rows] for index in range(3))
    space, paths = recorder.observation_space, observation_paths(env, recorder)
    is_only = len(paths) == 1 and not entries_without_recorder(env)
    columns: Columns = {}
    for column, values in (("observations", before), (NEXT_OBSERVATIONS, after)):
        arrays = flat_arrays(stack_values(values, space), space)
        for name, (path, _) in paths.items():
            columns[column if is_only else f"{column}/{name}"] = arrays[path]
    arrays = flat_arrays(stack_values(actions, recorder.action_space), recorder.action_space)
    for name, (path, _) in action_entries(recorder.action_space).items():
        columns["/".join(filter(None, ["actions", name]))] = arrays[path]
    return columns


def to_columns(env: TransformedEnv, rows: TensorDictBase) -> Columns:
    """Columns of steps ``[rows]``, without those that :func:`env_space_columns` gives."""
    keys, after = entries_without_recorder(env.base_env), rows["next"]
    is_only = len(observation_entries(env.base_env)) == 1
    terminated, done = (after[name].reshape(-1) for name in ("terminated", "done"))
    truncated = after["truncated"].reshape(-1) if "truncated" in after else done & ~terminated
    rewards = after[RAW_PREFIX + column_name(env.base_env.reward_keys[0])]
    columns: dict[str, Any] = {"rewards": rewards.reshape(-1)}
    for column, steps in (("observations", rows), (NEXT_OBSERVATIONS, after)):
        for name in map(column_name, keys):
            columns[column if is_only else f"{column}/{name}"] = steps[RAW_PREFIX + name]
    columns |= {"terminals": terminated, "timeouts": truncated}
    if not find_recorders(env.base_env):
        columns = {"actions": unscale_actions(env, rows["action"]), **columns}
    return {name: values.numpy() for name, values in columns.items()}


def unscale_actions(env: TransformedEnv, action: Tensor) -> Tensor:
    """Policy actions ``[rows, ...]`` in the environment's own units; one-hot ones become integers."""
    for transform in env.transform:
        if isinstance(transform, ActionScaling):
            action = transform.for_rows()._inv_apply_transform(action)
    one_hot = type(env.base_env.action_spec_unbatched) is OneHot  # and not several choices
    return action.argmax(-1) if one_hot else action


def env_spaces(make_env: Callable[..., EnvBase]) -> tuple[Space, Space, str | None] | None:
    """Observation space, action space and mask entry of a run's Gymnasium environment.

    ``None`` for other environments.
    """
    env = envs.make_env(record_transitions(make_env), [])
    spaces = None
    for recorder in find_recorders(env.base_env)[:1]:
        spaces = recorder.observation_space, recorder.action_space, mask_entry(env.base_env)
    env.close()
    return spaces


def describe_space(space: Space) -> dict[str, Any]:
    """Plain description of a Gymnasium space."""
    description: dict[str, Any] = {"shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, Discrete):
        description |= {"choices": int(space.n)} | ({"start": int(space.start)} if space.start else {})
    elif isinstance(space, MultiDiscrete):
        description |= {"choices": space.nvec.tolist(), "start": space.start.tolist()}
    elif isinstance(space, Box) and space.low.size <= MAX_LISTED_BOUNDS and space.is_bounded():
        description |= {"low": space.low.tolist(), "high": space.high.tolist()}
    return description


def describe_specs(make_env: Callable[..., EnvBase]) -> dict[str, Any]:
    """Plain descriptions of a run's observation and action columns."""
    env = envs.make_env(record_transitions(make_env), [])
    try:
        descriptions = describe_torchrl_specs(env.base_env)
        if not (recorders := find_recorders(env.base_env)):
            return descriptions
        paths = observation_paths(env.base_env, recorders[0])
        described = {f"observations/{name}": describe_space(space) for name, (_, space) in paths.items()}
        masks = [f"observations/{key}" for key in entries_without_recorder(env.base_env)]
        described |= {name: descriptions[name] for name in masks}
        for name, (_, space) in action_entries(recorders[0].action_space).items():
            described["/".join(filter(None, ["actions", name]))] = describe_space(space)
        return described
    finally:
        env.close()


def describe_torchrl_specs(env: EnvBase) -> dict[str, Any]:
    """Plain descriptions of an environment's TorchRL specs."""
    observations = env.observation_spec_unbatched
    specs = {f"observations/{column_name(key)}": observations[key] for key in observation_entries(env)}
    specs["actions"] = env.action_spec_unbatched
    descriptions: dict[str, Any] = {}
    for name, spec in specs.items():
        descriptions[name] = {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
        if type(spec) in (OneHot, Categorical):
            descriptions[name]["choices"] = int(spec.space.n)
        elif not isinstance(spec, Composite) and hasattr(spec.space, "low"):
            bounds = {end: getattr(spec.space, end) for end in ("low", "high")}
            has_bounds = all(
                bound.numel() <= MAX_LISTED_BOUNDS and bound.double().abs().max() < UNBOUNDED
                for bound in bounds.values()
            )
            descriptions[name] |= {end: bound.tolist() for end, bound in bounds.items()} if has_bounds else {}
    return descriptions


def episode_returns(columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths, ``[episodes]``, of a dataset's finished episodes."""
    extended = files.add_episode_columns(columns)
    is_end = files.episode_ends(extended)
    return extended["next_returns"][is_end], extended["steps"][is_end]


def save_dataset(kind: str, out: Path, columns: Columns, about: Mapping[str, Any]) -> None:
    """Writes a dataset and its ``about.json`` to the new folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with atomically(out / f"data.{kind}") as partial:
            files.write_columns(kind, partial, columns)
        with atomically(out / ABOUT) as partial:
            partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except SaveError:
        if not any(out.iterdir()):  # so that the same name can be used again
            out.rmdir()
        raise


def check_does_not_exist(out: Path) -> None:
    """Checks that the folder ``out`` can be created and is empty.

    Raises:
        UserError: if not.
    """
    if out.exists():
        if not (out.is_dir() and not any(out.iterdir())):
            raise UserError(f"out={out}: already exists. Use another folder.")
        return
    try:
        out.mkdir(parents=True)
        out.rmdir()  # it is created again after recording
    except OSError as error:
        raise UserError(f"out={out}: cannot be created: {error.strerror}.") from None


def describe_dataset(
    run: TrainedRun,
    columns: Columns,
    folder: Path,
    which: str,
    trained: int,
    *,
    sampled: bool,
    random: float = 0.0,
) -> dict[str, Any]:
    """Contents of ``about.json``: environment, statistics and origin of a dataset."""
    returns, lengths = episode_returns(columns)
    spec_descriptions = describe_specs(run.build("env"))
    finite = [value for value in returns.tolist() if math.isfinite(value)]
    return {
        "format": FORMAT,
        "task": run.task,
        "env": run.shown["env"],
        "rows": len(columns["rewards"]),
        "episodes": len(returns),
        "return_mean": float(np.mean(finite)) if finite else None,
        "return_std": float(np.std(finite)) if finite else None,
        "length_mean": float(lengths.mean()) if len(lengths) else None,
        "specs": spec_descriptions,
        "made_by": {
            "run": str(folder.absolute()),
            "algo": run.algo,
            "seed": run.seed,
            "checkpoint": which,
            "frames": trained,
            "actions": "sampled" if sampled else "deterministic",
            "random": random,
            "hydrl": version("hydrl"),
        },
    }
