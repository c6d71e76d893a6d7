"""Times one loop: python scripts/benchmark/loop.py plain.ppo 24

A loop is a generator in one of the modules beside this file. It trains for ever and yields, after every
batch, the frames and the updates the batch held. One line of JSON comes out: the cumulated ``frames``, the
seconds ``elapsed`` since the process started, and the cumulated ``updates``, one number a batch.
"""

import json
import sys
import time
from contextlib import closing
from importlib import import_module
from itertools import islice

import psutil
import torch


def main(name: str, batches: int) -> None:
    """Runs ``MODULE.FUNCTION`` for so many batches on one PyTorch thread."""
    started = psutil.Process().create_time()
    torch.set_num_threads(1)
    module, function = name.split(".")
    times: dict[str, list[float]] = {"frames": [], "elapsed": [], "updates": []}
    frames = updates = 0
    make = getattr(import_module(module), function)
    if mujoco := sys.modules.get("mujoco"):  # which else writes its warnings to a file beside train.py
        mujoco.set_mju_user_warning(lambda text: None)
    with closing(make()) as loop:
        for more_frames, more_updates in islice(loop, batches):
            frames, updates = frames + more_frames, updates + more_updates
            times["frames"].append(frames)
            times["elapsed"].append(time.time() - started)
            times["updates"].append(updates)
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
