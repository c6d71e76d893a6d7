"""Hidden layers of SimBa, SimbaV2, XQC and FlashSAC by their papers' equations, and how weights start."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from hydrl import envs, specs
from hydrl.errors import UserError
from hydrl.losses.build import make_loss, parameter_groups
from hydrl.networks import blocks
from hydrl.networks.blocks import BatchNorm, BlockLayers, RunningNorm, UnitBatchNorm, UnitLinear
from hydrl.training.update import keep_norms, train_mode
from tests.conftest import loss_of, settings


def randomise(module: nn.Module) -> nn.Module:
    """Draws weights and statistics so that no term of an equation vanishes; rows of unit layers stay so."""
    torch.manual_seed(0)
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if not name.endswith(("unit_weight", "count")):
            value.data.uniform_(0.5, 1.5)
    return module


def test_running_statistics_are_those_of_all_rows_and_leave_actions_alone():
    torch.manual_seed(0)
    norm, rows = RunningNorm(2), 3 + 2 * torch.randn(30, 3)
    for part in rows.split([4, 1, 25]):
        norm(part)
    torch.testing.assert_close(norm.mean, rows[:, :2].mean(0))
    torch.testing.assert_close(norm.variance, rows[:, :2].var(0, unbiased=False))
    norm.eval()
    standardised = norm(rows)
    torch.testing.assert_close(standardised[:, :2].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    assert torch.equal(standardised[:, 2], rows[:, 2])
    assert norm.count.item() == 30


def test_batch_norm_is_pytorch_s_but_for_its_counter_and_the_variance_it_keeps():
    torch.manual_seed(0)
    ours, theirs = BatchNorm(3, momentum=0.1), nn.BatchNorm1d(3, momentum=0.1, eps=1e-3)
    for _ in range(3):
        x = 2 + 3 * torch.randn(8, 3)
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    # PyTorch keeps the unbiased variance, 8/7 of the batch's; XQC's library does not.
    by_hand = 0.9**3 + (theirs.running_var - 0.9**3) * 7 / 8
    torch.testing.assert_close(ours.running_variance, by_hand)
    ours.eval()
    x = torch.randn(2, 4, 3)
    by_hand = (x - ours.running_mean) / (ours.running_variance + 1e-3).sqrt()
    torch.testing.assert_close(ours(x), by_hand)
    assert [name for name, _ in ours.named_buffers()] == ["running_mean", "running_variance"]


def test_simba_is_its_paper_s_equation():
    """x = W (o - mean) / deviation; x <- x + W2 relu(W1 LN(x)); y = V LN(x)."""
    net = randomise(blocks.simba([2, 2], "ReLU", 3, 1, 2)).eval()
    norm, first, *residuals, last_norm, last = net
    observation, action = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])

    def standardise(x: Tensor, layer: nn.LayerNorm) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return layer.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() + layer.bias

    read = torch.cat([(observation - norm.mean) / norm.variance.sqrt(), action], -1)
    x = read @ first.weight.T + first.bias
    for layer_norm, inner, _, outer in residuals:
        hidden = (standardise(x, layer_norm) @ inner.weight.T + inner.bias).clamp(0)
        x = x + hidden @ outer.weight.T + outer.bias
    y = standardise(x, last_norm) @ last.weight.T + last.bias
    torch.testing.assert_close(net(observation, action), y)
    assert [layer.weight.shape for layer in residuals[0] if isinstance(layer, nn.Linear)] == [(8, 2), (2, 8)]


def test_simba_starts_orthogonal_with_he_normal_blocks():
    torch.manual_seed(0)
    _, first, block, _, last = blocks.simba([64], "ReLU", 64, 0, 64)
    for layer in (first, last):
        torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(64), atol=1e-5, rtol=0)
    assert block[1].weight.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.05)
    assert block[3].weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.05)


def test_simba_v2_is_its_paper_s_equation():
    """Features and rows have length 1; a block moves by a share of each entry towards its MLP's output."""
    net = randomise(blocks.simba_v2([2, 2], "ReLU", 3, 1, 2)).eval()
    norm, _, first, scale, _, *residuals, hidden, head_scale, last = net
    observation, action = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])

    def unit(x: Tensor) -> Tensor:
        return x / x.square().sum(-1, keepdim=True).sqrt()

    read = torch.cat([(observation - norm.mean) / norm.variance.sqrt(), action, torch.full((1, 1), 3.0)], -1)
    x = unit((unit(read) @ first.unit_weight.T) * scale.factor)  # starts at sqrt(2 / 2), scaled by the same
    for block in residuals:
        inner, inner_scale, _, outer, _ = block.layers
        mlp = unit((inner(x) * inner_scale.factor).clamp(0) @ outer.unit_weight.T)
        x = unit(x + block.share.factor * (1 / 3) * math.sqrt(2) * (mlp - x))
    y = (hidden(x) * head_scale.factor) @ last.unit_weight.T + last.bias
    torch.testing.assert_close(net(observation, action), y)


