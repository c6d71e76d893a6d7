"""Atari's games by the published protocol, worked out by hand from the emulator's own pictures."""

import sys
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torchrl.envs import GymWrapper

from hydrl.envs import atari, make_env
from hydrl.envs.atari import EpisodicLife
from hydrl.envs.gymnasium import for_evaluation, gymnasium_env, make_wrapped_env
from hydrl.errors import UserError
from hydrl.run.video import steps_per_second
from tests.conftest import settings

needs_atari = pytest.mark.skipif(
    not (find_spec("ale_py") and find_spec("cv2")), reason="needs pip install 'hydrl[atari]'"
)
NOOP, FIRE = 0, 1


def keywords(id: str, *words: str) -> dict:
    """What ``env=atari env.id=ID`` makes a task of."""
    return settings("algo=ppo", "env=atari", f"env.id={id}", *words).build("env").keywords


def raw(id: str) -> gymnasium.Env:
    """The same game without any wrapper."""
    return gymnasium.make(id, frameskip=1, repeat_action_probability=0.0)


def seen(game: gymnasium.Env) -> np.ndarray:
    """The screen in grey, as it is now."""
    return game.unwrapped.ale.getScreenGrayscale()


def small(screen: np.ndarray) -> np.ndarray:
    import cv2

    return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)


class Game(gymnasium.Env):
    """Loses lives as it is told, and counts its games; an action is what is observed next."""

    observation_space, action_space = Box(0.0, 10.0, (1,)), Discrete(3)

    def __init__(self, lives: list[int]) -> None:
        self.plan, self.games = lives, 0
        self.ale = SimpleNamespace(lives=lambda: self.left[0])

    def reset(self, *, seed=None, options=None):
        self.games += 1
        self.left = [*self.plan]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        del self.left[0]
        return np.full(1, action, np.float32), 1.0, len(self.left) == 1, False, {}


def test_an_episode_of_training_is_a_life_and_the_game_goes_on_behind_a_no_op():
    game = EpisodicLife(Game([3, 3, 2, 2, 1, 0]))
    game.reset(seed=0)
    assert [game.step(2)[2] for _ in range(2)] == [False, True]
    observation, _ = game.reset()
    assert (observation.item(), game.unwrapped.left, game.unwrapped.games) == (NOOP, [2, 1, 0], 1)
    assert game.step(2)[2]
    game.reset()  # whose no-op ends the game, so that another begins
    assert (game.unwrapped.left, game.unwrapped.games) == ([3, 3, 2, 2, 1, 0], 2)
    assert not game.step(2)[2]
    game.reset()  # in the middle of a life
    assert game.unwrapped.games == 3
    game.step(2), game.step(2)
    game.reset(seed=1)  # which no life that is left could keep to
    assert game.unwrapped.games == 4


def test_lives_are_asked_of_games_that_have_them():
    with pytest.raises(
        UserError, match=r"env.wrappers.life: cannot wrap .* EpisodicLife needs an Atari game"
    ):
        make_wrapped_env("CartPole-v1", {"life": partial(EpisodicLife)})


@needs_atari
def test_a_game_begins_with_frames_in_which_nothing_is_done():
    words = keywords("ALE/Breakout-v5")
    task, begun = make_wrapped_env(**words), []
    for seed in range(6):
        stack, _ = task.reset(seed=seed)
        alone = raw("ALE/Breakout-v5")
        alone.reset(seed=seed)
        drawn = int(alone.unwrapped.np_random.integers(1, 31))
        for _ in range(drawn):
            alone.step(NOOP)
        begun.append(drawn)
        assert task.unwrapped.ale.getEpisodeFrameNumber() == alone.unwrapped.ale.getEpisodeFrameNumber()
        assert stack.shape == (4, 84, 84)
        assert stack.dtype == np.uint8
        for picture in stack:  # padded with the first
            np.testing.assert_array_equal(picture, small(seen(alone)))
    assert len({*begun}) > 3


