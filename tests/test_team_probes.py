"""Every algorithm for several agents finds what each of them is to do where all are paid together."""

import json

import pytest

from hydrl.config.settings import read_action_spaces
from tests.fakes.probe_envs import small

KINDS = {"continuous": "continuous", "discrete": "integer"}
CASES = [
    (algo, actions)
    for algo, kinds in read_action_spaces().items()
    for kind, actions in KINDS.items()
    if f"multi-agent {kind}" in kinds
]
NUMBERS = {
    "collector.num_envs": 16,
    "minibatches.size": 64,
    "actor.num_cells": [32, 32],
    "critic.num_cells": [32, 32],
    "optim.lr": 1e-2,
}
FRESH = {
    "total_frames": 1_536,
    "eval.every_frames": 768,
    "collector.frames_per_batch": 256,
    "minibatches.epochs": 4,
}
REPLAY = {
    "total_frames": 1_024,
    "eval.every_frames": 512,
    "collector.frames_per_batch": 64,
    "collector.init_random_frames": 128,
    "minibatches.updates": 16,
    "minibatches.warmup_frames": 128,
    "exploration.annealing_num_steps": 512,
    "target.tau": 0.1,
    "loss.module.alpha_init": 0.2,
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 6))])
@pytest.mark.parametrize(("algo", "actions"), CASES)
def test_what_each_agent_is_to_do_is_found(algo, actions, seed, run):
    words = [
        f"algo={algo}",
        "env=custom",
        "env._target_=tests.fakes.envs.MatchSidesEnv",
        f"+env.actions={actions}",
    ]
    until_solved = ["eval.reward_threshold=1", "eval.stop_when_solved=true"]
    words = small([*words, *until_solved], all=NUMBERS, fresh=FRESH, replay=REPLAY)
    folder = run(*words, f"seed={seed}", "schedule=linear")
    reached = json.loads((folder / "summary.json").read_text())
    assert (reached["eval/return_mean"], reached["eval/return_std"]) == (1, 0)  # in every episode
