import gc
import importlib
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from hydrl.errors import Interrupted, RunError, UserError
from hydrl.run import process
from tests.conftest import HANGING


@pytest.mark.parametrize(
    ("there", "name", "device"),
    [(0, "auto", "cpu"), (1, "auto", "cuda"), (1, "cpu", "cpu"), (2, "cuda:1", "cuda:1")],
)
def test_auto_takes_cuda_where_there_is_one(there, name, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert process.choose_device(name) == device


@pytest.mark.parametrize(("there", "name"), [(0, "cuda"), (1, "cuda:1")])
def test_a_cuda_device_that_is_not_there_is_refused(there, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(UserError, match=f"device={name}: PyTorch finds {there} CUDA devices. Use device="):
        process.choose_device(name)


def test_a_run_has_the_threads_it_was_given():
    for threads in (2, 1):
        process.prepare(0, "cpu", threads)
        assert torch.get_num_threads() == threads


def test_one_seed_fixes_every_global_generator():
    def draws(seed):
        process.prepare(seed, "cpu", 1)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert draws(4) == draws(4)
    assert all(a != b for a, b in zip(draws(4), draws(5), strict=True))


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_waits_for_the_next_place_to_stop_and_the_handlers_come_back(signum, code):
    before = signal.getsignal(signum)
    stop, reached = process.Stop(), []

    def batch() -> None:
        stop.check()
        os.kill(os.getpid(), signum)
        reached.append("the end of the batch")
        stop.check()
        reached.append("never")

    with pytest.raises(Interrupted) as caught, stop:
        batch()
    assert reached == ["the end of the batch"]
    assert (caught.value.exit_code, caught.value.in_batch) == (code, False)
    assert signal.getsignal(signum) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # it would interrupt what is saved now


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            stop.check()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_batch_that_takes_too_long_is_broken_off():
    def batch() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)

    with pytest.raises(Interrupted) as caught, process.Stop(grace=0.05):
        batch()
    assert (caught.value.exit_code, caught.value.in_batch) == (143, True)


def test_an_import_is_not_broken_off(tmp_path, monkeypatch):
    """Python would forget the module, and keep what it had made in others: matplotlib imports only once."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\nis_whole = True\n")

    def batch() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        importlib.import_module("slow_to_import")
        time.sleep(600)

    with pytest.raises(Interrupted) as caught, process.Stop(grace=0.05):
        batch()
    assert (caught.value.exit_code, caught.value.in_batch) == (143, True)
    assert sys.modules.pop("slow_to_import").is_whole


def test_what_fails_after_a_signal_fails_by_it_and_what_fails_by_itself_does_not(capsys):
    def batch(error: Exception, signum: int | None = None) -> None:
        with process.Stop() as stop, stop.as_interrupt():
            if signum:
                os.kill(os.getpid(), signum)
            raise error

    with pytest.raises(Interrupted) as caught:
        batch(RuntimeError("C++ compile error\nCommand: g++ …"), signal.SIGINT)
    assert (caught.value.exit_code, caught.value.in_batch) == (130, True)
    assert capsys.readouterr().err == "warning: interrupted by the signal: RuntimeError: C++ compile error\n"
    with pytest.raises(RuntimeError, match=r"C\+\+ compile error"):
        batch(RuntimeError("C++ compile error"))
    with pytest.raises(RunError, match="the disk is full"):
        batch(RunError("the disk is full"), signal.SIGINT)


def test_a_second_signal_kills_at_once():
    program = "import os, signal, time; from hydrl.run import process; process.SAME = -1\n"
    program += "with process.Stop():\n os.kill(os.getpid(), signal.SIGINT)\n"
    program += " os.kill(os.getpid(), signal.SIGINT)\n"
    done = subprocess.run([sys.executable, "-c", f"{program} time.sleep(600)"], capture_output=True)
    assert done.returncode == -signal.SIGINT


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch):
    monkeypatch.setattr(process, "SAME", HANGING)  # however long this process has to wait for a core
    with process.Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as caught:
            stop.check()
    assert caught.value.exit_code == 143


def test_versions_name_what_the_numbers_depend_on():
    versions = process.versions()
    assert versions["torchrl"] == "0.14.1"
    assert versions["tensordict"] == "0.14.3"
    assert versions["torch"] == torch.__version__.split("+")[0]


def test_a_run_collects_garbage_but_does_not_look_through_what_was_imported():
    def looked_through(thing: object) -> bool:  # a frozen one is in none of the collector's generations
        return any(one is thing for one in gc.get_objects())

    gc.disable()
    imported = [object()]
    try:
        process.prepare(0, "cpu", 1)
        assert gc.isenabled()
        assert not looked_through(imported)
        of_a_run = [object()]
        process.prepare(0, "cpu", 1)  # of a later run, which may hold garbage of the first
        assert looked_through(of_a_run)
        assert not looked_through(imported)
    finally:
        gc.unfreeze()
        gc.enable()


def test_compiling_without_a_compiler_and_a_cuda_graph_without_cuda_are_refused(monkeypatch):
    monkeypatch.setattr(process.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"compile=true: there is no C\+\+ compiler.*use compile=false"):
        process.prepare(0, "cpu", 1, compile=True)
    with pytest.raises(UserError, match=r"cudagraph=true.*on the cpu\. Use cudagraph=false"):
        process.prepare(0, "cpu", 1, cudagraph=True)