@needs_atari
def test_an_action_is_held_for_four_frames_and_the_larger_of_the_last_two_is_shown():
    task = make_wrapped_env(**keywords("ALE/SpaceInvaders-v5", "env.wrappers.preprocessing.noop_max=0"))
    assert steps_per_second(GymWrapper(task)) == 60 / 4
    alone = raw("ALE/SpaceInvaders-v5")
    before, _ = task.reset(seed=3)
    alone.reset(seed=3)
    flickered, paid = 0, 0.0
    for step, action in enumerate(np.random.default_rng(0).integers(6, size=200)):
        stack, reward, *_ = task.step(action)
        screens, rewards = [], []
        for _ in range(4):
            rewards.append(alone.step(action)[1])
            screens.append(seen(alone))
        np.testing.assert_array_equal(stack[-1], small(np.maximum(*screens[2:])), err_msg=str(step))
        np.testing.assert_array_equal(stack[:-1], before[1:])
        assert reward == sum(rewards)
        flickered += not np.array_equal(*screens[2:])
        before, paid = stack, paid + reward
    assert flickered
    assert paid > 1


@needs_atari
def test_an_episode_ends_with_a_life_in_training_and_with_the_game_in_evaluation():
    make = settings("algo=ppo", "env=atari", "env.id=ALE/Breakout-v5").build("env")

    def lives_at_the_end(keywords: dict) -> tuple[int, int]:
        task = make_wrapped_env(**keywords)
        task.reset(seed=0)
        for step in range(1_000):
            *_, terminated, truncated, _ = task.step(FIRE)
            if terminated:
                return task.unwrapped.ale.lives(), step
        raise AssertionError(truncated)

    (left, after), (none, later) = map(lives_at_the_end, (make.keywords, for_evaluation(make).keywords))
    assert (left, none) == (4, 0)
    assert later > 2 * after


@pytest.mark.parametrize("words", ["algo=ppo", "algo=dqn", "algo=ppo transforms=plain"])
def test_rewards_are_clipped_before_whatever_an_algorithm_makes_of_them(words):
    stack = [*settings(*words.split(), "env=atari", "env.id=ALE/Pong-v5").transforms]
    assert stack.index("reward_sign") == 0


@needs_atari
def test_returns_are_the_game_s_score_and_what_is_learned_from_is_its_sign():
    chosen = settings("algo=dqn", "env=atari", "env.id=ALE/SpaceInvaders-v5", "~env.wrappers.life")
    env, seed = make_env(chosen.build("env"), chosen.transform_builders), 1
    env.set_seed(seed)
    torch.manual_seed(0)
    played = env.rollout(150, auto_cast_to_device=False)
    task = make_wrapped_env(**chosen.build("env").keywords)
    task.reset(seed=seed), task.reset()  # set_seed resets it, and so does the rollout
    score = sum(task.step(int(action.argmax()))[1] for action in played["action"])
    assert {*played["next", "reward"].flatten().tolist()} == {0.0, 1.0}
    assert played["next", "episode_reward"][-1].item() == score
    assert score >= 5 * played["next", "reward"].sum()


@needs_atari
def test_environments_begin_otherwise_by_their_seeds_and_alike_by_the_same():
    def begun(seed: int) -> torch.Tensor:
        env = gymnasium_env(**keywords("ALE/Pong-v5"), num_envs=3)
        env.set_seed(seed)
        torch.manual_seed(0)
        played = env.rollout(40)
        return torch.cat(
            [each.flatten(2).float() for each in played.select(*env.observation_keys).values()], -1
        )

    first, again, other = begun(0), begun(0), begun(7)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, other)


@needs_atari
def test_the_emulator_s_limit_truncates():
    task = make_wrapped_env(**keywords("ALE/Pong-v5", "+env.max_num_frames_per_episode=400"))
    task.reset(seed=0)
    ends = [task.step(NOOP)[2:4] for _ in range(100)]
    assert ends.index((False, True)) <= 99
    assert (True, False) not in ends


