"""A family of environments of one's own is one file: its maker, and what a run asks of it."""

import json

import pytest
import torch

from hydrl.envs import EnvFamily, find_family, gymnasium_env
from hydrl.envs.evaluation import Evaluation
from tests.conftest import settings

CALLS: list[str] = []


def make_counted(num_envs: int = 1, device: str = "cpu"):
    """A maker of environments of the family below."""
    return gymnasium_env("CartPole-v1", num_envs, device)


class CountedFamily(EnvFamily):
    """Notes what a run asks of it, and evaluates without playing."""

    def make(self, make, num_envs, device, render=None):
        CALLS.append("make")
        return super().make(make, num_envs, device, render)

    def action_kind(self, env):
        CALLS.append("action_kind")
        return super().action_kind(env)

    def prepare(self, env, *args):
        CALLS.append("prepare")
        return super().prepare(env, *args)

    def check(self, env):
        CALLS.append("check")

    def evaluate(self, env, actor, *, max_steps, is_final=False):
        CALLS.append("final evaluation" if is_final else "evaluate")
        return Evaluation(torch.full((env.numel(),), 321.0), torch.ones(env.numel()))


make_counted.env_family = CountedFamily()
WORDS = [
    "algo=ppo", "env=custom", "env._target_=tests.envs.test_families.make_counted", "transforms=plain",
    "total_frames=128", "eval.every_frames=64", "collector.frames_per_batch=64", "collector.num_envs=2",
    "minibatches.size=32", "minibatches.epochs=1", "eval.episodes=2", "eval.final_episodes=3",
]  # fmt: skip


def test_a_run_asks_the_family_of_its_maker(run):
    CALLS.clear()
    folder = run(*WORDS)
    assert CALLS.count("action_kind") == CALLS.count("prepare") == CALLS.count("check") == 1
    assert CALLS.index("make") < CALLS.index("action_kind") < CALLS.index("prepare") < CALLS.index("check")
    assert CALLS.count("evaluate") == 2
    assert CALLS.count("final evaluation") == 1
    assert CALLS.count("make") >= 2  # of the run, and of its evaluations
    assert json.loads((folder / "summary.json").read_text())["eval/return_mean"] == 321.0


@pytest.mark.parametrize(
    ("words", "family"),
    [
        (["env=cartpole"], "GymnasiumFamily"),
        (["env=atari", "env.id=ALE/Pong-v5"], "GymnasiumFamily"),
        (["env=minatar", "env.id=MinAtar/Breakout-v1"], "GymnasiumFamily"),
        (["env=minigrid", "env.id=MiniGrid-DoorKey-5x5-v0"], "GymnasiumFamily"),
        (["env=dm_control", "env.id=cartpole-swingup"], "GymnasiumFamily"),
        (["env=robotics", "env.id=FetchReach-v4"], "GymnasiumFamily"),
        (["env=self_play", "env.id=classic/tictactoe_v3"], "GymnasiumFamily"),
        (["env=open_spiel", "env.id=kuhn_poker"], "GymnasiumFamily"),
        (["env=simple_spread", "algo=mappo"], "PettingZooFamily"),
        (["env=vmas_navigation", "algo=mappo"], "EnvFamily"),
        (["env=brax", "env.id=ant"], "JaxFamily"),
        (["env=jumanji", "env.id=Snake-v1"], "JaxFamily"),
        (["env=torchrl_pendulum"], "EnvFamily"),
    ],
)
def test_every_option_of_env_has_its_family(words, family):
    assert type(find_family(settings(*words).build("env"))).__name__ == family
