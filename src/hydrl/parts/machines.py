"""A Ray cluster of one machine or several: started or joined, with the run's signals and a quiet screen."""

import logging
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any

import ray
from ray._private.ray_logging import stdout_deduplicator
from ray.exceptions import RayError
from ray.job_config import JobConfig

from hydrl.errors import UserError

TICK = 0.5  # seconds between two looks
LOST = 20.0  # seconds; Ray takes a node for dead once it has not answered five times, three seconds apart


def begin(
    key: str, address: str | None, needed: Mapping[str, float] | None, stop: Callable[[], object]
) -> None:
    """Starts a cluster on this machine, or joins one.

    Args:
        key: that says the address.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        needed: CPUs and GPUs that one which starts has; ``None``: those of this machine.
        stop: called if SIGTERM comes meanwhile; what it raises ends the start.

    Raises:
        UserError: where there is none.
    """
    options: dict[str, Any] = {"address": address or "local"}
    if address is None:
        say("Ray starts on this machine")
        # Nobody else is told the token of a cluster of one's own, which Ray would write into the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if needed:
            options |= {"num_cpus": ceil(needed["CPU"]), "num_gpus": ceil(needed["GPU"])}
        options["include_dashboard"] = False
    else:
        say(f"joins the Ray cluster at {address}")
    stdout_deduplicator.skip_re = re.compile("")  # where a node is lost, thirty lines of another's state
    # Where parts of one's own lie, for which Ray's workers look in the last of these first.
    path = JobConfig(_py_driver_sys_path=[each for each in reversed(sys.path) if each])
    try:
        with own_signals(stop):
            ray.init(**options, job_config=path, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise UserError(f"{key}={address}: {' '.join(str(error).split())}") from None


@contextmanager
def own_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Keeps the run's handler of SIGTERM, in whose place Ray puts one that ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, handler)
        signal.raise_signal(signal.SIGTERM)
        stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def gone(node: str) -> bool:
    """Whether a node is gone, which Ray may find out later than that a process on it is."""
    until = time.monotonic() + LOST
    while any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
        if time.monotonic() >= until:
            return False
        time.sleep(TICK)
    return True


def say(text: str) -> None:
    """A line on the screen, while there is no progress bar yet."""
    print(text, file=sys.stderr, flush=True)
