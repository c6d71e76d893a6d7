"""Evaluates policies over whole episodes with raw returns, and leaves training exactly as it was."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase, SerialEnv, TransformedEnv

from hydrl.envs import load_normalizer
from hydrl.envs.evaluation import Evaluation, join_evaluations, play_episodes
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import Interrupted, warn_once
from hydrl.library_setup import seed_generators

PART = 50  # episodes of a part, of evaluations of at least twice as many


class SeedStream(IntEnum):
    """Which evaluation episodes to draw; with the run's seed and frames it fixes their seed."""

    TRAINING = 0  # during training
    FINAL = 1  # fresh episodes, which confirm a solution and end a run
    LATER = 2  # of `scripts/evaluate.py`; further numbers give further ones


class PolicyEvaluator:
    """Evaluates a policy over whole episodes, in environments of its own.

    It keeps the environments between calls, as building them takes longer than a short episode. From
    :data:`PART` * 2 episodes on it plays them in parts, which several processes can share: networks round
    differently with the number of rows, so the parts are the same however many processes there are.

    Args:
        make_env: ``make_env(num_envs=n)`` builds an evaluation environment under the run's transforms.
        actor: the policy without exploration.
        normaliser: gives the statistics to evaluate with, see :func:`hydrl.envs.normalizer_state`.
        seed: the run's seed.
        max_steps: steps after which an unfinished episode counts as it is; ``auto``: the environment's own
            limit, see :func:`hydrl.envs.time_limits.episode_limit`.
        play: plays one episode in each environment, see :class:`hydrl.envs.EnvFamily`.
        measure: returns values of the present policy by name, such as its NashConv, for its evaluation.
    """

    def __init__(
        self,
        make_env: Callable[..., TransformedEnv],
        actor: TensorDictModuleBase,
        normaliser: Callable[[], dict[str, Any]],
        play: Callable[..., Evaluation] = play_episodes,
        measure: Callable[[], dict[str, float]] = dict,
        *,
        seed: int,
        max_steps: int | str,
    ) -> None:
        self.make_env, self.actor, self.normaliser = partial(make_env, policy=actor), actor, normaliser
        self.seed, self.max_steps, self.play_env, self.measure = seed, max_steps, play, measure
        self.envs: dict[int, TransformedEnv] = {}
        self.last: tuple[tuple[int, int, int], Evaluation] | None = None

    def __call__(self, frames: int, episodes: int, seed_stream: int = SeedStream.TRAINING) -> Evaluation:
        """The first whole episode of each of ``episodes`` environments.

        Waiting for every environment's first episode is unbiased; the first episodes to finish would be short
        ones.

        Args:
            frames: of training; another call with the same arguments returns the same evaluation.
            episodes: how many.
            seed_stream: one of :class:`SeedStream`.
        """
        request = frames, episodes, int(seed_stream)
        if self.last is None or self.last[0] != request:
            self.last = request, self.play(*request)
        return self.last[1]

    def split(self, episodes: int) -> list[int]:
        """The episodes of each part; a single part where all environments share one seed, as VMAS' do."""
        if episodes < 2 * PART:
            return [episodes]
        base = self.env_of(PART).base_env
        if not (isinstance(base, SerialEnv) or has_consecutive_seeds(base)):
            return [episodes]
        return [PART] * (episodes // PART - 1) + [PART + episodes % PART]

    def play(
        self, frames: int, episodes: int, seed_stream: int, parts: Sequence[int] | None = None
    ) -> Evaluation:
        """Plays some parts of an evaluation, by default all.

        Args:
            frames: of training.
            episodes: of the whole evaluation.
            seed_stream: one of :class:`SeedStream`.
            parts: their numbers.
        """
        sizes = self.split(episodes)
        numbers = range(len(sizes)) if parts is None else parts
        return join_evaluations([self.play_part(frames, sizes, seed_stream, number) for number in numbers])

    def env_of(self, episodes: int) -> TransformedEnv:
        """The environment of so many episodes; the first call builds it, with seeded random generators."""
        if episodes not in self.envs:
            with preserve_rng():
                seed_generators(self.seed)
                self.envs[episodes] = self.make_env(num_envs=episodes)
        return self.envs[episodes]

    def play_part(self, frames: int, sizes: Sequence[int], seed_stream: int, number: int) -> Evaluation:
        """Plays a part with seeded random generators, and restores these afterwards.

        Args:
            frames: of training.
            sizes: episodes of each part, see :meth:`split`.
            seed_stream: one of :class:`SeedStream`.
            number: of the part.
        """
        with preserve_rng():
            env = self.env_of(sizes[number])
            load_normalizer(env, self.normaliser())
            seed = episode_seed(self.seed, frames, seed_stream)
            for size in sizes[:number]:
                earlier = self.env_of(size)
                seed = seed + size if has_consecutive_seeds(earlier.base_env) else earlier.set_seed(seed)
            env.set_seed(seed)
            seed_generators(seed)
            try:
                is_final = seed_stream != SeedStream.TRAINING
                return self.play_env(env, self.actor, max_steps=self.step_limit(env), is_final=is_final)
            except Interrupted as error:
                error.in_batch = False  # of no batch: what trains stands as it did
                raise

    def step_limit(self, env: TransformedEnv) -> int:
        """Steps after which an unfinished episode in ``env`` counts as it is."""
        return episode_limit(env) if isinstance(self.max_steps, str) else self.max_steps

    def close(self) -> None:
        """Closes the environments; errors there become warnings."""
        for env in self.envs.values():
            try:
                env.close(raise_if_closed=False)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warn_once(f"an environment of the evaluation cannot be closed: {reason}")


def has_consecutive_seeds(base: EnvBase) -> bool:
    """Whether the environments that ``base`` steps together have the seeds from its own on."""
    return bool(getattr(type(base), "has_consecutive_seeds", False))


def episode_seed(seed: int, frames: int, seed_stream: int) -> int:
    """The seed of an evaluation's first environment; each further one has the next.

    Args:
        seed: the run's.
        frames: of training.
        seed_stream: one of :class:`SeedStream`.
    """
    return int(np.random.SeedSequence([seed, frames, seed_stream]).generate_state(1)[0] % 2**31)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Context manager that restores all global random generators."""
    rng, of_vmas = GlobalRNGState(), vmas_generators()
    state, state_of_vmas = rng.state_dict(), list(of_vmas)
    try:
        yield
    finally:
        rng.load_state_dict(state)
        of_vmas[:] = state_of_vmas


def vmas_generators() -> list[Any]:
    """The random state that all VMAS environments of a process share, a list on their class."""
    vmas = sys.modules.get("vmas.simulator.environment")
    return vmas.Environment.vmas_random_state if vmas else []
