"""Frames a second of the main loops, interleaved in one call: python scripts/benchmark.py [repeats]

Machines are noisy, so compare the ratios. The table also goes to ``outputs/benchmark.csv``.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from hydrl.display import console

ROOT = Path(__file__).resolve().parents[1]
SAME_WORK = ["experiment=quickstart", "total_frames=10_000", "minibatches.advantage=once"]
LOOPS = {
    "documented PPO, as written": ["experiment=quickstart", "total_frames=10_000"],
    "the same, GAE once a batch": SAME_WORK,
    "and 10 environments, fused Adam": [*SAME_WORK, "collector.num_envs=10", "optim.fused=true"],
    "PPO tuned for the double pendulum": ["total_frames=20_480"],
    "DQN tuned for CartPole": ["algo=dqn", "env=cartpole", "total_frames=10_240"],
}
QUIET = ["eval.every_frames=1_000_000", "eval.final_episodes=1", "eval.max_steps=1"]


def frames_per_second(overrides: list[str], folder: Path) -> float:
    """Trains once in a process of its own, without evaluations."""
    command = [sys.executable, "train.py", *overrides, *QUIET, f"hydra.run.dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "summary.json").read_text())["frames_per_second"]


def main(repeats: int) -> None:
    """Runs every loop in turn, ``repeats`` times, and prints medians, spreads and ratios to the first."""
    speeds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(repeats):
        for name, overrides in LOOPS.items():
            with tempfile.TemporaryDirectory() as folder:
                speeds[name].append(frames_per_second(overrides, Path(folder)))
    base = statistics.median(next(iter(speeds.values())))
    table = Table("loop", "frames/s", "least", "most", "ratio", title=f"median of {repeats}")
    path = ROOT / "outputs" / "benchmark.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["loop", "frames_per_second", "least", "most", "ratio"])
        for name, values in speeds.items():
            median = statistics.median(values)
            row = [f"{median:.0f}", f"{min(values):.0f}", f"{max(values):.0f}", f"{median / base:.2f}"]
            table.add_row(name, *row)
            writer.writerow([name, *row])
    console().print(table)
    console().print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    except KeyboardInterrupt:
        sys.exit(130)
