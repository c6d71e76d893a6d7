"""Evaluations in a process of their own are those of the loop's turn, wherever the run is by then."""

import json
import os
import pickle
import re
import shutil
import signal
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch

from hydrl.contrib.ray import cluster as machines
from hydrl.contrib.ray import evaluation
from hydrl.errors import UserError, WorkerError
from hydrl.metric_names import RETURN_MEAN
from hydrl.run.checkpoint import archive
from hydrl.run.eval_process import EvalProcess, try_snapshot
from hydrl.run.eval_schedule import EvalSchedule
from tests.conftest import SMALL_PPO, digest, logged, resume_point, saved, settings

# Its normaliser's statistics change with every batch, and each look is due two batches after the one before.
WORDS = [*SMALL_PPO, "env=inverted_double_pendulum", "collector.num_envs=2", "total_frames=512"]
WORDS += ["eval.max_steps=100", "checkpoint_every_frames=192", "keep_checkpoints=9"]
BESIDE = [*WORDS, "eval.backend=process"]
SAME = ("frames", "updates", "eval/return_mean", "best_eval/return_mean", "solved_at_frames")


def trained(folder: Path, *words: str) -> Path:
    from train import train

    chosen = settings(*words, run_dir=folder)
    train(chosen, resume_point(chosen))
    return folder


def told(folder: Path) -> dict[str, object]:
    summary = json.loads((folder / "summary.json").read_text())
    return {key: summary[key] for key in SAME}


def evaluated(folder: Path) -> dict[int, str]:
    """Mean returns by frames, as the log has them."""
    rows = {int(row["frames"]): row.get("eval/return_mean", "") for row in logged(folder)}
    return {frames: mean for frames, mean in rows.items() if mean}


def scores(folder: Path) -> dict[int, str]:
    """The same, as the checkpoints have them."""
    there = dict(archive.readable(archive.archives(folder))).values()
    return {each["frames"]: str(each[RETURN_MEAN]) for each in there if RETURN_MEAN in each}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with evaluations in the loop's turn, and beside it."""
    folder = tmp_path_factory.mktemp("looks")
    return trained(folder / "loop", *WORDS), trained(folder / "beside", *BESIDE)


def agree(loop: Path, beside: Path) -> None:
    """All is logged and learned alike."""
    assert logged(beside) == logged(loop)
    assert [*evaluated(beside)] == [128, 256, 384, 512]
    assert told(beside) == told(loop)
    for part in ("loss", "optimizer", "normaliser", "rng", "collector"):
        assert digest(saved(beside, part)) == digest(saved(loop, part)), part


def fit(loop: Path, beside: Path) -> None:
    """A checkpoint has the weights that its score tells of."""
    assert scores(beside) == evaluated(loop)
    assert scores(loop)
    for frames in scores(loop):
        for part in ("actor", "normaliser"):
            ours, theirs = (digest(saved(folder, part, str(frames))) for folder in (loop, beside))
            assert ours == theirs, (frames, part)


def test_all_is_logged_and_learned_as_in_the_loop(runs):
    agree(*runs)


