"""Collectors: TorchRL's, over one environment vector here or over one in each of several processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector
from torchrl.envs import TransformedEnv

from hydrl.parts.environments import restarts_with_episodes
from hydrl.parts.finite import FiniteCollector
from hydrl.parts.libraries import quieten_libraries, remember_missing_packages
from hydrl.parts.workers import AsyncWorkers, SyncWorkers


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
) -> BaseCollector:
    """Collects in this process from ``env``, or in ``num_workers`` processes from environments of their own.

    Synchronous workers wait for each other, and one batch joins what all of them collected. Asynchronous ones
    never wait: a batch comes from one worker and may be a policy behind.

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
        ``WorkerError``, as this does, when a worker dies or hangs, and ``DivergedError`` for
        a NaN.
    """
    options: dict[str, Any] = {"frames_per_batch": frames_per_batch, "total_frames": -1, "split_trajs": False}
    options |= {"init_random_frames": init_random_frames or None, "device": device}
    options["auto_register_policy_transforms"] = restarts_with_episodes(policy)
    if num_workers is None:
        return FiniteCollector(env, policy, **options)
    env.close(raise_if_closed=False)
    makers = [partial(worker_env, make_env, seed + 10_000 * (1 + worker)) for worker in range(num_workers)]
    made = partial(SyncWorkers, cat_results="stack") if sync else AsyncWorkers
    return made(makers, policy, worker_timeout=worker_timeout, stop=stop, **options)


@contextmanager
def shut_down_after(collector: BaseCollector) -> Iterator[BaseCollector]:
    """Ends the collector's workers however the block ends."""
    try:
        yield collector
    finally:
        collector.shutdown()


def collects_here(collector: BaseCollector) -> bool:
    """Whether it steps the training environment in this process, and not others in workers."""
    return not isinstance(collector, SyncWorkers | AsyncWorkers)


def collector_state(collector: BaseCollector, *, running: bool) -> dict[str, Any]:
    """What a collector needs to go on, as tensors and plain containers.

    Args:
        collector: from :func:`make_collector`, between two batches.
        running: whether its environment is kept too, so that the running episodes go on; they need one that
            collects here.
    """
    return {
        "frames": collector._frames,
        "iter": collector._iter,
        "own": collector.state_dict() if collects_here(collector) else None,
        "carrier": collector._carrier.to_dict() if running else None,
    }


def load_collector(collector: BaseCollector, state: Mapping[str, Any]) -> None:
    """Puts :func:`collector_state` into a new collector; its policy's weights are still to be published."""
    if collects_here(collector):
        collector.load_state_dict(state["own"])
    if state["carrier"] is not None:
        made = collector._carrier
        collector._carrier = TensorDict(state["carrier"], batch_size=made.batch_size, device=made.device)
        collector._traj_pool.load_state_dict(state["own"]["traj_pool"])  # loading the collector drew from it
    collector._frames, collector._iter = state["frames"], state["iter"]


def worker_env(make_env: Callable[..., TransformedEnv], seed: int) -> TransformedEnv:
    """Runs in the worker: a seed of its own for the environment and for the policy's draws."""
    quieten_libraries()
    remember_missing_packages()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return make_env(seed=seed)
