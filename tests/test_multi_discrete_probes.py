"""Several choices at once are learned as one is, by every algorithm that says so, and refused by others."""

import json

import pytest

from hydrl.config.settings import needs_dataset, read_action_spaces
from tests.conftest import typed

KINDS = read_action_spaces()
ABLE = [name for name, kinds in KINDS.items() if "multi-discrete" in kinds and not needs_dataset(name)]
TASK = [
    "env=gym",
    "env.id=tests.fakes.multi_discrete:Shown-v0",
    "+env.max_episode_steps=5",
    "eval.final_episodes=20",
    "~tuned",
]
QUICK = ["actor.num_cells=[32]", "critic.num_cells=[32]", "collector.num_envs=8", "optim.lr=1e-2"]
QUICK += ["eval.every_frames=512", "eval.reward_threshold=5", "eval.stop_when_solved=true"]
EPOCHS = ["collector.frames_per_batch=256", "minibatches.size=64", "minibatches.epochs=4"]
LEARNED = {
    "PPO, unequal": ["algo=ppo", "+env.space=unequal", *EPOCHS, "total_frames=3_072"],
    "PPO, bits": ["algo=ppo", "+env.space=bits", *EPOCHS, "total_frames=2_048"],
    "recurrent PPO": ["algo=recurrent_ppo", "+env.space=unequal", *EPOCHS, "total_frames=3_072"],
    "A2C": ["algo=a2c", "+env.space=unequal", "total_frames=20_480"],
    "REINFORCE": ["algo=reinforce", "+env.space=unequal", "total_frames=20_480"],
    "IMPALA": ["algo=impala", "+env.space=unequal", "total_frames=20_480"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name.startswith("PPO") else pytest.mark.slow) for name in LEARNED]
)
def test_the_best_choices_are_found_each_by_itself(name, run):
    """They pay 5; what is right by chance pays 1.9 where there are 2 and 4 options, 2.5 of bits."""
    folder = run(*TASK, *QUICK, *LEARNED[name])
    assert json.loads((folder / "summary.json").read_text())["eval/return_mean"] == 5


@pytest.mark.parametrize("algo", ["dqn", "sac_discrete", "sac"])
def test_another_algorithm_names_those_that_can_before_the_first_reset(algo, tmp_path):
    words = [f"algo={algo}", *TASK, "+env.space=unequal", f"hydra.run.dir={tmp_path}"]
    done = typed(*words)
    kind = "continuous" if algo == "sac" else "discrete"
    assert done.returncode == 2
    acts = (
        f"error: algo={algo}: acts in {kind} action spaces, and env.id=tests.fakes.multi_discrete:Shown-v0 "
        "has multi-discrete actions"
    )
    assert f"{acts}. Use algo={', '.join(ABLE[:-1])} or {ABLE[-1]}.\n" in done.stderr


@pytest.mark.parametrize("actions", ["one_hot_several", "one_hot_stacked"])
def test_choices_one_hot_in_a_row_are_told_what_would_do(actions, tmp_path):
    words = [
        "algo=ppo",
        "env=custom",
        "env._target_=tests.fakes.envs.CountingEnv",
        f"+env.actions={actions}",
        "+env.resettable=false",
    ]
    done = typed(*words, "~tuned", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 2
    assert (
        "has one-hot multi-discrete actions. Let each action be an integer, as in "
        "torchrl.data.MultiCategorical.\n"
    ) in done.stderr
