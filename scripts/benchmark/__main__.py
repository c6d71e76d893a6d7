"""Measures hydrl beside its peers, interleaved in one call. Needs pip install 'hydrl[bench]'.

python scripts/benchmark                    # frames a second at the same work, each loop three times
python scripts/benchmark speed --repeats 1 --tasks dqn
BENCHMARL=DIR python scripts/benchmark speed --tasks mappo     # beside BenchMARL; marl.py says how to have it
python scripts/benchmark memory             # what a replay buffer on disk and one in memory keep resident
python scripts/benchmark pictures           # what one of Atari's pictures takes, and how long a draw
python scripts/benchmark solve --seeds 100,101       # seconds until a task is solved, both sides tuned
python scripts/benchmark untuned --seeds 100,101     # what PPO reaches on tasks that nobody tuned
python scripts/benchmark same_defaults --seeds 100   # experiment=sb3/... beside Stable-Baselines3 itself
python scripts/benchmark scaling            # one to four collectors of each kind, quick and slow simulators
python scripts/benchmark meanwhile          # SAC of a slow simulator: one update a frame, while it collects
python scripts/benchmark threads            # one thread and the default, alone and beside a busy process
python scripts/benchmark precision          # an update in float32 and in bf16, in turns
python scripts/benchmark start --beside DIR          # seconds to the first environment step, of two checkouts

Tables also go to outputs/, the speeds as a picture too. Machines are noisy: ratios are taken within a round,
and their median is shown.
"""

import argparse
import csv
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from rich.table import Table

from hydrl.config.command_line import print_error
from hydrl.config.settings import Settings, load
from hydrl.config.tuned import compose_run
from hydrl.errors import UserError
from hydrl.experience.forkserver import end_with_parent
from hydrl.run.logging.console import console

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUTS = ROOT / "outputs"


@dataclass(frozen=True)
class Task:
    """The work that every loop of a table does.

    Attributes:
        title: said above the table and its panel.
        work: of a batch, in words.
        frames: of a batch.
        updates: of a batch.
        filling: batches that only fill the replay buffer.
        warmup: batches before the clock starts; they absorb compilation.
        batches: measured ones.
        loops: a name to the overrides of ``train.py``, or to a generator in a module beside this file.
        bases: a column's title to the loop the others are compared with.
    """

    title: str
    work: str
    frames: int
    updates: int
    filling: int
    warmup: int
    batches: int
    loops: Mapping[str, Sequence[str] | str]
    bases: Mapping[str, str]


