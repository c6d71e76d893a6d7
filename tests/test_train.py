"""The whole of `train.py`, as a user starts it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

import hydrl.training.metrics
from hydrl.run.checkpoint import archive
from tests.conftest import HANGING, ROOT, SMALL, saved, start, typed

# Half of it, and little learning.
FAST = [
    "debug=fast",
    "~tuned",
    "total_frames=1_024",
    "collector.frames_per_batch=128",
    "log_every_frames=128",
]
FAST += ["eval.every_frames=512", "eval.max_steps=50", "checkpoint_every_frames=512"]
PPO = ["algo=ppo", *FAST, "minibatches.epochs=2"]
DQN = ["algo=dqn", *FAST, "minibatches.warmup_frames=256"]
FIXED = ["transforms=normalized", "init_stats_frames=1_000"]  # statistics, as workers need
slow = partial(pytest.param, marks=pytest.mark.slow)


def metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv`` without what depends on the clock."""
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


def test_a_run_leaves_what_it_promises(run):
    folder = run("env=cartpole", *PPO)

    summary = json.loads((folder / "summary.json").read_text())
    assert {key: summary[key] for key in ("algo", "env", "seed", "frames", "eval/episodes")} == {
        "algo": "ppo",
        "env": "cartpole",
        "seed": 0,
        "frames": 1024,
        "eval/episodes": 2,
    }
    assert summary["updates"] == 8 * 2 * (128 // 64)
    assert summary["solved_at_frames"] is None
    assert summary["wall_seconds"] > 1024 / summary["frames_per_second"]
    rows = metrics(folder)
    assert next(iter(rows[0])) == "frames"
    assert [row["frames"] for row in rows] == [str(128 * batch) for batch in range(1, 9)]
    evaluated = [row for row in rows if row["eval/return_mean"]]
    assert [row["frames"] for row in evaluated] == ["512", "1024"]
    means = [(float(row["eval/return_mean"]), int(row["frames"])) for row in evaluated]
    best = max([*means, (summary["eval/return_mean"], 1024)])
    assert summary["best_eval/return_mean"] == best[0]
    page, curves = (folder / "run.html").read_text(), (folder / "curves.png").read_bytes()
    assert f'src="data:image/png;base64,{b64encode(curves).decode()}"' in page
    for row in (
        "<td>trained</td>\n<td><code>1,024 frames, 32 updates</code></td>",
        "<td><code>total_<wbr>frames</code></td>\n<td><code>1_<wbr>024</code></td>",
    ):
        assert row in page
    assert archive.find(folder, "last").name == "checkpoint-000000001024.torchrl"
    assert archive.frames_of(archive.find(folder, "best")) == best[1]


def test_the_first_evaluation_at_the_threshold_is_when_it_counts_as_solved_and_stops(run):
    folder = run("env=cartpole", *PPO, "eval.reward_threshold=5", "eval.stop_when_solved=true")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["solved_at_frames"] == summary["frames"] == 512
    assert 0 < summary["solved_at_seconds"] <= summary["wall_seconds"]


def test_a_solution_that_fresh_episodes_do_not_confirm_does_not_stop_the_run(run, evaluations, capsys):
    evaluations({512: 500.0, 1024: 500.0}, {512: 10.0, 1024: 10.0})
    folder = run("env=cartpole", *PPO, "eval.stop_when_solved=true")
    assert "fresh episodes returned 10.0; the threshold is 475\n" in capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["frames"] == 1024
    assert summary["solved_at_frames"] == 512
    assert summary["eval/return_mean"] == 10.0


@pytest.mark.parametrize(
    ("training", "closing", "stop", "best", "solved"),
    [
        ({256: 30.0, 512: 20.0}, {512: 40.0}, False, (512, 40.0), 512),
        ({256: 50.0, 512: 20.0}, {512: 45.0}, False, (256, 50.0), 256),
        ({256: 30.0, 512: 45.0}, {512: 35.0}, False, (512, 45.0), 512),  # the same policy twice
        ({256: 50.0}, {256: 60.0}, True, (256, 60.0), 256),
        ({256: 90.0, 512: 50.0}, {256: 30.0, 512: 45.0}, True, (512, 45.0), 256),
        ({}, {512: 35.0}, False, (512, 35.0), None),
    ],
    ids=[
        "the best",
        "not the best",
        "at the last one's frames",
        "that confirms a solution",
        "that confirms another than the highest",
        "the only one",
    ],
)
def test_the_closing_evaluation_competes_with_the_others(
    training, closing, stop, best, solved, run, evaluations
):
    evaluations(training, closing)
    short = ["total_frames=512", "collector.frames_per_batch=256", "log_every_frames=10_000"]
    short += [f"eval.every_frames={256 if training else 10_000}"]
    stops = f"eval.stop_when_solved={str(stop).lower()}"
    folder = run("env=cartpole", *PPO, *short, "eval.reward_threshold=40", stops)
    summary = json.loads((folder / "summary.json").read_text())
    found = archive.frames_of(archive.find(folder, "best"))
    assert (found, summary["best_eval/return_mean"], summary["solved_at_frames"]) == (*best, solved)
    assert (summary["frames"], summary["eval/return_mean"]) == list(closing.items())[-1]
    logged = {int(row["frames"]): row.get("eval/return_mean", "") for row in metrics(folder)}
    assert logged == {frames: str(training.get(frames, "")) for frames in logged}  # of the training alone


@pytest.mark.parametrize(
    "words",
    [
        ["env=inverted_double_pendulum", *PPO],
        ["env=cartpole", *DQN, "minibatches.warmup_frames=128"],
    ],
)
def test_the_same_seed_gives_the_same_run_to_the_last_bit_and_another_does_not(words, run, monkeypatch):
    batches: list[torch.Tensor] = []
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, losses):
        batches.append(torch.cat([batch["observation"].flatten(), batch["action"].flatten().float()]))
        return learned(self, batch, losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)

    def outcome(folder, seed):
        batches.clear()
        path = run(*words, "total_frames=256", f"seed={seed}", folder=folder)
        state = saved(path, "actor")
        return torch.cat(batches), torch.cat([value.flatten() for value in state.values()])

    data, weights = outcome("a", 5)
    again, weights_again = outcome("b", 5)
    other, other_weights = outcome("c", 6)
    assert torch.equal(data, again)
    assert torch.equal(weights, weights_again)
    assert not torch.equal(data, other)
    assert not torch.equal(weights, other_weights)


