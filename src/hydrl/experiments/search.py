"""Hyperparameter search: Optuna samples, runs of ``train.py`` evaluate, bad trials are pruned."""

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
from hydrl.config.overrides import key_of, localize_commands, parse_value
from hydrl.config.settings import make_builder
from hydrl.config.tree import find, show
from hydrl.errors import RunError, UserError
from hydrl.experiments import runs, search_storage
from hydrl.experiments.processes import ProcessPool, TrainingProcess, run_concurrently
from hydrl.experiments.search_space import DEFAULT_METRIC, SearchPlan
from hydrl.run.logging.console import short
from hydrl.run.run_folder import RunLock, summary

FULL_LENGTH = "eval.stop_when_solved=false"  # of all runs, unless overridden
MAX_FAILURES = 3  # failed trials in a row that end the search
PLOTS = ("optimization_history", "slice", "param_importances")  # of Optuna


def as_choice(space: BaseDistribution, value: Any) -> Any:
    """A value in a trial's form, or ``None`` if the distribution does not contain it."""
    if isinstance(space, CategoricalDistribution):  # lists are stored as they are typed
        equal = (choice for choice in space.choices if value in (choice, parse_value(str(choice))))
        return next(equal, None)
    assert isinstance(space, IntDistribution | FloatDistribution)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and space.low <= value <= space.high else None


