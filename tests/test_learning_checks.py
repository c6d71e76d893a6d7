"""Learning, shown on seeds nobody tuned on. Slow: `make test-slow`."""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import needs_vmas, saved, settings, typed

PENDULUM = ("env=gym", "env.id=tests.fakes.envs:PendulumIn-v0", "eval.reward_threshold=-200")
NAVIGATION = ("env=vmas_navigation", "total_frames=61_440")  # less than half of their tuned length
MAZE = ("env=t_maze", "env.corridor=50")
# What a run must reach: overrides, mean return over its closing episodes, their number, seeds from 100 up.
CHECKS = [
    (("algo=ppo", "env=inverted_double_pendulum"), 9_300, 200, 5),
    (("algo=dqn", "env=cartpole"), 475, 100, 5),
    (("algo=ppo", "env=cartpole"), 475, 100, 5),
    # Data an update old, and a compiled update, learn as well.
    (("algo=ppo", "env=inverted_double_pendulum", "collector=pipelined"), 9_300, 200, 3),
    (("algo=dqn", "env=cartpole", "collector=pipelined"), 475, 100, 3),
    # On a Ray cluster too.
    (
        ("algo=ppo", "env=cartpole", "collector=ray", "transforms=normalized", "init_stats_frames=1_000"),
        475,
        100,
        1,
    ),
    (("algo=dqn", "env=cartpole", "collector=ray"), 475, 100, 1),
    (("algo=sac", "env=pendulum", "collector=ray"), -200, 20, 1),
    (("algo=ppo", "env=inverted_double_pendulum", "compile=true"), 9_300, 200, 1),
    (("algo=dqn", "env=cartpole", "compile=true"), 475, 100, 1),
    (("algo=sac", "env=pendulum"), -200, 20, 3),
    (("algo=td3", "env=pendulum"), -200, 20, 3),
    (("algo=crossq", "env=pendulum"), -200, 20, 3),
    (("algo=dreamer_v3", "env=pendulum"), -200, 50, 3),
    (("algo=prioritized_dqn", "env=cartpole"), 475, 100, 3),
    (("algo=a2c", "env=cartpole"), 475, 100, 3),
    (("algo=impala", "env=cartpole"), 475, 100, 3),
    (("algo=impala", "env=cartpole", "collector=pipelined"), 475, 100, 1),
    (("algo=reinforce", "env=cartpole"), 400, 100, 3),
    (("algo=ddpg", "env=pendulum"), -200, 20, 3),
    (("algo=tqc", "env=pendulum"), -200, 20, 3),
    (("algo=redq", "env=pendulum"), -200, 20, 3),
    (("algo=sac_discrete", "env=cartpole"), 475, 20, 3),
    (("algo=rainbow", "env=cartpole"), 475, 100, 3),
    (("algo=ppo", "env=pendulum"), -200, 20, 3),
    (("algo=mpc", "env=pendulum", "eval.final_episodes=100"), -200, 100, 3),
    (("algo=recurrent_ppo", *MAZE), 0.95, 100, 3),
    (("algo=dqn", "env=acrobot"), -85, 100, 3),
    # Whatever the unit of the actions.
    (("algo=sac", *PENDULUM, "+env.unit=0.02", "tuned=sac/pendulum"), -200, 20, 1),
    (("algo=td3", *PENDULUM, "+env.unit=200.0", "tuned=td3/pendulum"), -200, 20, 1),
    (("algo=ddpg", *PENDULUM, "+env.unit=0.02", "tuned=ddpg/pendulum"), -200, 20, 1),
    (("algo=mappo", "env=vmas_navigation"), 2.5, 100, 3),
    (("algo=ippo", "env=vmas_navigation"), 2.5, 100, 3),
    (("algo=qmix", *NAVIGATION, "anneal_frames=150_000"), 2.5, 100, 1),
    (("algo=vdn", *NAVIGATION, "anneal_frames=150_000"), 2.5, 100, 1),
    # Untrained agents return -26.1.
    (("algo=qmix", "env=simple_spread", "total_frames=40_960", "anneal_frames=333_000"), -20, 200, 1),
    (("algo=masac", *NAVIGATION), 2.5, 100, 1),
    (("algo=maddpg", "env=vmas_navigation", "total_frames=102_400"), 1.5, 100, 1),
    (
        ("algo=ppo", "env=half_cheetah", "total_frames=200_000"),
        500,
        20,
        1,
    ),  # acting at random scores about -280
]
# Within so many frames.
FRAMES = dict.fromkeys(["algo=sac", "algo=td3", "algo=crossq", "algo=ddpg", "algo=tqc"], 12_000)
FRAMES |= {
    "algo=dreamer_v3": 8_000,
    "algo=recurrent_ppo": 50_000,
    "algo=redq": 6_000,
    "algo=sac_discrete": 20_000,
}
FRAMES |= dict.fromkeys(["algo=prioritized_dqn", "algo=rainbow"], 40_000)
FRAMES |= dict.fromkeys(["algo=mappo", "algo=ippo"], 64_000)
FRAMES |= dict.fromkeys(["algo=qmix", "algo=vdn", "algo=masac"], 61_440) | {"algo=maddpg": 102_400}
FRAMES |= {"algo=mpc": 3_000, "algo=a2c": 150_000, "algo=impala": 150_000, "algo=reinforce": 100_000}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "threshold", "episodes", "seed"),
    [
        pytest.param(*check, seed, id=f"{' '.join(check[0])} {seed}")
        for *check, seeds in CHECKS
        for seed in range(100, 100 + seeds)
    ],
)
def test_it_learns(overrides, threshold, episodes, seed, run):
    if "env=vmas_navigation" in overrides:
        needs_vmas()
    if "env=simple_spread" in overrides:
        pytest.importorskip("mpe2")
    reached = json.loads((run(*overrides, f"seed={seed}") / "summary.json").read_text())
    assert reached["eval/return_mean"] >= threshold
    assert reached["eval/episodes"] == episodes
    assert reached["frames"] <= 1.01 * FRAMES.get(overrides[0], 1_000_000)  # whole batches


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_a_memory_balances_a_pole_whose_velocity_is_hidden_and_without_one_it_falls(seed, run):
    numbers = ("env=cartpole_masked", "tuned=recurrent_ppo/cartpole_masked", f"seed={seed}")
    reached, fallen = (
        json.loads((run(f"algo={algo}", *numbers, folder=algo) / "summary.json").read_text())
        for algo in ("recurrent_ppo", "ppo")
    )
    assert reached["eval/return_mean"] >= 400
    assert fallen["eval/return_mean"] < 200
    assert reached["eval/episodes"] == fallen["eval/episodes"] == 50
    assert reached["frames"] <= fallen["frames"] <= 200_192  # 200,000 in whole batches


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory):
    """The folder of a run from its first random steps to its last good ones, made when it is asked for."""
    from train import train

    words = {"sac": ["env=pendulum", "total_frames=40_000", "minibatches.updates=16"]}
    words["dqn"] = ["env=cartpole", "buffer.storage.max_size=50_000"]

    @cache
    def of(algo: str, seed: int) -> Path:
        folder = tmp_path_factory.mktemp("behaviour") / f"{algo}-{seed}"
        said = [f"algo={algo}", *words[algo], "eval.stop_when_solved=false", f"seed={seed}"]
        train(settings(*said, run_dir=folder))
        return folder

    return of


