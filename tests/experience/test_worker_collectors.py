"""Workers that die or hang: the run ends soon, says why once, and leaves no process behind."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from tensordict import TensorDictBase
from torchrl.collectors import BaseCollector
from torchrl.envs import TransformedEnv

from hydrl import envs
from hydrl.errors import DivergedError, Interrupted, UserError, WorkerError
from hydrl.experience import collectors, worker_collectors
from hydrl.networks import actors
from tests.conftest import HANGING, workers_of
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
KINDS = {
    "multi_sync": {"sync": True, "num_workers": 2},
    "multi_async": {"sync": False, "num_workers": 2},
    "one_worker": {"sync": False, "num_workers": 1},
}


slow = partial(pytest.param, marks=pytest.mark.slow)


def divide() -> None:
    1 / 0  # noqa: B018


def hang() -> None:
    while True:
        time.sleep(60)


def hang_in_c() -> None:
    """Never lets go of the interpreter, as a simulator that loops in its own code."""
    print(os.getpid(), flush=True)
    re.match(r"(a*)*b", "a" * 40)


def divide_in_torch() -> torch.Tensor:
    return torch.ones(()) / 0


def refuse() -> None:
    raise UserError("env.id=X: no such thing. Write Y.")


def tell_a_variable() -> None:
    raise RuntimeError(os.environ["TOLD"])


TROUBLE = {
    "tells": tell_a_variable,
    "none": int,
    "infinite": divide_in_torch,
    "raises": divide,
    "refuses": refuse,
    "killed": partial(signal.raise_signal, signal.SIGKILL),
    "crashes": partial(signal.raise_signal, signal.SIGSEGV),
    "hangs": hang,
    "hangs_in_c": hang_in_c,
}


class Troubled(CountingEnv):
    """Gets into trouble in its 100th step, or when it is built."""

    def __init__(self, trouble: str, *, early: bool = False, device: str = "cpu") -> None:
        super().__init__(device=device)
        self.trouble, self.taken = trouble, 0
        if early:
            TROUBLE[trouble]()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.taken += 1
        reward = TROUBLE[self.trouble]() if self.taken == 100 else None
        after = super()._step(tensordict)
        return after.set("reward", after["reward"] * reward) if reward else after


def make_env(seed: int, trouble: str, early: bool, last: int) -> TransformedEnv:
    """The environment of one worker; only the last one's is troubled."""
    make = partial(Troubled, trouble, early=early) if seed == last else CountingEnv
    return envs.make_env(make, (), seed=seed)


def make_collector(kind: str, trouble: str, *, early: bool = False, **options) -> BaseCollector:
    torch.manual_seed(0)
    env = envs.make_env(CountingEnv, (), seed=0)
    last = 10_000 * KINDS[kind]["num_workers"]
    return collectors.make_collector(
        env,
        partial(make_env, trouble=trouble, early=early, last=last),
        actors.tanh_normal(env, **NETWORK),
        frames_per_batch=80,
        init_random_frames=0,
        num_envs=1,
        seed=0,
        device="cpu",
        **KINDS[kind] | options,
    )


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=HANGING)[1]


@contextmanager
def ends_with_error(collector: BaseCollector | None = None) -> Iterator[list[str]]:
    """The block raises a worker's error; its message is appended, and nothing is left afterwards."""
    message: list[str] = []
    try:
        with nullcontext() if collector is None else collectors.shut_down_after(collector):
            yield message
    except WorkerError as error:
        message.append(str(error))
    assert message
    assert workers_of(psutil.Process()) == []
    assert list(Path(tempfile.gettempdir()).glob("hydrl-workers-*")) == []


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_worker_has_the_environment_variables_of_now_and_python_its_way_to_start(monkeypatch):
    before = multiprocessing.get_start_method()
    for value in ("one value", "another"):  # what the second is a copy of began with the first
        monkeypatch.setenv("TOLD", value)
        with ends_with_error() as message:
            make_collector("one_worker", "tells", early=True)
        assert message[0].endswith(f"RuntimeError: {value}")
    assert multiprocessing.get_start_method() == before


@pytest.mark.parametrize("kind", ["multi_sync", slow("multi_async"), slow("one_worker")])
def test_a_worker_s_own_traceback_is_told_once(kind, capfd):
    collector = make_collector(kind, "raises")
    pid = collector.procs[-1].pid
    with ends_with_error(collector) as message:
        for _ in collector:
            collector.update_policy_weights_()
    assert message[0].startswith(
        f"worker {KINDS[kind]['num_workers'] - 1} (process {pid}) failed:\nTraceback"
    )
    assert message[0].count("1 / 0") == 1
    assert message[0].endswith("ZeroDivisionError: division by zero")
    assert capfd.readouterr().err == ""