class Search:
    """Hyperparameter search in a folder; its Optuna study in ``study.db`` makes it resumable.

    With ``storage`` a database server holds the study, and processes on several machines share the search,
    each with a folder of its own.

    Args:
        plan: the search plan.
        say: prints a line.

    Raises:
        UserError: if the folder holds another or a running search or cannot be written, or the storage cannot
            be opened.
    """

    def __init__(self, plan: SearchPlan, say: Callable[[str], None]) -> None:
        self.plan, self.say, self.out, self.failures = plan, say, Path(plan.out), 0
        config = plan.settings.model_dump()
        self.current_values = {key: find(config, key_of(new_word(key))) for key in plan.space}
        components = {"sampler": make_builder(plan.sampler)(), "pruner": make_builder(plan.pruner)()}
        self.new_folders = [folder for folder in (self.out, *self.out.parents) if not folder.exists()]
        self.lock = RunLock()
        try:
            self.lock.acquire(self.out)
        except UserError as error:
            advice = " Give each process of a search its own out=DIR." if plan.storage else ""
            raise UserError(f"{error}{advice}") from None
        self.process = search_storage.process_id(self.out) if plan.storage else None
        self.heartbeats: dict[int, float] = {}  # time of the last heartbeat by trial
        try:
            self.storage = search_storage.open_storage(plan.storage, self.out, self.requeue)
            self.study, is_new = self.open_study(**components)
            self.check_same_search()
        except UserError:
            self.close()
            self.remove_folder()
            raise
        for trial in self.running_trials:  # as the last process left them
            if trial.user_attrs.get("process") == self.process:
                self.requeue(self.study, trial)
                self.study.tell(trial.number, state=TrialState.FAIL)
        first = [trial for trial in self.study.trials if trial.number == 0 or trial.user_attrs.get("present")]
        if (is_new or first) and all(trial.state == TrialState.FAIL for trial in first):
            self.study.enqueue_trial(self.current_params(), {"present": True})

    def close(self) -> None:
        """Releases the folder's lock."""
        self.lock.release()

    def open_study(self, **options: Any) -> tuple[optuna.Study, bool]:
        """The Optuna study, and whether this process created it."""
        options |= {"study_name": self.plan.study if self.process else "search", "storage": self.storage}
        try:
            return optuna.create_study(direction="maximize", **options), True
        except DuplicatedStudyError:
            return optuna.load_study(**options), not self.process

    def check_same_search(self) -> None:
        """Checks that the folder's search has the same overrides, ranges, seeds and objective.

        Raises:
            UserError: naming the difference.
        """
        plan = self.plan
        now = [*plan.overrides, *plan.ranges, f"seeds={','.join(map(str, plan.seeds))}"]
        now += [f"maximise={plan.maximise}"] * (plan.maximise != DEFAULT_METRIC)
        then = [*map(new_word, self.study.user_attrs.get("words", now))]
        if set(then) != set(now):
            key = f"study={plan.study}" if plan.storage else f"out={self.out}"
            other = "study=NAME" if plan.storage else "out=DIR"
            raise UserError(
                f"{key}: another search, with {difference(now, then)} where this one has "
                f"{difference(then, now)}. Use the same arguments, or {other} for a new search."
            )
        self.study.set_user_attr("words", now)

    def requeue(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Enqueues a trial again whose process ended while it ran."""
        if trial.params:
            study.enqueue_trial(trial.params, {**trial.user_attrs, "folder": self.folder(trial).name})

    def current_params(self) -> dict[str, Any]:
        """The current hyperparameters; the first trial samples those outside their range, with a message."""
        params = {key: as_choice(space, self.current_values[key]) for key, space in self.plan.space.items()}
        ranges = dict(zip(self.plan.space, self.plan.ranges, strict=True))
        for key in [key for key, value in params.items() if value is None]:
            del params[key]
            current = show(self.current_values[key])
            self.say(f"the first trial samples {new_word(key)}: {current} is outside {ranges[key]}")
        return params

    def run(self) -> None:
        """Runs the missing trials, ``jobs`` at a time.

        Raises:
            UserError: for a mistake that only a run could find.
            RunError: after ``MAX_FAILURES`` failed trials in a row.
        """
        try:
            with ProcessPool(self.plan.jobs) as pool:
                while self.needs_trials():  # and once more for each that has failed
                    run_concurrently(self.trials(pool), self.plan.jobs)
        except UserError:
            if self.new_folders and not self.best:  # nothing in it helps a corrected search
                if {trial.user_attrs.get("process") for trial in self.study.trials} <= {self.process, None}:
                    optuna.delete_study(study_name=self.study.study_name, storage=self.storage)
                self.remove_folder()
            raise

    def remove_folder(self) -> None:
        """Removes the search's folder and its parents that this search created."""
        if self.new_folders:
            shutil.rmtree(self.out)
        for folder in self.new_folders[1:]:
            with suppress(OSError):  # somebody has put something there
                folder.rmdir()

    def trials(self, pool: ProcessPool) -> Iterator[Iterator[None]]:
        """Samples trials until there are enough."""
        while self.needs_trials():
            with search_storage.without_warnings():
                trial = self.study.ask(self.plan.space)
            yield self.evaluate(trial, pool)

    def needs_trials(self) -> bool:
        """Whether trials are missing; stale ones do not count."""
        search_storage.fail_stale(self.study)
        return self.trial_count < self.plan.trials

    @property
    def running_trials(self) -> list[FrozenTrial]:
        """Running trials of all processes."""
        return self.study.get_trials(states=(TrialState.RUNNING,))

    @property
    def trial_count(self) -> int:
        """Complete, pruned and running trials; failed ones are repeated."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        return len(self.study.get_trials(deepcopy=False, states=states))

    @property
    def best(self) -> FrozenTrial | None:
        """The best complete trial."""
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return self.study.best_trial if complete else None

    def format_value(self, trial: FrozenTrial) -> str:
        """A trial's value as text."""
        return f"{trial.value:,.1f}" if self.plan.maximise == DEFAULT_METRIC else short(trial.value)

    def folder(self, trial: Trial | FrozenTrial) -> Path:
        """Folder of a trial's runs; a requeued trial keeps its first folder."""
        name = str(trial.user_attrs.get("folder"))
        return self.out / (name if re.fullmatch(r"trial-\d+", name) else f"trial-{trial.number:04}")

    def location(self, trial: FrozenTrial) -> str:
        """Folder of a trial, with the machine if it is another one."""
        process = trial.user_attrs.get("process", self.process)
        return str(self.folder(trial)) if process == self.process else f"{process}/{self.folder(trial).name}"

    def as_overrides(self, trial: Trial | FrozenTrial) -> list[str]:
        """A trial's hyperparameters as overrides, floats with four digits."""
        params = {key: trial.params[key] for key in self.plan.space}
        for key, space in self.plan.space.items():
            if isinstance(space, FloatDistribution) and params[key] != self.current_values[key]:
                params[key] = float(f"{params[key]:.4g}")
        return [new_word(f"{key}={value}") for key, value in params.items()]

    def command(self, trial: FrozenTrial) -> str:
        """Command that trains with a trial's hyperparameters."""
        overrides = [*self.plan.overrides, *self.as_overrides(trial)]
        if key_of(FULL_LENGTH) not in map(key_of, overrides):
            overrides.append(FULL_LENGTH)
        return localize_commands(shlex.join(["python", "train.py", *overrides]))

    def evaluate(self, trial: Trial, pool: ProcessPool) -> Iterator[None]:
        """Runs one seed after another; reports the mean over the seeds so far at each evaluation.

        Each step polls the run once; the last one ends the trial.
        """
        if self.process:
            trial.set_user_attr("process", self.process)
            self.send_heartbeat(trial)
        scores: list[float] = []
        reported, is_pruned = 0, False
        for seed in self.plan.seeds:
            overrides = [FULL_LENGTH, *self.plan.overrides, *self.as_overrides(trial), f"seed={seed}"]
            run = pool.start([*overrides, "resume=auto"], self.folder(trial) / f"seed{seed}")
            has_ended = False
            while not has_ended:
                self.send_heartbeat(trial)
                yield
                has_ended = run.code is not None  # polled first, so that its last evaluation is reported too
                reported, should_prune = self.report(trial, run.folder, scores, reported)
                is_pruned = is_pruned or should_prune
                if is_pruned:
                    run.stop()
            if run.code == 0:
                scores.append(self.score(summary(run.folder)))
            if is_pruned or run.code == 3 or not all(map(math.isfinite, scores)):
                return self.finish_trial(trial, run, TrialState.PRUNED)
            if run.code != 0:
                return self.finish_trial(trial, run, TrialState.FAIL)
        self.finish_trial(trial, run, TrialState.COMPLETE, sum(scores) / len(scores))

    def report(self, trial: Trial, folder: Path, scores: list[float], reported: int) -> tuple[int, bool]:
        """Reports a run's evaluations after the step ``reported``, averaged with the scores of earlier seeds.

        Steps count evaluations: their frames depend on the batch size.

        Returns:
            the last step, and whether the trial should be pruned.
        """
        settings = self.plan.settings
        every = settings.eval.every_frames
        per_run = max(1, settings.batches * settings.frames_per_batch // every)
        should_prune = False
        for frames, _, score in runs.read_evaluations(folder, self.plan.maximise):
            step = len(scores) * per_run + min(int(frames // every), per_run)
            if step > reported:
                reported = step
                with suppress(UpdateFinishedTrialError):  # another process declared it stale
                    trial.report((sum(scores) + score) / (len(scores) + 1), step)
                should_prune = should_prune or trial.should_prune()
        return reported, should_prune

    def send_heartbeat(self, trial: Trial) -> None:
        """Records a heartbeat every ``HEARTBEAT_SECONDS``, for other machines."""
        now = time.monotonic()
        if (
            self.process
            and now - self.heartbeats.get(trial.number, -math.inf) > search_storage.HEARTBEAT_SECONDS
        ):
            self.heartbeats[trial.number] = now
            self.storage.record_heartbeat(trial._trial_id)

    def score(self, result: dict[str, Any]) -> float:
        """The metric of a run's summary that the search maximises.

        Raises:
            UserError: if the summary does not have it.
        """
        if not isinstance(score := result.get(self.plan.maximise), int | float):
            numbers = (key for key, value in result.items() if isinstance(value, int | float))
            metrics = ", ".join(key for key in numbers if key.startswith("eval/"))
            advice = f"Use one of {metrics}" if metrics else "It has no evaluation in summary.json"
            raise UserError(f"maximise={self.plan.maximise}: the run has no such metric. {advice}.")
        return score

    def finish_trial(
        self, trial: Trial, last: TrainingProcess, state: TrialState, score: float | None = None
    ) -> None:
        """Records and prints a trial's result; deletes checkpoints of all but the best trial."""
        if last.code == 2:
            raise UserError(last.error)
        previous, ended = self.best, self.study.tell(trial, score, state, skip_if_finished=True)
        for candidate in (previous, ended):
            if candidate and (not self.best or candidate.params != self.best.params):
                for checkpoints in self.folder(candidate).glob("*/checkpoints"):
                    shutil.rmtree(checkpoints, ignore_errors=True)
        if state == TrialState.FAIL:
            note = f"failed: {last.error}; see {last.log}"
        elif ended.state != state:
            note = f"repeated by another process: no heartbeat for {search_storage.STALE_SECONDS} seconds"
        elif last.code == 3:
            note = "diverged"
        else:
            note = self.format_value(ended) + ", pruned" * (state == TrialState.PRUNED)
        params = (re.sub(r"^[^=]*\.", "", override) for override in self.as_overrides(ended))
        self.say(f"#{ended.number}  {note}  {' '.join(params)}")
        self.failures = self.failures + 1 if state == TrialState.FAIL else 0
        if self.failures == MAX_FAILURES:
            raise RunError(f"{MAX_FAILURES} trials in a row failed; see {last.log}")

    def save_best(self, best_trial: FrozenTrial) -> list[Path]:
        """Writes the best hyperparameters as a file for ``configs/experiment``, and Optuna's plots."""
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as plots

        files = [self.out / f"{name}.png" for name in PLOTS]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plots are experimental, and warn of few trials
            for file in files:
                getattr(plots, f"plot_{file.stem}")(self.study)
                panels = pyplot.gcf().axes
                pyplot.gcf().set_size_inches(4 * max(2, len(panels)), 4)
                for axes in panels:  # minor labels of logarithmic axes overlap
                    axes.tick_params("x", which="minor", labelbottom=False)
                pyplot.savefig(file, dpi=100, bbox_inches="tight")
                pyplot.close()
        header = f"# @package _global_\n# {self.format_value(best_trial)} by {self.command(best_trial)}\n"
        params = OmegaConf.from_dotlist([override.lstrip("+") for override in self.as_overrides(best_trial)])
        experiment_file = self.out / "experiment.yaml"
        experiment_file.write_text(header + OmegaConf.to_yaml(params), encoding="utf-8")
        return [experiment_file, *files]


def difference(others: Sequence[str], overrides: Sequence[str]) -> str:
    """The overrides that are not in ``others``, as a shell line."""
    return shlex.join(override for override in overrides if override not in others) or "nothing"
