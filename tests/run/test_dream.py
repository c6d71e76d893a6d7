"""Frames of what a world model dreams, beside what happened."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from hydrl.run.dream import OBSERVED, draw_dream


class Dreamer:
    """Dreams a number that is off by 1 and an image that is off by ``error``, once it observes no more."""

    def __init__(self, error: float) -> None:
        self.error = error

    def dream(self, steps, observed):
        assert observed == OBSERVED
        truth = {"number": steps["number"], "camera": steps["camera"]}
        unseen = (torch.arange(len(steps)) >= observed).float()
        return truth, {
            "number": truth["number"] + unseen.view(-1, 1, 1),
            "camera": truth["camera"] + self.error * unseen.view(-1, 1, 1, 1, 1),
        }


def episode(steps: int) -> TensorDict:
    numbers = torch.linspace(0, 1, steps).unsqueeze(-1)
    return TensorDict({"number": numbers, "camera": torch.full((steps, 1, 8, 8), 0.25)}, [steps])


def test_each_step_has_a_frame_of_even_sides(monkeypatch):
    monkeypatch.setattr("hydrl.run.dream.MAX_STEPS", 3)
    frames = [*draw_dream(Dreamer(0.5), episode(4))]
    assert len(frames) == 3
    assert {frame.shape for frame in frames} == {frames[0].shape}
    assert frames[0].dtype == np.uint8
    assert all(side % 2 == 0 for side in frames[0].shape[:2])


def test_the_difference_appears_where_the_dream_begins():
    """The three images lie beside each other: 64 and 191 of 255 are their greys, 127 their difference."""
    frames = [*draw_dream(Dreamer(0.5), episode(OBSERVED + 1))]
    for frame, greys in ((frames[OBSERVED - 1], (64, 64, 0)), (frames[OBSERVED], (64, 191, 128))):
        row = frame[frame.shape[0] // 4]
        places = (frame.shape[1] * np.array([1, 3, 5])) // 6
        assert row[places, 0].tolist() == pytest.approx(greys, abs=2)