SB3, PLAIN, FLOOR = "Stable-Baselines3", "plain PyTorch", "floor: steps and updates alone"
BENCHMARL, BESIDE = "BenchMARL", "mappo"  # the task for which it is installed in a folder of its own
GAE_ONCE = "documented TorchRL, GAE once"
PPO = (
    "experiment=quickstart",
    "minibatches.advantage=once",
    "minibatches.draw=epoch",
    "optim.fused=true",
    "loss.module.log_explained_variance=false",
)
# Exploration is at its end value from the start, as it is for most of a run, in every loop of the table.
EAGER = "compile=false"
DQN = ("algo=dqn", "env=cartpole", "loss.module.double_dqn=false", "exploration.eps_init=0.05", EAGER)
ALONE = ("env=half_cheetah", "collector.num_envs=1", "torch_threads=1", EAGER)
SAC = ("algo=sac", *ALONE, "tuned=null")
TD3 = ("algo=td3", *ALONE, "optim.lr=1e-3")
PIPELINED = ("compile=true", "collector=pipelined")
PIPELINED_LOOP = ", pipelined"  # how its name ends
WIDE = ("collector.num_envs=32", "collector.frames_per_batch=1_024")
MINATAR = ("algo=ppo", "env=minatar", "env.id=MinAtar/Breakout-v1", "torch_threads=1", EAGER)
ATARI = ("env=atari", "env.id=ALE/Breakout-v5", "torch_threads=1", EAGER)
DQN_ATARI = (
    *("algo=dqn", *ATARI, "loss.module.double_dqn=false"),
    *("collector.init_random_frames=1_024", "minibatches.warmup_frames=1_024"),
    *("buffer.storage.max_size=20_000", "exploration.eps_init=0.01"),
)
RECURRENT = (
    *("algo=recurrent_ppo", "env=cartpole_masked", "tuned=null", "torch_threads=1", "optim.fused=true"),
    *("collector.frames_per_batch=1_024", "minibatches.size=256"),
)
MAPPO = ("algo=mappo", "env=vmas_navigation", "torch_threads=1", EAGER)
TASKS = {
    "ppo": Task(
        title="PPO, inverted double pendulum",
        work="1,000 frames and 150 updates of 64 a batch",
        frames=1_000,
        updates=150,
        filling=0,
        warmup=4,
        batches=20,
        loops={
            "hydrl": (*PPO, "collector.num_envs=10"),
            "hydrl, compiled": (*PPO, "collector.num_envs=10", "compile=true"),
            "hydrl, compiled, pipelined": (*PPO, *PIPELINED, "collector.num_envs=10"),
            SB3: "sb3.ppo",
            "documented TorchRL, as written": "documented.as_written",
            GAE_ONCE: "documented.gae_once",
            PLAIN: "plain.ppo",
            FLOOR: "plain.ppo_floor",
        },
        bases={"to SB3": SB3, "to plain": PLAIN, "to documented": GAE_ONCE},
    ),
    "ppo_32": Task(
        title="PPO, inverted double pendulum, 32 environments on both sides",
        work="1,024 frames and 160 updates of 64 a batch",
        frames=1_024,
        updates=160,
        filling=0,
        warmup=4,
        batches=20,
        loops={
            "hydrl": (*PPO, *WIDE),
            "hydrl, compiled": (*PPO, *WIDE, "compile=true"),
            "hydrl, compiled, pipelined": (*PPO, *PIPELINED, *WIDE),
            SB3: "sb3.ppo_32",
        },
        bases={"to SB3": SB3},
    ),
    "dqn": Task(
        title="DQN, CartPole",
        work="256 frames and 64 updates of 128 a batch",
        frames=256,
        updates=64,
        filling=3,
        warmup=8,
        batches=60,
        loops={
            "hydrl": DQN,
            "hydrl, compiled": (*DQN, "compile=true"),
            "hydrl, compiled, pipelined": (*DQN, *PIPELINED),
            SB3: "sb3.dqn",
            PLAIN: "plain.dqn",
            FLOOR: "plain.dqn_floor",
        },
        bases={"to SB3": SB3, "to plain": PLAIN},
    ),
    **{
        name: Task(
            title=f"{name.upper()}, HalfCheetah",
            work="64 frames and 64 updates of 256 a batch",
            frames=64,
            updates=64,
            filling=15,
            warmup=18,
            batches=8,
            loops={
                "hydrl": words,
                "hydrl, compiled": (*words, "compile=true"),
                SB3: f"sb3.{name}",
                PLAIN: f"plain.{name}",
                FLOOR: "plain.off_policy_floor",
            },
            bases={"to SB3": SB3, "to plain": PLAIN},
        )
        for name, words in (("sac", SAC), ("td3", TD3))
    },
    "recurrent_ppo": Task(
        title="Recurrent PPO, CartPole without velocities",
        work="1,024 frames and 40 updates of 256 a batch",
        frames=1_024,
        updates=40,
        filling=0,
        warmup=3,
        batches=12,
        loops={"hydrl": RECURRENT, SB3: "sb3_recurrent.recurrent_ppo"},
        bases={"to SB3": SB3},
    ),
    BESIDE: Task(
        title="MAPPO, VMAS' navigation, 64 environments of three agents",
        work="3,200 frames and 80 updates of 400 a batch",
        frames=3_200,
        updates=80,
        filling=0,
        warmup=2,
        batches=10,
        loops={"hydrl": MAPPO, BENCHMARL: "marl.mappo"},
        bases={"to BenchMARL": BENCHMARL},
    ),
    **{
        name: Task(
            title=title,
            work=work,
            frames=frames,
            updates=updates,
            filling=filling,
            warmup=warmup,
            batches=batches,
            loops={
                "hydrl": words,
                "hydrl, compiled": (*words, "compile=true"),
                **({"hydrl, compiled, pipelined": (*words, *PIPELINED)} if name != "dqn_atari" else {}),
                SB3: f"sb3_pictures.{name}",
                **({PLAIN: f"plain_pictures.{name}"} if name != "dqn_atari" else {}),
            },
            bases={"to SB3": SB3, **({"to plain": PLAIN} if name != "dqn_atari" else {})},
        )
        for name, words, title, work, frames, updates, filling, warmup, batches in (
            (
                *("ppo_minatar", MINATAR, "PPO, MinAtar's Breakout"),
                *("2,048 frames and 64 updates of 256 a batch", 2_048, 64, 0, 3, 12),
            ),
            (
                *("ppo_atari", ("algo=ppo", *ATARI), "PPO, Atari's Breakout, Nature's network"),
                *("1,024 frames and 16 updates of 256 a batch", 1_024, 16, 0, 2, 6),
            ),
            (
                *("dqn_atari", DQN_ATARI, "DQN, Atari's Breakout, Nature's network"),
                *("32 frames and 8 updates of 32 a batch", 32, 8, 31, 40, 100),
            ),
        )
    },
}


@dataclass(frozen=True)
class Times:
    """One run of a loop.

    Attributes:
        frames: cumulated, one number a batch.
        elapsed: seconds since the process started, one number a batch.
        updates: of the whole run.
        spent: seconds so far of each activity of hydrl's loop, one number a batch.
    """

    frames: Sequence[float]
    elapsed: Sequence[float]
    updates: int
    spent: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Speed:
    """How fast a loop is once it is warm.

    Attributes:
        frames_per_second: of the warm loop.
        warmup_seconds: from the start of the process until it was warm.
        possible: how many times as fast it would be if it collected while it learned; only hydrl's loops.
    """

    frames_per_second: float
    warmup_seconds: float
    possible: float | None = None


def run(words: Sequence[str], **environment: str) -> str:
    """What ``python *words`` prints; whatever ends this call ends the command and all its children.

    Raises:
        UserError: if the command fails.
    """
    command = [sys.executable, *words]
    # A group of its own, so that Ctrl-C arrives here alone and the group can be ended as one.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        # One that a signal meets while it is begun would not be known below.
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    ) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        sys.stderr.write(errors)
        raise UserError(f"python {' '.join(words)} ended with exit code {process.returncode}")
    return output


def time_loop(task: Task, loop: Sequence[str] | str, batches: int) -> Times:
    """Runs a loop for so many batches in a process of its own, without evaluations."""
    if isinstance(loop, str):
        times = json.loads(run([str(HERE / "loop.py"), loop, str(batches)]).splitlines()[-1])
        return Times(times["frames"], times["elapsed"], times["updates"][-1])
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "train.py",
            *loop,
            f"total_frames={batches * task.frames}",
            f"log_every_frames={task.frames}",
            "eval.every_frames=1_000_000_000",
            "eval.final_episodes=1",
            "eval.max_steps=1",
            "eval.backend=inline",  # no other process takes a core
            f"hydra.run.dir={folder}/run",
        ]
        run(words, TORCHINDUCTOR_CACHE_DIR=f"{folder}/cache")  # every compilation is a first one
        return read_run(Path(folder) / "run")


