"""PyTorch's libraries are loaded beside Python's other work, before anything imports PyTorch."""

import os
import subprocess
import sys
import threading

import pytest

from hydrl import torch_libraries
from hydrl.config import command_line

PROGRAM = """
import sys, threading
from pathlib import Path
from hydrl import torch_libraries

loaded = lambda: "libtorch_cpu.so" in Path("/proc/self/maps").read_text()
before = loaded()
torch_libraries.load_in_background()
[thread.join() for thread in threading.enumerate() if thread.daemon]
print(before, loaded(), "torch" in sys.modules)
import torch
print(torch.arange(4.0).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is loaded before")
def test_the_libraries_are_loaded_and_pytorch_works_with_them():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core has no time to spare")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "False True False\n6.0\n"


def test_nothing_is_started_where_it_would_not_help(monkeypatch):
    started: list[threading.Thread] = []
    monkeypatch.setattr(torch_libraries, "Thread", lambda **_: started.append(None))
    torch_libraries.load_in_background()  # PyTorch is imported
    monkeypatch.setattr(torch_libraries.sys, "modules", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    torch_libraries.load_in_background()
    assert started == []


@pytest.mark.parametrize(
    ("words", "calls"), [(["algo=ppo"], 1), (["-m", "seed=0,1"], 0), (["--help"], 0), (["--version"], 0)]
)
def test_only_a_single_run_is_expected_to_need_them(words, calls, monkeypatch):
    count: list[None] = []
    monkeypatch.setattr(torch_libraries, "load_in_background", lambda: count.append(None))
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    command_line.run(lambda: None)
    assert len(count) == calls
