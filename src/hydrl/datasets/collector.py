"""Data that others collected: what an earlier run kept in its replay memory, or a set of transitions."""

from collections.abc import Callable, Iterator
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
from hydrl.datasets.convert import FORMAT, about, check_task, check_transforms, fitting, scales_of
from hydrl.datasets.from_run import kept, standardised
from hydrl.envs.external_env import GymIO
from hydrl.envs.gymnasium import gymnasium_env
from hydrl.envs.normalization import fit_normalizer, normalizers
from hydrl.errors import UserError
from hydrl.experience.buffers import unscale_actions
from hydrl.experience.episodes import EPISODE, EpisodeWindows, complete_episodes, has_episodes
from hydrl.library_setup import warn_once
from hydrl.networks.decision_transformer import DecisionTransformer
from hydrl.specs import CONTEXT_KEYS
from hydrl.training.evaluator import preserve_rng

Kind = Literal["run", "minari", "h5", "npz"]


def rows_of(
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
    """Transitions of a set, to be drawn from at random, with replacement.

    They are kept in the task's own units, and handed over as the transforms of ``env`` show them to what
    learns. A normaliser of observations takes its statistics from them.

    Args:
        env: says what an observation and an action are.
        policy: reads the observations.
        path: a run folder, whose newest checkpoint counts, or one checkpoint; else what
            :func:`hydrl.datasets.files.read` reads.
        task: this run's, which must be the data's.
        kind: what lies there: the replay memory of a ``run``, or a set of that form.
        key: what the user set, for messages.
        sequence: rows that are drawn together, one after another of an episode, with what it returned from
            each on; ``None`` draws single ones.
        make_env: makes such an environment; its task's own spaces are those of the set.

    Raises:
        UserError: if there is no data, or it is of another task, other transforms or other actions.
    """
    told, scales, checkpoint = f"{key}={path}", scales_of(env), None
    recorded_env: Any
    buffer: Any
    if kind == "run":
        buffer, scaled, checkpoint, recorded_env = of_run(path, task, key)
        scales = [] if scaled else scales
    else:
        written = about(files.minari_folder(Path(path)) if kind == "minari" else Path(path))
        check_task(written.get("task"), task, told)
        recorded_env = written.get("env")
        check_transforms(env, told)
        made = files.transitions(files.read(kind, Path(path), told))
        if not len(made["rewards"]):
            raise UserError(f"{told}: of none of its rows is it known what came next; add {files.NEXT}")
        older = bool(written) and written.get("format") != FORMAT
        if kind == "minari" and not written:
            older = files.older_minari(Path(path))
        rows = fitting(made, env, told, None if older else own_form(make_env, env))
        buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
        buffer.extend(rows)
    check_read(env, policy, buffer[:1], told)
    if sequence is not None:
        buffer = in_sequences(buffer, sequence, told)
        policy.apply(partial(shown_to, rows=buffer.storage[:]))
    unscale_actions(buffer, env)  # the rows are in it, as a buffer keeps them
    if shown := [*standardising(env, buffer, told), *scales]:
        buffer.append_transform(AsShown(shown, env.device))
    buffer.read_from = checkpoint  # for the record of what a run learns from
    buffer.recorded_env = recorded_env
    return buffer


def own_form(make_env: Any, env: TransformedEnv) -> GymIO | None:
    """How a Gymnasium task itself sees and acts; ``None`` of others."""
    make: Any = make_env.args[0] if isinstance(make_env, partial) else None
    if getattr(make, "func", None) is not gymnasium_env:
        return None
    with preserve_rng():
        return GymIO(make, env.base_env.action_spec_unbatched, "data")


def of_run(path: str, task: str, key: str) -> tuple[ReplayBuffer, bool, str, Any]:
    """What a run kept, whether its transforms changed rewards for good, its checkpoint and environment.

    Raises:
        UserError: if there is none, or it is of another task or of what a normaliser showed.
    """
    told = f"{key}={path}"
    buffer, settings, left, archive = kept(Path(path), key)
    check_task(settings["task"], task, told)
    if standardised(settings):
        raise UserError(
            f"{told}: what that run kept is as its normaliser made it; collect with transforms=plain, or "
            "play its policy, by python scripts/record.py run=RUN out=DIR, and use data=npz data.path=DIR"
        )
    for name in left:
        warn_once(f"{told}: its rewards are as transforms.{name} of that run left them")
    return buffer, bool(left), str(archive.absolute()), settings.get("env")


def in_sequences(buffer: ReplayBuffer, sequence: int, told: str) -> ReplayBuffer:
    """The rows of a buffer, drawn ``sequence`` at a time.

    Raises:
        UserError: where it is not known which rows follow one another, or what they returned.
    """
    rows = buffer.storage[:]
    if not has_episodes(buffer):
        raise UserError(
            f"{told}: an older run kept it and not which episodes its rows are of, so that it is single "
            "transitions; play its policy, by python scripts/record.py run=RUN out=DIR, and use data=npz "
            "data.path=DIR"
        )
    if "steps_to_next_obs" in rows.keys():  # noqa: SIM118 - a tensordict's keys
        raise UserError(f"{told}: its rows are of several steps each; collect with minibatches.n_steps=1")
    if "step_count" not in rows.keys():  # noqa: SIM118
        raise UserError(
            f"{told}: its rows do not say which step of an episode they are; collect with a "
            "StepCounter in transforms"
        )
    rows = complete_episodes(rows)
    if not len(rows):
        raise UserError(f"{told}: no episode in it comes to its end, so that no return is known")
    windows = EpisodeWindows(rows[EPISODE], sequence)
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(len(rows)), sampler=windows)
    made.extend(rows)
    return made


