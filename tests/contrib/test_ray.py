"""Ray: who is asked for what and what is told of failures, with stand-ins; slowly, on one cluster for all."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfDiskError, RayTaskError
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.envs import DoubleToFloat, ObservationNorm, StepCounter, TransformedEnv
from torchrl.modules import EGreedyModule

from hydrl import envs
from hydrl.contrib.ray import cluster as machines
from hydrl.contrib.ray import collector as clusters
from hydrl.errors import DivergedError, Interrupted, UserError, WorkerError
from hydrl.experience import collectors
from hydrl.networks import actors
from hydrl.specs import LAG
from hydrl.training.metrics import over_steps, step_metrics
from tests.conftest import HANGING, SMALL_PPO, digest, logged, saved, settings, start
from tests.fakes.envs import CountingEnv, make_global_random_env
from tests.fakes.ray_cluster import two_nodes

NORMALISED = (partial(ObservationNorm, in_keys=["observation"]), StepCounter)
PLACES = {
    0: machines.ProcessLocation("aaaaaaaaaa", "10.0.0.1", 11),
    1: machines.ProcessLocation("bbbbbbbbbb", "10.0.0.2", 22),
}

SECOND = "collector 1 (process 22 of node bbbbbbbb at 10.0.0.2)"


class Actor:
    """In place of one on Ray: collects at once, and remembers what it was told."""

    def __init__(self) -> None:
        self.weights: list[Any] = []
        self.collect = SimpleNamespace(remote=self.collected)

    def collected(self, weights: Any) -> tuple[str, Any]:
        self.weights.append(None if weights is None else weights[1]["module", "weight"].item())
        return "batch", TensorDict({"reward": torch.zeros(3)}, [3])


class FakeRay:
    """In place of Ray: whoever was asked first is done first; what is put can be had."""

    def __init__(self, alive: bool = True) -> None:
        self.alive, self.waited = alive, 0

    def put(self, value: Any) -> tuple[str, Any]:
        return "put", value.clone()

    def get(self, reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference[1]

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": each.node, "Alive": self.alive} for each in PLACES.values()]


class Reference:
    """What Ray answers with: never equal to another."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, place: int) -> Any:
        return self.value[place]


@pytest.fixture
def workers(monkeypatch):
    """Makes ``RayWorkers`` over stand-ins, of a policy with one weight."""
    there = []

    def make(*, sync: bool, alive: bool = True, **given: Any) -> clusters.RayWorkers:
        fake = FakeRay(alive)
        for each in (clusters, machines):
            monkeypatch.setattr(each, "ray", fake)
        made = object.__new__(clusters.RayWorkers)
        made._remote_collectors = [Actor(), Actor()]
        for each in made._remote_collectors:
            each.collect.remote = lambda weights, each=each: Reference(each.collected(weights))
        made.learned = TensorDictModule(nn.Linear(1, 1, bias=False), in_keys=["a"], out_keys=["b"])
        made.num_collectors, made._sync, made.learner, made.check_stop = 2, sync, "cpu", int
        made.version, made.versions, made.weights, made.collected_frames = 0, [0, 0], None, 0
        made.locations, made.worker_timeout = PLACES, 60.0
        vars(made).update(given)
        there.append(made)
        return made

    yield make
    for each in there:
        each._remote_collectors.clear()  # which Ray would begin anew to end


def trained(collector: clusters.RayWorkers, batches: int) -> list[TensorDictBase]:
    """Some batches, with the weight 1, 2, 3, ... after each."""
    came = []
    for number, batch in enumerate(islice(collector.iterator(), batches), 1):
        came.append(batch)
        with torch.no_grad():
            next(collector.learned.parameters()).fill_(number)
        collector.publish()
    return came


def test_synchronous_collectors_have_the_newest_policy_and_one_batch_of_all(workers):
    collector = workers(sync=True)
    batches = trained(collector, 3)
    assert [each.batch_size for each in batches] == [(2, 3)] * 3
    assert [each[LAG].unique().tolist() for each in batches] == [[0]] * 3
    assert [each.weights for each in collector.remote_collectors] == [[None, 1, 2]] * 2
    assert collector.state(running=False) == {"frames": 18}


