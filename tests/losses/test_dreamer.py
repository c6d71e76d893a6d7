"""DreamerV3's loss: each term beside plain tensors, where gradients go, and TorchRL's own imagination."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.model_based import DreamerEnv

from hydrl import envs, specs
from hydrl.experience.records import make_records
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


def test_percentiles_of_returns_divide_advantages_over_two_updates(monkeypatch):
    """The 5th and 95th percentiles of returns from 0 to 100 are 5 and 95; their averages begin at 0."""
    loss, actor, _, built_env = build("loss.module.return_rate=0.5", "loss.module.entropy_coeff=0.0")

    def known_returns(reward, *_):
        return torch.linspace(0, 100, reward.numel()).view_as(reward)

    monkeypatch.setattr(loss.actor_loss, "lambda_target", known_returns)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(loss(records_of(actor, built_env)))
    scales = [output["return_scale"].item() for output in outputs]
    assert scales == pytest.approx([0.5 * 90, 0.5 * 0.5 * 90 + 0.5 * 90])
    first, second = (output["loss_actor"].item() for output in outputs)
    assert first * 45 == pytest.approx(second * 67.5, rel=1e-4)  # the same imagination


def learn_model(loss, draw, updates: int, last_rate: float = 1.0) -> None:
    """Trains a world model on sequences that ``draw`` makes, down to a share of the learning rate."""
    with torch.no_grad():
        loss.model_loss.world_model.reward.model[-1].weight.zero_()
    optimizer = torch.optim.Adam(loss.model_loss.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, last_rate, updates)
    for _ in range(updates):
        outputs, _ = loss.model_loss(make_records(draw(), ["observation"]))
        optimizer.zero_grad()
        sum(output for name, output in outputs.items() if name.startswith("loss")).backward()
        optimizer.step()
        schedule.step()


def sequences(observation, action, reward, model, *, ends: bool) -> TensorDict:
    """Rows of the replay buffer from observations ``[batch, time + 1, 3]``; each step may end its episode."""
    batch, time, _ = action.shape
    done = torch.full((batch, time, 1), ends)
    is_init = done.clone()
    is_init[:, 0] = True
    following = {"observation": observation[:, 1:], "reward": reward, "done": done, "terminated": done}
    context = {"state": torch.zeros(batch, model.state_size), "belief": torch.zeros(batch, model.belief_size)}
    rows = {"observation": observation[:, :-1], "action": action, "is_init": is_init, "next": following}
    return TensorDict(rows | context, [batch])


LEARNING = {"deterministic": 32, "hidden": 32, "units": 32}


def test_a_deterministic_world_is_reconstructed_and_dreamed():
    """Two places, -1 and 1, and actions that go to the other or stay. The dream sees two steps of four."""
    loss, actor, *_ = build("loss.module.free_nats=0.0", classes=2, unimix=0, **LEARNING)
    model = actor.world_model

    def walk(batch: int = 32, time: int = 4) -> TensorDict:
        action = torch.randint(0, 2, (batch, time, 1)) * 2.0 - 1
        start = torch.randint(0, 2, (batch, 1, 1))
        moves = torch.cat([torch.zeros(batch, 1, 1), (action > 0).cumsum(1)], 1)
        observation = (((start + moves) % 2) * 2.0 - 1).expand(-1, -1, 3)
        return sequences(observation, action, torch.zeros_like(action), model, ends=False)

    torch.manual_seed(0)
    learn_model(loss, walk, 150, last_rate=0.05)
    truth, dream = actor.dream(
        walk(64).select("observation", "action").auto_batch_size_(2).transpose(0, 1), 2
    )
    error = (truth["observation"] - dream["observation"]).square().mean((1, 2))
    assert error.max() < 1e-2


def test_the_reward_of_one_step_episodes_depends_on_their_action():
    """As no model learns that reads rows as they are: their first action is set to zero."""
    loss, actor, *_ = build(**LEARNING)
    model = actor.world_model

    def pulls() -> TensorDict:
        action = torch.rand(16, 4, 1) * 2 - 1
        return sequences(torch.ones(16, 5, 3), action, 1 - (action - 0.5).abs(), model, ends=True)

    torch.manual_seed(0)
    learn_model(loss, pulls, 150)
    zeros = [torch.zeros(256, size) for size in (model.state_size, model.belief_size, 1)]
    with torch.no_grad():
        latent = model.update_latent(
            *zeros, model.encode(model.read_targets({"observation": torch.ones(256, 3)}))
        )
        left, right = (
            model.two_hot(model.reward(*model.prior(*latent, torch.full((256, 1), action))[1:])).mean().item()
            for action in (-1.0, 0.5)
        )
    assert left < 0.1  # -0.5 is right; 0.37 for every action is what the mean of all is
    assert right > 0.5  # 1 is right
