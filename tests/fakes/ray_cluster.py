"""Two Ray nodes on this machine, as processes with resources of their own, of which one can be lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

RAY = str(Path(sys.executable).with_name("ray"))


class Nodes:
    """Starts them, the second with a CPU.

    Args:
        folder: of their sockets and logs, by which their processes are known.
        cpus: of the first.
    """

    def __init__(self, folder: str, cpus: int) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        head = ["--head", f"--port={self.address.split(':')[1]}", "--include-dashboard=false"]
        self.start(*head, f"--temp-dir={folder}", f"--num-cpus={cpus}")
        first = self.processes()
        self.start(f"--address={self.address}", "--num-cpus=1")
        self.second = self.processes() - first

    def start(self, *words: str) -> None:
        subprocess.run([RAY, "start", "--disable-usage-stats", *words], check=True, capture_output=True)

    def processes(self) -> set[psutil.Process]:
        named = {
            each for each in psutil.process_iter(["cmdline"]) if self.folder in str(each.info["cmdline"])
        }
        return named.union(*(each.children(recursive=True) for each in named))

    def lose(self) -> None:
        """Kills what makes the second one a node."""
        next(each for each in self.second if each.name() == "raylet").kill()


@contextmanager
def two_nodes(cpus: int = 1) -> Iterator[Nodes]:
    """For the block; nothing of them is left."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # a socket's path is short
    nodes = None
    try:
        nodes = Nodes(folder, cpus)
        yield nodes
    finally:
        for each in nodes.processes() if nodes else ():
            os.kill(each.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