def test_a_policy_is_told_to_the_collector_just_drained_alone_and_its_age_is_known(workers):
    collector = workers(sync=False)
    batches = trained(collector, 5)
    assert [each.batch_size for each in batches] == [(3,)] * 5
    assert [each[LAG].unique().tolist() for each in batches] == [[0], [1], [1], [1], [1]]
    assert [each.weights for each in collector.remote_collectors] == [[None, 1, 3], [None, 2, 4]]


def test_the_age_of_policies_is_logged_beside_the_times():
    batches = [TensorDict({LAG: torch.full((4,), lag)}, [4]) for lag in (0, 1)]
    for each in batches:
        each["next", "reward"] = torch.zeros(4)
    assert over_steps([step_metrics(each) for each in batches]) == {"time/policy_lag": 0.5}


def divide() -> None:
    1 / 0  # noqa: B018


def failed(cause: Exception) -> RayTaskError:
    text = f'\x1b[36mray::RemoteCollector.collect()\x1b[39m (pid=1)\n  File "task.py", line 3\n{cause!r}'
    return RayTaskError("collect", text, cause, pid=1, ip="10.0.0.1").as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "alive", "kind", "told"),
    [
        (
            failed(ZeroDivisionError("by zero")), True, WorkerError,
            f"{SECOND} failed:\nTraceback (most recent call last):\n"
            '  File "task.py", line 3\nZeroDivisionError(\'by zero\')',
        ),
        (ActorDiedError(), False, WorkerError, "node bbbbbbbb at 10.0.0.2 is gone, and collector 1 with it"),
        (
            ActorDiedError(), True, WorkerError,
            f"{SECOND} ended, as one does that the system kills for its memory",
        ),
        (failed(OutOfDiskError("Local disk is full")), True, WorkerError, f"{SECOND} {machines.STORE_FULL}"),
        (failed(DivergedError("reward is NaN")), True, DivergedError, "reward is NaN"),
    ],
)  # fmt: skip
def test_what_ended_a_collector_is_told_with_node_and_address(workers, error, alive, kind, told, monkeypatch):
    monkeypatch.setattr(machines, "NODE_DEATH_SECONDS", 0.0)
    with pytest.raises(kind) as caught:
        workers(sync=False, alive=alive).get_result(1, error)
    assert getattr(caught.value, "terms", str(caught.value)) == told


def test_one_that_is_silent_is_named(workers, monkeypatch):
    collector = workers(sync=True, worker_timeout=0.0)
    monkeypatch.setattr(clusters.ray, "wait", lambda references, timeout: ([], references))
    with pytest.raises(WorkerError, match=r"worker_timeout=0 seconds .*: collector 0 .*, collector 1"):
        next(collector.iterator())


def test_a_signal_ends_the_wait(workers, monkeypatch):
    def stop() -> None:
        raise Interrupted(signal.SIGTERM)

    collector = workers(sync=True, check_stop=stop)
    monkeypatch.setattr(clusters.ray, "wait", lambda references, timeout: ([], references))
    with pytest.raises(Interrupted):
        next(collector.iterator())


def test_signals_to_end_wait_while_ray_starts_and_what_starts_then_is_deaf_to_them():
    came = []
    former = signal.signal(signal.SIGTERM, lambda signum, frame: came.append(signum))
    try:
        with machines.keep_signal_handlers():
            signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(signum))  # as Ray does
            signal.raise_signal(signal.SIGTERM)
            started = subprocess.Popen(
                [sys.executable, "-c", "import signal; print(*signal.pthread_sigmask(0, []))"],
                stdout=subprocess.PIPE,
            )
            assert not came
        assert came == [signal.SIGTERM]
        deaf = started.communicate()[0].decode().split()
        assert {str(int(each)) for each in machines.BLOCKED} <= {*deaf}
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_cluster_that_lacks_what_is_asked_for_is_refused(monkeypatch):
    monkeypatch.setattr(clusters, "ray", SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0}))
    clusters.check_resources({"CPU": 4, "GPU": 0})
    with pytest.raises(UserError, match=r"num_gpus: 0.5 GPUs in all, and the cluster has 0\."):
        clusters.check_resources({"CPU": 1, "GPU": 0.5})


