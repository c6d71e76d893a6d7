import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from torchrl.objectives.value.functional import generalized_advantage_estimate

from hydrl.errors import UserError
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import (
    envpool_speed,
    first_step,
    mcts,
    memory,
    pictures,
    plain,
    precision,
    scaling,
    start,
)
from scripts.benchmark.__main__ import Speed, Times
from tests.conftest import HANGING

ROOT = Path(__file__).resolve().parents[2]


def test_speed_is_that_between_the_warmup_and_the_last_batch():
    # Ten seconds of compilation in the first two batches; the last batch is quicker than those before.
    times = Times(frames=[100, 200, 300, 400, 500], elapsed=[8.0, 10.0, 12.0, 14.0, 14.5], updates=20)

    assert benchmark.steady_speed(times, warmup=2) == Speed(frames_per_second=50.0, warmup_seconds=10.0)


def test_a_run_is_read_from_its_metrics_and_its_summary(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "frames,loss/loss,time/elapsed,train/return\n1000,,5.0,\n2000,0.5,7.5,60.0\n"
    )
    (tmp_path / "summary.json").write_text(json.dumps({"updates": 300}))

    assert benchmark.read_run(tmp_path) == Times([1000.0, 2000.0], [5.0, 7.5], 300)


def test_activities_are_read_in_seconds(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "frames,time/elapsed,time/collect,time/update,time/frames_per_second\n100,9,1.0,,50\n300,13,0.5,0.4,30\n"
    )
    (tmp_path / "summary.json").write_text('{"updates": 200}')

    assert benchmark.read_run(tmp_path).spent == {"time/collect": [2.0, 5.0], "time/update": [0.0, 4.0]}


def test_loops_at_once_are_beside_what_the_slower_half_makes_possible():
    def times(seconds):  # of a batch of 100 frames
        elapsed = [seconds * batch for batch in (1, 2, 3, 4)]
        halves = {"time/collect": 0.6, "time/sample": 0.1, "time/update": 0.2}
        spent = {name: [share * at for at in elapsed] for name, share in halves.items()}
        return Times([100, 200, 300, 400], elapsed, updates=400, spent=spent)

    rows = benchmark.parallel_speedups(
        {"single": times(1), "pipelined": times(0.75), "multi_async": times(0.5)}, 1
    )

    assert rows["pipelined"] == pytest.approx(
        {
            "frames/s": 100 / 0.75,
            "simulator, ms": 6.0,
            "update, ms": 3.0,
            "possible": 1.5,
            "to single": 1 / 0.75,
            "of possible": 1 / 0.75 / 1.5,
        }
    )
    assert rows["multi_async"]["possible"] == pytest.approx(3.0)  # two collect, in half of the time
    assert rows["single"]["of possible"] == 1.0


def test_a_slow_simulator_is_learned_from_once_a_frame():
    chosen = [
        benchmark.settings(*benchmark.SLOWED, f"collector={collector}") for collector in benchmark.MEANWHILE
    ]
    assert {(settings.frames_per_batch, settings.minibatches["updates"]) for settings in chosen} == {(64, 64)}
    assert [settings.collector.get("num_workers", 1) for settings in chosen] == [
        *benchmark.MEANWHILE.values()
    ]


ENVIRONMENTS = {"ppo": 10, "ppo_32": 32, "dqn": 16, "sac": 1, "td3": 1}
ENVIRONMENTS |= {"ppo_minatar": 64, "ppo_atari": 8, "dqn_atari": 8, "recurrent_ppo": 8, "mappo": 64}


def test_ratios_are_paired_within_a_round():
    # The machine is slow in the second round; the medians' ratio would be 2.4.
    ours, base = [300.0, 100.0, 240.0], [100.0, 50.0, 160.0]

    assert benchmark.paired_ratio(ours, base) == 2.0


