"""What somebody else's loop observes is read as the run's own environment reads it."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from torchrl.envs import EnvBase

from hydrl.envs import gymnasium_env
from hydrl.envs.external_env import GymIO
from hydrl.errors import UserError
from tests.fakes.pixel_envs import Dot

PICTURE = Box(0, 255, (5, 4, 3), np.uint8)
SPACES = {
    "Picture": PICTURE,
    "Grey": Box(0, 255, (5, 4), np.uint8),
    "Stack": Box(0, 255, (2, 5, 4, 3), np.uint8),
    "Grid": Box(0, 1, (5, 4, 3), np.bool_),
    "Nested": Dict(a=Discrete(3, start=1), b=Dict(c=Box(-1, 1, (2, 2)), d=Tuple((PICTURE, MultiBinary(2))))),
    "Row": Tuple((Discrete(2), MultiDiscrete([2, 3], start=[1, 0]), Box(-1, 1, ()))),
}


class Shows(Dot):
    """Shows what its space draws."""

    def __init__(self, space: str, render_mode: str | None = None) -> None:
        super().__init__()
        self.observation_space = SPACES[space]

    def show(self) -> object:
        self.side = 0
        return self.observation_space.sample()


gymnasium.register("Shows-v0", Shows)


def of_task(space: str) -> tuple[GymIO, EnvBase]:
    """How a task is read that shows what the space of that name draws, and the run's own environment."""
    make = partial(gymnasium_env, id="Shows-v0", space=space)
    env = make()
    return GymIO(make, env.action_spec_unbatched, "predict"), env


@pytest.mark.parametrize("name", SPACES)
def test_what_is_shown_is_read_as_the_run_s_own_environment_reads_it(name):
    (form, env), space = of_task(name), SPACES[name]
    drawn, expected = [], []
    for seed in range(3):
        space.seed(seed)
        drawn.append(space.sample())
        space.seed(seed)
        expected.append(env.reset())
    many = form.read(concatenate(space, drawn, create_empty_array(space, 3)))
    assert many.batch_size == (3,)
    assert {*many.keys()} == {*env.observation_spec.keys()}
    for key, entry in many.items():
        for row, each, wanted in zip(entry, drawn, expected, strict=True):
            assert row.dtype == wanted[key].dtype
            assert torch.equal(row, wanted[key]), key
            assert torch.equal(form.read(each)[key], wanted[key]), key
    assert len({row.numpy().tobytes() for row in entry}) > 1


def of_three(change) -> dict:
    """Three observations of the nested task, changed."""
    space = SPACES["Nested"]
    seen = concatenate(space, [space.sample() for _ in range(3)], create_empty_array(space, 3))
    change(seen)
    return seen


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "Picture",
            np.zeros((3, 5, 4), np.uint8),
            r"^observation should be uint8 of shape \[5, 4, 3\], or of shape \[n, 5, 4, 3\] for many; got "
            r"uint8 of shape \[3, 5, 4\]$",
        ),
        (
            "Picture",
            np.zeros((5, 4, 3)),
            r"^observation should be uint8 of .* got float64 of shape \[5, 4, 3\]$",
        ),
        ("Picture", {"pixels": 0}, r"^observation should be uint8 of .*; got object of shape \[\]$"),
        ("Grid", np.zeros((5, 4, 3), np.uint8), r"^observation should be bool of .*; got uint8"),
        ("Picture", [[1], [1, 2]], r"^observation should be uint8 .*; got object of shape \[\]$"),
        (
            "Nested",
            of_three(lambda seen: seen["b"].pop("c")),
            r"^observation\['b'\]\['c'\] is missing: observation\['b'\] should be a dictionary of c, d; got "
            "a dict of 1$",
        ),
        (
            "Nested",
            np.zeros(3),
            r"^observation\['a'\] is missing: .* a dictionary of a, b; got an array of shape",
        ),
        (
            "Nested",
            of_three(lambda seen: seen["b"].update(d=(seen["b"]["d"][0],))),
            r"^observation\['b'\]\['d'\]\[1\] is missing: observation\['b'\]\['d'\] should be a tuple of 2; "
            "got a tuple of 1$",
        ),
        (
            "Nested",
            of_three(lambda seen: seen.update(a=seen["a"] + 0.5)),
            r"^observation\['a'\] should be int64 of shape \[\], or of shape \[n\] for many; got float64 "
            r"of shape \[3\]$",
        ),
        (
            "Nested",
            of_three(lambda seen: seen["b"].update(c=seen["b"]["c"][:2])),
            r"^an observation's entries should be as many: observation\['a'\] has shape \[3\] and "
            r"observation\['b'\]\['c'\] \[2, 2, 2\]$",
        ),
        (
            "Nested",
            of_three(lambda seen: seen.update(a=seen["a"][0])),
            r"should be as many: observation\['a'\] has shape \[\] and .*\['c'\] \[3, 2, 2\]$",
        ),
    ],
)
def test_what_the_task_does_not_show_is_told_by_its_entry_in_a_line(name, given, told):
    form, _ = of_task(name)
    with pytest.raises(UserError, match=told):
        form.read(given)
