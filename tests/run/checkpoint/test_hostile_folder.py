"""Going on with a folder that somebody else made: it runs nothing, and reads and removes nothing outside."""

import os
import shutil

import pytest
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive, resume_command
from tests.conftest import SMALL, settings, start, typed

HOSTILE = {
    "another part": "env._target_=os.system",
    "a nested part": "+transforms.x._target_=builtins.exec",
    "a part in a list": "+transforms.x={_target_:torchrl.envs.Compose,"
    "_args_:[{_target_:os.mkdir,path:CANARY}]}",
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


def planted(name, half, tmp_path):
    """A copy of a run whose overrides hold what ``HOSTILE`` names, and what there would be if it ran."""
    folder, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(half, folder)
    evil = (
        f"# @package _global_\nhydra:\n  callbacks:\n    x:\n      _target_: os.mkdir\n      path: {canary}\n"
    )
    (tmp_path / "evil.yaml").write_text(evil)
    file = folder / ".hydra" / "overrides.yaml"
    overrides = OmegaConf.to_container(OmegaConf.load(file))
    given = HOSTILE[name]
    if isinstance(given, str):
        given = given.replace("OUTSIDE", os.path.relpath(tmp_path / "evil", CONFIGS / "env"))
        given = given.replace("CANARY", str(canary))
    kept = [each for each in overrides if not isinstance(given, str) or not each.startswith("env=")]
    environment = ["env=gym"] if isinstance(given, str) and given.startswith("env.") else ["env=cartpole"]
    OmegaConf.save(OmegaConf.create([*environment, *kept, given]), file)
    return folder, canary


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_run_folder_is_refused_in_a_line_and_runs_nothing(name, half, tmp_path):
    folder, canary = planted(name, half, tmp_path)
    done = typed(f"resume={folder}", "total_frames=192")
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert len(archive.archives(folder)) == 1
    assert not canary.exists()


def test_a_hostile_run_folder_is_refused_in_a_process_of_its_own_too(half, tmp_path):
    """One in which nothing was imported before."""
    folder, canary = planted("a choice outside", half, tmp_path)
    with start(f"resume={folder}", "total_frames=192") as process:
        said, _ = process.communicate()
    assert process.returncode == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not canary.exists()


@pytest.mark.parametrize("place", ["/tmp/c", "RUN/../c", "RUN/replay/../../c"])
def test_a_replay_memory_outside_the_run_is_not_written_unless_trusted(tmp_path, place):
    place = place.replace("RUN", str(tmp_path / "run"))
    overrides = [
        "algo=dqn",
        "env=cartpole",
        "buffer=memmap",
        f"buffer.storage.scratch_dir={place}",
        "resume=x",
    ]
    with pytest.raises(UserError, match=r"scratch_dir=.*/c is outside the run\. Add trust=true"):
        settings(*overrides, run_dir=tmp_path / "run")
    assert settings(*overrides, "trust=true", run_dir=tmp_path / "run").trust


@pytest.mark.parametrize("given", ["${oc.env:HOME}", "of ${task}"])
def test_a_folder_of_others_does_not_hand_the_environment_to_its_logger(tmp_path, given):
    overrides = ["task=${oc.env:HOME}", "logger=wandb", f"logger.wandb.project={given}", "resume=x"]
    with pytest.raises(UserError, match="its logger is given environment variables\. Add trust=true"):
        settings(*overrides, run_dir=tmp_path)
    assert settings(*overrides, "trust=true", run_dir=tmp_path).trust


MEMMAP = [*SMALL, "algo=dqn", "env=cartpole", "minibatches.warmup_frames=64", "minibatches.updates=1"]
MEMMAP += ["buffer=memmap", "buffer.storage.max_size=500"]


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A run with its replay memory on disk, left by a user at the command line."""
    folder = tmp_path_factory.mktemp("on_disk") / "run"
    done = typed(*MEMMAP, f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("place", "message"),
    [("..", "is outside the run"), ("../outside", "is outside the run"), ("link", "is a link")],
)
def test_going_on_with_a_folder_of_others_removes_nothing_outside_it(on_disk, tmp_path, place, message):
    """Wherever its replay memory is said to lie, and also where it is the run's own."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(on_disk, folder)
    outside.mkdir()
    (outside / "precious").write_text("still here")
    if place == "link":
        (folder / "link").symlink_to(outside)
    overrides = [*MEMMAP, f"buffer.storage.scratch_dir={folder}/{place}"]
    OmegaConf.save(OmegaConf.create(overrides), folder / ".hydra" / "overrides.yaml")
    done = typed(f"resume={folder}", "total_frames=512")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (outside / "precious").read_text() == "still here"
    assert folder.is_dir()


@pytest.mark.parametrize("link", ["metrics.csv", "checkpoints", ".hydra", ".hydra/overrides.yaml", "replay"])
def test_nothing_is_read_or_written_through_a_link_in_a_run_folder(link, half, tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(half, folder)
    if (folder / link).exists():
        (folder / link).rename(outside)
    else:
        outside.mkdir()
    (folder / link).symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        resume_command.expand([f"resume={folder}"])
