"""Killed a hundred times at random, a run goes on each time, and ends as the run that nobody killed."""

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hydrl.run.checkpoint import archive as checkpoint
from tests.conftest import ROOT, logged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(24_000)]

KILLS = 100
BATCH, INTERVAL = 256, 512
OVERRIDES = [
    "env=cartpole", "~tuned", f"collector.frames_per_batch={BATCH}", "collector.num_envs=4",
    "minibatches.epochs=2", "minibatches.size=64", "log_every_frames=1",
    f"checkpoint_every_frames={INTERVAL}",
    "eval.every_frames=4_096",
    "eval.episodes=2", "eval.final_episodes=2", "total_frames=400_128",
]  # fmt: skip


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "train.py", *OVERRIDES, *overrides, f"hydra.run.dir={folder}"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def reached(folder: Path) -> int:
    """Frames of the last whole row of the log."""
    lines = (folder / "metrics.csv").read_text().splitlines() if (folder / "metrics.csv").exists() else []
    width = lines[0].count(",") if lines else 0
    whole = [line for line in lines[1:] if line.count(",") == width]
    return int(whole[-1].partition(",")[0]) if whole else 0


def kept(folder: Path) -> int:
    """Frames of the newest valid checkpoint."""
    whole = checkpoint.readable(checkpoint.archives(folder), with_rows=True)
    return next((checkpoint.frames_of(archive) for archive, _ in whole), 0)


def test_a_hundred_kills_lose_no_more_than_an_interval_and_a_batch_each(tmp_path):
    draw = random.Random(100)
    folder = tmp_path / "killed"
    lost: list[int] = []
    caught: Counter[str] = Counter()
    for kill in range(KILLS):
        before = kept(folder)
        process = start(folder, "resume=auto")
        assert process.stdout
        if kill % 5:  # most while it trains and saves, some while it starts
            for line in process.stdout:
                if "resumed after" in line or "evaluation" in line:
                    break
        time.sleep(draw.uniform(0, 2))
        process.kill()
        output = process.communicate()[0]
        assert process.returncode == -9, output
        if before and "resumed after" in output:
            assert f"resumed after {before:,} frames" in output
        at, saved = reached(folder), kept(folder)
        hidden = [path.name for path in (folder / "checkpoints").glob(".*")]
        caught["while saving" if hidden else "between saves"] += 1
        assert saved >= before
        lost.append(max(0, at - saved))
        assert lost[-1] <= INTERVAL + BATCH, (kill, at, saved)
    print(f"\n{KILLS} kills: {dict(caught)}; frames lost: mean {sum(lost) / KILLS:.0f}, most {max(lost)}")

    process = start(folder, "resume=auto")
    output = process.communicate()[0]
    assert process.returncode == 0, output
    whole = start(tmp_path / "whole")
    assert whole.communicate()[0]
    assert whole.returncode == 0
    assert logged(folder) == logged(tmp_path / "whole")
    killed, unbroken = (
        json.loads((each / "summary.json").read_text()) for each in (folder, tmp_path / "whole")
    )
    for key in ("frames", "updates", "eval/return_mean", "best_eval/return_mean"):
        assert killed[key] == unbroken[key], key
    assert re.findall(r"\.(?:stage|old|delete)", " ".join(map(str, folder.rglob(".*")))) == []
