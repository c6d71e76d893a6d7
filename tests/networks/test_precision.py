"""``precision=bf16``: what computes in bfloat16, what does not, and that nothing else changes."""

import json
from contextlib import closing

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.config.auto_values import has_bf16
from hydrl.deploy.load import open_run
from hydrl.deploy.policy import open_policy
from hydrl.errors import UserError
from hydrl.networks.build import initial_observation
from hydrl.networks.precision import InBfloat16, OutputLinear, in_float32, use_bf16
from hydrl.run.checkpoint.resume import check_same
from hydrl.training.evaluator import SeedStream
from hydrl.training.update import make_gradients
from tests.conftest import (
    SMALL_PPO,
    logged,
    loss_of,
    saved,
    settings,
    whole_and_resumed,
)

BF16 = "precision=bf16"


def built(*words, precision="bf16"):
    """Settings, environment, actor and critic, with the same weights in both precisions."""
    chosen = settings("~tuned", f"precision={precision}", *words)
    torch.manual_seed(0)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=8, seed=0)
    envs.init_normalizers(env, 200)
    actor = chosen.build("actor")(env)
    return chosen, env, actor, chosen.build("critic")(env, actor)


def dtypes_of_layers(network, tensordict):
    """The dtypes that linear and convolutional layers return."""
    found, handles = [], []
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            handles.append(layer.register_forward_hook(lambda *call: found.append(call[-1].dtype)))
    network(tensordict)
    for handle in handles:
        handle.remove()
    return found


PIXELS = ["env=gym", "env.id=tests.fakes.pixel_envs:Dot-v0", "encoder.features=8"]


@pytest.mark.parametrize(
    ("words", "hidden"), [(["env=hopper"], 2), (["env=cartpole"], 2), (PIXELS, 4)], ids=str
)
def test_hidden_layers_are_bfloat16_and_weights_and_outputs_float32(words, hidden):
    _, env, actor, critic = built(*words)
    observed = env.reset()
    for network in (actor, critic):
        dtypes = dtypes_of_layers(network, observed.clone())
        assert dtypes == [torch.bfloat16] * (len(dtypes) - 1) + [torch.float32]
        assert len(dtypes) == hidden + 1
        assert {each.dtype for each in network.parameters()} == {torch.float32}
        outputs = network(observed.clone()).select(*network.out_keys)
        assert torch.bfloat16 not in {each.dtype for each in outputs.values(True, True)}


def test_weights_have_the_names_shapes_and_values_of_float32():
    *_, actor, critic = built("env=hopper")
    *_, plain_actor, plain_critic = built("env=hopper", precision="float32")
    for network, plain in ((actor, plain_actor), (critic, plain_critic)):
        state, expected = network.state_dict(), plain.state_dict()
        assert [*state] == [*expected]
        assert all(torch.equal(state[key], expected[key]) for key in expected)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "words",
    [["env=half_cheetah"], ["env=half_cheetah", "actor.num_cells=[512,512]"], ["env=cartpole"], PIXELS],
    ids=str,
)
def test_the_ratio_of_a_first_minibatch_is_nearly_one(words, compile):
    """An action's probability while acting and in the loss, of a policy that is far from its initial one."""
    chosen, env, actor, critic = built("algo=ppo", *words)
    loss = loss_of(chosen, env, actor=actor, critic=critic)
    with torch.no_grad():
        for layer in actor.modules():
            if isinstance(layer, OutputLinear):
                layer.weight.mul_(100)  # initially a hundredth, for all actions to be as likely
        with set_exploration_type(ExplorationType.RANDOM):
            batch = env.rollout(64, actor, break_when_any_done=False)
        minibatch = batch.reshape(-1)[torch.randperm(512)[:128]]
        get_dist = torch.compile(actor.get_dist) if compile else actor.get_dist
        log_prob = get_dist(minibatch.clone()).log_prob(minibatch["action"])
        ratio = (log_prob - minibatch["action_log_prob"]).exp()
    assert loss.tensor_keys.sample_log_prob == "action_log_prob"
    assert (ratio - 1).abs().max() < 0.02


@pytest.mark.parametrize("layers", ["mlp", "layer_norm"])
def test_a_loss_of_several_critics_has_nearly_the_gradient_of_float32(layers):
    gradients, losses = [], []
    for precision in ("float32", "bf16"):
        words = ["algo=sac", "env=pendulum", f"layers@critic={layers}", "critic.num_cells=[64,64]"]
        chosen, env, actor, critic = built(*words, precision=precision)
        loss = loss_of(chosen, env, actor=actor, critic=critic)
        batch = env.rollout(16, break_when_any_done=False).reshape(-1)
        torch.manual_seed(1)
        parameters = list(loss.parameters())
        losses.append(make_gradients(loss, parameters, None)(batch, ()))
        found = [each.grad for each in parameters if each.grad is not None]
        assert {each.dtype for each in found} == {torch.float32}
        gradients.append(torch.cat([each.flatten() for each in found]))
    assert nn.functional.cosine_similarity(*gradients, 0) > 0.999
    for key, value in losses[0].items():
        assert losses[1][key].dtype == torch.float32
        assert losses[1][key] == pytest.approx(value.item(), rel=0.02, abs=0.02)
    assert not torch.equal(*gradients)


