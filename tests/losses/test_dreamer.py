"""DreamerV3's loss: each term beside plain tensors, where gradients go, and TorchRL's own imagination."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.model_based import DreamerEnv

from hydrl import envs, specs
from hydrl.losses.build import make_loss
from hydrl.losses.dreamer import ImaginationEnv, slow_critic
from tests.conftest import settings
from tests.fakes.dreamer_twin import terms

SIZES = {
    "deterministic": 16,
    "hidden": 8,
    "categoricals": 3,
    "classes": 4,
    "units": 8,
    "blocks": 4,
    "bins": 31,
}


def build(*words: str, env: str = "pendulum", **sizes: int):
    """The loss, the actor and the critic of an algorithm of small networks."""
    torch.manual_seed(0)
    sizes = {f"world_model.{key}": value for key, value in (SIZES | sizes).items()}
    options = {**sizes, "actor.layers": 1, "critic.layers": 1, "world_model.layers": 1}
    chosen = settings(
        "algo=dreamer_v3", f"env={env}", *(f"{key}={value}" for key, value in options.items()), *words
    )
    built_env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    actor = chosen.build("actor")(built_env)
    networks = {"actor": actor}
    networks |= {name: chosen.build(name)(built_env, actor) for name in ("critic", "world_model")}
    action_spec = specs.action_spec(built_env)
    loss = make_loss(chosen.build("loss"), networks, action_spec, chosen.loss.networks, {}, None)
    with torch.no_grad():  # heads begin at zero, which hides mistakes
        for parameter in loss.parameters():
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(0, 0.1)
    return loss, actor, networks["critic"], built_env


def records_of(actor, env, batch: int = 4, time: int = 6) -> TensorDict:
    """Random records with episodes that terminate and are truncated."""
    torch.manual_seed(1)
    model, flags = actor.world_model, (batch, time, 1)
    done = torch.rand(flags) < 0.4
    terminated, is_init = done & (torch.rand(flags) < 0.5), torch.zeros(flags, dtype=torch.bool)
    is_init[:, 1:] = done[:, :-1]
    assert terminated.any()
    assert (done & ~terminated)[:, :-1].any()
    action = env.action_spec_unbatched.rand((batch, time)).float()
    size = env.observation_spec_unbatched["observation"].shape[-1]
    following = {"observation": torch.randn(batch, time, size), "reward": 3 * torch.randn(flags)}
    return TensorDict(
        {
            "state": torch.zeros(batch, time, model.state_size),
            "belief": torch.randn(batch, time, model.belief_size),
            "action": action,
            "is_init": is_init,
            "next": {**following, "done": done, "terminated": terminated},
        },
        [batch, time],
    )


@pytest.mark.parametrize("env", ["pendulum", "cartpole"])
def test_every_term_and_its_gradient_equal_plain_tensors(env, monkeypatch):
    loss, actor, critic, built_env = build("loss.module.imagination=5", env=env, classes=1)
    with torch.no_grad():  # a slow critic that differs
        for parameter in loss.value_loss.target_value_model_params.values(True, True):
            parameter.add_(0.05 * torch.randn_like(parameter))
    value = critic[0].module
    slow = copy.deepcopy(value)
    loss.value_loss.target_value_model_params.data["module", "0", "module"].to_module(slow)
    imagined: list[torch.Tensor] = []
    rollout = ImaginationEnv.rollout

    def remember(self, *args, **kwargs):
        steps = rollout(self, *args, **kwargs)
        imagined.append(steps["action"])
        return steps

    monkeypatch.setattr(ImaginationEnv, "rollout", remember)
    records = records_of(actor, built_env)
    outputs = loss(records.clone())
    expected = terms(
        actor.world_model, value, slow, actor.policy[0].module, records, imagined[0],
        horizon=loss.continuation_horizon, entropy=3e-4, discrete=env == "cartpole",
    )  # fmt: skip
    parameters = list(loss.parameters())
    for name, term in expected.items():
        assert outputs[name].item() == pytest.approx(term.item(), rel=1e-5, abs=1e-6), name
        pairs = zip(
            torch.autograd.grad(outputs[name], parameters, retain_graph=True, allow_unused=True),
            torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True),
            strict=True,
        )
        for gradient, expected_gradient in pairs:
            assert (gradient is None) == (expected_gradient is None) or not (
                expected_gradient if gradient is None else gradient
            ).any()
            if gradient is not None and expected_gradient is not None:
                torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert {name for name in outputs.keys() if name.startswith("loss")} == {*expected}  # noqa: SIM118


def test_each_term_moves_its_own_networks():
    loss, actor, _, built_env = build()
    losses = loss(records_of(actor, built_env))
    named = dict(loss.named_parameters())

    def moved(term: str) -> set[str]:
        gradients = torch.autograd.grad(
            losses[term], list(named.values()), retain_graph=True, allow_unused=True
        )
        names = (name for name, gradient in zip(named, gradients, strict=True) if gradient is not None)
        return {".".join(name.split(".")[:3]) for name in names}

    policy, model = "actor_loss.actor_model.module", "model_loss.world_model"
    assert moved("loss_actor") == {policy}
    assert moved("loss_value") == {"value_loss.value_model_params.module"}
    assert moved("loss_model_dynamic") == {f"{model}.vector_encoder", f"{model}.rollout"}
    assert moved("loss_model_reward") == {
        f"{model}.{name}" for name in ("vector_encoder", "rollout", "reward")
    }
    assert moved("loss_replay_value") == {
        "value_loss.value_model_params.module", f"{model}.vector_encoder", f"{model}.rollout",
    }  # fmt: skip


@pytest.mark.parametrize("env", ["pendulum", "cartpole"])
def test_imagination_equals_torchrls_rollout_to_the_bit(env, monkeypatch):
    loss, actor, _, built_env = build("loss.module.imagination=4", env=env)
    records = records_of(actor, built_env)
    torch.manual_seed(2)
    plain = loss(records.clone())
    for name in ("rollout", "reset"):
        monkeypatch.setattr(ImaginationEnv, name, getattr(DreamerEnv, name))
    loss.actor_loss.retnorm.low.zero_(), loss.actor_loss.retnorm.high.zero_()
    torch.manual_seed(2)
    torchrls = loss(records.clone())
    for name, term in plain.items():
        assert torch.equal(term, torchrls[name]), name


def test_the_slow_critic_follows_and_percentiles_move():
    loss, actor, _, built_env = build()
    target = slow_critic(loss, tau=0.5)
    fast, slow = loss.value_loss.value_model_params, loss.value_loss.target_value_model_params
    before = slow.flatten_keys()["module.0.module.model.0.weight"].clone()
    with torch.no_grad():
        fast.flatten_keys()["module.0.module.model.0.weight"].add_(1.0)
    target.step()
    assert torch.allclose(slow.flatten_keys()["module.0.module.model.0.weight"], before + 0.5)
    loss(records_of(actor, built_env))
    assert loss.actor_loss.retnorm.high.item() != 0
