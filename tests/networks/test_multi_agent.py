"""Several agents at once: nested entries, each agent's own networks and advantages."""

from functools import partial
from itertools import islice

import pytest
import torch
from torch import nn
from torchrl.envs import RewardScaling, StepCounter
from torchrl.envs.utils import check_env_specs
from torchrl.modules import PopArtValueNorm

from hydrl import envs, specs
from hydrl.errors import DivergedError, UserError
from hydrl.experience import collectors
from hydrl.experience.multi_agent import fill_loss_keys
from hydrl.losses.build import make_loss
from hydrl.networks import multi_agent
from tests.conftest import loss_of, settings
from tests.fakes.envs import CountingTeam

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": [("agents", "observation")]}
OBSERVATION = ("agents", "observation")


def team(*transforms, num_envs=4, **toy):
    return envs.make_env(partial(CountingTeam, **toy), [StepCounter, *transforms], num_envs=num_envs, seed=0)


@pytest.mark.parametrize("num_envs", [1, 4])
def test_the_return_is_the_mean_of_the_agents_own(num_envs):
    env = team(partial(RewardScaling, 0.0, 9.0, in_keys=[("agents", "reward")]), num_envs=num_envs)
    check_env_specs(env)
    rollout = env.rollout(30, break_when_any_done=False)
    assert rollout.batch_size == (num_envs, 30)  # one environment with a batch size of its own, none in a row
    after = rollout["next"][rollout["next", "done"].squeeze(-1)]
    assert set(after["step_count"].flatten().tolist()) == {3, 5}
    assert torch.equal(after["episode_reward"], 1.5 * after["step_count"])
    assert torch.equal(after["agents", "episode_reward"][:, 1], 2.0 * after["step_count"])
    assert (after["agents", "reward"][:, 1] == 18).all()


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        ("continuous", "continuous"),
        ("one_hot", "discrete"),
        ("integer", "discrete"),
        ("several", "multi-discrete"),
        ("stacked", "multi-discrete"),
    ],
)
@pytest.mark.parametrize("share_params", [True, False])
def test_each_agent_acts_on_what_it_observes_itself(actions, kind, share_params):
    env = team(actions=actions, agents=3)
    assert specs.action_kind(env) == f"multi-agent {kind}"
    actor = multi_agent.actor(env, **NETWORK, share_params=share_params)
    start = env.reset()
    names = ("loc", "scale") if kind == "continuous" else ("logits",)
    before = [actor(start)["agents", name].clone() for name in names]
    start[OBSERVATION][:, 1] += 1
    for name, old in zip(names, before, strict=True):
        now = actor(start)["agents", name]
        assert torch.equal(now[:, ::2], old[:, ::2])
        assert not torch.isclose(now[:, 1], old[:, 1]).all()
    assert start["agents", "action_log_prob"].shape == (4, 3)
    assert env.full_action_spec.is_in(start.select(("agents", "action")))
    alike = env.reset()
    alike[OBSERVATION][:] = 0.5
    out = actor(alike)["agents", names[0]]
    assert torch.allclose(out[:, 0], out[:, 1]) == share_params


@pytest.mark.parametrize("centralized", [True, False])
def test_a_centralized_critic_sees_what_all_observe(centralized):
    env = team(agents=3)
    critic = multi_agent.critic(env, **NETWORK, share_params=True, centralized=centralized)
    start = env.reset()
    before = critic(start)["state_value"].clone()
    assert before.shape == (4, 3, 1)
    start[OBSERVATION][:, 1] += 1
    assert torch.equal(critic(start)["state_value"][:, ::2], before[:, ::2]) != centralized


@pytest.mark.parametrize("algo", ["mappo", "ippo"])
@pytest.mark.parametrize(("limit", "bootstraps"), [(3, True), (None, False)])
def test_targets_are_each_agent_s_own_and_a_time_limit_bootstraps(algo, limit, bootstraps):
    overrides = ["env=custom", "env._target_=tests.fakes.envs.CountingTeam", "+env.short=4", "+env.long=4"]
    overrides += [f"+transforms.step_counter.max_steps={limit}"] if limit else []
    chosen = settings(
        f"algo={algo}", *overrides, "loss.value_estimator.lmbda=0", "loss.value_estimator.gamma=0.5"
    )
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=0)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic")}
    given = chosen.loss
    spec = specs.action_spec(env)
    loss = make_loss(chosen.build("loss"), parts, spec, given.networks, given.keys, given.value_estimator)
    with torch.no_grad():
        batch = env.rollout(4, parts["actor"], break_when_any_done=False)
        following = parts["critic"](batch["next"].clone())["state_value"]
        loss.value_estimator(batch)

    ends = (limit or 4) - 1
    paid = torch.tensor([1.0, 2.0])[:, None].expand(2, 2, 1)
    assert batch["next", "done"][:, ends].all()
    target = batch["value_target"]
    assert target.shape == (2, 4, 2, 1)
    for step in range(ends + 1):
        value = following[:, step] if step < ends or bootstraps else 0.0
        torch.testing.assert_close(target[:, step], paid + 0.5 * value)
    losses = loss(batch.reshape(-1))
    assert {"loss_objective", "loss_critic", "loss_entropy"} <= set(losses.keys())


