"""Noise held for several steps: the policy's own distribution, as long as its law says."""

from collections import Counter
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.data import Bounded
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.experience.collectors import make_collector
from hydrl.networks import actors
from hydrl.networks.exploration import NOISE, RepeatedNoise
from hydrl.specs import make_exploration
from tests.fakes.envs import CountingEnv


def acted(steps: int, envs: int, *, starts: dict[int, int] | None = None, **options) -> list[TensorDict]:
    """What ``steps`` steps of environments write; ``starts``: the environment that begins anew, by step."""
    torch.manual_seed(0)
    exploration = RepeatedNoise(Bounded(-1.0, 3.0, (2,)), **options)
    written, carried = [], TensorDict({"is_init": torch.ones(envs, 1, dtype=torch.bool)}, [envs])
    for step in range(steps):
        if starts and step in starts:
            carried["is_init"][starts[step]] = True
        loc, scale = torch.full((envs, 2), 0.1 * step), torch.full((envs, 2), 0.5)
        carried.update({"loc": loc, "scale": scale, "action": torch.zeros(envs, 2)})
        written.append(exploration(carried).clone())
        carried["is_init"] = torch.zeros(envs, 1, dtype=torch.bool)
    return written


def test_actions_are_those_of_held_noise_within_the_bounds():
    for step, row in enumerate(acted(3, 4)):
        action = 1 + 2 * torch.tanh(0.1 * step + 0.5 * row[NOISE])
        torch.testing.assert_close(row["action"], action)


def test_lengths_follow_their_law_and_environments_draw_their_own():
    """With probabilities proportional to 1/n^2 up to 4: 0.70, 0.18, 0.08, 0.04."""
    noise = torch.stack([row[NOISE][:, 0] for row in acted(400, 50, longest=4)])
    lengths = Counter()
    for values in noise.T:
        lengths.update(length for _, length in runs(values)[:-1])
    total = lengths.total()
    for length, share in zip(range(1, 5), [144 / 205, 36 / 205, 16 / 205, 9 / 205], strict=True):
        assert lengths[length] / total == pytest.approx(share, abs=0.01)
    assert max(lengths) == 4
    assert noise[0].unique().numel() == 50
    assert noise.mean().abs() < 0.05
    assert noise.std().item() == pytest.approx(1, abs=0.05)


def runs(values: torch.Tensor) -> list[tuple[float, int]]:
    """Values in a row that are equal, and how many."""
    unique, counts = values.unique_consecutive(return_counts=True)
    return list(zip(unique.tolist(), counts.tolist(), strict=True))


def test_an_episode_begins_with_noise_of_its_own_and_others_go_on():
    rows = acted(3, 2, starts={1: 0}, power=1e-6, longest=1_000)  # holds for hundreds of steps
    first, second, third = (row[NOISE] for row in rows)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(second, third)


def test_a_deterministic_action_stays_as_it_is():
    exploration = RepeatedNoise(Bounded(-1.0, 1.0, (2,)))
    row = TensorDict({"action": torch.tensor([[0.1, 0.2]])}, [1])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert [*exploration(row.clone()).keys()] == ["action"]


def test_a_collector_carries_noise_from_batch_to_batch_until_an_episode_ends():
    """The actor's bounds are -2 and 3; noise is what its normal distribution must have drawn."""
    torch.manual_seed(0)
    env = envs.make_env(partial(CountingEnv, actions="continuous"), [], num_envs=2, seed=0)
    actor = actors.tanh_normal(env, num_cells=[4], activation="Tanh", in_keys=["observation"])
    holding = partial(RepeatedNoise, power=1e-6, longest=1_000)
    policy = TensorDictSequential(actor, make_exploration(holding, env, actor))
    options = {"init_random_frames": 0, "num_envs": 2, "seed": 0, "device": "cpu"}
    collector = make_collector(env, None, policy, frames_per_batch=6, **options)
    batches = [batch.clone() for batch, _ in zip(collector, range(4), strict=False)]
    collector.shutdown()
    batch = torch.cat(batches, 1)
    noise = (((batch["action"] - 0.5) / 2.5).atanh() - batch["loc"]) / batch["scale"]
    same = (noise[:, 1:] - noise[:, :-1]).abs().amax(-1) < 1e-3
    assert torch.equal(same, ~batch["is_init"][:, 1:, 0])
    assert not batch["is_init"][:, 3].any()  # a batch's first row that goes on
    assert batch["is_init"][:, 1:].any()
