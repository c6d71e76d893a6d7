"""How a run is embedded in its process: when it began, and how another thread ends it."""

from dataclasses import dataclass, field
from threading import Event


@dataclass
class Session:
    """One run's place in a process that may have others before and after it.

    Attributes:
        began: when the run began, by ``time.monotonic``; ``None``: with the process.
        stop_requested: set by another thread to end the run after the current batch.
    """

    began: float | None = None
    stop_requested: Event = field(default_factory=Event)
