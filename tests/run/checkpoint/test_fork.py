"""A fork goes on with a run in a folder of its own, exactly, or with other numbers where it is told so."""

import json
import shutil

import pytest
import torch

from hydrl.config.overrides import quoted
from hydrl.errors import SaveError, UserError
from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.replay_buffer import BufferFiles
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, resume_point, saved, settings, typed
from train import train

PPO = [*SMALL_PPO, "env=cartpole", "critic.num_cells=[16,16]"]
PPO += ["schedule=linear", "checkpoint_every_frames=64"]
DQN = [*SMALL, "algo=dqn", "env=cartpole", "minibatches.warmup_frames=64", "minibatches.updates=4"]
PARTS = ["actor", "loss", "optimizer", "normaliser", "rng", "collector"]
AT = 128


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    """A finished run that a user has typed; its files, that none of these may change."""
    folder = tmp_path_factory.mktemp("ppo") / "old, run"
    done = typed(*PPO, "keep_checkpoints=9", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    before = files(folder)
    yield folder
    assert files(folder) == before


@pytest.fixture(scope="module")
def dqn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dqn") / "run"
    train(settings(*DQN, run_dir=folder))
    return folder


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def at(folder, frames=AT):
    return folder / "checkpoints" / f"checkpoint-{frames:012d}.torchrl"


def forked(*words, resumed, folder):
    """A fork of a run that was not typed."""
    chosen = settings(*words, f"resume={quoted(resumed)}", run_dir=folder)
    train(chosen, resume_point(chosen))
    return folder


def rates(folder):
    return [float(row["train/learning_rate"]) for row in logged(folder)]


def test_unchanged_it_is_the_run_that_was_never_forked(ppo, tmp_path):
    new = tmp_path / "new = 1"
    done = typed(f"resume={at(ppo)}", f"hydra.run.dir={new}")
    assert done.returncode == 0, done.stderr
    assert f"forking {ppo} after 128 frames\n" in done.stdout
    assert "forked after 128 frames from" in done.stdout
    for part in PARTS:
        assert digest(saved(new, part)) == digest(saved(ppo, part)), part
    assert logged(new) == logged(ppo)
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (new, ppo))
    for key in ("frames", "updates", "eval/return_mean", "eval/return_std", "best_eval/return_mean"):
        assert ours[key] == theirs[key], key
    assert ours["forked_from"] == {"run": str(ppo), "frames": 128, "changed": {}}
    assert "forked_from" not in theirs
    assert [archive.frames_of(each) for each in archive.archives(new)] == [256, 192, 128]
    done = typed(f"resume={new}")  # the last of a command's words choose the new folder
    assert f"{new} is finished after 256 frames" in done.stdout


def test_a_replay_memory_goes_with_it(dqn, tmp_path):
    before = files(dqn)
    new = forked(*DQN, resumed=at(dqn), folder=tmp_path / "new")
    for part in [*PARTS, "buffer", "exploration", "target", "sampler"]:
        assert digest(saved(new, part)) == digest(saved(dqn, part)), part
    assert logged(new) == logged(dqn)
    assert files(dqn) == before


def test_another_learning_rate_is_that_of_the_next_row_and_a_schedule_goes_on_over_it(ppo, tmp_path):
    whole, new = rates(ppo), tmp_path / "new"
    words = ["optim.lr=1e-4", "loss.module.clip_epsilon=0.1", "minibatches.epochs=3"]
    done = typed(f"resume={at(ppo)}", *words, f"hydra.run.dir={new}")
    assert done.returncode == 0, done.stderr
    assert "optim.lr=0.0001 (was 0.0006)" in done.stdout.replace("\n", " ")
    first = settings(*PPO).optim["lr"]
    assert rates(new) == pytest.approx([*whole[:2], *(each * 1e-4 / first for each in whole[2:])])
    assert rates(new)[2] != whole[2]
    assert saved(new, "loss")["clip_epsilon"] == pytest.approx(0.1)
    assert saved(new, "loss")["entropy_coeff"] == saved(ppo, "loss")["entropy_coeff"]
    changed = json.loads((new / "summary.json").read_text())["forked_from"]["changed"]
    assert changed["optim.lr"] == [first, 1e-4]
    assert set(changed) == {"optim.lr", "loss.module.clip_epsilon", "minibatches.epochs"}

    # The fork itself goes on exactly, with what it changed, also from the checkpoint that it began with.
    at(new, 192).unlink()
    assert killed(new, tmp_path / "halves") == 128
    done = typed(f"resume={tmp_path / 'halves'}")
    assert done.returncode == 0, done.stderr
    assert logged(tmp_path / "halves") == logged(new)
    assert digest(saved(tmp_path / "halves", "optimizer")) == digest(saved(new, "optimizer"))
    summary = json.loads((tmp_path / "halves" / "summary.json").read_text())
    assert summary["forked_from"]["changed"] == changed


