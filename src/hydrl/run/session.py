"""How a run is embedded in its process: when it began, and how another thread ends it."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Self

import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode


@dataclass
class Session:
    """One run's place in a process that may have others before and after it.

    Attributes:
        began: when the run began, by ``time.monotonic``.
        stop_requested: set by another thread to end the run after the current batch.
    """

    began: float
    stop_requested: Event = field(default_factory=Event)

    @classmethod
    def of_job(cls) -> Self:
        """The session of a Hydra job: it began with its process, or now where a sweep shares one process."""
        hydra = HydraConfig.instance().cfg
        shared = hydra is not None and hydra.hydra.mode == RunMode.MULTIRUN
        return cls(time.monotonic() - (0.0 if shared else process_age()))


def process_age() -> float:
    """Seconds since this process began; on Linux by a monotonic clock."""
    try:
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return max(0.0, time.time() - psutil.Process().create_time())
