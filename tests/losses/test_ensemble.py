"""The likelihood that an ensemble learns, against the same by hand, and what it imagines."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.experience.bootstrap import Bootstrap
from hydrl.losses.ensemble import EnsembleLoss
from hydrl.networks.ensemble import PREDICTED_KEYS, Ensemble, ImaginedEnv, PlanningActor
from hydrl.networks.planners import CEMPlanner

CEM = {
    "planning_horizon": 4,
    "optim_steps": 3,
    "num_candidates": 64,
    "top_k": 8,
    "init_std": 0.5,
    "min_std": 0.1,
}


def make_actor(members: int = 2, size: int = 1) -> PlanningActor:
    torch.manual_seed(0)
    network = Ensemble(members, size, 1, [16], "SiLU")
    model = TensorDictModule(network, in_keys=["particles", "action"], out_keys=[*PREDICTED_KEYS])
    env = ImaginedEnv(model, torch.device("cpu"))
    return PlanningActor(model, CEMPlanner(env, **CEM), ["observation"])


def rows(count: int = 6, **entries: torch.Tensor) -> TensorDict:
    """Steps of x' = x + a with the reward 2 x', which end beyond 1."""
    torch.manual_seed(1)
    observation, action = torch.randn(count, 1), torch.rand(count, 1) * 2 - 1
    after = observation + action
    following = {"observation": after, "reward": 2 * after, "terminated": after > 1}
    return TensorDict({"observation": observation, "action": action, "next": following, **entries}, [count])


def by_hand(actor: PlanningActor, batch: TensorDict, weights: torch.Tensor) -> dict[str, float]:
    """The two losses with ``torch.distributions``, row by row; in units of the data's root mean square."""
    network = actor.model.module
    likelihood, end, count = 0.0, 0.0, 0
    for row, weight in zip(batch, weights, strict=True):
        with torch.no_grad():
            loc, scale, logit = network(row["observation"].expand(network.members, 1), row["action"])
        change = torch.cat([row["next", "observation"] - row["observation"], row["next", "reward"]])
        for member in range(network.members):
            density = torch.distributions.Normal(loc[member], scale[member]).log_prob(change)
            constant = network.unit.log() + math.log(2 * math.pi) / 2
            likelihood += (weight[member] * -2 * (density + constant)).mean().item()
            chance = torch.sigmoid(logit[member]).item()
            end -= weight[member].item() * math.log(chance if row["next", "terminated"] else 1 - chance)
            count += 1
    return {"loss_likelihood": likelihood / count, "loss_end": end / count}


@pytest.mark.parametrize("bootstrapped", [True, False])
def test_the_loss_is_the_likelihood_by_each_members_own_rows(bootstrapped):
    actor, weights = make_actor(), torch.ones(6, 2)
    if bootstrapped:
        weights = torch.tensor([[0, 1], [2, 0], [1, 3], [0, 0], [1, 1], [1, 0]]).float()
    batch = rows(**({"bootstrap": weights} if bootstrapped else {}))
    losses = EnsembleLoss(actor)(batch)
    for name, expected in by_hand(actor, batch, weights).items():
        assert losses[name].item() == pytest.approx(expected, rel=1e-5)


def test_a_member_learns_nothing_from_rows_outside_its_sample():
    actor = make_actor()
    batch = rows(bootstrap=torch.tensor([[0.0, 1.0]]).expand(6, 2))
    losses = EnsembleLoss(actor)(batch)
    (losses["loss_likelihood"] + losses["loss_end"]).backward()
    for weight in actor.model.module.weights:
        assert weight.grad[0].abs().max() == 0
        assert weight.grad[1].abs().max() > 0


def test_units_come_from_the_first_minibatch_and_stay():
    actor, first = make_actor(), rows(50)
    loss = EnsembleLoss(actor)
    loss(first)
    loss(rows(50).apply(lambda value: value * 10 if value.is_floating_point() else value))
    network = actor.model.module
    torch.testing.assert_close(network.mean, first["observation"].mean(0))
    torch.testing.assert_close(network.std, first["observation"].std(0, unbiased=False))
    change = torch.cat([first["action"], first["next", "reward"]], -1)
    torch.testing.assert_close(network.unit, change.square().mean(0).sqrt())


