"""A search for better numbers: Optuna draws them, runs of ``train.py`` try them, bad ones are cut short."""

import math
import re
import shlex
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from hydrl.config.migrations import new_word
from hydrl.config.overrides import as_hydra_reads, as_typed, key_of
from hydrl.config.settings import builder
from hydrl.config.tree import find, show
from hydrl.errors import RunError, UserError
from hydrl.experiments import runs, search_storage
from hydrl.experiments.processes import Training, Trainings, side_by_side
from hydrl.experiments.search_space import RETURN, Plan
from hydrl.run.logging.console import short
from hydrl.run.run_folder import RunLock, summary

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

    With ``storage`` a server has it, and processes on several machines make trials of the same search, each
    in a folder of its own.

    Args:
        plan: the search's.
        say: takes a line for the screen.

    Raises:
        UserError: if the folder holds another search or one that is running, or cannot be written; and for a
            storage that cannot be had.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan, self.say, self.out, self.failures = plan, say, Path(plan.out), 0
        values = plan.settings.model_dump()
        self.now = {key: find(values, key_of(new_word(key))) for key in plan.space}
        drawing = {"sampler": builder(plan.sampler)(), "pruner": builder(plan.pruner)()}
        self.fresh = [each for each in (self.out, *self.out.parents) if not each.exists()]
        self.lock = RunLock()
        try:
            self.lock.acquire(self.out)
        except UserError as error:
            own = "; each process of a search has an out=DIR of its own" if plan.storage else ""
            raise UserError(f"{error}{own}") from None
        self.process = search_storage.process(self.out) if plan.storage else None  # of several, this one
        self.signs: dict[int, float] = {}  # when the last sign of life of a trial was given
        try:
            self.storage = search_storage.opened(plan.storage, self.out, self.again)
            self.study, begins = self.found(**drawing)
            self.require_the_same()
        except UserError:
            self.close()
            self.remove_folder()
            raise
        for each in self.running:  # as the last process left them
            if each.user_attrs.get("process") == self.process:
                self.again(self.study, each)
                self.study.tell(each.number, state=TrialState.FAIL)
        first = [each for each in self.study.trials if each.number == 0 or each.user_attrs.get("present")]
        if (begins or first) and all(each.state == TrialState.FAIL for each in first):
            self.study.enqueue_trial(self.present(), {"present": True})

    def close(self) -> None:
        """Lets other processes have the folder."""
        self.lock.release()

    def found(self, **drawing: Any) -> tuple[optuna.Study, bool]:
        """The study, and whether this process begins it."""
        drawing |= {"study_name": self.plan.study if self.process else "search", "storage": self.storage}
        try:
            return optuna.create_study(direction="maximize", **drawing), True
        except DuplicatedStudyError:
            return optuna.load_study(**drawing), not self.process

    def require_the_same(self) -> None:
        """Refuses to mix two searches.

        Raises:
            UserError: saying what they differ in.
        """
        plan = self.plan
        now = [*plan.overrides, *plan.ranges, f"seeds={','.join(map(str, plan.seeds))}"]
        now += [f"maximise={plan.maximise}"] * (plan.maximise != RETURN)
        then = [*map(new_word, self.study.user_attrs.get("words", now))]
        if set(then) != set(now):
            place, other = f"out={self.out}", "remove the folder, or name another by out=DIR"
            if plan.storage:
                place, other = f"study={plan.study}", "or name another by study=NAME"
            raise UserError(
                f"{place} holds another search, with {beside(now, then)} where this has "
                f"{beside(then, now)}; go on with it as it was, {other}"
            )
        self.study.set_user_attr("words", now)

    def again(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Has a trial made that was left while it ran."""
        if trial.params:
            study.enqueue_trial(trial.params, {**trial.user_attrs, "folder": self.folder(trial).name})

    def present(self) -> dict[str, Any]:
        """The present numbers; those that no trial could draw are left out, and said."""
        found = {key: taken(space, self.now[key]) for key, space in self.plan.space.items()}
        ranges = dict(zip(self.plan.space, self.plan.ranges, strict=True))
        for key in [key for key, value in found.items() if value is None]:
            del found[key]
            outside = f"for the present {show(self.now[key])} is not in {ranges[key]}"
            self.say(f"the first trial draws {new_word(key)} too, {outside}")
        return found

    def run(self) -> None:
        """Makes the trials that are still to be made, as many side by side as there are jobs.

        Raises:
            UserError: for a mistake that only a run could find.
            RunError: where nothing but failures comes of it.
        """
        try:
            with Trainings(self.plan.jobs) as pool:
                while self.lacks():  # and once more for each that has failed
                    side_by_side(self.trials(pool), self.plan.jobs)
        except UserError:
            if self.fresh and not self.best:  # nothing in it is of use to a corrected search
                if {each.user_attrs.get("process") for each in self.study.trials} <= {self.process, None}:
                    optuna.delete_study(study_name=self.study.study_name, storage=self.storage)
                self.remove_folder()
            raise

    def remove_folder(self) -> None:
        """Takes the folder away, with those it lies in, where this search has made them."""
        if self.fresh:
            shutil.rmtree(self.out)
        for each in self.fresh[1:]:
            with suppress(OSError):  # somebody has put something there
                each.rmdir()

    def trials(self, pool: Trainings) -> Iterator[Iterator[None]]:
        """Draws trials until there are enough."""
        while self.lacks():
            yield self.evaluate(self.study.ask(self.plan.space), pool)

    def lacks(self) -> bool:
        """Whether a trial is still to be made; one that nothing is heard of does not count."""
        search_storage.give_up(self.study)
        return self.count < self.plan.trials

    @property
    def running(self) -> list[FrozenTrial]:
        """Trials in hand, here or elsewhere."""
        return self.study.get_trials(states=(TrialState.RUNNING,))

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
        named = str(trial.user_attrs.get("folder"))
        return self.out / (named if re.fullmatch(r"trial-\d+", named) else f"trial-{trial.number:04}")

    def place(self, trial: FrozenTrial) -> str:
        """The folder of a trial, with the machine where that may be another."""
        there = trial.user_attrs.get("process", self.process)
        return str(self.folder(trial)) if there == self.process else f"{there}/{self.folder(trial).name}"

    def drawn(self, trial: Trial | FrozenTrial) -> list[str]:
        """What was drawn for a trial, as overrides; of a float four digits say enough."""
        values = {key: trial.params[key] for key in self.plan.space}
        floats = [key for key, each in self.plan.space.items() if isinstance(each, FloatDistribution)]
        values |= {key: float(f"{values[key]:.4g}") for key in floats if values[key] != self.now[key]}
        return [new_word(f"{key}={value}") for key, value in values.items()]

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
        if self.process:
            trial.set_user_attr("process", self.process)
            self.sign_of_life(trial)
        every = self.plan.settings.eval.every_frames
        in_a_run = max(1, self.plan.settings.batches * self.plan.settings.frames_per_batch // every)
        scores: list[float] = []
        reported, pruned = 0, False
        for seed in self.plan.seeds:
            words = [SAME_LENGTH, *self.plan.overrides, *self.drawn(trial), f"seed={seed}", "resume=auto"]
            run, ended = pool.start(words, self.folder(trial) / f"seed{seed}"), False
            while not ended:
                self.sign_of_life(trial)
                yield
                ended = run.code is not None  # asked first: what it wrote last is reported too
                for frames, _, score in runs.evaluations(run.folder, self.plan.maximise):
                    # Evaluations are counted: their frames differ where the size of a batch does.
                    step = len(scores) * in_a_run + min(int(frames // every), in_a_run)
                    if step > reported:
                        reported = step
                        with suppress(UpdateFinishedTrialError):  # others have given it up
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

    def sign_of_life(self, trial: Trial) -> None:
        """Tells other machines now and then that a trial goes on."""
        now = time.monotonic()
        if self.process and now - self.signs.get(trial.number, -math.inf) > search_storage.ALIVE:
            self.signs[trial.number] = now
            self.storage.record_heartbeat(trial._trial_id)

    def score(self, reached: dict[str, Any]) -> float:
        """What a run is judged by, of its summary.

        Raises:
            UserError: where the run has no such number.
        """
        if not isinstance(score := reached.get(self.plan.maximise), int | float):
            able = (key for key, value in reached.items() if isinstance(value, int | float))
            there = [key for key in able if key.startswith("eval/")]
            raise UserError(
                f"maximise={self.plan.maximise}: the run does not have it; it has "
                f"{', '.join(there) or 'no evaluation in its summary.json'}"
            )
        return score

    def tell(self, trial: Trial, last: Training, state: TrialState, score: float | None = None) -> None:
        """Tells study and screen what came of a trial, and keeps the checkpoints of the best alone."""
        if last.code == 2:
            raise UserError(last.error)
        before, told = self.best, self.study.tell(trial, score, state, skip_if_finished=True)
        for each in (before, told):
            if each and (not self.best or each.params != self.best.params):
                for checkpoints in self.folder(each).glob("*/checkpoints"):
                    shutil.rmtree(checkpoints, ignore_errors=True)
        if state == TrialState.FAIL:
            note = f"failed: {last.error}; see {last.log}"
        elif told.state != state:
            note = f"is made elsewhere, as nothing was heard of it for {search_storage.GIVEN_UP} seconds"
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