def test_a_value_normaliser_counts_the_critic_s_error_in_deviations_of_its_targets():
    norm = "loss.module.value_norm={_target_:torchrl.modules.PopArtValueNorm}"
    chosen = settings("algo=mappo", "env=custom", "env._target_=tests.fakes.envs.CountingTeam", norm)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic")}
    loss = loss_of(chosen, specs.action_spec(env), **parts)
    with torch.no_grad():
        batch = env.rollout(8, parts["actor"], break_when_any_done=False)
        loss.value_estimator(batch)
        value, target = parts["critic"](batch.clone())["state_value"], batch["value_target"]
        errors = (value - target) / target.std(unbiased=False)
    huber = torch.where(errors.abs() < 1, errors.square() / 2, errors.abs() - 0.5)
    torch.testing.assert_close(loss(batch)["loss_critic"].detach(), huber.mean())
    kept = {name.partition(".")[2]: each for name, each in loss.state_dict().items() if "value_norm" in name}
    debiased = kept["running_mean"] / kept["debiasing_term"]  # what a checkpoint has of it
    torch.testing.assert_close(debiased, target.mean().reshape(1))


class Holding(nn.Module):
    """As much of MAPPO's loss as can be built where numbers cannot be read."""

    def __init__(self, actor_network: nn.Module, value_norm: nn.Module) -> None:
        super().__init__()
        self.actor_network, self.value_norm = actor_network, value_norm


def test_a_value_normaliser_is_where_the_networks_are_and_each_loss_has_its_own():
    env = team()
    networks, spec = {"actor_network": "actor"}, specs.action_spec(env)
    module = partial(Holding, value_norm=PopArtValueNorm())
    for device in ("cpu", "meta"):
        parts = {"actor": multi_agent.actor(env, **NETWORK, share_params=True).to(device)}
        loss = make_loss(module, parts, spec, networks, {}, None)
        assert [each.device.type for each in loss.value_norm.buffers()] == [device] * 3
        assert loss.value_norm is not module.keywords["value_norm"]


@pytest.mark.parametrize("centralized", [True, False])
def test_a_critic_of_actions_sees_what_all_do_or_each_does_itself(centralized):
    env = team(agents=3)
    critic = multi_agent.action_value(env, **NETWORK, share_params=True, centralized=centralized)
    start = env.rand_action(env.reset())
    before = critic(start)["state_action_value"].clone()
    assert before.shape == (4, 3, 1)
    start["agents", "action"][:, 1] += 0.5
    now = critic(start)["state_action_value"]
    assert torch.equal(now[:, ::2], before[:, ::2]) != centralized
    assert not torch.isclose(now[:, 1], before[:, 1]).any()


def played(algo, limit, *words):
    """Rows of two environments, the loss over networks for them, whose targets are others, and its parts."""
    overrides = [
        "env=custom",
        "env._target_=tests.fakes.envs.CountingTeam",
        "+env.short=4",
        "+env.long=4",
        *words,
    ]
    overrides += [f"+transforms.step_counter.max_steps={limit}"] if limit else []
    chosen = settings(f"algo={algo}", *overrides, "loss.value_estimator.gamma=0.5")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=0)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic")}
    loss = loss_of(chosen, specs.action_spec(env), **parts)
    for name, each in loss.named_buffers():
        if name.startswith("target_") and name.endswith(("weight", "bias")):
            each.data.normal_()
    with torch.no_grad():
        rows = env.rollout(4, parts["actor"], break_when_any_done=False).reshape(-1)
    rows["agents", "action"] = torch.rand_like(rows["agents", "action"]) * 2 - 1
    return fill_loss_keys(rows, loss.tensor_keys), loss, parts


PAID = torch.tensor([1.0, 2.0])[:, None]


