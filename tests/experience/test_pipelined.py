"""Pipelined collection: which policy acts when, what comes back, and what happens when the process fails."""

import pickle
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.envs import TransformedEnv
from torchrl.modules import EGreedyModule

from hydrl import envs
from hydrl.envs.transforms import RunningNorm
from hydrl.errors import DivergedError, UserError, WorkerError
from hydrl.experience import collectors, pipelined
from hydrl.networks import actors
from tests.conftest import HANGING, workers_of
from tests.experience.test_worker_collectors import Troubled, line_of
from tests.fakes.by_turns import ByTurns
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def normalized(actions: str = "continuous", **options: Any) -> Callable[..., TransformedEnv]:
    return partial(
        envs.make_env,
        partial(CountingEnv, actions=actions),
        [partial(RunningNorm, ["observation"])],
        **options,
    )


def collect_from(env: TransformedEnv, make: Any, policy: Any, **options: Any) -> pipelined.PipelinedCollector:
    arguments = {"frames_per_batch": 40, "init_random_frames": 0, "num_envs": 2, "worker_timeout": 100.0}
    return pipelined.pipelined_collector(env, make, policy, seed=3, device="cpu", **arguments | options)


@contextmanager
def collecting(how: Any, policy_of: Any, monkeypatch: Any, **options: Any) -> Iterator[Any]:
    """The policy, the environment of this process and a collector, which is shut down afterwards."""
    if how == "by turns":
        monkeypatch.setattr(pipelined, "CollectorProcess", ByTurns)
    torch.manual_seed(0)
    make = normalized(num_envs=2, **options)
    env = make(seed=0)
    env.rollout(3)
    policy = policy_of(env)
    make = partial(make, normalizer=envs.normalizer_state(env))
    with collectors.shut_down_after(collect_from(env, make, policy)) as collector:
        yield policy, env, collector
    assert workers_of(psutil.Process()) == []
    assert [*Path(tempfile.gettempdir()).glob("hydrl-workers-*")] == []


@pytest.mark.parametrize(("how", "pause"), [("by turns", 0.0), ("process", 0.0), ("process", 0.3)])
def test_a_batch_is_acted_by_the_policy_of_before_the_last_update(how, pause, monkeypatch):
    """Its log-probabilities are that policy's, whether the learner or the collector is the slower one."""
    with collecting(how, lambda env: actors.tanh_normal(env, **NETWORK), monkeypatch) as (policy, _, built):
        policies, batches = [deepcopy(policy)], []
        for batch in built:
            batches.append(batch.clone())
            if len(batches) == 5:
                break
            time.sleep(pause)
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.add_(0.1 * torch.randn_like(weight))
            policies.append(deepcopy(policy))
            built.publish()
    for number, batch in enumerate(batches):
        means = [old(batch.select("observation"))["loc"] for old in policies]
        acted_by = [torch.allclose(mean, batch["loc"], atol=1e-6) for mean in means]
        assert acted_by == [updates == max(number - 1, 0) for updates in range(len(policies))]
        distribution = policies[max(number - 1, 0)].get_dist(batch)
        assert torch.allclose(distribution.log_prob(batch["action"]), batch["action_log_prob"], atol=0.05)


def test_annealed_exploration_reaches_the_process_with_the_weights(monkeypatch):
    def explorer(env: TransformedEnv) -> TensorDictSequential:
        spec = env.action_spec_unbatched
        greedy = EGreedyModule(spec, eps_init=1.0, eps_end=0.0, annealing_num_steps=9)
        return TensorDictSequential(actors.q_value(env, **NETWORK), greedy)

    with collecting("by turns", explorer, monkeypatch, actions="one_hot") as (policy, _, built):
        shares = []
        for batch in built:
            shares.append(
                (batch["action"].argmax(-1) == batch["action_value"].argmax(-1)).double().mean().item()
            )
            if len(shares) == 1:
                policy[1].step(9)
            if len(shares) == 3:
                break
    assert max(shares[:2]) < 1 == shares[2]


@pytest.mark.parametrize("how", ["by turns", "process"])
def test_the_statistics_of_a_batch_come_with_it(how, monkeypatch):
    with collecting(how, lambda env: actors.tanh_normal(env, **NETWORK), monkeypatch) as (_, env, built):
        (norm,) = envs.normalization.normalizers(env)
        before = norm.num_observations
        counts = []
        for _ in built:
            built.wait()  # the next batch is collected by now, and its statistics wait with it
            counts.append(norm.num_observations - before)
            if len(counts) == 3:
                break
        rounded = [round(count / 40) for count in counts]  # and some first observations
    assert rounded == [1, 2, 3], counts


def test_random_frames_come_first_and_only_once(monkeypatch):
    monkeypatch.setattr(pipelined, "CollectorProcess", ByTurns)
    torch.manual_seed(0)
    env = envs.make_env(CountingEnv, (), seed=0)
    actor = actors.tanh_normal(env, **NETWORK)
    last = [module for module in actor.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([50.0, -20.0]))  # the highest action, nearly without noise
    high = env.action_spec_unbatched.space.high.item()

    def is_random(built: pipelined.PipelinedCollector) -> list[bool]:
        pairs = zip(built, range(3), strict=False)
        return [batch["action"].min().item() < high - 0.01 for batch, _ in pairs]

    make = partial(envs.make_env, CountingEnv, ())
    options = {"num_envs": 1, "init_random_frames": 80}
    first = collect_from(env, make, actor, **options)
    assert is_random(first) == [True, True, False]
    later = collect_from(env, make, actor, **options)
    later.load_state({"frames": 40, "iter": 1})  # as of asynchronous workers
    assert is_random(later) == [True, False, False]


