"""Ray cluster of two nodes on this machine, one of which can be killed."""

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
    """Two Ray nodes, the second with one CPU.

    Args:
        folder: of their sockets and logs, which identifies their processes.
        cpus: of the first node.
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
            process
            for process in psutil.process_iter(["cmdline"])
            if self.folder in str(process.info["cmdline"])
        }
        return named.union(*(process.children(recursive=True) for process in named))

    def lose(self) -> None:
        """Kills the second node's raylet."""
        next(process for process in self.second if process.name() == "raylet").kill()


@contextmanager
def two_nodes(cpus: int = 1) -> Iterator[Nodes]:
    """Context manager of two nodes; kills all of their processes at its end."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # a socket's path is short
    nodes = None
    try:
        nodes = Nodes(folder, cpus)
        yield nodes
    finally:
        for process in nodes.processes() if nodes else ():
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
