"""Verifiers in a worker process, which is replaced when it takes longer than a limit."""

import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from hydrl.contrib.language.tasks import TextTask
from hydrl.errors import RunError
from hydrl.experience.forkserver import END_WITH_PARENT


class VerifierProcess:
    """Worker process that calls a task's methods; started at the first call, and anew after a timeout.

    A signal alone would not stop code written in C, such as ``9**9**9``; the process is killed.

    Args:
        task: rewards answers; it is pickled.
        timeout: seconds for one call.
    """

    def __init__(self, task: TextTask, timeout: float) -> None:
        self.task, self.timeout = task, timeout
        self.process: Any = None
        self.connection: Any = None

    def reward(self, prompt: str, answer: str, solution: str) -> float | Mapping[str, float]:
        """The task's reward, see :meth:`call`."""
        return self.call("reward", prompt, answer, solution)

    def turn(self, prompt: str, answer: str) -> str | None:
        """The task's reply, see :meth:`call`."""
        return self.call("turn", prompt, answer)

    def call(self, method: str, *arguments: str) -> Any:
        """What a method of the task returns.

        Raises:
            TimeoutError: if it takes longer than the limit.
            RunError: if the task raises, or the process ends.
        """
        if self.process is None:
            self.start()
        try:
            self.connection.send((method, arguments))
            if not self.connection.poll(self.timeout):
                raise TimeoutError
            value, reason = self.connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise
            raise RunError("its process ended") from error
        if reason:
            raise RunError(reason)
        return value

    def start(self) -> None:
        """Starts the process, and waits until it is ready.

        It is started as a program, because background evaluations may start no process by multiprocessing.
        """
        self.connection, other = Pipe()
        code = f"from hydrl.contrib.language.verifier import serve; serve({other.fileno()})"
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[other.fileno()],
            preexec_fn=END_WITH_PARENT,
        )
        other.close()
        self.connection.send(self.task)
        self.connection.recv()

    def close(self) -> None:
        """Kills the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
        self.process = self.connection = None


def serve(descriptor: int) -> None:
    """Calls the task's methods until the connection with this file descriptor is closed."""
    connection = Connection(descriptor)
    task = connection.recv()
    connection.send("ready")
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            connection.send((getattr(task, method)(*arguments), ""))
        except Exception as error:
            connection.send((None, f"{type(error).__name__}: {error}"))
