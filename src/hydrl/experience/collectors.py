"""Collectors: TorchRL's, in this process or in worker processes, behind one protocol for ``train.py``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import TransformedEnv

from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.worker_collectors import AsyncWorkers, SyncWorkers
from hydrl.library_setup import quieten_libraries, remember_missing_packages, seed_generators
from hydrl.limits import NonNegativeInt, PositiveFloat, PositiveInt
from hydrl.specs import needs_episode_starts, opponent_pool


class Collector(Protocol):
    """Protocol of everything that returns batches to the training loop.

    Attributes:
        episode_restart_reason: why checkpoints cannot contain the running episodes; ``None`` if they can, or
            if there are none.
        steps_env: whether it steps the training environment in this process.
    """

    episode_restart_reason: str | None
    steps_env: bool

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches ``[time]``, ``[envs, time]`` or one dimension more, without end."""

    def publish(self) -> None:
        """Sends the policy's weights to the processes that act."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """The state after the last batch, as tensors and plain containers.

        Args:
            running: whether to include the running episodes.
        """

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state`; call :meth:`publish` afterwards."""

    def shutdown(self) -> None:
        """Ends the worker processes."""


def make_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: PositiveInt,
    init_random_frames: NonNegativeInt,
    num_envs: PositiveInt,
    seed: int,
    device: str,
    num_workers: PositiveInt | None = None,
    sync: bool | None = None,
    worker_timeout: PositiveFloat = inf,
    stop: Callable[[], None] | None = None,
) -> Collector:
    """Makes a collector over ``env`` in this process, or over other environments in worker processes.

    A batch is ``[time]``, ``[envs, time]`` or, of synchronous workers, ``[workers, ...]``; a batch of
    asynchronous workers is one worker's, collected with an older policy.

    Args:
        env: seeded, with an initialized normalizer; closed here if workers collect.
        make_env: ``make_env(seed=...)`` builds a worker's environment with the same statistics.
        policy: the actor with its exploration.
        frames_per_batch: frames of all environments and workers together.
        init_random_frames: frames of random actions before the policy acts.
        num_envs: environments stepped together in each process.
        seed: seed of the run; each worker derives its own.
        device: device of policy and batches.
        num_workers: number of processes; ``None`` collects in this one.
        sync: whether workers wait for each other.
        worker_timeout: seconds a worker may take to start, or for one batch.
        stop: called twice a second while the run waits for workers; its exceptions end the wait.

    Raises:
        WorkerError: when a worker dies or hangs, here or while iterating.
        DivergedError: while iterating, for NaN or infinity.
    """
    options = collector_options(env, policy, frames_per_batch, init_random_frames, device)
    if num_workers is None:
        # Trajectory ids cost 6-10 % of acting; only joining workers' batches needs them.
        return CheckedCollector(env, policy, track_traj_ids=False, **options)
    env.close(raise_if_closed=False)
    makers = [partial(worker_env, make_env, seed + 10_000 * (1 + worker)) for worker in range(num_workers)]
    make_workers = partial(SyncWorkers, cat_results="stack") if sync else AsyncWorkers
    return make_workers(makers, policy, worker_timeout=worker_timeout, stop=stop, **options)


def collector_options(
    env: TransformedEnv,
    policy: TensorDictModuleBase,
    frames_per_batch: int,
    init_random_frames: int,
    device: str,
) -> dict[str, Any]:
    """Arguments of TorchRL's collectors, after a check that the policy can play as an opponent.

    Raises:
        UserError: if it cannot.
    """
    if (pool := opponent_pool(env)) is not None:
        pool.check(policy, env)
    options: dict[str, Any] = {"frames_per_batch": frames_per_batch, "total_frames": -1, "split_trajs": False}
    options |= {"init_random_frames": init_random_frames or None, "device": device}
    return options | {"auto_register_policy_transforms": needs_episode_starts(policy)}


@contextmanager
def shut_down_after(collector: Collector) -> Iterator[Collector]:
    """Context that shuts the collector down however the block ends."""
    try:
        yield collector
    except BaseException:
        with suppress(Exception):  # an environment that failed may fail here too
            collector.shutdown()
        raise
    collector.shutdown()


def worker_env(make_env: Callable[..., TransformedEnv], seed: int) -> TransformedEnv:
    """Builds the environment inside a worker, and seeds the worker's global generators."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(1)
    seed_generators(seed)
    return make_env(seed=seed)
