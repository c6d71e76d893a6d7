"""The value of what all agents do together, against the same by hand."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import StepCounter

from hydrl import envs, specs
from hydrl.errors import UserError
from hydrl.experience.multi_agent import fill_loss_keys
from hydrl.networks import mixers, multi_agent
from tests.conftest import SMALL, loss_of, settings
from tests.fakes.envs import CountingTeam
from tests.fakes.probe_envs import watch

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": [("agents", "observation")]}
CHOSEN = ("agents", "chosen_action_value")
GAMMA = 0.5
# A single update, of which nothing is clipped.
ONE_STEP = [
    "total_frames=128",
    "minibatches.warmup_frames=128",
    "target.tau=0.1",
    "optim.lr=1e-2",
    "schedule=null",
]


class Told(CountingTeam):
    """The same, which gives a state of two numbers as well."""

    def __init__(self, num_envs, **toy):
        super().__init__(num_envs, **toy)
        self.observation_spec["state"] = Unbounded((self.whole[0], 2))

    def make_result(self, action, **entries):
        state = torch.stack([self.steps, self.length], -1).float()
        return super().make_result(action, state=state, **entries)


def team(maker=CountingTeam, **toy):
    toy = {"actions": "integer", "agents": 3, **toy}
    return envs.make_env(partial(maker, **toy), [StepCounter], num_envs=4, seed=0)


def by_hand(net: nn.Module, chosen: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Rashid et al. 2018, their figure 2: two layers whose weights, made of the state, are not negative."""
    first = net.hyper_w_1(state).abs().unflatten(-1, (chosen.shape[-2], -1))
    hidden = nn.functional.elu((chosen * first).sum(-2) + net.hyper_b_1(state))
    return (hidden * net.hyper_w_final(state).abs()).sum(-1, keepdim=True) + net.V(state)


def test_vdn_is_the_sum_of_the_agents_values():
    mixed = mixers.vdn(env := team())
    rows = TensorDict({"agents": TensorDict({"chosen_action_value": torch.randn(4, 3, 1)}, [4, 3])}, [4])
    assert torch.equal(mixed(rows)["chosen_action_value"], rows[CHOSEN].sum(-2))
    assert list(mixed.parameters()) == []
    assert mixed.in_keys == [(env.action_key[0], "chosen_action_value")]


@pytest.mark.parametrize("state_cells", [None, [16], [32, 16]])
@pytest.mark.parametrize(("maker", "size"), [(CountingTeam, 9), (Told, 2)])
def test_qmix_rises_with_each_agent_s_value_by_weights_of_the_state(maker, size, state_cells):
    torch.manual_seed(0)
    env = team(maker)
    mixed = mixers.qmix(env, mixing_embed_dim=5, state_cells=state_cells)
    rows = multi_agent.q_value(env, **NETWORK, share_params=True)(env.rand_step(env.reset()))
    state = rows["state"] if maker is Told else rows["agents", "observation"].flatten(1)
    assert state.shape == (4, size)
    chosen = torch.randn(4, 3, 1, requires_grad=True)
    rows[CHOSEN] = chosen
    said = mixed(rows)["chosen_action_value"]
    read, layers = state, [each for each in mixed.module.reader or [] if isinstance(each, nn.Linear)]
    for layer in layers:
        read = torch.tanh(layer(read))
    assert [layer.out_features for layer in layers] == (state_cells or [])
    torch.testing.assert_close(said, by_hand(mixed.module.mixer, chosen, read))
    (slope,) = torch.autograd.grad(said.sum(), chosen)
    assert (slope > 0).all()
    rows["agents", "observation"] = rows["agents", "observation"] + 1
    assert torch.equal(mixed(rows)["chosen_action_value"], said) == (maker is Told)