@pytest.mark.parametrize(
    "overrides",
    [
        slow(["env=half_cheetah", *PPO]),
        ["env=pendulum", "actor=state_independent", *PPO],
        ["env=cartpole", "loss=kl_penalty", "schedule=linear", "optim=adamw", *PPO],
        slow(["env=pendulum", "transforms=running_norm", *PPO]),
        slow(["env=torchrl_pendulum", *PPO]),
        ["env=gym", "env.id=MountainCarContinuous-v0", "+env.max_episode_steps=50", *PPO],
        ["env=acrobot", *DQN],
        ["env=cartpole", "actor=dueling", "target=soft", *DQN],
        slow(["env=cartpole", "buffer=memmap", *DQN]),
        slow(["env=cartpole", "loss.module.double_dqn=false", *DQN]),
        slow(["env=cartpole", "collector=multi_sync", "collector.num_envs=4", *FIXED, *PPO]),
        slow(["env=cartpole", "collector=multi_async", *DQN]),
        slow(["env=pendulum", "collector=pipelined", "collector.num_envs=4", *FIXED, *PPO]),
        slow(["env=pendulum", "compile=true", *PPO]),
        slow(["env=cartpole", "compile=true", *DQN]),
    ],
    ids=lambda words: " ".join(words[: -len(FAST) - 1]),
)
def test_parts_are_swapped_by_an_override_and_learn(overrides, run):
    folder = run(*overrides, "total_frames=512")
    rows = metrics(folder)
    assert rows[-1]["frames"] == "512"
    losses = {key for key in rows[-1] if key.startswith("loss/") and key != "loss/grad_norm"}
    assert losses
    assert all(float(rows[-1][key]) == float(rows[-1][key]) for key in losses)  # none is NaN
    assert float(rows[-1]["loss/grad_norm"]) > 0
    if "transforms=running_norm" not in overrides:
        assert json.loads((folder / "summary.json").read_text())["eval/return_mean"] is not None


@pytest.mark.parametrize("stops", [[384], slow([256, 384])], ids=["in one go", "resumed"])
def test_one_update_a_frame_is_exact_while_a_process_collects(stops, run):
    words = [
        "algo=sac",
        "env=pendulum",
        *SMALL,
        "collector=pipelined",
        "collector.num_envs=1",
        "compile=false",
    ]
    words += ["critic.num_cells=[16,16]", "collector.init_random_frames=64", "minibatches.warmup_frames=128"]
    for frames in stops:
        folder = run(*words, f"total_frames={frames}", "resume=auto")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["frames"], summary["updates"]) == (
        384,
        384 - 64,
    )  # all but the first batch's, which fills
    rows = saved(folder, "buffer")
    seen, following = rows["observation"], rows["next"]["observation"]
    assert len(seen) == 384
    goes_on = (following[:-1] == seen[1:]).all(-1)
    assert (~goes_on).nonzero()[:, 0].tolist() == [199]  # an episode's end, and not where it was resumed


