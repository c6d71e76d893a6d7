"""Milliseconds of an update with precision=float32 and bf16: python scripts/benchmark/precision.py

Both precisions make the updates of one process in turns, eager and compiled, on one thread. An update is what
``time/update`` counts: forward, backward, optimizer step, target networks. One line of JSON comes out.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import hydrl  # noqa: F401 - before PyTorch, for it decides how threads wait

import torch  # isort: skip
from torchrl.envs import ExplorationType, set_exploration_type  # isort: skip

from hydrl import envs, specs
from hydrl.config.settings import Settings, load
from hydrl.config.tuned import compose_run
from hydrl.losses.build import make_loss, parameter_groups
from hydrl.run import process
from hydrl.training import Update

SAC = ["algo=sac", "env=half_cheetah", "tuned=null", "minibatches.size=256"]
CASES = {
    "SAC, HalfCheetah, 2x256": SAC,
    "SAC, HalfCheetah, 2x512": [*SAC, "actor.num_cells=[512,512]", "critic.num_cells=[512,512]"],
    "PPO, Atari's Breakout, Nature's network": ["algo=ppo", "env=atari", "env.id=ALE/Breakout-v5"],
}
PRECISIONS = ("float32", "bf16")
ENVS, ROWS = 8, 256  # of a minibatch
WARMUP = 3  # updates, which compile


def make_update(settings: Settings) -> Callable[[], object]:
    """An update of a run's loss on a minibatch of random actions; each call makes one more."""
    env = envs.make_env(settings.build("env"), settings.transform_builders, num_envs=ENVS, seed=0)
    envs.init_normalizers(env, 1_000)
    actor = settings.build("actor")(env)
    networks = {name: settings.build(name)(env, actor) for name in settings.networks if name != "actor"}
    options = settings.loss
    loss: Any = make_loss(
        settings.build("loss"),
        {"actor": actor, **networks},
        specs.action_spec(env),
        options.networks,
        options.keys,
        options.value_estimator,
    )
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(ROWS // ENVS, actor, break_when_any_done=False)
        if "advantage" in loss.in_keys:
            loss.value_estimator(batch)
    env.close()
    minibatch = batch.reshape(-1)
    optimizer = settings.build("optim")(parameter_groups(loss, options.param_groups))
    target = settings.build("target")(loss)
    norm = settings.max_grad_norm
    update = Update(
        loss, optimizer, target, options.skip, options.every, max_grad_norm=norm, **settings.compiling
    )
    return lambda: update(minibatch.clone())


def seconds_of(update: Callable[[], object], count: int) -> float:
    """Seconds of an update, of ``count`` in a row."""
    began = time.perf_counter()
    for _ in range(count):
        update()
    return (time.perf_counter() - began) / count


def compare(words: list[str], rounds: int, count: int) -> dict[str, float]:
    """Median milliseconds of an update by precision, and the median of the rounds' ratios."""
    updates = {}
    for precision in PRECISIONS:
        settings = load(compose_run(["run_dir=unused", "torch_threads=1", f"precision={precision}", *words]))
        process.prepare(0, "cpu", 1)
        updates[precision] = make_update(settings)
    for update in updates.values():
        seconds_of(update, WARMUP)
    times = [{name: seconds_of(update, count) for name, update in updates.items()} for _ in range(rounds)]
    medians = {f"{name}, ms": 1_000 * statistics.median(row[name] for row in times) for name in PRECISIONS}
    ratios = sorted(row["float32"] / row["bf16"] for row in times)
    return medians | {"gain": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}


def main(rounds: int, count: int) -> None:
    """Measures all cases, and prints their rows."""
    rows = []
    for name, words in CASES.items():
        for compiled in ("false", "true"):
            torch.compiler.reset()
            row = compare([*words, f"compile={compiled}"], rounds, count)
            rows.append({"update": f"{name}{', compiled' * (compiled == 'true')}", **row})
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
