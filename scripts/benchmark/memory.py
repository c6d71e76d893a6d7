"""What a replay buffer keeps resident: python scripts/benchmark/memory.py memmap 1000000 5000 FOLDER

Builds hydrl's ``buffer=memmap`` or ``buffer=replay`` in FOLDER, fills it with transitions of HalfCheetah, and
samples minibatches of 256. Each wants a process of its own, because TorchRL lets go of a buffer only when the
process ends. One line of JSON comes out.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from hydrl import envs
from hydrl.config.command_line import print_error
from hydrl.config.settings import load
from hydrl.config.tuned import compose_run
from hydrl.run import process


def main(buffer: str, transitions: int, minibatches: int, folder: Path) -> int:
    """Measures before, after filling, and five times while sampling; the exit code."""
    process.prepare(0, "cpu", 1)
    chosen = ["algo=sac", "env=half_cheetah", f"buffer={buffer}", f"buffer.storage.max_size={transitions}"]
    settings = load(compose_run([f"run_dir={folder}", *chosen]))
    env = envs.make_env(settings.build("env"), settings.transform_builders)
    frame = env.fake_tensordict()
    env.close()
    size = transitions * sum(entry.nbytes for entry in frame.values(True, True))
    if buffer == "memmap" and shutil.disk_usage(folder).free < 1.2 * size:
        return print_error(f"{folder} has no room for {size / 1e6:,.0f} MB of transitions")
    chunk = frame.expand(min(10_000, transitions)).clone()
    replay = settings.build("buffer")()
    rows = [resident(buffer, "before")]
    for _ in range(-(-transitions // len(chunk))):
        replay.extend(chunk.apply(lambda entry: entry.normal_() if entry.is_floating_point() else entry))
    rows.append(resident(buffer, f"filled with {size / 1e6:,.0f} MB"))
    per_part = max(minibatches // 5, 1)
    for part in range(1, 6):
        started = time.perf_counter()
        for _ in range(per_part):
            torch.sum(replay.sample(256)["observation"])
        rate = per_part * 256 / (time.perf_counter() - started)
        rows.append(resident(buffer, f"after {part * per_part:,} minibatches", rate))
    print(json.dumps(rows))
    return 0


def resident(buffer: str, moment: str, rate: float | None = None) -> dict[str, Any]:
    """A row: private, shared and total resident memory of this process, MB, and sampled rows a second.

    Private memory is the process's own and can only be swapped out. Shared memory is libraries and whatever
    else it reads of files, the buffer's among them: the system takes that back whenever it wants.
    """
    memory = psutil.Process().memory_info()
    shared = getattr(memory, "shared", 0)  # only Linux tells them apart
    parts = {"private, MB": memory.rss - shared, "shared, MB": shared, "total, MB": memory.rss}
    sizes = {name: round(value / 1e6) for name, value in parts.items()}
    return {"buffer": buffer, "moment": moment, **sizes, "sampled rows/s": rate and round(rate)}


if __name__ == "__main__":
    kind, transitions, minibatches, folder = sys.argv[1:]
    sys.exit(main(kind, int(transitions), int(minibatches), Path(folder)))
