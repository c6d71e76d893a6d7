"""The continuous cart-pole, against the equations of mbrl-lib's."""

import gymnasium
import numpy as np
import pytest

ID = "hydrl.envs.toy_cartpole:ContinuousCartPole-v0"


def following(state: np.ndarray, force: float) -> np.ndarray:
    """Barto, Sutton and Anderson's equations by Euler's method, 0.02 s later."""
    _, speed, angle, spin = state
    push = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
    turn = 9.8 * np.sin(angle) - np.cos(angle) * push
    angular = turn / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1))
    linear = push - 0.05 * angular * np.cos(angle) / 1.1
    return state + 0.02 * np.array([speed, linear, spin, angular])


@pytest.mark.parametrize(("action", "force"), [(0.3, 3.0), (-0.7, -7.0), (0.0, 0.0), (5.0, 10.0)])
def test_the_force_is_the_actions_share_of_ten_newtons(action, force):
    env = gymnasium.make(ID)
    state, _ = env.reset(seed=0)
    for _ in range(3):
        expected = following(state.astype(float), force)
        state, reward, terminated, _, _ = env.env.env.step(np.float32([action]))
        assert state == pytest.approx(expected, abs=1e-5)
        assert (reward, terminated) == (1.0, False)


def test_an_episode_has_at_most_200_steps_and_ends_where_the_pole_falls():
    env = gymnasium.make(ID)
    env.reset(seed=0)
    steps, ended = 0, False
    while not ended:
        state, reward, ended, _, _ = env.step(np.float32([1.0]))
        steps += 1
        assert reward == 1.0
    assert abs(state[2]) > 12 * np.pi / 180
    assert steps < 20
    assert env.spec.max_episode_steps == 200
