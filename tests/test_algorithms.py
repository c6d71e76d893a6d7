"""What hydrl promises of a run, kept by every algorithm in configs/algo: found by listing the folder."""

import json
import math
from contextlib import closing
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from hydrl import envs, specs
from hydrl.config import CONFIGS
from hydrl.config.settings import check_action_space, read_action_spaces
from hydrl.config.tree import find, option_names
from hydrl.deploy.load import open_run
from hydrl.errors import UserError
from hydrl.experiments import report, runs
from hydrl.run.checkpoint import archive
from hydrl.run.video import record_episode
from hydrl.training import SeedStream
from tests.conftest import batches_digested, data_of, digest, killed, logged, saved, settings, start

ALGORITHMS = option_names(CONFIGS / "algo")
SMALL = ["total_frames=256", "collector.frames_per_batch=64", "minibatches.size=32"]
SMALL += ["eval.every_frames=128", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=10"]
SMALL += ["log_every_frames=64", "checkpoint_every_frames=128"]
# Where an algorithm has the key, and it is not 0.
LESS = {
    "minibatches.epochs": 2,
    "minibatches.sequence": 8,
    "minibatches.burn_in": 2,
    "minibatches.updates": 4,
}
LESS |= {"minibatches.warmup_frames": 64, "collector.init_random_frames": 64}
LESS |= {
    f"{part}.num_cells": "[16,16]" for part in ("actor", "critic", "value", "discriminator", "predictor")
}
LESS |= {"actor.width": 16, "actor.layers": 1}
NANO = {
    "deterministic": 16,
    "hidden": 8,
    "categoricals": 2,
    "classes": 4,
    "units": 8,
    "blocks": 4,
    "bins": 31,
}
LESS |= {f"world_model.{key}": value for key, value in NANO.items()} | {"loss.module.imagination": 3}
LESS |= {
    "model.hidden": 16,
    "model.layers": 1,
    "minibatches.right": 0.0,
}  # else an untrained model is never right
LESS |= {"actor.members": 2, "planner.num_candidates": 8, "planner.top_k": 4}
LESS |= {"planner.planning_horizon": 3, "planner.optim_steps": 1}


def env_of(algo: str, fits: bool = True) -> str:
    """A task whose actions the algorithm can take, or one whose it cannot."""
    spaces = read_action_spaces()[algo]
    if spaces[0].startswith("multi-agent"):
        pytest.importorskip("vmas")
        return "vmas_navigation" if fits else "pendulum"
    if spaces == ["text"]:
        pytest.importorskip("transformers")
        return "digits" if fits else "cartpole"
    kind = "continuous" if "continuous" in spaces else "discrete"
    other = "discrete" if kind == "continuous" else "continuous"
    return {"continuous": "pendulum", "discrete": "cartpole"}[kind if fits else other]


@cache
def small(algo: str, data: Path) -> tuple[str, ...]:
    """A few batches of the algorithm on a small task."""
    words = [f"algo={algo}", f"env={env_of(algo)}", "~tuned", *data_of(algo, data / env_of(algo))]
    if read_action_spaces()[algo] == ["multi-agent discrete"]:
        words.append("+env.continuous_actions=false")
    keys = settings(*words).model_dump()
    return (*words, *SMALL, *(f"{key}={value}" for key, value in LESS.items() if find(keys, key)))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """What short runs kept in their replay memories, by the names of their tasks."""
    from train import train

    folder = tmp_path_factory.mktemp("data")
    for algo, env in (("sac", "pendulum"), ("dqn", "cartpole")):
        words = [f"algo={algo}", f"env={env}", "~tuned", *SMALL, "minibatches.warmup_frames=128"]
        words += ["minibatches.updates=4", "total_frames=1_024"]  # in which episodes come to their end
        words += [
            "collector.frames_per_batch=128",
            "eval.every_frames=1_024",
            "checkpoint_every_frames=1_024",
        ]
        train(settings(*words, run_dir=folder / env))
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The folder of an algorithm's short run and digests of its batches, made when it is first asked for."""
    from train import train

    @cache
    def of(algo: str) -> tuple[Path, list[str]]:
        folder, words = tmp_path_factory.mktemp("finished") / algo, small(algo, data)
        with pytest.MonkeyPatch.context() as patch:
            batches = batches_digested(patch)
            train(settings(*words, run_dir=folder))
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(words))
        return folder, batches

    return of


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_going_on_equals_never_having_stopped(algo, data, finished, run, batches, capsys, tmp_path):
    """Parameters, targets, optimizer, buffer, generators, data after the stop, and the log."""
    overrides = small(algo, data)
    whole, unbroken = finished(algo)
    batches.clear()
    assert killed(whole, tmp_path / "halves") == 128
    torch.rand(7)  # nothing of this process may help
    halves = run(*overrides, "resume=auto", folder="halves")
    said = capsys.readouterr().out.replace("\n", " ")
    if env_of(algo).startswith("vmas"):  # whose simulator nobody can read
        assert "episodes start anew" in said
        return
    assert "everything continues exactly" in said
    assert len(unbroken) == 4
    assert batches == unbroken[2:]
    with ZipFile(archive.find(whole, "last")) as file:
        names = {name.split("/")[1].partition("-")[2] for name in file.namelist() if "/" in name} - {"books"}
    assert {"actor", "loss", "optimizer", "update", "minibatches", "normaliser", "rng", "collector"} <= names
    for part in {*names, *(["buffer"] if "writer" in names else [])}:
        assert digest(saved(halves, part)) == digest(saved(whole, part)), part
    assert logged(halves) == logged(whole)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_rebuilt_policy_repeats_the_closing_evaluation(algo, finished):
    folder, _ = finished(algo)
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 2, SeedStream.FINAL)
    assert played.mean == json.loads((folder / "summary.json").read_text())["eval/return_mean"]


