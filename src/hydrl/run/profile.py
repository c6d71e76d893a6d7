"""Where a run's time goes, operator by operator: ``torch.profiler`` over its last batches."""

import os
from pathlib import Path

from torch import profiler


class Profile:
    """Records the last batches of a run into ``trace.json.gz`` and ``profile.txt`` of its folder.

    The last ones, so that replay memory is filled, everything compiled and every cache warm.

    Args:
        folder: the run folder.
        batches: of the whole run.
        recorded: how many of them; none leaves the profiler out.
    """

    def __init__(self, folder: Path, batches: int, recorded: int) -> None:
        self.folder = folder
        self.profiler: profiler.profile | None = None
        if recorded:
            recorded = min(recorded, batches)
            warmup = min(1, batches - recorded)  # the profiler's own
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of the library below, which tells its steps
            wait = batches - recorded - warmup
            schedule = profiler.schedule(wait=wait, warmup=warmup, active=recorded, repeat=1)
            self.profiler = profiler.profile(schedule=schedule, on_trace_ready=self.save)
            self.profiler.start()

    def step(self) -> None:
        """Called after each batch."""
        if self.profiler:
            self.profiler.step()

    def save(self, recorded: profiler.profile) -> None:
        """Writes the trace, for chrome://tracing or ui.perfetto.dev, and the 30 costliest operators."""
        recorded.export_chrome_trace(str(self.folder / "trace.json.gz"))
        averages = recorded.key_averages()
        device = any(each.self_device_time_total for each in averages)
        by = "self_device_time_total" if device else "self_cpu_time_total"
        table = averages.table(sort_by=by, row_limit=30, max_name_column_width=70)
        (self.folder / "profile.txt").write_text(table)

    def close(self) -> None:
        """Ends it, however the run ended; again does nothing."""
        if self.profiler:
            self.profiler.stop()
            self.profiler = None
