"""Running statistics: Gymnasium's numbers, begun anew with each episode, and none of an evaluation."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeReward
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded
from torchrl.envs import (
    Compose,
    ExplorationType,
    ObservationNorm,
    StepCounter,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.envs.utils import check_env_specs

from hydrl import envs
from hydrl.envs import normalization
from hydrl.envs.transforms import (
    CLIP,
    ActionClipping,
    ActionScaling,
    RunningNorm,
    RunningRewardScaling,
    normalizer,
    random_truncation,
    reward_scaling,
)
from hydrl.errors import UserError
from hydrl.networks import actors, critics
from hydrl.specs import action_spec
from tests.conftest import settings
from tests.fakes.envs import CountingEnv

PENDULUM = {"num_envs": 4, "vectorization_mode": "sync"}


def rewards(transform: RunningRewardScaling, steps: torch.Tensor) -> torch.Tensor:
    """What becomes of rewards ``[time, envs]`` that no episode's end interrupts."""
    scaled = [transform._step(TensorDict(), TensorDict({"reward": each[:, None]})) for each in steps]
    return torch.stack([each["reward"][:, 0] for each in scaled])


def test_scaled_rewards_are_those_of_gymnasium_s_wrapper_and_go_on_after_a_resume():
    disabled = {"autoreset_mode": AutoresetMode.DISABLED}
    vector = NormalizeReward(gymnasium.make_vec("Pendulum-v1", **PENDULUM, vector_kwargs=disabled), gamma=0.9)
    vector.reset(seed=3)
    theirs, raw = [], []
    for actions in np.random.default_rng(0).uniform(-2, 2, (150, 4, 1)).astype(np.float32):
        _, scaled, *_ = vector.step(actions)
        theirs.append(scaled)
        raw.append(scaled * np.sqrt(vector.return_rms.var + vector.epsilon))
    before, transform = (RunningRewardScaling(gamma=0.9, limit=1e9) for _ in range(2))
    first = rewards(before, torch.tensor(np.array(raw[:60])))
    rewards(
        transform, torch.ones(1, 4, dtype=torch.float64)
    )  # begun, as a resumed run's are before it goes on
    transform.load_state_dict(before.state_dict())
    ours = torch.cat([first, rewards(transform, torch.tensor(np.array(raw[60:])))])
    assert np.array(raw).min() < -5
    assert ours.numpy() == pytest.approx(np.array(theirs), rel=1e-5)  # theirs sums in single precision
    assert transform.variance.item() == pytest.approx(vector.return_rms.var, rel=1e-5)


