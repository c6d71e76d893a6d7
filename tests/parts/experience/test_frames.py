"""A replay memory that keeps each picture once gives what one with whole stacks gives, byte for byte."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer

from hydrl.parts.experience.buffers import PrioritizedSampler
from hydrl.parts.experience.frames import Frames
from hydrl.parts.experience.minibatches import Replay

LOSS = SimpleNamespace(
    value_estimator=SimpleNamespace(gamma=torch.tensor(0.9)),
    tensor_keys=SimpleNamespace(priority="td_error"),
)


class Film:
    """Pictures ``[C, 3, 3]`` that are stacked and never come twice, in episodes of one environment.

    Args:
        seed: of the lengths of episodes and of the pictures.
        stacked: frames in a stack; the first of an episode is repeated.
        channels: of a frame.
        longest: steps of an episode; every third is cut short by a time limit.
    """

    def __init__(self, seed: int, stacked: int = 4, channels: int = 1, longest: int = 9) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.stacked, self.channels, self.longest, self.episodes = stacked, channels, longest, 0
        self.begin()

    def frame(self):
        return torch.randint(256, (self.channels, 3, 3), generator=self.draw, dtype=torch.uint8)

    def begin(self):
        self.stack, self.left = [self.frame()] * self.stacked, self.number(1, self.longest + 1)
        self.episodes += 1

    def number(self, low, high):
        return int(torch.randint(low, high, (), generator=self.draw))

    def step(self):
        before, self.left = torch.cat(self.stack), self.left - 1
        self.stack = [*self.stack[1:], self.frame()]
        ended = self.left == 0
        flags = {"terminated": ended and self.episodes % 3 > 0, "truncated": ended and not self.episodes % 3}
        flags = {name: torch.tensor([each]) for name, each in {**flags, "done": ended}.items()}
        reward = torch.tensor([float(self.number(0, 9))])
        row = {"pixels": before, "next": {"pixels": torch.cat(self.stack), "reward": reward, **flags}}
        if ended:
            self.begin()
        return TensorDict(row)


def batches(count, envs=3, time=7, **film):
    """Batches ``[envs, time]`` with what they are of in ``number``; ``[time]`` of no environments."""
    films = [Film(seed, **film) for seed in range(envs or 1)]
    for _ in range(count):
        batch = torch.stack([torch.stack([each.step() for _ in range(time)]) for each in films])
        yield batch if envs else batch[0]


def memories(max_size, stacked=4, buffer=ReplayBuffer, storage=LazyTensorStorage, keys=("pixels",), **replay):
    """Two of the same that draw alike: one keeps whole stacks, the other each frame once."""
    made = []
    for once in (False, True):
        kept = buffer(storage=storage(max_size), **({"sampler": PrioritizedSampler(max_size, 0.6, 0.4)} if buffer is not ReplayBuffer else {}))
        if once:
            kept.append_transform(Frames(kept.storage, keys, stacked))
        numbers = {"updates": 2, "size": 16, "warmup_frames": 0, "n_steps": 1, "draw": "batch", **replay}
        made.append(Replay(kept, LOSS, **numbers))
    return made


def drawn(memory, batch, seed):
    torch.manual_seed(seed)
    found = []
    for minibatch in memory(batch.clone()):
        found.append(minibatch.clone())
        minibatch["td_error"] = minibatch["next", "reward"][:, 0] + 0.1
    return found


@pytest.mark.parametrize("envs", [0, 1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("film", [{}, {"channels": 3}, {"stacked": 1}, {"longest": 1}, {"longest": 40}])
def test_all(envs, n_steps, film):
    whole, once = memories(60, film.get("stacked", 4), n_steps=n_steps)
    for at, batch in enumerate(batches(20, envs, **film)):
        first, second = drawn(whole, batch, at), drawn(once, batch, at)
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert set(one.keys(True, True)) == set(other.keys(True, True))
            assert (one == other).all()
    assert (whole.buffer[:] == once.buffer[:]).all()