def test_statistics_go_to_another_device_with_their_environment():
    make = partial(dict, num_envs=2, device="cuda", normalizer={"0": {"loc": torch.ones(2)}})
    made = clusters.for_device(make, "meta")()
    assert made["device"] == "meta"
    assert made["normalizer"]["0"]["loc"].device.type == "meta"
    assert make.keywords["device"] == "cuda"


def test_the_builder_is_told_all_keys_of_its_file():
    collect = settings("env=cartpole", "collector=ray", "transforms=plain").build("collector")
    assert collect.func is clusters.ray_collector
    assert (collect.keywords["num_collectors"], collect.keywords["address"]) == (2, None)


# On a cluster.


class Troubled(CountingEnv):
    """Gets into trouble in its 50th step."""

    def __init__(self, trouble: str, *, device: str = "cpu") -> None:
        super().__init__(device=device)
        self.trouble, self.taken = trouble, 0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.taken += 1
        if self.taken == 50 and self.trouble == "raises":
            divide()
        if self.taken == 50 and self.trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        after = super()._step(tensordict)
        bad = self.taken == 50 and self.trouble == "infinite"
        return after.set("reward", after["reward"] / 0) if bad else after


@pytest.fixture(scope="module")
def cluster():
    """One for this module: a start takes half a minute of processor time."""
    clusters.join_cluster("collector.address", None, {"CPU": 2, "GPU": 0})
    yield
    clusters.ray.shutdown()


def test_an_address_where_no_cluster_is_is_told_at_once(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(machines.ray, "init", lambda **_: asked.append(os.environ[machines.ATTEMPTS]))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"{address}: no Ray cluster \(.*refused\)"):
            machines.join_cluster("eval.address", address, None)
        assert asked == []
        one.listen()
        machines.join_cluster("eval.address", address, None)  # somebody is there, and is asked once
    assert asked == ["1"]
    assert machines.ATTEMPTS not in os.environ
    for nowhere in ("nobody.invalid:6379", "127.0.0.1:99999"):
        with pytest.raises(UserError, match=rf"^eval\.address={nowhere}: no Ray cluster"):
            machines.join_cluster("eval.address", nowhere, None)


def seeded(make: Any, num_envs: int) -> TransformedEnv:
    torch.manual_seed(0)
    env = make(num_envs=num_envs, seed=0)
    envs.init_normalizers(env, 100)
    return env


def on_ray(env: TransformedEnv, make: Any, policy: nn.Module, **given: Any) -> clusters.RayWorkers:
    options = {"frames_per_batch": 160, "init_random_frames": 0, "num_envs": env.numel(), "seed": 3}
    options |= {"num_collectors": 2, "num_cpus": 0.5, "num_gpus": 0, "address": None, "device": "cpu"}
    make = partial(make, num_envs=env.numel(), normalizer=envs.normalizer_state(env))
    return clusters.ray_collector(env, make, policy, worker_timeout=HANGING, **options | given)


def collected(kind: str) -> list[TensorDictBase]:
    """Four batches of two collectors with two environments each, whose policy changes after each batch."""
    make = partial(envs.make_env, partial(CountingEnv, actions="one_hot"), NORMALISED)
    env = seeded(make, 2)
    actor = actors.q_value(env, num_cells=[8], activation="Tanh", in_keys=["observation"])
    spec = env.action_spec_unbatched
    noise = EGreedyModule(spec, eps_init=1.0, eps_end=0.0, annealing_num_steps=9)
    policy = TensorDictSequential(actor, noise)
    if kind == "multi_sync":
        of = partial(make, num_envs=2, normalizer=envs.normalizer_state(env))
        given = {"frames_per_batch": 160, "init_random_frames": 0, "num_envs": 2, "seed": 3, "device": "cpu"}
        collector = collectors.make_collector(env, of, policy, num_workers=2, sync=True, **given)
    else:
        collector = on_ray(env, make, policy, sync=kind == "synchronous")
    came = []
    with collectors.shut_down_after(collector):
        for batch in islice(collector, 4):
            came.append(batch.clone())
            noise.step(3)
            with torch.no_grad():
                for each in policy.parameters():
                    each.add_(0.1)
            collector.publish()
    return came


