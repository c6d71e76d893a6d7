"""Records: one for each observation; acting and training reach the same latent states."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.experience.records import Records, make_records
from tests.conftest import settings
from tests.losses.test_dreamer import build

SHORT = [
    "env=gym",
    "env.id=tests.fakes.probe_envs:Clockwork-v0",
    "transforms=plain",
]  # episodes of 3 and of 5 steps


def rows_of(is_init: list[list[int]]) -> TensorDict:
    """Steps t with next observation t + 0.5, action and reward 10 + t; the last one ends."""
    begins = torch.tensor(is_init, dtype=torch.bool).unsqueeze(-1)
    count, time, _ = begins.shape
    steps = torch.arange(time, dtype=torch.float).expand(count, time).unsqueeze(-1)
    done = torch.cat([begins[:, 1:], torch.ones(count, 1, 1, dtype=torch.bool)], 1)
    rows = TensorDict({"is_init": begins, "observation": steps, "action": 10 + steps}, [count])
    rows["next"] = {"observation": steps + 0.5, "reward": 10 + steps, "done": done, "terminated": done}
    return rows.update({"state": torch.ones(count, 2), "belief": torch.ones(count, 3)})


def test_an_episode_of_n_steps_has_n_and_one_records():
    records = make_records(rows_of([[1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]]), ["observation"])
    assert records["next", "observation"].squeeze(-1).tolist() == [
        [0, 0.5, 1.5, 2.5, 3, 3.5],  # two first observations; the last two steps are left out
        [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    ]
    assert records["action"].squeeze(-1).tolist() == [[0, 10, 11, 12, 0, 13], [10, 11, 12, 13, 14, 15]]
    assert records["next", "reward"].squeeze(-1).tolist() == records["action"].squeeze(-1).tolist()
    assert records["is_init"].squeeze(-1).int().tolist() == [[1, 0, 0, 0, 1, 0], [0] * 6]
    assert records["next", "done"].squeeze(-1).int().tolist() == [[0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 1]]
    assert (records["state"] == 1).all()
    assert records["belief"].shape == (2, 6, 3)


def played(steps: int, **sizes: int):
    """The steps of two environments whose episodes end at different times, and the actor."""
    _, actor, _, _ = build(*SHORT, "+env.actions=continuous", env="gym", **sizes)
    chosen = settings("algo=dreamer_v3", *SHORT, "+env.actions=continuous", "world_model=nano")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=3, policy=actor)
    with torch.no_grad():
        return env.rollout(steps, actor, break_when_any_done=False), actor


def minibatches_of(actor, sequence: int) -> Records:
    """A buffer of sequences, whose minibatches have all of them."""
    loss, *_ = build(*SHORT, "+env.actions=continuous", env="gym", classes=1)
    loss.model_loss.world_model = actor.world_model
    buffer = ReplayBuffer(storage=LazyTensorStorage(64))
    return Records(buffer, loss, updates=1, size=sequence, warmup_frames=1, draw="batch", sequence=sequence)


def test_acting_and_training_reach_the_same_beliefs():
    """With one class in each categorical nothing is random, so that they are equal to the last bit."""
    rows, actor = played(16, classes=1)
    assert rows["is_init"].sum() > 6
    minibatches = minibatches_of(actor, 8)
    for batch in rows.split(4, dim=1):  # sequences go on across batches
        minibatches.store(batch)
    stored = minibatches.buffer.storage[:]
    assert stored.shape[0] == 2 * 3  # from steps 0, 4 and 8
    assert stored["belief"].shape == (6, actor.world_model.belief_size)  # of the first step only
    records = make_records(stored, actor.world_model.observation_keys)
    with torch.no_grad():
        # As many rows at once as acted: products of other shapes round otherwise on some processors.
        parts = [actor.world_model(part.clone())["next", "belief"] for part in records.split(2)]
    beliefs = torch.cat(parts)
    # What acting reached at each observation, by the observation, which no other step has.
    acted = {
        tuple(observation): belief
        for observation, belief in zip(
            rows["observation"].reshape(-1, 2).tolist(), rows["next", "belief"].flatten(0, 1), strict=True
        )
    }
    compared = 0
    for observation, belief in zip(
        records["next", "observation"].reshape(-1, 2).tolist(), beliefs.flatten(0, 1), strict=True
    ):
        if tuple(observation) in acted:  # not an episode's last
            assert torch.equal(belief, acted[tuple(observation)])
            compared += 1
    assert compared > 30


def test_losses_depend_on_the_first_observation_and_action():
    rows, _ = played(8)
    loss, *_ = build(*SHORT, "+env.actions=continuous", env="gym")
    rows = rows.select("observation", "action", "is_init", "next").clone()
    for key in ("observation", "action"):
        rows[key].requires_grad_()
    entries = {"state": torch.zeros(2, 12), "belief": torch.zeros(2, 16)}
    flat = TensorDict({**{key: rows[key] for key in rows.keys()}, **entries}, [2])  # noqa: SIM118
    outputs = loss(make_records(flat, ["observation"]))
    total = sum(outputs[key] for key in loss.out_keys if key.startswith("loss_model"))
    by_observation, by_action = torch.autograd.grad(total, [rows["observation"], rows["action"]])
    assert by_observation[0, 0].any()
    assert by_action[0, 0].any()


def test_waiting_steps_go_on_after_a_resume():
    rows, actor = played(16)
    whole, halves = minibatches_of(actor, 8), minibatches_of(actor, 8)
    whole.store(rows)
    halves.store(rows[:, :6])
    resumed = minibatches_of(actor, 8)
    resumed.load_state_dict(halves.state_dict())
    resumed.store(rows[:, 6:])
    assert torch.equal(resumed.buffer.storage[:]["observation"], whole.buffer.storage[:]["observation"])
    assert torch.equal(resumed.buffer.storage[:]["state"], whole.buffer.storage[:]["state"])


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_acting_repeats_itself(deterministic):
    rows, actor = played(2)
    now = rows[:, 1].exclude("next", "action")
    kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with set_exploration_type(kind), torch.no_grad():
        states = [actor(now.clone())["next", "state"] for _ in range(6)]
    assert all(torch.equal(states[0], state) for state in states) is deterministic
    assert (states[0].view(2, 3, 4).sum(-1) - 1).abs().max() < 1e-6
