import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type

from hydrl import envs
from hydrl.config import CONFIGS
from hydrl.envs import transforms as transforms_of_hydrl
from hydrl.errors import UserError
from hydrl.networks import actors, critics, heads, materialise
from hydrl.networks.layers import NoisyLinear
from tests.conftest import settings
from tests.fakes.envs import ACTIONS, CountingEnv

NETWORK = {"num_cells": [16, 8], "activation": "ELU", "in_keys": ["observation"]}
CONTINUOUS = {
    "tanh_normal": actors.tanh_normal,
    "independent": partial(actors.tanh_normal, scale="independent"),
}
DISCRETE = {
    "categorical": actors.categorical,
    "q_value": actors.q_value,
    "dueling": partial(actors.q_value, dueling=True),
}
RETURNS = {"v_min": -2.0, "v_max": 2.0, "atoms": 5}
DISCRETE["distributional"] = partial(actors.distributional, **RETURNS, dueling=False)
DISCRETE["dueling distributional"] = partial(actors.distributional, **RETURNS, dueling=True)
GREEDY = ["q_value", "dueling", "distributional", "dueling distributional"]
EVERY = [
    *[(name, "continuous") for name in (*CONTINUOUS, "stochastic")],
    *[(name, kind) for name in (*DISCRETE, "stochastic") for kind in ("one_hot", "integer")],
]


def toy(actions: str, num_envs: int = 1, **kwargs) -> TransformedEnv:
    torch.manual_seed(0)
    return envs.make_env(partial(CountingEnv, actions=actions, **kwargs), [], num_envs=num_envs, seed=0)


def build(name: str, env: TransformedEnv, **changes) -> nn.Module:
    builders: dict[str, Callable] = CONTINUOUS | DISCRETE | {"stochastic": actors.stochastic}
    return builders[name](env, **{**NETWORK, **changes})


def hidden(module: nn.Module) -> list[nn.Linear]:
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


def test_a_gaussian_policy_without_clipped_actions_warns(capsys):
    for transforms, warns in (([transforms_of_hydrl.action_clipping], False), ([], True)):
        env = envs.make_env(partial(CountingEnv, actions="continuous"), transforms, num_envs=1, seed=0)
        actors.gaussian(env, **NETWORK)
        assert ("nothing clips actions at the environment's bounds" in capsys.readouterr().err) is warns


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_actions_are_in_the_space_in_random_and_in_deterministic_mode(name, actions):
    env = toy(actions, num_envs=2)
    actor = build(name, env)
    check_env_specs(env)
    spec = env.action_spec_unbatched
    for mode in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(mode), torch.no_grad():
            rollout = env.rollout(20, actor, break_when_any_done=False)
        assert rollout["action"].shape == (2, 20, *spec.shape)
        assert spec.expand(2, 20, *spec.shape).is_in(rollout["action"])


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        *[(-half, half, "") for half in (0.02, 2.0, 200.0)],
        (1_000.0, 1_001.0, ""),
        (3_000.0, 3_001.0, "are 3,000 and 3,001, between which float32 has 4,096 values"),
        (100_000.0, 100_001.0, "are 100,000 and 100,001, between which float32 has 128 values"),
    ],
)
def test_bounds_between_which_float32_loses_the_probability_of_an_action_are_told(
    low, high, told, monkeypatch, capsys
):
    """An update's probability of a stored action is, before the first step, that of when it was drawn."""
    monkeypatch.setitem(ACTIONS, "continuous", lambda: Bounded(low, high, shape=(1,)))
    actor = build("independent", toy("continuous"), init="orthogonal", scale_init=0.6)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        stored = actor(TensorDict({"observation": torch.randn(20_000, 3)}, [20_000]))
        again = actor.get_dist(stored.select("observation")).log_prob(stored["action"])
    agree = ((again - stored["action_log_prob"]).expm1().abs() < 1e-3).double().mean()
    said = capsys.readouterr().err
    assert (agree < 0.99) == bool(told)
    assert told in said
    assert bool(said) == bool(told)


