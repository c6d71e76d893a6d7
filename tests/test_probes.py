"""Every algorithm solves every probe it can act in: what long runs hide shows here within seconds."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import LossModule

from tests.conftest import settings
from tests.fakes.probe_envs import cases as all_cases
from tests.fakes.probe_envs import fresh, imitates, judges, overrides_of, small, supplied, watch, worth

GAMMA = 0.5
slow = partial(pytest.param, marks=pytest.mark.slow)
SEEDS = [0, *map(slow, range(1, 10))]
# Of their kind, others are fast.
LATER = ["cql", "cql_discrete", "iql_discrete", "iql_online", "droq", "munchausen_dqn", "redq", "simba_v2"]
LATER += ["tqc"]


def cases() -> list[tuple[str, str]]:
    """Those that learn from rewards."""
    return [case for case in all_cases() if not imitates(case[0])]


# What to do is found by every algorithm with the first kind of its actions, by PPO with both. What a state is
# worth, by those that learn from fresh batches and two others: what the rest regress on, test_targets.py and
# experience/test_sequences.py work out by hand.
FIRST = {case for case in dict(reversed(cases())).items() if case[0] not in LATER}
ACTING = [case if case in {*FIRST, ("ppo", "continuous")} else slow(*case) for case in cases()]
WORTH = {case for case in FIRST if (fresh(case[0]) and case[0] != "a2c") or case[0] in ("dqn", "td3")}
# DreamerV3's critic reads latent states: losses/test_dreamer.py. MPC has none. XQC's, SimbaV2's and
# FlashSAC's are of scaled rewards: losses/test_categorical_sac.py.
NO_STATE_VALUES = ["dreamer_v3", "mpc", "simba_v2", "xqc", "flash_sac"]
JUDGING = [case if case in WORTH else slow(*case) for case in cases() if case[0] not in NO_STATE_VALUES]

# Small networks that learn fast.
NUMBERS = {
    "collector.num_envs": 8,
    "minibatches.size": 64,
    "actor.num_cells": [32, 32],
    "critic.num_cells": [32, 32],
    "value.num_cells": [32, 32],
    "world_model.deterministic": 64,
    "world_model.hidden": 32,
    "world_model.categoricals": 4,
    "world_model.units": 32,
    "world_model.bins": 63,
    "loss.module.horizon": 1 / (1 - GAMMA),
    "loss.module.imagination": 3,
    "optim.warmup_steps": 0,
    "actor.members": 2,
    "planner.planning_horizon": 2,
    "planner.num_candidates": 32,
    "optim.lr": 1e-2,
    "loss.module.min_q_weight": 1e-3,  # values are held down by next to nothing
    "loss.value_estimator.gamma": GAMMA,
    "eval.every_frames": 10_000,  # at the end alone, but where a run ends once it is solved
    # Statistics of batches that are there within a few updates, and learning with them.
    "actor.norm.momentum": 0.1,
    "critic.norm.momentum": 0.1,
    "actor.norm.warmup_steps": 64,
    "critic.norm.warmup_steps": 64,
}
FRESH = {"total_frames": 1_536, "collector.frames_per_batch": 256, "minibatches.epochs": 4}
FRESH |= {"exploration.annealing_num_steps": 512}
# A frame is learned from once, and no more: nothing holds these to the policy that acted.
ONCE = {"total_frames": 4_096, "collector.frames_per_batch": 32, "minibatches.size": 32}
REPLAY = {
    "total_frames": 768,
    "collector.frames_per_batch": 64,
    "collector.init_random_frames": 128,
    "minibatches.updates": 16,
    "minibatches.sequence": 4,
    "minibatches.burn_in": 1,
    "minibatches.warmup_frames": 128,
    "exploration.annealing_num_steps": 256,
    "target.tau": 0.1,
    "target.value_network_update_interval": 8,
    "loss.module.alpha_init": 0.2,
}
MUNCHAUSEN = REPLAY | {"loss.module.temperature": 1e-3, "loss.module.lowest": 0.0}
WORLD_MODEL = REPLAY | {"minibatches.updates": 32, "optim.lr": 3e-3}
DATA = REPLAY | {"total_frames": 12_288, "collector.frames_per_batch": 1_024}


def set_to(algo: str, actions: str, kind: str) -> list[str]:
    task = ["schedule=linear", *overrides_of(algo, actions, f"Probe-v0 kind={kind}")]
    once = settings(*task).minibatches.get("epochs") == 1
    replay = {"dreamer_v3": WORLD_MODEL, "munchausen_dqn": MUNCHAUSEN}.get(algo, REPLAY)
    return small(task, all=NUMBERS, fresh=ONCE if once else FRESH, replay=replay, data=DATA)


def hard(overrides: list[str]) -> list[str]:
    """A soft value counts the policy's entropy; of it a temperature this small and fixed makes nothing."""
    soft = any("alpha_init" in each for each in overrides)
    return [*overrides, *(["loss.module.alpha_init=1e-6", "+loss.module.fixed_alpha=true"] if soft else [])]


