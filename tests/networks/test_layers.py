import pytest
import torch
from torchrl.collectors import Collector
from torchrl.modules import BatchRenorm1d

import hydrl.training.evaluator
from hydrl.networks.layers import BatchRenorm, NoisyLinear, mlp
from hydrl.training import Update


def test_batch_renormalisation_is_torchrl_s_for_a_batch_of_any_shape_and_ends_its_warm_up():
    torch.manual_seed(0)
    ours, theirs = BatchRenorm(3, warmup_steps=2), BatchRenorm1d(3, warmup_steps=2)
    for count in range(1, 8):
        x = 2 + 3 * torch.randn(16, 3)
        if count < 5:  # from there TorchRL's warm-up factor is 2 and more
            assert torch.equal(ours(x), theirs(x))
        else:
            assert not torch.equal(ours(x), theirs(x))
        assert ours.num_batches_tracked.item() <= 3
    ours.eval()
    x = torch.randn(4, 5, 3)
    assert torch.equal(ours(x)[2, 3], ours(x[2, 3]))  # one observation, as of one environment


def test_layer_norm_standardises_hidden_units_and_leaves_what_is_read_its_size():
    torch.manual_seed(0)
    layers = mlp([8, 16], 1, "ReLU", torch.nn.LayerNorm, 3)
    read = torch.randn(5, 3)
    layers(read)  # which gives lazy layers their sizes
    first, _, norm, second, *_ = layers
    hidden = first(read).relu()
    expected = (hidden - hidden.mean(-1, keepdim=True)) / (
        hidden.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(norm(hidden), expected)
    torch.testing.assert_close(layers[3:](expected), layers(read))
    assert (first.in_features, second.in_features) == (3, 8)
    assert not torch.allclose(layers(read), layers(10 * read))


def test_crossq_s_statistics_are_learned_in_updates_and_used_while_acting_and_playing(run, monkeypatch):
    """In eval mode nothing moves them; in train mode the batch's own count."""
    seen: dict[str, list[bool]] = {"acted": [], "played": [], "learned": []}
    made = []  # the actor's two layers of them, and then the critic's, of which the loss has copies

    def noted(kind, function):
        def spy(*args, **kwargs):
            before = made[1].running_mean.clone()
            out = function(*args, **kwargs)
            seen[kind].append(not torch.equal(made[1].running_mean, before))
            return out

        return spy

    build = BatchRenorm.__init__

    def kept(self, *args, **kwargs):
        build(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(BatchRenorm, "__init__", kept)
    monkeypatch.setattr(hydrl.envs.build, "play_episodes", noted("played", hydrl.envs.build.play_episodes))
    monkeypatch.setattr(Collector, "rollout", noted("acted", Collector.rollout))
    monkeypatch.setattr(Update, "__call__", noted("learned", Update.__call__))
    run(
        "algo=crossq", "env=pendulum", "~tuned", "total_frames=512", "collector.frames_per_batch=128",
        "collector.init_random_frames=0", "minibatches.size=32", "minibatches.updates=2",
        "minibatches.warmup_frames=128", "actor.num_cells=[8]", "critic.num_cells=[8]",
        "eval.every_frames=256", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=10",
    )  # fmt: skip
    assert seen == {"acted": [False] * 4, "played": [False] * 3, "learned": [True] * 8}


def test_noise_has_its_paper_s_mean_and_deviation():
    """Weight p of q has deviation sigma times f(p) f(q), f(x) = sign(x) sqrt(|x|) of normal draws."""
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3, std_init=0.5).train()
    with torch.no_grad():
        layer.weight_sigma *= torch.arange(1, 13).reshape(3, 4)
        drawn = torch.stack([layer(torch.eye(4)) - layer(torch.zeros(4)) for _ in range(20)])
        assert len(drawn[:, 0, 0].unique()) == 20
        drawn = torch.stack([layer(torch.zeros(4)) for _ in range(4_000)])
        many = torch.stack([layer(torch.eye(4)) for _ in range(4_000)])
    assert torch.allclose(drawn.mean(0), layer.bias_mu, atol=0.02)
    assert torch.allclose(many.mean(0), layer.weight_mu.T + layer.bias_mu, atol=0.15)
    of_f = (2 / torch.pi) ** 0.5  # the variance of f(x)
    assert drawn.var(0) == pytest.approx(layer.bias_sigma.square().detach() * of_f, rel=0.15)
    both = layer.weight_sigma.square().T * of_f**2 + layer.bias_sigma.square() * of_f
    assert torch.allclose(many.var(0), both, rtol=0.15)