def test_summary_has_medians_spreads_and_a_ratio_to_each_base():
    task = benchmark.TASKS["dqn"]
    ours, sb3 = [300.0, 80.0, 200.0], [100.0, 40.0, 50.0]
    rounds = {"hydrl": ours, benchmark.SB3: sb3, benchmark.PLAIN: [600.0] * 3}

    row, *_ = benchmark.summarise(
        task, {name: [Speed(rate, 20.0) for rate in rates] for name, rates in rounds.items()}
    )

    assert row == {
        "loop": "hydrl",
        "frames/s": 200.0,
        "least": 80.0,
        "most": 300.0,
        "to SB3": 3.0,
        "to plain": pytest.approx(1 / 3),
        "warm-up, s": 20.0,
    }


def test_a_pipelined_loop_is_compared_with_what_the_same_loop_allows():
    name = "hydrl, compiled, pipelined"
    task = benchmark.only(benchmark.TASKS["ppo"], [name])
    single = Times(
        [1_000, 2_000, 3_000], [10.0, 14.0, 18.0], 2, {"time/collect": [1, 2, 3], "time/update": [3, 6, 9]}
    )
    with pytest.raises(UserError, match="--loops 'pipelined': PPO, inverted double pendulum has 'hydrl'"):
        benchmark.only(benchmark.TASKS["ppo"], ["pipelined"])
    base = benchmark.steady_speed(single, 1)
    speeds = {"hydrl, compiled": [base], name: [Speed(300.0, 9.0)], benchmark.SB3: [Speed(200.0, 1.0)]}

    rows = {row["loop"]: row for row in benchmark.summarise(task, speeds)}
    row = rows[name]

    assert list(task.loops) == list(speeds)
    assert list(task.bases) == ["to SB3"]
    assert base.frames_per_second == 250.0
    assert "possible" not in rows["hydrl, compiled"]
    assert row["to single"] == 1.2
    assert row["to SB3"] == 1.5
    assert row["possible"] == pytest.approx(4 / 3)
    assert row["of possible"] == pytest.approx(0.9)


@pytest.mark.parametrize("name", benchmark.TASKS)
def test_every_ratio_is_to_a_loop_of_its_own_table(name):
    task = benchmark.TASKS[name]

    assert set(task.bases.values()) <= set(task.loops)


