"""Collectors: TorchRL's, over one environment vector here or over one in each of several processes.

Whatever hands over batches is a :class:`Collector`; ``train.py`` asks for nothing else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import TransformedEnv

from hydrl.experience.checked_collector import FiniteCollector
from hydrl.experience.worker_collectors import AsyncWorkers, SyncWorkers
from hydrl.library_setup import quieten_libraries, remember_missing_packages, seed_generators
from hydrl.specs import needs_episode_starts, opponent_pool


class Collector(Protocol):
    """What hands over batches.

    Attributes:
        restarts: why the running episodes cannot be kept in a checkpoint; ``None`` where they can, or where
            there are none.
        steps: whether it steps the training environment in this process.
    """

    restarts: str | None
    steps: bool

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches ``[time]``, ``[envs, time]`` or one dimension more, without end."""

    def publish(self) -> None:
        """Hands the policy's weights to whoever acts."""

    def state(self, *, running: bool) -> dict[str, Any]:
        """What it needs to go on after the last batch, as tensors and plain containers.

        Args:
            running: whether the running episodes go on, and what they carry is kept.
        """

    def go_on(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state`; the policy's weights are still to be published."""

    def shutdown(self) -> None:
        """Ends its processes."""


def make_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: int,
    init_random_frames: int,
    num_envs: int,
    seed: int,
    device: str,
    num_workers: int | None = None,
    sync: bool | None = None,
    worker_timeout: float = inf,
    stop: Callable[[], None] | None = None,
) -> Collector:
    """Collects in this process from ``env``, or in ``num_workers`` processes from environments of their own.

    Synchronous workers wait for each other, and a batch joins theirs; else it is one's, of an older policy.

    Args:
        env: seeded, its normaliser initialised; closed here where workers collect.
        make_env: ``make_env(seed=...)`` builds a worker's environment with the same statistics.
        policy: the actor with its exploration.
        frames_per_batch: of all environments and workers together.
        init_random_frames: frames acted at random before the policy takes over.
        num_envs: environments stepped together in each process, as ``env`` and ``make_env`` have them.
        seed: of the run; each worker derives its own.
        device: where policy and batches live.
        num_workers: processes; ``None`` collects here.
        sync: whether workers wait for each other.
        worker_timeout: seconds a worker may take to start, or for one batch.
        stop: called twice a second while the run waits for workers; what it raises ends the wait.

    Returns:
        Endless iterable over batches ``[time]``, ``[envs, time]`` or, for synchronous workers, one dimension
        more in front: joined along time, advantages would leak from one worker into the next. It raises
        ``WorkerError``, as this does, when a worker dies or hangs, and ``DivergedError`` for a NaN.
    """
    options: dict[str, Any] = {"frames_per_batch": frames_per_batch, "total_frames": -1, "split_trajs": False}
    options |= {"init_random_frames": init_random_frames or None, "device": device}
    options["auto_register_policy_transforms"] = needs_episode_starts(policy)
    if (others := opponent_pool(env)) is not None:
        others.check(policy, env)
    if num_workers is None:
        # Trajectories' numbers, 6-10 % of acting, are read by what joins the batches of workers alone.
        return FiniteCollector(env, policy, track_traj_ids=False, **options)
    env.close(raise_if_closed=False)
    makers = [partial(worker_env, make_env, seed + 10_000 * (1 + worker)) for worker in range(num_workers)]
    made = partial(SyncWorkers, cat_results="stack") if sync else AsyncWorkers
    return made(makers, policy, worker_timeout=worker_timeout, stop=stop, **options)


@contextmanager
def shut_down_after(collector: Collector) -> Iterator[Collector]:
    """Ends the collector's workers however the block ends."""
    try:
        yield collector
    except BaseException:
        with suppress(Exception):  # an environment that failed may fail here, too
            collector.shutdown()
        raise
    collector.shutdown()


def worker_env(make_env: Callable[..., TransformedEnv], seed: int) -> TransformedEnv:
    """Runs in the worker: a seed of its own for the environment and for the global generators."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(1)
    seed_generators(seed)
    return make_env(seed=seed)
