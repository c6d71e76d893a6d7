"""A resumed run is the run that never stopped; what would make it another is refused by name."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from conftest import ROOT, digest, logged, saved, settings
from omegaconf import OmegaConf

import hydrl.loop.metrics
import hydrl.parts.environments
import hydrl.run.record
import hydrl.run.state
from hydrl.config import CONFIGS
from hydrl.errors import UserError
from hydrl.run import checkpoint, resume
from hydrl.run.folder import lock, require_run

SMALL = ["~tuned", "total_frames=1_024", "collector.frames_per_batch=256", "minibatches.size=64"]
SMALL += ["eval.every_frames=512", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=50"]
SMALL += ["log_every_frames=256", "checkpoint_every_frames=512"]
DQN = ["algo=dqn", "env=cartpole", "collector.num_envs=4", "minibatches.warmup_frames=256"]
EXACT = {
    "PPO, fixed normaliser": [
        "algo=ppo", "env=inverted_double_pendulum", "collector.num_envs=4", "init_stats_frames=1_000",
        "transforms=normalized",
    ],
    "PPO, running statistics of observations and rewards": ["env=inverted_double_pendulum"],
    "PPO, episodes cut short at random": ["algo=ppo", "env=gym", "env.id=MountainCarContinuous-v0"],
    "PPO, Ant": ["algo=ppo", "env=gym", "env.id=Ant-v5", "collector.num_envs=2"],
    "PPO, one environment, drawn by minibatch": [
        "env=inverted_double_pendulum", "collector.num_envs=1", "minibatches.draw=minibatch",
        "collector.frames_per_batch=250", "total_frames=1_000", "schedule=linear",
    ],
    "DQN, memmap": [*DQN, "buffer=memmap", "buffer.storage.max_size=2_000"],
    "DQN, a full memory": [*DQN, "buffer.storage.max_size=300"],
    "several agents": ["algo=mappo", "env=custom", "env._target_=toys.Team", "collector.num_envs=4"],
    "own environment": ["env=custom", "env._target_=toys.Toy", "collector.num_envs=2"],
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_going_on_equals_never_having_stopped(name, run, batches):
    """Parameters, targets, optimizer, buffer, generators, data after the stop, and the log."""
    overrides = [*SMALL, *EXACT[name]]
    whole = run(*overrides, folder="whole")
    unbroken = batches.copy()
    batches.clear()
    stop = len(unbroken) // 2 * settings(*overrides).frames_per_batch
    total = settings(*overrides).total_frames
    run(*overrides, f"total_frames={stop}", f"anneal_frames={total}", folder="halves")
    torch.rand(7)  # nothing of this process may help
    halves = run(*overrides, "resume=auto", folder="halves")

    assert len(unbroken) == 4
    assert batches == unbroken
    parts = ["actor", "loss", "optimizer", "buffer", "normaliser", "rng", "collector"]
    parts += ["exploration", "target"] if "algo=dqn" in overrides else []
    for part in parts:
        assert digest(saved(halves, part)) == digest(saved(whole, part)), part
    assert logged(halves) == logged(whole)
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (halves, whole))
    for key in ("frames", "updates", "eval/return_mean", "eval/return_std", "best_eval/return_mean"):
        assert ours[key] == theirs[key], key
    assert ours["resumed_at_frames"] == [stop]


def test_a_longer_run_goes_on_as_if_its_closing_evaluation_had_not_been(run, evaluations):
    evaluations({512: 30.0, 1_024: 20.0}, {512: 90.0, 1_024: 10.0})
    overrides = [*SMALL, "env=cartpole", "eval.solved_at=40"]

    def reached(folder: Path) -> tuple[int, float, int | None]:
        summary = json.loads((folder / "summary.json").read_text())
        best = checkpoint.frames_of(checkpoint.find(folder, "best"))
        return best, summary["best_eval/return_mean"], summary["solved_at_frames"]

    assert reached(run(*overrides, "total_frames=512", "anneal_frames=1_024")) == (512, 90.0, 512)
    longer = run(*overrides, "resume=auto")
    whole = run(*overrides, folder="whole")
    assert reached(longer) == reached(whole) == (512, 30.0, None)
    ours, theirs = (saved(folder, "books")["progress"] for folder in (longer, whole))
    assert ours["counters"] == theirs["counters"]
    assert logged(longer) == logged(whole)


def test_workers_start_their_environments_anew_and_the_learner_goes_on(run, capsys):
    overrides = [*SMALL, "env=cartpole", "collector=multi_sync", "collector.num_envs=4", "~schedule"]
    overrides += ["transforms=normalized", "init_stats_frames=1_000"]
    folder = run(*overrides, "total_frames=512")
    before = {part: saved(folder, part) for part in ("loss", "optimizer", "normaliser")}
    seen = {}

    def look(state, origin, load=hydrl.run.state.TrainingState.load):
        load(state, origin)
        seen["loss"] = deepcopy(state.learner["loss"].state_dict())
        seen["optimizer"] = deepcopy(state.learner["optimizer"].state_dict())
        seen["normaliser"] = hydrl.parts.environments.normaliser_state(state.env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydrl.run.state.TrainingState, "load", look)
        run(*overrides, "resume=auto")
    assert "the environments start anew: they are in processes of their own" in capsys.readouterr().out
    for part, state in before.items():
        assert digest(dict(seen[part])) == digest(dict(state)), part
    assert checkpoint.frames_of(checkpoint.find(folder, "last")) == 1_024


def test_a_longer_run_takes_the_learning_rate_to_its_end_over_the_new_length(run):
    overrides = [*SMALL, "env=inverted_double_pendulum", "schedule=linear", "optim.lr=1e-3"]
    run(*overrides)
    folder = run(*overrides, "total_frames=2_048", "resume=auto")
    rates = [float(row["train/learning_rate"]) for row in logged(folder)]
    assert rates[:4] == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0])
    assert rates[4:] == pytest.approx([3 / 8 * 1e-3, 2 / 8 * 1e-3, 1 / 8 * 1e-3, 0.0])


def test_epsilon_falls_by_the_frames_of_all_environments_and_goes_on_where_it_stood(run):
    words = [*SMALL, *DQN, "minibatches.updates=1", "exploration.annealing_num_steps=1_000"]
    for frames in (512, 768):  # of four environments each
        folder = run(*words, f"total_frames={frames}", "anneal_frames=1_024", "resume=auto")
        epsilon = pytest.approx(1 - 0.95 * frames / 1_000, abs=1e-4)  # it falls in single precision
        assert saved(folder, "exploration")["eps"].item() == epsilon
        assert float(logged(folder)[-1]["train/epsilon"]) == epsilon


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A run of which half is done, left by a user at the command line."""
    folder = tmp_path_factory.mktemp("half") / "a run"
    done = call(*SMALL, "env=cartpole", "total_frames=512", "+env.max_episode_steps=40", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def call(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    own = [] if folder is None else [f"hydra.run.dir='{folder}'"]
    command = [sys.executable, "train.py", *arguments, *own]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_line_goes_on_with_the_run_s_own_configuration(half, tmp_path):
    folder = tmp_path / "another run"
    subprocess.run(["cp", "-r", half, folder], check=True)
    done = call(f"resume={folder}", "total_frames=768")
    assert done.returncode == 0, done.stderr
    assert "resumed after 512 frames" in done.stdout
    assert "all goes on as it stood" in done.stdout.replace("\n", " ")
    resolved = OmegaConf.load(folder / "config_resolved.yaml")
    assert resolved.env.max_episode_steps == 40
    assert json.loads((folder / "summary.json").read_text())["frames"] == 768
    overrides = OmegaConf.to_container(OmegaConf.load(folder / ".hydra" / "overrides.yaml"))
    assert "total_frames=768" in overrides
    assert "total_frames=512" not in overrides

    done = call(f"resume={folder}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is finished, after 768 frames; to go on give a larger total_frames" in done.stdout
    done = call(f"resume={folder}/checkpoints/checkpoint-000000000512.torchrl", "total_frames=1_024")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["resumed_at_frames"] == [512]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optim.lr=1"], "optim.lr=1 would make it another run: it was started with optim.lr=0.0006"),
        (
            ["env=pendulum"],
            "env.id=Pendulum-v1 would make it another run: it was started with env.id=CartPole-v1",
        ),
        (["seed=7"], "seed=7 would make it another run: it was started with seed=0"),
        (["actor.num_cells=[3]"], "actor.num_cells=[3] would make it another run"),
        (["hydra.run.dir=elsewhere"], "goes on in its own folder; leave hydra.run.dir out"),
        (["-m", "seed=0,1"], "goes on with one run; go on with a sweep by resume=auto"),
        (["total_frames=256"], "total_frames=256 is less than the 512 that"),
        (["optim.lrr=1"], "optim.lrr=1: there is no such key; did you mean optim.lr?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_make_it_another_run_is_refused_by_name_and_changes_nothing(half, arguments, message):
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    options = [each for each in arguments if each.startswith("-")]
    rest = [each for each in arguments if each not in options]
    done = call(*options, f"resume={half}", *rest)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume=nowhere"], "resume=nowhere: there is no such folder"),
        (["resume=tests"], "resume=tests: no run lies there"),
        (["resume="], "resume= names no run; write resume=DIR, or resume=null for none"),
        (["resume=auto"], "resume=auto looks into the run's own folder"),
    ],
)
def test_where_there_is_nothing_to_resume_it_is_said(arguments, message):
    with pytest.raises(UserError, match=message):
        resume.expand(arguments)


def test_a_run_whose_actions_were_never_scaled_goes_on_so_or_not_at_all(run):
    small = ["minibatches.updates=2", "minibatches.warmup_frames=256", "collector.init_random_frames=512"]
    words, as_it_was = [*SMALL, "algo=td3", "env=pendulum", *small], "~transforms.action_scaling"
    run(*words, as_it_was, "total_frames=512", "anneal_frames=1_024")
    with pytest.raises(UserError, match=r"^transforms.action_scaling=.* would make it another run"):
        run(*words, "resume=auto")
    rows = saved(run(*words, as_it_was, "resume=auto"), "buffer")
    assert (len(rows["action"]), rows["action"].abs().max() > 1.9) == (1_024, True)


def test_of_a_folder_that_holds_runs_the_newest_is_named(tmp_path):
    for age, name in enumerate(["sweeps/now/b", "today/c", "a"]):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config_resolved.yaml").touch()
        os.utime(tmp_path / name / "config_resolved.yaml", (1_000 - age, 1_000 - age))
    meant = f"no run lies there .*; the newest in it is {tmp_path}/sweeps/now/b$"
    with pytest.raises(UserError, match=f"resume={tmp_path}: {meant}"):
        resume.expand([f"resume={tmp_path}"])
    with pytest.raises(UserError, match=f"run={tmp_path}: {meant}"):
        require_run(tmp_path)


def test_auto_starts_at_the_beginning_where_there_is_nothing_yet(run, capsys):
    folder = run(*SMALL, "env=cartpole", "total_frames=256", "resume=auto")
    assert "nothing to resume" in capsys.readouterr().out
    assert checkpoint.frames_of(checkpoint.find(folder, "last")) == 256


def test_a_run_without_a_checkpoint_is_not_written_over(run):
    folder = run(*SMALL, "env=cartpole", "total_frames=256")
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "summary.json").read_bytes()
    with pytest.raises(UserError, match=r"has no valid checkpoint; start the run anew in another folder"):
        run(*SMALL, "env=cartpole", "total_frames=512", f"resume={folder}")
    assert (folder / "summary.json").read_bytes() == before


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(run, capsys):
    overrides = [*SMALL, "env=cartpole"]
    folder = run(*overrides)
    whole = logged(folder)
    newest = checkpoint.find(folder, "last")
    newest.write_bytes(newest.read_bytes()[:-1])
    run(*overrides, "resume=auto")
    told = capsys.readouterr().out
    assert f"{newest} is damaged" in told
    assert "goes on after 512 frames; later checkpoints go once it saves: 1,024" in told
    assert logged(folder) == whole
    assert checkpoint.find(folder, "last") == newest


def test_a_finished_run_that_lost_its_last_checkpoint_trains_on_to_its_end(run, capsys):
    overrides = [*SMALL, "env=cartpole"]
    folder = run(*overrides)
    whole = json.loads((folder / "summary.json").read_text())
    checkpoint.find(folder, "last").unlink()
    chosen = settings(*overrides, "resume=auto", run_dir=folder)
    assert not resume.finished(chosen, resume.origin(chosen))
    run(*overrides, "resume=auto")
    again = json.loads((folder / "summary.json").read_text())
    assert again["resumed_at_frames"] == [512]
    assert again["eval/return_mean"] == whole["eval/return_mean"]
    chosen = settings(*overrides, "resume=auto", run_dir=folder)
    assert resume.finished(chosen, resume.origin(chosen))
    assert "is finished, after 1,024 frames; to go on give a larger total_frames" in capsys.readouterr().out


def test_a_solved_run_says_what_it_takes_to_go_on(run, capsys):
    overrides = [*SMALL, "env=cartpole", "eval.solved_at=5"]
    folder = run(*overrides, "eval.stop_when_solved=true")
    longer = settings(
        *overrides, "eval.stop_when_solved=true", "total_frames=9_984", "resume=auto", run_dir=folder
    )
    assert resume.finished(longer, resume.origin(longer))
    told = capsys.readouterr().out
    assert "to go on give eval.stop_when_solved=false, for it was solved" in told
    on = settings(*overrides, "eval.stop_when_solved=false", "resume=auto", run_dir=folder)
    assert not resume.finished(on, resume.origin(on))
    assert "goes on with eval.stop_when_solved=false (was true)" in capsys.readouterr().out


def test_the_w_and_b_run_goes_on_as_the_same_run(run):
    overrides = [*SMALL, "env=cartpole", "logger=wandb", "logger.wandb.mode=offline"]
    folder = run(*overrides, "total_frames=512")
    run(*overrides, "resume=auto")
    names = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    assert len(names) == 2
    assert len({name.rpartition("-")[2] for name in names}) == 1


HOSTILE = {
    "another part": "env._target_=os.system",
    "a nested part": "+transforms.x._target_=builtins.exec",
    "a part in a list": "+transforms.x={_target_:torchrl.envs.Compose,"
    "_args_:[{_target_:os.mkdir,path:/tmp/c}]}",
    "a module of gymnasium's": "env.id=antigravity:Env-v0",
    "a callback of Hydra's": "+hydra.callbacks.x._target_=os.system",
    "a launcher": "hydra/launcher=joblib",
    "a search path": "hydra.searchpath=[file:///tmp]",
    "its own folder": "hydra.run.dir=/tmp/elsewhere",
    "a choice outside": "env=OUTSIDE",
    "a choice outside, in quotes": "env='OUTSIDE'",
    "a choice of another group": "transforms=../env/cartpole",
    "a list of choices": "env=[OUTSIDE]",
    "a group outside": "+../../tmp=evil",
    "a sweep": "seed=0,1",
    "a variable of the environment, put together": "task='${oc.${algo}:HOME}'",
    "no override": {"a": "mapping"},
    "an option": "--config-dir=/tmp",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_run_folder_is_refused_in_a_line_and_runs_nothing(name, half, tmp_path):
    folder, canary = tmp_path / "run", tmp_path / "canary"
    subprocess.run(["cp", "-r", half, folder], check=True)
    evil = (
        f"# @package _global_\nhydra:\n  callbacks:\n    x:\n      _target_: os.mkdir\n      path: {canary}\n"
    )
    (tmp_path / "evil.yaml").write_text(evil)
    file = folder / ".hydra" / "overrides.yaml"
    overrides = OmegaConf.to_container(OmegaConf.load(file))
    given = HOSTILE[name]
    if isinstance(given, str):
        given = given.replace("OUTSIDE", os.path.relpath(tmp_path / "evil", CONFIGS / "env"))
    kept = [each for each in overrides if not isinstance(given, str) or not each.startswith("env=")]
    environment = ["env=gym"] if isinstance(given, str) and given.startswith("env.") else ["env=cartpole"]
    OmegaConf.save(OmegaConf.create([*environment, *kept, given]), file)
    done = call(f"resume={folder}", "total_frames=768")
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert len(checkpoint.archives(folder)) == 1
    assert not canary.exists()


@pytest.mark.parametrize("typed", ["/tmp/c", "RUN/../c", "RUN/replay/../../c"])
def test_a_replay_memory_outside_the_run_is_not_written_unless_trusted(tmp_path, typed):
    typed = typed.replace("RUN", str(tmp_path / "run"))
    overrides = [
        "algo=dqn",
        "env=cartpole",
        "buffer=memmap",
        f"buffer.storage.scratch_dir={typed}",
        "resume=x",
    ]
    with pytest.raises(UserError, match=r"scratch_dir=.*/c is outside the run; add trust=true"):
        settings(*overrides, run_dir=tmp_path / "run")
    assert settings(*overrides, "trust=true", run_dir=tmp_path / "run").trust


@pytest.mark.parametrize("given", ["${oc.env:HOME}", "of ${task}"])
def test_a_folder_of_others_does_not_hand_the_environment_to_its_logger(tmp_path, given):
    overrides = ["task=${oc.env:HOME}", "logger=wandb", f"logger.wandb.project={given}", "resume=x"]
    with pytest.raises(UserError, match="its logger is given values of the environment; add trust=true"):
        settings(*overrides, run_dir=tmp_path)
    assert settings(*overrides, "trust=true", run_dir=tmp_path).trust


@pytest.mark.parametrize("place", ["..", "../outside", "link"])
def test_going_on_with_a_folder_of_others_removes_nothing_outside_it(run, tmp_path, place):
    """Wherever its replay memory is said to lie, and also where it is the run's own."""
    folder, outside = run(*SMALL, *DQN, "buffer=memmap", "buffer.storage.max_size=500"), tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("still here")
    overrides = OmegaConf.create(
        [
            *SMALL,
            *DQN,
            "buffer=memmap",
            "buffer.storage.max_size=500",
            f"buffer.storage.scratch_dir={folder}/{place}",
        ]
    )
    if place == "link":
        (folder / "link").symlink_to(outside)
    (folder / ".hydra").mkdir()
    OmegaConf.save(overrides, folder / ".hydra" / "overrides.yaml")
    done = call(f"resume={folder}", "total_frames=2_048")
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert (outside / "precious").read_text() == "still here"
    assert folder.is_dir()


def test_a_folder_that_was_moved_goes_on_with_its_replay_memory_on_disk(run, tmp_path):
    overrides = [*SMALL, *DQN, "buffer=memmap", "buffer.storage.max_size=2_000"]
    whole = run(*overrides, folder="whole")
    run(*overrides, "total_frames=512", "anneal_frames=1_024", folder="before")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "before").rename(tmp_path / "elsewhere" / "after")
    after = run(*overrides, "resume=auto", folder="elsewhere/after")
    assert digest(saved(after, "buffer")) == digest(saved(whole, "buffer"))
    assert logged(after) == logged(whole)
    assert not (tmp_path / "before").exists()


@pytest.mark.parametrize("link", ["metrics.csv", "checkpoints", ".hydra", ".hydra/overrides.yaml", "replay"])
def test_nothing_is_read_or_written_through_a_link_in_a_run_folder(link, half, tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    subprocess.run(["cp", "-r", half, folder], check=True)
    if (folder / link).exists():
        (folder / link).rename(outside)
    else:
        outside.mkdir()
    (folder / link).symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        resume.expand([f"resume={folder}"])


def test_a_stop_loses_nothing(tmp_path):
    """The stopped half and the resumed half together log what the unbroken run logs."""
    overrides = [*SMALL, "env=cartpole", "total_frames=6_144", "checkpoint_every_frames=1_000_000"]
    command = [sys.executable, "train.py", *overrides, f"hydra.run.dir={tmp_path / 'stopped'}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    next(line for line in process.stdout if "evaluation" in line)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 143, output
    assert "python train.py resume=" in output
    reached = checkpoint.frames_of(checkpoint.find(tmp_path / "stopped", "last"))
    assert reached < 6_144

    done = call(f"resume={tmp_path / 'stopped'}")
    assert done.returncode == 0, done.stderr
    assert "all goes on as it stood" in done.stdout.replace("\n", " ")
    assert call(*overrides, folder=tmp_path / "whole").returncode == 0
    assert logged(tmp_path / "stopped") == logged(tmp_path / "whole")
    assert digest(saved(tmp_path / "stopped", "loss")) == digest(saved(tmp_path / "whole", "loss"))


def test_a_diverged_run_ends_with_3_and_keeps_the_last_good_checkpoint(tmp_path):
    """A learning rate that no network survives; the frame and the term are named."""
    done = call(
        *DQN,
        *SMALL,
        "minibatches.warmup_frames=512",
        "optim.lr=1e30",
        "max_grad_norm=null",
        "eval.every_frames=256",
        folder=tmp_path,
    )
    assert done.returncode == 3, done.stderr
    told = re.search(
        r"error: diverged at frame (\d+): (loss|grad_norm) is (nan|inf).*saved at (\d+)", done.stderr
    )
    assert told, done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["frames"]) == ("diverged", int(told[1]))
    last = checkpoint.find(tmp_path, "last")
    assert checkpoint.frames_of(last) == int(told[4]) < int(told[1])
    assert all(value.isfinite().all() for value in checkpoint.load(last, ["actor"])["actor"].values())


def test_a_run_stopped_while_it_confirms_a_solution_confirms_it_when_it_is_resumed(run, monkeypatch):
    overrides = [*SMALL, "env=cartpole", "eval.solved_at=5", "eval.stop_when_solved=true"]
    whole = json.loads((run(*overrides, folder="whole") / "summary.json").read_text())
    assert whole["frames"] == 512

    def killed(self, *_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hydrl.run.record.Record, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(*overrides, folder="killed")
    ended = json.loads((run(*overrides, "resume=auto", folder="killed") / "summary.json").read_text())
    for key in ("frames", "updates", "eval/return_mean", "solved_at_frames", "status"):
        assert ended[key] == whole[key], key


def test_a_run_that_is_going_on_is_left_alone_by_another_process(half, tmp_path):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", half, folder], check=True)
    lock(folder)
    done = call(f"resume={folder}", "total_frames=768")
    assert done.returncode == 2, done.stdout
    assert done.stderr == f"error: {folder} is in use by another process; wait for it, or stop it\n"
    lock(tmp_path / "another")
    assert call(f"resume={folder}", "total_frames=768").returncode == 0


def test_a_state_that_does_not_fit_is_refused_in_a_line(half, tmp_path):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", half, folder], check=True)
    newest = checkpoint.find(folder, "last")
    parts = ["actor", "loss", "optimizer", "schedule", "update", "minibatches", "sampler", "writer"]
    states = checkpoint.load(newest, [*parts, "collector", "normaliser", "books", "rng"])
    states["loss"] = {"actor_network_params.weight": torch.zeros(3)}
    checkpoint.save(folder, states, checkpoint.verify(newest), keep=3)
    done = call(f"resume={folder}", "total_frames=768")
    assert done.returncode == 2, done.stdout
    assert re.match(rf"error: {newest} does not fit this run: RuntimeError: .*\n$", done.stderr), done.stderr


def test_a_run_stopped_before_its_first_checkpoint_cannot_become_another(run):
    overrides = [*SMALL, "env=cartpole", "total_frames=512", "checkpoint_every_frames=1_000_000"]
    folder = run(*overrides)
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    with pytest.raises(UserError, match=r"would make it another run: .* env\.id=CartPole-v1"):
        run(*SMALL, "env=acrobot", "total_frames=512", "resume=auto")
    run(*overrides, "resume=auto")
    assert json.loads((folder / "summary.json").read_text())["frames"] == 512


def test_another_algorithm_is_refused_by_its_name_and_not_by_the_keys_that_do_not_fit_it(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("[env=cartpole, minibatches.epochs=3]")
    (tmp_path / ".hydra" / "config.yaml").write_text("algo: ppo")
    with pytest.raises(UserError, match=r"^algo=dqn would make it another run: it was started with algo=ppo"):
        resume.expand([f"resume={tmp_path}", "algo=dqn"])
    assert "minibatches.epochs=3" in resume.expand([f"resume={tmp_path}", "algo=ppo"])