def read_run(folder: Path) -> Times:
    """The times of a run that logged every batch, from its ``metrics.csv`` and ``summary.json``."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    frames = [float(row["frames"]) for row in rows]
    elapsed = [float(row["time/elapsed"]) for row in rows]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    spent = {
        name: [
            float(row[name] or 0) * float(row["frames"]) / float(row["time/frames_per_second"])
            for row in rows
        ]
        for name in ("time/collect", "time/sample", "time/update")
        if name in rows[0]
    }
    return Times(frames, elapsed, summary["updates"], spent)


def steady_speed(times: Times, warmup: int) -> Speed:
    """The speed from the end of batch ``warmup`` to the end of the last batch but one.

    The last batch is left out: a loop that collects while it learns has nothing left to collect there.
    """
    frames, elapsed = times.frames, times.elapsed
    speed = (frames[-2] - frames[warmup - 1]) / (elapsed[-2] - elapsed[warmup - 1])
    possible = None
    if times.spent:
        collect = seconds_a_frame(times, warmup, "time/collect")
        learn = seconds_a_frame(times, warmup, *(set(times.spent) - {"time/collect"}))
        possible = (collect + learn) / max(collect, learn)
    return Speed(speed, elapsed[warmup - 1], possible)


def seconds_a_frame(times: Times, warmup: int, *activities: str) -> float:
    """What the activities take of a frame, over the batches of :func:`steady_speed`."""
    spent = sum(times.spent[activity][-2] - times.spent[activity][warmup - 1] for activity in activities)
    return spent / (times.frames[-2] - times.frames[warmup - 1])


def paired_ratio(speeds: Sequence[float], base: Sequence[float]) -> float:
    """Median of the rounds' ratios: what slows a whole round slows both and leaves its ratio alone."""
    return statistics.median(speed / other for speed, other in zip(speeds, base, strict=True))


def summarise(task: Task, speeds: Mapping[str, Sequence[Speed]]) -> list[dict[str, Any]]:
    """One row a loop: median, least and most frames a second, the ratios, and the warm-up in seconds.

    A pipelined loop has its ratio to the same loop one after the other, and the one that is possible by the
    seconds of that loop in the same rounds.
    """
    rates = {name: [speed.frames_per_second for speed in rounds] for name, rounds in speeds.items()}
    rows: list[dict[str, Any]] = [
        {
            "loop": name,
            "frames/s": statistics.median(rates[name]),
            "least": min(rates[name]),
            "most": max(rates[name]),
            **{title: paired_ratio(rates[name], rates[base]) for title, base in task.bases.items()},
            "warm-up, s": statistics.median(speed.warmup_seconds for speed in rounds),
        }
        for name, rounds in speeds.items()
    ]
    for row in rows:
        if row["loop"].endswith(PIPELINED_LOOP):
            base = row["loop"].removesuffix(PIPELINED_LOOP)
            row["to single"] = paired_ratio(rates[row["loop"]], rates[base])
            row["possible"] = statistics.median(speed.possible or 1.0 for speed in speeds[base])
            row["of possible"] = row["to single"] / row["possible"]
    return rows


def speed(names: Sequence[str], repeats: int, batches: int | None, loops: Sequence[str] = ()) -> None:
    """Runs every loop of the tasks in turn, ``repeats`` times, and shows tables and a picture.

    With ``loops`` only these, and those that they are compared with.

    Raises:
        UserError: if a loop fails, or does another number of updates than the others.
    """
    tasks = {name: only(TASKS[name], loops) for name in names}
    speeds: dict[str, dict[str, list[Speed]]] = {
        name: {loop: [] for loop in task.loops} for name, task in tasks.items()
    }
    for number in range(repeats):
        for name, task in tasks.items():
            total = task.warmup + (batches or task.batches) + 1
            for loop, words in task.loops.items():
                times = time_loop(task, words, total)
                if times.updates != (expected := (total - task.filling) * task.updates):
                    raise UserError(f"{loop} made {times.updates} updates on {name}, not {expected}")
                speeds[name][loop].append(steady_speed(times, task.warmup))
                rate = speeds[name][loop][-1].frames_per_second
                console().print(f"round {number + 1} of {repeats}, {name}: {loop}, {rate:,.0f} frames/s")
    summaries = {name: summarise(task, speeds[name]) for name, task in tasks.items()}
    for name, rows in summaries.items():
        show(f"{TASKS[name].title}: {TASKS[name].work}; median of {repeats}", rows)
    flat = [
        {
            "task": name,
            **row,
            "rounds": " ".join(f"{speed.frames_per_second:.0f}" for speed in speeds[name][row["loop"]]),
        }
        for name, rows in summaries.items()
        for row in rows
    ]
    write(OUTPUTS / "benchmark.csv", flat)
    draw({TASKS[name].title: rows for name, rows in summaries.items()}, OUTPUTS / "benchmark.png")


def only(task: Task, loops: Sequence[str]) -> Task:
    """The task with these loops, what they are compared with, and Stable-Baselines3; whole without any.

    Raises:
        UserError: for a loop that it does not have.
    """
    if unknown := [loop for loop in loops if loop not in task.loops]:
        raise UserError(f"--loops {unknown[0]!r}: {task.title} has {', '.join(map(repr, task.loops))}")
    bases = {loop.removesuffix(PIPELINED_LOOP) for loop in loops}
    names = [name for name in task.loops if not loops or name in {*loops, *bases, SB3}]
    return replace(
        task,
        loops={name: task.loops[name] for name in names},
        bases={title: base for title, base in task.bases.items() if base in names},
    )


