from contextlib import nullcontext
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import OneHot
from torchrl.modules import DistributionalQValueActor
from torchrl.objectives import ClipPPOLoss

from hydrl import envs
from hydrl.errors import UserError
from hydrl.losses.build import make_loss, parameter_groups
from hydrl.networks import heads
from hydrl.training.update import train_mode
from tests.conftest import loss_of, settings


def built(*overrides: str):
    """The configured loss over the configured networks of a small Pendulum."""
    chosen = settings("~tuned", "actor.num_cells=[8]", "critic.num_cells=[8]", *overrides)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, seed=0)
    envs.init_normalizers(env, 100)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic", "value")}
    return chosen, env, parts, loss_of(chosen, env, **parts)


def test_each_part_goes_into_the_argument_it_is_named_for():
    _, _, parts, loss = built("algo=iql", "env=pendulum", "data.path=none", "value.num_cells=[5]")
    assert loss.actor_network is parts["actor"]
    assert loss.qvalue_network is parts["critic"]
    assert loss.value_network is parts["value"]
    shapes = [each.shape for each in loss.value_network_params.values(True, True)]
    assert torch.Size([5, 3]) in shapes


def test_the_action_spec_is_filled_in_where_the_loss_asks_for_it():
    _, env, _, loss = built("algo=td3", "env=pendulum")
    assert loss.max_action.item() == env.action_spec.space.high.item() == 1.0  # of scaled actions
    spec = OneHot(3)

    def takes(actor_network, *, action_space, num_actions):
        return actor_network, action_space, num_actions

    asked = make_loss(takes, {"actor": "an actor"}, spec, {"actor_network": "actor"}, {}, None)
    assert asked == ("an actor", spec, 3)


# Whose loss, whose actor, what is written instead of what they write, and the answer, if any.
LACKING = [
    (
        "dqn env=cartpole",
        "ppo",
        {},
        "DQNLoss reads action_value, chosen_action_value. Make it a .*QValueAct",
    ),
    (
        "rainbow env=cartpole",
        "ppo",
        {},
        "Loss reads action_value. Make it a .*DistributionalQValueActor",
    ),
    ("rainbow env=cartpole", "dqn", {}, "no support of returns. Use a .*DistributionalQValueActor"),
    ("ppo env=cartpole", "dqn", {}, "actor: it writes action, .*, but ClipPPOLoss reads a distribution"),
    ("sac env=pendulum", "td3", {}, "actor: it writes param, action, but SACLoss reads a distribution"),
    ("ppo env=cartpole", "ppo", {"actor": ["action"]}, "reads action_log_prob. .* with return_log_prob=True"),
    ("impala env=cartpole", "ppo", {"actor": ["action"]}, "A2CLoss reads action_log_prob"),
    ("a2c env=cartpole", "ppo", {"actor": ["action"]}, None),
    ("td3 env=pendulum", "sac", {}, None),
    (
        "ppo env=cartpole",
        "ppo",
        {"critic": ["worth"]},
        "critic: it writes worth, .* reads state_value.*ValueOperator",
    ),
    ("sac env=pendulum", "sac", {"critic": ["worth"]}, "SACLoss reads state_action_value"),
]


@pytest.mark.parametrize(("loss", "actor", "written", "told"), LACKING)
def test_a_network_that_lacks_what_the_loss_reads_is_refused(loss, actor, written, told):
    chosen, other = (settings("~tuned", *f"algo={loss} {each}".split()) for each in ("", f"algo={actor}"))
    env = envs.make_env(chosen.build("env"), [], seed=0)
    parts = {"actor": other.build("actor")(env)}
    parts["critic"] = chosen.build("critic")(env, parts["actor"])
    for part, keys in written.items():
        parts[part].out_keys = keys
    with pytest.raises(UserError, match=told) if told else nullcontext():
        assert loss_of(chosen, env, **parts).out_keys


def test_keys_reach_the_loss_and_its_value_estimator():
    keys = {"reward": ["agents", "reward"], "value": "worth"}
    chosen, env, parts, _ = built("algo=ppo", "env=pendulum")
    parts["critic"].out_keys = ["worth"]
    loss = make_loss(
        partial(ClipPPOLoss, functional=False),
        parts,
        env.action_spec,
        chosen.loss.networks,
        keys,
        {"gamma": 0.9, "lmbda": 0.9},
    )
    assert loss.tensor_keys.reward == ("agents", "reward")
    assert loss.value_estimator.tensor_keys.reward == ("agents", "reward")
    assert loss.value_estimator.tensor_keys.value == "worth"


def test_a_group_of_parameters_has_options_of_its_own_and_the_rest_the_optimizer_s():
    chosen, _, _, loss = built("algo=sac", "env=pendulum", "optim.lr=1e-2")
    optimizer = chosen.build("optim")(
        parameter_groups(loss, {"log_alpha": {"lr": 1e-4}, "actor": {"lr": 1e-3}})
    )
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    named = dict(loss.named_parameters())
    assert len(rates) == len(named)
    assert rates[id(named["log_alpha"])] == 1e-4
    assert {rates[id(each)] for name, each in named.items() if name.startswith("actor")} == {1e-3}
    assert {rates[id(each)] for name, each in named.items() if name.startswith("qvalue")} == {1e-2}
    assert parameter_groups(loss, {}) == list(loss.parameters())