@pytest.mark.slow
def test_synchronous_collectors_collect_what_workers_do_bit_by_bit(cluster):
    ours, theirs = collected("synchronous"), collected("multi_sync")
    assert [each.batch_size for each in ours] == [(2, 2, 40)] * 4
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[LAG].eq(0).all()
        assert (mine.exclude("collector") == other.exclude("collector")).all()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["algo=ppo", "rnn=gru"], ["algo=recurrent_ppo"]], ids=" ".join)
def test_memories_learn_on_ray_what_they_learn_with_workers_bit_by_bit(words, cluster, run):
    words = [*words, "env=cartpole", "tuned=null", "transforms=normalized", "init_stats_frames=100"]
    words += ["collector.num_envs=2", "collector.frames_per_batch=256", "total_frames=768"]
    words += ["minibatches.size=128", "minibatches.epochs=2", "minibatches.sequence=32"]
    words += ["actor.num_cells=[8]", "critic.num_cells=[8]"]
    words += ["eval.every_frames=256", "eval.episodes=2", "eval.final_episodes=2", "compile=false"]
    workers = run(*words, "collector=multi_sync", folder="workers")
    ours = run(*words, "collector=ray", folder="ray")
    assert logged(ours) == logged(workers)
    assert len(logged(ours)) == 3
    for part in ("loss", "optimizer"):
        assert digest(saved(ours, part)) == digest(saved(workers, part)), part