# Continuous and discrete actions, and critics evaluated together.
IN_BF16 = ["ppo", "dqn", "sac"]


@pytest.mark.parametrize(
    "algo", [pytest.param(algo, marks=[] if algo in IN_BF16 else pytest.mark.slow) for algo in ALGORITHMS]
)
def test_bf16_trains_float32_weights_of_the_same_names(algo, data, finished, run):
    if env_of(algo) == "digits":
        pytest.skip("a language model has a type of its own, model.dtype")
    plain, folder = finished(algo)[0], run(*small(algo, data), "precision=bf16")
    weights, expected = saved(folder, "loss"), saved(plain, "loss")
    assert [*weights] == [*expected]
    for key, weight in weights.items():
        assert (weight.dtype, weight.shape) == (expected[key].dtype, expected[key].shape), key
        assert weight.isfinite().all(), key
    assert digest(weights) != digest(expected)
    values = [float(cell) for row in logged(folder) for cell in row.values() if cell]
    assert all(map(math.isfinite, values))


SMALLEST = {"minibatches.size": 1, "minibatches.updates": 1, "minibatches.warmup_frames": 1}
SMALLEST |= {"minibatches.burn_in": 0, "minibatches.epochs": 1, "collector.init_random_frames": 0}
# What they standardise by, of which one has no deviation.
BY = dict.fromkeys(["mappo", "ippo", "recurrent_ppo", "gail", "rnd"], "collector.frames_per_batch")
BY |= dict.fromkeys(["crossq", "xqc", "flash_sac"], "minibatches.size")


