"""A search for better numbers: Optuna draws them, runs of ``train.py`` try them, bad ones are cut short."""

import fcntl
import math
import shlex
import shutil
import warnings
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, Trial, TrialState

from hydrl.config import CONFIGS
from hydrl.config.mistakes import find
from hydrl.config.overrides import key_of
from hydrl.config.settings import Role, builder, keys
from hydrl.errors import RunError, UserError
from hydrl.run.files import atomically
from hydrl.run.folder import lock
from hydrl.study import runs
from hydrl.study.pool import Training, Trainings
from hydrl.study.space import Plan, as_typed, holds, parse

SAME_LENGTH = "eval.stop_when_solved=false"  # for all runs, unless typed otherwise
FAILURES = 3  # in a row, after which the next would fail too

# A trial in hand: each step looks at its run once; it returns the trial, its end, its score and the last run.
Evaluation = Generator[None, None, tuple[Trial, TrialState, float | None, Training]]


def open_study(plan: Plan) -> optuna.Study:
    """The search's study in its folder, with the present numbers as its first trial.

    Raises:
        UserError: if the folder holds another search or one that is running, or cannot be written.
    """
    try:
        lock(plan.out)
    except OSError as error:
        raise UserError(f"out={plan.out} cannot be written: {error.strerror}") from None
    storage = optuna.storages.RDBStorage(f"sqlite:///{plan.out / 'study.db'}")
    create = partial(
        optuna.create_study, storage=storage, study_name="search", load_if_exists=True, direction="maximize"
    )
    study = create()
    failed = study.get_trials(states=(TrialState.FAIL,))
    if failed and not count(study):  # what was refused, as a wrong range is, may be put right
        optuna.delete_study(study_name="search", storage=storage)
        for folder in plan.out.glob("trial-[0-9]*"):
            shutil.rmtree(folder)
        study = create()
    words = [*plan.overrides, *plan.ranges, f"seeds={','.join(map(str, plan.search.seeds))}"]
    now = {key_of(word): word for word in words}
    then = study.user_attrs.get("words", now)
    for key in {**then, **now}:
        if (old := then.get(key, f"no {key}")) != (new := now.get(key, f"no {key}")):
            raise UserError(
                f"out={plan.out} holds a search with {old}, and this one has {new}; "
                "go on with it as it was, or give this one another folder, as out=DIR"
            )
    study.set_user_attr("words", now)
    sampler = dict(plan.search.sampler)
    if "seed" in sampler:  # with the same, a search that goes on would draw its first trials again
        sampler["seed"] += len(study.trials)
    study.sampler, study.pruner = optunas(sampler, "samplers"), optunas(plan.search.pruner, "pruners")
    if not study.trials:
        values = plan.settings.model_dump()
        present = {key: find(values, key_of(key)) for key in plan.space}
        study.enqueue_trial({key: each for key, each in present.items() if holds(plan.space[key], each)})
    return study


def optunas(part: dict[str, Any], package: str) -> Any:
    """A sampler or pruner of Optuna's, as ``configs/search`` names it.

    Raises:
        UserError: for anything else.
    """
    if not part["_target_"].startswith(f"optuna.{package}."):
        raise UserError(f"_target_={part['_target_']}: should be in optuna.{package}")
    try:
        return builder(part)()
    except (TypeError, ValueError) as error:
        raise UserError(f"{part['_target_']}: {' '.join(str(error).split())}") from None


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
    go_on(plan, study)
    failures = 0
    in_hand: dict[Path, Evaluation] = {}  # by the trial's folder
    with Trainings(plan.search.jobs) as pool:
        while in_hand or count(study) < plan.search.trials:
            while pool.room and count(study) < plan.search.trials:
                trial = study.ask(dict(plan.space))
                in_hand[trial_folder(plan, trial)] = evaluation = evaluate(trial, plan, pool)
                next(evaluation)  # starts its first run
            pool.wait()
            for folder, evaluation in list(in_hand.items()):
                try:
                    next(evaluation)
                except StopIteration as end:
                    del in_hand[folder]
                    trial, state, score, last = end.value
                    say(tell(study, trial, state, score, last))
                    keep_best(plan, study, in_hand)
                    if last.code == 2:
                        raise UserError(last.error) from None
                    failures = failures + 1 if state == TrialState.FAIL else 0
                    if failures == FAILURES:
                        raise RunError(f"{FAILURES} trials in a row failed; see {last.log}") from None


def go_on(plan: Plan, study: optuna.Study) -> None:
    """Puts the trials of a search that ended midway first in line, in the folders they have."""
    for each in study.get_trials(states=[TrialState.RUNNING]):
        for lock_file in trial_folder(plan, each).glob("*/.lock"):
            with lock_file.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # its run saves and ends
        study.tell(each.number, state=TrialState.FAIL)
        if each.params.keys() == plan.space.keys():  # else it was killed as it was drawn
            study.enqueue_trial(each.params, {"folder": trial_folder(plan, each).name})