def test_a_worker_whose_environment_gives_no_number_says_which():
    with collectors.shut_down_after(make_collector("one_worker", "infinite")) as collector:
        batches = iter(collector)
        assert next(batches)["next", "reward"].isfinite().all()
        with pytest.raises(DivergedError) as caught:
            next(batches)
    assert caught.value.terms == "reward of environment 0 of worker 0 is NaN or infinite"


@pytest.mark.slow
def test_a_worker_that_waits_for_the_run_does_not_hang():
    with collectors.shut_down_after(make_collector("one_worker", "none", worker_timeout=40)) as collector:
        batches = iter(collector)
        next(batches)
        time.sleep(45)
        assert next(batches).numel() == 80


def test_a_worker_that_is_stopped_is_said_to_be(monkeypatch):
    collector = make_collector("one_worker", "none")
    with ends_with_error(collector) as message:
        batches = iter(collector)
        next(batches)
        stopped = psutil.Process(collector.procs[0].pid)
        stopped.suspend()
        monkeypatch.setattr(worker_collectors, "STARTING", 1)
        collector.worker_timeout = 0  # of the run that waits; the worker itself still has its own
        for _ in batches:
            pass
    assert re.fullmatch(
        rf"no answer in \d+ seconds: worker 0 \(process {stopped.pid}\) is stopped", message[0]
    )


def endless(seed: int) -> TransformedEnv:
    return envs.make_env(partial(CountingEnv, short=1_000, long=1_000), (), seed=seed)


def test_what_workers_collect_while_the_run_learns_is_kept_for_it():
    policy = actors.tanh_normal(endless(0), **NETWORK)
    options = {"frames_per_batch": 20, "init_random_frames": 0, "num_envs": 1, "seed": 0, "device": "cpu"}
    built = collectors.make_collector(endless(0), endless, policy, **options, **KINDS["multi_async"])
    with collectors.shut_down_after(built) as collector:
        batches, until = iter(collector), time.monotonic() + HANGING
        next(batches)
        while collector.queue_out.qsize() < 2:  # a batch of each, which TorchRL gives a second to be taken
            assert time.monotonic() < until
        collected = [next(batches) for _ in range(5)]
    counts: dict[int, list[float]] = {}
    for batch in collected:  # a worker has one episode, whose first 20 steps may have been taken before
        steps = batch["observation"][:, 0].tolist()
        counts.setdefault(batch["collector", "traj_ids"][0].item(), []).extend(steps)
    assert sorted(steps[0] for steps in counts.values()) == [0, 20]
    assert all(steps == [steps[0] + n for n in range(len(steps))] for steps in counts.values())


def test_a_worker_that_is_killed_is_named():
    collector = make_collector("multi_async", "killed")
    with ends_with_error(collector) as message:
        for _ in collector:
            pass
    assert " was killed by SIGKILL" in message[0]
    assert message[0].startswith("worker 1 ")


def test_a_worker_that_crashes_says_where():
    collector = make_collector("one_worker", "crashes")
    with ends_with_error(collector) as message:
        for _ in collector:
            pass
    assert " was killed by SIGSEGV:\n" in message[0]
    assert f'{__file__}", line {line_of("reward = TROUBLE[")} in _step' in message[0]


def hang_in_a_worker(report: Path) -> None:
    """Of a worker, what limits the time of a batch."""
    worker = object.__new__(worker_collectors.WorkerCollector)
    worker.worker_timeout, worker.report = 2, report.open("w", buffering=1)
    with worker.reporting():
        hang_in_c()


