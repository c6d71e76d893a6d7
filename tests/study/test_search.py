"""Searches: what they draw from, what they refuse, and small ones that really run."""

import fcntl
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from conftest import settings, start
from hydra import compose, initialize_config_dir
from matplotlib import image
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from hydrl.config import CONFIGS, command_line
from hydrl.config.mistakes import find
from hydrl.config.settings import load
from hydrl.errors import RunError, UserError
from hydrl.study import space
from hydrl.study.search import Attempt, Search, command, save_tuned
from hydrl.study.search_figure import importances, save_picture

optuna.logging.set_verbosity(optuna.logging.WARNING)
SCRIPT = "scripts/search.py"
FILES = sorted((CONFIGS / "search").glob("*.yaml"))
TASKS = {"ppo": "cartpole", "dqn": "cartpole", "sac": "pendulum"}
TINY = ["algo=dqn", "env=cartpole", "total_frames=512", "eval.every_frames=256", "eval.episodes=2"]
TINY += ["eval.final_episodes=2", "minibatches.warmup_frames=128", "actor.num_cells=[16]"]
# Everything that configs/search/dqn.yaml draws stays as it is.
ALONE = [f"~{key}" for key in OmegaConf.load(CONFIGS / "search/dqn.yaml").space]


# What is drawn


@pytest.mark.parametrize(
    ("word", "present", "found"),
    [
        ("optim.lr=interval(1e-4,1e-2)", 3e-4, FloatDistribution(1e-4, 1e-2)),
        ("optim.lr=interval(0,1)", 3e-4, FloatDistribution(0.0, 1.0)),
        ("optim.lr=tag(log,interval(1e-4,1e-2))", 3e-4, FloatDistribution(1e-4, 1e-2, log=True)),
        ("minibatches.epochs=interval(4,20)", 10, IntDistribution(4, 20)),
        ("minibatches.epochs=tag(log,interval(4,20))", 10, IntDistribution(4, 20, log=True)),
        ("+env.n=int(interval(4,20))", None, IntDistribution(4, 20)),
        ("minibatches.epochs=range(4,20,8)", 10, IntDistribution(4, 12, step=8)),  # as in a sweep, without 20
        ("minibatches.epochs=range(4)", 10, IntDistribution(0, 3)),
        ("optim.eps=range(0.25,1,0.25)", 0.1, FloatDistribution(0.25, 0.75, step=0.25)),
        ("minibatches.size=choice(64,128)", 64, CategoricalDistribution([64, 128])),
        ("minibatches.size=64,128", 64, CategoricalDistribution([64, 128])),
        ("optim.fused=choice(true,false)", True, CategoricalDistribution([True, False])),
        ("actor.num_cells=choice([64,64],[256])", [64], CategoricalDistribution(["[64,64]", "[256]"])),
    ],
)
def test_each_form_of_a_range(word: str, present: Any, found: Any):
    assert space.distribution(space.parse(word), present) == found


def test_values_are_typed_as_train_py_reads_them():
    log = FloatDistribution(1e-6, 0.9995, log=True)
    assert space.draw(log, 0.00001234567) == "1.235e-05"
    assert space.draw(log, 0.99949999) == "0.9995"  # rounded, and never beyond the end
    assert space.draw(FloatDistribution(0.12344, 1.0), 0.12344) == "0.12344"
    assert space.draw(CategoricalDistribution([True, False]), False) == "false"
    assert space.draw(IntDistribution(1, 9), 4) == "4"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_search_file_can_be_searched(file: Path):
    plan = space.read([f"algo={file.stem}", f"env={TASKS[file.stem]}"])  # tries the ends of each range
    declared = OmegaConf.load(file)
    assert list(plan.space) == list(declared.space)
    assert (plan.trials, plan.seeds, plan.jobs) == (declared.trials, declared.seeds, 2)
    assert plan.out == Path(f"outputs/searches/{file.stem}-{TASKS[file.stem]}")
    assert isinstance(space.optunas(plan.sampler, "samplers"), optuna.samplers.TPESampler)
    assert isinstance(space.optunas(plan.pruner, "pruners"), optuna.pruners.MedianPruner)
    for key, each in plan.space.items():
        value = space.ends(each)[0]
        taken = find(settings(*plan.overrides, f"{key}={space.draw(each, value)}").model_dump(), key)
        assert (taken, type(taken)) == (value, type(value))


