"""A search for better numbers: Optuna draws them, runs of ``train.py`` try them, bad ones are cut short."""

import math
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from hydrl.config.mistakes import find, show
from hydrl.config.overrides import as_hydra_reads, as_typed, key_of
from hydrl.config.settings import builder
from hydrl.errors import RunError, UserError
from hydrl.run.folder import lock, summary
from hydrl.run.screen import short
from hydrl.study import runs
from hydrl.study.pool import Training, Trainings, side_by_side
from hydrl.study.space import RETURN, Plan

SAME_LENGTH = "eval.stop_when_solved=false"  # for all runs, unless typed otherwise
FAILURES = 3  # in a row, after which the next would fail too
PICTURES = ("optimization_history", "slice", "param_importances")  # Optuna's own


def taken(space: BaseDistribution, value: Any) -> Any:
    """A value as trials have it, or ``None`` where none could draw it."""
    if isinstance(space, CategoricalDistribution):  # a list among them is as it is typed
        return next((each for each in space.choices if value in (each, as_hydra_reads(str(each)))), None)
    assert isinstance(space, IntDistribution | FloatDistribution)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and space.low <= value <= space.high else None


class Search:
    """A search in its folder, where ``study.db`` has what came of each trial, so that it can go on.

    Args:
        plan: the search's.
        say: takes a line for the screen.

    Raises:
        UserError: if the folder holds another search or one that is running, or cannot be written.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan, self.say, self.out, self.failures = plan, say, Path(plan.out), 0
        values = plan.settings.model_dump()
        self.now = {key: find(values, key_of(key)) for key in plan.space}
        sampler, pruner = builder(plan.sampler)(), builder(plan.pruner)()
        self.fresh = [each for each in (self.out, *self.out.parents) if not each.exists()]
        lock(self.out)
        self.study = optuna.create_study(
            study_name="search",
            storage=f"sqlite:///{self.out / 'study.db'}",
            direction="maximize",
            sampler=sampler,
            pruner=pruner,
            load_if_exists=True,
        )
        now = [*plan.overrides, *plan.ranges, f"seeds={','.join(map(str, plan.seeds))}"]
        now += [f"maximise={plan.maximise}"] * (plan.maximise != RETURN)
        then = self.study.user_attrs.get("words", now)
        if set(then) != set(now):
            raise UserError(
                f"out={self.out} holds another search, with {beside(now, then)} where this has "
                f"{beside(then, now)}; go on with it as it was, remove the folder, or name another by out=DIR"
            )
        self.study.set_user_attr("words", now)
        for each in self.study.get_trials(states=(TrialState.RUNNING,)):  # as the last process left them
            if each.params:
                self.study.enqueue_trial(each.params, {**each.user_attrs, "folder": self.folder(each).name})
            self.study.tell(each.number, state=TrialState.FAIL)
        first = [each for each in self.study.trials if each.number == 0 or each.user_attrs.get("present")]
        if all(each.state == TrialState.FAIL for each in first):
            self.study.enqueue_trial(self.present(), {"present": True})

    def present(self) -> dict[str, Any]:
        """The present numbers; those that no trial could draw are left out, and said."""
        found = {key: taken(space, self.now[key]) for key, space in self.plan.space.items()}
        ranges = dict(zip(self.plan.space, self.plan.ranges, strict=True))
        for key in [key for key, value in found.items() if value is None]:
            del found[key]
            outside = f"for the present {show(self.now[key])} is not in {ranges[key]}"
            self.say(f"the first trial draws {key} too, {outside}")
        return found

    def run(self) -> None:
        """Makes the trials that are still to be made, as many side by side as there are jobs.

        Raises:
            UserError: for a mistake that only a run could find.
            RunError: where nothing but failures comes of it.
        """
        try:
            with Trainings(self.plan.jobs) as pool:
                while self.count < self.plan.trials:  # and once more for each that has failed
                    side_by_side(self.trials(pool), self.plan.jobs)
        except UserError:
            if self.fresh and not self.best:  # nothing in it is of use to a corrected search
                shutil.rmtree(self.out)
                for each in self.fresh[1:]:
                    with suppress(OSError):  # somebody has put something there
                        each.rmdir()
            raise

    def trials(self, pool: Trainings) -> Iterator[Iterator[None]]:
        """Draws trials until there are enough."""
        while self.count < self.plan.trials:
            yield self.evaluate(self.study.ask(self.plan.space), pool)

    @property
    def count(self) -> int:
        """Trials that count and those in hand; a failed one is made up for."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        return len(self.study.get_trials(deepcopy=False, states=states))

    @property
    def best(self) -> FrozenTrial | None:
        """The best whole trial."""
        whole = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return self.study.best_trial if whole else None

    def shown(self, trial: FrozenTrial) -> str:
        """The value of a trial."""
        return f"{trial.value:,.1f}" if self.plan.maximise == RETURN else short(trial.value)

    def folder(self, trial: Trial | FrozenTrial) -> Path:
        """Where the runs of a trial lie; of one that goes on, where they were begun."""
        return self.out / trial.user_attrs.get("folder", f"trial-{trial.number:04}")

    def drawn(self, trial: Trial | FrozenTrial) -> list[str]:
        """What was drawn for a trial, as overrides; of a float four digits say enough."""
        values = {key: trial.params[key] for key in self.plan.space}
        floats = [key for key, each in self.plan.space.items() if isinstance(each, FloatDistribution)]
        values |= {key: float(f"{values[key]:.4g}") for key in floats if values[key] != self.now[key]}
        return [f"{key}={value}" for key, value in values.items()]

    def command(self, trial: FrozenTrial) -> str:
        """What trains with the numbers of a trial."""
        words = [*self.plan.overrides, *self.drawn(trial)]
        if not any(key_of(each) == key_of(SAME_LENGTH) for each in words):
            words.append(SAME_LENGTH)
        return as_typed(shlex.join(["python", "train.py", *words]))

    def evaluate(self, trial: Trial, pool: Trainings) -> Iterator[None]:
        """One run after the other, a seed each; evaluations are reported as the mean over the seeds so far.

        Each step looks at the run once; the last tells the study.
        """
        every = self.plan.settings.eval.every_frames
        in_a_run = max(1, self.plan.settings.batches * self.plan.settings.frames_per_batch // every)
        scores: list[float] = []
        reported, pruned = 0, False
        for seed in self.plan.seeds:
            words = [SAME_LENGTH, *self.plan.overrides, *self.drawn(trial), f"seed={seed}", "resume=auto"]
            run, ended = pool.start(words, self.folder(trial) / f"seed{seed}"), False
            while not ended:
                yield
                ended = run.code is not None  # asked first: what it wrote last is reported too
                for frames, _, score in runs.evaluations(run.folder, self.plan.maximise):
                    # Evaluations are counted: their frames differ where the size of a batch does.
                    step = len(scores) * in_a_run + min(int(frames // every), in_a_run)
                    if step > reported:
                        reported = step
                        trial.report((sum(scores) + score) / (len(scores) + 1), step)
                        pruned = pruned or trial.should_prune()
                if pruned:
                    run.stop()
            if run.code == 0:
                scores.append(self.score(summary(run.folder)))
            if pruned or run.code == 3 or not all(map(math.isfinite, scores)):
                return self.tell(trial, run, TrialState.PRUNED)
            if run.code != 0:
                return self.tell(trial, run, TrialState.FAIL)
        self.tell(trial, run, TrialState.COMPLETE, sum(scores) / len(scores))

    def score(self, reached: dict[str, Any]) -> float:
        """What a run is judged by, of its summary.

        Raises:
            UserError: where the run has no such number.
        """
        if (score := reached.get(self.plan.maximise)) is None:
            there = [key for key, value in reached.items() if key.startswith("eval/") and value is not None]
            raise UserError(
                f"maximise={self.plan.maximise}: the run does not have it; it has {', '.join(there)}"
            )
        return score

    def tell(self, trial: Trial, last: Training, state: TrialState, score: float | None = None) -> None:
        """Tells study and screen what came of a trial, and keeps the checkpoints of the best alone."""
        if last.code == 2:
            raise UserError(last.error)
        before, told = self.best, self.study.tell(trial, score, state)
        for each in (before, told):
            if each and (not self.best or each.params != self.best.params):
                for checkpoints in self.folder(each).glob("*/checkpoints"):
                    shutil.rmtree(checkpoints, ignore_errors=True)
        if state == TrialState.FAIL:
            note = f"failed: {last.error}; see {last.log}"
        elif last.code == 3:
            note = "diverged"
        else:
            note = self.shown(told) + ", cut short" * (state == TrialState.PRUNED)
        short = (re.sub(r"^[^=]*\.", "", each) for each in self.drawn(told))
        self.say(f"#{told.number}  {note}  {' '.join(short)}")
        self.failures = self.failures + 1 if state == TrialState.FAIL else 0
        if self.failures == FAILURES:
            raise RunError(f"{FAILURES} trials in a row failed; see {last.log}")

    def save(self, top: FrozenTrial) -> list[Path]:
        """Writes the best numbers, as a file for ``configs/experiment``, and draws Optuna's own plots."""
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as plots

        files = [self.out / f"{name}.png" for name in PICTURES]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plots are experimental, and say where trials are few
            for file in files:
                getattr(plots, f"plot_{file.stem}")(self.study)
                drawn = pyplot.gcf().axes
                pyplot.gcf().set_size_inches(4 * max(2, len(drawn)), 4)
                for axes in drawn:  # logarithmic ones label so many that they would touch
                    axes.tick_params("x", which="minor", labelbottom=False)
                pyplot.savefig(file, dpi=100, bbox_inches="tight")
                pyplot.close()
        header = f"# @package _global_\n# {self.shown(top)} by {self.command(top)}\n"
        numbers = OmegaConf.from_dotlist([each.lstrip("+") for each in self.drawn(top)])
        experiment = self.out / "experiment.yaml"
        experiment.write_text(header + OmegaConf.to_yaml(numbers), encoding="utf-8")
        return [experiment, *files]


def beside(others: Sequence[str], words: Sequence[str]) -> str:
    """Those of the words that are not among others."""
    return shlex.join(each for each in words if each not in others) or "nothing"
