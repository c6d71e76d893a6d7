"""Each collector with processes is run once for the module; the tests read what it collected."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors import BaseCollector
from torchrl.data import Bounded
from torchrl.envs import DoubleToFloat, ObservationNorm, StepCounter, TransformedEnv
from torchrl.modules import EGreedyModule, OrnsteinUhlenbeckProcessModule
from torchrl.objectives.value import GAE

from hydrl import envs
from hydrl.experience import collectors
from hydrl.experience.worker_collectors import AsyncWorkers
from hydrl.networks import actors, critics
from tests.conftest import settings, workers_of
from tests.fakes.envs import CountingEnv, make_global_random_env

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
# Its workers run as those of the vectors do, one environment in each.
ONE_EACH = pytest.param("synchronous", marks=pytest.mark.slow)
NORMALISED = (partial(ObservationNorm, in_keys=["observation"]), StepCounter)


def maker(actions: str = "continuous", **toy: Any) -> Callable[..., TransformedEnv]:
    return partial(envs.make_env, partial(CountingEnv, actions=actions, **toy), NORMALISED)


def seeded(make: Callable[..., TransformedEnv], num_envs: int) -> TransformedEnv:
    torch.manual_seed(0)
    env = make(num_envs=num_envs, seed=0)
    envs.init_normalizers(env, 100)
    return env


def always(actor: nn.Module, loc: float) -> None:
    """Changes the weights so that every action is the mean ``loc``, nearly without noise."""
    last = [module for module in actor.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([loc, -20.0]))


@dataclass
class Collected:
    """What a collector did before the weights (or the exploration) changed, and in batches begun after."""

    env: TransformedEnv
    batches: list[TensorDictBase]
    changed: list[TensorDictBase]
    children_left: list[psutil.Process]


def collect(make, policy_of, change, *, num_envs: int, sync: bool) -> Collected:
    env = seeded(make, num_envs)
    policy = policy_of(env)
    collector = collectors.make_collector(
        env,
        partial(make, num_envs=num_envs, normalizer=envs.normalizer_state(env)),
        policy,
        frames_per_batch=160,
        init_random_frames=0,
        num_envs=num_envs,
        num_workers=2,
        seed=3,
        device="cpu",
        sync=sync,
    )
    assert not collector.steps_env
    assert collector.episode_restart_reason == "they are in processes of their own"
    batches: list[TensorDictBase] = []
    changed: list[TensorDictBase] = []
    senders, since = senders_of(collector), set()
    try:
        for batch in collector:
            if len(batches) < 4:
                batches.append(batch.clone())
                if len(batches) == 4:
                    change(policy)
            else:
                if sync or senders[-1] in since:  # it has handed over what it was at when they changed
                    changed.append(batch.clone())
                since.update(senders[-1:])
            collector.publish()
            if len(changed) == 2:
                break
    finally:
        workers = workers_of(psutil.Process())
        assert len(workers) == 2
        collector.shutdown()
    return Collected(env, batches, changed, [worker for worker in workers if worker.is_running()])


def senders_of(collector: BaseCollector) -> list[int]:
    """The worker of each batch of an asynchronous collector, as they come."""
    senders: list[int] = []
    if isinstance(collector, AsyncWorkers):
        receive = collector._get_from_queue

        def received(*args: Any, **kwargs: Any) -> Any:
            item = receive(*args, **kwargs)
            senders.append(item[0])
            return item

        collector._get_from_queue = received
    return senders


@pytest.fixture(scope="module")
def synchronous() -> Collected:
    return collect(
        maker(),
        lambda env: actors.tanh_normal(env, **NETWORK),
        lambda actor: always(actor, 50.0),
        num_envs=1,
        sync=True,
    )


@pytest.fixture(scope="module")
def synchronous_vectors() -> Collected:
    def policy(env: TransformedEnv) -> nn.Module:
        actor = actors.q_value(env, **NETWORK)
        spec = env.action_spec_unbatched
        return TensorDictSequential(
            actor, EGreedyModule(spec, eps_init=1.0, eps_end=0.0, annealing_num_steps=9)
        )

    return collect(maker("one_hot"), policy, lambda policy: policy[1].step(9), num_envs=2, sync=True)


@pytest.fixture(scope="module")
def asynchronous() -> Collected:
    chosen = settings("env=torchrl_pendulum")
    return collect(
        partial(envs.make_env, chosen.build("env"), chosen.transform_builders),
        lambda env: actors.tanh_normal(env, **NETWORK),
        lambda actor: always(actor, 50.0),
        num_envs=2,
        sync=False,
    )


def single(
    env: TransformedEnv, policy: nn.Module, num_envs: int = 1, random: int = 0
) -> list[TensorDictBase]:
    collector = collectors.make_collector(
        env,
        lambda: None,
        policy,
        frames_per_batch=60,
        init_random_frames=random,
        num_envs=num_envs,
        seed=0,
        device="cpu",
    )
    assert collector.steps_env
    return [batch.clone() for batch in islice(collector, 2)]


@pytest.mark.parametrize(("num_envs", "shape"), [(1, (60,)), (3, (3, 20))])
def test_one_process_collects_in_the_training_env_itself_time_last(num_envs, shape):
    env = seeded(maker(), num_envs)
    first, second = single(env, actors.tanh_normal(env, **NETWORK), num_envs)
    assert first.batch_size == second.batch_size == shape
    assert "collector" not in first  # numbers of trajectories cost time and are read by nobody
    goes_on = ~first["next", "done"][..., -1, 0]
    last, following = first["next", "observation"][..., -1, :], second["observation"][..., 0, :]
    assert torch.equal(last[goes_on], following[goes_on])
    if num_envs == 1:
        assert env.base_env.steps == second["next", "step_count"][-1].item()


def test_the_first_frames_are_random_where_asked():
    env = seeded(maker(), 1)
    actor = actors.tanh_normal(env, **NETWORK)
    always(actor, 50.0)
    first, second = single(env, actor, random=60)
    assert first["action"].min() < 0
    assert second["action"].min() > 2.99


def test_noise_that_remembers_is_told_where_episodes_begin():
    env = seeded(maker(), 3)
    actor = actors.tanh_normal(env, **NETWORK)
    always(actor, 0.0)
    noise = OrnsteinUhlenbeckProcessModule(spec=env.action_spec_unbatched, annealing_num_steps=9, sigma=1.0)
    first, _ = single(env, TensorDictSequential(actor, noise), 3)
    begins = first["step_count"] == 0
    assert torch.equal(first["is_init"], begins)
    assert begins.sum() > 3
    distance = (first["action"] - 0.5).abs()  # from the mean action
    assert distance[begins].max() < 0.5  # one step of noise
    assert distance[~begins].max() > 0.5  # which adds up within an episode


def test_noise_that_remembers_pushes_one_way_for_some_steps():
    torch.manual_seed(0)
    chosen = settings("algo=ddpg", "env=gym", "env.id=Pendulum-v1", "exploration=ornstein_uhlenbeck")
    noise = chosen.build("exploration")(spec=Bounded(-5, 5, (1,)))
    noise.train()
    state = TensorDict({"is_init": torch.ones(500, 1, dtype=torch.bool)}, 500)
    pushed = []
    for _ in range(60):
        state = noise(state.set("action", torch.zeros(500, 1)))
        state["is_init"] = torch.zeros(500, 1, dtype=torch.bool)
        pushed.append(state["action"][:, 0])
    now, soon, late = pushed[29], pushed[32], pushed[59]
    assert now.std() == pytest.approx(0.2 / (1 - 0.85**2) ** 0.5, rel=0.1)  # x becomes 0.85 x + 0.2 N(0, 1)
    assert torch.corrcoef(torch.stack([now, soon]))[0, 1] == pytest.approx(0.85**3, abs=0.1)
    assert torch.corrcoef(torch.stack([now, late]))[0, 1] == pytest.approx(0, abs=0.15)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("synchronous", (2, 80), marks=pytest.mark.slow),
        ("synchronous_vectors", (2, 2, 40)),
        ("asynchronous", (2, 80)),
    ],
)
def test_worker_batches_have_time_last_and_unbroken(name, shape, request):
    for batch in request.getfixturevalue(name).batches:
        assert batch.batch_size == shape
        goes_on = ~batch["next", "done"][..., :-1, 0]
        after, now = batch["next", "observation"][..., :-1, :], batch["observation"][..., 1:, :]
        assert torch.equal(after[goes_on], now[goes_on])
        steps, following = batch["step_count"][..., 0], batch["next", "step_count"][..., 0]
        assert torch.equal(following, steps + 1)


@pytest.mark.parametrize("name", [ONE_EACH, "synchronous_vectors"])
def test_every_worker_normalises_with_the_parent_s_statistics(name, request):
    collected = request.getfixturevalue(name)
    (statistics,) = envs.normalizer_state(collected.env).values()
    for batch in collected.batches:
        raw = (batch["observation"] - statistics["loc"]) / statistics["scale"]
        assert torch.allclose(raw[..., 0], batch["step_count"][..., 0].float(), atol=1e-4)
        assert torch.allclose(raw[..., 1].round() % 18, torch.tensor(2.0))  # episodes are of 2 or 20 steps


@pytest.mark.parametrize("name", [ONE_EACH, "synchronous_vectors"])
def test_workers_see_different_episodes_and_draw_different_actions(name, request):
    batch = torch.cat(request.getfixturevalue(name).batches, -1).flatten(0, -2)
    for key in (("next", "done"), "action"):
        rows = {tuple(row.flatten().tolist()) for row in batch[key]}
        assert len(rows) == len(batch), key


def test_asynchronous_workers_take_turns_and_differ(asynchronous):
    starts = [tuple(row[0].tolist()) for batch in asynchronous.batches for row in batch["observation"]]
    assert len(set(starts)) == len(starts)


def test_advantages_do_not_leak_from_one_worker_to_another(synchronous_vectors):
    batch = synchronous_vectors.batches[0]
    critic = critics.state_value(seeded(maker(), 1), **NETWORK)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    with torch.no_grad():
        joined = gae(batch.clone())["advantage"]
        apart = torch.stack([gae(worker.clone())["advantage"] for worker in batch])
    assert torch.allclose(joined, apart, atol=1e-5)


@pytest.mark.parametrize("name", [ONE_EACH, "asynchronous"])
def test_published_weights_reach_the_workers(name, request):
    collected = request.getfixturevalue(name)
    high = collected.env.action_spec_unbatched.space.high.item()
    assert torch.cat([batch["action"].flatten() for batch in collected.batches]).min() < 0
    for batch in collected.changed:
        assert batch["action"].min() > high - 0.01


def test_the_annealed_epsilon_reaches_the_workers(synchronous_vectors):
    def greedy(batch: TensorDictBase) -> float:
        return (batch["action"].argmax(-1) == batch["action_value"].argmax(-1)).double().mean().item()

    assert greedy(torch.cat(synchronous_vectors.batches, -1)) < 0.5
    assert all(greedy(batch) == 1 for batch in synchronous_vectors.changed)


@pytest.mark.parametrize("name", [ONE_EACH, "synchronous_vectors", "asynchronous"])
def test_shutdown_leaves_no_worker_alive(name, request):
    assert request.getfixturevalue(name).children_left == []


def test_what_goes_to_a_worker_survives_pickling():
    chosen = settings("env=cartpole", "algo=ppo")
    make = partial(envs.make_env, chosen.build("env"), chosen.transform_builders)
    env = seeded(make, 2)
    make = partial(make, num_envs=2, normalizer=envs.normalizer_state(env))
    again = pickle.loads(pickle.dumps(partial(collectors.worker_env, make, seed=5)))()
    assert torch.equal(again.reset()["observation"], make(seed=5).reset()["observation"])


def starts_of_workers(*, sync: bool) -> list[torch.Tensor]:
    """The first eight starts of each of two workers, ``[8, generators]``."""
    make = partial(envs.make_env, make_global_random_env, (DoubleToFloat,))
    built = collectors.make_collector(
        make(seed=3),
        make,
        actors.q_value(make(seed=3), **NETWORK),
        frames_per_batch=16 if sync else 8,
        init_random_frames=0,
        num_envs=1,
        num_workers=2,
        seed=3,
        device="cpu",
        sync=sync,
    )
    senders, starts = senders_of(built), dict[int, torch.Tensor]()
    with collectors.shut_down_after(built) as collector:
        for batch in collector:
            if sync:
                return [*batch["observation"].reshape(2, 8, 3)]
            starts.setdefault(senders[-1], batch["observation"].reshape(8, 3))
            if len(starts) == 2:
                return [starts[0], starts[1]]
    raise AssertionError


@pytest.mark.parametrize("sync", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_worker_has_global_generators_of_its_own_which_repeat(sync):
    first, second = starts_of_workers(sync=sync)
    for generator in range(3):
        assert len({*first[:, generator].tolist(), *second[:, generator].tolist()}) == 16
    again = starts_of_workers(sync=sync)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