@pytest.mark.parametrize(("name", "actions"), [each for each in EVERY if each[0] not in GREEDY])
def test_the_log_probability_is_one_number_a_frame_and_that_of_the_action(name, actions):
    env = toy(actions, num_envs=2)
    actor = build(name, env)
    with torch.no_grad():
        rollout = env.rollout(10, actor, break_when_any_done=False)
        again = actor.get_dist(rollout).log_prob(rollout["action"])
    assert rollout["action_log_prob"].shape == (2, 10)
    assert torch.allclose(rollout["action_log_prob"], again, atol=1e-4)


@pytest.mark.parametrize("name", ["tanh_normal", "independent", "categorical", *GREEDY])
def test_deterministic_mode_gives_the_same_action_twice_and_random_mode_explores(name):
    env = toy("continuous" if name in CONTINUOUS else "one_hot")
    actor = build(name, env)
    state = env.reset().expand(50).contiguous()
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        actions = actor(state.clone())["action"]
    assert (actions == actions[0]).all()
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        explored = actor(state.clone())["action"]
    assert (explored != explored[0]).any() == (name not in GREEDY)


def test_a_logarithm_is_the_deviation_clamped_or_bounded():
    parameters = torch.tensor([[0.3, -0.1, 0.0, 30.0]])
    for bounded, deviations in ((False, [1.0, math.exp(2)]), (True, [math.exp(-4), math.exp(2)])):
        loc, scale = heads.LogStd(bounded=bounded)(parameters)
        torch.testing.assert_close(scale, torch.tensor([deviations]))
        torch.testing.assert_close(loc, parameters[:, :2])
    actor = build("tanh_normal", toy("continuous"), scale="bounded_log_std")
    assert [layer.bounded for layer in actor.modules() if isinstance(layer, heads.LogStd)] == [True]


def test_the_deterministic_tanh_normal_action_is_the_squashed_mean():
    env = toy("continuous")
    actor = build("tanh_normal", env)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        out = actor(env.reset())
    low, high = -2.0, 3.0
    expected = torch.tanh(out["loc"]) * (high - low) / 2 + (high + low) / 2
    assert torch.allclose(out["action"], expected, atol=1e-5)


def test_deterministic_categorical_takes_the_likeliest_action():
    env = toy("integer")
    actor = build("categorical", env)
    states = env.fake_tensordict().select("observation").expand(40).clone()
    states["observation"] = 20 * torch.randn(40, 3)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        out = actor(states)
    assert torch.equal(out["action"], out["logits"].argmax(-1))
    assert len(out["action"].unique()) > 1


def test_an_independent_scale_is_the_same_in_every_state_and_the_network_s_own_is_not():
    env = toy("continuous")
    states = env.fake_tensordict().select("observation").expand(40).clone()
    states["observation"] = torch.randn(40, 3)
    spread = {}
    for name in CONTINUOUS:
        with torch.no_grad():
            spread[name] = build(name, env)(states.clone())["scale"].std(0).item()
    assert spread["independent"] == 0
    assert spread["tanh_normal"] > 1e-3
    independent = build("independent", env)
    assert sum(p.numel() for p in independent.parameters()) == (3 * 16 + 16) + (16 * 8 + 8) + (8 + 1) + 1


@pytest.mark.parametrize("name", GREEDY)
def test_of_equal_values_one_action_is_taken(name):
    """TorchRL's one-hot action had a one for each, which no environment has, and learned from their sum."""
    env = toy("one_hot")
    actor = build(name, env)
    for parameter in actor.parameters():
        parameter.data.fill_(1)
    out = actor(env.reset())
    assert out["action"].tolist() == [1, 0, 0]
    if "distributional" not in name:
        assert out["chosen_action_value"] == out["action_value"][0]


