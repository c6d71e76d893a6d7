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
from tests.fakes.pixel_envs import DotEnv

PICTURE = Box(0, 255, (5, 4, 3), np.uint8)
SPACES = {
    "Picture": PICTURE,
    "Grey": Box(0, 255, (5, 4), np.uint8),
    "Stack": Box(0, 255, (2, 5, 4, 3), np.uint8),
    "Grid": Box(0, 1, (5, 4, 3), np.bool_),
    "Nested": Dict(a=Discrete(3, start=1), b=Dict(c=Box(-1, 1, (2, 2)), d=Tuple((PICTURE, MultiBinary(2))))),
    "Row": Tuple((Discrete(2), MultiDiscrete([2, 3], start=[1, 0]), Box(-1, 1, ()))),
}


class Shows(DotEnv):
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
            r"^observation: got uint8 of shape \[3, 5, 4\]\. Pass uint8 of shape \[5, 4, 3\], or "
            r"\[n, 5, 4, 3\] for a batch\.$",
        ),
        (
            "Picture",
            np.zeros((5, 4, 3)),
            r"^observation: got float64 of shape \[5, 4, 3\]\. Pass uint8 of ",
        ),
        ("Picture", {"pixels": 0}, r"^observation: got object of shape \[\]\. Pass uint8"),
        ("Grid", np.zeros((5, 4, 3), np.uint8), r"^observation: got uint8 .* Pass bool of"),
        ("Picture", [[1], [1, 2]], r"^observation: got object of shape \[\]\. Pass uint8"),
        (
            "Nested",
            of_three(lambda seen: seen["b"].pop("c")),
            r"^observation\['b'\]\['c'\]: it is missing, got a dict of 1\. Pass a dictionary of c, d as "
            r"observation\['b'\]\.$",
        ),
        (
            "Nested",
            np.zeros(3),
            r"^observation\['a'\]: it is missing, got an array of shape .* Pass a dictionary of a, b as",
        ),
        (
            "Nested",
            of_three(lambda seen: seen["b"].update(d=(seen["b"]["d"][0],))),
            r"^observation\['b'\]\['d'\]\[1\]: it is missing, got a tuple of 1\. Pass a tuple of 2 as "
            r"observation\['b'\]\['d'\]\.$",
        ),
        (
            "Nested",
            of_three(lambda seen: seen.update(a=seen["a"] + 0.5)),
            r"^observation\['a'\]: got float64 of shape \[3\]\. Pass int64 of shape \[\], or \[n\] for a ",
        ),
        (
            "Nested",
            of_three(lambda seen: seen["b"].update(c=seen["b"]["c"][:2])),
            r"^observation: batch sizes differ: .*'a'\] has shape \[3\] and .*'c'\] has shape \[2, 2, 2\]\.",
        ),
        (
            "Nested",
            of_three(lambda seen: seen.update(a=seen["a"][0])),
            r"batch sizes differ: observation\['a'\] has shape \[\] and .*\['c'\] has shape \[3, 2, 2\]\.",
        ),
    ],
)
def test_what_the_task_does_not_show_is_told_by_its_entry_in_a_line(name, given, told):
    form, _ = of_task(name)
    with pytest.raises(UserError, match=told):
        form.read(given)
