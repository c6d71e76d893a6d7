"""Steps a second of EnvPool and of Gymnasium: python -m scripts.benchmark.envpool_speed

Each simulator steps random actions, alone and through hydrl's collector, on one and two of EnvPool's threads.
The other side is what ``env=gym``, ``env=minigrid`` and ``env=atari`` make, with their wrappers. Sides are
measured in turns. Speeds are medians of three rounds. Ratios are medians of those within a round, of
EnvPool's faster number of threads to the other side. Prints a table in Markdown, in about four minutes.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import Any

import hydrl  # noqa: F401 - before PyTorch, for it decides how threads wait

import numpy as np  # isort: skip
import torch  # isort: skip
from gymnasium.vector import SyncVectorEnv  # isort: skip
from tensordict.nn import TensorDictModule  # isort: skip

from hydrl.config.settings import load
from hydrl.config.tuned import compose_run
from hydrl.envs import make_env
from hydrl.envs.envpool import Task
from hydrl.envs.gymnasium import make_tracked_env
from hydrl.experience.collectors import make_collector, shut_down_after

OTHERS = {  # EnvPool's id: the same environment of another option
    "HalfCheetah-v4": ("gym", "HalfCheetah-v5"),
    "InvertedDoublePendulum-v4": ("gym", "InvertedDoublePendulum-v5"),
    "Ant-v4": ("gym", "Ant-v5"),
    "CartPole-v1": ("gym", "CartPole-v1"),
    "MiniGrid-DoorKey-5x5-v0": ("minigrid", "MiniGrid-DoorKey-5x5-v0"),
    "Pong-v5": ("atari", "ALE/Pong-v5"),
}
PACKAGES = {"minigrid": "minigrid", "atari": "ale_py"}
NUM_ENVS, THREADS, ROUNDS, SECONDS = (1, 8, 64), (1, 2), 3, 0.4
ALONE, COLLECTED, OTHER = "alone", "collector", "other"
SIDES = ("1 thread", "2 threads", OTHER)

Step = Callable[[], object]


def pool_step(id: str, num_envs: int, threads: int, stack: ExitStack) -> Step:
    """A step of EnvPool alone."""
    task = Task(id, None, False, {})
    pool = task.make_pool(num_envs, threads, seed=0)
    stack.callback(pool.close)
    pool.reset()
    task.action_space.seed(0)
    actions = task.to_raw(np.stack([task.action_space.sample() for _ in range(num_envs)]))
    return lambda: pool.step(actions)


def gymnasium_step(maker: partial, num_envs: int, stack: ExitStack) -> Step:
    """A step of Gymnasium's vector of environments with their wrappers alone."""
    make = partial(make_tracked_env, **maker.keywords)
    vector = SyncVectorEnv([make] * num_envs, copy=False)
    stack.callback(vector.close)
    vector.reset(seed=0)
    vector.action_space.seed(0)
    actions = vector.action_space.sample()
    return lambda: vector.step(actions)


def collector_step(maker: partial, num_envs: int, steps: int, stack: ExitStack) -> Step:
    """A batch of a collector of random actions."""
    env = make_env(maker, [], num_envs=num_envs, seed=0)
    policy = TensorDictModule(lambda done: env.action_spec.rand(), ["done"], ["action"])
    collector = make_collector(
        env,
        partial(make_env, maker, []),
        policy,
        frames_per_batch=steps * num_envs,
        init_random_frames=0,
        num_envs=num_envs,
        seed=0,
        device="cpu",
    )
    stack.enter_context(shut_down_after(collector))
    batches = iter(collector)
    return lambda: next(batches)


def load_maker(option: str, id: str) -> partial:
    """The maker of an environment as a run builds it."""
    words = ["algo=ppo", f"env={option}", f"env.id={id}", "transforms=plain", "tuned=null", "run_dir=unused"]
    maker: Any = load(compose_run(words)).build("env")
    return maker


def make_steps(id: str, num_envs: int, stack: ExitStack) -> dict[str, tuple[Step, int]]:
    """What is timed by column, and the environment steps of a call."""
    pool, (option, other_id) = load_maker("envpool", id), OTHERS[id]
    has_other = option not in PACKAGES or find_spec(PACKAGES[option]) is not None
    steps = max(8, (128 if option == "atari" else 512) // num_envs)  # of an environment in a batch
    calls = {}
    for threads, side in zip(THREADS, SIDES, strict=False):
        if threads <= num_envs:
            maker = partial(pool, num_threads=threads)
            calls[f"{ALONE}, {side}"] = pool_step(id, num_envs, threads, stack), num_envs
            calls[f"{COLLECTED}, {side}"] = collector_step(maker, num_envs, steps, stack), steps * num_envs
    if has_other:
        maker = load_maker(option, other_id)
        calls[f"{ALONE}, {OTHER}"] = gymnasium_step(maker, num_envs, stack), num_envs
        calls[f"{COLLECTED}, {OTHER}"] = collector_step(maker, num_envs, steps, stack), steps * num_envs
    return calls


def measure_speed(step: Step, frames: int) -> float:
    """Environment steps a second of a step that makes so many."""
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < SECONDS:
        step()
        count += frames
    return count / elapsed


def compare(id: str, num_envs: int) -> list[dict[str, float]]:
    """The speeds of each round by column, measured in turns."""
    with ExitStack() as stack:
        calls = make_steps(id, num_envs, stack)
        for step, _ in calls.values():
            step()
        return [{name: measure_speed(*call) for name, call in calls.items()} for _ in range(ROUNDS)]


def median_ratio(rounds: Sequence[Mapping[str, float]], where: str) -> float | None:
    """How many times as fast EnvPool's faster number of threads is; ``None`` without the other side."""
    pools = [f"{where}, {side}" for side in SIDES[:-1] if f"{where}, {side}" in rounds[0]]
    if f"{where}, {OTHER}" not in rounds[0]:
        return None
    best = max(pools, key=lambda name: statistics.median(speeds[name] for speeds in rounds))
    return statistics.median(speeds[best] / speeds[f"{where}, {OTHER}"] for speeds in rounds)


def table_row(id: str, num_envs: int, rounds: Sequence[Mapping[str, float]]) -> str:
    """A row of the table in Markdown."""
    cells = [id, str(num_envs)]
    for where in (ALONE, COLLECTED):
        columns = [f"{where}, {side}" for side in SIDES]
        medians = [
            statistics.median(speeds[name] for speeds in rounds) if name in rounds[0] else None
            for name in columns
        ]
        ratio = median_ratio(rounds, where)
        cells += ["" if median is None else f"{median:,.0f}" for median in medians]
        cells.append("" if ratio is None else f"{ratio:.2f}")
    return f"| {' | '.join(cells)} |"


def main(ids: Sequence[str], numbers: Sequence[int]) -> None:
    """Measures environments by their ids with these numbers of environments, and prints their rows."""
    torch.set_num_threads(1)
    heads = [f"{where}, {side}" for where in (ALONE, COLLECTED) for side in (*SIDES, "ratio")]
    print(f"| environment | envs | {' | '.join(heads)} |")
    print("|---|" + "---:|" * (len(heads) + 1))
    for id in ids:
        for num_envs in numbers:
            print(table_row(id, num_envs, compare(id, num_envs)), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", nargs="+", choices=OTHERS, default=list(OTHERS))
    parser.add_argument("--num-envs", nargs="+", type=int, default=list(NUM_ENVS))
    options = parser.parse_args()
    main(options.ids, options.num_envs)