@pytest.mark.parametrize("algo", ["maddpg", "independent_ddpg"])
@pytest.mark.parametrize(("limit", "bootstraps"), [(3, True), (None, False)])
def test_a_critic_of_actions_regresses_on_each_agent_s_own_rewards(algo, limit, bootstraps):
    rows, loss, parts = played(algo, limit)
    with torch.no_grad():
        after = rows["next"].clone()
        with loss.target_actor_network_params.to_module(parts["actor"]):
            parts["actor"](after)
        with loss.target_value_network_params.to_module(parts["critic"]):
            later = parts["critic"](after)["state_action_value"]
        runs = 1 - rows["next", "terminated"].float().unsqueeze(-1)
        assert bool(runs.all()) == bootstraps
        said = parts["critic"](rows.clone())["state_action_value"]
        expected = (said - PAID - 0.5 * runs * later).square().mean()
        own = parts["critic"](parts["actor"](rows.clone()))["state_action_value"]
    losses = loss(rows)
    torch.testing.assert_close(losses["loss_value"], expected)
    torch.testing.assert_close(losses["loss_actor"], -own.mean())


@pytest.mark.parametrize(("limit", "bootstraps"), [(3, True), (None, False)])
def test_soft_critics_regress_on_each_agent_s_own_rewards_and_entropy(limit, bootstraps):
    rows, loss, parts = played("masac", limit, "loss.module.alpha_init=0.5", "loss.module.loss_function=l2")

    def judged(parameters, at):  # [critics, rows, agents, 1]
        said = []
        for each in parameters.unbind(0):
            with each.to_module(parts["critic"]):
                said.append(parts["critic"](at.clone())["state_action_value"])
        return torch.stack(said)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        after, dist = rows["next"].clone(), parts["actor"].get_dist(rows["next"].clone())
        drawn = dist.rsample()  # the first that the loss draws
        after["agents", "action"] = drawn
        soft = judged(loss.target_qvalue_network_params, after) - 0.5 * dist.log_prob(drawn).unsqueeze(-1)
        runs = 1 - rows["next", "terminated"].float().unsqueeze(-1)
        assert bool(runs.all()) == bootstraps
        target = PAID + 0.5 * runs * soft.amin(0)
        expected = (judged(loss.qvalue_network_params, rows) - target).square().mean((1, 2, 3)).sum()
    torch.testing.assert_close(loss(rows)["loss_qvalue"].detach(), expected)


def test_the_entropy_aimed_at_is_that_of_one_agent_s_action():
    rows, loss, _ = played("masac", None, "loss.module.alpha_init=0.5")
    assert loss.target_entropy.item() == -1.0
    losses = loss(rows)
    assert losses["loss_qvalue"].shape == losses["loss_actor"].shape == ()
    expected = loss.log_alpha * (losses["entropy"] - loss.target_entropy)
    torch.testing.assert_close(losses["loss_alpha"], expected.detach(), check_stride=False)


class NaNEnv(CountingTeam):
    """The second agent of the third environment is paid what is no number in its second step."""

    def _step(self, tensordict):
        given = super()._step(tensordict)
        given["agents", "reward"][2, 1] *= torch.where(self.steps[2] == 2, float("nan"), 1.0)
        return given


def test_a_reward_that_is_no_number_is_told():
    env = envs.make_env(NaNEnv, [], num_envs=4, seed=0)
    actor = multi_agent.actor(env, **NETWORK, share_params=True)
    options = {"frames_per_batch": 16, "init_random_frames": 0, "num_envs": 4, "seed": 0, "device": "cpu"}
    collector = collectors.make_collector(env, None, actor, **options)
    with pytest.raises(DivergedError, match="reward of environment 2 is NaN") as told:
        list(islice(collector, 2))
    assert told.value.frames == 4


def test_an_entry_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(UserError, match=r"\('agents', 'lidar'\).*Entries are \('agents', 'observation'\)"):
        multi_agent.actor(team(), **NETWORK | {"in_keys": [("agents", "lidar")]}, share_params=True)


@pytest.mark.parametrize("name", ["ObservationNorm", "VecNormV2"])
def test_normalisers_read_nested_entries_as_yaml_says_them(name):
    choice = {"ObservationNorm": "normalized", "VecNormV2": "running_norm"}[name]
    overrides = [f"transforms={choice}", "transforms.normalize.in_keys=[[agents,observation]]"]
    chosen = settings("algo=mappo", "env=custom", "env._target_=tests.fakes.envs.CountingTeam", *overrides)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0)
    envs.init_normalizers(env, 400)
    steps = env.rollout(200, break_when_any_done=False)[OBSERVATION][..., 0]
    assert abs(steps.mean().item()) < 0.3
    assert 0.7 < steps.std().item() < 1.3
    start = env.reset()[OBSERVATION]
    known = envs.normalizer_state(env)
    other = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, normalizer=known)
    assert torch.equal(other.reset()[OBSERVATION][..., 0], start[:2, :, 0])
