"""Collectors: TorchRL's, over one environment vector here or over one in each of several processes."""

from collections.abc import Callable
from functools import partial

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.collectors._base import BaseCollector
from torchrl.envs import TransformedEnv


def single(
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
) -> BaseCollector:
    """Collects in this process, in ``env`` itself; batches are ``[time]`` or ``[envs, time]``."""
    return Collector(
        env,
        policy,
        frames_per_batch=frames_per_batch,
        total_frames=total_frames,
        init_random_frames=init_random_frames or None,
        split_trajs=False,
        device=device,
        auto_register_policy_transforms=restarts_with_episodes(policy),
    )


def workers(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: int,
    total_frames: int,
    init_random_frames: int,
    num_envs: int,
    num_workers: int,
    seed: int,
    device: str,
    sync: bool,
) -> BaseCollector:
    """Collects in ``num_workers`` processes of ``num_envs`` environments each.

    Synchronous workers act with the current policy and one batch joins what all of them collected.
    Asynchronous ones never wait: a batch comes from one worker and may be a policy behind.
    """
    env.close(raise_if_closed=False)  # its normaliser is in make_env already
    return Collector(
        [partial(worker_env, make_env, seed=seed + 10_000 * (1 + worker)) for worker in range(num_workers)],
        policy,
        num_collectors=num_workers,
        sync=sync,
        frames_per_batch=frames_per_batch,
        total_frames=total_frames,
        init_random_frames=init_random_frames or None,
        split_trajs=False,
        device=device,
        auto_register_policy_transforms=restarts_with_episodes(policy),
        **({"cat_results": "stack"} if sync else {}),  # [workers, ..., time]: joined in time, GAE would leak
    )


def restarts_with_episodes(policy: TensorDictModuleBase) -> bool:
    """Whether the policy must be told where episodes begin, as Ornstein-Uhlenbeck noise must."""
    return any(hasattr(module, "is_init_key") for module in policy.modules())


def worker_env(make_env: Callable[..., TransformedEnv], seed: int) -> TransformedEnv:
    """Runs in the worker: a seed of its own for the environment and for the policy's draws."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return make_env(seed=seed)