def test_a_group_without_a_parameter_is_refused_and_those_there_are_are_named():
    loss = built("algo=sac", "env=pendulum")[-1]
    with pytest.raises(UserError, match="actor_network or log_alpha or qvalue_network"):
        parameter_groups(loss, {"mixer": {"lr": 1e-4}})


def c51(v_min: float = 0.0, v_max: float = 2.0, atoms: int = 3, gamma: float = 0.5):
    """The configured loss on one observation, 1, of which the networks say what their weights are."""
    chosen = settings(
        *("algo=dqn", "env=cartpole", "loss=c51", "actor=distributional"),
        f"loss.value_estimator.gamma={gamma}",
    )
    net = nn.Sequential(nn.Linear(1, 2 * atoms, bias=False), nn.Unflatten(-1, (atoms, 2)))
    spec = OneHot(2)
    actor = DistributionalQValueActor(net, heads.make_support(v_min, v_max, atoms), spec=spec)
    return loss_of(chosen, spec, actor=actor)


def test_c51_takes_nothing_of_a_value_estimator_but_its_discount():
    loss = c51(gamma=0.75)
    assert loss.gamma.item() == loss.value_estimator.gamma.item() == 0.75
    with pytest.raises(UserError, match=r"loss\.value_estimator\.average_rewards: C51 takes gamma alone"):
        loss.make_value_estimator(gamma=0.9, average_rewards=True)


def after(reward: float, *, terminated: bool, steps: int | None, rows: int = 2) -> TensorDict:
    """Transitions that are done, and bootstrap where they have not terminated."""
    done, one = torch.ones(rows, 1, dtype=torch.bool), torch.ones(rows, 1)
    following = {
        "observation": one,
        "reward": reward * one,
        "done": done,
        "terminated": done & torch.tensor(terminated),
    }
    given = {"observation": one, "action": torch.tensor([[0, 1]]).expand(rows, 2), "next": following}
    return TensorDict(given | ({"steps_to_next_obs": torch.full((rows,), steps)} if steps else {}), [rows])


@pytest.mark.parametrize(
    ("reward", "terminated", "steps", "target"),
    [
        (0.5, False, None, [0.1, 0.65, 0.25]),  # the returns 0, 1, 2 become 0.5, 1, 1.5
        (0.5, False, 1, [0.1, 0.65, 0.25]),
        (0.5, False, 2, [0.175, 0.825, 0.0]),  # 0.5, 0.75, 1
        (0.5, True, 2, [0.5, 0.5, 0.0]),
        (1.5, False, None, [0.0, 0.1, 0.9]),  # 1.5, 2, 2
        (-9.0, False, None, [1.0, 0.0, 0.0]),
    ],
)
def test_c51_learns_the_projected_target_of_the_online_network_s_action(reward, terminated, steps, target):
    loss = c51()
    said = torch.tensor([[0.5, 0.2], [0.4, 0.3], [0.1, 0.5]])  # action 1 has the greater mean
    elsewhere = torch.tensor([[0.0, 0.2], [0.0, 0.3], [1.0, 0.5]])  # where it has the lesser
    for parameters, table in (("value_network_params", said), ("target_value_network_params", elsewhere)):
        for weight in (each for each in getattr(loss, parameters).values(True, True) if each.ndim == 2):
            weight.data.copy_(table.clamp(1e-30).log().reshape(-1, 1))
    minibatch = after(reward, terminated=terminated, steps=steps)
    expected = -(torch.tensor(target) * said[:, 1].log()).sum().item()
    assert loss(minibatch)["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert minibatch["td_error"].tolist() == [[pytest.approx(expected, rel=1e-5)]] * 2


def test_a_c51_target_beyond_its_range_stays_in_its_row():
    """With TorchRL's even support of these it is an IndexError."""
    loss = c51(-10.0, 200.0, 51)
    losses = loss(after(1e3, terminated=False, steps=None, rows=3))
    said = loss.value_network_params["module", "0", "module", "0", "weight"].reshape(51, 2).log_softmax(0)
    assert losses["loss"].item() == pytest.approx(-said[-1, 1].item(), rel=1e-5)


@pytest.mark.parametrize("words", [(), ("actor=dueling",), ("actor=distributional", "loss=c51")])
def test_an_update_learns_how_much_noise_there_is_and_values_and_target_have_their_own(words):
    """TorchRL's loss has no noise; what it was told to draw anew stayed in the network it had copied."""
    chosen = settings("algo=dqn", "env=cartpole", *words, "layers@actor=noisy", "actor.num_cells=[8,8]")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0)
    actor = chosen.build("actor")(env)
    loss, batch = loss_of(chosen, env, actor=actor), env.rollout(8, break_when_any_done=False).reshape(-1)
    params = [each for name, each in loss.named_parameters() if "sigma" in name]
    assert params
    with train_mode([actor]):
        drawn = torch.stack([loss(batch.clone())["loss"] for _ in range(3)])
        gradients = torch.autograd.grad(drawn[0], params)
        assert len(drawn.unique()) == 3
        assert all(each.any() for each in gradients)
        for name, each in loss.named_parameters():  # the target alone has noise
            each.data.mul_("sigma" not in name)
        batch["next", "terminated"][:] = False
        assert len({loss(batch.clone())["loss"].item() for _ in range(3)}) == 3
    assert len({loss(batch.clone())["loss"].item() for _ in range(3)}) == 1