def test_a_recurrent_layer_stays_float32():
    _, env, actor, _ = built("algo=recurrent_ppo", "env=cartpole")
    observed = initial_observation(env)
    state, logits = map(actor(observed.clone()).get, [("next", "recurrent_state_h"), "logits"])
    with in_float32(actor):
        plain = actor(observed.clone())
    assert torch.equal(plain["next", "recurrent_state_h"], state)
    assert not torch.equal(plain["logits"], logits)


def test_a_resumed_run_equals_the_unbroken_one(run, batches, tmp_path):
    words = [*SMALL_PPO, "env=cartpole", "+env.max_episode_steps=40", BF16]
    whole, halves = whole_and_resumed(run, words, batches, tmp_path)
    assert logged(halves) == logged(whole)
    with pytest.raises(UserError, match="precision=float32: the run was started with precision=bf16"):
        run(*words[:-1], "resume=auto", folder="halves")
    _, frames, evaluator = open_run(whole, checkpoint="last", device="cpu", trust=False)
    with closing(evaluator):
        played = evaluator(frames, 2, SeedStream.FINAL)
    assert played.mean == json.loads((whole / "summary.json").read_text())["eval/return_mean"]


@pytest.mark.parametrize(("first", "second"), [("float32", "bf16"), ("bf16", "float32")])
def test_a_run_goes_on_from_a_checkpoint_of_the_other_precision(run, first, second, tmp_path, capsys):
    words = [*SMALL_PPO, "env=cartpole", "+env.max_episode_steps=40"]
    began = run(*words, f"precision={first}", folder="began")
    warm = run(
        *words,
        f"precision={second}",
        f"init_from.run={began}",
        "init_from.checkpoint=last",
        "optim.lr=1e-9",
        folder="warm",
    )
    for key, weight in saved(began, "actor").items():
        torch.testing.assert_close(saved(warm, "actor")[key], weight, atol=1e-5, rtol=0)
    fork = run(*words, f"precision={second}", "total_frames=320", f"resume={began}", folder="fork")
    assert f"precision={second} (was {first})" in capsys.readouterr().out.replace("\n", " ")
    assert json.loads((fork / "summary.json").read_text())["frames"] == 320


def test_a_run_of_before_there_was_a_choice_was_float32(run, tmp_path):
    """As the saved configuration of such a run has no ``precision``."""
    words = [*SMALL_PPO, "env=cartpole", "+env.max_episode_steps=40"]
    chosen = settings(*words)
    then = {key: value for key, value in chosen.shown.items() if key != "precision"}
    assert check_same(chosen.shown, then, chosen.keep_auto_values) == {}
    with pytest.raises(UserError, match="precision=bf16: the run was started with precision=float32"):
        check_same(settings(*words, BF16).shown, then, chosen.keep_auto_values)


def test_an_exported_policy_is_float32(run, tmp_path):
    folder = run(*SMALL_PPO, "env=cartpole", "+env.max_episode_steps=40", BF16)
    policy = open_policy(folder, "last", "cpu", trust=False)
    path = policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(path)
    assert "bfloat16" not in str(program.graph)
    assert "autocast" not in str(program.graph)
    assert [module for module in policy.actor.modules() if isinstance(module, InBfloat16)]  # as before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("precision=fp16", "precision=fp16: should be float32 or bf16."),
        ("precision=16", "precision=16: should be float32 or bf16."),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(words, message):
    with pytest.raises(UserError) as refused:
        settings(*words.split())
    assert str(refused.value) == message


def test_an_own_network_is_converted_or_refused():
    own = TensorDictModule(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), ["a"], ["b"])
    assert isinstance(use_bf16("actor", own), InBfloat16)

    class Policy(nn.Module):
        in_keys, out_keys = ("observation",), ("action",)

    with pytest.raises(UserError, match=r"^precision=bf16: the actor, a Policy, has no TensorDictModule"):
        use_bf16("actor", Policy())


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16", True),
        ("flags\t\t: fpu amx_tile amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2", False),
        ("model name: none", True),
    ],
)
def test_a_cpu_without_bfloat16_is_found_by_its_flags(flags, answer, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert has_bf16(str(tmp_path / "cpuinfo")) is answer
    assert has_bf16(str(tmp_path / "none"))


def test_a_cpu_without_bfloat16_is_logged(monkeypatch):
    line = "precision=bf16: this CPU has neither amx_bf16 nor avx512_bf16"
    monkeypatch.setattr("hydrl.config.auto_values.has_bf16", lambda: False)
    assert any(each.startswith(line) for each in settings("env=cartpole", BF16, "device=cpu").chosen)
    assert line not in str(settings("env=cartpole", "device=cpu").chosen)
    monkeypatch.setattr("hydrl.config.auto_values.has_bf16", lambda: True)
    assert line not in str(settings("env=cartpole", BF16, "device=cpu").chosen)