def test_the_command_line_changes_adds_fixes_and_leaves_out():
    words = ["optim.lr=interval(1e-3,2e-3)", "loss.value_estimator.gamma=0.9", "~minibatches.size"]
    words += ["optim.eps=choice(1e-8,1e-5)", "seeds=range(4,6)", "trials=7", "jobs=1", "out=here"]
    plan = space.read(["algo=dqn", "env=cartpole", *words])
    assert plan.space["optim.lr"] == FloatDistribution(1e-3, 2e-3)
    assert plan.space["optim.eps"] == CategoricalDistribution([1e-8, 1e-5])
    assert not {"loss.value_estimator.gamma", "minibatches.size"} & plan.space.keys()
    assert plan.overrides == ["algo=dqn", "env=cartpole", "loss.value_estimator.gamma=0.9"]
    assert (plan.seeds, plan.trials, plan.jobs, plan.out) == ([4, 5], 7, 1, Path("here"))


# What is refused


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("trial=4", r"trial=4: there is no such key; did you mean trials\?"),
        ("trials=many", "trials=many: should be a whole number, at least 1"),
        ("jobs=0", "jobs=0: should be a whole number, at least 1"),
        ("seeds=0,0", "seeds=0,0: should be different whole numbers"),
        ("seeds=0.5", "seeds=0.5: should be different whole numbers"),
        ("search=dqm", "search=dqm: no such choice; try dqn, ppo, sac"),
        ("algo=dqm", "algo=dqm: no such choice; try dqn"),
        ("seed=3", "seed=3: the search says this for each run; its own keys are search, trials, seeds"),
        ("hydra.run.dir=x", "hydra.run.dir=x: the search says this for each run"),
        ("-m", "-m: a search has no options"),
        ("optim.lrr=1", r"optim.lrr=1: there is no such key; did you mean optim.lr\?"),
        ("optim.lrr=interval(1,2)", r"optim.lrr=1.0: there is no such key; did you mean optim.lr\?"),
        ("optim.lr=interval(-1,1)", "^optim.lr=-1.0: should be greater than 0"),
        ("minibatches.size=choice(64,10_000_000)", "minibatches.size=10000000 is more than buffer.storage"),
        ("optim.lr=interval(1,0)", "optim.lr=interval"),
        ("optim.lr=tag(log,interval(0,1))", "optim.lr=tag"),
        ("optim.lr=range(3,3)", "optim.lr=range"),
        ("optim.lr=interval(1", "cannot read optim.lr=interval"),
        ("actor=q_value,dueling", "actor=q_value,dueling: actor is a choice, and a tuned file sets only"),
        ("total_frames=range(1,9)", "total_frames=range.*: total_frames has to be the same in all trials"),
        ("~exploration", "configs/search/dqn.yaml: exploration.eps_end=.*; '~exploration.eps_end' takes"),
        ("experiment=dqn_intro", "experiment=dqn_intro: its numbers win over those of a tuned file"),
        ("+env.api_token=abc", r"env.api_token=\*\*\*: a search writes what was typed to files"),
        (" ".join(ALONE), "nothing is left to draw"),
    ],
)
def test_what_a_search_refuses_is_a_line(words: str, answer: str):
    with pytest.raises(UserError, match=answer) as error:
        space.read(["algo=dqn", "env=cartpole", *words.split()])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["search=ppo", "+search=ppo"])
def test_train_py_points_at_the_script(word: str):
    with pytest.raises(UserError, match=r"configs/search holds what python scripts/search\.py algo=ppo"):
        command_line.check_arguments([word], CONFIGS)


def test_only_optunas_parts_are_built():
    for part in (
        {"_target_": "os.system"},
        {"_target_": "optuna.samplers.TPESampler", "x": {"_target_": "os"}},
    ):
        with pytest.raises(UserError, match=r"sampler: should have a _target_ in optuna\.samplers"):
            space.optunas(part, "samplers")
    with pytest.raises(UserError, match=r"optuna\.samplers\.TPESampler: .*nonsense"):
        space.optunas({"_target_": "optuna.samplers.TPESampler", "nonsense": 1}, "samplers")


def test_a_mistake_ends_the_script_with_a_line_and_2():
    words = ["algo=dqn", "env=cartpole", "trial=3"]
    done = start(*words, script=SCRIPT)
    assert done.wait(60) == 2
    assert done.stdout.read() == "error: trial=3: there is no such key; did you mean trials?\n"


# How a trial is judged


