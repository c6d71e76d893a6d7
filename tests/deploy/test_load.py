import csv
import json
import math
import shutil
import signal
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import av
import pytest
import torch
from omegaconf import OmegaConf

from hydrl.deploy.load import open_run, read_settings
from hydrl.errors import UserError
from hydrl.training.evaluator import SeedStream
from tests.conftest import SMALL, settings, start, typed
from train import train

SCRIPT = "scripts/evaluate.py"
DQN = ("algo=dqn", "env=cartpole", "minibatches.warmup_frames=64", "minibatches.updates=4")
PENDULUM = ("env=inverted_double_pendulum", "transforms=normalized", "init_stats_frames=200")
PLAYED = [
    PENDULUM,
    ("env=inverted_double_pendulum", "transforms=running_norm"),
    # It learns to look: a policy that does the same whatever it sees, needs no normaliser.
    (
        "env=cartpole_masked",
        "algo=recurrent_ppo",
        "collector.num_envs=2",
        "actor.num_cells=[64]",
        "optim.lr=3e-3",
    ),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run with these words, trained once."""
    folders: dict[tuple[str, ...], Path] = {}

    def call(words: tuple[str, ...]) -> Path:
        if words not in folders:
            folder = folders[words] = tmp_path_factory.mktemp("trained") / "run"
            train(settings(*SMALL, *words, run_dir=folder))
        return folders[words]

    return call


@pytest.fixture(params=PLAYED, ids=" ".join)
def finished(request, trained):
    return trained(request.param)


def alone(*words: str, script: str) -> subprocess.CompletedProcess[str]:
    """As ``typed``, in a process of its own: the way MuJoCo draws is settled as it is imported."""
    with start(*words, script=script, stderr=subprocess.PIPE) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_the_rebuilt_policy_plays_the_run_s_own_episodes_to_the_last_bit(finished):
    summary = json.loads((finished / "summary.json").read_text())
    _, frames, evaluator = open_run(finished, checkpoint="last", device="cpu", trust=False)
    again = evaluator(frames, summary["eval/episodes"], SeedStream.FINAL)
    assert frames == summary["frames"]
    assert again.mean == summary["eval/return_mean"]
    assert again.std == summary["eval/return_std"]


def test_the_rebuilt_policy_repeats_an_evaluation_of_the_training_to_the_last_bit(finished):
    with (finished / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["eval/return_mean"]]
    assert [row["frames"] for row in rows] == ["128", "256"]
    for row in rows:
        _, frames, evaluator = open_run(finished, checkpoint=row["frames"], device="cpu", trust=False)
        again = evaluator(frames, int(row["eval/episodes"]), SeedStream.TRAINING)
        assert frames == int(row["frames"])
        assert (again.mean, again.std) == (float(row["eval/return_mean"]), float(row["eval/return_std"]))


def test_it_plays_with_the_run_s_normaliser_not_one_of_its_own(finished):
    _, frames, evaluator = open_run(finished, checkpoint="last", device="cpu", trust=False)
    true = evaluator.play(frames, 4, SeedStream.LATER).returns
    for statistics in evaluator.normaliser().values():
        for value in statistics.values():
            value.add_(10)
    assert not torch.equal(evaluator.play(frames, 4, SeedStream.LATER).returns, true)


def test_the_script_scores_a_run_and_writes_it_down(trained, tmp_path):
    folder = shutil.copytree(trained(DQN), tmp_path / "run")
    done = typed(f"run={folder}", "episodes=7", "checkpoint=best", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "dqn on cartpole, best policy" in done.stdout
    assert done.stderr == ""

    scores = json.loads((folder / "evaluation.json").read_text())
    assert scores["eval/episodes"] == 7
    assert scores["eval/return_min"] <= scores["eval/return_mean"] <= scores["eval/return_max"]
    assert scores["eval/return_mean"] == pytest.approx(scores["eval/length_mean"])  # 1 a step
    assert scores["returns"] == scores["lengths"]
    assert len(scores["lengths"]) == 7
    assert scores["eval/length_min"] == min(scores["lengths"])
    assert scores["eval/length_max"] == max(scores["lengths"])
    assert (scores["checkpoint"], scores["seed"], scores["stream"]) == ("best", 0, 2)
    assert scores["frames"] in (128, 256)
    assert "video" not in scores


@pytest.mark.parametrize(
    ("words", "call", "every"),  # 50 and 20 steps a second, and at most 30 are drawn
    [
        (DQN, typed, 2),
        pytest.param(
            PENDULUM,
            alone,
            1,
            marks=[
                pytest.mark.skipif(not find_library("EGL"), reason="MuJoCo needs libEGL"),
                pytest.mark.slow,  # in a process of its own; tests/run/test_video.py films MuJoCo too
            ],
        ),
    ],
)
def test_the_script_films_the_first_episode_without_a_display(
    words, call, every, trained, tmp_path, monkeypatch
):
    for name in ("DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    folder = shutil.copytree(trained(words), tmp_path / "run")
    before = {path.name for path in folder.iterdir()}
    done = call(f"run={folder}", "episodes=3", "video=true", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {path.name for path in folder.iterdir()} - before == {"evaluation.json", "video-last.mp4"}
    scores = json.loads((folder / "evaluation.json").read_text())
    filmed = scores["video"]
    assert filmed["file"] == "video-last.mp4"
    assert filmed["return"] == pytest.approx(scores["returns"][0], rel=1e-3)
    assert f"return {filmed['return']:,.1f}, length {filmed['length']:,}" in done.stdout
    with av.open(str(folder / "video-last.mp4")) as container:
        assert container.streams.video[0].frames == 1 + math.ceil(filmed["length"] / every)


def test_what_cannot_be_filmed_is_said_before_an_episode_is_played(trained):
    folder = trained(("env=torchrl_pendulum", "total_frames=64"))
    # Playing them would take hours.
    done = typed(f"run={folder}", "episodes=100000", "video=true", script=SCRIPT)
    assert (done.returncode, done.stdout) == (2, "")
    reason = "'PendulumEnv' object has no attribute 'render'"
    assert done.stderr == f"error: video=true: PendulumEnv cannot be rendered: {reason}. Leave it out.\n"


def test_the_script_shows_episodes_in_a_window_and_scores_none(trained, tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    folder = shutil.copytree(trained(DQN), tmp_path / "run")
    done = typed(f"run={folder}", "episodes=2", "render=human", script=SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "evaluation.json").exists()
    assert typed(f"run={folder}", "episodes=2", script=SCRIPT).returncode == 0
    scores = json.loads((folder / "evaluation.json").read_text())
    assert [line.partition(", cut")[0] for line in done.stdout.splitlines()] == [
        f"episode {place}: return {length}.0, length {length}"
        for place, length in enumerate(scores["lengths"], 1)
    ]


def test_ctrl_c_ends_what_is_shown(trained, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with start(f"run={trained(DQN)}", "episodes=1000", "render=human", script=SCRIPT) as process:
        while not (line := process.stdout.readline()).startswith("episode 1: return "):
            assert line
        process.send_signal(signal.SIGINT)
        rest = process.communicate()[0]
    assert process.returncode == 130
    assert "\nstopped by Ctrl-C\n" in rest
    assert "Traceback" not in rest


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one")
def test_where_there_is_no_display_it_is_said_at_once(trained, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    done = typed(f"run={trained(DQN)}", "render=human", script=SCRIPT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: render=human: no display to open a window on (DISPLAY and WAYLAND_DISPLAY are not set). "
        "Use video=true to record a video.\n"
    )


def test_the_script_writes_a_file_for_other_programs(trained, tmp_path):
    folder = shutil.copytree(trained(DQN), tmp_path / "run")
    file = tmp_path / "policy.pt2"
    done = typed(f"run={folder}", "episodes=1", f"export={file}", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{file}: observation float32 [batch, 4] -> action int64 [batch]\n")
    assert torch.export.load(file).module()(torch.zeros(5, 4)).shape == (5,)
    wrong = typed(f"run={folder}", "export=policy.txt", script=SCRIPT)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert (
        wrong.stderr == "error: export=policy.txt: unknown format. Use a name that ends in .onnx or .pt2.\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run=nowhere", "render=rgb_array"],
            "render=rgb_array: unknown. Use human",
        ),
        (["run=nowhere", "render=human", "video=true"], "does not go with video=true. Use one of the two."),
        ([], "run: no value. Write run=VALUE, such as run=outputs/… episodes=100."),
        (["run=nowhere"], "run=nowhere: no such folder"),
        (["run=nowhere", "episode=3"], "episode=3: no such key. Write episodes=3."),
        (["run=nowhere", "episodes=many"], "'many'"),
        (["run=nowhere", "episodes=0"], "episodes=0: out of range. Use 1 or more."),
        (
            ["run=nowhere", "checkpoint=first"],
            "checkpoint=first: unknown. Use last, best or",
        ),
        (["run=nowhere", "checkpoint=-5"], "checkpoint=-5: unknown. Use last, best or"),
        (["run=nowhere", "checkpoint={"], "checkpoint={: unknown. Use last, best or"),
        (["run=nowhere", "stream=-1"], "stream=-1: out of range. Use 0 or more."),
        (["run=nowhere", "video=maybe"], "'maybe' is not a valid bool"),
        (["run=${nothing}"], "'nothing' not found"),
        (["nowhere"], "nowhere: no value. Write KEY=VALUE"),
        (["tests"], "tests: no value. Write run=tests."),
    ],
)
def test_mistakes_are_told_in_a_line(words, message):
    done = typed(*words, script=SCRIPT)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


NESTED = {"_target_": "torchrl.envs.Compose", "_args_": [{"_target_": "os.mkdir", "path": "/tmp/c"}]}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env._target_", "os.system", r"names os\.system, which is not one of hydrl's components"),
        ("transforms.planted", NESTED, r"names _args_, os\.mkdir, which is not one of hydrl's components"),
        ("env.id", "os:CartPole-v1", r"names os:CartPole-v1, which is not one of hydrl's components"),
        ("env.id", "${oc.decode:os:X-v0}", r"names os:X-v0, which is not one of hydrl's components"),
        ("total_frames", "many", "config_resolved.yaml is not valid: total_frames=many"),
        ("env", "${nothing}", "config_resolved.yaml cannot be read: "),
    ],
)
def test_a_folder_that_names_what_is_not_hydrl_s_is_refused_in_a_line(key, value, message, tmp_path):
    chosen = settings("env=cartpole", run_dir=tmp_path)
    config = OmegaConf.create(chosen.shown)
    OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.save(config, tmp_path / "config_resolved.yaml")
    with pytest.raises(UserError, match=f"^run={tmp_path}: .*{message}"):
        read_settings(tmp_path, trust=False)
    if value == "os.system":
        assert read_settings(tmp_path, trust=True).env["_target_"] == value


def test_nothing_is_read_through_a_link(tmp_path):
    (tmp_path / "elsewhere").write_text("seed: 1")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config_resolved.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"config_resolved\.yaml is a link"):
        read_settings(run, trust=False)