def test_what_is_worth_more_to_an_agent_is_worth_as_much_to_all_at_the_start_in_a_large_state():
    """Linear in 54 numbers, the weights make it worth several times as much, and by chance."""
    torch.manual_seed(0)
    env = team(agents=18)
    chosen, seen = torch.randn(1_000, 18, 1, requires_grad=True), torch.randn(1_000, 18, 3)
    found, by_itself = (
        [],
        settings("algo=qmix", "env=custom", "env._target_=tests.fakes.envs.CountingTeam").mixer,
    )
    for state_cells in (by_itself["state_cells"], None):
        mixed = mixers.qmix(env, mixing_embed_dim=32, state_cells=state_cells).module
        (slope,) = torch.autograd.grad(mixed(chosen, seen).sum(), chosen)
        found.append((slope.mean().item(), mixed(torch.zeros(1_000, 18, 1), seen).std().item()))
    (slope, chance), (steep, noise) = found
    assert 0.4 < slope < 1.5
    assert chance < 0.5
    assert steep > 3 * slope
    assert noise > 3 * chance


def test_what_an_agent_is_worth_to_all_stays_within_bounds_however_far_a_state_lies():
    """By a layer of ReLU, which has none, it is 59 and 5,157 times as much as near."""
    torch.manual_seed(0)
    mixed = mixers.qmix(team(), mixing_embed_dim=32, state_cells=[64]).module
    chosen, seen = torch.randn(1_000, 3, 1, requires_grad=True), torch.randn(1_000, 3, 3)
    near, far, farther = (
        torch.autograd.grad(mixed(chosen, seen * times).sum(), chosen)[0].mean() for times in (1, 10, 100)
    )
    assert far < 4 * near
    assert farther < 1.2 * far


def test_a_state_that_is_not_there_is_told_with_what_is():
    with pytest.raises(UserError, match=r"in_keys=\['map'\].*Entries are .*'agents', 'observation'"):
        mixers.qmix(team(), mixing_embed_dim=5, in_keys=["map"])


