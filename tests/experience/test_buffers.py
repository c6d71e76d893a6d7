"""A memory keeps actions in the task's own unit, and hands them over as what learns takes them."""

import pytest
import torch

from tests.conftest import saved
from tests.fakes.probe_envs import watch

TOY = [
    "env=custom",
    "env._target_=tests.fakes.envs.CountingEnv",
    "~tuned",
    "total_frames=256",
    "collector.frames_per_batch=64",
]
TOY += ["collector.num_envs=2", "collector.init_random_frames=64", "minibatches.warmup_frames=64"]
TOY += ["minibatches.size=16", "minibatches.updates=2", "actor.num_cells=[8]", "critic.num_cells=[8]"]
TOY += ["eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=20"]


@pytest.mark.parametrize(
    "words",
    [
        ["algo=sac", "collector.num_envs=1"],
        ["algo=td3", "buffer=prioritized", "minibatches.draw=minibatch"],
        ["algo=ddpg", "buffer=memmap", "minibatches.n_steps=3"],
        ["algo=sac", "~transforms.action_scaling"],
    ],
)
def test_rows_are_what_the_task_was_given_and_minibatches_what_was_acted(words, run, monkeypatch):
    """The task takes -2 to 3, and shows the action that it was given."""
    learned = []
    watch(monkeypatch, lambda loss, minibatch: learned.append(minibatch.clone()))
    rows = saved(run(*TOY, *words), "buffer")

    def store_rows(rows):
        """What the task says it was given, where the next observation is the one after."""
        steps = rows.get("steps_to_next_obs", torch.ones(len(rows["action"]), dtype=torch.int64))
        after = steps.reshape(-1) == 1
        return rows["action"][after], rows["next"]["observation"][after, 2:]

    stored, taken = store_rows(rows)
    assert len(stored) > 10
    assert torch.equal(stored, taken)
    assert (stored.min() < -1.1) & (stored.max() > 1.1)
    minibatches = torch.cat(learned)
    acted, taken = store_rows(minibatches)
    if "~transforms.action_scaling" in words:
        assert torch.equal(acted, taken)
    else:
        assert minibatches["action"].abs().max() <= 1
        torch.testing.assert_close(acted * 2.5 + 0.5, taken)
    assert len(taken) > 5
