"""Reference scores of the learning gate, and how many seeds it needs.

python -m scripts.benchmark.gate                # measures what tests/gate.json lacks
python -m scripts.benchmark.gate ppo --again    # measures anew, after a change of how it should learn

A score is the mean return of all evaluations of a run, at fixed frames and never stopped when solved, less
a random policy's. `make test-slow parts=gate` runs fresh seeds and compares their mean with the reference's
by a t-test. The number of seeds follows from the spread of the reference: a true loss of a fifth is found
with a probability of 95 %, and an unchanged program is blamed in 1 % of all checks at most, where scores are
normal; outliers are why there are at least eight seeds.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2]))  # train.py

from hydrl import envs
from hydrl.config.settings import load
from hydrl.config.tuned import compose_run
from hydrl.run.atomic_files import atomically
from hydrl.run.run_folder import metric_rows
from hydrl.training.metrics import ended_episodes
from train import train

FILE = Path(__file__).parents[2] / "tests" / "gate.json"
LOSS, POWER = 0.2, 0.95
FEWEST_SEEDS, MOST_SEEDS = 8, 60  # one run in fifty is an outlier, which moves the mean of a few too far
COMMON = ["eval.backend=inline", "torch_threads=1", "compile=false", "eval.stop_when_solved=false"]
COMMON += ["eval.episodes=20", "eval.final_episodes=20", "checkpoint_every_frames=1_000_000"]


@dataclass(frozen=True)
class Task:
    """What an algorithm is judged by.

    Attributes:
        words: overrides.
        frames: of a run.
        every: frames between evaluations.
        seeds: of the reference; the gate's begin at 300.
    """

    words: Sequence[str]
    frames: int
    every: int
    seeds: Sequence[int] = range(200, 216)

    def run_words(self, seed: int) -> list[str]:
        """Overrides of a run."""
        lengths = [f"total_frames={self.frames}", f"eval.every_frames={self.every}"]
        return [*self.words, *lengths, *COMMON, f"seed={seed}"]


TASKS = {
    "ppo": Task(["algo=ppo", "env=cartpole"], 20_480, 2_048, seeds=[*range(100, 106), *range(200, 240)]),
    "sac": Task(["algo=sac", "env=pendulum"], 6_016, 512, seeds=range(200, 224)),
    "td3": Task(["algo=td3", "env=pendulum"], 8_000, 1_000),
    "mappo": Task(["algo=mappo", "env=vmas_navigation"], 38_400, 4_800),
}
FALSE_ALARMS = 0.01 / len(TASKS)  # of each algorithm, so that all have 1 %


@dataclass(frozen=True)
class Reference:
    """What an algorithm scored: its scores by seed, and the random policy's return that they are above."""

    scores: Sequence[float]
    random_return: float

    @property
    def mean(self) -> float:
        """Of the scores."""
        return float(np.mean(self.scores))

    def lowest_mean(self, seeds: int, false_alarms: float = FALSE_ALARMS) -> float:
        """The mean score of so many fresh seeds below which the algorithm counts as worse."""
        critical = stats.t.ppf(1 - false_alarms, len(self.scores) - 1)
        return self.mean - float(critical) * self.error(seeds)

    def error(self, seeds: int) -> float:
        """Standard error of the difference between the mean of so many fresh seeds and the reference's."""
        return float(np.std(self.scores, ddof=1) * np.sqrt(1 / len(self.scores) + 1 / seeds))

    def power(self, seeds: int, loss: float = LOSS, false_alarms: float = FALSE_ALARMS) -> float:
        """Probability that so many fresh seeds are blamed if the true mean is less by a share ``loss``."""
        freedom = len(self.scores) - 1
        critical = stats.t.ppf(1 - false_alarms, freedom)
        return float(stats.nct.sf(critical, freedom, loss * self.mean / self.error(seeds)))

    def seeds_needed(
        self, loss: float = LOSS, power: float = POWER, false_alarms: float = FALSE_ALARMS
    ) -> int:
        """The fewest seeds that find a loss with a probability ``power``.

        Raises:
            ValueError: if no number up to ``MOST_SEEDS`` does.
        """
        for seeds in range(FEWEST_SEEDS, MOST_SEEDS + 1):
            if self.power(seeds, loss, false_alarms) >= power:
                return seeds
        raise ValueError(f"no {MOST_SEEDS} seeds find a loss of {loss:.0%}: the scores spread too widely")


def measure_run(task: Task, seed: int, folder: Path) -> float:
    """Mean return of all evaluations of a run, at fixed frames."""
    train(load(compose_run([*task.run_words(seed), f"run_dir={folder}"])))
    values = [row.get("eval/return_mean") for row in metric_rows(folder / "metrics.csv")]
    return float(np.mean([value for value in values if value is not None]))


def measure_random(task: Task, episodes: int = 500) -> float:
    """Mean return of random actions."""
    torch.manual_seed(0)
    settings = load(compose_run([*task.run_words(0), "run_dir=unused"]))
    make_env = partial(envs.make_env, settings.build("env"), settings.transform_builders, device="cpu")
    env, returns = make_env(num_envs=16, seed=0), list[float]()
    envs.find_family(settings.build("env")).prepare(env, 0, 1_000, None, settings.env["_target_"])
    while len(returns) < episodes:
        batch = env.rollout(1_000, break_when_any_done=False)
        returns += ended_episodes(batch)["episode_reward"].reshape(-1).tolist()
    env.close()
    return float(np.mean(returns))


def read_file() -> dict[str, Any]:
    """What is stored, by algorithm."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def read_references() -> dict[str, Reference]:
    """The stored references, by algorithm; those of other settings are left out."""
    return {
        algo: Reference([*entry["scores"].values()], entry["random_return"])
        for algo, entry in read_file().items()
        if entry["words"] == TASKS[algo].run_words(0)
    }


def measure(algo: str, *, again: bool) -> None:
    """Measures an algorithm's missing scores and stores each as its run ends."""
    task, words = TASKS[algo], TASKS[algo].run_words(0)
    stored = read_file()
    if again or stored.get(algo, {}).get("words") != words:
        stored[algo] = {"words": words, "random_return": round(measure_random(task), 2), "scores": {}}
    entry = stored[algo]
    for seed in task.seeds:
        if str(seed) in entry["scores"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            score = measure_run(task, seed, Path(folder)) - entry["random_return"]
        entry["scores"][str(seed)] = round(score, 4)
        print(f"{algo}, seed {seed}: {score:.2f}", flush=True)
        with atomically(FILE) as partial_file:
            partial_file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measures what is missing and prints how many seeds the gate needs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algos", nargs="*", metavar="algo", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--again", action="store_true", help="measures what is stored, too")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.algos} - {*TASKS}):
        parser.error(f"{unknown[0]}: the gate has {', '.join(TASKS)}")
    for algo in arguments.algos or TASKS:
        measure(algo, again=arguments.again)
    for algo, reference in read_references().items():
        spread = np.std(reference.scores, ddof=1) / reference.mean
        try:
            advice = f"{reference.seeds_needed()} seeds"
        except ValueError as error:
            advice = str(error)
        print(f"{algo:14} {reference.mean:9.2f} above random, spread {spread:.1%}: {advice}")


if __name__ == "__main__":
    main()
