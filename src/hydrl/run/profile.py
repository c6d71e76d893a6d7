"""Where a run's time goes, operator by operator: ``torch.profiler`` over its last batches."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch import profiler


@contextmanager
def profiled(folder: Path, batches: int, recorded: int) -> Iterator[Callable[[], None]]:
    """Records a run's last batches, with all filled and compiled; yields what is called after each.

    Args:
        folder: gets ``trace.json.gz`` and ``profile.txt``.
        batches: of the whole run.
        recorded: how many of them; none leaves the profiler out.
    """
    if not recorded:
        yield lambda: None
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of the library below, which tells its steps
    recorded = min(recorded, batches)
    warmup = min(1, batches - recorded)  # the profiler's own
    schedule = profiler.schedule(wait=batches - recorded - warmup, warmup=warmup, active=recorded, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=partial(save, folder)) as running:
        yield running.step


def save(folder: Path, recorded: profiler.profile) -> None:
    """Writes the trace, for chrome://tracing or ui.perfetto.dev, and the 30 costliest operators."""
    recorded.export_chrome_trace(str(folder / "trace.json.gz"))
    averages = recorded.key_averages()
    by = "device" if any(each.self_device_time_total for each in averages) else "cpu"
    table = averages.table(sort_by=f"self_{by}_time_total", row_limit=30, max_name_column_width=70)
    (folder / "profile.txt").write_text(table)
