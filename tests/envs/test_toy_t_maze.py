import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hydrl.envs.toy_t_maze import TMaze


def walked(side, turn, corridor=4):
    """All that is observed, and all that is paid, where ``side`` is shown and ``turn`` is taken."""
    task = TMaze(corridor)
    seen = next(seen for seed in range(20) if (seen := task.reset(seed=seed)[0])[0] == side)
    steps = [(seen, 0.0, False)]
    while not steps[-1][2]:
        seen, reward, ended, truncated, _ = task.step(turn)
        assert not truncated
        steps.append((seen, reward, ended))
    return np.stack([seen for seen, *_ in steps]), [reward for _, reward, _ in steps]


@pytest.mark.parametrize("side", [-1, 1])
def test_the_side_that_the_start_shows_pays_at_the_end_of_the_corridor(side):
    right, wrong = (side > 0), (side < 0)
    seen, paid = walked(side, right)
    assert paid == [0, 0, 0, 0, 0, 1]
    assert sum(walked(side, wrong)[1]) == 0
    assert seen[:, 0].tolist() == [side, 0, 0, 0, 0, 0]
    assert seen[:-1, 1].tolist() == [0, 0, 0, 0, 1]  # the turn is at the last observation that is acted on


def test_what_is_seen_after_the_start_tells_nothing_of_the_side():
    (left, _), (right, _) = walked(-1, 0), walked(1, 0)
    assert np.array_equal(left[1:], right[1:])


def test_it_is_a_task_of_gymnasium_s_and_draws_itself():
    task = gymnasium.make("hydrl.envs.toy_t_maze:TMaze-v0", corridor=7, render_mode="rgb_array")
    check_env(task.unwrapped, skip_render_check=True)
    task.reset(seed=0)
    at_start = task.render()
    task.step(0)
    assert at_start.shape == (48, 128, 3)
    assert np.abs(task.render().astype(int) - at_start).sum() > 0
