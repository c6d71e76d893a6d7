"""`experiment=quickstart` and `dqn_intro` are the documents' loops, number for number.

Each document is written out plainly here, with TorchRL alone, and compared to the last bit. One deliberate
difference on both sides: the documents evaluate in the environment the collector is stepping, which disturbs
the next batch; here evaluation has an environment of its own.
"""

import re
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    GymEnv,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss
from torchrl.objectives.value import GAE

import hydrl.training.metrics
from tests.conftest import saved, settings

SEED = 3
QUICKSTART = ["experiment=quickstart", "eval.every_frames=1_000"]


def documented_ppo(batches: int, frames_per_batch: int = 1000, epochs: int = 10) -> tuple[list, list, dict]:
    sub_batch_size, total_frames = 64, frames_per_batch * batches
    torch.manual_seed(SEED)
    env = TransformedEnv(
        GymEnv("InvertedDoublePendulum-v4", device="cpu"),
        Compose(ObservationNorm(in_keys=["observation"]), DoubleToFloat(), RewardSum(), StepCounter()),
    )
    env.set_seed(SEED)
    env.transform[0].init_stats(num_iter=1000, reduce_dim=0, cat_dim=0)
    check_env_specs(env)
    actor_net = nn.Sequential(
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(2 * env.action_spec.shape[-1]),
        NormalParamExtractor(),
    )
    policy = ProbabilisticActor(
        module=TensorDictModule(actor_net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
        return_log_prob=True,
    )
    value_net = nn.Sequential(
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(256),
        nn.Tanh(),
        nn.LazyLinear(1),
    )
    value = ValueOperator(module=value_net, in_keys=["observation"])
    policy(env.reset())
    value(env.reset())
    collector = Collector(
        env,
        policy,
        frames_per_batch=frames_per_batch,
        total_frames=total_frames,
        split_trajs=False,
        device="cpu",
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(frames_per_batch), sampler=SamplerWithoutReplacement())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)
    loss = ClipPPOLoss(
        actor_network=policy,
        critic_network=value,
        clip_epsilon=0.2,
        entropy_bonus=True,
        entropy_coeff=1e-4,
        critic_coeff=1.0,
        loss_critic_type="smooth_l1",
    )
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_frames // frames_per_batch, 0.0)
    evaluation_env = TransformedEnv(
        GymEnv("InvertedDoublePendulum-v4"),
        Compose(
            ObservationNorm(loc=env.transform[0].loc, scale=env.transform[0].scale, in_keys=["observation"]),
            DoubleToFloat(),
        ),
    )
    data, losses = [], []
    for i, batch in enumerate(collector):
        data.append(batch.clone())
        for _ in range(epochs):
            advantage(batch)
            buffer.extend(batch.reshape(-1).cpu())
            for _ in range(frames_per_batch // sub_batch_size):
                values = loss(buffer.sample(sub_batch_size))
                (values["loss_objective"] + values["loss_critic"] + values["loss_entropy"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(values.detach())
        if i % 2 == 0:
            with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
                evaluation_env.rollout(100, policy)
        scheduler.step()
    collector.shutdown()
    return data, losses, {"actor": policy.state_dict(), "critic": value.state_dict()}


def documented_dqn(batches: int) -> tuple[list, list, dict]:
    torch.manual_seed(SEED)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(RewardSum(), StepCounter()))
    env.set_seed(SEED)
    check_env_specs(env)
    actor = QValueActor(
        MLP(in_features=4, out_features=2, num_cells=[128]), in_keys=["observation"], spec=env.action_spec
    )
    actor(env.reset())
    collector = Collector(env, actor, frames_per_batch=100, total_frames=100 * batches)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10_000))
    loss = DQNLoss(actor)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    data, losses = [], []
    for batch in collector:
        data.append(batch.clone())
        buffer.extend(batch)
        if len(buffer) >= 100:
            values = loss(buffer.sample(64))
            values["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(values.detach())
    collector.shutdown()
    return data, losses, {"actor": actor.state_dict(), "critic": {}}


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[TensorDict]]:
    """What a run hands to its record: every batch as collected, and the losses of every update."""
    seen: dict[str, list[TensorDict]] = {"data": [], "losses": []}
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, losses):
        seen["data"].append(batch.clone())
        seen["losses"] += losses
        return learned(self, batch, losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)
    return seen


def test_the_quickstart_has_the_document_s_batches_and_epochs():
    """The fast comparison has fewer of both."""
    chosen = settings("experiment=quickstart")
    assert (chosen.collector["frames_per_batch"], chosen.minibatches["epochs"]) == (1_000, 10)


@pytest.mark.parametrize(
    ("document", "overrides", "updates"),
    [
        (
            partial(documented_ppo, frames_per_batch=256, epochs=3),
            [*QUICKSTART, "collector.frames_per_batch=256", "minibatches.epochs=3", "total_frames=512"],
            24,
        ),
        pytest.param(documented_ppo, [*QUICKSTART, "total_frames=5_000"], 750, marks=pytest.mark.slow),
        (documented_dqn, ["experiment=dqn_intro", "total_frames=1_000"], 10),
    ],
    ids=["quickstart", "quickstart longer", "dqn_intro"],
)
def test_experiment_equals_the_document_bit_for_bit(document, overrides, updates, run, captured):
    folder = run(*overrides, f"seed={SEED}", "eval.episodes=2", "eval.final_episodes=2")
    data, losses, weights = document(len(captured["data"]))

    assert len(losses) == len(captured["losses"]) == updates
    for ours, documents in zip(captured["data"], data, strict=True):
        for key in ("observation", "action", ("next", "reward"), ("next", "done"), ("next", "observation")):
            assert torch.equal(ours[key], documents[key]), key
    for ours, documents in zip(captured["losses"], losses, strict=True):
        for key in list(documents.keys()):
            if key.startswith("loss"):
                assert torch.equal(ours[key], documents[key]), key
    loss = saved(folder, "loss")
    ours = {"actor": saved(folder, "actor"), "critic": {}}
    for key, value in loss.items():
        if found := re.fullmatch(r"critic_network(_params)?\.(.*)", key):
            ours["critic"][found[2]] = value
    for network, state in weights.items():
        assert ours[network].keys() == state.keys()
        assert all(torch.equal(ours[network][name], tensor) for name, tensor in state.items())
