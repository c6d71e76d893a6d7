"""A search for better numbers: Optuna draws them, runs of ``train.py`` try them, bad ones are cut short."""

import fcntl
import math
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from hydrl.config.mistakes import find
from hydrl.config.overrides import key_of
from hydrl.config.settings import builder
from hydrl.errors import RunError, UserError
from hydrl.run.folder import lock
from hydrl.study import runs
from hydrl.study.pool import Training, Trainings
from hydrl.study.space import Plan, as_typed, holds

SAME_LENGTH = "eval.stop_when_solved=false"  # for all runs, unless typed otherwise
FAILURES = 3  # in a row, after which the next would fail too

# A trial in hand: each step looks at its run once; it returns its end, its score and the last run.
Evaluation = Generator[None, None, tuple[TrialState, float | None, Training]]


def open_study(plan: Plan) -> optuna.Study:
    """The search's study in its folder, with the present numbers as its first trial.

    Raises:
        UserError: if the folder holds another search or one that is running, or cannot be read or written.
    """
    lock(plan.out)
    url = f"sqlite:///{plan.out / 'study.db'}"
    create = partial(optuna.create_study, study_name="search", storage=url, direction="maximize")
    try:
        study = create(load_if_exists=True)
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{plan.out / 'study.db'} cannot be read ({reason}); name another folder") from None
    if study.trials and not count(study):  # all were refused or failed, as for a wrong range
        optuna.delete_study(study_name="search", storage=url)
        for folder in plan.out.glob("trial-[0-9]*"):
            shutil.rmtree(folder)
        study = create()
    now = [*plan.overrides, *plan.ranges, f"seeds={','.join(map(str, plan.search.seeds))}"]
    then = study.user_attrs.get("words", now)
    if set(then) != set(now):
        raise UserError(
            f"out={plan.out} holds another search, {shlex.join(then)}; "
            "go on with it as it was, or give this one another folder, as out=DIR"
        )
    study.set_user_attr("words", now)
    sampler = dict(plan.search.sampler)
    if "seed" in sampler:  # with the same, a search that goes on would draw its first trials again
        sampler["seed"] += len(study.trials)
    study.sampler, study.pruner = builder(sampler)(), builder(plan.search.pruner)()
    if not study.trials:
        values = plan.settings.model_dump()
        present = {key: find(values, key_of(key)) for key in plan.space}
        study.enqueue_trial({key: each for key, each in present.items() if holds(plan.space[key], each)})
    return study


def run(plan: Plan, study: optuna.Study, say: Callable[[str], None]) -> None:
    """Makes the trials that are still to be made; ``study.db`` has what came of each, so that it can go on.

    Args:
        plan: the search's.
        study: from :func:`open_study`.
        say: takes a line for the screen.

    Raises:
        UserError: for a mistake that only a run could find.
        RunError: where nothing but failures comes of it.
    """
    midway, failures = left_midway(plan, study), 0
    in_hand: dict[Trial, Evaluation] = {}
    with Trainings(plan.search.jobs) as pool:
        while in_hand or midway or count(study) < plan.search.trials:
            while pool.room and (midway or count(study) < plan.search.trials):
                trial = midway.pop(0) if midway else study.ask(plan.space)
                in_hand[trial] = evaluation = evaluate(trial, plan, pool)
                next(evaluation)  # starts its first run
            pool.wait()
            for trial, evaluation in list(in_hand.items()):
                try:
                    next(evaluation)
                except StopIteration as end:
                    del in_hand[trial]
                    state, score, last = end.value
                    told = study.tell(trial, score, state)
                    say(line(plan, told, last))
                    keep(plan, [*in_hand, best(study)])
                    if last.code == 2:
                        for each in in_hand:  # they are of no use, and the mistake may be put right
                            study.tell(each, state=TrialState.FAIL)
                        raise UserError(last.error) from None
                    failures = failures + 1 if state == TrialState.FAIL else 0
                    if failures == FAILURES:
                        raise RunError(f"{FAILURES} trials in a row failed; see {last.log}") from None


def left_midway(plan: Plan, study: optuna.Study) -> list[Trial]:
    """The trials of a search that ended before they did, once their runs have saved and ended."""
    found = []
    for each in study.get_trials(states=(TrialState.RUNNING,)):
        for lock_file in folder(plan, each).glob("*/.lock"):
            with lock_file.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        if each.params.keys() == plan.space.keys():
            found.append(Trial(study, each._trial_id))
        else:  # it was killed as it was drawn
            study.tell(each.number, state=TrialState.FAIL)
    return found


