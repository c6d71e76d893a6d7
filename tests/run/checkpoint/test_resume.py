"""What a run goes on from and with what; what would make it another is refused by name."""

import json
import os
import re
import shutil

import pytest
import torch
from omegaconf import OmegaConf

from hydrl.errors import UserError
from hydrl.run.checkpoint import archive, resume, resume_command
from hydrl.run.run_folder import RunLock, require_run
from tests.conftest import SMALL, SMALL_PPO, logged, resume_point, saved, settings, start, typed
from train import train

CARTPOLE = [*SMALL_PPO, "env=cartpole", "critic.num_cells=[16,16]"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    train(settings(*CARTPOLE, run_dir=folder))
    return folder


@pytest.fixture
def finished(unbroken, tmp_path):
    """A finished run, where ``run`` makes its own."""
    return shutil.copytree(unbroken, tmp_path / "run")


def test_the_command_line_goes_on_with_the_run_s_own_configuration(half, tmp_path):
    folder = tmp_path / "another run"
    shutil.copytree(half, folder)
    done = typed(f"resume={folder}", "total_frames=192")
    assert done.returncode == 0, done.stderr
    assert "resumed after 128 frames" in done.stdout
    assert "everything continues exactly" in done.stdout.replace("\n", " ")
    resolved = OmegaConf.load(folder / "config_resolved.yaml")
    assert resolved.env.max_episode_steps == 40
    assert json.loads((folder / "summary.json").read_text())["frames"] == 192
    overrides = OmegaConf.to_container(OmegaConf.load(folder / ".hydra" / "overrides.yaml"))
    assert "total_frames=192" in overrides
    assert "total_frames=128" not in overrides

    done = typed(f"resume={folder}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is finished after 192 frames; to continue, set a larger total_frames" in done.stdout
    done = typed(f"resume={folder}/checkpoints/checkpoint-000000000128.torchrl", "total_frames=256")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["resumed_at_frames"] == [128]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optim.lr=1"], "optim.lr=1: the run was started with optim.lr=0.0006"),
        (
            ["env=pendulum"],
            "env.id=Pendulum-v1: the run was started with env.id=CartPole-v1",
        ),
        (["seed=7"], "seed=7: the run was started with seed=0"),
        (["actor.num_cells=[3]"], "actor.num_cells=[3]: the run was started with"),
        (["-m", "seed=0,1"], "resumes one run, not a sweep. Resume a sweep with resume=auto."),
        (["total_frames=64"], "has trained for 128 frames. Leave it out or give more."),
        (["optim.lrr=1"], "optim.lrr=1: no such key. Write optim.lr=1."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_make_it_another_run_is_refused_by_name_and_changes_nothing(half, arguments, message):
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    options = [each for each in arguments if each.startswith("-")]
    rest = [each for each in arguments if each not in options]
    done = typed(*options, f"resume={half}", *rest)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume=nowhere"], "resume=nowhere: there is no such folder"),
        (["resume=tests"], "resume=tests: not a run"),
        (["resume="], "resume=: not a run. Write resume=DIR, or resume=null for none."),
        (["resume=auto"], "resume=auto: each run has a new folder"),
    ],
)
def test_where_there_is_nothing_to_resume_it_is_said(arguments, message):
    with pytest.raises(UserError, match=message):
        resume_command.expand(arguments)


def test_an_empty_folder_is_one_to_start_a_run_in(tmp_path):
    advice = f"Start a run there with hydra.run.dir={tmp_path} in place of resume={tmp_path}."
    with pytest.raises(UserError, match=re.escape(f"not a run (no .hydra/overrides.yaml). {advice}")):
        resume_command.expand([f"resume={tmp_path}"])
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"yaml\)\. Write the folder of a run, such as outputs/…\.$"):
        resume_command.expand([f"resume={tmp_path}"])