@pytest.mark.parametrize(
    ("collector", "signum", "code"),
    [
        slow("single compile=false", signal.SIGTERM, 143),  # as in tests/run/checkpoint/test_resume_exact.py
        ("pipelined compile=false", signal.SIGINT, 130),
        slow("single compile=true", signal.SIGTERM, 143),
        slow("multi_sync compile=false", signal.SIGINT, 130),
        slow("pipelined compile=true", signal.SIGTERM, 143),
    ],
)
def test_a_stopped_run_leaves_its_policy_and_no_process(collector, signum, code, tmp_path):
    process = start(
        "env=cartpole", "~tuned", *f"collector={collector}".split(), "collector.frames_per_batch=256", *FIXED,
        "collector.num_envs=2", "eval.every_frames=256", "eval.episodes=1", f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:  # the first evaluation: it is training
        if "evaluation" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signum)
    output, _ = process.communicate()
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert "(interrupted)" in output
    _, left = psutil.wait_procs(children, timeout=HANGING)
    assert not left
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert archive.frames_of(archive.find(tmp_path, "last")) == summary["frames"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_terminal_s_whole_group_is_the_run_s_to_answer(signum, code, tmp_path, capsys):
    process = start(
        "env=cartpole", "~tuned", "collector=multi_sync", "collector.frames_per_batch=256", *FIXED,
        "eval.every_frames=256", "eval.episodes=1", "eval.backend=process", f"hydra.run.dir={tmp_path}",
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "evaluation" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signum)
    began = time.monotonic()
    output, _ = process.communicate()
    with capsys.disabled():
        print(f"\n{signal.Signals(signum).name}: the run ended after {time.monotonic() - began:.1f} s")
    assert (process.returncode, "Traceback" in output) == (code, False), output
    assert output.splitlines()[-1].startswith("resume with: ")
    assert not psutil.wait_procs(children, timeout=HANGING)[1]


@pytest.mark.slow
def test_ctrl_c_that_ends_the_compiler_too_ends_the_run_as_any_other(tmp_path, monkeypatch):
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(
        f"""#!/bin/sh
case "$*" in *{tmp_path}/cache/*main.cpp*) kill -INT $PPID; echo broken off >> {log}; exit 1;; esac
exec g++ "$@"
"""
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # which takes ten seconds
    process = start(
        *("algo=dqn", "env=cartpole", "~tuned", "compile=true", "minibatches.warmup_frames=128"),
        f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    output, _ = process.communicate()
    assert log.exists()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "(interrupted)" in output
    assert archive.find(tmp_path / "run", "last")


def test_ctrl_c_while_python_imports_ends_it_without_a_traceback(tmp_path):
    (tmp_path / "hydra.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)"
    )
    command = [sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.slow
def test_a_run_stopped_before_its_first_update_ends_too(tmp_path):
    """Nothing was sent to the worker yet; TorchRL would start the thread that sends while Python ends."""
    process = start(
        "env=cartpole", "~tuned", "collector=pipelined", "collector.frames_per_batch=100_000",
        "collector.num_envs=8", "minibatches.size=1_000", *FIXED, "compile=false",
        f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    while not (tmp_path / "config_resolved.yaml").exists():  # written as the loop begins
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130, output


def test_a_sweep_runs_each_member_as_it_runs_alone(tmp_path, run):
    words = ["env=pendulum", "algo=ppo", "seed=3", *FAST, "total_frames=512"]
    sweep = typed("-m", "minibatches.size=32,64", *words, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert sweep.returncode == 0, sweep.stderr
    first, second = sorted((tmp_path / "sweep").rglob("summary.json"))
    assert second.parent.name == "ppo-pendulum-minibatches.size_64-seed3"
    assert metrics(first.parent) != metrics(second.parent)
    assert metrics(second.parent) == metrics(run(*words, "minibatches.size=64"))


def test_a_sweep_with_a_wrong_member_starts_none(tmp_path):
    words = ["env=pendulum", "algo=ppo", *FAST, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    sweep = typed("-m", "minibatches.size=999,64", *words)
    assert sweep.returncode == 2
    assert "minibatches.size=999: is more than collector.frames_per_batch=128" in sweep.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    "words", [slow(FIXED, id="fixed statistics"), pytest.param([], id="running statistics")]
)
def test_a_normal_run_shows_no_library_s_warnings(words, tmp_path):
    process = start("env=half_cheetah", *words, *PPO, f"hydra.run.dir={tmp_path}")
    output, _ = process.communicate()
    assert process.returncode == 0
    lines = [line for line in output.splitlines() if line.strip()]
    table = next(n for n, line in enumerate(lines) if "ppo on half_cheetah, seed 0" in line)
    assert "this run makes up to 32 updates; torch.compile saves time from" in lines[0]
    told = ("evaluation", "/step", "2 of 2 episodes were still running after 50 steps")
    assert all(any(each in line for each in told) for line in lines[1:table]), output
    assert not (ROOT / "MUJOCO_LOG.TXT").exists()