def count(study: optuna.Study) -> int:
    """Trials that count and those in hand; a failed one is made up for."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    return len(study.get_trials(deepcopy=False, states=states))


def best(study: optuna.Study) -> FrozenTrial | None:
    """The best whole trial."""
    return study.best_trial if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) else None


def folder(plan: Plan, trial: Trial | FrozenTrial) -> Path:
    """Where the runs of a trial lie."""
    return plan.out / f"trial-{trial.number:04}"


def drawn(plan: Plan, trial: Trial | FrozenTrial) -> list[str]:
    """What was drawn for a trial, as overrides."""
    return [f"{key}={as_typed(each, trial.params[key])}" for key, each in plan.space.items()]


def command(plan: Plan, trial: FrozenTrial) -> str:
    """What trains with the numbers of a trial."""
    return shlex.join(["python", "train.py", *plan.overrides, *drawn(plan, trial)])


def evaluate(trial: Trial, plan: Plan, pool: Trainings) -> Evaluation:
    """One run after the other, a seed each; evaluations are reported as the mean over the seeds so far."""
    every = plan.settings.eval.every_frames
    in_a_run = max(1, plan.settings.batches * plan.settings.frames_per_batch // every)
    scores: list[float] = []
    reported, pruned = max(trial.study.trials[trial.number].intermediate_values, default=0), False
    for seed in plan.search.seeds:
        words = [SAME_LENGTH, *plan.overrides, *drawn(plan, trial), f"seed={seed}", "resume=auto"]
        run, ended = pool.start(words, folder(plan, trial) / f"seed{seed}"), False
        while not ended:
            yield
            ended = run.code is not None  # asked first: what it wrote last is reported too
            for frames, score in runs.evaluations(run.folder):
                # Evaluations are counted: their frames differ where the size of a batch does.
                step = len(scores) * in_a_run + min(int(frames // every), in_a_run)
                if step > reported:
                    reported = step
                    trial.report((sum(scores) + score) / (len(scores) + 1), step)
                    pruned = pruned or trial.should_prune()
            if pruned:
                run.stop()
        if run.code == 0:
            scores.append(runs.summary(run.folder)["eval/return_mean"])
        if pruned or run.code == 3 or not all(map(math.isfinite, scores)):
            return TrialState.PRUNED, None, run
        if run.code != 0:
            return TrialState.FAIL, None, run
    return TrialState.COMPLETE, sum(scores) / len(scores), run


def line(plan: Plan, told: FrozenTrial, last: Training) -> str:
    """What came of a trial."""
    if told.state == TrialState.FAIL:
        note = f"failed: {last.error}; see {last.log}"
    elif last.code == 3:
        note = "diverged"
    else:
        note = f"{told.value:,.1f}" + ", cut short" * (told.state == TrialState.PRUNED)
    short = (re.sub(r"^[^=]*\.", "", each) for each in drawn(plan, told))
    return f"#{told.number}  {note}  {' '.join(short)}"


def keep(plan: Plan, trials: Iterable[Trial | FrozenTrial | None]) -> None:
    """Only these trials keep their checkpoints: the replay memories of all would fill a disk."""
    kept = {folder(plan, each) for each in trials if each}
    for each in plan.out.glob("trial-*/*/checkpoints"):
        if each.parent.parent not in kept:
            shutil.rmtree(each, ignore_errors=True)


def save(plan: Plan, study: optuna.Study, top: FrozenTrial) -> list[Path]:
    """Writes the best numbers, as a file for ``configs/experiment``, and draws Optuna's own plots."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    files = [plan.out / f"{name}.png" for name in ("optimization_history", "slice", "param_importances")]
    look: dict[Any, Any] = {"figure.figsize": (8, 4), "xtick.labelsize": 8}  # 4 for each slice
    with warnings.catch_warnings(), matplotlib.rc_context(look):
        warnings.simplefilter("ignore")  # the plots are experimental, and say where trials are few
        for file in files:
            getattr(plots, f"plot_{file.stem}")(study)
            for axes in pyplot.gcf().axes:  # logarithmic ones label so many ticks that they would touch
                axes.tick_params("x", which="minor", labelrotation=90, labelsize=6)
            pyplot.savefig(file, dpi=100, bbox_inches="tight")
            pyplot.close()
    header = f"# @package _global_\n# {top.value:,.1f} by {command(plan, top)} {SAME_LENGTH}\n"
    numbers = OmegaConf.from_dotlist([each.lstrip("+") for each in drawn(plan, top)])
    experiment = plan.out / "experiment.yaml"
    experiment.write_text(header + OmegaConf.to_yaml(numbers))
    return [experiment, *files]