def test_a_run_whose_actions_were_never_scaled_goes_on_so_or_not_at_all(run):
    small = ["minibatches.updates=2", "minibatches.warmup_frames=64", "collector.init_random_frames=128"]
    words, as_it_was = [*SMALL, "algo=td3", "env=pendulum", *small], "~transforms.action_scaling"
    run(*words, as_it_was, "total_frames=128", "anneal_frames=256")
    with pytest.raises(UserError, match=r"^transforms.action_scaling=.*: the run was started with"):
        run(*words, "resume=auto")
    rows = saved(run(*words, as_it_was, "resume=auto"), "buffer")
    assert (len(rows["action"]), rows["action"].abs().max() > 1.9) == (256, True)


def test_of_a_folder_that_holds_runs_the_newest_is_named(tmp_path):
    for age, name in enumerate(["sweeps/now/b", "today/c", "a"]):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config_resolved.yaml").touch()
        os.utime(tmp_path / name / "config_resolved.yaml", (1_000 - age, 1_000 - age))
    meant = rf"not a run .*\. The newest run in it is {tmp_path}/sweeps/now/b\.$"
    with pytest.raises(UserError, match=f"resume={tmp_path}: {meant}"):
        resume_command.expand([f"resume={tmp_path}"])
    with pytest.raises(UserError, match=f"run={tmp_path}: {meant}"):
        require_run(tmp_path)


def test_auto_starts_at_the_beginning_where_there_is_nothing_yet(run, capsys):
    folder = run(*CARTPOLE, "total_frames=64", "resume=auto")
    assert "nothing to resume" in capsys.readouterr().out
    assert archive.frames_of(archive.find(folder, "last")) == 64


def test_a_run_without_a_checkpoint_is_not_written_over(finished):
    shutil.rmtree(finished / "checkpoints")
    before = (finished / "summary.json").read_bytes()
    chosen = settings(*CARTPOLE, "total_frames=512", f"resume={finished}", run_dir=finished)
    with pytest.raises(UserError, match=r"no valid checkpoint\. Start a new run in another folder"):
        resume_point(chosen)
    assert (finished / "summary.json").read_bytes() == before


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(finished, run, capsys):
    whole = logged(finished)
    newest = archive.find(finished, "last")
    newest.write_bytes(newest.read_bytes()[:-1])
    run(*CARTPOLE, "resume=auto")
    told = capsys.readouterr().out
    assert f"{newest} is damaged" in told
    assert "resuming after 128 frames; the next save removes later checkpoints: 256" in told
    assert logged(finished) == whole
    assert archive.find(finished, "last") == newest


def test_a_finished_run_that_lost_its_last_checkpoint_trains_on_to_its_end(finished, run, capsys):
    whole = json.loads((finished / "summary.json").read_text())
    archive.find(finished, "last").unlink()
    chosen = settings(*CARTPOLE, "resume=auto", run_dir=finished)
    assert not resume.is_finished(chosen.shown, resume_point(chosen))
    run(*CARTPOLE, "resume=auto")
    again = json.loads((finished / "summary.json").read_text())
    assert again["resumed_at_frames"] == [128]
    assert again["eval/return_mean"] == whole["eval/return_mean"]
    chosen = settings(*CARTPOLE, "resume=auto", run_dir=finished)
    assert resume.is_finished(chosen.shown, resume_point(chosen))
    assert "is finished after 256 frames; to continue, set a larger total_frames" in capsys.readouterr().out


def test_a_solved_run_says_what_it_takes_to_go_on(run, capsys):
    overrides = [*CARTPOLE, "eval.reward_threshold=5"]
    folder = run(*overrides, "eval.stop_when_solved=true")
    longer = settings(
        *overrides, "eval.stop_when_solved=true", "total_frames=9_984", "resume=auto", run_dir=folder
    )
    assert resume.is_finished(longer.shown, resume_point(longer))
    told = capsys.readouterr().out
    assert "to continue, set eval.stop_when_solved=false, as it was solved" in told
    on = settings(*overrides, "eval.stop_when_solved=false", "resume=auto", run_dir=folder)
    assert not resume.is_finished(on.shown, resume_point(on))
    assert "resuming with eval.stop_when_solved=false (was true)" in capsys.readouterr().out