def test_a_batch_in_a_checkpoint_is_plain_and_comes_back_whole():
    rows, agents = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3, 4, 1, dtype=torch.uint8)
    batch = TensorDict(
        {
            "action": rows,
            "agents": TensorDict(
                {"pixels": agents, "info": TensorDict({"speed": agents}, [2, 3, 4])}, [2, 3, 4]
            ),
            "next": TensorDict({"done": rows > 2}, [2, 3]),
        },
        [2, 3],
        device="cpu",
    ).refine_names(..., "time")
    plain = pipelined.to_plain(batch)
    restored = pipelined.from_plain(pickle.loads(pickle.dumps(plain)))
    assert (restored.batch_size, restored.names, restored.device) == ((2, 3), [None, "time"], batch.device)
    assert restored["agents"].batch_size == restored["agents", "info"].batch_size == (2, 3, 4)
    assert restored["agents"].names == batch["agents"].names
    assert restored["agents", "pixels"].dtype == torch.uint8
    assert (restored == batch).all()
    assert type(plain["entries"]["next"]) is dict
    with pytest.raises(TypeError, match=r"^words \(NonTensorData\)$"):
        pipelined.to_plain(batch.set_non_tensor("words", "hello"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.rand(2, 3).T,
        torch.rand(4, requires_grad=True),
        torch.rand(3).bfloat16(),
        torch.zeros(0, 2, dtype=torch.bool),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(1).expand(5),
    ],
)
def test_messages_copy_tensors(tensor):
    (copy,) = pickle.loads(pipelined.to_bytes((tensor,)))
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(copy, tensor)
    with torch.no_grad():
        copy.copy_(copy == 0)  # the memory is its own, and can be written to
    assert copy.numel() == 0 or not torch.equal(copy, tensor)


def troubled(trouble: str, *, early: bool = False, **options: Any) -> pipelined.PipelinedCollector:
    torch.manual_seed(0)
    env = envs.make_env(CountingEnv, (), seed=0)
    make = partial(envs.make_env, partial(Troubled, trouble, early=early), ())
    return collect_from(env, make, actors.tanh_normal(env, **NETWORK), num_envs=1, **options)


@contextmanager
def ending(collector: pipelined.PipelinedCollector, kind: type[Exception]) -> Iterator[list[str]]:
    """The block raises an error of a kind; its message is appended, and no process is left."""
    message: list[str] = []
    with pytest.raises(kind) as caught, collectors.shut_down_after(collector):
        yield message
    message.append(str(caught.value))
    assert getattr(caught.value, "in_batch", True)  # no checkpoint of this moment is possible
    assert collector.has_failed
    assert workers_of(psutil.Process()) == []
    assert [*Path(tempfile.gettempdir()).glob("hydrl-workers-*")] == []


def test_a_failed_process_shows_its_traceback_once(capfd):
    collector = troubled("raises")
    name = collector.process.name
    with ending(collector, WorkerError) as message:
        for count, _ in enumerate(collector, 1):
            assert count <= 2
    assert message[0].startswith(f"{name} failed:\nTraceback")
    assert message[0].count("1 / 0") == 1
    assert message[0].endswith("ZeroDivisionError: division by zero")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("infinite", DivergedError, r"diverged at frame \d+: reward of environment 0 is NaN"),
        ("refuses", UserError, r"env\.id=X: no such thing\. Write Y\."),
        ("killed", WorkerError, r"the collecting process \d+ was killed by SIGKILL, as the system does"),
        ("crashes", WorkerError, r"(?s)the collecting process \d+ was killed by SIGSEGV:\n.*in _step"),
    ],
)
def test_whatever_ends_a_process_is_named(trouble, kind, message):
    with ending(collector := troubled(trouble), kind) as found:
        for _ in collector:
            pass
    assert re.match(message, found[0]), found[0]


@pytest.mark.parametrize(("trouble", "kind"), [("raises", WorkerError), ("refuses", UserError)])
def test_an_environment_that_cannot_be_built_is_named(trouble, kind):
    with ending(collector := troubled(trouble, early=True), kind) as message:
        next(iter(collector))
    assert ("1 / 0" if kind is WorkerError else "Write Y.") in message[0]


def test_a_process_that_hangs_ends_with_the_line_it_is_in(monkeypatch):
    collector = troubled("hangs", worker_timeout=100.0)
    with ending(collector, WorkerError) as message:
        batches = iter(collector)
        next(batches)
        next(batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipelined, "STARTING", 1)
            collector.process.worker_timeout = 0.0
            next(batches)
    assert re.match(r"no answer in \d+ seconds: the collecting process \d+ is sleeping", message[0])


@pytest.mark.slow
def test_a_process_that_takes_longer_than_its_timeout_ends_with_the_line_it_is_in():
    with ending(collector := troubled("hangs_in_c", worker_timeout=60.0), WorkerError) as message:
        for _ in collector:
            pass
    assert "took longer than collector.worker_timeout=60 seconds to start or for a batch:\n" in message[0]
    assert f"line {line_of('re.match(')} in hang_in_c\n" in message[0]


def test_signals_to_the_whole_group_are_the_run_s_to_answer():
    with collectors.shut_down_after(troubled("none")) as collector:
        batches = iter(collector)
        next(batches)
        (process,) = workers_of(psutil.Process())
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(signum)
        assert [next(batches).numel() for _ in range(3)] == [40, 40, 40]
    assert workers_of(psutil.Process()) == []


def test_a_process_that_waits_for_the_run_is_left_alone():
    collector = troubled("none", worker_timeout=30.0)
    collector.wait()
    with collectors.shut_down_after(collector):
        batches = iter(collector)
        next(batches)
        assert collector.process.poll(HANGING)
        collector.process.sent_at -= 1_000  # the run learned from it for longer than the timeout
        collector.wait()
        assert next(batches).numel() == 40
