"""Data that others collected: what an earlier run kept in its replay memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import TransformedEnv

from hydrl.errors import UserError
from hydrl.parts.environments.normalisers import normalisers
from hydrl.parts.experience.buffers import in_its_own_unit
from hydrl.parts.experience.frames import Frames
from hydrl.parts.libraries import tell
from hydrl.run import checkpoint
from hydrl.run.memory import Memory, read


def rows_of(
    env: TransformedEnv, policy: TensorDictModuleBase, *, path: str, task: str, key: str = "data.path"
) -> ReplayBuffer:
    """Transitions that an earlier run kept, to be drawn from at random, with replacement.

    Args:
        env: says what an observation and an action are.
        policy: reads the observations.
        path: a run folder, whose newest checkpoint counts, or one checkpoint.
        task: this run's, which must be the data's.
        key: what the user set, for messages.

    Raises:
        UserError: if there is no data, or it is of another task, other transforms or other actions.
    """
    buffer, settings = kept(Path(path), key)
    if settings["task"] != task:
        raise UserError(f"{key}={path} has data of env={settings['task']}, not of env={task}")
    learned = [each for each in ("Norm", "normaliser", "Running") if each in str(settings["transforms"])]
    if normalisers(env) or learned:
        raise UserError(
            f"{key}={path}: a normaliser has other statistics here than where the data was collected; use "
            "transforms=plain in both runs"
        )
    for name, each in settings["transforms"].items():
        if "reward" in each["_target_"].rpartition(".")[2].lower():
            tell(f"{key}={path}: its rewards are as transforms.{name} of that run left them")
    step, rows = env.fake_tensordict().reshape(-1)[0], buffer[:1]
    for entry in ("action", *policy.in_keys, *(("next", each) for each in policy.in_keys)):
        wanted, found = step.get(entry), rows.get(entry, None)
        if found is None or (found.shape[1:], found.dtype) != (wanted.shape, wanted.dtype):
            there = "none" if found is None else f"{found.dtype} of shape {list(found.shape[1:])}"
            raise UserError(
                f"{key}={path}: {entry} should be {wanted.dtype} of shape {list(wanted.shape)}; there is "
                f"{there}"
            )
    in_its_own_unit(buffer, env)  # the rows are in it, as a buffer keeps them
    return buffer


class DataSet:
    """Such transitions in the place of a collector; the environment is stepped to evaluate alone.

    Args:
        env: says what an observation and an action are.
        make_env: not read; every collector is built from the same.
        policy: reads the observations; it acts nowhere.
        path: a run folder, whose newest checkpoint counts, or one checkpoint.
        task: this run's, which must be the data's.
        frames_per_batch: transitions in a batch, which count as frames.
        num_envs: environments that ``env`` steps together.
        seed: not read; the global random number generator draws.
        device: where batches live.
        stop: not read; a batch takes no time.

    Raises:
        UserError: if there is no data, or it is of another task, other transforms or other actions.
    """

    restarts: str | None = None
    steps = False

    def __init__(
        self,
        env: TransformedEnv,
        make_env: Callable[..., TransformedEnv],
        policy: TensorDictModuleBase,
        *,
        path: str,
        task: str,
        frames_per_batch: int,
        num_envs: int,
        seed: int,
        device: str,
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.frames_per_batch, self.device = frames_per_batch, device
        self.buffer = rows_of(env, policy, path=path, task=task, key="collector.path")

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches ``[frames_per_batch]``, without end."""
        while True:
            yield self.buffer.sample(self.frames_per_batch).to(self.device)

    def publish(self) -> None:
        """Nobody acts."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """What is drawn next the random number generator decides."""
        return {}

    def go_on(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state`."""

    def shutdown(self) -> None:
        """There is nothing to end."""


def kept(path: Path, key: str) -> tuple[ReplayBuffer, dict[str, Any]]:
    """The replay memory that a run's checkpoint holds, to be drawn from evenly, and the run's settings.

    Raises:
        UserError: if there are none.
    """
    if not path.exists():
        raise UserError(f"{key}={path}: there is no such folder; give a run's or a checkpoint")
    try:
        archive = path if path.suffix == ".torchrl" else checkpoint.find(path, "last")
        metadata = checkpoint.verify(archive, memory=True)
    except UserError as error:
        raise UserError(f"{key}={path}: {error}") from None
    told = metadata["memory"]
    found = [rows for _, rows in read(archive.parent, told)]
    if not found:
        raise UserError(f"{key}={path}: the run kept no replay memory; use one of algo=sac or dqn")
    rows = torch.cat(found)
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    buffer.extend(rows)
    if "frames" in told:
        frames = Frames(buffer.storage, (), 1)
        frames.go_on(told["frames"]["state"])
        Memory(frames.buffer, path, "frames").load(told["frames"], torch.device("cpu"), archive.parent)
        buffer.append_transform(frames)
    return buffer, dict(metadata["settings"])
