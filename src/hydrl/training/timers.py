"""Timers of a run's activities, by a monotonic clock."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch._dynamo.utils import calculate_time_spent

from hydrl import metric_names as names

Item = TypeVar("Item")


class Clock:
    """Seconds of a run, those of its earlier processes included, where it was resumed.

    Args:
        began: when the run began, by ``time.monotonic``.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.loop_began = time.monotonic()
        self.compiled_before = compile_seconds()  # by earlier runs of this process
        self.spent: dict[str, float] = defaultdict(float)  # seconds of each activity in this process
        self.earlier: dict[str, float] = {}  # and in the run's earlier processes

    def start_loop(self) -> None:
        """All is built, and the loop begins."""
        self.loop_began = time.monotonic()

    @contextmanager
    def timeit(self, activity: str) -> Iterator[None]:
        """Context manager that counts the seconds of a block, as ``torchrl.timeit``, by a monotonic clock."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[activity] += time.monotonic() - began

    def timed(self, items: Iterable[Item], activity: str = names.COLLECTING) -> Iterator[Item]:
        """Yields ``items`` and counts the seconds until each comes, by default as collecting."""
        iterator, end = iter(items), object()
        while True:
            with self.timeit(activity):
                item = next(iterator, end)
            if item is end:
                return
            yield cast(Item, item)

    @property
    def elapsed(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    @property
    def in_loop(self) -> float:
        """Since all was built."""
        return time.monotonic() - self.loop_began

    @property
    def activities(self) -> dict[str, float]:
        """Seconds of each activity; ``time/update`` holds ``time/compile``."""
        spent = dict(self.spent)
        if compiling := compile_seconds() - self.compiled_before:
            spent[names.COMPILING] = compiling
        return {
            name: spent.get(name, 0.0) + self.earlier.get(name, 0.0) for name in {**self.earlier, **spent}
        }

    def metrics(self, frames: int) -> dict[str, float]:
        """The ``time/`` entries of a log row; activities are shares of the loop's time."""
        in_loop = self.in_loop
        return {
            **{name: seconds / in_loop for name, seconds in self.activities.items()},
            names.ELAPSED: self.elapsed,
            names.FRAMES_PER_SECOND: frames / in_loop,
        }

    def summary(self, frames: int) -> dict[str, float]:
        """The times of ``summary.json``, in seconds."""
        spent, elapsed = self.activities, self.elapsed
        compiling = spent.get(names.COMPILING, 0.0)
        learning = sum(spent.get(name, 0.0) for name in (names.COLLECTING, names.SAMPLING, names.UPDATING))
        learning = max(0.0, learning - compiling)  # an interrupted update has compiled, and does not count
        return {
            "wall_seconds": elapsed,
            "start_seconds": self.loop_began - self.began,
            "learning_seconds": learning,
            "evaluation_seconds": spent.get(names.EVALUATING, 0.0),
            "video_seconds": spent.get(names.RECORDING, 0.0),
            "compile_seconds": compiling,
            "overhead_share": 1 - learning / elapsed,
            "frames_per_second": frames / self.in_loop,
        }

    def state_dict(self) -> dict[str, Any]:
        """The seconds so far."""
        return {"elapsed": self.elapsed, "in_loop": self.in_loop, "activities": self.activities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Runs on from :meth:`state_dict`."""
        self.began -= state["elapsed"]
        self.loop_began -= state["in_loop"]
        self.earlier = state["activities"]


def compile_seconds() -> float:
    """Seconds this process has spent compiling so far."""
    return calculate_time_spent()["total_wall_time"]
