"""What GRPO and expert iteration add to imitation: each seed's runs, and the mean difference to the control.

python -m scripts.benchmark.language sort                      # seeds 100 to 104, about four minutes each
python -m scripts.benchmark.language sum countdown --seeds 100 101 102

Of each seed, one `algo=sft` run imitates solved prompts. The others start from its first checkpoint that
answers enough prompts of the evaluation half. The control is the same run going on, for more updates than
GRPO has: its checkpoint with the best evaluation counts. All figures are shares of 500 prompts of the final
half, by greedy answers; nothing was chosen by them. Figures are kept in outputs/language as runs end; the
same command resumes.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # train.py

from hydrl.config.settings import load
from hydrl.config.tuned import compose_run
from hydrl.deploy.load import open_run
from hydrl.experiments.statistics import estimate
from hydrl.run.atomic_files import atomically
from hydrl.run.run_folder import metric_rows
from hydrl.training.evaluator import SeedStream
from train import train

OUTPUTS = Path("outputs", "language")
PROMPTS = 500  # of a final evaluation
SEEDS = [100, 101, 102, 103, 104]
COMMON = ["eval.backend=inline", "torch_threads=1", "compile=false", "eval.stop_when_solved=false"]
COLUMNS = {"start": "SFT start", "control": "more SFT", "grpo": "GRPO", "experts": "expert iteration"}


@dataclass(frozen=True)
class Plan:
    """The runs of a task.

    Attributes:
        task: overrides that choose it.
        start: share of right answers, of the evaluation half, from which imitation is a start.
        sft: overrides of the run that imitates.
        grpo: those of GRPO.
        experts: those of expert iteration.
    """

    task: Sequence[str]
    start: float
    sft: Sequence[str]
    grpo: Sequence[str]
    experts: Sequence[str]


PLANS = {
    "sort": Plan(
        task=["env=digits"],
        start=0.5,
        sft=["data.examples=100", "total_frames=25_600", "eval.every_frames=1_280"],  # 400 updates of 64
        grpo=["total_frames=30_720"],  # 120 updates of 256
        experts=["total_frames=10_240"],  # 40 batches of 8 updates
    ),
    "sum": Plan(
        task=["env=sum"],
        start=0.6,
        sft=["data.examples=500", "total_frames=102_400", "eval.every_frames=2_560"],  # 1,600 updates of 64
        grpo=["total_frames=30_720", "minibatches.size=64"],  # 120 batches of 4 updates
        experts=["total_frames=15_360"],  # 60 batches of 8 updates
    ),
    "countdown": Plan(
        task=["env=countdown"],
        start=0.2,
        sft=["data.examples=300", "total_frames=51_200", "eval.every_frames=2_560"],  # 800 updates of 64
        grpo=["total_frames=30_720"],  # 120 updates of 256
        experts=["total_frames=15_360"],  # 60 batches of 8 updates
    ),
}


def main() -> None:
    """Runs what is missing of each task, and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", choices=PLANS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments = parser.parse_args()
    for task in arguments.tasks:
        rows = [measure_seed(task, PLANS[task], seed) for seed in arguments.seeds]
        print("\n".join(format_table(task, arguments.seeds, rows)), flush=True)


def measure_seed(task: str, plan: Plan, seed: int) -> dict[str, float]:
    """Shares of right answers of one seed's runs, by column; that of the control alone without a start."""
    folder = OUTPUTS / task / str(seed)
    evaluation = plan.sft[-1].partition("=")[2]
    sft = train_run(
        folder / "sft",
        [
            "algo=sft",
            *plan.task,
            *plan.sft,
            f"seed={seed}",
            f"checkpoint_every_frames={evaluation}",
            "keep_checkpoints=99",
        ],
    )
    rows = [row for row in metric_rows(sft / "metrics.csv") if row.get("eval/return_mean") is not None]
    starts = [int(row["frames"] or 0) for row in rows if (row["eval/return_mean"] or 0) >= plan.start]
    figures = {"control": keep_figure(folder, "control", partial(score, sft, "best"))}
    if not starts:
        print(f"{task}, seed {seed}: imitation never reached {plan.start}", flush=True)
        return figures
    figures["start"] = keep_figure(folder, "start", partial(score, sft, str(starts[0])))
    for name, algo, words in (("grpo", "grpo", plan.grpo), ("experts", "expert_iteration", plan.experts)):
        begin = [f"init_from.run={sft}", f"init_from.checkpoint={starts[0]}", f"seed={seed}"]
        run = train_run(folder / name, [f"algo={algo}", *plan.task, *words, *begin])
        figures[name] = keep_figure(folder, name, partial(score, run, "last"))
    return figures


def train_run(folder: Path, words: Sequence[str]) -> Path:
    """Trains unless the folder has a finished run; returns the folder."""
    if not (folder / "summary.json").exists():
        train(load(compose_run([*words, *COMMON, f"run_dir={folder}", f"eval.final_episodes={PROMPTS}"])))
    return folder


def keep_figure(folder: Path, name: str, measure: Callable[[], float]) -> float:
    """The figure that the folder keeps under a name, measured if it has none."""
    file = folder / f"{name}.json"
    if not file.exists():
        figure = measure()
        print(f"{folder} {name} {figure:.3f}", flush=True)
        with atomically(file) as partial_file:
            partial_file.write_text(json.dumps(figure) + "\n", encoding="utf-8")
    return float(json.loads(file.read_text(encoding="utf-8")))


def score(run: Path, checkpoint: str) -> float:
    """Share of right answers of a checkpoint to prompts of the final half."""
    _, frames, evaluator = open_run(run, checkpoint=checkpoint, device="cpu", trust=False)
    with closing(evaluator):
        return float(evaluator(frames, PROMPTS, SeedStream.LATER).info_means()["eval/success"])


def format_table(task: str, seeds: Sequence[int], rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Lines of a Markdown table, and of the mean differences to the control."""
    lines = [f"| {task}, seed | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for seed, row in zip(seeds, rows, strict=True):
        lines.append(f"| {seed} | {' | '.join(f'{row.get(name, np.nan):.3f}' for name in COLUMNS)} |")
    whole = [row for row in rows if row.keys() == COLUMNS.keys()]
    means = {name: np.mean([row[name] for row in whole]) for name in COLUMNS} if whole else {}
    lines.append(f"| mean of {len(whole)} | {' | '.join(f'{value:.3f}' for value in means.values())} |")
    for name in ("grpo", "experts") if whole else ():
        differences = np.array([row[name] - row["control"] for row in whole])
        value, low, high = estimate(np.mean, differences)
        lines.append(f"{COLUMNS[name]} minus more SFT: {value:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}")
    return lines


if __name__ == "__main__":
    main()
