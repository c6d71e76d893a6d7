"""Starts or joins a Ray cluster, with the run's signal handlers and without Ray's output."""

import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import Any, NamedTuple

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayActorError, RayError, RayTaskError
from ray.job_config import JobConfig

from hydrl.errors import UserError, WorkerError, print_lines

TICK = 0.5  # seconds between two polls
CONNECT_SECONDS = 10.0
NODE_DEATH_SECONDS = 20.0  # after five unanswered polls, three seconds apart, Ray calls a node dead
STORE_FULL = (
    "found Ray's object store and its disk full. Use fewer frames in a batch, or a larger store by ray start "
    "--object-store-memory=BYTES"
)
ATTEMPTS = "RAY_gcs_server_port_wait_time_s"  # also the number of attempts to connect
BLOCKED = {signal.SIGTERM, signal.SIGHUP}  # Ray's processes ignore SIGINT by themselves


class ProcessLocation(NamedTuple):
    """Where a Ray process runs."""

    node: str
    address: str
    pid: int

    def __str__(self) -> str:
        """For messages."""
        return f"process {self.pid} of node {self.node[:8]} at {self.address}"


def current_location() -> ProcessLocation:
    """Where this Ray process runs."""
    return ProcessLocation(
        ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid()
    )


def join_cluster(key: str, address: str | None, needed: Mapping[str, float] | None) -> None:
    """Starts a cluster on this machine, or joins one.

    Args:
        key: the setting with the address, for messages.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        needed: CPUs and GPUs of a started cluster; ``None``: those of this machine.

    Raises:
        UserError: where there is no cluster.
    """
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        say("starting Ray on this machine")
        # The token of this cluster stays secret; Ray would write it into the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if needed:
            options |= {"num_cpus": ceil(needed["CPU"]), "num_gpus": ceil(needed["GPU"])}
        options["include_dashboard"] = False
    else:
        say(f"joining the Ray cluster at {address}")
        if address != "auto":
            check_reachable(key, address)
    # The folders of the user's own modules; Ray's workers search the last of these first.
    path = JobConfig(_py_driver_sys_path=[folder for folder in reversed(sys.path) if folder])
    try:
        with keep_signal_handlers(), nullcontext() if address is None else one_connection_attempt():
            ray.init(**options, job_config=path, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise UserError(f"{key}={address}: {' '.join(str(error).split())}") from None


def check_reachable(key: str, address: str) -> None:
    """Connects to ``HOST:PORT``; Ray itself would try for many minutes without handling signals.

    Raises:
        UserError: where nothing listens.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{key}={address}: no Ray cluster ({why}). Start one with ray start --head."
        ) from None


@contextmanager
def one_connection_attempt() -> Iterator[None]:
    """Lets Ray try to connect once, for 40 s, and not twenty times, unless the user set another number."""
    was = os.environ.get(ATTEMPTS)
    os.environ.setdefault(ATTEMPTS, "1")
    try:
        yield
    finally:
        if was is None:
            del os.environ[ATTEMPTS]


def unblock_signals() -> None:
    """Unblocks what :func:`keep_signal_handlers` blocked, in this thread and its child processes."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Keeps the run's handler of SIGTERM, which Ray replaces by one that ends the process.

    A signal during the block is handled after it. Processes started here inherit the blocked signals: the run
    handles a signal to the whole process group, saves first and then ends Ray.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, mask = (
        signal.getsignal(signal.SIGTERM),
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED),
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def is_node_gone(node: str) -> bool:
    """Whether a node is gone; Ray may detect this later than that a process on it is."""
    until = time.monotonic() + NODE_DEATH_SECONDS
    while any(entry["NodeID"] == node and entry["Alive"] for entry in ray.nodes()):
        if time.monotonic() >= until:
            return False
        time.sleep(TICK)
    return True


@contextmanager
def report_full_store() -> Iterator[None]:
    """Reports in one line that Ray's object store has no room for what is stored in the block.

    Raises:
        WorkerError: in place of Ray's own.
    """
    try:
        yield
    except (OutOfDiskError, ObjectStoreFullError):
        raise WorkerError(f"the process that learns {STORE_FULL}") from None


def explain_end(what: str, location: ProcessLocation | None, error: RayError, with_it: str) -> str:
    """Why an actor ended: its own failure, its process or its node.

    Args:
        what: the actor, as a message calls it.
        location: where it runs, once it has started.
        error: Ray's.
        with_it: what is gone with its node.
    """
    if isinstance(error, OutOfDiskError | ObjectStoreFullError):
        return f"{what} {STORE_FULL}"
    if isinstance(error, RayTaskError):
        return f"{what} failed:\n{actor_traceback(error)}"
    if location is None:
        return f"{what} did not start:\n{actor_traceback(error)}"
    if is_node_gone(location.node):
        return f"node {location.node[:8]} at {location.address} is gone, and {with_it} with it"
    if isinstance(error, RayActorError):
        return f"{what} ended, as one does that the system kills for its memory"
    return f"{what}: {' '.join(str(error).split())}"


def actor_traceback(error: RayError) -> str:
    """The traceback of an actor's failure without Ray's own frames, or the message."""
    text = re.sub("\x1b\\[\\d+m", "", str(error)).strip()  # which Ray colours
    _, first, frames = text.partition('  File "')
    return f"Traceback (most recent call last):\n{first}{frames}" if frames else " ".join(text.split())


def say(text: str) -> None:
    """Prints a line, while there is no progress bar yet."""
    print_lines(text, sys.stderr)