def shown_to(module: nn.Module, rows: TensorDictBase) -> None:
    """Lets a module of a policy that acts for a return see which the episodes of a set had."""
    if isinstance(module, DecisionTransformer):
        module.fit(rows)


def check_read(env: TransformedEnv, policy: TensorDictModuleBase, rows: TensorDictBase, told: str) -> None:
    """A policy reads of the rows what it reads of the environment.

    Raises:
        UserError: for an entry that is not there, or of another shape or kind.
    """
    step = env.fake_tensordict().reshape(-1)[0]
    read = [key for key in policy.in_keys if key not in (*CONTEXT_KEYS, "is_init")]
    for entry in ("action", *read, *(("next", each) for each in read)):
        wanted, found = step.get(entry), rows.get(entry, None)
        if found is None or (found.shape[1:], found.dtype) != (wanted.shape, wanted.dtype):
            there = "none" if found is None else f"{found.dtype} of shape {list(found.shape[1:])}"
            raise UserError(
                f"{told}: {entry} should be {wanted.dtype} of shape {list(wanted.shape)}; there is {there}"
            )


def standardising(env: TransformedEnv, buffer: ReplayBuffer, told: str) -> list[ObservationNorm]:
    """The environment's normalisers, with the statistics of the rows.

    Raises:
        UserError: for running ones, which nothing would run along.
    """
    found = normalizers(env)
    for each in found:
        if not isinstance(each, ObservationNorm):
            raise UserError(
                f"{told}: running statistics of observations stand still with data; use "
                "transforms=normalized init_stats_frames=1_000, which takes them from it"
            )
        fit_normalizer(each, buffer.storage[:].get(each.in_keys[0]).to(each.loc.device))
    return found


class AsShown(Transform):
    """Shows rows of a task as an environment's transforms show each step.

    Args:
        shown: those that change the numbers of an observation or a reward, one by one.
        device: of the environment.
    """

    def __init__(self, shown: list[Transform], device: torch.device | None) -> None:
        super().__init__()
        self.shown, self.device = (shown,), device  # in a tuple: they remain the environment's

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Rows ``[rows]``, root and next."""
        rows = rows.to(self.device) if self.device is not None else rows
        for each in self.shown[0]:
            places: list[NestedKey] = [*each.in_keys] if isinstance(each, ObservationNorm) else []
            for key in (*places, *(("next", key) for key in each.in_keys)):
                given = rows.get(key)  # of a task in double precision so are the statistics
                rows.set(key, each._apply_transform(given).to(given.dtype))
        return rows


class DataSet:
    """Such transitions in the place of a collector; the environment is stepped to evaluate alone.

    Args:
        env: says what an observation and an action are.
        make_env: not read; every collector is built from the same.
        policy: reads the observations; it acts nowhere.
        data: what is drawn from.
        frames_per_batch: transitions in a batch, which count as frames.
        num_envs: environments that ``env`` steps together.
        seed: not read; the global random number generator draws.
        device: where batches live.
        stop: not read; a batch takes no time.
    """

    restart_reason: str | None = None
    steps_env = False

    def __init__(
        self,
        env: TransformedEnv,
        make_env: Callable[..., TransformedEnv],
        policy: TensorDictModuleBase,
        *,
        data: ReplayBuffer,
        frames_per_batch: int,
        num_envs: int,
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
        """Nobody acts."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """What is drawn next the random number generator decides."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state`."""

    def shutdown(self) -> None:
        """There is nothing to end."""