MEANWHILE = {"single": 1, "pipelined": 1, "multi_async": 2}  # choices of collector, and who collects
SLOWED = (
    *("algo=sac", "env=gym", "env.id=scripts.benchmark.slow_tasks:SlowCheetah-v0", "tuned=null"),
    *("collector.num_envs=1", "collector.init_random_frames=256", "minibatches.warmup_frames=256"),
    "torch_threads=1",
)


def meanwhile(repeats: int, batches: int, wait: float, compile: bool) -> None:
    """SAC at one update a frame of a slow simulator, one after the other and at once, and what is possible.

    Raises:
        UserError: if a loop fails, or makes another number of updates.
    """
    work = f"64 frames, each waiting {wait:g} ms, and 64 updates of 256 a batch"
    task = Task("SAC, HalfCheetah", work, 64, 64, filling=3, warmup=6, batches=batches, loops={}, bases={})
    words, rounds = [*SLOWED, f"+env.wait={wait:g}", f"compile={compile}"], []
    for number in range(repeats):
        runs = {}
        for choice in MEANWHILE:
            times = time_loop(task, [*words, f"collector={choice}"], task.warmup + batches + 1)
            expected = (task.warmup + batches + 1 - task.filling) * task.updates
            if times.updates != expected:
                raise UserError(f"{choice} made {times.updates} updates, not {expected}")
            runs[choice] = times
            rate = steady_speed(times, task.warmup).frames_per_second
            busy = f"others on {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
            console().print(f"round {number + 1} of {repeats}: {choice}, {rate:,.1f} frames/s; {busy}")
        rounds.append(parallel_speedups(runs, task.warmup))
    rows = [
        {"collector": choice, **{key: statistics.median(row[choice][key] for row in rounds) for key in cells}}
        for choice, cells in rounds[0].items()
    ]
    show(f"{task.title}: {work}; median of {repeats}", rows)
    write(OUTPUTS / "benchmark-meanwhile.csv", rows)


def parallel_speedups(runs: Mapping[str, Times], warmup: int) -> dict[str, dict[str, float]]:
    """By choices of :data:`MEANWHILE`: how much faster than ``single`` each was, and could have been.

    Where both go on at once a frame takes as long as its simulation or its update, whichever is slower.
    Seconds of both are those of ``single``.
    """
    rates = {choice: steady_speed(times, warmup).frames_per_second for choice, times in runs.items()}
    simulator = seconds_a_frame(runs["single"], warmup, "time/collect")
    update = seconds_a_frame(runs["single"], warmup, "time/sample", "time/update")
    rows = {}
    for choice, rate in rates.items():
        cells = {"frames/s": rate, "simulator, ms": simulator * 1_000, "update, ms": update * 1_000}
        possible = (simulator + update) / max(simulator / MEANWHILE[choice], update)
        cells["possible"] = 1.0 if choice == "single" else possible
        cells["to single"] = rate / rates["single"]
        rows[choice] = cells | {"of possible": cells["to single"] / cells["possible"]}
    return rows


THREADED = {"ppo": 4, "dqn": 24, "sac": 4, "sac_wide": 3, "ppo_minatar": 5}  # tasks, and batches measured
WIDE = ("critic.num_cells=[512,512]", "actor.num_cells=[512,512]")  # from which on the default is two threads
SAC_WIDE = replace(TASKS["sac"], title="SAC, HalfCheetah, 2x512", loops={"hydrl": (*SAC, *WIDE)})
THREADED_TASKS = TASKS | {"sac_wide": SAC_WIDE}
CHOICES = {"one thread": "torch_threads=1", "default": "torch_threads=auto"}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Others that need a core each while the block lasts."""
    command = [sys.executable, "-c", "while True: pass"]
    end = end_with_parent if sys.platform == "linux" else None
    others = list[subprocess.Popen[bytes]]()
    try:
        others += (subprocess.Popen(command, preexec_fn=end) for _ in range(processes))
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def threads(names: Sequence[str], repeats: int, batches: int | None, others: int) -> None:
    """Times hydrl's eager loops on one thread and on the default, alone and beside busy processes, in turn.

    Raises:
        UserError: if a run fails.
    """
    rates: dict[tuple[str, int, str], list[float]] = {}
    for number, name, beside in product(range(repeats), names, (0, others)):
        task = replace(THREADED_TASKS[name], warmup=THREADED_TASKS[name].filling + 1)  # nothing is compiled
        total = task.warmup + (batches or THREADED[name]) + 1
        for choice, word in CHOICES.items():
            with busy(beside):
                times = time_loop(task, [*task.loops["hydrl"], EAGER, word], total)
            rate = steady_speed(times, task.warmup).frames_per_second
            rates.setdefault((name, beside, choice), []).append(rate)
            line = f"round {number + 1} of {repeats}, {name} beside {beside}: {choice}, {rate:,.1f} frames/s"
            console().print(line)
    rows = []
    for name, beside in product(names, (0, others)):
        one, default = (rates[name, beside, choice] for choice in CHOICES)
        rows.append(
            {
                "task": THREADED_TASKS[name].title,
                "busy processes": beside,
                "one thread, frames/s": statistics.median(one),
                "default, frames/s": statistics.median(default),
                "to one thread": paired_ratio(default, one),
                "least": min(rate / other for rate, other in zip(default, one, strict=True)),
            }
        )
    show(f"The default to one thread, alone and beside others, median of {repeats}", rows)
    write(OUTPUTS / "benchmark-threads.csv", rows)


def precision(rounds: int, updates: int) -> None:
    """Times updates in float32 and bf16 in turns, eager and compiled, and shows what bf16 gains."""
    rows = json.loads(run([str(HERE / "precision.py"), str(rounds), str(updates)]).splitlines()[-1])
    show(f"An update in float32 and in bf16 on one thread, median of {rounds} rounds of {updates}", rows)
    write(OUTPUTS / "benchmark-precision.csv", rows)


def draw(panels: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Median speeds as bars, from the least to the most as whiskers; a panel a task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    heights = [len(rows) for rows in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(11, 0.6 + 0.5 * sum(heights) + 0.8 * len(heights)),
        dpi=150,
        layout=ConstrainedLayoutEngine(h_pad=0.15, w_pad=0.15),
        squeeze=False,
        height_ratios=heights,
    )
    for axis, (title, rows) in zip(axes.flat, panels.items(), strict=True):
        names = [row["loop"] for row in rows]
        medians = [row["frames/s"] for row in rows]
        whiskers = [
            [row["frames/s"] - row["least"] for row in rows],
            [row["most"] - row["frames/s"] for row in rows],
        ]
        colours = ["#0072B2" if name.startswith("hydrl") else "#BBBBBB" for name in names]
        axis.barh(names, medians, color=colours, xerr=whiskers, ecolor="#333333", capsize=4)
        furthest = max(row["most"] for row in rows)
        for position, row in enumerate(rows):
            axis.text(
                row["most"] + furthest / 80, position, f"{row['frames/s']:,.0f}", va="center", fontsize=14
            )
        axis.set_xlim(0, furthest * 1.12)
        axis.invert_yaxis()
        axis.set_title(title, loc="left", fontsize=16, pad=12)
        axis.tick_params(labelsize=14)
        axis.tick_params(axis="y", length=0)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes.flat[-1].set_xlabel("environment frames a second: median, least and most", fontsize=14)
    figure.savefig(path)
    pyplot.close(figure)
    console().print(f"written to {path.relative_to(ROOT)}")


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table on the screen; numbers right, with as many digits as they deserve."""
    table = Table(title=title, title_justify="left")
    columns = {column: value for row in rows for column, value in row.items()}
    for column, value in columns.items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(written(row.get(column)) for column in columns))
    console().print(table)