def test_a_diverged_run_ends_with_3_and_keeps_the_last_good_checkpoint(tmp_path):
    """A learning rate that no network survives; the frame and the term are named."""
    words = [*SMALL, "algo=dqn", "env=cartpole", "minibatches.warmup_frames=128", "optim.lr=1e30"]
    done = typed(*words, "max_grad_norm=null", "eval.every_frames=64", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 3, done.stderr
    told = re.search(
        r"error: diverged at frame (\d+): (loss|grad_norm) is (nan|inf).*saved at (\d+)", done.stderr
    )
    assert told, done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["frames"]) == ("diverged", int(told[1]))
    last = archive.find(tmp_path, "last")
    assert archive.frames_of(last) == int(told[4]) < int(told[1])
    assert all(value.isfinite().all() for value in archive.load(last, ["actor"])["actor"].values())


def test_a_run_that_is_going_on_is_left_alone_by_another_process(half, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    with RunLock() as lock:
        lock.acquire(folder)
        with start(f"resume={folder}", "total_frames=192") as process:
            said, _ = process.communicate()
    assert process.returncode == 2, said
    assert said == f"error: {folder} is in use by another process. Wait for it, or stop it.\n"
    assert typed(f"resume={folder}", "total_frames=192").returncode == 0


def test_a_state_that_does_not_fit_is_refused_in_a_line(half, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    newest = archive.find(folder, "last")
    parts = ["actor", "loss", "optimizer", "schedule", "update", "minibatches", "sampler", "writer"]
    states = archive.load(newest, [*parts, "collector", "normaliser", "books", "rng"])
    states["loss"] = {"actor_network_params.weight": torch.zeros(3)}
    archive.save(folder, states, archive.verify(newest), keep=3)
    done = typed(f"resume={folder}", "total_frames=192")
    assert done.returncode == 2, done.stdout
    assert re.match(rf"error: {newest} does not fit this run: RuntimeError: .*\n$", done.stderr), done.stderr


def test_a_run_stopped_before_its_first_checkpoint_cannot_become_another(finished, run):
    shutil.rmtree(finished / "checkpoints")
    (finished / "summary.json").unlink()
    with pytest.raises(UserError, match=r"the run was started with env\.id=CartPole-v1"):
        run(*SMALL, "env=acrobot", "resume=auto")
    run(*CARTPOLE, "resume=auto")
    assert json.loads((finished / "summary.json").read_text())["frames"] == 256


def test_another_algorithm_is_refused_by_its_name_and_not_by_the_keys_that_do_not_fit_it(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("[env=cartpole, minibatches.epochs=3]")
    (tmp_path / ".hydra" / "config.yaml").write_text("algo: ppo")
    with pytest.raises(UserError, match=r"^algo=dqn: the run was started with algo=ppo"):
        resume_command.expand([f"resume={tmp_path}", "algo=dqn"])
    assert "minibatches.epochs=3" in resume_command.expand([f"resume={tmp_path}", "algo=ppo"])


def test_another_logger_does_not_get_the_keys_of_the_saved_one(tmp_path):
    (tmp_path / ".hydra").mkdir()
    words = "[env=cartpole, logger=wandb, logger.wandb.project=p, +logger.wandb.entity=e]"
    (tmp_path / ".hydra" / "overrides.yaml").write_text(words)
    (tmp_path / ".hydra" / "config.yaml").write_text("algo: ppo")
    named = f"resume={tmp_path}"
    plain = resume_command.expand([named, "logger=null"])
    assert [word for word in plain if word.startswith(("env", "logger"))] == ["env=cartpole", "logger=null"]
    assert "logger.wandb.project=p" in resume_command.expand([named, "seed=0"])
