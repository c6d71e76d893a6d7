"""Collectors: TorchRL's, over one environment vector here or over one in each of several processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import TransformedEnv

from hydrl import runtime


def make_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: int,
    total_frames: int,
    init_random_frames: int,
    num_envs: int,
    seed: int,
    device: str,
    num_workers: int | None = None,
    sync: bool | None = None,
) -> BaseCollector:
    """Collects in this process from ``env``, or in ``num_workers`` processes from environments of their own.

    Synchronous workers wait for each other, act with the current policy, and one batch joins what all of
    them collected. Asynchronous ones never wait: a batch comes from one worker and may be a policy behind.

    Args:
        env: seeded, its normaliser initialised; closed here where workers collect.
        make_env: ``make_env(seed=...)`` builds a worker's environment with the same statistics.
        policy: the actor with its exploration.
        frames_per_batch: of all environments and workers together.
        total_frames: the collector ends after them.
        init_random_frames: frames acted at random before the policy takes over.
        num_envs: environments stepped together in each process, as ``env`` and ``make_env`` have them.
        seed: of the run; each worker derives its own.
        device: where policy and batches live.
        num_workers: processes; ``None`` collects here.
        sync: whether workers wait for each other.

    Returns:
        Iterable over batches ``[time]``, ``[envs, time]`` or, for synchronous workers, one dimension more in
        front: joined along time, advantages would leak from one worker into the next.
    """
    source: Any = env
    options: dict[str, Any] = {}
    if num_workers is not None:
        env.close(raise_if_closed=False)
        seeds = [seed + 10_000 * (1 + worker) for worker in range(num_workers)]
        source = [partial(worker_env, make_env, each) for each in seeds]
        options = {"num_collectors": num_workers, "sync": sync}
        if sync:
            options["cat_results"] = "stack"
    return Collector(
        source,
        policy,
        frames_per_batch=frames_per_batch,
        total_frames=total_frames,
        init_random_frames=init_random_frames or None,
        split_trajs=False,
        device=device,
        auto_register_policy_transforms=restarts_with_episodes(policy),
        **options,
    )


@contextmanager
def shut_down_after(collector: BaseCollector) -> Iterator[None]:
    """Ends the collector's workers, or Python would wait for them when it exits.

    So it would for what carries the weights to them: left to itself, it starts a thread while Python ends.
    """
    try:
        yield
    finally:
        collector.shutdown(timeout=5)
        for scheme in (collector._weight_sync_schemes or {}).values():
            scheme.shutdown()


def restarts_with_episodes(policy: TensorDictModuleBase) -> bool:
    """Whether the policy must be told where episodes begin, as Ornstein-Uhlenbeck noise must."""
    return any(hasattr(module, "is_init_key") for module in policy.modules())


def worker_env(make_env: Callable[..., TransformedEnv], seed: int) -> TransformedEnv:
    """Runs in the worker: a seed of its own for the environment and for the policy's draws."""
    runtime.quieten_libraries()
    runtime.remember_missing_packages()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return make_env(seed=seed)