@pytest.mark.parametrize("name", ["distributional", "dueling distributional"])
@pytest.mark.parametrize("actions", ["one_hot", "integer"])
def test_a_distributional_actor_takes_the_greatest_mean_return(name, actions):
    env = toy(actions)
    actor = build(name, env)
    states = env.fake_tensordict().select("observation").expand(40).clone()
    states["observation"] = 20 * torch.randn(40, 3)
    with torch.no_grad():
        out = actor(states)
    chances, action = out["action_value"].exp(), out["action"]
    assert chances.shape == (40, 5, 3)
    assert torch.allclose(chances.sum(1), torch.ones(40, 3))
    means = (chances * torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).unsqueeze(-1)).sum(1)
    assert torch.equal(action.argmax(-1) if actions == "one_hot" else action, means.argmax(-1))
    assert len(means.argmax(-1).unique()) > 1


def test_the_greatest_return_falls_on_the_last_atom():
    """As TorchRL's projection computes it: a float32 beyond is a row too far, or an IndexError."""
    for v_min, v_max in ((-10.0, 10.0), (-10.0, 200.0), (-0.1, 0.6), (-21.0, 0.2), (0.0, 1.0)):
        for atoms in range(2, 202):
            returns = heads.make_support(v_min, v_max, atoms)
            least, greatest = returns.min().item(), returns.max().item()
            assert (returns[-1] - least) / ((greatest - least) / (atoms - 1)) <= atoms - 1
            assert (least, greatest) == pytest.approx((v_min, v_max), rel=1e-5)
    assert torch.equal(heads.make_support(-10.0, 10.0, 51), torch.linspace(-10, 10, 51))


@pytest.mark.parametrize("name", GREEDY)
def test_a_noisy_actor_acts_differently_each_time_and_plays_by_its_mean_weights(name):
    env = toy("one_hot")
    actor = build(name, env, noisy=0.5)
    layers = hidden(actor)
    assert all(isinstance(each, NoisyLinear) for each in layers)
    assert layers[0].weight_sigma.unique().item() == pytest.approx(0.5 / 3**0.5)
    state = env.reset()
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        assert not torch.equal(actor(state.clone())["action_value"], actor(state.clone())["action_value"])
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        played = [actor(state.clone())["action_value"]]
        for each in layers:
            each.weight_sigma.data.zero_()
            each.bias_sigma.data.zero_()
        played.append(actor(state.clone())["action_value"])
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        played.append(actor(state.clone())["action_value"])
    assert torch.equal(played[0], played[1])
    assert torch.equal(played[0], played[2])


@pytest.mark.parametrize("name", ["q_value", "dueling"])
@pytest.mark.parametrize("actions", ["one_hot", "integer"])
def test_q_actors_take_the_greatest_value(name, actions):
    env = toy(actions)
    actor = build(name, env)
    states = env.fake_tensordict().select("observation").expand(40).clone()
    states["observation"] = 20 * torch.randn(40, 3)
    with torch.no_grad():
        out = actor(states)
    values, action = out["action_value"], out["action"]
    assert values.shape == (40, 3)
    assert torch.equal(action.argmax(-1) if actions == "one_hot" else action, values.argmax(-1))
    assert torch.equal(out["chosen_action_value"].squeeze(-1), values.max(-1).values)


def test_dueling_values_are_state_value_plus_centred_advantage():
    env = toy("one_hot")
    (net,) = build("dueling", env, num_cells=[16, 8])[0].module
    states = torch.randn(5, 3)
    with torch.no_grad():
        trunk = net.features(states)
        value, advantage = net.value(trunk), net.advantage(trunk)
        expected = value + advantage - advantage.mean(-1, keepdim=True)
        assert torch.allclose(net(states), expected, atol=1e-6)
    assert trunk.shape == (5, 16)
    assert advantage.shape == (5, 3)
    assert value.shape == (5, 1)


@pytest.mark.parametrize(("name", "actions"), EVERY)
def test_widths_and_activation_are_those_asked_for(name, actions):
    actor = build(name, toy(actions), num_cells=[16, 8], activation="ELU")
    assert hidden(actor)[0].in_features == 3
    assert {16, 8} <= {layer.out_features for layer in hidden(actor)}
    assert any(isinstance(each, nn.ELU) for each in actor.modules())
    assert not any(isinstance(each, nn.Tanh | nn.ReLU) for each in actor.modules())