def count(study: optuna.Study) -> int:
    """Trials that count and those in hand; a failed one is made up for."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    return len(study.get_trials(deepcopy=False, states=states))


def best(study: optuna.Study) -> FrozenTrial | None:
    """The best whole trial."""
    found = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return study.best_trial if found else None


def trial_folder(plan: Plan, trial: Trial | FrozenTrial) -> Path:
    """Where the runs of a trial lie; one that goes on has a new number and the folder it had."""
    return plan.out / trial.user_attrs.get("folder", f"trial-{trial.number:04}")


def evaluate(trial: Trial, plan: Plan, pool: Trainings) -> Evaluation:
    """One run after the other, a seed each; evaluations are reported as the mean over the seeds so far."""
    overrides = [f"{key}={as_typed(each, trial.params[key])}" for key, each in plan.space.items()]
    trial.set_user_attr("overrides", overrides)
    every = plan.settings.eval.every_frames
    in_a_run = max(1, plan.settings.batches * plan.settings.frames_per_batch // every)
    scores: list[float] = []
    reported, pruned = 0, False
    for seed in plan.search.seeds:
        folder = trial_folder(plan, trial) / f"seed{seed}"
        run = pool.start([SAME_LENGTH, *plan.overrides, *overrides, f"seed={seed}", "resume=auto"], folder)
        ended = False
        while not ended:
            yield
            ended = run.code is not None  # asked first: what it wrote last is reported too
            for frames, score in runs.evaluations(folder):
                # Evaluations are counted: their frames differ where the size of a batch does.
                step = len(scores) * in_a_run + min(int(frames // every), in_a_run)
                if step > reported:
                    reported = step
                    trial.report((sum(scores) + score) / (len(scores) + 1), step)
                    pruned = pruned or trial.should_prune()
            if pruned:
                run.stop()
        if run.code == 0:
            scores.append(runs.summary(folder)["eval/return_mean"])
        if pruned or run.code == 3 or not all(map(math.isfinite, scores)):
            return trial, TrialState.PRUNED, None, run
        if run.code != 0:
            return trial, TrialState.FAIL, None, run
    return trial, TrialState.COMPLETE, sum(scores) / len(scores), run


def tell(study: optuna.Study, trial: Trial, state: TrialState, score: float | None, last: Training) -> str:
    """Closes a trial; the line that says what came of it."""
    told = study.tell(trial, score, state)
    if state == TrialState.FAIL:
        note = f"failed: {last.error}; see {last.log}"
    elif last.code == 3:
        note = "diverged"
    else:
        note = f"{told.value:,.1f}" + ", cut short" * (state == TrialState.PRUNED)
    top = best(study)
    so_far = f"  (best {top.value:,.1f}, #{top.number})" if top else ""
    drawn = (word.partition("=") for word in told.user_attrs["overrides"])
    short = (f"{key.rpartition('.')[2]}={value}" for key, _, value in drawn)
    return f"#{trial.number}  {note}  {' '.join(short)}{so_far}"


def keep_best(plan: Plan, study: optuna.Study, in_hand: Iterable[Path]) -> None:
    """Only the best trial keeps its checkpoints: the replay memories of all would fill a disk."""
    top = best(study)
    kept = {*in_hand, trial_folder(plan, top) if top else None}
    for folder in plan.out.glob("trial-*/*/checkpoints"):
        if folder.parent.parent not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def command(plan: Plan, top: FrozenTrial) -> list[str]:
    """The best overrides as a command line."""
    return ["python", "train.py", *plan.overrides, *top.user_attrs["overrides"]]


def save_tuned(plan: Plan, top: FrozenTrial) -> tuple[Path, list[str]]:
    """Writes ``tuned.yaml``: the tuned numbers there were, what was typed and the best of what was drawn.

    Returns:
        the file, and the words that no tuned file can say, which go beside it on the command line.
    """
    source = CONFIGS / "tuned" / f"{plan.tuned}.yaml"
    tuned = OmegaConf.load(source) if source.is_file() else OmegaConf.create()
    beside = []
    for word in command(plan, top)[2:]:
        key = key_of(word)
        of_one_run = key.partition(".")[0] in keys(Role.PROCESS, Role.RECORD, Role.MACHINE)
        if word.startswith("~") or of_one_run or (CONFIGS / key).is_dir():
            beside += [word] if key not in ("algo", "env", "tuned") else []
        else:
            OmegaConf.update(tuned, key, parse(word).value(), force_add=True)
    header = f"""# @package _global_
# Found by: {shlex.join(["python", "scripts/search.py", *plan.typed])}
# {top.value:,.1f} is the mean closing evaluation of seeds {", ".join(map(str, plan.search.seeds))}, with
# {shlex.join([SAME_LENGTH, *beside])}
"""
    path = plan.out / "tuned.yaml"
    with atomically(path) as partial_path:
        partial_path.write_text(header + OmegaConf.to_yaml(tuned))
    return path, beside


def save_pictures(study: optuna.Study, out: Path) -> list[Path]:
    """Draws Optuna's own plots into the search's folder, as PNG files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    drawn: dict[str, Callable[[], Any]] = {
        "history": partial(plots.plot_optimization_history, study),
        "slice": partial(plots.plot_slice, study),
        "importances": partial(plots.plot_param_importances, study, evaluator=PedAnovaImportanceEvaluator()),
    }
    with warnings.catch_warnings(), matplotlib.rc_context({"figure.figsize": (8, 4)}):  # 4 for each slice
        warnings.simplefilter("ignore")  # the plots are experimental, and say where trials are few
        for name, draw in drawn.items():
            draw()
            pyplot.savefig(out / f"{name}.png", dpi=100, bbox_inches="tight")
            pyplot.close()
    return [out / f"{name}.png" for name in drawn]
