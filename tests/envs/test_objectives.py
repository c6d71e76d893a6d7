"""Environments with several objectives: `env.weights`, in training, evaluation, resume and datasets."""

import importlib.util
import re

import numpy as np
import pytest
import torch

import hydrl
from hydrl.datasets import files
from hydrl.envs import make_env
from hydrl.errors import UserError
from hydrl.run.run_folder import summary
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, saved, settings, typed
from tests.fakes import objective_envs
from tests.fakes.objective_envs import LENGTH, Harvest

ID = f"{objective_envs.__name__}:toys/Harvest-v0"
HARVEST = ["env=gym", f"env.id={ID}", "task=harvest", "transforms=plain"]
WEIGHTS = [0.5, 2.0]


def build(*words: str, num_envs: int = 1):
    chosen = settings(*SMALL, *HARVEST, *words)
    return make_env(chosen.build("env"), chosen.transform_builders, num_envs=num_envs, seed=0)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_rewards_are_weighted_sums_and_objectives_are_followed(num_envs, recwarn):
    env = build(f"+env.weights={WEIGHTS}", num_envs=num_envs)
    actions = torch.randint(2, (2 * LENGTH, num_envs), generator=torch.Generator().manual_seed(0))
    simulators = [Harvest() for _ in range(num_envs)]
    tensordict = env.reset()
    sums = np.zeros((num_envs, 2))
    for step, row in enumerate(actions):
        if step % LENGTH == 0:
            sums[:] = 0.0
            for simulator in simulators:
                simulator.reset()
        rewards = np.array([simulator.step(int(a))[1] for simulator, a in zip(simulators, row, strict=True)])
        sums += rewards
        tensordict["action"] = env.action_spec.encode(row if num_envs > 1 else row[0])
        tensordict, following = env.step_and_maybe_reset(tensordict)
        after = tensordict["next"]
        assert after["reward"].reshape(-1).tolist() == (rewards @ WEIGHTS).tolist()
        assert after["episode_reward"].reshape(-1).tolist() == (sums @ WEIGHTS).tolist()
        for number in range(2):
            followed = after["episode_info", f"objective_{number}"]
            assert followed.reshape(-1).tolist() == sums[:, number].tolist()
        tensordict = following
    assert not [warning for warning in recwarn if "reward" in str(warning.message)]  # of Gymnasium's checker


def test_wrappers_change_objectives_before_they_are_weighed():
    wrapper = f"+env.wrappers.halve._target_={objective_envs.__name__}.HalveFirst"
    env = build("+env.weights=[4.0,1.0]", wrapper)
    tensordict = env.reset().set("action", env.action_spec.encode(torch.tensor(1)))
    after = env.step(tensordict)["next"]
    assert (after["reward"].item(), after["episode_info", "objective_0"].item()) == (4 * 1.0 - 1, 1.0)


def test_objectives_are_followed_whatever_info_keys_say():
    keys = lambda *words: [*build(*words).observation_spec["episode_info"].keys()]  # noqa: E731
    assert keys("+env.weights=[1,1]") == keys("+env.weights=[1,1]", "+env.info_keys=[]")
    assert keys("+env.weights=[1,1]") == ["objective_0", "objective_1"]
    assert keys("+env.weights=[1,1,1]", "+env.rewards=3", "+env.declared=3")[-1] == "objective_2"


def test_a_reward_of_another_size_is_a_line():
    env = build("+env.weights=[1,1,1]", "+env.declared=3")
    with pytest.raises(UserError, match=r"^env\.id=\S+: it returned the reward \[.*\], but its reward_space"):
        env.rollout(2)


