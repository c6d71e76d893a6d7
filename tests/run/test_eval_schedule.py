"""Evaluations in the background are those of the training loop, and a run ends alike with either."""

import json
import os
import pickle
import re
import shutil
import signal
from copy import deepcopy
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from omegaconf import OmegaConf

from hydrl.contrib.ray import cluster as machines
from hydrl.contrib.ray import evaluation
from hydrl.errors import Interrupted, UserError, WorkerError
from hydrl.metric_names import RETURN_MEAN
from hydrl.run import eval_process
from hydrl.run.checkpoint import archive
from hydrl.run.eval_process import EvalProcess, preserve_policy, try_snapshot
from hydrl.run.eval_schedule import EvalSchedule
from hydrl.run.logging.run_logger import RunLogger
from hydrl.training.evaluator import preserve_rng
from tests.conftest import SMALL, SMALL_PPO, digest, logged, resume_point, saved, settings

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


EXIT_CODES: list[int | None] = []  # of the evaluation processes of `runs`


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with evaluations in the loop's turn, and beside it."""
    folder = tmp_path_factory.mktemp("looks")

    def close(backend, close=EvalProcess.close):
        close(backend)
        EXIT_CODES.append(backend.process.exitcode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvalProcess, "close", close)
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


def test_an_idle_process_ends_by_itself(runs):
    """Python would report the locks of a killed one as leaked, on the screen at the end of the run."""
    assert EXIT_CODES == [0]


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
    schedule = SimpleNamespace(pending=[{"frames": 128}], result_of=partial(EvalSchedule.result_of, None))
    with pytest.raises(WorkerError, match=r"(?s)^the evaluation after 128 frames failed: .*no weights$"):
        EvalSchedule.receive(schedule, backend)


# A run ends at the same frames with the same weights, however late an evaluation is over.


class LateBackend:
    """Plays each evaluation when the run has to wait for it, with a copy of the policy, in this process."""

    is_ready, is_optional = True, False
    polls = 0
    stop_at: int | None = None  # the number of the poll at which the run gets SIGTERM

    def __init__(self, evaluator, **_):
        self.evaluator = deepcopy(evaluator)
        self.evaluator.normaliser = dict

    def send(self, snapshot):
        self.snapshot = deepcopy(snapshot)

    def poll(self, seconds=0.0):
        LateBackend.polls += 1
        if LateBackend.polls == self.stop_at:
            signal.raise_signal(signal.SIGTERM)
            return False
        return seconds > 0

    def receive(self):
        with preserve_rng():
            return try_snapshot(self.evaluator, self.snapshot)

    def close(self):
        self.evaluator.close()


@pytest.fixture
def late(monkeypatch):
    """Makes ``eval.backend=process`` a :class:`LateBackend`."""
    monkeypatch.setattr(eval_process, "start_eval_process", LateBackend)
    monkeypatch.setattr(LateBackend, "polls", 0)


STOPS = ["eval.stop_when_solved=true", "eval.reward_threshold=9"]
DQN = [*SMALL, "algo=dqn", "env=cartpole", "buffer.storage.max_size=200", "minibatches.warmup_frames=64"]
DQN += ["total_frames=512"]
PENDULUM = [*WORDS, "total_frames=1024"]
COMPONENTS = ("actor", "loss", "optimizer", "normaliser", "rng", "collector")
BOOKS = ("progress", "metrics", "record", "looks")


def returns_by_frames(evaluations, solved: int, unconfirmed: int | None = None) -> None:
    """The policy solves the task after ``solved`` frames; after ``unconfirmed``, fresh episodes fail."""
    frames = range(0, 2_048, 64)
    reached = {solved, unconfirmed}
    evaluations(
        {frame: 10.0 if frame in reached else frame / 1_000 for frame in frames},
        {frame: 9.5 if frame == solved else 2.0 + frame / 1_000 for frame in frames},
    )


def end_alike(inline: Path, other: Path, components: tuple[str, ...], *, resumed: bool = False) -> None:
    """Both runs have the same log, summary and last checkpoint."""
    assert logged(other) == logged(inline)
    assert told(other) == told(inline)
    frames = told(inline)["frames"]
    assert archive.frames_of(archive.find(other, "last")) == frames
    for component in components:
        assert digest(saved(other, component)) == digest(saved(inline, component)), component
    ours, theirs = saved(other, "books"), saved(inline, "books")
    for books in (ours, theirs):
        del books["progress"]["counters"]["solved_at_seconds"]
    if resumed:
        ours["progress"]["resumed_at"] = theirs["progress"]["resumed_at"]
    for name in BOOKS:
        assert digest(ours[name]) == digest(theirs[name]), name
    metadata = [archive.verify(archive.find(folder, "last")) for folder in (other, inline)]
    assert metadata[0][RETURN_MEAN] == metadata[1][RETURN_MEAN]