def test_simba_v2_s_factors_start_as_in_the_paper():
    net = blocks.simba_v2([8, 8, 8], "ReLU", 3, 0, 2)
    scale, block = net[3], net[5]
    torch.testing.assert_close(scale(torch.ones(8)), torch.full((8,), math.sqrt(2 / 8)))
    torch.testing.assert_close(block.layers[1](torch.ones(32)), torch.full((32,), math.sqrt(2 / 8) / 2))
    torch.testing.assert_close(block.share(torch.ones(8)), torch.full((8,), 1 / 4))
    torch.testing.assert_close(block.share.factor, torch.full((8,), 1 / math.sqrt(8)))


def test_xqc_is_a_row_of_unit_layers_batch_norms_and_activations():
    net = randomise(blocks.xqc([4, 3], "ReLU", 3, 1, 2)).eval()
    norm, first, first_norm, _, second, second_norm, _, last = net
    observation, action = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])

    def standardise(x: Tensor, layer: BatchNorm) -> Tensor:
        return layer.weight * (x - layer.running_mean) / (layer.running_variance + 1e-3).sqrt() + layer.bias

    x = standardise(torch.cat([observation, action], -1), norm)
    x = standardise(x @ first.unit_weight.T, first_norm).clamp(0)
    x = standardise(x @ second.unit_weight.T, second_norm).clamp(0)
    torch.testing.assert_close(net(observation, action), x @ last.unit_weight.T + last.bias)
    assert [layer.bias is None for layer in (first, second, last)] == [True, True, False]


def test_flash_sac_is_its_paper_s_equation():
    """x <- x + relu(BN(W2 relu(BN(W1 x)))); y = V (g x / rms(x)) + b."""
    net = randomise(blocks.flash_sac([2, 2], "ReLU", 3, 1, 2)).eval()
    first_norm, first, *residuals, last_norm, last = net
    observation, action = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])

    def standardise(x: Tensor, layer: BatchNorm) -> Tensor:
        gain, bias = layer.unit_gain
        return gain * (x - layer.running_mean) / (layer.running_variance + 1e-5).sqrt() + bias

    x = standardise(torch.cat([observation, action], -1), first_norm) @ first.unit_weight.T
    for inner, inner_norm, _, outer, outer_norm, _ in residuals:
        hidden = standardise(x @ inner.unit_weight.T, inner_norm).clamp(0)
        x = x + standardise(hidden @ outer.unit_weight.T, outer_norm).clamp(0)
    normalised = last_norm.unit_gain[0] * x / (x.square().mean() + 1e-6).sqrt()
    torch.testing.assert_close(net(observation, action), normalised @ last.unit_weight.T + last.bias)
    assert [block[0].unit_weight.shape for block in residuals] == [(8, 2), (8, 2)]


