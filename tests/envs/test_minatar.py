"""MinAtar's games: bounded, seeded, drawn."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from hydrl.envs import gymnasium_env, make_env, minatar
from hydrl.envs.gymnasium import make_wrapped_env
from hydrl.errors import UserError
from tests.conftest import settings

needs_minatar = pytest.mark.skipif(not find_spec("minatar"), reason="needs pip install 'hydrl[minatar]'")
BREAKOUT = "MinAtar/Breakout-v1"


def keywords(id: str, *words: str) -> dict:
    """What ``env=minatar env.id=ID`` makes a task of."""
    return settings("algo=ppo", "env=minatar", f"env.id={id}", *words).build("env").keywords


@needs_minatar
def test_a_brick_pays_one_and_a_missed_ball_ends_the_game():
    task = make_wrapped_env(**keywords(BREAKOUT, "env.sticky=0"))
    first, _ = task.reset(seed=0)
    assert first.shape == (10, 10, 4)
    assert first[9, 4, 0]  # the paddle
    assert first[1:4, :, 3].all()  # three rows of bricks
    left = bool(first[3, 0, 1])  # the ball falls from one side towards the other
    assert left or first[3, 9, 1]
    actions = [2 if left else 0] + [0] * 15  # so that the paddle is where the ball comes down
    played = [task.step(action)[1:4] for action in actions]
    # Five rows down, off the paddle, four up and off a side: the 11th step meets a brick, the 16th nothing.
    assert [each[0] for each in played] == [0] * 10 + [1] + [0] * 5
    assert [each[1:] for each in played] == [(False, False)] * 15 + [(True, False)]


@needs_minatar
@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_an_episode_is_its_seed_s_alone(game):
    def played(task, actions) -> list:
        found = [task.reset(seed=3)[0]]
        for action in actions:
            observation, reward, terminated, *_ = task.step(action)
            found += [observation, reward]
            if terminated:
                break
        return found

    task, fresh = (make_wrapped_env(**keywords(f"MinAtar/{game}-v1", "env.sticky=0.9")) for _ in range(2))
    task.reset(seed=1)
    task.step(1)  # which the first steps of the next episode must not take
    actions = [0, 2, 0, 1] * 20
    for ours, theirs in zip(played(task, actions), played(fresh, actions), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@needs_minatar
def test_a_sticky_action_is_the_one_before():
    always = make_wrapped_env(**keywords(BREAKOUT, "env.sticky=0.999999"))
    always.reset(seed=0)
    assert always.step(2)[0][9, 4, 0]  # none was before
    never = make_wrapped_env(**keywords(BREAKOUT, "env.sticky=0"))
    never.reset(seed=0)
    assert never.step(2)[0][9, 5, 0]


@needs_minatar
def test_an_episode_that_goes_on_is_truncated():
    task = make_wrapped_env(**keywords("MinAtar/Freeway-v1", "env.max_episode_steps=50"))
    task.reset(seed=0)
    ends = [task.step(0)[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]
    assert keywords(BREAKOUT)["max_episode_steps"] == 5_000


@needs_minatar
def test_environments_begin_otherwise_by_their_seeds_and_alike_by_the_same():
    def begun(seed: int) -> torch.Tensor:
        env = gymnasium_env(**keywords("MinAtar/Asterix-v1"), num_envs=3)
        env.set_seed(seed)
        torch.manual_seed(0)
        played = env.rollout(30, break_when_any_done=False)
        return torch.cat(
            [each.flatten(2).float() for each in played.select(*env.observation_keys).values()], -1
        )

    first, again, other = begun(0), begun(0), begun(7)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, other)


@needs_minatar
def test_its_pictures_are_what_films_take():
    env = make_env(
        settings("algo=ppo", "env=minatar", f"env.id={BREAKOUT}").build("env"), [], render="rgb_array"
    )
    env.set_seed(0)
    env.reset()
    drawn = env.base_env.render()
    assert env.base_env.metadata["render_fps"] == 20
    assert (drawn.shape, drawn.dtype) == ((320, 320, 3), np.uint8)
    cells = drawn[16::32, 16::32]
    assert len({tuple(each) for each in cells[1:4].reshape(-1, 3)}) == 1  # bricks
    assert not cells[5].any()  # nothing
    assert cells[9, 4].any()  # the paddle


@needs_minatar
@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("MinAtar/Brakout-v1", "env.id=MinAtar/Brakout-v1: no such game. Write MinAtar/Breakout-v1"),
        ("Space_Invaders", "Write MinAtar/SpaceInvaders-v1"),
        ("MinAtar/Pong-v1", "Write MinAtar/Asterix-v1 or MinAtar/Breakout-v1 or MinAtar/Freeway-v1 or"),
    ],
)
def test_a_game_that_there_is_not_is_told_with_those_that_are_near(id, told):
    with pytest.raises(UserError, match=told):
        gymnasium_env(**keywords(id))


def test_a_package_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "minatar", None)
    monkeypatch.delitem(sys.modules, "minatar.gym", raising=False)
    with pytest.raises(
        UserError, match=r"^env=minatar: minatar.* is not installed\. Run pip install 'hydrl\[minatar\]'"
    ):
        minatar.make(BREAKOUT)
