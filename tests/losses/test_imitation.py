"""GAIL: a discriminator learns from an expert's steps and the fresh ones, and pays what PPO learns from."""

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives import GAILLoss

from hydrl.errors import UserError
from hydrl.experience.minibatches import Epochs
from hydrl.losses.imitation import ExpertMinibatches, ImitationReward, imitation_reward
from hydrl.training.update import Update
from tests.conftest import logged, saved, settings

EXPERT = ["algo=sac", "env=inverted_pendulum", "~tuned", "total_frames=256", "collector.frames_per_batch=128"]
EXPERT += ["minibatches.warmup_frames=1_000", "minibatches.size=32", "eval.every_frames=512"]
EXPERT += ["eval.final_episodes=1", "eval.max_steps=5"]
GAIL = ["algo=gail", "env=inverted_pendulum", "~tuned", "data=replay_buffer", "total_frames=512"]
GAIL += [
    "minibatches.epochs=1",
    "collector.frames_per_batch=256",
    "collector.num_envs=2",
    "actor.num_cells=[16]",
]
GAIL += ["discriminator.num_cells=[16]", "critic.num_cells=[16]", "eval.every_frames=1_000"]
GAIL += ["eval.final_episodes=1", "eval.max_steps=5", "log_every_frames=256", "minibatches.size=64"]
GAIL += [
    "extra_learners.discriminator.minibatches.updates=3",
    "extra_learners.discriminator.minibatches.size=32",
]


def test_forms_of_the_reward_by_hand():
    likely = torch.tensor([0.25, 0.5, 0.8])
    assert imitation_reward(likely, "positive").tolist() == pytest.approx(
        [math.log(4 / 3), math.log(2), math.log(5)]
    )
    assert imitation_reward(likely, "negative").tolist() == pytest.approx(
        [-math.log(4), -math.log(2), math.log(0.8)]
    )
    assert imitation_reward(likely, "signed").tolist() == pytest.approx(
        [-math.log(3), 0, math.log(4)], abs=1e-6
    )
    assert imitation_reward(torch.tensor([0.0, 1.0]), "signed").tolist() == pytest.approx(
        [-13.8, 13.8], abs=0.1
    )


def test_an_expert_and_the_policy_are_told_apart_and_ppo_learns_from_what_that_pays(run, monkeypatch):
    expert = run(*EXPERT, folder="expert")
    pairs, read, likely, task = [], [], [], []
    update, epochs, reward = Update.__call__, Epochs.__call__, ImitationReward.__call__

    def updated(self, minibatch):
        if "collector_action" in minibatch:
            pairs.append(minibatch.clone())
        return update(self, minibatch)

    def judged(self, batch):
        task.append(batch["next", "reward"].clone())
        reward(self, batch)
        likely.append(self.discriminator(batch.clone())["d_logits"].detach())

    def learned(self, batch):
        read.append(batch.clone())
        return epochs(self, batch)

    monkeypatch.setattr(Update, "__call__", updated)
    monkeypatch.setattr(ImitationReward, "__call__", judged)
    monkeypatch.setattr(Epochs, "__call__", learned)
    folder = run(*GAIL, f"data.path={expert}")

    assert len(pairs) == 6
    given = {tuple(row) for row in saved(expert, "buffer")["action"].tolist()}
    own = {tuple(row) for each in read for row in each["action"].reshape(-1, 1).tolist()}
    for each in pairs:
        assert each["action"].shape == each["collector_action"].shape == (32, 1)
        assert each["observation"].dtype == each["collector_observation"].dtype == torch.float32
        assert all(tuple(row) in given for row in each["action"].tolist())
        assert all(tuple(row) in own for row in each["collector_action"].tolist())
    seen = saved(expert, "buffer")["observation"]
    reach = ((seen - seen.mean(0)) / seen.std(0)).abs().max()  # both are standardised as the expert's are
    assert torch.cat([each["observation"] for each in pairs]).abs().max() <= reach * 1.01
    for each, by, given_by_the_task in zip(read, likely, task, strict=True):
        assert torch.allclose(each["next", "reward"], -(1 - by).log(), atol=1e-5)
        assert (given_by_the_task == 1).all()
        assert (each["next", "reward"] != 1).all()
    rows = logged(folder)
    assert float(rows[-1]["train/reward"]) == pytest.approx(1)
    assert {"loss/discriminator/grad_norm", "loss/objective"} <= rows[-1].keys()


def test_an_expert_is_asked_for_in_a_line():
    with pytest.raises(
        UserError,
        match=r"^data=null: does not go with algo=gail, which imitates an expert's episodes.*\. Use data=",
    ):
        settings("algo=gail", "env=pendulum", "~data")


def test_what_an_expert_did_not_show_is_told():
    class Keys:
        tensor_keys = GAILLoss.default_keys()

    data = TensorDict({"pixels": torch.zeros(4, 1), "action": torch.zeros(4, 1)}, [4])
    with pytest.raises(UserError, match=r"^data: the dataset has no observation"):
        ExpertMinibatches(None, Keys(), data=data, updates=1, size=2)
