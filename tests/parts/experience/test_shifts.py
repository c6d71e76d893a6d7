"""Pictures that are drawn from a memory, moved at random."""

import pytest
import torch
from tensordict import TensorDict
from test_frames import batches, kept_in, replay
from torchrl.data import LazyTensorStorage

from hydrl.errors import UserError
from hydrl.parts.experience.shifts import RandomShift


def moved(picture, down, right):
    """A picture ``[C, H, W]`` by hand: what comes in repeats its edge."""
    height, width = picture.shape[-2:]
    there = torch.empty_like(picture)
    for y in range(height):
        for x in range(width):
            from_y, from_x = min(max(y + down, 0), height - 1), min(max(x + right, 0), width - 1)
            there[:, y, x] = picture[:, from_y, from_x]
    return there


def test_each_picture_moves_within_the_bound_all_its_frames_alike():
    torch.manual_seed(0)
    pictures = torch.randint(256, (250, 6, 7, 5), dtype=torch.uint8)
    rows = TensorDict({"pixels": pictures, "next": {"pixels": pictures}}, [250])
    shifted = RandomShift(["pixels", ("next", "pixels")], 2)(rows.clone())
    assert shifted["pixels"].dtype == torch.uint8
    found = []
    for whole, *two in zip(pictures, shifted["pixels"], shifted["next", "pixels"], strict=True):
        every = {(y, x): moved(whole, y, x) for y in range(-2, 3) for x in range(-2, 3)}
        found.append([[by for by, each in every.items() if torch.equal(each, one)] for one in two])
    assert all(len(each) == 1 for pair in found for each in pair)
    now, after = ([pair[part][0] for pair in found] for part in (0, 1))
    assert {*now} == {*after} == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}
    assert 1 < sum(one == other for one, other in zip(now, after, strict=True)) < 30  # one in 25 by chance
    assert torch.equal(rows["pixels"], pictures)


def test_drawn_pictures_are_moved_and_those_that_are_kept_are_not():
    (batch,) = batches(1, time=20)
    plain, shifting = (replay(kept_in(LazyTensorStorage(90)), shift=each) for each in (None, 1))
    torch.manual_seed(0)
    whole = next(plain(batch.clone()))
    torch.manual_seed(0)
    drawn = next(shifting(batch.clone()))
    assert torch.equal(drawn["next", "reward"], whole["next", "reward"])
    for key in ("pixels", ("next", "pixels")):
        apart = [not torch.equal(one, other) for one, other in zip(drawn[key], whole[key], strict=True)]
        assert 8 < sum(apart) <= 16
        able = [
            any(torch.equal(one, moved(other, y, x)) for y in (-1, 0, 1) for x in (-1, 0, 1))
            for one, other in zip(drawn[key], whole[key], strict=True)
        ]
        assert all(able)
    kept = [each.buffer.transform(each.buffer.storage.get(slice(None))) for each in (plain, shifting)]
    assert torch.equal(kept[0]["pixels"], kept[1]["pixels"])


def test_without_pictures_there_is_nothing_to_move():
    with pytest.raises(UserError, match=r"minibatches\.shift=4 moves pictures, and the task shows none"):
        replay(kept_in(LazyTensorStorage(90), keys=()), shift=4)
