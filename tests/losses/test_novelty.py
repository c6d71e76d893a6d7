"""RND: rewards by hand, what is learned, and that familiar observations lose their rewards."""

import pytest
import torch
from tensordict import TensorDict

from hydrl import envs
from hydrl.errors import UserError
from hydrl.losses.novelty import NoveltyLoss, NoveltyRewards
from hydrl.networks.critics import state_value
from hydrl.networks.distillation import RandomNetwork, random_network
from hydrl.specs import INFO
from tests.conftest import logged
from tests.fakes.envs import CountingEnv

RND = ["algo=rnd", "env=cartpole", "~tuned", "total_frames=512", "collector.frames_per_batch=256"]
RND += ["collector.num_envs=2", "eval.every_frames=512", "eval.episodes=1", "eval.final_episodes=1"]
RND += ["eval.max_steps=5", "log_every_frames=256"]


def make(**options) -> tuple[RandomNetwork, NoveltyLoss, NoveltyRewards]:
    torch.manual_seed(0)
    env = envs.make_env(CountingEnv, [], num_envs=2, seed=0)
    sizes = {"num_cells": [8], "activation": "ReLU", "in_keys": ["observation"]}
    network = random_network(env, features=3, target_num_cells=[4, 4], **sizes)
    loss = NoveltyLoss(network)
    rewards = NoveltyRewards(
        None, loss, **{"coefficient": 0.5, "gamma": 0.9, "epochs": 2, "size": 4, **options}
    )
    return network, loss, rewards


def batch_of(network: RandomNetwork, seed: int = 1) -> TensorDict:
    """Two environments of three steps; the first ends its episode at the second step."""
    torch.manual_seed(seed)
    size = network.statistics[0].mean.shape[0]
    done = torch.zeros(2, 3, 1, dtype=torch.bool)
    done[0, 1] = True
    following = {"observation": 3 + torch.randn(2, 3, size), "reward": torch.ones(2, 3, 1), "done": done}
    return TensorDict({"next": following}, [2, 3])


def test_a_reward_is_the_error_over_the_deviation_of_its_discounted_sums():
    network, _, rewards = make()
    batches = [batch_of(network, seed) for seed in (1, 2)]
    rows, returns, running, episode = [], [], torch.zeros(2), torch.zeros(2)
    for batch in batches:
        rows.append(batch["next", "observation"].reshape(6, -1).clone())
        mean, deviation = torch.cat(rows).mean(0), torch.cat(rows).std(0, correction=0)
        normalized = ((batch["next", "observation"] - mean) / deviation).clamp(-5, 5)
        read = TensorDict({"observation": normalized}, [2, 3])
        error = (network.predictor(read) - network.target(read)).square().mean(-1).detach()
        for step in range(3):
            running = 0.9 * running + error[:, step]
            returns += running.tolist()
        scale = torch.tensor(returns).std(correction=0)
        by_hand = 0.5 * error / scale
        done = batch["next", "done"][..., 0]
        next(rewards(batch))
        torch.testing.assert_close(batch["next", "reward"][..., 0], 1 + by_hand, rtol=1e-3, atol=1e-4)
        sums = []
        for step in range(3):
            episode = episode + by_hand[:, step]
            sums.append(episode)
            episode = torch.where(done[:, step], 0.0, episode)
        written = batch["next", INFO, "novelty_return"][..., 0]
        torch.testing.assert_close(written, torch.stack(sums, 1), rtol=1e-3, atol=1e-3)


def test_minibatches_are_of_all_next_observations_in_each_epoch():
    network, _, rewards = make(size=2)
    batch = batch_of(network)
    drawn = [minibatch["next", "observation", "observation"] for minibatch in rewards(batch)]
    assert [len(rows) for rows in drawn] == [2] * 6
    expected = network.normalize(batch["next"])["observation"].reshape(6, -1)
    for epoch in (drawn[:3], drawn[3:]):
        torch.testing.assert_close(torch.cat(epoch).sort(0).values, expected.sort(0).values)


def test_the_loss_is_the_squared_error_and_trains_the_predictor_alone():
    network, loss, rewards = make()
    minibatch = next(rewards(batch_of(network)))
    observations = minibatch["next", "observation"]
    value = loss(minibatch)["loss_predictor"]
    by_hand = (network.predictor(observations) - network.target(observations)).square().mean()
    torch.testing.assert_close(value, by_hand)
    value.backward()
    trained = {name for name, parameter in loss.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, parameter in loss.named_parameters() if parameter.grad is not None}
    assert {name.partition(".")[0] for name in trained} == {"predictor_network"}
    assert {"predictor_network", "target_network", "statistics"} == {
        name.partition(".")[0] for name in loss.state_dict()
    }


def test_what_is_seen_again_and_again_loses_its_reward_and_the_rest_does_not():
    network, loss, rewards = make(epochs=10)
    optimizer = torch.optim.Adam([*loss.predictor_network.parameters()], lr=1e-2)
    familiar = batch_of(network)
    for _ in range(30):
        for minibatch in rewards(familiar.clone()):
            optimizer.zero_grad()
            loss(minibatch)["loss_predictor"].backward()
            optimizer.step()
    strange = familiar["next"].copy()
    strange["observation"] = 3 - 2 * (familiar["next", "observation"] - 3)
    novelty = [
        network(rows.select("observation"))["novelty"].mean().item() for rows in (familiar["next"], strange)
    ]
    assert novelty[0] < 0.05 * novelty[1]


def test_both_returns_are_logged_and_the_environment_s_own_is_raw(run):
    folder = run(*RND, "extra_learners.rnd.minibatches.coefficient=100")
    row = logged(folder)[-1]
    assert float(row["train/return"]) == float(row["train/episode_length"])  # 1 a step
    assert float(row["train/novelty_return"]) > 50
    assert float(row["loss/rnd/predictor"]) > 0


def test_another_network_is_refused():
    env = envs.make_env(CountingEnv, [], num_envs=2, seed=0)
    critic = state_value(env, num_cells=[4], activation="ReLU", in_keys=["observation"])
    with pytest.raises(UserError, match=r"^predictor: .* Write predictor=random_network\."):
        NoveltyLoss(critic)
