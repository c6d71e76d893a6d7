import random
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.wrappers import TimeLimit
from tensordict.nn import TensorDictModule
from torchrl.envs import (
    DoubleToFloat,
    GymWrapper,
    ObservationNorm,
    RewardScaling,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)

from hydrl import envs
from hydrl.envs.evaluation import join_evaluations
from hydrl.envs.time_limits import episode_limit
from hydrl.experience import collectors
from hydrl.networks import actors
from hydrl.training.evaluator import Evaluation, PolicyEvaluator, SeedStream
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
NORMS = {
    "ObservationNorm": partial(ObservationNorm, in_keys=["observation"]),
    "VecNormV2": partial(VecNormV2, in_keys=["observation"], decay=1.0, reduce_batch_dims=True),
}


class Still:
    """Acts 0 everywhere and remembers what it observed at the start."""

    def __init__(self) -> None:
        self.starts: list[torch.Tensor] = []
        self.module = TensorDictModule(self.act, in_keys=["observation"], out_keys=["action"])

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        self.starts.append(observation.clone())
        return torch.zeros(*observation.shape[:-1], 1)


def toys(*transforms, **toy):
    return partial(envs.make_env, partial(CountingEnv, **toy), transforms)


def evaluator(make_env, actor=None, env=None, seed=0, max_steps=1_000) -> PolicyEvaluator:
    """One that plays with the statistics of ``env``."""
    normaliser = partial(envs.normalizer_state, env) if env else dict
    return PolicyEvaluator(make_env, actor or Still().module, normaliser, seed=seed, max_steps=max_steps)


def pendulum(num_envs=1, norm=NORMS["ObservationNorm"], seed=0):
    """A seeded training environment with its maker and an actor."""
    torch.manual_seed(seed)
    make_env = partial(
        envs.make_env,
        partial(envs.gymnasium_env, "Pendulum-v1"),
        (DoubleToFloat, norm, StepCounter),
    )
    env = make_env(num_envs=num_envs, seed=seed)
    envs.init_normalizers(env, 100)
    return env, make_env, actors.tanh_normal(env, **NETWORK)


def test_long_episodes_count_as_much_as_short_ones():
    make_env = toys(short=2, long=20)
    returns = evaluator(make_env)(0, episodes=60).returns
    assert set(returns.tolist()) == {2.0, 20.0}
    assert returns.mean().item() == pytest.approx(11, abs=2.5)  # half of the episodes are long

    rollout = make_env(num_envs=60, seed=0).rollout(40, break_when_any_done=False)
    after = rollout["next"].transpose(0, 1)
    first_to_finish = after["episode_reward"][after["done"]][:60]
    assert first_to_finish.mean() < 4


def test_it_is_the_first_whole_episode_of_each_environment():
    make_env = toys(short=2, long=20)
    evaluate = evaluator(make_env)
    evaluation = evaluate(0, episodes=12)
    assert torch.equal(evaluation.returns, evaluation.lengths.float())
    assert evaluate(0, episodes=12) is evaluation  # not played a second time
    evaluate(1, episodes=12)
    again = evaluate(0, episodes=12)  # a used environment starts with a fresh episode
    assert again is not evaluation
    assert torch.equal(again.returns, evaluation.returns)


class Drawing(CountingEnv):
    """Its episodes are as long as NumPy's global generator says."""

    def _reset(self, tensordict):
        self.lengths = (int(np.random.randint(1, 100)),) * 2
        return super()._reset(tensordict)


def test_episodes_of_global_generators_repeat_whatever_was_drawn_before():
    def lengths(frames):
        make_env = partial(envs.make_env, Drawing, ())
        return evaluator(make_env)(frames, episodes=3).lengths.tolist()

    np.random.seed(1)
    first = lengths(5)
    drawn = np.random.rand()
    assert lengths(5) == first
    assert lengths(6) != first
    np.random.seed(1)
    assert np.random.rand() == drawn  # and training draws on as if there had been none


@pytest.mark.parametrize("episodes", [1, 3])
def test_it_stops_when_the_last_episode_has_ended(episodes, monkeypatch):
    steps = []
    step = CountingEnv._step
    monkeypatch.setattr(
        CountingEnv, "_step", lambda self, tensordict: steps.append(1) or step(self, tensordict)
    )
    evaluation = evaluator(toys(short=2, long=20))(3, episodes=episodes)
    assert len(steps) == episodes * evaluation.lengths.max()


def test_an_episode_still_running_at_the_last_step_counts_as_it_stands():
    evaluation = evaluator(toys(short=2, long=20), max_steps=7)(0, episodes=12)
    assert set(evaluation.lengths.tolist()) == {2, 7}
    assert torch.equal(evaluation.returns, evaluation.lengths.float())
    assert evaluation.metrics()["eval/cut_episodes"] == evaluation.lengths.tolist().count(7)