def test_gains_keep_their_mean_square_after_each_step():
    norm = UnitBatchNorm(2)
    optimizer = torch.optim.SGD(norm.parameters(), lr=1.0)
    keep_norms(optimizer, norm, [])
    norm.unit_gain.grad = -torch.tensor([[2.0, 0.0], [4.0, 0.0]])  # becomes [3, 1] and [4, 0]
    optimizer.step()
    gain, bias = norm.gain_and_bias()
    factor = math.sqrt(2 / 26)  # two gains of 1 began
    torch.testing.assert_close(torch.stack([gain, bias]), torch.tensor([[3.0, 1.0], [4.0, 0.0]]) * factor)


def test_dropout_comes_before_layer_norm_and_only_while_learning():
    net = randomise(blocks.layer_norm([4, 3], "ReLU", 3, 1, 2, dropout=0.5))
    first, drop, norm, _, second, second_drop, second_norm, _, last = net
    read = torch.tensor([[1.0, -2.0, 0.5]])

    def by_hand(kept: Tensor, second_kept: Tensor) -> Tensor:
        x = norm((read @ first.weight.T + first.bias) * kept).clamp(0)
        x = second_norm((x @ second.weight.T + second.bias) * second_kept).clamp(0)
        return x @ last.weight.T + last.bias

    torch.testing.assert_close(net.eval()(read[:, :2], read[:, 2:]), by_hand(torch.ones(4), torch.ones(3)))
    torch.manual_seed(0)
    masks = drop.train()(torch.ones(1, 4)), second_drop.train()(torch.ones(1, 3))
    assert {0.0, 2.0} == {*torch.cat(masks, -1).ravel().tolist()}
    torch.manual_seed(0)
    torch.testing.assert_close(net.train()(read), by_hand(*masks))
    assert not any(isinstance(layer, nn.Dropout) for layer in blocks.layer_norm([4], "ReLU", 3, 1, 2))


def test_droq_s_critics_have_dropout_of_their_own_in_losses():
    """Two critics of equal weights differ by their dropout alone, target networks too."""
    chosen = settings("algo=droq", "env=pendulum", "critic.hidden_layers.dropout=0.5")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    actor, critic = chosen.build("actor")(env), chosen.build("critic")(env)
    loss = loss_of(chosen, env, actor=actor, critic=critic)
    for params in (loss.qvalue_network_params, loss.target_qvalue_network_params):
        for value in params.values(True, True):
            value.data.copy_(value.data[:1].expand_as(value.data))
    rows = env.rollout(4).select("observation", "action")
    for params in (loss.qvalue_network_params, loss.target_qvalue_network_params):
        for mode, differs in ((train_mode([critic]), True), (nullcontext(), False)):
            with mode:
                first, second = loss._vmap_qvalue_network00(rows.expand(2, *rows.shape), params)[
                    "state_action_value"
                ]
            assert torch.allclose(first, second) != differs