@needs_atari
@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("ALE/Pnog-v5", "env.id=ALE/Pnog-v5: no such game. Write ALE/Pong-v5"),
        ("PongNoFrameskip-v4", "env.id=PongNoFrameskip-v4: no such game. Write ALE/Pong-v5"),
        ("ALE/space_invader-v5", "Write ALE/SpaceInvaders-v5"),
    ],
)
def test_a_game_that_there_is_not_is_told_with_those_that_are_near(id, told):
    with pytest.raises(UserError, match=told):
        gymnasium_env(**keywords(id))


@needs_atari
@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "+env.frameskip=4",
            "env.frameskip=4: another key sets this. Write env.wrappers.preprocessing.frame_skip=4",
        ),
        (
            "+env.repeat_action_probability=0.25",
            "env.repeat_action_probability=0.25: .* Write env.sticky=0.25",
        ),
        ("env.sticky=1.5", "env.sticky=1.5: should be a probability"),
        ("+env.mode=77", r"^env.mode=77: ALE/Pong-v5 has no such mode\. Write one of 0, 1\.$"),
        ("+env.difficulty=9", "^env.difficulty=9: .* Write one of 0, 1, 2, 3.$"),
        (
            "+env.flavour=1",
            "^env.id=ALE/Pong-v5: cannot be created: it takes no flavour. Leave env.flavour out",
        ),
    ],
)
def test_what_is_called_otherwise_here_is_told(word, told):
    with pytest.raises(UserError, match=told):
        gymnasium_env(**keywords("ALE/Pong-v5", word))


@needs_atari
def test_a_sticky_action_is_that_of_the_frame_before():
    taken, task = [], atari.make("ALE/Pong-v5", sticky=0.25)
    asked = [step // 4 % 6 for step in range(800)]  # four frames each, as preprocessing holds them
    task.reset(seed=0)
    emulator = task.unwrapped.ale
    task.unwrapped.ale = SimpleNamespace(
        act=lambda action, strength: taken.append(action) or emulator.act(action, strength),
        **{name: getattr(emulator, name) for name in dir(emulator) if name[0] != "_" and name != "act"},
    )
    for action in asked:
        task.step(action)
    wanted = [task.unwrapped._action_set[each] for each in asked]
    held = [now == before != want for before, now, want in zip(taken, taken[1:], wanted[1:], strict=False)]
    others = [now != want for now, want in zip(taken, wanted, strict=True)]
    assert sum(others) == sum(held)
    # A quarter of the 199 changes come a frame late, and so on.
    assert sum(others) == pytest.approx(199 * (0.25 + 0.25**2 + 0.25**3), abs=25)


@needs_atari
def test_frames_are_never_skipped_twice():
    given = {"preprocessing": partial(gymnasium.wrappers.AtariPreprocessing)}
    with pytest.raises(UserError, match=r"it skips frames, and ALE/Pong-v5 does, too\. Write env=atari, or "):
        make_wrapped_env("ALE/Pong-v5", given)


@needs_atari
def test_a_game_as_it_comes_is_told_with_what_it_is_by_the_protocol(capsys, monkeypatch):
    for _ in range(2):
        gymnasium_env("ALE/Pong-v5").close()
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert told == [
        "warning: env.id=ALE/Pong-v5: env=gym skips the usual preprocessing. Write env=atari "
        "env.id=ALE/Pong-v5 for it."
    ]


@pytest.mark.parametrize("lacking", ["ale_py", "cv2"])
def test_a_package_that_is_not_there_is_told(lacking, monkeypatch):
    for each in ("ale_py", "cv2"):
        monkeypatch.setitem(sys.modules, each, SimpleNamespace())
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(
        UserError, match=rf"^env=atari: {lacking} is not installed\. Run pip install 'hydrl\[atari\]'"
    ):
        atari.make("ALE/Pong-v5")