@pytest.mark.parametrize("wrong", ["tanh", "Tan", "Linear", "Module", "MultiheadAttention"])
@pytest.mark.parametrize(
    "builder", [actors.stochastic, actors.q_value, critics.state_value, critics.action_value]
)
def test_an_unknown_activation_is_refused_before_anything_resets_the_environment(builder, wrong):
    env = toy("one_hot", resettable=False)
    with pytest.raises(UserError, match=f"activation={wrong}: .*Tanh, ReLU"):
        builder(env, **{**NETWORK, "activation": wrong})


def test_an_observation_entry_that_is_not_there_is_refused_before_the_reset():
    with pytest.raises(UserError, match=r"in_keys=\['pixels'\].*observation"):
        build("tanh_normal", toy("continuous", resettable=False), in_keys=["pixels"])


def test_dueling_needs_a_trunk_and_heads():
    with pytest.raises(UserError, match=r"num_cells=\[16\]"):
        build("dueling", toy("one_hot", resettable=False), num_cells=[16])


def test_no_config_states_the_size_of_an_observation_or_action():
    files = sorted((CONFIGS / "actor").glob("*.yaml")) + sorted((CONFIGS / "critic").glob("*.yaml"))
    assert len(files) >= 8
    for file in files:
        text = file.read_text()
        assert not any(word in text for word in ("in_features", "out_features", "_dim", "shape")), file


@pytest.mark.parametrize("task", ["half_cheetah", "cartpole"])
def test_the_configured_actor_fits_any_task(task):
    chosen = settings(f"env={task}", "algo=ppo", "actor.num_cells=[7]", "critic.num_cells=[5]")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=0)
    envs.init_normalizers(env, 32)
    actor, critic = chosen.build("actor")(env), chosen.build("critic")(env)
    observations = env.observation_spec["observation"].shape[-1]
    outputs = {"half_cheetah": 6, "cartpole": 2}[task]  # deviations are parameters of their own
    assert [(each.in_features, each.out_features) for each in hidden(actor)] == [
        (observations, 7),
        (7, outputs),
    ]
    assert [(each.in_features, each.out_features) for each in hidden(critic)] == [(observations, 5), (5, 1)]


@pytest.mark.parametrize("name", ["categorical", "tanh_normal", "independent"])
def test_an_orthogonal_network_begins_near_the_same_policy_for_all_observations(name):
    env = toy("one_hot" if name == "categorical" else "continuous")
    critic = critics.state_value(env, **NETWORK, init="orthogonal")
    gains = {"actor": (build(name, env, init="orthogonal"), 1e-4), "critic": (critic, 1.0)}
    for net, last in gains.values():
        *layers, output = hidden(net)
        for layer, square in (*[(each, 2.0) for each in layers], (output, last)):
            weight = layer.weight if layer.out_features <= layer.in_features else layer.weight.T
            assert (weight @ weight.T).allclose(square * torch.eye(len(weight)), atol=1e-5)
            assert not layer.bias.any()


@pytest.mark.parametrize("name", [*CONTINUOUS, "stochastic"])
def test_the_deviation_begins_where_it_is_told_to(name):
    env = toy("continuous", num_envs=2)
    actor = build(name, env, init="orthogonal", scale_init=0.6)
    assert actor(env.reset())["scale"].flatten().tolist() == pytest.approx([0.6, 0.6], abs=0.05)


def test_sizes_leave_no_trace_in_statistics_and_draw_nothing():
    env = toy("continuous", num_envs=2)

    def states(*between: nn.Module) -> list[torch.Tensor]:
        """Of the random number generator, after a critic of one's own was built."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyLinear(8), *between, nn.LazyLinear(1))
        materialise(TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"]), env)
        return torch.get_rng_state()

    norm = nn.BatchNorm1d(8)
    assert torch.equal(states(norm, nn.Dropout(0.5)), states())
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([0] * 8, [1] * 8)
    assert norm.num_batches_tracked == 0
