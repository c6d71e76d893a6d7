"""SAC whose critics have the actor's encoder: the same losses, of which only the critics' reach it."""

from copy import deepcopy
from functools import partial

import torch
from torchrl import objectives

from hydrl.envs import gymnasium_env, make_env
from hydrl.losses.build import make_loss
from hydrl.losses.sac_shared_encoder import SACLoss
from hydrl.networks import actors, critics, encoders
from hydrl.networks.encoders import Encoder

NET = {"num_cells": [8], "activation": "ReLU"}
NETWORKS = {"actor_network": "actor", "qvalue_network": "critic"}


def made(env, module, actor, encoder):
    parts = {"actor": actor, "critic": critics.action_value(env, actor, **NET, encoder=encoder)}
    return make_loss(module, parts, env.action_spec, NETWORKS, {}, {"gamma": 0.9})


def pair():
    """A loss whose critics have the actor's encoder, one of TorchRL's with equal ones, that encoder, rows."""
    torch.manual_seed(0)
    env = make_env(partial(gymnasium_env, "tests.fakes.pixel_envs:Aim-v0"), [], seed=0)
    actor = actors.tanh_normal(env, **NET, encoder=encoders.encoder)
    apart = made(env, objectives.SACLoss, deepcopy(actor), encoders.encoder)
    once = made(env, SACLoss, actor, "shared")
    (features,) = (each for each in actor.modules() if isinstance(each, Encoder))
    for each in once.target_encoder_params.values(True, True):
        each.data.add_(torch.randn_like(each), alpha=0.1)
    for kind in ("", "target_"):
        own, heads, read = (
            getattr(loss, f"{kind}{name}_params").data
            for loss, name in ((apart, "qvalue_network"), (once, "qvalue_network"), (once, "encoder"))
        )
        own["module", "0"].update_(read.expand(own.batch_size))
        own["module", "1"].update_(heads)
    return once, apart, features, env.rollout(6, break_when_any_done=False).detach()


def learned(loss, rows, *terms):
    """The terms, and the gradient of their sum by the names of parameters."""
    torch.manual_seed(1)
    losses, named = loss(rows.clone(False)), dict(loss.named_parameters())
    total = sum(losses[each] for each in terms)
    return losses, dict(
        zip(named, torch.autograd.grad(total, [*named.values()], allow_unused=True), strict=True)
    )


def test_it_reads_thrice_what_encoders_of_their_own_read_eight_times_and_says_the_same():
    once, apart, features, rows = pair()
    runs = []
    features.register_forward_hook(lambda *_: runs.append(torch.is_grad_enabled()))
    terms = ("loss_actor", "loss_qvalue", "loss_alpha")
    (losses, gradients), (whole, others) = (learned(each, rows, *terms) for each in (once, apart))
    assert runs == [True, False, False]
    for key in (*terms, "entropy"):
        torch.testing.assert_close(losses[key], whole[key], atol=1e-6, rtol=1e-5)
    of_critics = {name.partition("module.1.")[2]: each for name, each in others.items() if "qvalue" in name}
    for name, each in gradients.items():
        kind, _, place = name.partition(".")
        if kind == "encoder_params":  # what both critics teach theirs, and nothing of the actor's
            wanted = others[f"qvalue_network_params.module.0.{place}"].sum(0)
        elif kind == "qvalue_network_params":
            wanted = of_critics[place]
        elif kind == "actor_network_params":
            wanted = others[name.replace("module.0.", "module.0.module.1.", 1)]
        else:
            wanted = others[name]
        torch.testing.assert_close(each, wanted, atol=1e-6, rtol=1e-4)
        assert each.abs().max() > 1e-5


def test_it_hands_priorities_on_and_leaves_the_minibatch_s_entries_alone():
    once, _, _, rows = pair()
    before = {*rows.keys(True, True)}
    once(rows)
    assert {*rows.keys(True, True)} == before | {"td_error"}
    assert rows["td_error"].shape == rows.shape


def test_without_a_shared_encoder_it_is_torchrl_s():
    torch.manual_seed(0)
    env = make_env(partial(gymnasium_env, "tests.fakes.pixel_envs:Aim-v0"), [], seed=0)
    actor = actors.tanh_normal(env, **NET, encoder=encoders.encoder)
    rows = env.rollout(6, break_when_any_done=False).detach()
    torch.manual_seed(0)
    ours = made(env, SACLoss, actor, encoders.encoder)
    torch.manual_seed(0)
    theirs = made(env, objectives.SACLoss, actor, encoders.encoder)
    terms = ("loss_actor", "loss_qvalue", "loss_alpha")
    one, other = (learned(each, rows, *terms)[0] for each in (ours, theirs))
    assert all(torch.equal(one[key], other[key]) for key in terms)
