"""Losses for data: behaviour cloning of choices, and CQL's penalty by its paper's formula."""

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from hydrl import envs
from tests.conftest import loss_of, settings

PENDULUM = ["env=gym", "env.id=tests.fakes.envs:PendulumIn-v0", "+env.unit=2.0", "data.path=none", "~tuned"]
CELLS = ["actor.num_cells=[8]", "critic.num_cells=[8]"]


def built(*words: str):
    """The loss of an algorithm, and its actor and environment."""
    chosen = settings(*words)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    env.set_seed(0)
    torch.manual_seed(0)
    actor = chosen.build("actor")(env)
    parts = {name: actor if name == "actor" else chosen.build(name)(env, actor) for name in chosen.networks}
    return loss_of(chosen, env, **parts), actor, env


def rows(env, count: int) -> TensorDict:
    with torch.no_grad():
        made = env.rollout(count, break_when_any_done=False)
    return made.exclude("loc", "scale")


def test_a_choice_is_cloned_by_how_likely_the_policy_makes_it():
    loss, actor, env = built("algo=bc", "env=cartpole", "data.path=none", "~tuned", CELLS[0])
    batch = rows(env, 12)
    assert batch["action"].dtype == torch.int64
    likely = actor.get_dist(batch).probs[batch["action"].bool()]
    assert loss(batch)["loss_bc"].item() == pytest.approx(-likely.log().mean().item(), rel=1e-5)
    loss(batch)["loss_bc"].backward()
    assert all(each.grad is not None for each in loss.parameters())


@pytest.mark.parametrize("actor", ["stochastic", "deterministic"])
def test_numbers_are_cloned_by_likelihood_or_by_distance(actor):
    loss, network, env = built("algo=bc", f"actor={actor}", *PENDULUM, CELLS[0])
    batch = rows(env, 12)
    assert batch["action"].abs().max() <= 1  # scaled
    if actor == "stochastic":
        expected = -network.get_dist(batch).log_prob(batch["action"]).mean()
    else:
        expected = (network(batch.clone())["action"] - batch["action"]).square().mean()
    assert loss(batch.clone())["loss_bc"].item() == pytest.approx(expected.item(), rel=1e-5)


class Line(nn.Module):
    """Values a line in the action, whatever is observed."""

    def __init__(self, slope: float, at_zero: float) -> None:
        super().__init__()
        self.slope, self.at_zero = nn.Parameter(torch.tensor(slope)), nn.Parameter(torch.tensor(at_zero))

    def forward(self, *_: Tensor) -> Tensor:
        return self.slope * _[-1] + self.at_zero


def test_cqls_penalty_is_the_integral_of_values_over_all_actions_less_that_of_the_data(monkeypatch):
    """Over [-1, 1] the integral of exp(a q + b) is exp(b) (exp(a) - exp(-a)) / a; two critics a row."""
    loss, _, env = built(
        "algo=cql", *PENDULUM, *CELLS, "loss.module.num_random=40_000", "loss.module.min_q_weight=3.0"
    )
    from tensordict.nn import TensorDictModule

    lines = [(1.5, 0.3), (-0.5, -1.0)]
    critics = [
        TensorDictModule(Line(*each), ["observation", "action"], ["state_action_value"]) for each in lines
    ]
    loss.convert_to_functional(critics[0], "qvalue_network", 2)
    for place, (slope, at_zero) in enumerate(lines):
        loss.qvalue_network_params["module", "slope"].data[place] = slope
        loss.qvalue_network_params["module", "at_zero"].data[place] = at_zero
    loss._make_vmap()
    batch = rows(env, 4)
    batch.set("pred_q1", lines[0][0] * batch["action"] + lines[0][1])
    batch.set("pred_q2", lines[1][0] * batch["action"] + lines[1][1])
    slopes, heights = torch.tensor(lines).T
    soft = heights + ((slopes.exp() - (-slopes).exp()) / slopes).log()
    of_data = slopes * batch["action"] + heights
    expected = 3.0 * (soft - of_data).sum(-1).mean()
    penalty, _ = loss.cql_loss(batch)
    assert penalty.item() == pytest.approx(expected.item(), rel=0.01)
    penalty.backward()
    # Pushed down at soft greatest actions, up at the data's.
    assert loss.qvalue_network_params["module", "slope"].grad.abs().min() > 0.01
    assert all(each.grad is None for name, each in loss.named_parameters() if name.startswith("actor"))


def test_the_weight_of_a_choices_penalty_counts():
    words = ("algo=cql_discrete", "env=cartpole", "data.path=none", "~tuned", CELLS[0])
    (light, actor, env), (heavy, _, _) = built(*words), built(*words, "loss.module.min_q_weight=4.0")
    batch = rows(env, 12)
    values = actor(batch.clone())["action_value"]
    expected = (values.logsumexp(-1) - (values * batch["action"]).sum(-1)).mean().item()
    assert light(batch.clone())["loss_cql"].item() == pytest.approx(expected, rel=1e-5)
    assert heavy(batch.clone())["loss_cql"].item() == pytest.approx(4 * expected, rel=1e-5)


def test_td3_bc_weighs_the_critics_word_by_their_mean_and_adds_the_distance_to_the_data():
    loss, actor, env = built("algo=td3_bc", *PENDULUM, *CELLS, "loss.module.alpha=1.7")
    batch = rows(env, 12)
    with torch.no_grad():
        acted = actor(batch.clone())["action"]
        with loss.qvalue_network_params[0].to_module(loss.qvalue_network):
            judged = loss.qvalue_network(batch.clone().set("action", acted))["state_action_value"]
    expected = -1.7 / judged.abs().mean() * judged.mean() + (acted - batch["action"]).square().mean()
    assert loss(batch.clone())["loss_actor"].item() == pytest.approx(expected.item(), rel=1e-4)