def written(value: Any) -> str:
    """A cell: three digits or whole, thousands apart; a dash for what there is not."""
    if value is None or value == inf:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows to a CSV file; a column some rows lack stays empty there."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
            )
    console().print(f"written to {path.relative_to(ROOT)}")


def settings(*overrides: str, run_dir: Path | str = "unused") -> Settings:
    """The checked settings that ``python train.py *overrides`` would train with."""
    return load(compose_run([f"run_dir={run_dir}", *overrides]))


def memory(transitions: int, minibatches: int) -> None:
    """Fills a buffer on disk and one in memory, samples from them, and shows what stays resident.

    Raises:
        UserError: if the disk has no room for the first.
    """
    rows = of_both("memory.py", str(transitions), str(minibatches))
    show(f"A replay buffer of {transitions:,} HalfCheetah transitions, minibatches of 256", rows)
    write(OUTPUTS / "benchmark-memory.csv", rows)


def pictures(transitions: int) -> None:
    """Fills both with stacks of four pictures of 84x84 bytes, and shows what these take and a draw costs."""
    rows = of_both("pictures.py", str(transitions))
    show(f"A replay buffer of {transitions:,} transitions of stacks of four pictures of 84x84", rows)
    write(OUTPUTS / "benchmark-pictures.csv", rows)


def of_both(script: str, *words: str) -> list[dict[str, Any]]:
    """What a script beside this one measures of a buffer on disk and of one in memory, each by itself."""
    OUTPUTS.mkdir(exist_ok=True)
    rows = []
    for buffer in ("memmap", "replay"):
        # Not in the system's temporary folder, which is memory on many machines.
        with tempfile.TemporaryDirectory(dir=OUTPUTS, prefix="benchmark-") as folder:
            rows += json.loads(run([str(HERE / script), buffer, *words, folder]).splitlines()[-1])
    return rows


SOLVED = ("ppo-inverted_double_pendulum", "dqn-cartpole", "ppo-cartpole")


