"""What a replay memory of Atari's pictures takes: python scripts/benchmark/pictures.py memmap 100000 FOLDER

Builds DQN with Mnih's network and ``buffer=memmap`` or ``buffer=replay`` in FOLDER over a task that shows
noise, 84x84 bytes in stacks of four, and fills the buffer. One line of JSON comes out: bytes of a transition,
what a million of them take, and the time of a draw of 32 beside that of an update.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import torch
from tensordict import TensorDictBase

from hydrl import envs, specs
from hydrl.config.settings import load
from hydrl.config.tuned import compose_run
from hydrl.experience import buffers
from hydrl.experience.frame_dedup import find_frame_dedup
from hydrl.run import process
from hydrl.training.learner import make_learners

STACK = "env.wrappers.stack"
DQN = [
    "algo=dqn",
    "env=gym",
    "env.id=Noise-v0",
    "collector.num_envs=8",
    "minibatches.size=32",
    "compile=false",
]
DQN += [f"+{STACK}._target_=gymnasium.wrappers.FrameStackObservation", f"+{STACK}.stack_size=4"]
DQN += ["minibatches.warmup_frames=32"]


class Noise(gymnasium.Env):
    """Shows another picture at each step, and takes six actions, as Pong does."""

    def __init__(self, **_: Any) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """A picture."""
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Another, without end."""
        return self.observation_space.sample(), 0.0, False, False, {}


def main(buffer: str, transitions: int, folder: Path, times: int = 100) -> None:
    """Fills, measures and prints, each time the median of so many."""
    process.prepare(0, "cpu", 1)
    chosen = [f"buffer={buffer}", f"buffer.storage.max_size={transitions}", *DQN]
    settings = load(compose_run([f"run_dir={folder}", *chosen]))
    env = envs.make_env(settings.build("env"), settings.transform_builders, num_envs=8, seed=0)
    actor = settings.build("actor")(env)
    replay = buffers.prepare_buffer(settings.build("buffer")(), env)
    assert replay is not None
    frames = find_frame_dedup(replay)
    assert frames is not None
    (learner,) = make_learners(settings.learners, {"actor": actor}, specs.action_spec(env), replay, None)
    with torch.no_grad():
        batch = env.rollout(16, actor, break_when_any_done=False)
    env.close()
    before, shown = psutil.Process().memory_info(), torch.zeros(8, 4, 84, 84, dtype=torch.uint8)
    stored = []
    for _ in range(-(-transitions // batch.numel()) + 1):
        shown = further(batch, shown)
        started = time.perf_counter()
        learner.minibatches.store(batch)
        stored.append((time.perf_counter() - started) / batch.numel())
    after = psutil.Process().memory_info()
    storages = [source.storage for source in (frames.buffer, replay)]
    held = [storage.get(slice(None))[0].bytes() * storage.max_size / transitions for storage in storages]
    draw, update = (
        timed(call, times) for call in (lambda: replay.sample(32), lambda: learner.update(replay.sample(32)))
    )
    row = {
        "buffer": buffer,
        "transitions": transitions,
        "frames, bytes": round(held[0]),
        "the rest, bytes": round(held[1]),
        "a million, GB": round(sum(held) / 1e3, 2),
        "resident, MB": round((after.rss - before.rss) / 1e6),
        "stored, us": round(1e6 * statistics.median(stored)),
        "draw of 32, ms": round(1e3 * draw, 2),
        "update of 32, ms": round(1e3 * (update - draw), 1),
        "share of the draw, %": round(100 * draw / (update - draw), 1),
    }
    print(json.dumps([row]))


def further(batch: TensorDictBase, frames: torch.Tensor) -> torch.Tensor:
    """Shows in a batch what comes after ``frames``, ``[8, 4, 84, 84]``, and returns the last four of that."""
    film = torch.cat([frames, torch.randint(256, (8, 16, 84, 84), dtype=torch.uint8)], 1)
    stacks = film.unfold(1, 4, 1).movedim(-1, 2)
    batch["pixels"], batch["next", "pixels"] = stacks[:, :-1].contiguous(), stacks[:, 1:].contiguous()
    return film[:, -4:]


def timed(call: Callable[[], Any], times: int) -> float:
    """Median seconds, after a tenth as many calls."""
    taken = []
    for _ in range(times + times // 10):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[-times:])


gymnasium.register("Noise-v0", entry_point=Noise)

if __name__ == "__main__":
    kind, count, place = sys.argv[1:]
    main(kind, int(count), Path(place))