@pytest.mark.parametrize("name", benchmark.TASKS)
def test_hydrl_rows_do_the_work_the_table_names(name):
    task = benchmark.TASKS[name]
    for loop, overrides in task.loops.items():
        if isinstance(overrides, str):
            continue
        chosen = benchmark.settings(*overrides)
        updates = chosen.minibatches.get("updates") or chosen.minibatches["epochs"] * (
            task.frames // chosen.minibatches["size"]
        )
        environments = chosen.collector["num_envs"]
        assert (chosen.frames_per_batch, updates) == (task.frames, task.updates), loop
        waits = chosen.minibatches.get("warmup_frames", 0)
        assert max(0, -(-waits // task.frames) - 1) == task.filling, loop
        assert environments == ENVIRONMENTS[name], loop


@pytest.mark.parametrize("backend", scaling.BACKENDS)
def test_a_collector_has_64_steps_of_each_batch_it_is_in(backend):
    chosen = benchmark.settings(*scaling.Loop("20 ms", backend, 4).overrides("10.0.0.1:6379"))
    waiting = chosen.collector["sync"]
    assert chosen.frames_per_batch == chosen.minibatches["size"] == (256 if waiting else 64)
    assert (chosen.collector.get("num_workers") or chosen.collector["num_collectors"]) == 4
    assert (chosen.env["wait"], waiting) == (20, backend in ("multi_sync", "ray"))


def test_what_more_collectors_would_hand_over_follows_from_what_one_and_four_cost():
    one, four = {"taken": 0.4, "published": 0.01}, {"taken": 0.43, "published": 0.04}  # 0.01 more for each

    together = scaling.forecast("multi_sync", one, four, alone=160.0)
    assert together[16] == pytest.approx(64 * 16 / (0.4 + 15 * 0.01 + 0.01 + 15 * 0.01))
    one, four = {"taken": 0.001, "published": 0.001}, {"taken": 0.001, "published": 0.004}
    by_themselves = scaling.forecast("multi_async", one, four, alone=160.0)
    assert by_themselves[16] == 16 * 160  # all that they make
    assert by_themselves[128] == pytest.approx(64 / (0.001 + 0.001 + 127 * 0.001))  # all that can be taken
    told_alone = scaling.forecast("ray, sync=false", one, four, alone=160.0)
    assert told_alone[1_024] == pytest.approx(64 / (0.001 + 0.004))


def test_unsolved_runs_count_as_longer_than_any():
    def solved(seconds, share=None):
        frames = None if seconds is None else 1_000
        return {"solved_at_seconds": seconds, "solved_at_frames": frames, "overhead_share": share}

    assert benchmark.summarise_solved([solved(10.0, 0.2), solved(None), solved(30.0, 0.4)]) == {
        "solved": "2 of 3",
        "seconds": 30.0,
        "frames": 1_000,
        "not learning, share": pytest.approx(0.3),
    }
    assert benchmark.summarise_solved([solved(10.0), solved(None), solved(None)])["seconds"] == float("inf")


def test_plain_advantages_are_torchrls():
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.randn(3, 20, 2, generator=generator)
    terminated, done = torch.zeros(2, 20, 2, dtype=torch.bool)
    terminated[4, 0] = done[4, 0] = True  # falls
    done[11, 1] = True  # is cut off

    ours = plain.gae(rewards, values, next_values, terminated, done)

    columns = [part.T.unsqueeze(-1) for part in (values, next_values, rewards, done, terminated)]
    theirs, _ = generalized_advantage_estimate(0.99, 0.95, *columns)
    torch.testing.assert_close(ours, theirs.squeeze(-1).T)


def test_an_ended_episode_leads_to_its_own_last_observation():
    envs = plain.make_envs("CartPole-v1", 2)
    single = gymnasium.make("CartPole-v1")
    envs.reset(seed=[5, 6])
    single.reset(seed=5)
    for _ in range(50):
        acted, following, _, terminated, done = plain.step(envs, np.array([1, 0]))
        observation, _, ended, _, _ = single.step(1)
        np.testing.assert_array_equal(following[0], observation)
        if ended:
            break
    assert terminated[0]
    assert done[0]
    assert abs(acted[0]).max() <= 0.05 < abs(following[0]).max()  # the next episode begins near the middle


@pytest.mark.parametrize(
    ("loop", "batches", "expected"),
    [
        (plain.ppo, 1, [(1_000, 150)]),
        (plain.ppo_floor, 1, [(1_000, 150)]),
        (plain.dqn, 5, [(256, 0), (256, 0), (256, 0), (256, 64), (256, 64)]),
        (plain.dqn_floor, 5, [(256, 0), (256, 0), (256, 0), (256, 64), (256, 64)]),
        (plain.off_policy_floor, 16, [*[(64, 0)] * 15, (64, 64)]),
    ],
)
def test_loops_make_as_many_updates_as_they_say(loop, batches, expected, monkeypatch):
    steps, step = [], torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: steps.append(1) or step(self))

    assert list(islice(loop(), batches)) == expected
    assert len(steps) == sum(updates for _, updates in expected)


def test_plain_sac_and_td3_update_once_a_frame_when_the_memory_is_filled():
    minibatches = []
    loop = plain.off_policy(lambda observation: torch.zeros(6), minibatches.append)

    assert list(islice(loop, 17)) == [*[(64, 0)] * 15, (64, 64), (64, 64)]
    observations, actions, following, rewards, terminated = minibatches[-1]
    assert [minibatch.shape for minibatch in minibatches[-1]] == [(256, width) for width in (17, 6, 17, 1, 1)]
    assert not torch.equal(observations, following)
    assert (actions == 0).all(-1).any()  # the last frames are the policy's
    assert rewards.std() > 0
    assert not terminated.any()  # HalfCheetah has no end but its time limit


def test_sb3_deals_out_whole_minibatches_only():
    pytest.importorskip("stable_baselines3")
    from scripts.benchmark.sb3 import WholeMinibatches

    box, action = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(-1, 1, (1,))
    buffer = WholeMinibatches(100, box, action, device="cpu", n_envs=10)
    buffer.full = True
    buffer.observations[..., 0] = np.arange(1_000).reshape(100, 10)

    dealt = [minibatch.observations[:, 0] for minibatch in buffer.get(64)]

    assert [len(minibatch) for minibatch in dealt] == [64] * 15
    assert torch.cat(dealt).unique().numel() == 960


@pytest.mark.parametrize(
    ("loop", "updates"),
    [
        ("ppo", [150]),
        ("ppo_32", [160]),
        ("dqn", [0, 0, 0, 64, 64]),
        ("sac", [*[0] * 15, 64]),
        ("td3", [*[0] * 15, 64]),
    ],
)
def test_sb3_makes_as_many_updates_as_the_others(loop, updates):
    pytest.importorskip("stable_baselines3")
    from scripts.benchmark import sb3

    assert [updates_made for _, updates_made in islice(getattr(sb3, loop)(), len(updates))] == updates


def test_sb3_contrib_makes_as_many_updates(monkeypatch):
    pytest.importorskip("sb3_contrib")
    monkeypatch.syspath_prepend(Path(benchmark.__file__).parent)  # as of a script that lies there
    from scripts.benchmark import sb3_recurrent

    assert [updates_made for _, updates_made in islice(sb3_recurrent.recurrent_ppo(), 2)] == [40, 40]


def test_a_loop_that_does_other_work_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "OUTPUTS", tmp_path)
    monkeypatch.setattr(benchmark, "time_loop", lambda *_: Times([1, 2, 3], [1, 2, 3], updates=1_049))

    with pytest.raises(UserError, match="hydrl made 1049 updates on ppo, not 1050"):
        benchmark.speed(["ppo"], repeats=1, batches=2)