def test_what_takes_longer_than_its_timeout_ends_with_the_line_it_is_in(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=hang_in_a_worker, args=[tmp_path / "0"])
    process.start()
    process.join()
    assert process.exitcode == 1
    collector = fake(process.exitcode, worker_timeout=2)
    collector.reports = SimpleNamespace(name=tmp_path)
    with pytest.raises(WorkerError) as caught:
        collector.update_policy_weights_()
    message = str(caught.value)
    assert "took longer than collector.worker_timeout=2 seconds to start or for a batch:\n" in message
    assert f"line {line_of('re.match(')} in hang_in_c\n" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "early", "line"), [("hangs_in_c", False, "re.match("), ("hangs", True, "time.sleep(60)")]
)
def test_a_worker_that_hangs_ends_with_the_line_it_is_in(trouble, early, line):
    with (
        ends_with_error() as message,
        collectors.shut_down_after(
            make_collector("one_worker", trouble, early=early, worker_timeout=80)
        ) as collector,
    ):
        for _ in collector:
            pass
    assert "took longer than collector.worker_timeout=80 seconds to start or for a batch:\n" in message[0]
    assert f"line {line_of(line)} in {trouble.replace('hangs', 'hang')}\n" in message[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", ["raises", "killed", "crashes"])
def test_how_soon_a_run_ends_after_a_worker(kind, trouble, capsys):
    collector = make_collector(kind, trouble)
    with ends_with_error(collector):
        for _ in collector:
            start = time.monotonic()
    with capsys.disabled():
        print(f"\n{kind}, {trouble}: the run ended {time.monotonic() - start:.1f} s after its last batch")


def line_of(code: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if code in line)


@contextmanager
def started(kind: str, trouble: str) -> Iterator[subprocess.Popen[str]]:
    """This file as a program: a process of its own that collects for ever, until the block ends."""
    run = subprocess.Popen(
        [sys.executable, __file__, kind, trouble],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": tempfile.gettempdir()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_a_killed_run_leaves_no_worker_behind_that_hangs():
    with started("multi_async", "hangs_in_c") as run:
        process = psutil.Process(run.pid)
        hung = psutil.Process(int(run.stdout.readline()))
        below = process.children(recursive=True)
        assert hung in below
        assert len(workers_of(process)) == 2
        run.kill()
        assert gone(below)


def test_ctrl_c_while_workers_start_prints_nothing():
    with started("multi_sync", "raises") as run:
        process = psutil.Process(run.pid)
        while not workers_of(process):
            assert run.poll() is None
            time.sleep(0.01)
        below = process.children(recursive=True)
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate()
        assert (run.returncode, out, err) == (130, "", "")
        assert gone(below)


FORKS = """
import os, time
for _ in range(5000):
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    time.sleep(0.001)
"""


def group(session: int) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                processes.append(process)
    return processes


def test_a_process_that_goes_on_starting_others_is_ended_with_all_of_them():
    before = worker_collectors.child_processes()
    forks = subprocess.Popen([sys.executable, "-c", FORKS], start_new_session=True)
    try:
        while len(worker_collectors.child_processes() - before) < 20:
            time.sleep(0.001)
        worker_collectors.kill_new_processes(before)
        forks.wait()
        assert gone(group(forks.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(forks.pid, signal.SIGKILL)


class Fake:
    """In TorchRL's place: processes that ended or not, and a wait of a minute."""

    def __init__(self, procs: list[SimpleNamespace], **options: object) -> None:
        self.procs = procs

    def update_policy_weights_(self) -> None:
        try:
            time.sleep(60)
        except Exception:  # as TorchRL does
            time.sleep(60)

    def shutdown(self, *args: object) -> None:
        self.is_shut_down = True


class FakeWorkers(worker_collectors.WorkerWatchdog, Fake):
    pass


def fake(*exit_codes: int | None, **options) -> FakeWorkers:
    procs = [
        SimpleNamespace(pid=2**22 + n, exitcode=code, _closed=False) for n, code in enumerate(exit_codes)
    ]
    collector = FakeWorkers([], **{"worker_timeout": 60} | options)
    collector.procs = procs
    return collector


def test_the_worker_that_ended_first_is_told_and_not_those_terminated_for_it():
    with pytest.raises(WorkerError, match=r"^worker 1 \(process 4194305\) ended with exit code 3$"):
        fake(-signal.SIGTERM, 3, None).update_policy_weights_()


def test_a_signal_to_all_processes_is_an_interruption():
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:  # after a dead worker was seen
            raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        fake(-signal.SIGTERM, stop=stop).update_policy_weights_()


def test_other_errors_pass_and_what_was_set_is_put_back():
    former = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        collector = fake(None)
        with pytest.raises(ZeroDivisionError), collector.watch():
            divide()
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 400
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def program(kind: str, trouble: str) -> None:
    """Collects until Ctrl-C."""
    signals = []
    signal.signal(signal.SIGINT, lambda signum, frame: signals.append(signum))

    def stop() -> None:
        if signals:
            raise Interrupted(*signals)

    for _ in make_collector(kind, trouble, stop=stop):
        pass


if __name__ == "__main__":
    try:
        program(*sys.argv[1:])
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
