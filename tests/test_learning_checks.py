"""Learning, shown on seeds nobody tuned on. Slow: `make test-slow`."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
UNTOUCHED = [100, 101, 102, 103, 104]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("seed", UNTOUCHED)
def test_ppo_solves_the_inverted_double_pendulum(seed, run):
    reached = summary(run("algo=ppo", "env=inverted_double_pendulum", f"seed={seed}"))
    assert reached["solved_at_frames"] is not None
    assert reached["eval/return_mean"] >= 9_300
    assert reached["eval/episodes"] == 20


@pytest.mark.parametrize("seed", UNTOUCHED)
def test_dqn_solves_cartpole(seed, run):
    reached = summary(run("algo=dqn", "env=cartpole", f"seed={seed}"))
    assert reached["solved_at_frames"] is not None
    assert reached["eval/return_mean"] >= 475
    assert reached["eval/episodes"] == 100


@pytest.mark.parametrize("seed", UNTOUCHED[:3])
def test_sac_swings_up_the_pendulum(seed, run):
    reached = summary(run("algo=sac", "env=pendulum", f"seed={seed}"))
    assert reached["frames"] <= 12_032  # 12,000 in whole batches
    assert reached["eval/return_mean"] >= -200
    assert reached["eval/episodes"] == 20


@pytest.mark.parametrize("seed", UNTOUCHED[:3])
def test_ppo_solves_cartpole(seed, run):
    reached = summary(run("algo=ppo", "env=cartpole", f"seed={seed}"))
    assert reached["eval/return_mean"] >= 475


@pytest.mark.parametrize("seed", UNTOUCHED[:3])
def test_ppo_swings_up_the_pendulum(seed, run):
    reached = summary(run("algo=ppo", "env=pendulum", f"seed={seed}"))
    assert reached["eval/return_mean"] >= -250


@pytest.mark.parametrize("seed", UNTOUCHED[:3])
def test_dqn_solves_acrobot(seed, run):
    reached = summary(run("algo=dqn", "env=acrobot", f"seed={seed}"))
    assert reached["eval/return_mean"] >= -100


@pytest.mark.parametrize("seed", UNTOUCHED[:1])
def test_ppo_learns_to_run_half_cheetah(seed, run):
    reached = summary(run("algo=ppo", "env=half_cheetah", f"seed={seed}", "total_frames=200_000"))
    assert reached["eval/return_mean"] >= 800  # a random policy scores about -280