def test_a_missing_peer_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(benchmark, "run", lambda *_: pytest.fail("something ran"))

    with pytest.raises(UserError, match=r"pip install 'hydrl\[bench\]'"):
        benchmark.main(benchmark.arguments([]))


@pytest.mark.parametrize("words", [["fast"], ["speed", "--repeats", "0"], ["solve", "--seeds", "a"]])
def test_wrong_arguments_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as exit:
        benchmark.arguments(words)
    assert exit.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells private memory from shared")
def test_a_buffer_on_disk_takes_no_memory_of_the_process(tmp_path):
    grown = {}
    for buffer in ("memmap", "replay"):
        (tmp_path / buffer).mkdir()
        command = [sys.executable, memory.__file__, buffer, "200000", "50", tmp_path / buffer]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        before, filled, *sampling = json.loads(done.stdout)
        assert filled["moment"] == "filled with 39 MB"
        grown[buffer] = sampling[-1]["private, MB"] - before["private, MB"]

    assert grown["memmap"] < 10
    assert grown["replay"] > 30
    assert sum(file.stat().st_size for file in (tmp_path / "memmap").rglob("*.memmap")) > 38e6


def test_a_million_of_atari_s_transitions_are_found_to_fit_into_eight_gigabytes(tmp_path, capsys):
    pictures.main("memmap", 10_000, tmp_path, times=2)
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["frames, bytes"] == round(84 * 84 * 1.05)
    assert 100 < row["the rest, bytes"] < 300
    assert 7.4 < row["a million, GB"] < 8