@pytest.mark.parametrize("episodes", [1, 2])
@pytest.mark.parametrize(
    ("make", "counted", "longest", "cut"),
    [
        (partial(CountingEnv, 1_600, 1_600), None, 1_000, True),
        (partial(CountingEnv, 1_600, 1_600), 1_600, 1_600, False),
        (partial(envs.gymnasium_env, "Pendulum-v1"), None, 200, False),
        (partial(envs.gymnasium_env, "Pendulum-v1", max_episode_steps=1_001), None, 1_001, False),
        (partial(envs.gymnasium_env, "Pendulum-v1", max_episode_steps=50), 40, 40, False),
        (lambda device: GymWrapper(TimeLimit(PendulumEnv(), 80), device=device), None, 80, False),
        (
            lambda device: TransformedEnv(CountingEnv(1_600, 1_600, device=device), StepCounter(90)),
            None,
            90,
            False,
        ),
    ],
    ids=["endless", "counter", "registered", "long", "both", "TimeLimit", "nested"],
)
def test_auto_waits_for_the_task_s_own_limit(make, counted, longest, cut, episodes):
    made = partial(envs.make_env, make, [DoubleToFloat, partial(StepCounter, counted)])
    evaluation = evaluator(made, max_steps="auto")(0, episodes=episodes)
    assert evaluation.lengths.tolist() == [longest] * episodes
    assert evaluation.cut_episodes == episodes * cut


def test_auto_waits_for_thirty_thousand_steps_at_most():
    env = envs.make_env(CountingEnv, [partial(StepCounter, 108_000)])
    assert episode_limit(env) == 30_000


@pytest.mark.parametrize("episodes", [1, 7])
def test_as_many_episodes_as_asked_for(episodes):
    evaluation = evaluator(toys())(0, episodes=episodes)
    assert evaluation.returns.shape == evaluation.lengths.shape == (episodes,)
    assert evaluation.metrics()["eval/episodes"] == episodes


def test_seed_frames_and_the_set_drawn_from_fix_the_episodes():
    env, make_env, actor = pendulum()

    def returns(seed=0, frames=100, drawn=SeedStream.TRAINING):
        return evaluator(make_env, actor, env, seed=seed)(frames, 2, drawn).returns.tolist()

    first = returns()
    assert first == returns()
    others = [returns(frames=200), returns(drawn=SeedStream.FINAL), returns(seed=1)]
    assert len({tuple(each) for each in [first, *others]}) == 4


def test_actions_are_the_deterministic_ones():
    env, make_env, actor = pendulum()
    returns = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # a sampled action would differ
        returns.append(evaluator(make_env, actor, env)(0, episodes=2).returns)
    assert torch.equal(*returns)


def test_playing_skips_the_log_probabilities_and_leaves_them_to_training():
    env, make_env, actor = pendulum()
    given: list[set] = []
    actor.register_forward_hook(lambda _, inputs, outputs: given.append(set(outputs.keys())))
    evaluator(make_env, actor, env)(0, episodes=2)
    assert given
    assert all("action" in keys and "action_log_prob" not in keys for keys in given)
    assert "action_log_prob" in actor(env.reset())


def test_returns_are_raw_under_a_scaled_reward():
    scaling = partial(RewardScaling, loc=0.0, scale=0.01)
    evaluation = evaluator(toys(scaling, StepCounter, short=5, long=5))(0, episodes=2)
    assert evaluation.returns.tolist() == [5, 5]


@pytest.mark.parametrize("norm", NORMS)
def test_it_observes_through_the_statistics_training_has_now(norm):
    make_env, actor = toys(NORMS[norm]), Still()
    env = make_env(num_envs=2, seed=0)
    envs.init_normalizers(env, 50)
    evaluate = evaluator(make_env, actor.module, env)
    for frames in range(2):
        env.rollout(30, break_when_any_done=False)
        state = envs.normalizer_state(env)
        actor.starts.clear()
        evaluate(frames, episodes=1)
        expected = start_of_an_episode(env.transform[1])
        assert actor.starts[0][[0, 2]].tolist() == pytest.approx(expected, abs=1e-5)
    after = envs.normalizer_state(env)
    assert all(torch.equal(after[key][name], value) for key in state for name, value in state[key].items())


def start_of_an_episode(norm) -> list[float]:
    """Steps so far and last action, both 0, as training's own transform shows them."""
    if isinstance(norm, ObservationNorm):
        return norm.loc[[0, 2]].tolist()
    return (-norm.loc["observation"] / norm.scale["observation"])[[0, 2]].tolist()


