"""Planners on toy dynamics, x' = x + a, whose best action is known."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import PendulumEnv
from torchrl.envs.model_based import ModelBasedEnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp
from torchrl.modules import planners as torchrl_planners

from hydrl.errors import UserError
from hydrl.networks.planners import CEMPlanner, MPPIPlanner

OPTIONS = {"planning_horizon": 3, "optim_steps": 6, "num_candidates": 200, "top_k": 20}
OPTIONS |= {"init_std": 0.5, "min_std": 0.01}
BOTH = pytest.mark.parametrize("kind", ["cem", "mppi"])


class Toy(ModelBasedEnvBase):
    """The state moves by the action; the reward is ``-scale * (x - goal)^2``, and NaN above ``known``."""

    def __init__(self, goal: float, bound: float = 1.0, scale: float = 1.0, known: float = 1e9) -> None:
        def step(x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
            x = x + action
            return x, torch.where(x > known, torch.nan, -scale * (x - goal).square())

        super().__init__(TensorDictModule(step, in_keys=["x", "action"], out_keys=["x", "reward"]))
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.state_spec = self.observation_spec.clone()
        self.action_spec, self.reward_spec = Bounded(-bound, bound, (1,)), Unbounded((1,))

    def _reset(self, tensordict, **_):
        return tensordict.copy()


@pytest.fixture(autouse=True)
def _same_candidates() -> None:
    """Plans differ by their random candidates, and so by what other tests have drawn."""
    torch.manual_seed(0)


def planner(kind: str, env: ModelBasedEnvBase, **changed: float):
    options = OPTIONS | changed
    return CEMPlanner(env, **options) if kind == "cem" else MPPIPlanner(env, temperature=1.0, **options)


def at(*positions: float, **entries: Tensor) -> TensorDict:
    return TensorDict({"x": torch.tensor(positions).unsqueeze(-1), **entries}, [len(positions)])


@BOTH
def test_it_is_the_planner_of_torchrl(kind):
    expected = {"cem": torchrl_planners.CEMPlanner, "mppi": torchrl_planners.MPPIPlanner}[kind]
    assert isinstance(planner(kind, Toy(0.3)), expected)


@BOTH
@pytest.mark.parametrize("bound", [0.001, 1.0, 100.0])
@pytest.mark.parametrize("goal", [0.3, -0.6])
def test_a_goal_within_reach_is_reached_whatever_the_bounds(kind, goal, bound):
    """TorchRL's draws actions of about 1 and clips them: 3.05 for 60 of 100, 0.001 for 0.0005."""
    env = Toy(goal * bound, bound, scale=1 / bound**2)
    action = planner(kind, env)(at(0.0))["action"] / bound
    assert action.item() == pytest.approx(goal, abs=0.05)


@BOTH
@pytest.mark.parametrize(("goal", "expected"), [(5.0, 1.0), (20.0, 1.0), (-1_000.0, -1.0)])
def test_a_goal_out_of_reach_is_approached_at_full_speed(kind, goal, expected):
    """Returns are from -50 to -3,000,000, whose exponentials are zero."""
    action = planner(kind, Toy(goal), min_std=0.2)(at(0.0))["action"].item()
    assert action == pytest.approx(expected, abs=0.1)


@BOTH
def test_several_states_have_actions_of_their_own(kind):
    actions = planner(kind, Toy(0.0))(at(-0.5, 0.0, 0.7, 3.0))["action"].squeeze(-1)
    assert actions.tolist() == pytest.approx([0.5, 0.0, -0.7, -1.0], abs=0.05)


@BOTH
def test_plans_that_return_nan_rank_last(kind):
    """TorchRL's takes them for the best. The goal itself returns NaN."""
    action = planner(kind, Toy(0.3, known=0.2), planning_horizon=1)(at(0.0))["action"].item()
    assert action == pytest.approx(0.2, abs=0.05)


@BOTH
def test_rewards_after_an_end_do_not_count(kind):
    """Every step costs 1; above 0.5 the episode is over, and its last step costs 1, too."""

    def step(x: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x + action, -torch.ones_like(x), x + action > 0.5

    env = Toy(0.0)
    env.world_model = TensorDictModule(step, in_keys=["x", "action"], out_keys=["x", "reward", "done"])
    assert planner(kind, env)(at(0.0))["action"].item() > 0.5


@BOTH
@pytest.mark.parametrize("top_k", [1, 201])
def test_too_few_or_too_many_elites_are_refused(kind, top_k):
    """Of a single one TorchRL's has no deviation, and the action is NaN."""
    with pytest.raises(UserError, match=f"^top_k={top_k}: should be from 2 to num_candidates=200"):
        planner(kind, Toy(0.0), top_k=top_k)


@BOTH
def test_a_plan_is_moved_on_and_searched_around(kind):
    planned = planner(kind, Toy(2.0))(at(0.0))
    following = planned["next", "plan"][0, :, 0]
    assert following.tolist() == pytest.approx([1.0, 0.0, 0.0], abs=0.15)  # 2 steps of 1, then it stays
    narrow = planner(kind, Toy(2.0), optim_steps=1, init_std=1e-3, min_std=1e-3)
    plan = torch.tensor([[[0.3], [0.0], [0.0]]])
    assert narrow(at(0.0, plan=plan))["action"].item() == pytest.approx(0.3, abs=0.01)
    assert narrow(at(0.0))["action"].item() == pytest.approx(0.0, abs=0.01)


@BOTH
def test_the_deviation_has_a_floor(kind):
    """A narrow search moves by about 2 deviations a round; the floor is that of the second and later ones."""
    far = {"optim_steps": 4, "init_std": 1e-4}
    stuck, moving = (planner(kind, Toy(1.0), **far, min_std=floor)(at(0.0)) for floor in (1e-4, 0.2))
    assert stuck["action"].item() < 0.01
    assert moving["action"].item() > 0.3


@BOTH
def test_a_deterministic_action_depends_on_state_and_plan_alone(kind):
    plans, search = torch.rand(3, 3, 1) - 0.5, planner(kind, Toy(0.4), optim_steps=2, num_candidates=40)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        together = search(at(0.0, 0.2, 0.9, plan=plans))
        again = search(at(0.0, 0.2, 0.9, plan=plans))
        alone = [search(at(x, plan=plans[[row]])) for row, x in enumerate((0.0, 0.2, 0.9))]
    for key in ("action", ("next", "plan")):
        assert together[key].equal(again[key])
        torch.testing.assert_close(together[key], torch.cat([planned[key] for planned in alone]))
    with set_exploration_type(ExplorationType.RANDOM):
        assert not search(at(0.0, plan=plans[:1]))["action"].equal(search(at(0.0, plan=plans[:1]))["action"])


def test_the_true_pendulum_is_swung_up():
    """TorchRL's stateless environment is planned over as it is; its torque alone cannot lift it."""
    env = PendulumEnv()
    search = CEMPlanner(
        env, **OPTIONS | {"planning_horizon": 15, "optim_steps": 3, "num_candidates": 80, "top_k": 10}
    )
    start = env.reset(env.gen_params(batch_size=[2])).update({"th": torch.tensor([2.5, -2.5])})
    now, rewards = start.update({"thdot": torch.zeros(2)}), []
    with torch.no_grad():
        for _ in range(60):
            now = env.step(search(now))
            rewards.append(now["next", "reward"])
            plan = now["next", "plan"]
            now = step_mdp(now).set("plan", plan)
    assert torch.stack(rewards)[-10:].mean() > -0.1  # upright