@pytest.mark.parametrize("num_envs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_smallest_batch_is_learned_from_or_refused_in_a_line(algo, num_envs, data, run):
    """A frame of each environment, cut into minibatches of one; of two where a memory learns from them."""
    words = [*small(algo, data)]
    plain = settings(*words).model_dump()
    words += [f"{key}={value}" for key, value in SMALLEST.items() if find(plain, key)]
    words += ["total_frames=8", "eval.max_steps=5", "log_every_frames=1", f"collector.num_envs={num_envs}"]
    steps = 2 if find(plain, "minibatches.sequence") else 1
    if find(plain, "minibatches.group_size"):
        num_envs *= 2
        words += ["minibatches.group_size=2", f"collector.num_envs={num_envs}"]
    words += ["minibatches.sequence=2", "minibatches.size=2"] if steps == 2 else []
    words += ["minibatches.size=2"] if find(plain, "minibatches.share") else []  # one of each
    words += [f"collector.frames_per_batch={steps * num_envs}"]
    if f"{(by := BY.get(algo))}=1" in words:
        with pytest.raises(UserError, match=f"^{by}=1: .* normalize[sd] over the .*Use {by}=2"):
            settings(*words)
        words += [f"{by}=2"]
    folder = run(*words)
    found = [float(each) for row in logged(folder) for each in row.values() if each]
    assert all(map(math.isfinite, found))
    assert json.loads((folder / "summary.json").read_text())["updates"] >= 3


# One that acts by numbers, one by choices and one with a memory.
FILMED = ["sac", "dqn", "recurrent_ppo"]


@pytest.mark.parametrize(
    "algo", [pytest.param(each, marks=[] if each in FILMED else pytest.mark.slow) for each in ALGORITHMS]
)
def test_a_film_is_of_the_policy_that_was_trained(algo, finished, tmp_path):
    if env_of(algo).startswith("vmas") and not find_library("EGL"):
        pytest.skip("VMAS draws through libEGL")
    if env_of(algo) == "digits":
        pytest.skip("text is not drawn")
    folder, _ = finished(algo)
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 1, SeedStream.FINAL)
        value, steps, _ = record_episode(evaluator, tmp_path / "film.mp4", frames, SeedStream.FINAL)
    assert value == pytest.approx(played.mean, rel=1e-4)
    assert steps == played.lengths.item()
    assert (tmp_path / "film.mp4").stat().st_size > 1_000


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_actions_it_cannot_take_are_told_in_a_line(algo, data):
    words = [word for word in small(algo, data) if not word.startswith(("env=", "+env."))]
    if {"continuous", "discrete"} <= set(read_action_spaces()[algo]):
        pytest.skip("it takes all that one agent can do")
    chosen = settings(*words, f"env={env_of(algo, fits=False)}")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    with pytest.raises(UserError, match=f"^algo={algo}: acts in .* action spaces, and env=.* Use algo="):
        check_action_space(chosen, specs.action_kind(env))


def test_a_report_compares_them_all(finished, tmp_path):
    several = [algo for algo in ALGORITHMS if read_action_spaces()[algo][0].startswith("multi-agent")]
    there = [algo for algo in ALGORITHMS if algo not in several or find_spec("vmas")]
    counted, left_out = runs.load_runs([finished(algo)[0] for algo in there])
    assert left_out == {}
    page = report.write_report(counted, left_out, tmp_path / "report.md", "")
    assert all(f"algo={algo}" in page for algo in there)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_goes_on_and_ends_as_if_nobody_had_killed_it(algo, data, tmp_path):
    words = [*small(algo, data), "total_frames=4_096"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert start(*words, f"hydra.run.dir={whole}").wait() == 0
    process = start(*words, f"hydra.run.dir={stopped}")
    while not archive.archives(stopped):
        assert process.poll() is None
    process.kill()
    process.wait()
    assert start(*words, f"hydra.run.dir={stopped}", "resume=auto").wait() == 0
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (stopped, whole))
    assert ours["frames"] == theirs["frames"]
    assert ours["resumed_at_frames"]
    if not env_of(algo).startswith("vmas"):
        assert logged(stopped) == logged(whole)


@pytest.mark.slow
def test_a_sweep_trains_them_all(data, tmp_path):
    single = [algo for algo in ALGORITHMS if not read_action_spaces()[algo][0].startswith("multi-agent")]
    for kind, env in (("continuous", "pendulum"), ("discrete", "cartpole")):
        able = [algo for algo in single if kind in read_action_spaces()[algo] and not data_of(algo)]
        words = ["-m", f"algo={','.join(able)}", f"env={env}", "~tuned", *SMALL, "hydra.launcher.n_jobs=2"]
        sweep = start(*words, f"hydra.sweep.dir={tmp_path / env}")
        said, _ = sweep.communicate()
        assert sweep.returncode == 0, said
        assert f"{len(able)} of {len(able)} finished" in said
