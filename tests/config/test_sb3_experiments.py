"""``experiment=sb3/…`` has Stable-Baselines3's defaults, by the file written from its signatures."""

import importlib

import pytest
import torch
import yaml
from tensordict import TensorDict
from torch import nn

from hydrl.envs import make_env
from tests.conftest import ROOT, composed, loss_of, settings

FILE = ROOT / "scripts" / "benchmark" / "sb3_defaults.yaml"
ENVS = {"ppo": "half_cheetah", "dqn": "cartpole", "sac": "pendulum"}
SHARED = {
    "learning_rate": "optim.lr",
    "batch_size": "minibatches.size",
    "gamma": "loss.value_estimator.gamma",
    "max_grad_norm": "max_grad_norm",
}
REPLAY = {
    "buffer_size": "buffer.storage.max_size",
    "learning_starts": "minibatches.warmup_frames",
    "train_freq": "collector.frames_per_batch",
    "gradient_steps": "minibatches.updates",
    "n_steps": "minibatches.n_steps",
}
KEYS = {
    "ppo": SHARED
    | {
        "n_steps": "collector.frames_per_batch",
        "n_epochs": "minibatches.epochs",
        "gae_lambda": "loss.value_estimator.lmbda",
        "clip_range": "loss.module.clip_epsilon",
        "normalize_advantage": "loss.module.normalize_advantage",
        "ent_coef": "loss.module.entropy_coeff",
        "vf_coef": "loss.module.critic_coeff",
        "target_kl": "target_kl",
    },
    "dqn": SHARED
    | REPLAY
    | {"exploration_initial_eps": "exploration.eps_init", "exploration_final_eps": "exploration.eps_end"},
    "sac": {name: key for name, key in SHARED.items() if name != "max_grad_norm"}
    | REPLAY
    | {"tau": "target.tau"},
}
# What its source has beside the signatures: layers, Adam's epsilon in actor-critic policies, one environment.
IN_THE_SOURCE = {
    "ppo": {
        "actor.num_cells": [64, 64], "critic.num_cells": [64, 64], "optim.eps": 1e-5, "collector.num_envs": 1,
        "actor.init": "orthogonal", "critic.init": "orthogonal", "loss.module.loss_critic_type": "l2",
        "minibatches.advantage": "once", "loss.value_estimator.average_gae": False, "schedule": None,
    },
    "dqn": {
        "actor.num_cells": [64, 64], "loss.module.loss_function": "smooth_l1",
        "loss.module.double_dqn": False, "optim.eps": 1e-8, "collector.num_envs": 1, "schedule": None,
    },
    "sac": {
        "actor.num_cells": [256, 256], "critic.num_cells": [256, 256], "actor.scale": "log_std",
        "loss.module.alpha_init": 1.0, "loss.module.num_qvalue_nets": 2, "optim.eps": 1e-8,
        "collector.num_envs": 1, "collector.init_random_frames": 100, "max_grad_norm": None, "schedule": None,
    },
}  # fmt: skip


def value(cfg, key: str):
    node = cfg
    for part in key.split("."):
        node = node[part]
    return node


@pytest.mark.parametrize("algo", KEYS)
def test_an_experiment_has_the_defaults_of_the_library(algo: str):
    table = yaml.safe_load(FILE.read_text())[algo]
    cfg = composed(f"experiment=sb3/{algo}", f"env={ENVS[algo]}", "total_frames=200_000")
    assert {name: value(cfg, key) for name, key in KEYS[algo].items()} == {
        name: table["algorithm"][name] for name in KEYS[algo]
    }
    assert {key: value(cfg, key) for key in IN_THE_SOURCE[algo]} == IN_THE_SOURCE[algo]
    assert cfg.actor.activation == table["policy"]["activation_fn"]
    if algo == "dqn":
        updates = table["algorithm"]["target_update_interval"] / table["algorithm"]["train_freq"]
        assert cfg.target.value_network_update_interval == updates
        assert cfg.exploration.annealing_num_steps == 200_000 * table["algorithm"]["exploration_fraction"]
    assert "normalize" not in cfg.transforms
    assert "reward_scaling" not in cfg.transforms


def test_the_file_is_what_the_installed_library_says(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("stable_baselines3", reason="needs pip install 'hydrl[bench]'")
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmark")
    assert importlib.import_module("sb3_defaults").defaults() == yaml.safe_load(FILE.read_text())


def copy_linear_weights(source, *targets) -> None:
    """Copies the linear layers of ``source``, in order, to those of the modules ``targets`` together."""
    layers = [layer for layer in source.modules() if isinstance(layer, nn.Linear)]
    others = [layer for target in targets for layer in target.modules() if isinstance(layer, nn.Linear)]
    for layer, other in zip(layers, others, strict=True):
        other.load_state_dict(layer.state_dict())


def test_the_policy_and_its_loss_are_those_of_the_library():
    """PPO's total loss and gradient norm over one minibatch, by both libraries' own networks."""
    sb3 = pytest.importorskip("stable_baselines3", reason="needs pip install 'hydrl[bench]'")
    chosen = settings("experiment=sb3/ppo", "env=pendulum")
    env = make_env(chosen.build("env"), chosen.transform_builders, seed=0)
    torch.manual_seed(0)
    actor = chosen.build("actor")(env)
    critic = chosen.build("critic")(env, actor)
    policy = sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu").policy
    copy_linear_weights(actor, policy.mlp_extractor.policy_net, policy.action_net)
    copy_linear_weights(critic, policy.mlp_extractor.value_net, policy.value_net)
    rows = 64
    observation, action = torch.randn(rows, 3), torch.randn(rows, 1) * 2
    advantage, returns, old = torch.randn(rows, 1), torch.randn(rows, 1), torch.randn(rows) * 0.1 - 1.5
    values, log_prob, entropy = policy.evaluate_actions(observation, action)
    ratio, standard = (log_prob - old).exp(), (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = torch.min(standard[:, 0] * ratio, standard[:, 0] * ratio.clamp(0.8, 1.2))
    theirs = -clipped.mean() + 0.5 * nn.functional.mse_loss(returns, values)
    loss = loss_of(chosen, env, actor=actor, critic=critic)
    batch = {"observation": observation, "action": action, "action_log_prob": old, "advantage": advantage}
    terms = loss(TensorDict({**batch, "value_target": returns}, [rows]))
    ours = sum(term for name, term in terms.items() if name.startswith("loss_"))
    torch.testing.assert_close(terms["entropy"], entropy.mean())
    torch.testing.assert_close(ours, theirs)
    gradients = []
    for total, parameters in ((ours, loss.parameters()), (theirs, policy.parameters())):
        used = [each for each in parameters if each.requires_grad]
        gradient = torch.autograd.grad(total, used, allow_unused=True)
        gradients.append(nn.utils.get_total_norm([each for each in gradient if each is not None]))
    torch.testing.assert_close(*gradients)