class Still:
    """Takes the place of a process."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def fed(study: optuna.Study, plan: space.Plan, *curves: dict[int, float]) -> Attempt:
    """A trial whose finished seeds scored 100 and whose runs wrote these evaluations."""
    attempt = Attempt(study.ask(dict(plan.space)), plan)
    for curve in curves:
        attempt.run = Still()
        attempt.run_folder.mkdir(parents=True)
        lines = ["frames,eval/return_mean,time/elapsed"]
        lines += [f"{frames},{value},1" for frames, value in curve.items()]
        # A row without an evaluation, and one that is being written.
        (attempt.run_folder / "metrics.csv").write_text("\n".join([*lines, "400,,1", "512,9"]))
        attempt.follow()
        attempt.scores.append(100.0)
    return attempt


@pytest.fixture
def plan(tmp_path: Path) -> space.Plan:
    words = [
        *ALONE,
        "optim.lr=choice(2e-3,1e30)",
        "seeds=0,1",
        "trials=2",
        "jobs=1",
        f"out={tmp_path / 'out'}",
    ]
    return space.read([*TINY, *words])


def test_running_means_over_seeds_are_reported_and_the_bad_trial_is_stopped(plan: space.Plan):
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for level in (40.0, 60.0):
        good = fed(study, plan, {256: level}, {256: level})
        # The second seed's evaluation is averaged with the first seed's score.
        assert good.frozen.intermediate_values == {1: level, 3: (100 + level) / 2}
        assert not good.pruned
        study.tell(good.trial, 100.0)
    bad = fed(study, plan, {256: 49.0})
    assert bad.frozen.intermediate_values == {1: 49.0}
    assert bad.pruned  # the median at the first evaluation is 50
    assert bad.run.stopped
    assert not fed(study, plan, {256: 51.0}).pruned


def test_other_batches_are_compared_at_the_same_evaluations(plan: space.Plan):
    study = optuna.create_study(direction="maximize")
    one, other = fed(study, plan, {256: 1.0}), fed(study, plan, {300: 2.0})
    assert one.frozen.intermediate_values.keys() == other.frozen.intermediate_values.keys() == {1}


# Searches that really run


def test_three_failures_in_a_row_end_the_search(plan: space.Plan):
    class Killed:
        code, error, log, stopped = -9, "it was killed", Path("seed0.log"), False

    lines: list[str] = []
    search = Search(plan, lines.append, lambda line: None)
    for number in range(3):
        attempt = Attempt(search.study.ask(dict(plan.space)), plan)
        attempt.run = Killed()
        search.attempts.append(attempt)
        if number < 2:
            search.end_run(attempt, None)
        else:
            with pytest.raises(RunError, match="3 trials in a row failed, the last one so: it was killed"):
                search.end_run(attempt, None)
    # The same numbers are tried once more, as the fault may have been the machine's.
    first, again, other, waiting = search.study.trials
    assert [each.state for each in (first, again, other)] == [TrialState.FAIL] * 3
    assert first.params == again.params != other.params
    assert waiting.state == TrialState.WAITING
    assert waiting.system_attrs["fixed_params"] == other.params
    assert lines[0].startswith("#0  failed: it was killed; see seed0.log  lr=")
    assert search.taken == 0  # they are made up for


def resolved(configs: Path, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(configs), version_base="1.3"):
        return load(compose("train", [*overrides, "run_dir=unused"])).model_dump()


def test_a_small_search_from_end_to_end(plan: space.Plan, tmp_path: Path):
    lines: list[str] = []
    plan.out.mkdir()
    with (plan.out / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process"):
            Search(plan, lines.append, lambda line: None)
    search = Search(plan, lines.append, lambda line: None)
    search.study.enqueue_trial({"optim.lr": 1e30})  # after the present numbers
    search.run()

    first, second = search.study.trials
    assert (first.state, first.params) == (TrialState.COMPLETE, {"optim.lr": 2e-3})
    runs = [plan.out / "trial-0000" / f"seed{seed}" for seed in (0, 1)]
    scores = [OmegaConf.load(run / "summary.json")["eval/return_mean"] for run in runs]
    assert first.value == pytest.approx(sum(scores) / 2)
    assert sorted(first.intermediate_values) == [1, 2, 3, 4]
    assert OmegaConf.load(runs[1] / "config_resolved.yaml").eval.stop_when_solved is False
    assert all((run / "checkpoints").is_dir() for run in runs)
    assert second.state == TrialState.PRUNED
    assert OmegaConf.load(plan.out / "trial-0001/seed0/summary.json").status == "diverged"
    assert not list((plan.out / "trial-0001").glob("*/checkpoints"))
    assert lines[0] == f"#0  {first.value:,.1f}  lr=0.002  (best {first.value:,.1f}, #0)"
    assert lines[1].startswith("#1  diverged  lr=1e+30  (best")

    # The best as a command line and as a file are the same.
    words = command(plan, first)
    assert words == ["python", "train.py", *TINY, "optim.lr=0.002"]
    path, beside = save_tuned(plan, first, 2)
    assert path.read_text().startswith("# @package _global_\n# Found by: python scripts/search.py algo=dqn")
    assert beside == []
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copy(path, tmp_path / "configs/tuned/dqn/cartpole.yaml")
    assert resolved(tmp_path / "configs", "algo=dqn", "env=cartpole") == resolved(CONFIGS, *words[2:])

    save_picture(search.study, plan)
    assert image.imread(plan.out / "search.png").shape[:2] > (400, 1000)
    assert "optim.lr" in (plan.out / "search.svg").read_text()

    # With all trials made nothing is run again, and another search has no place there.
    Search(plan, lines.append, lambda line: None).run()
    assert len(lines) == 2
    for word, named in (("seeds=0,2", "seeds=0,1, not 0,2"), ("optim.lr=choice(1e-3)", "optim.lr=")):
        with pytest.raises(UserError, match=f"holds a search with {named}"):
            Search(space.read([*plan.typed, word]), lines.append, lambda line: None)


def test_what_a_tuned_file_cannot_say_goes_beside_it(tmp_path: Path):
    ours = ["actor=dueling", "~transforms.reward_scaling", "device=cpu", "+optim.betas=[0.9,0.99]"]
    plan = space.read(["algo=dqn", "env=cartpole", *ours, f"out={tmp_path}"])
    study = optuna.create_study(direction="maximize")
    trial = study.ask(dict(plan.space))
    trial.set_user_attr("overrides", Attempt(trial, plan).overrides)
    study.tell(trial, 1.0)
    path, beside = save_tuned(plan, study.best_trial, 1)
    assert beside == ours[:3]
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copy(path, tmp_path / "configs/tuned/dqn/cartpole.yaml")
    found = resolved(tmp_path / "configs", "algo=dqn", "env=cartpole", *beside)
    assert found == resolved(CONFIGS, *command(plan, study.best_trial)[2:])
    assert found["optim"]["betas"] == [0.9, 0.99]


def test_trials_that_were_cut_short_count_in_what_mattered():
    study = optuna.create_study(direction="maximize")
    ranges = {"lr": FloatDistribution(0, 1), "other": FloatDistribution(0, 1)}
    for number in range(20):
        study.enqueue_trial({"lr": number / 20, "other": (number * 7 % 20) / 20})
        trial = study.ask(ranges)
        if number < 10:
            trial.report(0.0, 1)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, number)
    shares = importances(study.trials)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["lr"] > 0.8


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(path.parent.glob(path.name)):
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


def test_a_search_that_was_stopped_and_one_that_was_killed_go_on(tmp_path: Path):
    out = tmp_path / "out"
    words = ["algo=dqn", "env=cartpole", "total_frames=4_096", "checkpoint_every_frames=256"]
    words += [
        "eval.every_frames=2_048",
        "eval.final_episodes=2",
        *ALONE,
        "optim.lr=interval(1e-3,2e-3)",
        "seeds=0",
        "trials=1",
        "jobs=1",
        f"out={out}",
    ]
    searching = start(*words, script=SCRIPT)
    wait_for(out / "trial-0000/seed0/checkpoints/checkpoint-*")
    searching.send_signal(signal.SIGINT)
    assert searching.wait(60) == 130
    assert "stopped; go on with: python scripts/search.py algo=dqn" in searching.stdout.read()

    before = {each.name for each in (out / "trial-0000/seed0/checkpoints").iterdir()}
    searching = start(*words, script=SCRIPT)
    deadline = time.monotonic() + 120
    while {each.name for each in (out / "trial-0000/seed0/checkpoints").iterdir()} <= before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    drawn = optuna.load_study(study_name="search", storage=f"sqlite:///{out}/study.db").trials[0].params
    searching.kill()

    searching = start(*words, script=SCRIPT)
    assert searching.wait(200) == 0, searching.stdout.read()
    (trial,) = optuna.load_study(study_name="search", storage=f"sqlite:///{out}/study.db").trials
    assert (trial.state, trial.params) == (TrialState.COMPLETE, drawn)
    summary = OmegaConf.load(out / "trial-0000/seed0/summary.json")
    assert trial.value == pytest.approx(summary["eval/return_mean"])
    assert len(summary.resumed_at_frames) >= 2
    assert "python train.py algo=dqn env=cartpole" in searching.stdout.read()
    left = [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if str(out) in " ".join(each.info["cmdline"] or [])
    ]
    assert left == []
