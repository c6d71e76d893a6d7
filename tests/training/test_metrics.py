import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, OneHot
from torchrl.envs import RewardScaling, StepCounter
from torchrl.modules import AdditiveGaussianModule, EGreedyModule

from hydrl import envs
from hydrl.training.metrics import (
    Metrics,
    ended_episodes,
    episode_metrics,
    exploration_metrics,
    loss_metrics,
    value_metrics,
)
from hydrl.training.timers import Clock
from hydrl.training.update import Update
from tests.conftest import loss_of, settings
from tests.fakes.envs import CountingEnv, CountingTeam

LEARNERS = [SimpleNamespace(update=SimpleNamespace(learning_rate=0.5))]


def batch(shape, ends: dict, returns: dict) -> TensorDict:
    done, reward, steps = (
        torch.zeros(*shape, 1, dtype=torch.bool),
        torch.zeros(*shape, 1),
        torch.zeros(*shape, 1),
    )
    for place, length in ends.items():
        done[place], reward[place], steps[place] = True, returns[place], length
    after = {"done": done, "episode_reward": reward, "step_count": steps.long()}
    return TensorDict({"next": after}, shape)


def test_episode_metrics_average_over_episodes_and_not_over_batches():
    one = batch((2, 5), {(0, 1): 4, (1, 4): 6}, {(0, 1): 10.0, (1, 4): 20.0})
    other = batch((2, 5), {(1, 0): 8}, {(1, 0): 60.0})
    none = batch((2, 5), {}, {})
    metrics = episode_metrics([ended_episodes(each) for each in (one, none, other)])
    assert metrics == {"train/return": 30.0, "train/episodes": 3, "train/episode_length": 6.0}


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 2, 5)])
def test_ended_episodes_are_found_in_a_batch_of_any_shape(shape):
    place = tuple(size - 1 for size in shape)
    assert ended_episodes(batch(shape, {place: 3}, {place: 7.0}))["episode_reward"].tolist() == [[7.0]]


def test_an_episode_that_was_cut_short_is_no_whole_one():
    frames = batch((5,), {(1,): 2, (4,): 3}, {(1,): 5.0, (4,): 7.0})
    frames["next", "cut_short"] = torch.tensor([0, 1, 0, 0, 0], dtype=torch.bool)[:, None]
    assert ended_episodes(frames)["episode_reward"].tolist() == [[7.0]]


def test_no_episode_ended_gives_no_metrics():
    assert episode_metrics([]) == {}
    assert episode_metrics([ended_episodes(batch((5,), {}, {}))]) == {}


def test_length_is_left_out_where_nothing_counts_steps():
    ended = ended_episodes(batch((5,), {(2,): 3}, {(2,): 7.0})).exclude("step_count")
    assert episode_metrics([ended]) == {"train/return": 7.0, "train/episodes": 1}


def test_training_returns_are_raw_under_a_scaled_reward():
    env = envs.make_env(
        CountingEnv, [lambda: RewardScaling(loc=0.0, scale=0.01), StepCounter], num_envs=2, seed=0
    )
    ended = ended_episodes(env.rollout(60, break_when_any_done=False))
    metrics = episode_metrics([ended])
    assert set(ended["episode_reward"].flatten().tolist()) == {2.0, 20.0}  # 1 a step
    assert metrics["train/return"] == pytest.approx(metrics["train/episode_length"])


def test_loss_metrics_are_means_named_after_the_terms():
    first = TensorDict(
        {"loss_critic": torch.tensor(1.0), "grad_norm": torch.tensor(4.0), "td_error": torch.zeros(3)}
    )
    second = TensorDict(
        {"loss_critic": torch.tensor(3.0), "grad_norm": torch.tensor(0.0), "td_error": torch.zeros(3)}
    )
    assert loss_metrics([first, second]) == {"loss/critic": 2.0, "loss/grad_norm": 2.0}
    assert loss_metrics([]) == {}


def test_the_policy_s_entropy_is_logged_beside_the_loss_s_term_of_it():
    chosen = settings("algo=ppo", "env=cartpole", "~tuned", "loss.module.entropy_coeff=0.25")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0)
    envs.init_normalizers(env, 100)
    actor, critic = chosen.build("actor")(env), chosen.build("critic")(env)
    loss = loss_of(chosen, env, actor=actor, critic=critic)
    with torch.no_grad():
        list(actor.parameters())[-1].copy_(torch.tensor([1.0, -1.0]))  # one action is likelier
        batch = env.rollout(16, actor, break_when_any_done=False)
        loss.value_estimator(batch)
        entropy = actor.get_dist(batch).entropy().mean().item()
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0))
    row = loss_metrics([update(batch.reshape(-1))])
    assert row["train/entropy"] == pytest.approx(entropy)
    assert row["loss/entropy"] == pytest.approx(-0.25 * entropy)


def test_a_number_of_hydrl_s_own_keeps_its_name_before_a_loss_s():
    metrics = Metrics(LEARNERS, None)
    taken = {"return": torch.tensor(7.0), "loss_return": torch.tensor(8.0)}
    metrics.learned(batch((5,), {(0,): 4}, {(0,): 10.0}), [TensorDict(taken)])
    row = metrics.row()
    assert (row["train/return"], row["loss/return"]) == (10.0, 8.0)