@pytest.mark.parametrize("actions", ["integer", "one_hot"])
@pytest.mark.parametrize("algo", ["vdn", "qmix", "independent_q"])
@pytest.mark.parametrize(("limit", "bootstraps"), [(3, True), (None, False)])
def test_targets_are_of_all_agents_together_or_of_each_and_a_time_limit_bootstraps(
    algo, limit, bootstraps, actions
):
    task = [
        "env=custom",
        "env._target_=tests.fakes.envs.CountingTeam",
        "+env.short=4",
        "+env.long=4",
        f"+env.actions={actions}",
    ]
    task += [f"+transforms.step_counter.max_steps={limit}"] if limit else []
    numbers = [f"loss.value_estimator.gamma={GAMMA}", "loss.module.loss_function=l2"]
    chosen = settings(f"algo={algo}", *task, *numbers)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=0)
    actor = chosen.build("actor")(env)
    mixer = chosen.build("mixer")(env, actor)
    loss = loss_of(chosen, specs.action_spec(env), actor=actor, mixer=mixer)
    for name, each in loss.named_buffers():  # of the target networks, which are then others
        if name.startswith("target_"):
            each.data.normal_()
    with torch.no_grad():
        rows = env.rollout(4, actor, break_when_any_done=False).reshape(-1)
        ends = (limit or 4) - 1
        assert rows["next", "done"].reshape(2, 4)[:, ends].all()
        rows["agents", "action"] = env.rand_action(env.reset())["agents", "action"].repeat_interleave(4, 0)

        def values(of: str, at: TensorDict) -> torch.Tensor:  # [rows, agents, actions]
            network = "value_network" if algo == "independent_q" else "local_value_network"
            with getattr(loss, f"{of}{network}_params").to_module(getattr(loss, network)):
                return getattr(loss, network)(at.clone())["agents", "action_value"]

        def mixed(of: str, at: TensorDict, worth: torch.Tensor) -> torch.Tensor:
            if algo == "independent_q":
                return worth
            with getattr(loss, f"{of}mixer_network_params").to_module(loss.mixer_network):
                return loss.mixer_network(at.clone().set(CHOSEN, worth))["chosen_action_value"]

        def taken(said: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            index = action.argmax(-1) if actions == "one_hot" else action
            return said.gather(-1, index.unsqueeze(-1))

        said = mixed("", rows, taken(values("", rows), rows["agents", "action"]))
        after = rows["next"]
        best = values("", after).argmax(-1) if algo == "independent_q" else None  # double
        later = values("target_", after)
        greedy = later.argmax(-1) if best is None else best
        later = mixed("target_", after, later.gather(-1, greedy.unsqueeze(-1)))
        if algo == "vdn":
            torch.testing.assert_close(later, values("target_", after).amax(-1).sum(-1, keepdim=True))
        runs = 1 - after["terminated"].float()
        assert bool(runs.all()) == bootstraps
        paid = torch.tensor([1.0, 2.0])[:, None].expand(8, 2, 1)
        if algo == "independent_q":
            runs = runs.unsqueeze(-1)
        else:
            paid = paid.mean(-2)  # of the team
        expected = (said - paid - GAMMA * runs * later).square().mean()
    torch.testing.assert_close(loss(fill_loss_keys(rows, loss.tensor_keys))["loss"], expected)


def test_each_agent_s_end_is_that_of_all_and_their_reward_the_mean_of_their_own(capsys, monkeypatch):
    env = team(short=2, long=2)
    rows = env.rollout(4, break_when_any_done=False).reshape(-1)
    keys = type("Keys", (), {"done": ("agents", "done"), "terminated": ("agents", "terminated")})
    keys.reward, keys.action = "reward", ("agents", "action")
    read = fill_loss_keys(rows, keys)["next"]
    assert read["agents", "terminated"].shape == (16, 3, 1)
    assert torch.equal(read["agents", "terminated"].sum(-2), 3 * read["terminated"])
    assert read["terminated"].sum() == 8
    assert (read["reward"] == 2.0).all()  # of 1, 2 and 3
    assert read["reward"].shape == (16, 1)
    assert "have different rewards, whose mean is used" in capsys.readouterr().err


def test_each_agent_explores_by_itself():
    chosen = settings(
        "algo=qmix", "env=custom", "env._target_=tests.fakes.envs.CountingTeam", "+env.actions=integer"
    )
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=400, seed=0)
    actor = chosen.build("actor")(env)
    explore = specs.make_exploration(
        partial(chosen.build("exploration"), eps_init=0.6, eps_end=0.6), env, actor
    )
    torch.manual_seed(0)
    with torch.no_grad():
        greedy = actor(env.reset())
        acted = explore(greedy.clone())
    changed = (acted["agents", "action"] != greedy["agents", "action"]).float()
    share = 0.6 * 2 / 3  # one of three actions is the same
    assert abs(changed.mean() - share) < 0.05
    assert abs(changed.prod(-1).mean() - share**2) < 0.05


def test_the_targets_of_agents_and_mixer_follow_them(run, monkeypatch):
    seen = {}
    watch(monkeypatch, lambda loss, minibatch: seen.update(loss=loss))
    words = [
        "env=custom",
        "env._target_=tests.fakes.envs.CountingTeam",
        "+env.actions=integer",
        "mixer.mixing_embed_dim=4",
    ]
    run("algo=qmix", *words, *SMALL, "collector.num_envs=4", "minibatches.updates=1", *ONE_STEP)
    loss = seen["loss"]
    for name in ("local_value_network", "mixer_network"):
        online, target = getattr(loss, f"{name}_params"), getattr(loss, f"target_{name}_params")
        assert len(list(online.values(True, True))) >= 4
        for key, each in online.items(True, True):
            # One update moved it by the learning rate, Adam's first step, and the target by a tenth of that.
            behind = (each - target[key]).abs()
            assert behind.max().item() == pytest.approx(0.9 * 1e-2, rel=1e-3), key