@pytest.mark.slow
def test_asynchronous_collectors_differ_and_say_how_old_their_policy_was(cluster):
    batches = collected("asynchronous")
    assert [each.batch_size for each in batches] == [(2, 80)] * 4
    assert batches[0][LAG].eq(0).all()
    assert all(each[LAG].max() <= 3 for each in batches)
    acted = [tuple(row.flatten().tolist()) for batch in batches[:2] for row in batch["action"]]
    assert len({*acted}) == len(acted) == 4  # two environments of each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (
            "raises",
            r"collector 1 \(process \d+ of node \w{8} at [\d.]+\) failed:\nTraceback .*1 / 0.*ZeroDivision",
        ),
        ("killed", r"collector 1 \(process \d+ of node \w{8} at [\d.]+\) ended"),
        ("infinite", r"reward of environment 0 of collector 1 is NaN or infinite"),
    ],
)
def test_trouble_in_a_collector_is_told(cluster, trouble, told):
    def make(seed: int, **given: Any) -> TransformedEnv:
        troubled = partial(Troubled, trouble) if seed == 20_003 else CountingEnv
        return envs.make_env(troubled, (), seed=seed)

    env = envs.make_env(CountingEnv, (), seed=0)
    actor = actors.tanh_normal(env, num_cells=[8], activation="Tanh", in_keys=["observation"])
    collector = on_ray(env, make, actor, sync=True, frames_per_batch=80)
    with (
        pytest.raises(DivergedError if trouble == "infinite" else WorkerError) as caught,
        collectors.shut_down_after(collector),
    ):
        list(islice(collector, 4))
    assert re.search(told, getattr(caught.value, "terms", str(caught.value)), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
def test_collectors_have_global_generators_of_their_own_which_repeat(sync, cluster):
    def starts() -> torch.Tensor:
        """The first eight starts of both collectors, ``[16, generators]``, in order of their values."""
        make = partial(envs.make_env, make_global_random_env, (DoubleToFloat,))
        actor = actors.q_value(make(seed=3), num_cells=[8], activation="Tanh", in_keys=["observation"])
        collector = on_ray(make(seed=3), make, actor, sync=sync, frames_per_batch=16 if sync else 8)
        with collectors.shut_down_after(collector):
            batches = list(islice(collector, 1 if sync else 2))
        return torch.cat([batch["observation"].reshape(-1, 3) for batch in batches]).sort(0).values

    first = starts()
    assert first.shape == (16, 3)
    assert all(len({*column.tolist()}) == 16 for column in first.T)
    assert torch.equal(first, starts())


# As processes: what is left of a run that is stopped, and of one whose node is lost.

RUN = [
    *SMALL_PPO,
    "env=cartpole",
    "collector=ray",
    "compile=false",
    "transforms=plain",
    "total_frames=1000000",
]
RUN += ["eval.every_frames=1000000", "eval.stop_when_solved=false", "collector.num_cpus=1"]


def ray_processes() -> set[int]:
    found = set()
    for each in psutil.process_iter(["pid", "name", "cmdline"]):
        line = " ".join(each.info["cmdline"] or [])
        if "/ray/core/src/ray/" in line or line.startswith("ray::"):
            found.add(each.info["pid"])
    return found


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Of the processes that a test starts."""
    folder = tmp_path / "home"
    for name, value in {"HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # of the cluster of this process
        monkeypatch.delenv(name, raising=False)
    return folder


def begun(run: Path, process: subprocess.Popen[str], rows: int = 3) -> int:
    """Waits for so many rows of the log; how many there are."""
    file = run / "metrics.csv"
    while (there := len(file.read_text().splitlines()) if file.exists() else 0) <= rows:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    return there


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves_nothing(signum, code, tmp_path, home):
    before = ray_processes()
    process = start(*RUN, f"hydra.run.dir={tmp_path / 'run'}", start_new_session=True)
    begun(tmp_path / "run", process)
    ours = ray_processes() - before
    assert ours
    os.killpg(process.pid, signum)  # as a terminal, or a job's time limit, does
    out = process.communicate()[0]
    assert process.returncode == code, out
    assert "starting Ray on this machine\nstarting 2 collectors" in out
    assert "resume with: " in out
    assert len([*(tmp_path / "run" / "checkpoints").glob("*.torchrl")]) >= 1
    assert not (home / ".ray").exists()
    psutil.wait_procs([psutil.Process(each) for each in ours if psutil.pid_exists(each)], timeout=HANGING)
    assert ray_processes() <= before


@pytest.mark.slow
def test_a_full_object_store_is_told_in_a_line(tmp_path, home, monkeypatch):
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", "80000000")
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "0.0001")  # of the disk that it goes over to
    before = ray_processes()
    process = start(*RUN, "actor.num_cells=[4000,4000]", f"hydra.run.dir={tmp_path / 'run'}")
    out = process.communicate()[0]
    assert process.returncode == 1, out
    assert f"error: the process that learns {machines.STORE_FULL}\n" in out
    assert "Traceback" not in out
    assert ray_processes() <= before


@pytest.mark.slow
def test_a_node_that_is_lost_ends_the_run_by_name_and_it_goes_on_with_the_other(tmp_path, home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with two_nodes() as nodes:
        words = [*RUN, f"collector.address={nodes.address}", f"hydra.run.dir={tmp_path / 'run'}"]
        process = start(*words)
        rows = begun(tmp_path / "run", process)
        nodes.lose()
        out = process.communicate()[0]
        assert process.returncode == 1, out
        assert re.search(r"error: node \w{8} at [\d.]+ is gone, and collector [01] with it\n", out)
        assert "Traceback" not in out
        assert "state-dump" not in out
        assert len([*(tmp_path / "run" / "checkpoints").glob("*.torchrl")]) >= 1
        again = start(*words, "resume=auto", "collector.num_collectors=1", "total_frames=2000000")
        while "resumed after" not in (line := again.stdout.readline()):
            assert line, again.wait()
        assert "episodes start anew: they are in processes of their own" in line
        begun(tmp_path / "run", again, rows + 20)
        again.terminate()
        assert again.wait() == 143


@pytest.mark.slow
def test_a_node_that_is_lost_under_an_evaluation_ends_the_run_by_name(tmp_path, home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with two_nodes(cpus=0) as nodes:
        words = [each for each in RUN if not each.startswith(("collector", "eval.every"))]
        words += ["eval.backend=ray", f"eval.address={nodes.address}", "eval.every_frames=1280"]
        process = start(*words, f"hydra.run.dir={tmp_path / 'run'}")
        begun(tmp_path / "run", process)
        nodes.lose()
        out = process.communicate()[0]
    assert process.returncode == 1, out
    assert re.search(r"error: node \w{8} at [\d.]+ is gone, and the evaluation with it\n", out)
    assert "Traceback" not in out
    assert len([*(tmp_path / "run" / "checkpoints").glob("*.torchrl")]) >= 1