FROM_DATA = [
    ("iql", "sac", "pendulum", -200),
    ("decision_transformer", "sac", "pendulum", -250),
    ("td3_bc", "sac", "pendulum", -200),
    ("cql", "sac", "pendulum", -200),
    ("iql_discrete", "dqn", "cartpole", 450),
    ("cql_discrete", "dqn", "cartpole", 450),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101, 102])
@pytest.mark.parametrize(("algo", "played_by", "env", "threshold"), FROM_DATA)
def test_what_a_run_kept_teaches_more_than_the_run_did(algo, played_by, env, threshold, seed, run, behaviour):
    """On the replay memory of a run, which holds its first random steps and its last good ones alike."""
    if algo == "decision_transformer":
        pytest.importorskip("transformers")
    there = behaviour(played_by, seed)
    rows = saved(there, "buffer")["next"]
    mean = rows["episode_reward"][rows["done"]].mean().item()
    reached = json.loads(
        (run(f"algo={algo}", f"env={env}", f"seed={seed}", f"data.path={there}") / "summary.json").read_text()
    )
    assert reached["updates"] <= 20_000
    assert reached["eval/return_mean"] >= threshold > mean


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_what_an_expert_plays_is_done_after_it(seed, run, behaviour, tmp_path):
    expert = tmp_path / "expert"
    words = [f"run={behaviour('sac', seed)}", f"out={expert}", "frames=20_000"]
    assert typed(*words, script="scripts/record.py").returncode == 0
    folder = run("algo=bc", "env=pendulum", f"seed={seed}", "data=npz", f"data.path={expert}")
    reached = json.loads((folder / "summary.json").read_text())
    assert reached["updates"] <= 2_000
    assert reached["eval/return_mean"] >= -160


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["iql_discrete", "cql_discrete"])
def test_a_pole_is_balanced_from_a_set_half_of_which_is_random(algo, run, behaviour, tmp_path):
    words = [f"run={behaviour('dqn', 100)}", f"out={tmp_path / 'set'}", "frames=20_000", "random=0.5"]
    assert typed(*words, script="scripts/record.py").returncode == 0
    words = [f"algo={algo}", "env=cartpole", "seed=100", "data=npz", f"data.path={tmp_path / 'set'}"]
    reached = json.loads((run(*words, "eval.final_episodes=100") / "summary.json").read_text())
    assert reached["updates"] <= 4_000
    assert reached["eval/return_mean"] >= 450


GOALS = [("algo=dqn", "env=bit_flip"), ("algo=dqn", "env=bit_flip", "buffer.storage.max_size=20_000")]
GOALS += [(f"algo={algo}", "env=point_reach") for algo in ("sac", "td3", "ddpg")]
GOALS += [(f"algo={algo}", "env=fetch_reach") for algo in ("sac", "td3", "ddpg")]
SUCCESS = {"env=bit_flip": 0.95, "env=point_reach": 0.9, "env=fetch_reach": 0.98}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("words", GOALS, ids=" ".join)
def test_goals_relabelled_are_reached(words, seed, run):
    """A memory of 20,000 is full after half of the run, and is written over."""
    if "env=fetch_reach" in words:
        pytest.importorskip("gymnasium_robotics")
    reached = json.loads((run(*words, f"seed={seed}") / "summary.json").read_text())
    assert reached["eval/is_success"] >= SUCCESS[words[1]]
    assert reached["frames"] <= 40_064  # 40,000 in whole batches


@pytest.mark.slow
def test_without_hindsight_fifteen_bits_are_never_made_right(run):
    reached = json.loads((run(*GOALS[0], "buffer=replay", "seed=100") / "summary.json").read_text())
    assert reached["eval/is_success"] < 0.1