def test_a_checkpoint_has_the_weights_its_score_tells_of(runs):
    fit(*runs)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose first evaluation ended with its process, and what was said of it."""
    folder = tmp_path_factory.mktemp("failed") / "run"

    def kill(self, snapshot, send=EvalProcess.send):
        self.process.kill()
        self.process.join()
        send(self, snapshot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvalProcess, "send", kill)
        with pytest.raises(WorkerError) as error:
            trained(folder, *BESIDE)
    return folder, str(error.value)


def test_where_its_process_ends_the_run_is_saved_and_ends(failed):
    folder, said = failed
    assert re.match(r"the evaluation process \d+ was killed by SIGKILL", said)
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    assert archive.frames_of(archive.find(folder, "last")) == 128
    assert evaluated(folder) == scores(folder) == {}


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_what_was_not_over_is_played_when_the_run_goes_on(runs, failed, backend, tmp_path):
    folder = shutil.copytree(failed[0], tmp_path / "run")
    (asked,) = saved(folder, "books")["looks"]["asked"]
    assert asked["frames"] == 128
    assert digest(dict(asked["actor"])) == digest(dict(saved(folder, "actor")))
    trained(folder, *WORDS, f"eval.backend={backend}", "resume=auto")
    assert logged(folder) == logged(runs[0])
    assert told(folder) == told(runs[0])
    assert scores(folder)[128] == scores(runs[1])[128]


def test_what_fails_in_its_process_is_told():
    def refuse(state):
        raise UserError("not this one") if state else TypeError("no weights")

    there = SimpleNamespace(actor=SimpleNamespace(load_state_dict=refuse))
    assert try_snapshot(there, {"actor": True}) == "not this one"
    lost = try_snapshot(there, {"actor": None})
    assert lost.startswith("\nTraceback")
    ours, theirs = Pipe()
    theirs.send_bytes(pickle.dumps(lost))
    backend = SimpleNamespace(receive=partial(EvalProcess.receive, SimpleNamespace(pipe=ours)))
    with pytest.raises(WorkerError, match=r"(?s)^the evaluation after 128 frames failed: .*no weights$"):
        EvalSchedule.receive(SimpleNamespace(backend=backend, pending=[{"frames": 128}]))


@pytest.mark.slow
def test_after_one_that_solved_the_task_the_next_is_waited_for_and_ends_the_run(tmp_path):
    folder = trained(tmp_path / "run", *BESIDE, "eval.reward_threshold=1", "eval.stop_when_solved=true")
    assert told(folder)["solved_at_frames"] == 128
    assert told(folder)["frames"] == 256
    assert [*evaluated(folder)] == [128, 256]


# On Ray.


def test_another_machine_is_sent_nothing_of_an_accelerator(monkeypatch):
    sent = []
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    actor = SimpleNamespace(play=SimpleNamespace(remote=lambda moment: sent.append(moment) or "asked"))
    there = SimpleNamespace(actor=actor, result=None)
    weights = {"weight": torch.ones(2, device="meta")}
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.ones_like(self, device="cpu"))
    rng = {"torch_cpu": 1, "torch_cuda": [2], "python": (3, 4)}
    moment = {"frames": 128, "episodes": 4, "actor": weights, "normaliser": {"0": weights}, "rng": rng}
    evaluation.RayEvalProcess.send(there, moment)
    (came,) = sent
    assert came["rng"] == {"torch_cpu": 1, "python": (3, 4)}
    assert came["actor"]["weight"].device == came["normaliser"]["0"]["weight"].device == torch.device("cpu")
    assert moment["actor"]["weight"].is_meta  # which a checkpoint keeps as it is
    assert "torch_cuda" in moment["rng"]
    assert there.result == "asked"


@pytest.fixture(scope="module")
def cluster():
    """One for this module: a start takes ten seconds of processor time."""
    machines.join_cluster("eval.address", None, {"CPU": 3, "GPU": 0})
    yield
    ray.shutdown()


ON_RAY = ["collector=ray", "transforms=normalized", "init_stats_frames=100"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ON_RAY], ids=["single", "ray"])
def test_on_ray_it_is_as_in_the_loop_whoever_collects(runs, words, cluster, tmp_path):
    loop = trained(tmp_path / "loop", *WORDS, *words) if words else runs[0]
    beside = trained(tmp_path / "beside", *WORDS, *words, "eval.backend=ray")
    agree(loop, beside)
    fit(loop, beside)


@pytest.mark.slow
def test_one_on_ray_that_ends_is_named_and_the_run_is_saved(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "NODE_DEATH_SECONDS", 0.0)

    def kill(self, snapshot, send=evaluation.RayEvalProcess.send):
        os.kill(self.where.pid, signal.SIGKILL)
        send(self, snapshot)

    monkeypatch.setattr(evaluation.RayEvalProcess, "send", kill)
    with pytest.raises(
        WorkerError, match=r"^the evaluation process \(process \d+ of node \w{8} at [\d.]+\) ended,"
    ):
        trained(tmp_path / "run", *WORDS, "eval.backend=ray")
    asked = saved(tmp_path / "run", "books")["looks"]["asked"]
    assert asked[0]["frames"] == 128  # which the run plays when it goes on
    assert ray.is_initialized()  # which was there before


@pytest.mark.slow
def test_without_room_on_the_cluster_it_is_said_before_the_first_batch(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "START_SECONDS", 15.0)
    with pytest.raises(
        UserError, match=r"none of 3 CPUs of the cluster was free within 15 seconds\. Use fewer collectors"
    ):
        trained(tmp_path / "run", *WORDS, *ON_RAY, "eval.backend=ray", "collector.num_cpus=1.5")
