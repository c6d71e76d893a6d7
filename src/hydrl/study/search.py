"""A search for better numbers: Optuna draws them, runs of ``train.py`` try them, bad ones are cut short."""

import csv
import fcntl
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import optuna
from omegaconf import OmegaConf
from optuna.trial import FrozenTrial, Trial, TrialState

from hydrl.config import CONFIGS
from hydrl.config.mistakes import find, paths
from hydrl.config.overrides import key_of
from hydrl.errors import RunError, UserError
from hydrl.run.files import atomically
from hydrl.run.folder import lock
from hydrl.run.resume import HARMLESS
from hydrl.study.pool import Training, Trainings
from hydrl.study.space import Plan, draw, holds, optunas, parse
from hydrl.study.sweep import UNNAMED

TOLD = (TrialState.COMPLETE, TrialState.PRUNED)
STOP = "eval.stop_when_solved=false"
FAILURES = 3  # in a row, after which the next would fail too
# Typed again beside a tuned file: of the machine and of what is kept, not of what is learned.
BESIDE = {*HARMLESS, "device", "torch_threads", "compile", "cudagraph"} - {
    "total_frames",
    "anneal_frames",
    "eval",
}


class Attempt:
    """A trial in hand: one run after the other, a seed each.

    Args:
        trial: Optuna's.
        plan: the search's.
    """

    def __init__(self, trial: Trial, plan: Plan) -> None:
        self.trial, self.plan = trial, plan
        self.overrides = [f"{key}={draw(each, trial.params[key])}" for key, each in plan.space.items()]
        self.scores: list[float] = []  # of the seeds that are done
        self.step = max(self.frozen.intermediate_values, default=0)  # the last that was reported
        self.pruned = False
        self.run: Training

    @property
    def frozen(self) -> FrozenTrial:
        """What the storage holds of it."""
        return self.trial.study.get_trials(deepcopy=False)[self.trial.number]

    @property
    def run_folder(self) -> Path:
        """Of the seed it is at."""
        return folder_of(self.plan, self.trial.number) / f"seed{self.plan.seeds[len(self.scores)]}"

    @property
    def done(self) -> bool:
        """Whether every seed has its score."""
        return len(self.scores) == len(self.plan.seeds)

    def start(self, pool: Trainings) -> None:
        """Starts the run of the next seed, or goes on with it."""
        seed = self.plan.seeds[len(self.scores)]
        words = [*self.plan.overrides, *of_one_length(self.plan), *self.overrides, f"seed={seed}"]
        self.run = pool.start(words, self.run_folder)

    def follow(self) -> None:
        """Reports new evaluations, as the mean over the seeds so far; asks whether it is worth going on."""
        settings, before = self.plan.settings, len(self.scores)
        every = settings.eval.every_frames
        in_a_run = max(1, settings.batches * settings.frames_per_batch // every)
        for frames, score in evaluations(self.run_folder / "metrics.csv"):
            # Evaluations are counted: their frames differ where the size of a batch does.
            step = before * in_a_run + min(int(frames // every), in_a_run)
            if step > self.step:
                self.step = step
                self.trial.report((sum(self.scores) + score) / (before + 1), step)
                self.pruned = self.pruned or self.trial.should_prune()
        if self.pruned:
            self.run.stop()

    def take_score(self) -> bool:
        """Takes the score of the run that has finished; whether it is a number."""
        score = json.loads((self.run_folder / "summary.json").read_text())["eval/return_mean"]
        self.scores.append(score)
        return math.isfinite(score)


def folder_of(plan: Plan, number: int) -> Path:
    """Where the runs of a trial lie."""
    return plan.out / f"trial-{number:04}"


def evaluations(path: Path) -> Iterator[tuple[float, float]]:
    """Frames and mean return of each evaluation in ``metrics.csv``, which may be written to this moment."""
    if path.exists():
        lines = path.read_text().rpartition("\n")[0].splitlines()
        for row in csv.DictReader(lines):
            if score := row.get("eval/return_mean"):
                yield float(row["frames"]), float(score)


class Search:
    """Draws trials, runs them and keeps what came of each in ``study.db``, so that it can go on any time.

    Args:
        plan: what is searched.
        say: takes a line for the screen.
        show: takes the line that says what is going on now.

    Raises:
        UserError: if the folder holds another search, or one that is running.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None], show: Callable[[str], None]) -> None:
        self.plan, self.say, self.show = plan, say, show
        self.attempts: list[Attempt] = []
        self.failures = 0
        lock(plan.out)
        storage = optuna.storages.RDBStorage(f"sqlite:///{plan.out / 'study.db'}")
        self.study = optuna.create_study(
            storage=storage, study_name="search", direction="maximize", load_if_exists=True
        )
        self.check_same(identity(plan))
        # Seeded alike, a search that goes on would draw its first trials once more.
        sampler = dict(plan.sampler)
        if isinstance(sampler.get("seed"), int):
            sampler["seed"] += len(self.study.trials)
        self.study.sampler, self.study.pruner = optunas(sampler, "samplers"), optunas(plan.pruner, "pruners")
        if not self.study.trials:  # what there is already is tried first
            present = {key: find(plan.settings.model_dump(), key_of(key)) for key in plan.space}
            self.study.enqueue_trial(
                {key: value for key, value in present.items() if holds(plan.space[key], value)}
            )

    def check_same(self, now: Mapping[str, str]) -> None:
        """What is drawn, seeds and settings are what they were."""
        then = self.study.user_attrs.get("plan")
        if then is None:
            self.study.set_user_attr("plan", now)
            return
        for key in {**then, **now}:
            if (old := then.get(key, "nothing")) != (new := now.get(key, "nothing")):
                raise UserError(
                    f"out={self.plan.out} holds a search with {key}={old}, not {new}; "
                    "go on with it as it was, or give this one another folder, as out=DIR"
                )

    def run(self) -> None:
        """Makes the trials that are still to be made.

        Raises:
            UserError: for a mistake that only a run could find.
            RunError: where nothing but failures comes of it.
        """
        left_over = self.study.get_trials(states=[TrialState.RUNNING])  # of a process that ended midway
        for each in left_over:
            wait_for_runs(folder_of(self.plan, each.number))
            if each.params.keys() != self.plan.space.keys():  # killed as it was being drawn
                self.study.tell(each.number, state=TrialState.FAIL)
        left_over = self.study.get_trials(states=[TrialState.RUNNING])
        with Trainings(self.plan.jobs) as pool:
            while True:
                while pool.room and (left_over or self.taken < self.plan.trials):
                    if left_over:
                        trial = Trial(self.study, left_over.pop(0)._trial_id)
                    else:
                        trial = self.study.ask(dict(self.plan.space))
                    attempt = Attempt(trial, self.plan)
                    trial.set_user_attr("overrides", attempt.overrides)
                    attempt.start(pool)
                    self.attempts.append(attempt)
                if not self.attempts:
                    return
                self.show(self.state())
                ended = pool.wait()
                for attempt in list(self.attempts):
                    attempt.follow()
                    if attempt.run in ended:
                        self.end_run(attempt, pool)

    @property
    def taken(self) -> int:
        """Trials that count and those in hand; a failed one is made up for."""
        return len(self.study.get_trials(deepcopy=False, states=(*TOLD, TrialState.RUNNING)))

    def end_run(self, attempt: Attempt, pool: Trainings) -> None:
        """Takes in a run that has ended: the next seed, or the end of the trial."""
        run, code = attempt.run, attempt.run.code
        if code == 0:
            finite = attempt.take_score()
            if finite and attempt.done:
                return self.tell(attempt, TrialState.COMPLETE, sum(attempt.scores) / len(attempt.scores))
            if finite and not attempt.pruned:
                return attempt.start(pool)
        if attempt.pruned or code in (0, 3):
            attempt.trial.set_user_attr("diverged", not attempt.pruned)
            return self.tell(attempt, TrialState.PRUNED, None, "" if attempt.pruned else "diverged")
        self.tell(attempt, TrialState.FAIL, None, f"failed: {run.error}; see {run.log}")
        if code == 2:
            raise UserError(run.error)
        failed = self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
        if sum(each.params == attempt.trial.params for each in failed) == 1:  # the machine's fault, maybe
            self.study.enqueue_trial(attempt.trial.params)
        if self.failures == FAILURES:
            raise RunError(f"{FAILURES} trials in a row failed, the last one so: {run.error}; see {run.log}")

    def tell(self, attempt: Attempt, state: TrialState, value: float | None, note: str = "") -> None:
        """Closes a trial and says what came of it."""
        known = self.best
        self.study.tell(attempt.trial, value, state)
        self.attempts.remove(attempt)
        best = self.best
        for each in (attempt.trial, known):  # all their replay memories would fill a disk
            if each and (not best or each.number != best.number):
                for folder in folder_of(self.plan, each.number).glob("*/checkpoints"):
                    shutil.rmtree(folder, ignore_errors=True)
        self.failures = self.failures + 1 if state == TrialState.FAIL else 0
        if not note:
            score = attempt.frozen.value
            note = f"{score:,.1f}" if state == TrialState.COMPLETE else f"{score:,.1f}, cut short"
        of_all = f"  (best {best.value:,.1f}, #{best.number})" if best else ""
        drawn = " ".join(
            re.sub(r"^[^=]*\.(?=\w+=)", "", each) for each in attempt.overrides
        )  # keys shortened
        self.say(f"#{attempt.trial.number}  {note}  {drawn}{of_all}")

    @property
    def best(self) -> FrozenTrial | None:
        """The best whole trial."""
        found = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return self.study.best_trial if found else None

    def state(self) -> str:
        """What is going on, in a line."""
        now = (f"#{each.trial.number} {each.run_folder.name}" for each in self.attempts)
        return f"{self.taken - len(self.attempts)} of {self.plan.trials} trials; running {', '.join(now)}"


def identity(plan: Plan) -> dict[str, str]:
    """What makes a search the same search, as text by key."""
    values = plan.settings.shown
    keys = [key for key in paths(values) if key.partition(".")[0] not in (*UNNAMED, "seed")]
    found = {key: plan.chosen[key] for key in ("algo", "env")}
    found |= {key: json.dumps(find(values, key)) for key in keys if not isinstance(find(values, key), dict)}
    drawn = {
        key_of(key): re.sub(r"(Distribution|, step=\w+)", "", str(each)) for key, each in plan.space.items()
    }
    return {**found, **drawn, "seeds": ",".join(map(str, plan.seeds))}


def wait_for_runs(trial: Path) -> None:
    """Waits while runs that lost their search save and end."""
    for each in trial.glob("*/.lock"):
        with each.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def of_one_length(plan: Plan) -> list[str]:
    """What keeps a run from ending where it has solved its task, unless the command line says so."""
    typed = "eval.stop_when_solved" in map(key_of, plan.overrides)
    return [STOP] if plan.settings.eval.stop_when_solved and not typed else []


def command(plan: Plan, best: FrozenTrial) -> list[str]:
    """The best overrides as a command line."""
    pair = [f"{key}={plan.chosen[key]}" for key in ("algo", "env")]
    others = [word for word in plan.overrides if key_of(word) not in ("algo", "env")]
    return ["python", "train.py", *pair, *others, *best.user_attrs["overrides"]]


def save_tuned(plan: Plan, best: FrozenTrial, count: int) -> tuple[Path, list[str]]:
    """Writes ``tuned.yaml``: the tuned numbers there were, what was typed and the best of what was drawn.

    Args:
        plan: the search's.
        best: its best trial.
        count: of trials it is the best of.

    Returns:
        the file, and the words that no tuned file can say, which go beside it on the command line.
    """
    source = CONFIGS / "tuned" / f"{plan.chosen['tuned']}.yaml"
    tuned = OmegaConf.load(source) if source.is_file() else OmegaConf.create()
    beside = []
    for word in [*plan.overrides, *best.user_attrs["overrides"]]:
        key = key_of(word)
        if word.startswith("~") or (CONFIGS / key).is_dir() or key.partition(".")[0] in BESIDE:
            beside += [word] if key not in ("algo", "env", "tuned") else []
        else:
            OmegaConf.update(tuned, key, parse(word).value(), force_add=True)
    seeds = ", ".join(map(str, plan.seeds))
    lines = [
        "# @package _global_",
        f"# Found by: {shlex.join(['python', 'scripts/search.py', *plan.typed])}",
        f"# The best of {count} trials: {best.value:,.1f}, the mean closing evaluation of seeds {seeds}.",
    ]
    if source.is_file() and plan.chosen["tuned"] != "none":
        lines.append(f"# What was neither searched nor typed is from {source.relative_to(CONFIGS.parent)}.")
    lines += [f"# Found with {word}, which is not set here." for word in of_one_length(plan)]
    if beside:
        lines.append(f"# Found, and to be used, with: {shlex.join(beside)}")
    path = plan.out / "tuned.yaml"
    with atomically(path) as partial:
        header = "\n".join(" ".join(line.split()) for line in lines)
        partial.write_text(f"{header}\n{OmegaConf.to_yaml(tuned)}")
    return path, beside