def test_a_return_begins_anew_with_its_episode_and_what_is_far_out_is_cut_off():
    transform = RunningRewardScaling(gamma=0.5)
    rewards(transform, torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    assert transform.discounted[:, 0].tolist() == [1.5, 3]
    transform._reset(TensorDict({"_reset": torch.tensor([[True], [False]])}, [2]), TensorDict({}, [2]))
    assert transform.discounted[:, 0].tolist() == [0, 3]
    transform._reset(TensorDict({}, [2]), TensorDict({}, [2]))
    assert transform.discounted[:, 0].tolist() == [0, 0]
    calm = RunningRewardScaling()
    rewards(calm, torch.zeros(1_000, 2))
    assert rewards(calm, torch.tensor([[9.0, -9.0]])).tolist() == [[CLIP, -CLIP]]


def test_rewards_are_scaled_by_the_running_deviation_of_the_learner_s_returns_or_by_a_number():
    running, fixed = reward_scaling(gamma=0.5), reward_scaling(0.25, gamma=0.5)
    rewards(running, torch.ones(2, 1))
    assert running.discounted.item() == 1.5
    assert rewards(fixed, torch.tensor([[8.0], [-400.0]])).tolist() == [[2], [-100]]


def test_the_statistics_of_training_go_into_a_state_and_out_again():
    make = partial(
        envs.make_env, partial(CountingEnv, actions="continuous"), [RunningRewardScaling], num_envs=3
    )
    env, other = make(seed=0), make(seed=1)
    env.rollout(40, break_when_any_done=False)
    other.rollout(5, break_when_any_done=False)
    other.load_state_dict(env.state_dict())
    for one, two in zip(env.transform.buffers(), other.transform.buffers(), strict=True):
        assert torch.equal(one, two)
    (transform,) = (each for each in env.transform if isinstance(each, RunningRewardScaling))
    assert transform.count.item() == pytest.approx(120, abs=1)


def test_returns_stay_raw_and_an_evaluation_leaves_the_statistics_of_training_alone():
    stack = [partial(normalizer, ["observation"], None), RunningRewardScaling]
    make = partial(envs.make_env, CountingEnv, stack, num_envs=2)
    env = make(seed=0)
    first = env.rollout(8, break_when_any_done=False)
    assert torch.equal(first["next", "episode_reward"][:, 0], env.base_env.rollout(1)["next", "reward"][:, 0])
    before = {name: each.clone() for name, each in env.state_dict().items() if torch.is_tensor(each)}
    other = make(seed=1, normalizer=envs.normalizer_state(env))
    other.rollout(8, break_when_any_done=False)
    after = env.state_dict()
    assert before
    assert all(torch.equal(each, after[name]) for name, each in before.items())


def test_observations_are_standardised_by_random_frames_or_by_running_ones_within_a_limit():
    assert isinstance(normalizer(["observation"], 100), ObservationNorm)
    running = partial(normalizer, ["observation"], None)
    env = envs.make_env(CountingEnv, [running], num_envs=2, seed=0)
    (norm,) = normalization.normalizers(env)
    assert isinstance(norm, RunningNorm)
    env.rollout(50, break_when_any_done=False)
    far = TensorDict(
        {"observation": torch.full((2, *env.observation_spec["observation"].shape[1:]), 1e9)}, [2]
    )
    norm.freeze()
    assert norm._step(far, far)["observation"].unique().tolist() == [CLIP]


def test_observations_that_never_change_are_standardised_to_nothing():
    """Their mean square is rounded to less than their mean's square for about one number in three."""
    norm = RunningNorm(["observation"])
    constant = TensorDict(
        {"observation": torch.linspace(-3, 3, 100, dtype=torch.float64).expand(64, 100)}, [64]
    )
    for _ in range(20):
        begun = norm._step(constant, constant.clone())["observation"]
    assert begun.abs().max() < 1e-9
    assert (norm.to_observation_norm()(constant.clone())["observation"].abs() < 1e-9).all()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_running_statistics_take_in_each_observation_once_and_stand_still_in_time(num_envs):
    make = partial(envs.make_env, partial(CountingEnv, short=2, long=5), num_envs=num_envs, seed=0)
    ones = partial(torch.ones, (*make([]).batch_size, 1))
    play = {"break_when_any_done": False, "policy": lambda td: td.set("action", ones())}
    plain = make([]).rollout(40, **play)
    assert plain["next", "done"].any(-2).all()  # each is reset many times, and they are not together
    begun = plain["observation"][..., 0] == 0
    taken = torch.cat([plain["observation"][begun], plain["next", "observation"].flatten(0, -2)])
    env = make([partial(normalizer, ["observation"], None, settle=0.75, over=240)])
    (norm,) = normalization.normalizers(env)
    env.rollout(40, **play)
    assert norm.num_observations == len(taken) == plain.numel() + begun.sum()
    assert norm.loc["observation"].tolist() == pytest.approx(taken.mean(0).tolist(), rel=1e-5)
    assert norm.scale["observation"][:2].tolist() == pytest.approx(
        taken[:, :2].std(0, unbiased=False).tolist(), rel=1e-4
    )
    env.rollout(200, **play)
    still = norm.loc["observation"].clone()
    env.rollout(50, **play)
    assert torch.equal(norm.loc["observation"], still)
    assert 180 <= norm.num_observations < 184  # three quarters of 240, and what came with the last of them


@pytest.mark.parametrize(("num_envs", "steps"), [pytest.param(1, 8_000, marks=pytest.mark.slow), (16, 2_000)])
def test_half_of_the_episodes_are_cut_short_evenly_over_their_steps(num_envs, steps):
    """Pendulum's end after 200 steps and never else."""
    make = partial(envs.make_env, partial(envs.gymnasium_env, "Pendulum-v1"))
    torch.manual_seed(0)
    env = make([StepCounter, partial(random_truncation, 0.5)], num_envs=num_envs, seed=0)
    check_env_specs(env)
    after = env.rollout(steps, break_when_any_done=False)["next"]
    done, cut = after["done"], after["cut_short"]
    assert torch.equal(after["truncated"], done)
    assert not after["terminated"].any()
    assert (after["step_count"][done & ~cut] == 200).all()
    lengths = after["step_count"][cut].double()
    assert lengths.max() < 200
    assert lengths.mean().item() == pytest.approx(100, abs=20)
    assert cut.sum().item() / done.sum().item() == pytest.approx(0.5, abs=0.12)


def test_where_only_beginnings_are_wanted_no_episode_is_longer():
    """Pendulum's would end after 200 steps."""
    task, cut = partial(envs.gymnasium_env, "Pendulum-v1"), partial(random_truncation, 1.0, longest=30)
    torch.manual_seed(0)
    env = envs.make_env(task, [StepCounter, cut], num_envs=16, seed=0)
    after = env.rollout(300, break_when_any_done=False)["next"]
    assert {*after["step_count"][after["done"]].tolist()} == {*range(1, 31)}
    assert torch.equal(after["cut_short"], after["done"])
    later = envs.make_env(CountingEnv, [StepCounter, cut], num_envs=2, seed=0)
    assert {*later.rollout(60, break_when_any_done=False)["next", "step_count"].flatten().tolist()} >= {20}


def test_environments_that_begin_together_end_their_first_episodes_apart():
    env = envs.make_env(
        partial(envs.gymnasium_env, "Pendulum-v1"),
        [StepCounter, partial(random_truncation, 0.5)],
        num_envs=8,
        seed=0,
    )
    torch.manual_seed(0)
    done = env.rollout(200, break_when_any_done=False)["next", "done"].squeeze(-1)
    assert done.any(1).all()
    assert len(set(done.int().argmax(1).tolist())) == 8


def test_an_evaluation_plays_whole_episodes_and_a_task_without_a_limit_is_not_cut():
    task = partial(envs.gymnasium_env, "Pendulum-v1")
    make = partial(envs.make_env, task, [StepCounter, partial(random_truncation, 0.5)], num_envs=4, seed=0)
    actor = TensorDictModule(lambda seen: seen[..., :1] * 0, in_keys=["observation"], out_keys=["action"])
    played = make(policy=actor).rollout(250)
    assert played.shape[1] == 200
    assert "cut_short" not in played["next"]
    assert random_truncation(None) is None
    env = envs.make_env(CountingEnv, [StepCounter, partial(random_truncation, 0.5)], num_envs=2, seed=0)
    after = env.rollout(100, break_when_any_done=False)["next"]
    assert not after["cut_short"].any()
    assert set(after["step_count"][after["done"]].tolist()) == {2, 20}


def test_episodes_are_counted_before_they_are_cut_and_statistics_may_come_later():
    cut, norm = partial(random_truncation, 0.5), partial(normalizer, ["observation"], 100)
    with pytest.raises(UserError, match=r"random_truncation: add torchrl.envs.StepCounter before it"):
        envs.make_env(CountingEnv, [cut], seed=0).reset()
    env = envs.make_env(CountingEnv, [norm, StepCounter, cut], num_envs=2, seed=0)
    envs.init_normalizers(env, 100)
    check_env_specs(env)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_policy_explores_and_is_judged_alike_whatever_the_task_s_unit(num_envs):
    found = []
    for unit in (2.0, 0.02, 200.0):
        make = partial(envs.gymnasium_env, "tests.fakes.envs:PendulumIn-v0", unit=unit)
        env = envs.make_env(make, [ActionScaling], num_envs=num_envs, seed=0)
        check_env_specs(env)
        torch.manual_seed(0)
        net = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
        actor, critic = actors.deterministic(env, **net), critics.action_value(env, **net)
        noise = settings("algo=td3", "env=gym", "env.id=X-v0").build("exploration")(action_spec(env))
        start = TensorDict({"observation": torch.randn(5_000, 3)}, [5_000])
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            drawn = critic(noise(actor(start)))
            explored = drawn["action"] - actor(start.select("observation"))["action"]
        assert explored.std().item() == pytest.approx(0.1, rel=0.05)
        rewards = env.rollout(50)["next", "reward"]  # at random
        found.append((drawn["action"], drawn["state_action_value"], rewards))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two)