@pytest.mark.parametrize("words", [PENDULUM, DQN], ids=["ppo", "dqn"])
def test_a_solved_run_ends_with_the_policy_that_solved_it_whatever_it_learned_meanwhile(
    words, evaluations, late, tmp_path
):
    returns_by_frames(evaluations, solved=384, unconfirmed=256)
    inline = trained(tmp_path / "inline", *words, *STOPS, "eval.backend=inline")
    lagging = trained(tmp_path / "late", *words, *STOPS, "eval.backend=process")
    assert LateBackend.polls > 4
    assert told(inline)["frames"] == 384
    assert told(inline)["best_eval/return_mean"] == told(inline)["eval/return_mean"] == 9.5
    assert told(inline)["solved_at_frames"] == 256  # though fresh episodes did not confirm it
    rows = ("sampler", "writer", "buffer") if words is DQN else ()
    end_alike(inline, lagging, (*COMPONENTS, *rows))

    longer = ["eval.stop_when_solved=false", "total_frames=512", "resume=auto"]
    for folder, backend in ((inline, "inline"), (lagging, "process")):
        trained(folder, *words, STOPS[1], f"eval.backend={backend}", *longer)
    end_alike(inline, lagging, (*COMPONENTS, *rows))


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_run_stopped_while_the_evaluation_that_solves_it_is_pending_ends_alike(
    backend, evaluations, late, tmp_path, monkeypatch
):
    returns_by_frames(evaluations, solved=256)
    inline = trained(tmp_path / "inline", *DQN, *STOPS, "eval.backend=inline")
    folder = tmp_path / "late"
    monkeypatch.setattr(LateBackend, "stop_at", 4)
    with pytest.raises(Interrupted):
        trained(folder, *DQN, *STOPS, "eval.backend=process")
    assert archive.frames_of(archive.find(folder, "last")) > 256
    pending = saved(folder, "books")["looks"]["asked"]
    assert [snapshot["frames"] for snapshot in pending] == [256]
    monkeypatch.setattr(LateBackend, "stop_at", None)
    trained(folder, *DQN, *STOPS, f"eval.backend={backend}", "resume=auto")
    assert told(inline)["frames"] == 256
    end_alike(inline, folder, (*COMPONENTS, "sampler", "writer", "buffer"), resumed=True)


def test_a_policy_is_what_it_was_after_another_was_played_in_its_place_or_could_not_be():
    actor = torch.nn.Linear(2, 1)
    weights, evaluator = deepcopy(actor.state_dict()), SimpleNamespace(actor=actor)
    drawn = torch.get_rng_state()

    def play_another():
        with preserve_policy(evaluator):
            torch.nn.init.zeros_(actor.weight)
            torch.rand(1)
            raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        play_another()
    assert digest(actor.state_dict()) == digest(weights)
    assert torch.equal(torch.get_rng_state(), drawn)


# The final evaluation is shared among the cores.

FINAL = ["eval.final_episodes=170", "eval.every_frames=512", "eval.max_steps=12"]


def test_the_final_evaluation_is_the_same_on_any_number_of_cores(tmp_path, monkeypatch):
    finals: dict[int, torch.Tensor] = {}
    for cores in (1, 3):
        started: list[int] = []
        monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores), raising=False)

        def start_process(*args, start=eval_process.EvalProcess.start, started=started):
            started.append(1)
            start(*args)

        def finish(self, final=None, *, status="finished", cores=cores, finish=RunLogger.finish):
            finals[cores] = final.returns
            finish(self, final, status)

        with monkeypatch.context() as patch:
            patch.setattr(eval_process.EvalProcess, "start", start_process)
            patch.setattr(RunLogger, "finish", finish)
            backend = "inline" if cores == 1 else "process"
            trained(tmp_path / str(cores), *SMALL_PPO, "env=pendulum", *FINAL, f"eval.backend={backend}")
        assert len(started) == cores - 1  # 170 episodes are three parts
    assert len(finals[1]) == 170
    assert torch.equal(finals[1], finals[3])


# What auto starts may fail: the training loop evaluates.

AUTO = [*WORDS, "eval.backend=auto"]


@pytest.fixture
def free_core(monkeypatch):
    """Lets ``eval.backend=auto`` find a free core."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)


def test_until_its_process_has_started_the_loop_evaluates(runs, free_core, tmp_path, monkeypatch):
    never = property(lambda self: False)
    monkeypatch.setattr(EvalProcess, "is_ready", never)
    folder = trained(tmp_path / "run", *AUTO)
    agree(runs[0], folder)
    assert OmegaConf.load(folder / "config_resolved.yaml").eval.backend == "process"


def test_the_loop_evaluates_for_a_process_that_was_lost(runs, free_core, tmp_path, monkeypatch, capsys):
    def wait_and_kill(self, snapshot, send=EvalProcess.send):
        self.process.kill()
        self.process.join()
        send(self, snapshot)

    monkeypatch.setattr(EvalProcess, "is_ready", property(lambda self: self.starter.join() is None))
    monkeypatch.setattr(EvalProcess, "send", wait_and_kill)
    folder = trained(tmp_path / "run", *AUTO)
    agree(runs[0], folder)
    assert re.search(
        r"the evaluation process \d+ was killed by SIGKILL.*; evaluations go on in the training loop",
        " ".join(capsys.readouterr().err.split()),
    )


@pytest.mark.parametrize("backend", ["process", "auto"])
def test_what_cannot_be_sent_to_a_process_is_evaluated_by_the_loop(
    backend, runs, free_core, tmp_path, monkeypatch, capsys
):
    def refuse(evaluator):
        raise TypeError("cannot pickle 'Window' object")

    monkeypatch.setattr(eval_process, "portable", refuse)
    agree(runs[0], trained(tmp_path / "run", *WORDS, f"eval.backend={backend}"))
    line = "eval.backend=process: evaluates inline, as no process can be started: TypeError: cannot pickle"
    assert (line in " ".join(capsys.readouterr().err.split())) is (backend == "process")


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
