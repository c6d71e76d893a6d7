"""Frames a second of one to four collectors, what each costs the process that learns, what follows from it.

Each collector has one environment of :class:`slow_tasks.SlowTask` and 64 steps of every batch, from which PPO
learns once with a small network, so that next to nothing but collecting takes time. All of Ray's run on one
cluster, as starting one takes longer than to measure.
"""

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

STEPS = 64  # of a batch, by each collector
COLLECTORS = (1, 2, 4)
SIMULATORS = {"0 ms": {}, "5 ms": {"wait": 5}, "20 ms": {"wait": 20}, "5 ms of computing": {"busy": 5}}
BACKENDS = {
    "multi_sync": "num_workers",
    "multi_async": "num_workers",
    "ray": "num_collectors",
    "ray, sync=false": "num_collectors",
}
ASYNC_BACKENDS = ("multi_async", "ray, sync=false")  # a batch is of one collector
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00")
FAR = (16, 128, 1_024)
WORK = (
    *("algo=ppo", "env=gym", "env.id=scripts.benchmark.slow_tasks:SlowTask-v0", "device=cpu"),
    *("transforms=plain", "compile=false", "torch_threads=1", "minibatches.epochs=1"),
    *("actor.num_cells=[64,64]", "critic.num_cells=[64,64]"),
)


@dataclass(frozen=True)
class Loop:
    """One run to be timed.

    Attributes:
        simulator: which of :data:`SIMULATORS`.
        backend: which of :data:`BACKENDS`; ``single`` steps all by itself.
        collectors: how many.
    """

    simulator: str
    backend: str
    collectors: int

    @property
    def frames(self) -> int:
        """Of a batch: of all that wait for each other, or of the one that is done."""
        return STEPS * (1 if self.backend in ASYNC_BACKENDS else self.collectors)

    def overrides(self, address: str | None) -> list[str]:
        """What ``train.py`` is told, with the cluster's address."""
        choice, _, more = self.backend.partition(", ")
        words = [*WORK, f"minibatches.size={self.frames}", f"collector.frames_per_batch={self.frames}"]
        words += [f"+env.{key}={value}" for key, value in SIMULATORS[self.simulator].items()]
        if self.backend == "single":
            return words
        words += [f"collector={choice}", f"collector.{BACKENDS[self.backend]}={self.collectors}"]
        words += [f"collector.{more}"] * bool(more)
        return [*words, f"collector.address={address}"] if choice == "ray" else words


def loops(address: str | None) -> list[Loop]:
    """All of them; a simulator's single process first. Ray's where there is a cluster."""
    available = [backend for backend in BACKENDS if address or not backend.startswith("ray")]
    return [
        loop
        for simulator in SIMULATORS
        for loop in (
            Loop(simulator, "single", 1),
            *(Loop(simulator, backend, number) for backend in available for number in COLLECTORS),
        )
    ]


@contextmanager
def cluster() -> Iterator[str | None]:
    """A cluster of Ray's on this machine, and its address; nothing where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        yield None
        return
    import ray

    from hydrl.contrib.ray.cluster import join_cluster

    join_cluster("collector.address", None, {"CPU": max(COLLECTORS) + 1, "GPU": 0})
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def units(words: Sequence[str]) -> None:
    """Prints, as JSON, seconds of a batch and a publication, and bytes of weights, a frame and a worker.

    A batch is asked for where nobody acts any more, so that those who wait for nobody are not waited for.
    """
    from hydrl import envs
    from hydrl.config.settings import load
    from hydrl.config.tuned import compose_run
    from hydrl.experience import collectors
    from hydrl.run import process

    settings = load(compose_run(["run_dir=unused", *words]))
    process.prepare(0, "cpu", 1)
    make = partial(envs.make_env, settings.build("env"), settings.transform_builders)
    env = make(num_envs=1)
    policy = settings.build("actor")(env)
    built = settings.build("collector")(env, make, policy, seed=0, device="cpu")
    taken, published = [], []
    with collectors.shut_down_after(built) as collector:
        batches = iter(collector)
        for _ in range(12):
            time.sleep(1)  # far longer than their steps take
            began = time.perf_counter()
            batch = next(batches)
            taken.append(time.perf_counter() - began)
            began = time.perf_counter()
            collector.publish()
            published.append(time.perf_counter() - began)
        size = sum(entry.nbytes for entry in batch.values(True, True)) / batch.numel()
        started = psutil.Process().children(recursive=True)  # Ray's are of another process
        worker = max((process.memory_full_info().uss for process in started), default=None)
    costs = {"taken": statistics.median(taken[3:]), "published": statistics.median(published[3:])}
    weights = sum(parameter.nbytes for parameter in policy.parameters())
    print(json.dumps(costs | {"weights": weights, "frame": size, "worker": worker}))


def forecast(
    backend: str, one: Mapping[str, float], four: Mapping[str, float], alone: float
) -> dict[int, float]:
    """Frames a second of more collectors than were measured, where each has a core of its own.

    What a batch and its publication cost grows in a line with the collectors that wait for each other. Where
    none waits, collectors hand over what they can, until the process that learns can take no more; Ray tells
    of a new policy only who has handed over.

    Args:
        backend: which of :data:`BACKENDS`.
        one: what :func:`units` printed of one collector.
        four: of four.
        alone: steps a second of one by itself.
    """

    def grown(key: str, collectors: int) -> float:
        return one[key] + (collectors - 1) * max(four[key] - one[key], 0) / 3

    if backend in ASYNC_BACKENDS:
        published = {
            count: grown("published", count) if backend == "multi_async" else four["published"]
            for count in FAR
        }
        most = {count: STEPS / (four["taken"] + published[count]) for count in FAR}
        return {count: min(count * alone, most[count]) for count in FAR}
    return {count: STEPS * count / (grown("taken", count) + grown("published", count)) for count in FAR}


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Frames a second against collectors, a panel a simulator, beside the ideal."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), dpi=150, layout="constrained")
    for axis, simulator in zip(axes.flat, SIMULATORS, strict=True):
        (alone,) = (row["frames/s"] for row in rows if key_of_row(row) == (simulator, "single", 1))
        axis.plot(COLLECTORS, [alone * count for count in COLLECTORS], "--", color="#888888", label="ideal")
        for backend, colour in zip(BACKENDS, COLOURS, strict=True):
            line = [row for row in rows if (row["simulator"], row["backend"]) == (simulator, backend)]
            if line:
                points = [row["collectors"] for row in line], [row["frames/s"] for row in line]
                axis.plot(*points, "o-", color=colour, label=backend)
        axis.set_title(f"a step of {simulator}", loc="left", fontsize=14)
        axis.set_xticks(COLLECTORS)
        axis.set_ylim(0)
        axis.tick_params(labelsize=12)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=12)
    figure.supxlabel("collectors", fontsize=13)
    figure.supylabel("environment frames a second", fontsize=13)
    figure.savefig(path)
    pyplot.close(figure)


def key_of_row(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Simulator, backend and number of collectors of a row."""
    return row["simulator"], row["backend"], row["collectors"]


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # of the task
    units(sys.argv[1:])