def test_rows_keep_their_length_after_each_step_and_nothing_else_is():
    layer = UnitLinear(2, 2, bias=True)
    with torch.no_grad():
        layer.unit_weight.copy_(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    keep_norms(optimizer, layer, ["*unit_weight"])
    layer.unit_weight.grad = -torch.tensor([[2.0, 4.0], [0.0, 1.0]])  # rows become [3, 4] and [0.6, 1.8]
    layer.bias.grad = -torch.tensor([3.0, 4.0])
    optimizer.step()
    length = math.sqrt(0.36 + 3.24)
    by_hand = torch.tensor([[0.6, 0.8], [0.6 / length, 1.8 / length]])
    torch.testing.assert_close(layer.unit_weight, by_hand)
    assert layer.bias.tolist() == [3.0, 4.0]


def test_dueling_heads_are_columns_of_the_last_layer():
    torch.manual_seed(0)
    layers = BlockLayers([4], "ReLU", None, 3, blocks.simba, 0)
    net = layers.dueling((5, 2), (5, 1)).eval()
    x = torch.randn(7, 3)
    columns = net[0](x)
    advantage, value = columns[:, :10].reshape(7, 5, 2), columns[:, 10:].reshape(7, 5, 1)
    torch.testing.assert_close(net(x), value + advantage - advantage.mean(-1, keepdim=True))
    assert layers.dueling(2, 1)(x).shape == (7, 2)


def critics(*overrides: str) -> tuple[nn.Module, nn.Module]:
    """A SAC loss and the critic it is built from."""
    chosen = settings("algo=sac", "env=pendulum", "~tuned", *overrides)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    actor = chosen.build("actor")(env)
    critic = chosen.build("critic")(env, actor)
    learner = chosen.learners[""]
    options = learner.loss
    loss = make_loss(
        learner.build("loss"),
        {"actor": actor, "critic": critic},
        specs.action_spec(env),
        options.networks,
        options.keys,
        options.value_estimator,
    )
    return loss, critic


@pytest.mark.parametrize("overrides", [["+critic.init=orthogonal"], ["layers@critic=simba"]])
def test_each_critic_starts_orthogonal_and_with_weights_of_its_own(overrides):
    """TorchRL draws the copies' weights between the smallest and largest one."""
    loss, critic = critics(*overrides, "critic.num_cells=[16,16]")
    gain = 2.0 if "+critic.init=orthogonal" in overrides else 1.0
    params = loss.qvalue_network_params
    key = next(key for key, value in params.items(True, True) if value.shape[1:] == (16, 4))
    first, second = params[key].detach()
    assert not torch.allclose(first, second)
    assert any(torch.equal(first, own) for own in critic.parameters())
    for weight in (first, second):
        torch.testing.assert_close(weight.T @ weight, gain * torch.eye(4), atol=1e-5, rtol=0)
    assert torch.equal(loss.target_qvalue_network_params[key], params[key])


def test_critics_without_a_start_of_their_own_stay_torchrl_s():
    loss, critic = critics("critic.num_cells=[16,16]")
    assert not hasattr(critic, "redraw")
    first = loss.qvalue_network_params["module", "0", "weight"][0]
    assert not torch.equal(first, critic.module[0].weight)


@pytest.mark.parametrize("layers", ["simba", "simba_v2", "xqc", "flash_sac"])
def test_any_off_policy_algorithm_takes_them(layers, run):
    small = ["total_frames=192", "collector.frames_per_batch=64", "minibatches.warmup_frames=64"]
    small += ["minibatches.size=16", "minibatches.updates=2", "eval.every_frames=192", "eval.episodes=1"]
    small += ["eval.final_episodes=1", "eval.max_steps=5", "actor.num_cells=[8,8]"]
    run("algo=dqn", "env=cartpole", "~tuned", "actor=dueling", f"layers@actor={layers}", *small)


def test_blocks_of_several_widths_are_refused():
    with pytest.raises(UserError, match=r"num_cells=\[8, 16\]: residual .* Write num_cells=\[16,16\]"):
        blocks.simba([8, 16], "ReLU", 3, 1, 2)


def test_on_policy_algorithms_refuse_layers_whose_statistics_change_while_learning():
    with pytest.raises(
        UserError,
        match=r"^minibatches=epochs: does not go with actor.hidden_layers, which updates its statistics",
    ):
        settings("algo=ppo", "env=hopper", "layers@actor=simba")


def test_parameter_groups_by_a_pattern():
    loss, _ = critics("critic.num_cells=[4]", "actor.num_cells=[4]")
    plain, biases, temperature = parameter_groups(
        loss, {"*bias": {"weight_decay": 0.0}, "log_alpha": {"weight_decay": 0.0}}
    )
    names = {id(parameter): name for name, parameter in loss.named_parameters()}
    assert all(names[id(parameter)].endswith("bias") for parameter in biases["params"])
    assert [names[id(parameter)] for parameter in temperature["params"]] == ["log_alpha"]
    assert {names[id(parameter)].rpartition(".")[2] for parameter in plain["params"]} == {"weight"}