def test_evaluate_closes_every_environment_that_it_steps(unbroken, monkeypatch):
    stepped, closed, step = set(), set(), Harvest.step
    monkeypatch.setattr(Harvest, "step", lambda self, action: stepped.add(self) or step(self, action))
    monkeypatch.setattr(Harvest, "close", lambda self: closed.add(self))
    finished = typed(f"run={unbroken[0]}", "episodes=3", "trust=true", script="scripts/evaluate.py")
    assert finished.returncode == 0, finished.stderr
    assert len(stepped) >= 3
    assert stepped <= closed


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of PPO with four environments: no batch ends with an episode."""
    folder = tmp_path_factory.mktemp("objectives") / "run"
    words = [*SMALL_PPO, *HARVEST, f"env.weights={WEIGHTS}", "collector.num_envs=4"]
    finished = typed(*words, f"hydra.run.dir={folder}")
    assert finished.returncode == 0, finished.stderr
    return folder, finished


def test_objectives_are_logged_and_sum_to_the_return(unbroken):
    folder, finished = unbroken
    rows, result = logged(folder), summary(folder)
    for prefix, total in (("train", "return"), ("eval", "return_mean")):
        known = [row for row in rows if row[f"{prefix}/objective_0"]]
        assert known
        for row in known:
            first, second = (float(row[f"{prefix}/objective_{number}"]) for number in range(2))
            assert 15 <= first <= 30
            assert second == -5
            assert float(row[f"{prefix}/{total}"]) == pytest.approx(0.5 * first + 2.0 * second)
    assert result["eval/objective_1"] == -5
    assert result["eval/return_mean"] == pytest.approx(0.5 * result["eval/objective_0"] - 10)
    assert "objective_0     │" in finished.stdout


def test_a_run_resumed_in_the_middle_of_episodes_keeps_their_sums(unbroken, tmp_path):
    folder = tmp_path / "killed"
    assert killed(unbroken[0], folder) == 128
    resumed = typed(f"resume={folder}", "trust=true")
    assert resumed.returncode == 0, resumed.stderr
    assert "everything continues exactly" in resumed.stdout
    assert logged(folder) == logged(unbroken[0])
    assert digest(saved(folder, "actor")) == digest(saved(unbroken[0], "actor"))


def test_a_loaded_policy_evaluates_predicts_and_is_recorded(unbroken, tmp_path):
    folder, _ = unbroken
    assert hydrl.load(folder, trust=True).predict(np.zeros(1, np.float32)) in (0, 1)
    evaluated = typed(f"run={folder}", "episodes=3", "trust=true", script="scripts/evaluate.py")
    assert evaluated.returncode == 0, evaluated.stderr
    assert re.search(r"objective_1 +│ -5 ", evaluated.stdout)
    out = tmp_path / "data"
    words = [f"run={folder}", f"out={out}", f"frames={2 * LENGTH}", "trust=true"]
    recorded = typed(*words, script="scripts/record.py")
    assert recorded.returncode == 0, recorded.stderr
    rewards = files.read_columns("npz", out, "out")["rewards"]
    assert rewards.shape == (2 * LENGTH,)
    assert np.isin(rewards, [0.5 * step * gain - 2 for step in range(1, 6) for gain in (1, 2)]).all()


def test_off_policy_algorithms_learn_from_the_weighted_sum(run):
    words = ["minibatches.warmup_frames=64", "total_frames=128", "+env.weights=[1,-1]"]
    folder = run(*HARVEST, "algo=dqn", *SMALL, *words)
    rewards = saved(folder, "buffer")["next"]["reward"]
    assert set(rewards.reshape(-1).tolist()) <= {step * gain + 1.0 for step in range(1, 6) for gain in (1, 2)}
    assert logged(folder)[0]["train/objective_0"]


SCALAR = ["env=gym", "env.id=CartPole-v1"]
# What is typed, and what the line says.
MISTAKES = {
    "env.weights=[1.0]": "env.weights=[1.0]: env.id={id} has 2 objectives. Write a weight for each, as "
    "env.weights=[1.0,1.0].",
    "env.weights=[]": "env.weights=[]: env.id={id} has 2 objectives.",
    "env.weights=[1,nan]": "env.weights=[1,nan]: weights should be finite, and not all 0.",
    "env.weights=[inf,1]": "env.weights=[inf,1]: weights should be finite",
    "env.weights=[0,0.0]": "env.weights=[0,0.0]: weights should be finite, and not all 0.",
    "env.weights=heavy": "env.weights=heavy: should be a list. Write env.weights=[heavy].",
    "env.weight=[1,1]": "env.weight=[1,1]: no such key",
    "": "env.id={id}: its reward_space has 2 numbers. Write env.weights=[1.0,1.0], a weight for each",
    "env.id=CartPole-v1 env.weights=[1,1]": "env.weights=[1,1]: env.id=CartPole-v1 has one reward, by "
    "its reward_space. Leave env.weights out.",
    "+env.rewards=1 +env.declared=0 env.weights=[1]": "env.weights=[1]: env.id={id} has one reward",
    "+env.declared=null": "env.id={id}: it returned the reward [ 1. -1.]. Return one number, or give it a "
    "reward_space of several and write env.weights.",
    "env=custom env._target_=torchrl.envs.PendulumEnv env.weights=[1]": "env.weights=[1]: this key is for "
    "Gymnasium environments",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_before_training(words, tmp_path):
    own = ["task=x"] if "custom" in words else HARVEST
    finished = typed(*SMALL, *own, *words.split(), f"hydra.run.dir={tmp_path / 'run'}")
    assert finished.returncode == 2
    assert MISTAKES[words].format(id=ID) in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_a_reward_space_of_one_number_needs_no_weights():
    for num_envs in (1, 2):
        env = build("+env.rewards=1", "+env.declared=1", num_envs=num_envs)
        assert env.rollout(3)["next", "reward"].shape[-1] == 1


@pytest.mark.skipif(importlib.util.find_spec("mo_gymnasium") is None, reason="needs MO-Gymnasium")
@pytest.mark.parametrize("num_envs", [1, 3])
def test_deep_sea_treasure_of_mo_gymnasium(num_envs):
    import mo_gymnasium

    words = ["env.id=mo_gymnasium:deep-sea-treasure-v0", "+env.weights=[1,0.1]", "transforms=plain"]
    chosen = settings(*SMALL, "env=gym", *words)
    env = make_env(chosen.build("env"), chosen.transform_builders, num_envs=num_envs, seed=0)
    simulator = mo_gymnasium.make("deep-sea-treasure-v0")
    simulator.reset(seed=0)
    tensordict = env.reset()
    sums = np.zeros(2)
    for action in [3, 1, 1, 1]:  # right, then down to the treasure of 8.2
        observation, rewards, terminated, truncated, _ = simulator.step(action)
        sums += rewards
        actions = torch.tensor(action).expand(num_envs) if num_envs > 1 else torch.tensor(action)
        after = env.step(tensordict.set("action", env.action_spec.encode(actions)))["next"]
        assert after["observation"].reshape(num_envs, 2).tolist() == [observation.tolist()] * num_envs
        assert after["reward"].reshape(-1).tolist() == pytest.approx([float(rewards @ [1, 0.1])] * num_envs)
        assert after["terminated"].reshape(-1).tolist() == [terminated] * num_envs
        assert [truncated, *after["truncated"].reshape(-1).tolist()] == [False] * (1 + num_envs)
        tensordict = env.step_mdp(tensordict)
        if terminated:
            break
    assert terminated
    assert after["episode_info", "objective_0"].reshape(-1)[0].item() == pytest.approx(sums[0])
    assert sums.tolist() == pytest.approx([8.2, -3])