def test_no_room_on_the_disk_is_said_before_it_fills(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000_000))

    assert memory.main("memmap", transitions=200_000, minibatches=50, folder=tmp_path) == 2
    assert "has no room for 39 MB" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_child(number, code):
    pytest.importorskip("stable_baselines3")
    process = subprocess.Popen(
        [sys.executable, "scripts/benchmark"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )
    try:
        deadline = time.monotonic() + HANGING
        while not (children := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process.pid, number)
        assert process.wait() == code
        assert not psutil.wait_procs(children, timeout=HANGING)[1]
    finally:
        process.kill()


def test_starts_are_taken_in_turn_and_the_first_round_is_not_counted(monkeypatch, capsys):
    seconds = iter([9.0, 9.0, 4.0, 3.0, 8.0, 4.0, 5.0, 4.5])
    order = []
    monkeypatch.setattr(start, "start_seconds", lambda checkout: order.append(checkout) or next(seconds))
    old, new = Path("old"), Path("new")
    rows = start.measure([old, new], repeats=3)
    assert order == 4 * [old, new]
    assert [row["seconds"] for row in rows] == [5.0, 4.0]
    assert [row["ratio"] for row in rows] == [1.0, 0.75]  # of 3/4, 4/8 and 4.5/5


def test_the_first_step_alone_is_timed(tmp_path, monkeypatch):
    monkeypatch.setenv(first_step.FILE, str(tmp_path / "time"))
    before = time.monotonic()
    with closing(first_step.FirstStep(gymnasium.make("InvertedDoublePendulum-v5"))) as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())
        first = (tmp_path / "time").read_text()
        env.step(env.action_space.sample())
    assert before < float(first) < time.monotonic()
    assert (tmp_path / "time").read_text() == first


def test_tasks_nobody_tuned_are_run_once_each_and_those_ahead_are_counted(tmp_path, monkeypatch):
    questions = []

    def trained(loop, at_pendulum):
        def train(id, seed):
            questions.append((loop, id, seed))
            return {"return_mean": at_pendulum - seed if id == "Pendulum-v1" else 5.0, "frames": 300_032}

        return train

    monkeypatch.setattr(benchmark, "ROOT", tmp_path)
    monkeypatch.setattr(benchmark, "untuned_hydrl", trained("hydrl", -50))
    monkeypatch.setattr(benchmark, "untuned_sb3", trained(benchmark.SB3, -900))
    (tmp_path / "docs" / "results").mkdir(parents=True)
    runs_file = tmp_path / "docs" / "results" / "untuned.csv"
    runs_file.write_text("task,loop,seed,frames,return_mean\nPendulum-v1,hydrl,100,300032,-149.00\n")

    benchmark.untuned(["Pendulum-v1", "Reacher-v5"], [100, 102])

    assert len(questions) == len(set(questions)) == 7
    assert ("hydrl", "Pendulum-v1", 100) not in questions
    page = runs_file.with_suffix(".md").read_text()
    assert f"| Pendulum-v1 | {benchmark.written(-150.5)} ± {benchmark.written(4.5**0.5)}, 2 seeds |" in page
    assert "| Pusher-v5 | - | - |" in page
    assert "hydrl is ahead on 1 of 2 and level on 1." in page


def test_the_same_defaults_are_compared_by_welch_s_test(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "ROOT", tmp_path)
    for loop, offset in (("hydrl", 0), ("sb3", 3)):

        def train(name, seed, offset=offset):
            return {"return_mean": seed + offset, "frames": 50_000}

        monkeypatch.setattr(benchmark, f"same_defaults_{loop}", train)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    benchmark.same_defaults(["dqn-cartpole"], [100, 102, 104])
    page = (tmp_path / "docs" / "results" / "sb3.md").read_text()
    written = benchmark.written
    # Two samples of three with standard deviation 2: t = -3 / sqrt(8 / 3), 4 degrees of freedom.
    assert f"| {written(-3.0)} [{written(-7.533)}, {written(1.533)}] | 0.14 |" in page
    assert "| `sb3/sac env=pendulum` | 4,000 | - | - | - | - |" in page