def test_the_time_items_take_to_come_is_counted_and_the_time_they_are_used_is_not(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def work(seconds: float) -> None:
        clock[0] += seconds

    def slowly() -> Iterator[int]:
        for item in range(3):
            work(2.0)
            yield item

    spent = Clock(began=0.0)
    for _ in spent.timed(slowly(), "time/test"):
        work(10.0)
    assert clock[0] == 36.0
    assert spent.activities["time/test"] == pytest.approx(6)


def test_explained_variance_is_the_share_of_the_targets_variance_that_the_values_give():
    target = torch.tensor([[0.0], [2.0], [4.0], [6.0]])
    judged = TensorDict({"value_target": target, "state_value": target - 3}, [4])
    assert value_metrics(judged) == {"train/explained_variance": 1.0}  # a constant error explains no less
    judged["state_value"] = torch.full((4, 1), 3.0)
    assert value_metrics(judged) == {"train/explained_variance": 0.0}
    judged["state_value"] = target / 2
    assert value_metrics(judged)["train/explained_variance"] == pytest.approx(0.75)
    assert value_metrics(judged.exclude("value_target")) == {}


def test_q_value_is_the_mean_value_of_the_best_action():
    acted = TensorDict(
        {"chosen_action_value": torch.tensor([[1.0], [2.0]]), "action": torch.zeros(2, 2)}, [2]
    )
    assert value_metrics(acted) == {"train/q_value": 1.5}


def test_exploration_is_logged_as_it_falls():
    greedy = EGreedyModule(spec=OneHot(2), eps_init=1.0, eps_end=0.0, annealing_num_steps=100)
    greedy.step(25)
    assert exploration_metrics(greedy) == {"train/epsilon": pytest.approx(0.75)}
    noise = AdditiveGaussianModule(
        spec=Bounded(-1, 1, shape=(1,)), sigma_init=0.5, sigma_end=0.0, annealing_num_steps=2
    )
    noise.step(1)
    assert exploration_metrics(noise) == {"train/sigma": pytest.approx(0.25)}
    assert exploration_metrics(None) == {}


def losses(*values: float) -> list[TensorDict]:
    return [TensorDict({"loss_critic": torch.tensor(value)}) for value in values]


def test_a_row_averages_everything_since_the_last():
    metrics = Metrics(LEARNERS, None)
    metrics.learned(batch((5,), {(0,): 4, (1,): 4}, {(0,): 10.0, (1,): 20.0}), losses(1.0, 3.0))
    state = metrics.state_dict()
    again = Metrics(metrics.learners, None)
    again.load_state_dict(state)
    for each in (metrics, again):  # as well where the process changed in between
        each.learned(batch((5,), {(2,): 4}, {(2,): 60.0}), losses(6.0))
        row = each.row()
        assert row["train/return"] == 30.0  # of three episodes, not of two batches
        assert row["train/episodes"] == 3
        assert row["loss/critic"] == 4.0  # the mean over batches
        assert row["train/learning_rate"] == 0.5
        each.learned(batch((5,), {}, {}), [])
        assert each.row() == {"train/learning_rate": 0.5}


def played(steps: int, *transforms) -> TensorDict:
    """A batch of three environments, 1 a step, whose episodes of 2 and 20 steps begin anew as they end."""
    env = envs.make_env(CountingEnv, [*transforms, StepCounter], num_envs=3, seed=0)
    return env.rollout(steps, break_when_any_done=False)


def test_before_an_episode_has_ended_a_row_has_the_raw_reward_of_a_step():
    metrics = Metrics(LEARNERS, None)
    scaled = lambda: RewardScaling(loc=3.0, scale=0.01)  # noqa: E731
    metrics.learned(played(50, scaled), [])
    assert metrics.row()["train/reward"] == 1.0
    metrics.learned(played(1), [])
    assert metrics.row() == {"train/learning_rate": 0.5, "train/reward": 1.0}  # none ended, and no return


def test_the_reward_of_a_step_is_the_mean_over_agents_and_over_all_since_the_last_row():
    env = envs.make_env(CountingTeam, [StepCounter], num_envs=3, seed=0)  # pays 1 and 2
    metrics = Metrics(LEARNERS, None)
    team, toys = env.rollout(8, break_when_any_done=False), played(8)
    metrics.learned(team, [])
    again = Metrics(metrics.learners, None)
    again.load_state_dict(metrics.state_dict())
    for each in (metrics, again):
        each.learned(toys, [])
        assert each.row()["train/reward"] == (1.5 + 1.0) / 2
        assert "train/reward" not in each.row()


def test_what_random_truncation_ended_is_counted_and_no_return():
    frames = batch((5,), {(1,): 2, (3,): 1, (4,): 3}, {(1,): 5.0, (3,): 1.0, (4,): 7.0})
    frames["next", "cut_short"] = torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)[:, None]
    metrics = Metrics(LEARNERS, None)
    metrics.learned(frames, [])
    again = Metrics(metrics.learners, None)
    again.load_state_dict(metrics.state_dict())
    for each in (metrics, again):
        each.learned(frames, [])
        row = each.row()
        assert (row["train/cut_short"], row["train/episodes"], row["train/return"]) == (4, 2, 7.0)
    frames["next", "cut_short"].zero_()
    metrics.learned(frames, [])
    assert metrics.row()["train/cut_short"] == 0


def test_an_older_checkpoint_s_open_row_goes_on_without_what_it_lacks():
    metrics = Metrics(LEARNERS, None)
    metrics.learned(played(1), losses(2.0))
    state = metrics.state_dict()
    del state["steps"]
    metrics.clear()
    metrics.load_state_dict(state)
    assert metrics.row() == {"loss/critic": 2.0, "train/learning_rate": 0.5}
