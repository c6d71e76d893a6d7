"""Evaluation: whole episodes, raw returns, and training left exactly as it was."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.envs import load_normalizer
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import Interrupted
from hydrl.library_setup import seed_generators, warn_once
from hydrl.specs import INFO
from hydrl.training.metrics import known_means
from hydrl.training.timers import timeit


class SeedStream(IntEnum):
    """Which episodes an evaluation draws: with the run's seed and its frames it fixes their own seed."""

    TRAINING = 0  # played while training
    CLOSING = 1  # fresh ones, that confirm a solution and end a run
    LATER = 2  # of `scripts/evaluate.py`; further numbers give further ones


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation saw.

    Attributes:
        returns: ``[episodes]``, undiscounted, before any reward transform.
        lengths: ``[episodes]``, steps.
        cut_episodes: how many of them were still running after ``eval.max_steps``, and count as they stood.
        info: what is followed of Gymnasium's ``info``, by name, ``[episodes]``; NaN where it is not known.
    """

    returns: Tensor
    lengths: Tensor
    cut_episodes: int = 0
    info: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return self.returns.mean().item()

    @property
    def std(self) -> float:
        """Standard deviation of the return over the episodes (population)."""
        return self.returns.std(unbiased=False).item()

    def metrics(self) -> dict[str, float]:
        """The ``eval/`` entries of a log row."""
        return {
            "eval/return_mean": self.mean,
            "eval/return_std": self.std,
            "eval/return_min": self.returns.min().item(),
            "eval/return_max": self.returns.max().item(),
            "eval/length_mean": self.lengths.double().mean().item(),
            "eval/episodes": self.returns.numel(),
            "eval/cut_episodes": self.cut_episodes,
            **self.info_means(),
        }

    def info_means(self) -> dict[str, float]:
        """``eval/NAME`` of what is followed of ``info``, over the episodes of which it is known, if any."""
        return known_means({f"eval/{name}": values for name, values in self.info.items()})


class PolicyEvaluator:
    """Plays whole episodes in environments of its own.

    It keeps the environments between calls, for building them costs more than playing a short episode.

    Args:
        make_env: ``make_env(num_envs=n)`` builds an evaluation environment under the run's transforms.
        actor: the policy without exploration.
        normaliser: gives the statistics to evaluate with, see
            :func:`hydrl.envs.normalizer_state`.
        seed: the run's seed.
        max_steps: an episode that has not ended by then counts as it stands; ``auto`` waits for the task's
            own limit, see :func:`hydrl.envs.time_limits.episode_limit`.
    """

    def __init__(
        self,
        make_env: Callable[..., TransformedEnv],
        actor: TensorDictModuleBase,
        normaliser: Callable[[], dict[str, Any]],
        *,
        seed: int,
        max_steps: int | str,
    ) -> None:
        self.make_env, self.actor, self.normaliser = partial(make_env, policy=actor), actor, normaliser
        self.seed, self.max_steps = seed, max_steps
        self.envs: dict[int, TransformedEnv] = {}
        self.last: tuple[tuple[int, int, int], Evaluation] | None = None

    def __call__(self, frames: int, episodes: int, drawn: int = SeedStream.TRAINING) -> Evaluation:
        """The first whole episode of each of ``episodes`` environments.

        Waiting for every environment's first episode is unbiased; keeping the first episodes to finish
        would favour short ones.

        Args:
            frames: how long the policy has been trained; asked again at the same frames, the same
                evaluation is not played twice.
            episodes: how many.
            drawn: one of :class:`SeedStream`.
        """
        request = frames, episodes, int(drawn)
        if self.last is None or self.last[0] != request:
            self.last = request, self.play(*request)
        return self.last[1]

    def play(self, frames: int, episodes: int, drawn: int) -> Evaluation:
        """Plays the episodes, for which it seeds the global random number generators, and puts those back."""
        with timeit("time/evaluate"), preserve_rng():
            seed_generators(self.seed)
            if episodes not in self.envs:
                self.envs[episodes] = self.make_env(num_envs=episodes)
            env = self.envs[episodes]
            load_normalizer(env, self.normaliser())
            seed = episode_seed(self.seed, frames, drawn)
            env.set_seed(seed)
            seed_generators(seed)
            try:
                return play_episodes(env, self.actor, max_steps=self.step_limit(env))
            except Interrupted as error:
                error.midway = False  # of no batch: what trains stands as it did
                raise

    def step_limit(self, env: TransformedEnv) -> int:
        """Steps after which an episode in ``env``, which is seeded, is not waited for any longer."""
        return episode_limit(env) if isinstance(self.max_steps, str) else self.max_steps

    def close(self) -> None:
        """Closes the environments; one that cannot be closed takes nothing from a run."""
        for env in self.envs.values():
            try:
                env.close(raise_if_closed=False)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warn_once(f"an environment of the evaluation cannot be closed: {reason}")


def episode_seed(seed: int, frames: int, drawn: int) -> int:
    """What the environments of one evaluation are seeded with, the first of them; the next with one more.

    Args:
        seed: the run's.
        frames: after which the policy plays.
        drawn: one of :class:`SeedStream`.
    """
    return int(np.random.SeedSequence([seed, frames, drawn]).generate_state(1)[0] % 2**31)


@torch.no_grad()
def play_episodes(env: TransformedEnv, actor: TensorDictModuleBase, *, max_steps: int) -> Evaluation:
    """One deterministic episode in each environment of ``env``, stopping when the last has finished."""
    episodes = env.numel()
    returns, lengths = torch.zeros(episodes), torch.zeros(episodes, dtype=torch.int64)
    running = torch.ones(episodes, dtype=torch.bool)
    info: dict[str, Tensor] = {}
    with set_exploration_type(ExplorationType.DETERMINISTIC), without_log_probabilities(actor):
        now = env.reset()
        for step in range(1, max_steps + 1):
            now, following = env.step_and_maybe_reset(actor(now))
            after = now["next"]
            returns = torch.where(running, after["episode_reward"].reshape(-1).cpu(), returns)
            lengths[running] = step
            if (followed := after.get(INFO, None)) is not None:
                values = {str(name): value.reshape(-1).cpu() for name, value in followed.items()}
                info = {
                    name: torch.where(running, value, info.get(name, value)) for name, value in values.items()
                }
            running &= ~after["done"].reshape(-1).cpu()
            if not running.any():
                break
            now = following
    return Evaluation(returns, lengths, int(running.sum()), info)


@contextmanager
def without_log_probabilities(actor: TensorDictModuleBase) -> Iterator[None]:
    """Lets ``actor`` act without saying how likely its actions were, a seventh of the time of a step."""
    drawing = [module for module in actor.modules() if isinstance(module, ProbabilisticTensorDictModule)]
    flags = [module.return_log_prob for module in drawing]
    try:
        for module in drawing:
            module.return_log_prob = False
        yield
    finally:
        for module, before in zip(drawing, flags, strict=True):
            module.return_log_prob = before


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Puts every global random number generator back as it was."""
    rng, of_vmas = GlobalRNGState(), vmas_generators()
    state, state_of_vmas = rng.state_dict(), list(of_vmas)
    try:
        yield
    finally:
        rng.load_state_dict(state)
        of_vmas[:] = state_of_vmas


def vmas_generators() -> list[Any]:
    """What all environments of VMAS in a process draw from: a list of generators' states on their class."""
    vmas = sys.modules.get("vmas.simulator.environment")
    return vmas.Environment.vmas_random_state if vmas else []