def solve(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Trains hydrl and Stable-Baselines3 to the task's threshold, one after another, seed by seed.

    hydrl runs with its tuned numbers, Stable-Baselines3 with those of RL Baselines3 Zoo; both are evaluated
    after as many frames and with as many deterministic episodes as hydrl's tuned numbers say.
    """
    loops: dict[str, Callable[[str, int], dict[str, Any]]] = {"hydrl": solve_hydrl, SB3: solve_sb3}
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        for name in names:
            for loop, train in loops.items():
                runs.append({"task": name, "loop": loop, "seed": seed, **train(name, seed)})
                done = runs[-1]
                seconds = written(done["solved_at_seconds"])
                console().print(f"seed {seed}, {name}: {loop}, solved after {seconds} s")
    rows = []
    for name in names:
        for loop in loops:
            rows.append({"task": name, "loop": loop})
            rows[-1] |= summarise_solved([run for run in runs if (run["task"], run["loop"]) == (name, loop)])
    show(f"Time to solve, medians over {len(seeds)} seeds", rows)
    write(OUTPUTS / "benchmark-solve.csv", runs)


def summarise_solved(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the runs; one that did not solve its task counts as longer than any."""
    shares = [run["overhead_share"] for run in runs if run.get("overhead_share") is not None]
    return {
        "solved": f"{sum(run['solved_at_seconds'] is not None for run in runs)} of {len(runs)}",
        "seconds": statistics.median(run["solved_at_seconds"] or inf for run in runs),
        "frames": statistics.median(run["solved_at_frames"] or inf for run in runs),
        "not learning, share": statistics.median(shares) if shares else None,
    }


def solve_hydrl(name: str, seed: int) -> dict[str, Any]:
    """One run with hydrl's tuned numbers."""
    algo, env = name.split("-")
    keys = ("solved_at_seconds", "solved_at_frames", "wall_seconds", "overhead_share")
    summary = trained(f"algo={algo}", f"env={env}", f"seed={seed}")
    return {key: summary.get(key) for key in keys}


def trained(*overrides: str) -> dict[str, Any]:
    """The summary of a run, whose folder is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        run(["train.py", *overrides, f"hydra.run.dir={folder}/run"])
        return json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))


def solve_sb3(name: str, seed: int) -> dict[str, Any]:
    """One run with the Zoo's numbers, evaluated as hydrl's tuned run is."""
    algo, env = name.split("-")
    evaluation = settings(f"algo={algo}", f"env={env}").eval
    words = [f"--seed={seed}", f"--solved-at={evaluation.reward_threshold}"]
    words += [f"--every-frames={evaluation.every_frames}", f"--episodes={evaluation.episodes}"]
    return json.loads(run([str(HERE / "sb3_solve.py"), name, *words]).splitlines()[-1])


UNTUNED = (
    *("InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Reacher-v5", "Pusher-v5", "Swimmer-v5"),
    *("MountainCarContinuous-v0", "Pendulum-v1", "LunarLanderContinuous-v3"),
)
UNTUNED_FRAMES, UNTUNED_EPISODES = 300_000, 100


def untuned(ids: Sequence[str], seeds: Sequence[int]) -> None:
    """Trains PPO of both on tasks nobody tuned them for; goes on where it was stopped.

    Each run is a line of ``docs/results/untuned.csv`` as it ends, and ``untuned.md`` beside it is the table.
    """
    file = ROOT / "docs" / "results" / "untuned.csv"
    loops = {"hydrl": untuned_hydrl, SB3: untuned_sb3}
    runs = add_scores(file, loops, ids, seeds)
    lines = ["# PPO without presets, hydrl's and Stable-Baselines3's\n"]
    lines += ["| environment | " + " | ".join(loops) + " |", "|---|" + "---:|" * len(loops)]
    differences = []
    for id in UNTUNED:
        scores = [scores_of(runs, id, loop) for loop in loops]
        lines.append(f"| {id} | " + " | ".join(map(score_cell, scores)) + " |")
        if all(scores):
            differences.append(statistics.mean(scores[0]) - statistics.mean(scores[1]))
    ahead, level = (
        sum(difference > 0 for difference in differences),
        sum(difference == 0 for difference in differences),
    )
    lines.append(f"\nhydrl is ahead on {ahead} of {len(differences)} and level on {level}.")
    lines.append(f"The last policy after {UNTUNED_FRAMES:,} frames, over {UNTUNED_EPISODES} episodes")
    lines.append("whose starts are the same for both. Made by `python scripts/benchmark untuned`.")
    write_lines(file.with_suffix(".md"), lines)


def add_scores(
    file: Path, loops: Mapping[str, Callable[[str, int], Any]], names: Sequence[str], seeds: Sequence[int]
) -> list[dict[str, str]]:
    """Adds the runs that a CSV file of scores lacks, each as it ends, and returns all its rows."""
    file.parent.mkdir(exist_ok=True)
    if not file.is_file():
        file.write_text("task,loop,seed,frames,return_mean\n", encoding="utf-8")
    for seed, name, (loop, train) in product(seeds, names, loops.items()):
        runs = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        if any((name, loop, str(seed)) == (run["task"], run["loop"], run["seed"]) for run in runs):
            continue
        result = train(name, seed)
        with file.open("a", encoding="utf-8") as rows:
            rows.write(f"{name},{loop},{seed},{result['frames']},{result['return_mean']:.2f}\n")
        console().print(f"seed {seed}, {name}: {loop}, {written(result['return_mean'])}")
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def scores_of(runs: Sequence[Mapping[str, str]], name: str, loop: str) -> list[float]:
    """The mean returns of a loop on a task, one a seed."""
    return [float(run["return_mean"]) for run in runs if (name, loop) == (run["task"], run["loop"])]


def score_cell(scores: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    if len(scores) < 2:
        return f"{written(scores[0])}, 1 seed" if scores else "-"
    return f"{written(statistics.mean(scores))} ± {written(statistics.stdev(scores))}, {len(scores)} seeds"


def write_lines(file: Path, lines: Sequence[str]) -> None:
    """Writes and prints a table."""
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(file.read_text(encoding="utf-8"))


def untuned_hydrl(id: str, seed: int) -> dict[str, Any]:
    """One run with PPO's own numbers."""
    return final_score(UNTUNED_FRAMES, seed, "env=gym", f"env.id={id}")


def final_score(frames: int, seed: int, *overrides: str) -> dict[str, Any]:
    """The final evaluation of a run that is not evaluated before."""
    words = [f"seed={seed}", f"total_frames={frames}", "eval.every_frames=1_000_000_000"]
    summary = trained(*overrides, *words, f"eval.final_episodes={UNTUNED_EPISODES}")
    return {"return_mean": summary["eval/return_mean"], "frames": summary["frames"]}


def untuned_sb3(id: str, seed: int) -> dict[str, Any]:
    """One run of Stable-Baselines3's PPO with its own numbers and ``VecNormalize``."""
    return sb3_score(id, UNTUNED_FRAMES, seed, "--normalize")


def sb3_score(id: str, frames: int, seed: int, *options: str) -> dict[str, Any]:
    """One run of Stable-Baselines3 with its own defaults."""
    words = [id, f"--seed={seed}", f"--frames={frames}", f"--episodes={UNTUNED_EPISODES}", *options]
    return json.loads(run([str(HERE / "sb3_untuned.py"), *words]).splitlines()[-1])


# By run: Gymnasium's id, and frames.
SAME_DEFAULTS = {
    "ppo-cartpole": ("CartPole-v1", 20_480),
    "ppo-inverted_double_pendulum": ("InvertedDoublePendulum-v4", 10_240),
    "dqn-cartpole": ("CartPole-v1", 30_000),
    "sac-pendulum": ("Pendulum-v1", 4_000),
}


def same_defaults(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Compares ``experiment=sb3/...`` with Stable-Baselines3 by Welch's t-test; resumes where it was stopped.

    Each run is a line of ``docs/results/sb3.csv`` as it ends, and ``sb3.md`` beside it is the table.
    """
    from scipy.stats import ttest_ind

    file = ROOT / "docs" / "results" / "sb3.csv"
    loops = {"hydrl": same_defaults_hydrl, SB3: same_defaults_sb3}
    runs = add_scores(file, loops, names, seeds)
    lines = [f"| `experiment=` | frames | hydrl | {SB3} | difference [95%] | p |", "|---|" + "---:|" * 5]
    for name, (_, frames) in SAME_DEFAULTS.items():
        algo, env = name.split("-")
        scores = [scores_of(runs, name, loop) for loop in loops]
        cells = [f"`sb3/{algo} env={env}`", f"{frames:,}", *map(score_cell, scores), "-", "-"]
        if min(map(len, scores)) > 1:
            test = ttest_ind(*scores, equal_var=False)
            low, high = test.confidence_interval()
            difference = statistics.mean(scores[0]) - statistics.mean(scores[1])
            cells[-2:] = [f"{written(difference)} [{written(low)}, {written(high)}]", f"{test.pvalue:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("\nMean return ± standard deviation over seeds of the last policy, deterministic, over")
    lines.append(f"{UNTUNED_EPISODES} episodes from the same initial states on both sides.")
    lines.append("Interval and p-value of the difference are those of Welch's t-test.")
    lines.append("Made by `python scripts/benchmark same_defaults`.")
    write_lines(file.with_suffix(".md"), lines)


def same_defaults_hydrl(name: str, seed: int) -> dict[str, Any]:
    """One run of ``experiment=sb3/...``."""
    algo, env = name.split("-")
    words = [f"experiment=sb3/{algo}", f"env={env}", "torch_threads=1", EAGER]
    return final_score(SAME_DEFAULTS[name][1], seed, *words)


def same_defaults_sb3(name: str, seed: int) -> dict[str, Any]:
    """One run of Stable-Baselines3 with its own defaults."""
    return sb3_score(*SAME_DEFAULTS[name], seed, f"--algo={name.split('-')[0]}")


def scale(repeats: int, batches: int) -> None:
    """Times one to four collectors of each backend, and what each batch costs the process that learns.

    Raises:
        UserError: if one fails.
    """
    import scaling  # beside this file

    with scaling.cluster() as address:
        loops = scaling.loops(address)
        speeds: dict[scaling.Loop, list[float]] = {loop: [] for loop in loops}
        for repeat, loop in product(range(repeats), loops):
            task = Task("", "", loop.frames, 1, 0, warmup=2, batches=batches, loops={}, bases={})
            enough = batches * loop.collectors * scaling.STEPS // loop.frames + task.warmup + 1
            times = time_loop(task, loop.overrides(address), enough)
            speeds[loop].append(steady_speed(times, task.warmup).frames_per_second)
            busy = f"others on {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
            console().print(
                f"round {repeat + 1} of {repeats}: {loop}, {speeds[loop][-1]:,.0f} frames/s; {busy}"
            )
        units = {
            (backend, number): json.loads(
                run([str(HERE / "scaling.py"), *scaling.Loop("5 ms", backend, number).overrides(address)])
            )
            for backend in dict.fromkeys(other.backend for other in loops[1:] if other.backend != "single")
            for number in (1, 4)
        }
    rows, costs = [], []
    for loop, rates in speeds.items():
        alone = speeds[scaling.Loop(loop.simulator, "single", 1)]
        of_ideal = paired_ratio(rates, alone) / loop.collectors
        rows.append({**asdict(loop), "frames/s": statistics.median(rates), "of ideal": of_ideal})
    own = statistics.median(speeds[scaling.Loop("5 ms", "single", 1)])
    for backend in dict.fromkeys(backend for backend, _ in units):
        one, four = units[backend, 1], units[backend, 4]
        far = scaling.forecast(backend, one, four, own)
        costs.append(
            {"backend": backend, "weights, kB": one["weights"] / 1_000, "bytes a frame": one["frame"]}
        )
        costs[-1]["a worker, MB"] = one["worker"] and one["worker"] / 1e6  # of what it has to itself
        costs[-1] |= {f"taken by {count}, ms": units[backend, count]["taken"] * 1_000 for count in (1, 4)}
        costs[-1] |= {f"told to {count}, ms": units[backend, count]["published"] * 1_000 for count in (1, 4)}
        costs[-1] |= {f"frames/s of {number:,}": frames for number, frames in far.items()}
    show(f"Frames a second of one to four collectors, median of {repeats}", rows)
    show("What a batch of 64 steps of 5 ms costs the process that learns, and what follows from it", costs)
    write(OUTPUTS / "benchmark-scaling.csv", rows)
    write(OUTPUTS / "benchmark-scaling-costs.csv", costs)
    scaling.draw(rows, OUTPUTS / "scaling.png")


def measure_start(repeats: int, beside: Path | None) -> None:
    """Times starts of this checkout, and of another in turn with it.

    Raises:
        UserError: if a run ends before its first step.
    """
    import start  # beside this file

    checkouts = [beside.resolve(), ROOT] if beside else [ROOT]
    try:
        rows = start.measure(checkouts, repeats)
    except RuntimeError as error:
        raise UserError(str(error)) from error
    show(f"Seconds from the command to the first environment step, median of {repeats}", rows)
    write(OUTPUTS / "benchmark-start.csv", rows)


def positive(word: str) -> int:
    """A whole number of at least 1; what argparse calls for an argument."""
    if (number := int(word)) < 1:
        raise ValueError
    return number


def seeds(word: str) -> list[int]:
    """``100,101`` to numbers; what argparse calls for an argument."""
    return [int(seed) for seed in word.split(",")]


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line; nothing at all means ``speed``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("speed", help="frames a second at the same work")
    part.add_argument("--repeats", type=positive, default=3, metavar="N", help="rounds, 3")
    part.add_argument("--tasks", nargs="+", choices=TASKS, default=[task for task in TASKS if task != BESIDE])
    part.add_argument("--batches", type=positive, metavar="N", help="measured ones; fewer is a quick look")
    part.add_argument("--loops", nargs="+", default=[], metavar="NAME", help="all")
    part = parts.add_parser("memory", help="resident memory of a replay buffer on disk and of one in memory")
    part.add_argument("--transitions", type=positive, default=1_000_000, metavar="N", help="1,000,000")
    part.add_argument("--minibatches", type=positive, default=5_000, metavar="N", help="of 256, 5,000")
    part = parts.add_parser("pictures", help="bytes of Atari's pictures in them, and the time of a draw")
    part.add_argument("--transitions", type=positive, default=100_000, metavar="N", help="100,000")
    part = parts.add_parser("solve", help="seconds until a task is solved")
    part.add_argument("--tasks", nargs="+", choices=SOLVED, default=SOLVED)
    part.add_argument("--seeds", type=seeds, default=list(range(100, 105)), metavar="A,B", help="100-104")
    part = parts.add_parser("untuned", help="what PPO reaches on tasks that nobody tuned")
    part.add_argument("--tasks", nargs="+", choices=UNTUNED, default=UNTUNED)
    part.add_argument("--seeds", type=seeds, default=[100, 101, 102], metavar="A,B", help="100-102")
    part = parts.add_parser("same_defaults", help="experiment=sb3/... beside Stable-Baselines3 itself")
    part.add_argument("--tasks", nargs="+", choices=SAME_DEFAULTS, default=[*SAME_DEFAULTS])
    part.add_argument("--seeds", type=seeds, default=list(range(100, 105)), metavar="A,B", help="100-104")
    part = parts.add_parser(
        "scaling", help="one to four collectors of each kind, of quick and slow simulators"
    )
    part.add_argument("--repeats", type=positive, default=2, metavar="N", help="rounds, 2")
    part.add_argument("--batches", type=positive, default=8, metavar="N", help="measured ones, 8")
    part = parts.add_parser("meanwhile", help="SAC of a slow simulator, one after the other and at once")
    part.add_argument("--repeats", type=positive, default=3, metavar="N", help="rounds, 3")
    part.add_argument("--batches", type=positive, default=12, metavar="N", help="measured ones, 12")
    part.add_argument("--wait", type=float, default=5.0, metavar="MS", help="milliseconds of a step, 5")
    part.add_argument("--compile", action="store_true", help="the update")
    part = parts.add_parser("threads", help="one thread and the default, alone and beside a busy process")
    part.add_argument("--repeats", type=positive, default=2, metavar="N", help="rounds, 2")
    part.add_argument("--tasks", nargs="+", choices=THREADED, default=[*THREADED])
    part.add_argument("--batches", type=positive, metavar="N", help="measured ones; fewer is a quick look")
    part.add_argument("--others", type=positive, default=1, metavar="N", help="busy processes, 1")
    part = parts.add_parser("precision", help="an update in float32 and in bf16, in turns")
    part.add_argument("--rounds", type=positive, default=7, metavar="N", help="rounds, 7")
    part.add_argument("--updates", type=positive, default=6, metavar="N", help="in a row, 6")
    part = parts.add_parser("start", help="seconds from the command to the first environment step")
    part.add_argument("--repeats", type=positive, default=7, metavar="N", help="rounds, 7")
    part.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, the base of the ratio")
    return parser.parse_args(words or ["speed"])


def main(chosen: argparse.Namespace) -> None:
    """Does the chosen part.

    Raises:
        UserError: if what is compared with is not installed.
    """
    alone = ("memory", "pictures", "scaling", "meanwhile", "threads", "start", "precision")
    peers = ("stable_baselines3", "sb3_contrib") if chosen.part not in alone else ()
    if any(importlib.util.find_spec(package) is None for package in peers):
        raise UserError("the benchmark needs Stable-Baselines3 and sb3-contrib: pip install 'hydrl[bench]'")
    options = {key: value for key, value in vars(chosen).items() if key != "part"}
    has_benchmarl = Path(os.environ.get("BENCHMARL", ""), "benchmarl").is_dir()
    if BESIDE in options.get("tasks", ()) and not has_benchmarl:
        raise UserError(
            f"--tasks {BESIDE} needs BENCHMARL=DIR; scripts/benchmark/marl.py says how to have it"
        )
    match chosen.part:
        case "speed":
            speed(options["tasks"], options["repeats"], options["batches"], options["loops"])
        case "memory":
            memory(**options)
        case "pictures":
            pictures(**options)
        case "solve":
            solve(options["tasks"], options["seeds"])
        case "untuned":
            untuned(options["tasks"], options["seeds"])
        case "same_defaults":
            same_defaults(options["tasks"], options["seeds"])
        case "scaling":
            scale(**options)
        case "meanwhile":
            meanwhile(**options)
        case "precision":
            precision(**options)
        case "threads":
            threads(options["tasks"], options["repeats"], options["batches"], options["others"])
        case "start":
            measure_start(**options)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main(arguments(sys.argv[1:]))
    except UserError as error:
        sys.exit(print_error(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)
