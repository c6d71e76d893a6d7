"""What copying a task's arrays costs a step: python scripts/benchmark/copies.py

Steps two environments of the same task in turn at random, one handed copies as a run's is, one that shares
arrays with its task. Prints the median of a step of all of them, in microseconds, and the ratio.
"""

import statistics
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torchrl.envs import DoubleToFloat, StepCounter, TransformedEnv

from hydrl.envs import gymnasium_env, make_env
from hydrl.run import process

TASKS = (("InvertedDoublePendulum-v4", 10), ("CartPole-v1", 16), ("HalfCheetah-v4", 1))
STEPS, ROUNDS, WARMUP = 12, 400, 30


class SharedTask(gymnasium.Wrapper):
    """Hands arrays on as they are, and one reward."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        observation, reward, *rest = self.env.step(action)
        return observation, float(np.asarray(reward).item()), *rest


def build(id: str, num_envs: int, copied: bool) -> TransformedEnv:
    """The task under the transforms of most algorithms."""
    make = partial(gymnasium_env, id)
    env = make_env(make, (DoubleToFloat, StepCounter), num_envs=num_envs, seed=0)
    task = env.base_env._env
    if not copied and num_envs == 1:
        env.base_env._env = SharedTask(task.env)
    elif not copied:
        task.envs = [SharedTask(env.env) for env in task.envs]
    return env


def measure(id: str, num_envs: int) -> tuple[float, float]:
    """The median of a step with copies and without, in microseconds."""
    envs = [build(id, num_envs, copied) for copied in (True, False)]
    now = [env.reset() for env in envs]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        for which in (0, 1) if turn % 2 else (1, 0):
            torch.manual_seed(turn)
            started = time.perf_counter()
            for _ in range(STEPS):
                acted = envs[which].rand_action(now[which])
                now[which] = envs[which].step_and_maybe_reset(acted)[1]
            times[which].append(1e6 * (time.perf_counter() - started) / STEPS)
    copied, shared = (statistics.median(seconds[WARMUP:]) for seconds in times)
    return copied, shared


if __name__ == "__main__":
    process.prepare(0, "cpu", 1)
    for id, num_envs in TASKS:
        copied, shared = measure(id, num_envs)
        print(f"{id} x {num_envs}: {copied:.0f} us copied, {shared:.0f} shared, {copied / shared:.4f}")