def test_the_default_s_threads_are_compared_within_a_round_and_a_load(monkeypatch, tmp_path):
    speeds = {  # of one thread and the default in two rounds, alone and beside others
        ("alone", "torch_threads=1"): [10, 20],
        ("alone", "torch_threads=auto"): [15, 50],
        ("beside", "torch_threads=1"): [8, 10],
        ("beside", "torch_threads=auto"): [4, 9],
    }
    order, written = [], {}

    def time_loop(task, words, total):
        others = [child for child in psutil.Process().children() if "while True: pass" in child.cmdline()]
        load = "beside" if len(others) == 2 else "alone"
        order.append((load, words[-1]))
        assert "compile=false" in words
        rate = speeds[load, words[-1]].pop(0)
        return Times(
            [64 * number for number in range(1, total + 1)],
            [64 * number / rate for number in range(total)],
            0,
        )

    monkeypatch.setattr(benchmark, "time_loop", time_loop)
    monkeypatch.setattr(benchmark, "write", lambda path, rows: written.update({path.name: rows}))
    benchmark.threads(["sac"], repeats=2, batches=2, others=2)

    alone, beside = written["benchmark-threads.csv"]
    assert (alone["busy processes"], beside["busy processes"]) == (0, 2)
    assert (alone["to one thread"], alone["least"]) == pytest.approx((2.0, 1.5))
    assert (beside["to one thread"], beside["least"]) == pytest.approx((0.7, 0.5))
    assert order == 2 * [(load, word) for load in ("alone", "beside") for word in benchmark.CHOICES.values()]
    assert not [child for child in psutil.Process().children() if "while True: pass" in child.cmdline()]


def test_precisions_are_timed_in_turns_and_their_ratio_is_taken_within_a_round(monkeypatch):
    now, order = [0.0], []
    seconds = {"float32": 2.0, "bf16": 1.0}

    def make_update(settings):
        def update():
            order.append(settings.precision)
            slowed = 10 if len(order) > 10 else 1  # in the second round, which starts after 6 and 4 updates
            now[0] += slowed * seconds[settings.precision]

        return update

    monkeypatch.setattr(precision, "make_update", make_update)
    monkeypatch.setattr(precision.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(precision.process, "prepare", lambda *_: "cpu")
    row = precision.compare(["env=cartpole"], rounds=3, count=2)

    assert order[6:] == ["float32", "float32", "bf16", "bf16"] * 3
    assert (row["gain"], row["least"], row["most"]) == (2.0, 2.0, 2.0)
    assert (row["float32, ms"], row["bf16, ms"]) == (20_000.0, 10_000.0)


def test_pools_are_timed_in_turns_beside_the_other_side(monkeypatch, capsys):
    now, order = [0.0], []
    seconds = {
        "alone, 1 thread": 2.0,
        "alone, 2 threads": 1.0,
        "alone, other": 4.0,
        "collector, 1 thread": 8.0,
    }

    def make_step(name):
        def step():
            order.append(name)
            slowed = 10 if 8 < len(order) <= 12 else 1  # in the second round, after 4 first calls and a round
            now[0] += slowed * seconds[name]

        return step

    monkeypatch.setattr(
        envpool_speed, "make_steps", lambda *_: {name: (make_step(name), 64) for name in seconds}
    )
    monkeypatch.setattr(envpool_speed.time, "perf_counter", lambda: now[0])
    envpool_speed.main(["Ant-v4"], [64])

    assert order == [*seconds] * 4
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines] == [11, 11, 11]
    assert lines[-1] == "| Ant-v4 | 64 | 32 | 64 | 16 | 4.00 | 8 |  |  |  |"


@pytest.mark.parametrize("seat", ["player_0", "player_1"])
def test_a_search_hardly_loses_to_random_moves_and_plays_the_valid_ones(seat):
    pytest.importorskip("pyspiel")
    rng = np.random.default_rng(0)
    policy = SimpleNamespace(predict=lambda observation, mask: rng.choice(np.flatnonzero(mask)))

    returns = mcts.play(policy, "tic_tac_toe", seat, mcts.SearchOpponent(500, seed=0), games=20)

    assert set(returns) <= {-1.0, 0.0}
    assert (returns == -1).sum() >= 15