def test_scaled_actions_fill_the_bounds_and_never_pass_them():
    torch.manual_seed(0)
    low = torch.randn(1_000)
    high = low + torch.rand(1_000)
    env = envs.make_env(CountingEnv, [], seed=0).base_env
    env.action_spec = Bounded(low, high, shape=(1_000,))
    scaled = TransformedEnv(env, Compose(ActionScaling()))
    ends = scaled.action_spec.space
    assert (ends.low.unique().tolist(), ends.high.unique().tolist()) == ([-1], [1])
    (transform,) = scaled.transform
    for each in (transform, transform.for_rows()):
        for end, bound in ((ends.low, low), (ends.high, high)):
            given = each.inv(TensorDict({"action": end}))["action"]
            torch.testing.assert_close(given, bound)
            assert ((given >= low) & (given <= high)).all()
    assert ((high + low) / 2 + (high - low) / 2 > high).any()  # where nothing holds them


@pytest.mark.parametrize("num_envs", [1, 2])
def test_clipped_actions_reach_the_environment_in_bounds_and_are_learned_from_as_drawn(num_envs):
    make = partial(envs.gymnasium_env, "Pendulum-v1")
    plain, clipped = (envs.make_env(make, each, num_envs=num_envs, seed=0) for each in ([], [ActionClipping]))
    actions = torch.linspace(-5, 5, 20).reshape(-1, 1)
    trajectories = []
    for env, bound in ((plain, 2.0), (clipped, 9.0)):
        env.set_seed(0)
        step, observations = env.reset(), []
        for action in actions.clamp(-bound, bound):
            step = env.step_mdp(env.step(step.set("action", action.expand(*env.batch_size, 1))))
            observations.append(step["observation"])
        trajectories.append(torch.stack(observations))
    torch.testing.assert_close(*trajectories)
    (transform,) = (each for each in clipped.transform if isinstance(each, ActionClipping))
    rows, transform = TensorDict({"action": torch.tensor([[-3.0], [0.5], [7.0]])}), transform.for_rows()
    assert transform.inv(rows)["action"].flatten().tolist() == [-2.0, 0.5, 2.0]
    assert transform(rows)["action"].flatten().tolist() == [-3.0, 0.5, 7.0]


def test_a_gaussian_policy_is_not_squashed_and_knows_the_probability_of_what_it_drew():
    env = envs.make_env(partial(envs.gymnasium_env, "Pendulum-v1"), [ActionClipping], num_envs=4, seed=0)
    torch.manual_seed(0)
    actor = actors.gaussian(env, num_cells=[8], activation="Tanh", scale_init=3.0, init="orthogonal")
    with set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(200, actor, break_when_any_done=False)
    action = batch["action"]
    assert (action.abs() > 2).float().mean().item() == pytest.approx(0.505, abs=0.05)  # beyond 2/3 deviations
    normal = torch.distributions.Normal(batch["loc"], batch["scale"])
    torch.testing.assert_close(batch["action_log_prob"], normal.log_prob(action).sum(-1))
    assert [name for name, _ in actor.named_parameters() if "state_independent_scale" in name]
    greedy = TensorDict({"observation": torch.randn(5, 3)}, [5])
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        acted = actor(greedy)
    torch.testing.assert_close(acted["action"], acted["loc"])