def test_the_model_is_learned_and_planned_with():
    """To the right rewards grow; beyond 1 the episode is over, and pays nothing more."""
    actor = make_actor(3)
    loss = EnsembleLoss(actor)
    optimizer, batch = torch.optim.Adam(loss.parameters(), lr=1e-2), rows(256)
    for _ in range(400):
        optimizer.zero_grad()
        losses = loss(batch)
        sum(losses[key] for key in ("loss_likelihood", "loss_end", "loss_bounds")).backward()
        optimizer.step()
    assert losses["error"] < 0.05
    network = actor.model.module
    points = torch.tensor([[-1.0], [0.5], [1.5]])
    with torch.no_grad():
        loc, _, logit = network(points.unsqueeze(1).expand(3, 3, 1), torch.zeros(3, 1))
    torch.testing.assert_close(loc[..., 1].mean(1), 2 * points.squeeze(1), rtol=0.1, atol=0.1)
    assert logit.mean(1).squeeze(-1).sigmoid().round().tolist() == [0, 0, 1]
    start = TensorDict({"observation": points[:2], "is_init": torch.ones(2, 1, dtype=torch.bool)}, [2])
    start["plan"] = torch.zeros(2, 4, 1)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        action = actor(start)["action"]
    assert action[0].item() > 0.8  # from -1 at full speed
    assert action[1].item() < 0.5  # from 0.5 no further than 1


def test_an_ended_particle_earns_nothing_and_the_others_go_on():
    env = make_actor(2).planners[0].env
    model = env.world_model.module[0].module
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.biases[-1][:, 0, 1] = torch.tensor([1.0, 3.0])  # rewards of the two members
        model.biases[-1][:, 0, 4] = torch.tensor([100.0, -100.0])  # the first ends at once
    states = env.start(torch.zeros(1, 1)).set("action", torch.zeros(1, 1))
    rewards = []
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(3):
            states = env.step(states)
            rewards.append(states["next", "reward"].item())
            states = env.step_mdp(states).set("action", torch.zeros(1, 1))
    assert rewards == pytest.approx([2.0, 1.5, 1.5])


def test_particles_sample_their_members_distribution():
    env = make_actor(2).planners[0].env
    states = env.start(torch.zeros(4_000, 1)).set("action", torch.zeros(4_000, 1))
    model = env.world_model.module[0].module
    with torch.no_grad():
        loc, scale, _ = model(states["particles"][:1], states["action"][:1])
        particles = env.step(states)["next", "particles"].squeeze(-1)
    torch.testing.assert_close(particles.mean(0), loc[0, :, 0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(particles.std(0), scale[0, :, 0], rtol=0.1, atol=0.0)


def test_a_new_episode_forgets_the_plan():
    actor = make_actor()
    state = {"observation": torch.zeros(2, 1), "plan": torch.full((2, 4, 1), 0.9)}
    state["is_init"] = torch.tensor([[True], [False]])
    empty = TensorDict({**state, "plan": torch.zeros(2, 4, 1)}, [2])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        planned, expected = actor(TensorDict(state, [2])), actor(empty)
    assert planned["action"][0].equal(expected["action"][0])
    assert not planned["action"][1].equal(expected["action"][1])


def test_bootstrap_counts_are_drawn_once_with_a_mean_of_1():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(4_000), transform=Bootstrap(members=3))
    buffer.extend(rows(4_000))
    counts = buffer[:]["bootstrap"]
    assert counts.shape == (4_000, 3)
    assert counts.equal(buffer[:]["bootstrap"])
    assert counts.mean().item() == pytest.approx(1.0, abs=0.03)
    assert (counts == 0).float().mean().item() == pytest.approx(math.exp(-1), abs=0.02)
    assert torch.corrcoef(counts.T)[0, 1].abs() < 0.05
