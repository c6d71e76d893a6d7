"""Offline datasets for training: loading as a replay buffer, and the collector that samples it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs import ObservationNorm, Transform, TransformedEnv

from hydrl.datasets import files
from hydrl.datasets.convert import (
    check_task,
    check_transforms,
    is_old_format,
    read_about,
    reward_transforms,
    to_env_rows,
)
from hydrl.datasets.from_run import RECORD_ADVICE, is_normalized, read_run_buffer
from hydrl.envs.external_env import GymIO
from hydrl.envs.gymnasium import gymnasium_env
from hydrl.envs.normalization import fit_normalizer, normalizers
from hydrl.errors import UserError, warn_once
from hydrl.experience.buffers import unscale_actions
from hydrl.experience.episodes import EPISODE, EpisodeWindows, complete_episodes, has_episodes
from hydrl.limits import PositiveInt
from hydrl.networks.decision_transformer import DecisionTransformer
from hydrl.specs import CONTEXT_KEYS
from hydrl.training.evaluator import preserve_rng

Kind = Literal["run", "minari", "h5", "npz"]


def load_dataset(
    env: TransformedEnv,
    policy: TensorDictModuleBase,
    *,
    path: str,
    task: str,
    kind: Kind = "run",
    key: str = "data.path",
    sequence: int | None = None,
    make_env: Callable[..., TransformedEnv] | None = None,
) -> ReplayBuffer:
    """Offline dataset as a replay buffer with uniform sampling, with replacement.

    Rows are stored in the environment's own units; samples have the transforms of ``env`` applied. Its
    observation normalizers are fitted to the dataset.

    Args:
        env: gives the observation and action specs.
        policy: reads the observations.
        path: a run folder (its newest checkpoint), a checkpoint, or a path for
            :func:`hydrl.datasets.files.read_columns`.
        task: environment of this run; the dataset has to be of the same.
        kind: ``run`` for a run's replay buffer, else the file format.
        key: the key the user set, for messages.
        sequence: consecutive rows of an episode sampled together, with returns-to-go; ``None`` samples
            single rows.
        make_env: builds the environment; the dataset is in the spaces of its Gymnasium environment.

    Raises:
        UserError: if there is no dataset, or it does not match the environment, its transforms or its spaces.
    """
    label, scales, checkpoint = f"{key}={path}", reward_transforms(env), None
    buffer: Any
    if kind == "run":
        buffer, is_scaled, checkpoint, recorded_env = load_run_rows(path, task, key)
        scales = [] if is_scaled else scales
    else:
        about = read_about(kind, Path(path))
        check_task(about.get("task"), task, label)
        buffer, recorded_env = load_file(env, kind, Path(path), label, about, make_env), about.get("env")
    check_policy_inputs(env, policy, buffer[:1], label)
    if sequence is not None:
        buffer = as_sequences(buffer, sequence, label)
        policy.apply(partial(fit_decision_transformer, rows=buffer.storage[:]))
    unscale_actions(buffer, env)
    if transforms := [*fit_normalizers(env, buffer, label), *scales]:
        buffer.append_transform(EnvTransforms(transforms, env.device))
    buffer.read_from = checkpoint  # checkpoints record it
    buffer.recorded_env = recorded_env
    return buffer


def load_file(
    env: TransformedEnv, kind: Kind, path: Path, label: str, about: Mapping[str, Any], make_env: Any
) -> ReplayBuffer:
    """The transitions of a dataset file; ``about`` is its ``about.json``. See :func:`load_dataset`."""
    check_transforms(env, label)
    columns = files.transitions(files.read_columns(kind, path, label))
    if not len(columns["rewards"]):
        raise UserError(f"{label}: no row has a next observation. Add the column {files.NEXT_OBSERVATIONS}.")
    io = None if is_old_format(kind, path, about) else make_gym_io(make_env, env)
    rows = to_env_rows(columns, env, label, io)
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    buffer.extend(rows)
    return buffer


def make_gym_io(make_env: Any, env: TransformedEnv) -> GymIO | None:
    """Conversion from and to the spaces of a Gymnasium environment; ``None`` for other environments."""
    make: Any = make_env.args[0] if isinstance(make_env, partial) else None
    if getattr(make, "func", None) is not gymnasium_env:
        return None
    with preserve_rng():
        return GymIO(make, env.base_env.action_spec_unbatched, "data")


def load_run_rows(path: str, task: str, key: str) -> tuple[ReplayBuffer, bool, str, Any]:
    """A run's replay buffer.

    Returns:
        the buffer, whether its rewards are transformed irreversibly, the checkpoint, and the run's ``env``
        settings.

    Raises:
        UserError: if the run has no replay buffer, is of another environment, or stored normalized
            observations.
    """
    label = f"{key}={path}"
    buffer, settings, applied, archive = read_run_buffer(Path(path), key)
    check_task(settings["task"], task, label)
    if is_normalized(settings):
        raise UserError(f"{label}: its observations are normalized. {RECORD_ADVICE}.")
    if len(buffer) and (steps := list(buffer.storage[0].shape)):
        advice = "Use a run without rnn"
        raise UserError(f"{label}: it has sequences of {steps[-1]} steps, as its RNN learned them. {advice}.")
    for name in applied:
        warn_once(f"{label}: rewards include transforms.{name} of that run")
    return buffer, bool(applied), str(archive.absolute()), settings.get("env")


def as_sequences(buffer: ReplayBuffer, sequence: int, label: str) -> ReplayBuffer:
    """A buffer whose samples are windows of ``sequence`` consecutive rows of an episode.

    Raises:
        UserError: if the order of rows or their returns are unknown.
    """
    rows = buffer.storage[:]
    if not has_episodes(buffer):
        raise UserError(f"{label}: an older version saved it, without episodes. {RECORD_ADVICE}.")
    if "steps_to_next_obs" in rows.keys():  # noqa: SIM118 - a tensordict's keys
        raise UserError(f"{label}: its rows are n-step transitions. Use minibatches.n_steps=1 in that run.")
    if "step_count" not in rows.keys():  # noqa: SIM118
        raise UserError(f"{label}: no step count. Add a StepCounter to transforms of that run.")
    rows = complete_episodes(rows)
    if not len(rows):
        raise UserError(f"{label}: no complete episode, and so no return. Train that run for longer.")
    windows = EpisodeWindows(rows[EPISODE], sequence)
    sequences = TensorDictReplayBuffer(storage=LazyTensorStorage(len(rows)), sampler=windows)
    sequences.extend(rows)
    return sequences


def fit_decision_transformer(module: nn.Module, rows: TensorDictBase) -> None:
    """Fits a decision transformer's return scaling to the dataset's rows."""
    if isinstance(module, DecisionTransformer):
        module.fit(rows)


def check_policy_inputs(
    env: TransformedEnv, policy: TensorDictModuleBase, rows: TensorDictBase, label: str
) -> None:
    """Checks that rows have the entries that the policy reads, as the environment has them.

    Raises:
        UserError: for an entry that is missing, or of another shape or dtype.
    """
    step = env.fake_tensordict().reshape(-1)[0]
    inputs = [key for key in policy.in_keys if key not in (*CONTEXT_KEYS, "is_init")]
    for key in ("action", *inputs, *(("next", key) for key in inputs)):
        expected, actual = step.get(key), rows.get(key, None)
        if actual is None or (actual.shape[1:], actual.dtype) != (expected.shape, expected.dtype):
            shape, dtype = ("none", "") if actual is None else (list(actual.shape[1:]), actual.dtype)
            expected_text = f"{list(expected.shape)} {expected.dtype}"
            raise UserError(f"{label}: {key} is {shape} {dtype}. The environment has {expected_text}.")


def fit_normalizers(env: TransformedEnv, buffer: ReplayBuffer, label: str) -> list[ObservationNorm]:
    """The environment's observation normalizers, fitted to the rows.

    Raises:
        UserError: for running normalizers, which a dataset would not update.
    """
    transforms = normalizers(env)
    for transform in transforms:
        if not isinstance(transform, ObservationNorm):
            advice = "Use transforms=normalized init_stats_frames=1_000, which takes them from the dataset"
            raise UserError(f"{label}: running statistics are not updated by a dataset. {advice}.")
        fit_normalizer(transform, buffer.storage[:].get(transform.in_keys[0]).to(transform.loc.device))
    return transforms


class EnvTransforms(Transform):
    """Replay-buffer transform that applies an environment's transforms to sampled rows.

    Args:
        transforms: the environment's transforms of observation and reward values.
        device: device of the environment.
    """

    def __init__(self, transforms: list[Transform], device: torch.device | None) -> None:
        super().__init__()
        self.transforms, self.device = (transforms,), device  # a tuple: no submodules of this one

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Rows ``[rows]``, with root and next entries transformed."""
        rows = rows.to(self.device) if self.device is not None else rows
        for transform in self.transforms[0]:
            root_keys: list[NestedKey] = [*transform.in_keys] * isinstance(transform, ObservationNorm)
            for key in (*root_keys, *(("next", key) for key in transform.in_keys)):
                values = rows.get(key)  # statistics may be in double precision, as the environment
                rows.set(key, transform._apply_transform(values).to(values.dtype))
        return rows


class DatasetCollector:
    """Collector that samples an offline dataset; the environment is used for evaluation only.

    Args:
        env, make_env, policy, num_envs, seed, stop: unused; all collectors have the same arguments.
        data: the dataset.
        frames_per_batch: transitions in a batch; they count as frames.
        device: device of the batches.
    """

    episode_restart_reason: str | None = None
    steps_env = False

    def __init__(
        self,
        env: TransformedEnv,
        make_env: Callable[..., TransformedEnv],
        policy: TensorDictModuleBase,
        *,
        data: ReplayBuffer,
        frames_per_batch: PositiveInt,
        num_envs: PositiveInt,
        seed: int,
        device: str,
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.buffer, self.frames_per_batch, self.device = data, frames_per_batch, device

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches ``[frames_per_batch]``, without end."""
        while True:
            yield self.buffer.sample(self.frames_per_batch).to(self.device)

    def publish(self) -> None:
        """Nothing to do: no policy acts."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """Empty: sampling uses the global random number generator."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state`."""

    def shutdown(self) -> None:
        """Nothing to do."""