def test_a_schedule_may_begin_or_end_there(ppo, tmp_path, capsys):
    new = forked(*PPO, "schedule=null", resumed=at(ppo), folder=tmp_path / "flat")
    assert rates(new)[2:] == [settings(*PPO).optim["lr"]] * 2
    output = " ".join(capsys.readouterr().out.split())
    assert f"the learning rate is now {settings(*PPO).optim['lr']:g}" in output
    assert "keeps it constant" not in output
    assert "; everything else continues exactly" in output
    cosine = forked(*PPO, "schedule=cosine", resumed=at(ppo), folder=tmp_path / "cosine")
    output = " ".join(capsys.readouterr().out.split())
    whole = settings(*PPO).optim["lr"]  # of which a half is left after half of the run
    assert f"the learning rate is now {whole / 2:g}; schedule=null keeps it constant" in output
    assert rates(cosine)[3] < rates(cosine)[2] < whole / 2
    assert rates(cosine)[2] != rates(ppo)[2]


def test_exploration_and_targets_are_as_the_changed_keys_say(dqn, tmp_path):
    words = ["exploration.eps_init=0.9", "exploration.eps_end=0.8", "target.value_network_update_interval=1"]
    new = forked(*DQN, *words, "optim.lr=1e-9", resumed=at(dqn), folder=tmp_path / "new")
    assert 0.8 <= saved(new, "exploration")["eps"] < 0.9
    assert saved(new, "exploration")["eps_end"] == pytest.approx(0.8)
    assert saved(new, "exploration")["eps"] != saved(dqn, "exploration")["eps"]
    loss = saved(new, "loss")
    for name in [each for each in loss if each.startswith("target_")]:
        assert torch.allclose(loss[name], loss[name.removeprefix("target_")], atol=1e-6), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=pendulum"], "env.id=Pendulum-v1: cannot change in a fork; RUN has"),
        (["actor.num_cells=[3]"], "or start a new run with these weights: init_from=RUN."),
        (["seed=7"], "seed=7: cannot change in a fork"),
        (["collector.num_envs=4"], "collector.num_envs=4: cannot change in a fork"),
        (["minibatches.sequence=4"], "minibatches.sequence=4: cannot change in a fork"),
        (["optim=adamw"], "optim._target_=torch.optim.AdamW: cannot change in a fork"),
        (["init_from=RUN"], "starts a new run"),
        (["total_frames=64"], "total_frames=64: RUN has trained for 128 frames"),
        (["loss.module.functional=true"], "does not fit a fork with loss.module.functional=true (was false)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_fork_cannot_change_is_refused_and_leaves_no_folder(ppo, tmp_path, words, message):
    words = [word.replace("RUN", str(ppo)) for word in words]
    done = typed(f"resume={at(ppo)}", *words, f"hydra.run.dir={tmp_path / 'new'}")
    assert done.returncode == 2, done.stdout
    assert message.replace("RUN", str(ppo)) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_in_the_run_s_own_folder_it_is_said_how_to_fork(ppo):
    done = typed(f"resume={at(ppo)}", "optim.lr=1")
    assert done.returncode == 2
    assert done.stderr.endswith("Leave it out, or add hydra.run.dir=NEW to fork the run there.\n")


def test_a_finished_run_and_a_folder_that_holds_one_are_refused(ppo, tmp_path):
    done = typed(f"resume={ppo}", f"hydra.run.dir={tmp_path / 'new'}")
    assert done.returncode == 2
    assert "is finished after 256 frames. Fork with a larger total_frames." in done.stderr
    assert not (tmp_path / "new").exists()
    there = shutil.copytree(ppo, tmp_path / "there")
    before = files(there)
    done = typed(f"resume={at(ppo)}", f"hydra.run.dir={there}")
    assert done.returncode == 2
    assert f"hydra.run.dir={there}: holds a run already" in done.stderr
    assert files(there) == before


def test_one_that_was_stopped_before_its_first_checkpoint_is_forked_once_more(dqn, tmp_path, monkeypatch):
    new = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(BufferFiles, "save", lambda *_: (_ for _ in ()).throw(SaveError(new, 1, 0, "full")))
        with pytest.raises(SaveError):
            forked(*DQN, resumed=at(dqn), folder=new)
    assert not archive.archives(new)
    with pytest.raises(UserError, match="is a fork that was stopped before its first checkpoint"):
        resume_point(settings(*DQN, "resume=auto", run_dir=new))
    assert logged(forked(*DQN, resumed=at(dqn), folder=new)) == logged(dqn)


def test_a_temperature_begins_anew_where_its_beginning_is_changed_and_nothing_else_does(tmp_path):
    words = [*SMALL, "algo=sac", "env=pendulum", "critic.num_cells=[16,16]", "minibatches.updates=2"]
    words += ["minibatches.warmup_frames=64"]
    train(settings(*words, "total_frames=128", run_dir=tmp_path / "run"))
    longer = [*words, "total_frames=192", "optim.lr=1e-9"]
    forked(*longer, "loss.module.alpha_init=0.5", resumed=tmp_path / "run", folder=tmp_path / "new")
    then, now = saved(tmp_path / "run", "loss"), saved(tmp_path / "new", "loss")
    assert now["log_alpha"].exp() == pytest.approx(0.5, abs=1e-5) != then["log_alpha"].exp()
    for name in [each for each in then if each.startswith(("actor", "qvalue"))]:
        assert torch.allclose(now[name], then[name], atol=1e-6), name