def judged(loss: LossModule, argument: str, minibatch: TensorDictBase) -> list[Tensor]:
    """What one network of a loss says of the states, or of each of their actions.

    Returns:
        ``[*minibatch, values]``, one for each of several critics.
    """
    network, parameters = getattr(loss, argument), getattr(loss, f"{argument}_params")
    if parameters is None:  # they are the network's own
        parameters = TensorDict.from_module(network)
    said = []
    for each in parameters.unbind(0) if parameters.batch_dims else [parameters]:
        with torch.no_grad(), set_recurrent_mode(True), each.to_module(network):
            out = network(minibatch.clone())
        if "support" in parameters:  # log-probabilities of these returns
            said.append((out["action_value"].exp() * parameters["support"].unsqueeze(-1)).sum(-2))
        elif "state_action_value" in network.out_keys:  # quantiles where there are several
            said.append(out["state_action_value"].mean(-1, keepdim=True))
        else:  # which data may have of its own
            said.append(out["action_value" if "action_value" in network.out_keys else "state_value"])
    return said


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [slow("constant"), slow("observation"), "discounting"])
@pytest.mark.parametrize(("algo", "actions"), JUDGING)
def test_what_a_state_is_worth_is_found(algo, actions, kind, seed, run, monkeypatch):
    """Immediate reward; what depends on the observation; what a later reward is worth now."""
    overrides = supplied([*hard(set_to(algo, actions, kind)), f"seed={seed}"], run)
    seen: dict[str, Any] = {}
    watch(monkeypatch, lambda loss, minibatch: seen.update(loss=loss, minibatch=minibatch.clone()))
    run(*overrides)
    states = seen["minibatch"]["observation"]
    assert len(states.unique()) == 2
    for argument in judges(settings(*overrides).loss.networks):
        for said in judged(seen["loss"], argument, seen["minibatch"]):
            for state in states.unique():
                found = said[(states == state).squeeze(-1)].mean(0)
                assert (found - worth(kind, state, GAMMA)).abs().max() < 0.1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [slow("action"), "both"])
@pytest.mark.parametrize(("algo", "actions"), ACTING)
def test_what_to_do_is_found(algo, actions, kind, seed, run):
    """The action that pays; the action that pays where it is."""
    words = [*set_to(algo, actions, kind), f"seed={seed}", "eval.reward_threshold=1"]
    half = settings(*words).total_frames // 2  # not sooner: an untrained policy may be right by chance
    words += ["eval.stop_when_solved=true", f"eval.every_frames={half}"]
    folder = run(*supplied(words, run))
    reached = json.loads((folder / "summary.json").read_text())
    assert (reached["eval/return_mean"], reached["eval/return_std"]) == (1, 0)  # in every episode