def test_every_random_generator_is_left_as_it_was():
    env, make_env, actor = pendulum()
    evaluate = evaluator(make_env, actor, env)
    for frames, episodes in enumerate((2, 2, 3)):  # with and without building environments
        before = (random.getstate(), np.random.get_state(), torch.get_rng_state())
        evaluate(frames, episodes=episodes)
        after = (random.getstate(), np.random.get_state(), torch.get_rng_state())
        assert after[0] == before[0]
        assert all(np.array_equal(now, then) for now, then in zip(after[1], before[1], strict=True))
        assert torch.equal(after[2], before[2])


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_training_goes_on_as_if_there_had_been_no_evaluation(norm, num_envs):
    def train(evaluating: bool):
        env, make_env, actor = pendulum(num_envs, NORMS[norm])
        evaluate = evaluator(make_env, actor, env)
        weights = {name: value.clone() for name, value in actor.state_dict().items()}
        collector = collectors.make_collector(
            env,
            make_env,
            actor,
            frames_per_batch=60,
            init_random_frames=0,
            num_envs=num_envs,
            seed=0,
            device="cpu",
        )
        batches = []
        for frames, batch in enumerate(islice(collector, 3)):
            batches.append(batch.clone())
            if evaluating:
                evaluate(frames, episodes=2)
        assert all(torch.equal(value, weights[name]) for name, value in actor.state_dict().items())
        return batches, envs.normalizer_state(env)

    (plain, statistics), (evaluated, same) = train(False), train(True)
    for ours, theirs in zip(plain, evaluated, strict=True):
        assert (ours == theirs).all()
    for key, each in statistics.items():
        assert all(torch.equal(value, same[key][name]) for name, value in each.items())


def test_an_evaluation_s_numbers():
    evaluation = Evaluation(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([2, 4, 6]))
    assert evaluation.mean == 4
    assert evaluation.std == pytest.approx((26 / 3) ** 0.5)
    assert evaluation.metrics() == {
        "eval/return_mean": 4,
        "eval/return_std": evaluation.std,
        "eval/return_min": 1,
        "eval/return_max": 8,
        "eval/length_mean": 4,
        "eval/episodes": 3,
        "eval/cut_episodes": 0,
    }


def test_close_closes_what_was_opened():
    evaluate = evaluator(toys())
    evaluate(0, episodes=2)
    (env,) = evaluate.envs.values()
    evaluate.close()
    assert env.is_closed


@pytest.mark.parametrize(
    ("episodes", "sizes"), [(99, [99]), (100, [50, 50]), (149, [50, 99]), (200, [50] * 4)]
)
def test_many_episodes_are_played_in_parts(episodes, sizes):
    assert evaluator(toys(short=2, long=20)).split(episodes) == sizes


class SeededAsOne(CountingEnv):
    """Steps ``num_envs`` environments itself, with one seed."""

    def __init__(self, num_envs: int = 1, **options):
        super().__init__(**options)


def test_environments_that_share_a_seed_are_not_split():
    make_env = partial(envs.make_env, partial(SeededAsOne, short=2, long=20), ())
    assert evaluator(make_env).split(200) == [200]


def pendulums(num_envs=1, **options):
    """Gymnasium's pendulum for 5 steps, whose start decides what an action of 0 returns."""
    make = partial(envs.gymnasium_env, "Pendulum-v1", max_episode_steps=5)
    return envs.make_env(make, (DoubleToFloat,), num_envs=num_envs, **options)


@pytest.mark.parametrize("make_env", [toys(short=2, long=20), pendulums], ids=["torchrl", "gymnasium"])
def test_parts_have_the_episodes_of_the_whole(monkeypatch, make_env):
    evaluate = evaluator(make_env)
    assert evaluate.split(130) == [50, 80]
    parts = evaluate(7, episodes=130)
    assert torch.equal(parts.returns[50:], evaluate.play(7, 130, SeedStream.TRAINING, [1]).returns)
    monkeypatch.setattr("hydrl.training.evaluator.PART", 1_000)
    whole = evaluate.play(7, 130, SeedStream.TRAINING)
    assert len(whole.returns.unique()) > 1
    for name in ("returns", "lengths"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name


def test_joined_evaluations_have_all_episodes_in_order():
    first = Evaluation(
        torch.tensor([1.0, 2.0]), torch.tensor([3, 4]), 1, {"distance": torch.tensor([5.0, 6.0])}
    )
    second = Evaluation(torch.tensor([7.0]), torch.tensor([8]), 1)
    joined = join_evaluations([first, second])
    assert joined.returns.tolist() == [1.0, 2.0, 7.0]
    assert joined.lengths.tolist() == [3, 4, 8]
    assert joined.cut_episodes == 2
    assert joined.info["distance"].tolist()[:2] == [5.0, 6.0]
    assert joined.info["distance"].isnan().tolist() == [False, False, True]
    assert joined.metrics()["eval/distance"] == 5.5
