"""What a task shows arrives as it is, each entry of its kind."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from hydrl.envs import gymnasium_env, make_env, spaces
from hydrl.envs.external_env import adapt_input
from hydrl.errors import UserError
from hydrl.specs import observation_keys
from tests.fakes.pixel_envs import DotEnv, DotSceneEnv

BYTES = np.uint8


def shown_by(space: gymnasium.Space, value: object, observe: list[int] | None = None) -> object:
    """What a run observes of a task of that space when it gives the value."""
    task = DotEnv()
    task.observation_space, task.show = space, lambda: value
    return spaces.adapt_spaces(task, observe).reset(seed=0)[0]


COUNT = np.arange(5 * 6 * 3).reshape(5, 6, 3).astype(BYTES)
PICTURES = {
    "colours last": (COUNT, COUNT.transpose(2, 0, 1)),
    "colours first": (COUNT.transpose(2, 0, 1), COUNT.transpose(2, 0, 1)),
    "grey": (COUNT[..., 0], COUNT[None, ..., 0]),
    "stacked grey": (np.stack([COUNT[..., 0]] * 2), np.stack([COUNT[..., 0]] * 2)),
    "stacked colours": (
        np.stack([COUNT, COUNT + 1]),
        np.concatenate([COUNT, COUNT + 1], -1).transpose(2, 0, 1),
    ),
}


def test_a_picture_of_numbers_keeps_its_bounds_in_a_space_of_its_own():
    """Saved simulations know which objects are the same, and were saved with a space of its own."""
    task = DotEnv()
    task.observation_space = Box(-3, 65_000, (5, 6, 3), np.int32)
    adapted = spaces.adapt_spaces(task)
    own, shown = adapted.observation_space["pixels"], adapted.env.observation_space["pixels"]
    assert (own.low.min(), own.high.max(), own.dtype) == (-3, 65_000, np.float32)
    assert own is not shown
    assert own.low is not shown.low


@pytest.mark.parametrize(
    ("shape", "kind", "told"),
    [
        ((2, 5, 6, 3), np.uint16, True),
        ((2, 3, 5, 6), np.float32, True),
        ((2, 5, 6, 3), np.uint8, False),
        ((2, 4, 4, 2), np.float32, False),  # a board is a vector
        ((5, 6, 3), np.float32, False),
    ],
)
def test_stacked_pictures_that_are_read_as_a_vector_are_told(shape, kind, told, capsys):
    shown_by(Box(0, 255, shape, kind), np.zeros(shape, kind))
    assert ("stacked images that are not uint8" in capsys.readouterr().err) is told


@pytest.mark.parametrize(("given", "expected"), PICTURES.values(), ids=PICTURES)
def test_a_picture_is_bytes_with_its_channels_first(given, expected):
    pixels = shown_by(Box(0, 255, given.shape, BYTES), given)["pixels"]
    assert pixels.dtype == BYTES
    np.testing.assert_array_equal(pixels, expected)


def test_truth_values_are_bytes_and_a_picture_of_floats_stays_one():
    grid = COUNT > 20
    pixels = shown_by(Box(0, 1, grid.shape, np.bool_), grid)["pixels"]
    assert pixels.dtype == BYTES
    np.testing.assert_array_equal(pixels, grid.transpose(2, 0, 1))
    pixels = shown_by(Box(0, 1, COUNT.shape, np.float64), COUNT / 90)["pixels"]
    np.testing.assert_array_equal(pixels, (COUNT / 90).astype(np.float32).transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(3,), (2, 9), (1, 1, 3), (3, 3, 2), (4, 9, 1)])
def test_what_no_convolution_reads_is_a_vector(shape):
    numbers = np.arange(np.prod(shape)).reshape(shape).astype(BYTES)
    observation = shown_by(Box(0, 255, shape, BYTES), numbers)
    np.testing.assert_array_equal(observation, numbers.ravel().astype(np.float32))


def test_a_dictionary_keeps_its_entries_within_entries_too():
    space = Dict(a=Discrete(3, start=1), b=Dict(c=Box(-1, 1, (2, 2)), d=Box(0, 255, (5, 6, 3), BYTES)))
    given = {"a": 2, "b": {"c": np.full((2, 2), 0.5, np.float32), "d": COUNT}}
    entries = shown_by(space, given)
    assert [*entries] == ["a", "b_c", "b_d"]
    np.testing.assert_array_equal(entries["a"], [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(entries["b_c"], [0.5] * 4)
    np.testing.assert_array_equal(entries["b_d"], COUNT.transpose(2, 0, 1))


def test_a_tuple_is_a_vector_unless_there_are_pictures_in_it():
    choices = Tuple((Discrete(2), Discrete(2)))
    np.testing.assert_array_equal(shown_by(choices, (0, 1)), [1.0, 0.0, 0.0, 1.0])
    both = shown_by(Tuple((Discrete(2), Box(0, 255, (5, 6, 3), BYTES))), (1, COUNT))
    np.testing.assert_array_equal(both["0"], [0.0, 1.0])
    assert both["1"].shape == (3, 5, 6)


def test_an_entry_by_a_name_of_the_run_s_own_is_refused():
    with pytest.raises(UserError, match=r"observes action, a reserved name. Rename it in a wrapper"):
        shown_by(Dict(action=Discrete(2)), {"action": 0})


def test_places_are_hidden_in_one_vector_or_picture_alone():
    space = Box(0, 255, COUNT.shape, BYTES)
    np.testing.assert_array_equal(shown_by(space, COUNT, [2, 0])["pixels"], COUNT.transpose(2, 0, 1)[[2, 0]])
    np.testing.assert_array_equal(shown_by(Dict(one=Box(0, 9, (3,))), {"one": np.arange(3)}, [1])["one"], [1])
    with pytest.raises(TypeError, match=r"env.observe=\[3\] should be indices of 0 to 2"):
        shown_by(space, COUNT, [3])
    several = r"env.observe=\[0\] needs one vector or image, and its observation has camera, goal, speed"
    with pytest.raises(TypeError, match=several):
        spaces.adapt_spaces(DotSceneEnv(), [0])


@pytest.mark.parametrize("num_envs", [1, 3])
def test_rows_hold_what_was_shown_and_networks_read_all_of_it(num_envs):
    env = make_env(gymnasium_env_of("Scene-v0"), [], num_envs=num_envs, seed=0)
    assert observation_keys(env) == ["camera", "goal", "speed"]
    rows = env.rollout(8, break_when_any_done=False)
    camera, following = rows["camera"], rows["next", "camera"]
    assert (camera.dtype, camera.shape[-3:]) == (torch.uint8, (3, 40, 40))
    assert rows["speed"].dtype == torch.float64
    # The task writes to its one picture; a row's own would else be the last it was.
    column = camera.amax((-3, -2)).argmax(-1)
    torch.testing.assert_close(rows["goal"].argmax(-1), 1 * (column >= 20))
    going_on = ~rows["next", "done"][..., :-1, 0]
    assert torch.equal(camera[..., 1:, :, :, :][going_on], following[..., :-1, :, :, :][going_on])
    assert not torch.equal(camera[..., 1:, :, :, :][~going_on], following[..., :-1, :, :, :][~going_on])


def gymnasium_env_of(name: str):
    """A maker of one of the tasks that show pictures."""
    from functools import partial

    return partial(gymnasium_env, f"tests.fakes.pixel_envs:{name}")


def test_pictures_alone_leave_a_normaliser_nothing_to_do_and_vectors_beside_them_are_standardised():
    from hydrl.envs.transforms import normalizer

    def builders(env=None):
        return normalizer(None, None, env=env)

    alone = make_env(gymnasium_env_of("Dot-v0"), [builders], seed=0)
    assert [type(each).__name__ for each in alone.transform] == ["RewardSum"]
    beside = make_env(gymnasium_env_of("Scene-v0"), [builders], seed=0)
    assert beside.transform[-1].in_keys == ["goal", "speed"]


@pytest.mark.parametrize(
    ("shape", "expected", "warns"),
    [
        ((8, 8, 111), (8, 8, 111), True),
        ((20, 10, 10), (10, 20, 10), True),
        ((19, 19, 17), (17, 19, 19), False),
        ((10, 20, 8), (8, 10, 20), False),
        ((4, 84, 84), (4, 84, 84), False),
    ],
)
def test_a_square_side_that_is_read_as_channels_is_warned_of(shape, expected, warns, capsys):
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert shown_by(Box(0, image.max(), shape), image)["pixels"].shape == expected
    assert ("If that is wrong, add" in capsys.readouterr().err) is warns


@pytest.mark.parametrize(("channels", "order"), [("first", (0, 1, 2)), ("last", (2, 0, 1))])
def test_named_channels_are_those_whatever_their_number(channels, order, capsys):
    board = np.arange(8 * 8 * 111, dtype=np.float32).reshape(8, 8, 111)
    space = spaces.name_channels(Dict({"board": Box(0, 1e4, board.shape), "n": Discrete(2)}), channels)
    observation = shown_by(space, {"board": board, "n": 1})
    np.testing.assert_array_equal(observation["board"], board.transpose(order))
    np.testing.assert_array_equal(observation["n"], [0, 1])
    batch = adapt_input(torch.as_tensor(board)[None], space["board"])[0]
    np.testing.assert_array_equal(batch, board.transpose(order))
    assert "If that is wrong" not in capsys.readouterr().err


def test_channels_of_another_name_are_refused():
    with pytest.raises(UserError, match=r"env\.channels=middle: no such order\. Write first or last\."):
        spaces.name_channels(Box(0, 1, (8, 8, 3)), "middle")
