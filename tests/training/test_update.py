from functools import partial

import pytest
import torch
from tensordict import TensorDict, is_tensorclass
from torch import nn
from torch._dynamo.testing import CompileCounter
from torchrl.data import LazyTensorStorage, OneHot, ReplayBuffer
from torchrl.data.replay_buffers import SamplerWithoutReplacement
from torchrl.envs import ExplorationType, StepCounter, set_exploration_type
from torchrl.modules import QValueActor

from hydrl import envs
from hydrl.errors import DivergedError, UserError
from hydrl.experience.minibatches import Epochs
from hydrl.networks import actors, critics
from hydrl.training.update import Update, make_gradients, train_mode
from tests.conftest import loss_of, settings
from tests.fakes.envs import CountingEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}


class Terms(nn.Module):
    """A loss of known gradients: 3 w0 + 4 w1 in two terms, and something that is none."""

    out_keys = ("loss_first", "loss_second", "other")

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, minibatch: TensorDict) -> TensorDict:
        first, second = 3 * self.weight[0], 4 * self.weight[1]
        other = minibatch["x"] + 100 * self.weight[0].detach()
        return TensorDict({"loss_first": first, "loss_second": second, "other": other})


def step(max_grad_norm, **parts):
    loss = Terms()
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), max_grad_norm=max_grad_norm, **parts)
    return loss.weight.data, update(TensorDict({"x": torch.tensor([1.0, 3.0])}, []))


def test_an_update_descends_the_sum_of_the_loss_terms_and_of_nothing_else():
    weight, _ = step(None)
    assert weight.tolist() == [-3, -4]


@pytest.mark.parametrize(("max_grad_norm", "moved"), [(0.5, 0.5), (4.0, 4.0), (100.0, 5.0), (None, 5.0)])
def test_the_gradient_s_norm_is_clipped_and_none_leaves_it(max_grad_norm, moved):
    weight, losses = step(max_grad_norm)
    assert weight.norm().item() == pytest.approx(moved, rel=1e-4)
    assert (weight[1] / weight[0]).item() == pytest.approx(4 / 3)
    assert losses["grad_norm"].item() == pytest.approx(5)  # before clipping


class Moving(Terms):
    """A policy that has moved by ``x`` from the one that acted."""

    out_keys = ("loss", "kl_approx")

    def forward(self, minibatch: TensorDict) -> TensorDict:
        return TensorDict({"loss": self.weight.sum(), "kl_approx": minibatch["x"].detach().clone()})


def test_a_batch_is_left_where_its_policy_has_moved_too_far_and_before_the_step_that_goes_on():
    loss = Moving()
    minibatches = [TensorDict({"x": torch.tensor(kl)}) for kl in (0.0, 0.14, 0.16, 0.0)]
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), target_kl=0.1)
    assert [losses["kl_approx"].item() for losses in update.update_all(minibatches)] == pytest.approx(
        [0.0, 0.14]
    )
    assert loss.weight.tolist() == [-2, -2]
    assert len(Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0)).update_all(minibatches)) == 4
    with pytest.raises(UserError, match=r"target_kl=0.1: Terms has no KL divergence. Use null"):
        Update(Terms(), torch.optim.SGD(loss.parameters(), lr=1.0), target_kl=0.1)


def test_batches_left_in_a_row_lower_the_learning_rate_until_one_is_not():
    def moved(*kl: float) -> float:
        """How far a batch's one step goes; a second one is forbidden."""
        start = loss.weight[0].item()
        update.update_all(TensorDict({"x": torch.tensor(each)}) for each in kl)
        return start - loss.weight[0].item()

    whole, left = (0.0,), (0.0, 0.2)
    loss = Moving()
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    update = Update(loss, optimizer, target_kl=0.1)
    assert [moved(*batch) for batch in (left, whole, left, left, left)] == [1, 1, 1, 1, 0.5]
    state = update.state_dict()
    update = Update(loss, optimizer, target_kl=0.1)
    update.load_state_dict(state)  # as in a resumed run
    assert [moved(*batch) for batch in (left, whole, whole, left)] == [0.25, 0.125, 0.1875, 0.28125]
    assert (update.learning_rate, optimizer.param_groups[0]["lr"]) == (0.28125, 1.0)
    with pytest.raises(RuntimeError, match="no more"):
        update.update_all(broken())
    assert optimizer.param_groups[0]["lr"] == 1.0


def broken():
    """Minibatches that end in an error."""
    yield TensorDict({"x": torch.tensor(0.0)})
    raise RuntimeError("no more")


@pytest.mark.slow
def test_a_class_that_tensordict_meets_later_compiles_nothing_anew():
    loss, minibatch = Terms(), TensorDict({"x": torch.zeros(2)}, [])
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), compile=True)
    update(minibatch.clone())
    assert not is_tensorclass(type("Late", (), {}))
    with torch._dynamo.config.patch(error_on_recompile=True):
        update(minibatch.clone())
    assert loss.weight.tolist() == [-6, -8]


class Unlisted(Terms):
    """Returns a term that its class does not list."""

    out_keys = ("loss_first", "other")


@pytest.mark.parametrize("compile", [False, True])
def test_a_term_that_the_loss_does_not_list_is_learned_from_too(compile):
    loss = Unlisted()
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), compile=compile)
    update(TensorDict({"x": torch.zeros(2)}, []))
    assert loss.weight.tolist() == [-3, -4]


class Misnamed(Terms):
    """Returns a term under a name that is not summed."""

    def forward(self, minibatch: TensorDict) -> TensorDict:
        return super().forward(minibatch).set("penalty", self.weight.square().sum())


@pytest.mark.parametrize("compile", [False, True])
def test_a_term_that_would_not_be_learned_from_is_refused(compile):
    loss = Misnamed()
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), compile=compile)
    with pytest.raises(UserError, match="penalty has a gradient and is not summed; name it loss_… or detach"):
        update(TensorDict({"x": torch.ones(2)}, []))
    assert loss.weight.tolist() == [0, 0]


class NaNEnv(Terms):
    """One term or the gradient of one is no number, from ``x`` on."""

    out_keys = ("loss_first", "other")

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, minibatch: TensorDict) -> TensorDict:
        losses, x = super().forward(minibatch), minibatch["x"].mean()
        if self.how == "gradient":  # 0 * sqrt(0): a loss of 0 with a gradient of NaN
            losses["loss_second"] = (self.weight[1] * 0 - 1 + x).sqrt()
        else:
            losses["loss_second"] = losses["loss_second"] + torch.where(x > 0.5, float(self.how), 0.0)
        return losses


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", "loss_second is nan"),
        ("inf", "loss_second is inf"),
        ("gradient", "grad_norm is nan"),
    ],
)
def test_what_is_no_number_stops_before_the_step_and_is_named(how, message, compile):
    loss = NaNEnv(how)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1.0)
    update = Update(loss, optimizer, max_grad_norm=1.0, compile=compile)
    update(TensorDict({"x": torch.tensor(2.0 if how == "gradient" else 0.0)}))
    weight, state = loss.weight.detach().clone(), optimizer.state[loss.weight]["step"].item()
    with pytest.raises(DivergedError) as raised:
        update(TensorDict({"x": torch.tensor(1.0)}))
    assert raised.value.terms == message
    assert torch.equal(loss.weight, weight)
    assert optimizer.state[loss.weight]["step"].item() == state == 1


def test_gradients_do_not_pile_up_between_updates():
    loss = Terms()
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), max_grad_norm=None)
    for _ in range(3):
        update(TensorDict({"x": torch.zeros(2)}, []))
    assert loss.weight.tolist() == [-9, -12]


def test_what_an_update_returns_is_detached_and_scalar():
    _, losses = step(1.0)
    assert losses["other"].item() == 2  # the mean of 1 and 3
    assert losses.batch_size == ()
    assert not any(value.requires_grad or value.ndim for value in losses.values())


def dqn(*overrides: str, gamma: float = 0.9) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The configured DQN loss over a linear Q of 2 observations and 2 actions, its target elsewhere."""
    chosen = settings("env=cartpole", "algo=dqn", f"loss.value_estimator.gamma={gamma}", *overrides)
    actor = QValueActor(nn.Linear(2, 2, bias=False), in_keys=["observation"], spec=OneHot(2))
    actor.module[0].module.weight.data = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    loss = loss_of(chosen, OneHot(2), actor=actor)
    target = chosen.build("target")(loss) if chosen.target else None
    if target is not None:
        loss.target_value_network_params.apply(
            lambda value: value.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        )
    return loss, target, actor


def transition(terminated: bool) -> TensorDict:
    """Its action is worth 6; next the online network says (4, 3) and the target network (2, 15)."""
    flag = torch.tensor([[terminated]])
    after = {"observation": torch.tensor([[2.0, 3.0]]), "reward": torch.tensor([[1.0]])}
    return TensorDict(
        {
            "observation": torch.tensor([[3.0, 1.0]]),
            "action": torch.tensor([[1, 0]]),
            "next": after | {"terminated": flag, "done": torch.tensor([[True]])},
        },
        [1],
    )


@pytest.mark.parametrize("gamma", [0.9, 0.5])
@pytest.mark.parametrize(("double", "bootstrap"), [(True, 2.0), (False, 15.0)])
@pytest.mark.parametrize("terminated", [True, False])
def test_the_dqn_loss_is_the_squared_distance_to_the_hand_computed_target(
    gamma, double, bootstrap, terminated
):
    loss, _, _ = dqn("loss.module.loss_function=l2", f"loss.module.double_dqn={double}", gamma=gamma)
    expected = 1 + gamma * bootstrap * (not terminated)  # a truncated episode bootstraps, although it is done
    assert loss(transition(terminated))["loss"].item() == pytest.approx((6 - expected) ** 2, rel=1e-5)


@pytest.mark.parametrize("tau", [0.25, 1.0])
def test_a_soft_target_moves_the_fraction_tau_at_every_update(tau):
    loss, target, actor = dqn("target=soft", f"target.tau={tau}")
    old = loss.target_value_network_params.clone()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    Update(loss, optimizer, max_grad_norm=None, target=target)(transition(False))
    online = actor.module[0].module.weight.data
    (moved,) = loss.target_value_network_params.values(True, True)
    (before,) = old.values(True, True)
    assert not torch.equal(online, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    assert torch.allclose(moved, tau * online + (1 - tau) * before)


def test_a_hard_target_is_copied_every_so_many_updates_and_still_in_between():
    loss, target, actor = dqn("target=hard", "target.value_network_update_interval=3")
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.1), max_grad_norm=None, target=target)
    (weights,) = loss.target_value_network_params.values(True, True)
    before = weights.clone()
    moved = []
    for _ in range(8):
        update(transition(False))
        moved.append(not torch.equal(weights, before))
        if moved[-1]:
            assert torch.equal(weights, actor.module[0].module.weight.data)
            before = weights.clone()
    assert moved == 2 * [
        False,
        False,
        False,
        True,
    ]  # TorchRL's interval of 3 lets 3 updates pass between copies


def ppo(kind: str, *overrides: str, gamma: float = 0.99):
    torch.manual_seed(0)
    chosen = settings("env=pendulum", f"loss={kind}", f"loss.value_estimator.gamma={gamma}", *overrides)
    env = envs.make_env(partial(CountingEnv, long=9), [partial(StepCounter, max_steps=6)], num_envs=2, seed=0)
    actor, critic = actors.tanh_normal(env, **NETWORK), critics.state_value(env, **NETWORK)
    loss = loss_of(chosen, env, actor=actor, critic=critic)
    with torch.no_grad():
        batch = env.rollout(64, actor, break_when_any_done=False)
    return chosen, batch, loss, actor, critic


@pytest.mark.parametrize("kind", ["clip_ppo", "kl_penalty"])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_gamma_reaches_the_ppo_losses_value_estimator(kind, gamma):
    _, batch, loss, _, critic = ppo(kind, gamma=gamma)
    with torch.no_grad():
        loss.value_estimator(
            batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params
        )
        following = critic(batch["next"].select("observation"))["state_value"]
    ends = batch["next", "done"]  # where the episode ends, nothing but one step is summed
    expected = batch["next", "reward"] + gamma * following * ~batch["next", "terminated"]
    assert torch.allclose(batch["value_target"][ends], expected[ends], atol=1e-5)


def learn_to_act_high(kind: str, *overrides: str) -> tuple[float, list[TensorDict]]:
    """How far 40 updates on a batch that pays for the upper half of the actions move the mean action."""
    _, batch, loss, actor, _ = ppo(kind, *overrides, gamma=0.0)
    batch["next", "reward"] = (batch["action"] > 0.5).float()

    def mean_action() -> float:
        with torch.no_grad():
            return actor.get_dist(batch).deterministic_sample.mean().item()

    before = mean_action()
    update = Update(loss, torch.optim.Adam(loss.parameters(), lr=3e-3), max_grad_norm=1.0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(128), sampler=SamplerWithoutReplacement())
    minibatches = Epochs(buffer, loss, epochs=20, size=64, advantage="once", draw="epoch")
    losses = [update(each) for each in minibatches(batch)]
    return mean_action() - before, losses


@pytest.mark.parametrize(
    ("kind", "overrides"), [("clip_ppo", ()), ("kl_penalty", ("loss.module.dtarg=1.0",))]
)
def test_ppo_makes_rewarded_actions_likelier_and_the_critic_better(kind, overrides):
    moved, losses = learn_to_act_high(kind, *overrides)
    assert moved > 0.2
    assert losses[-1]["loss_critic"] < 0.9 * losses[0]["loss_critic"]


def test_a_smaller_divergence_aimed_at_keeps_the_policy_nearer():
    near, far = (learn_to_act_high("kl_penalty", f"loss.module.dtarg={aim}") for aim in (0.001, 1.0))
    assert near[0] < 0.5 * far[0]
    assert near[1][-1]["kl"] < 0.5 * far[1][-1]["kl"]


def test_the_kl_penalty_grows_when_the_policy_runs_away_and_shrinks_when_it_stays():
    _, batch, loss, actor, _ = ppo("kl_penalty")
    loss(batch)
    assert loss.beta.item() == pytest.approx(0.9)  # from 1, for the policies are still equal
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter += 0.5
    losses = loss(batch)
    assert losses["kl"].mean() > 0.015
    assert loss.beta.item() == pytest.approx(0.9 * 1.1)


def test_the_kl_penalty_s_losses_can_be_averaged_over_minibatches_of_any_size():
    _, batch, loss, _, _ = ppo("kl_penalty")
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.0), max_grad_norm=None)
    flat = batch.reshape(-1)
    mean = torch.stack([update(flat[:64]), update(flat[:40])]).mean(0)
    assert mean["kl"].shape == ()


# A last layer near 0 hands on gradients of nearly nothing, of which Adam goes by the sign alone.
EPS = "optim.eps=1e-3"
PICTURES = ["env=gym", "env.id=tests.fakes.pixel_envs:Dot-v0", "encoder.features=8"]
COMPILED = {
    "ppo on bounded actions": ["algo=ppo", "env=pendulum", "loss.module.log_explained_variance=true", EPS],
    "ppo on a choice": ["algo=ppo", "env=cartpole", EPS],
    "dqn": ["algo=dqn", "env=cartpole", "target.value_network_update_interval=6"],
    "dueling dqn": ["algo=dqn", "env=cartpole", "actor=dueling", "target=soft", "actor.num_cells=[8,8]"],
    "sac": ["algo=sac", "env=pendulum", "critic.num_cells=[8,8]"],
    "sac in bf16": ["algo=sac", "env=pendulum", "critic.num_cells=[8,8]", "precision=bf16"],
    "crossq": ["algo=crossq", "env=pendulum", "critic.num_cells=[8,8]", "critic.norm.warmup_steps=10"],
    "ppo on pictures": ["algo=ppo", *PICTURES, EPS],
    "dqn on pictures": ["algo=dqn", *PICTURES, "target.value_network_update_interval=6"],
}
QUICK = ["dueling dqn"]  # compiled within seven seconds or so, of the processor


def written_out(loss, optimizer, *, max_grad_norm, target):
    """The update as a tutorial writes it."""

    def update(minibatch: TensorDict) -> TensorDict:
        losses = loss(minibatch)
        optimizer.zero_grad()
        sum(losses.get(key) for key in loss.out_keys if key.startswith("loss")).backward()
        norm = nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_grad_norm)
        optimizer.step()
        if target is not None:
            target.step()
        return losses.detach().apply(lambda value: value.mean(), batch_size=[]).set("grad_norm", norm)

    return update


def twenty_updates(overrides: list[str], device="cpu", make=Update, **options) -> tuple[dict, dict]:
    """The losses of each of 20 updates of a small network, and every parameter after them."""
    chosen = settings("~tuned", "actor.num_cells=[8]", "optim.lr=1e-2", *overrides)
    torch.manual_seed(0)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0, device=device)
    envs.init_normalizers(env, 100)
    actor = chosen.build("actor")(env)
    loss = loss_of(chosen, env, actor=actor, critic=chosen.build("critic")(env, actor))
    optimizer, target = chosen.build("optim")(loss.parameters()), chosen.build("target")(loss)
    update = make(loss, optimizer, max_grad_norm=1.0, target=target, **options)
    # Drawn, for the most likely action says nothing of the mean: its gradient would be rounding errors alone.
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(64, actor, break_when_any_done=False)
        if chosen.algo == "ppo":
            loss.value_estimator(batch)
    minibatches = batch.reshape(-1).split(32)
    losses = torch.stack([update(minibatches[k % 8].clone()).clone() for k in range(20)])
    return losses.to_dict(), {key: value for key, value in loss.state_dict().items() if value.numel()}


def agree(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(found[key], value, atol=1e-4, rtol=1e-4), key


@pytest.mark.parametrize("overrides", COMPILED.values(), ids=COMPILED.keys())
def test_an_update_is_the_one_written_out_with_an_optimizer_that_is_not_fused(overrides):
    plain = twenty_updates([*overrides, "optim.fused=false"], make=written_out)
    for found, expected in zip(twenty_updates(overrides), plain, strict=True):
        agree(found, expected)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="on a GPU it records; tests/training/test_gpu.py compares"
)
@pytest.mark.parametrize("overrides", COMPILED.values(), ids=COMPILED.keys())
def test_what_a_cuda_graph_would_record_is_the_same_update(overrides):
    for found, expected in zip(
        twenty_updates(overrides, cudagraph=True), twenty_updates(overrides), strict=True
    ):
        agree(found, expected)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(words, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, words in COMPILED.items()
    ],
)
def test_a_compiled_update_agrees_with_the_eager_one_after_twenty_updates_targets_included(overrides):
    eager, weights = twenty_updates(overrides)
    compiled, compiled_weights = twenty_updates(overrides, compile=True)
    agree(compiled, eager)
    agree(compiled_weights, weights)
    assert not any(value.requires_grad for value in compiled.values())
    assert eager["grad_norm"][0] != eager["grad_norm"][-1]  # it learned


def off_policy(algo: str) -> tuple[nn.Module, TensorDict]:
    """The configured loss on a small Pendulum, and a batch of random frames."""
    chosen = settings("~tuned", f"algo={algo}", "env=pendulum", "actor.num_cells=[8]", "critic.num_cells=[8]")
    torch.manual_seed(0)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=4, seed=0)
    actor, critic = chosen.build("actor")(env), chosen.build("critic")(env)
    return loss_of(chosen, env, actor=actor, critic=critic), env.rollout(8).reshape(-1)


def copies(parameters: TensorDict) -> list[torch.Tensor]:
    return [each.detach().clone() for each in parameters.values(True, True)]


@pytest.mark.parametrize(
    "algo", ["sac", *(pytest.param(algo, marks=pytest.mark.slow) for algo in ("td3", "crossq"))]
)
def test_loss_and_gradient_are_one_compiled_graph(algo):
    loss, batch = off_policy(algo)
    gradients = make_gradients(loss, list(loss.parameters()), None)
    graphs = CompileCounter()
    torch.compiler.reset()
    with (
        train_mode([loss.actor_network, loss.qvalue_network]),
        torch._dynamo.config.patch(trace_autograd_ops=True),
    ):
        compiled = torch.compile(gradients, backend=graphs)
        for _ in range(3):
            minibatch = batch.clone()
            compiled(minibatch, ())
    assert graphs.frame_count == 1  # neither cut in two nor made anew
    assert minibatch["td_error"].shape == batch.shape  # for priorities
    assert not any(value.requires_grad for value in minibatch.values(True, True))


READINGS = [(*each, task) for each in [("shared", 1), ("own", 2)] for task in ("Aim", "Dot")]


@pytest.mark.parametrize(
    ("encoder", "readings", "task"),
    [
        pytest.param(*each, marks=[] if each[0] + each[2] == "sharedDot" else pytest.mark.slow)
        for each in READINGS
    ],
)
def test_a_shared_encoder_reads_once_in_one_compiled_graph_too(encoder, readings, task):
    words = [
        *PICTURES,
        f"env.id=tests.fakes.pixel_envs:{task}-v0",
        f"critic.encoder={encoder}",
        "actor.num_cells=[8]",
    ]
    chosen = settings("~tuned", "algo=ppo", "critic.num_cells=[8]", *words)
    env = envs.make_env(chosen.build("env"), [], num_envs=4, seed=0)
    actor = chosen.build("actor")(env)
    loss = loss_of(chosen, env, actor=actor, critic=chosen.build("critic")(env, actor))
    with torch.no_grad():
        batch = env.rollout(8, actor, break_when_any_done=False)
        loss.value_estimator(batch)
    made: list[int] = []

    def backend(graph, _):
        made.append(sum("conv2d" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    gradients = make_gradients(loss, list(loss.parameters()), None)
    torch.compiler.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(gradients, backend=backend)
        for _ in range(3):
            compiled(batch.reshape(-1).clone(), ())
    assert made == [readings]


@pytest.mark.parametrize("compile", [False, True])
def test_a_term_is_left_out_between_the_updates_it_is_trained_at(compile):
    loss = Terms()
    every, minibatch = {"loss_second": 2}, TensorDict({"x": torch.zeros(2)}, [])
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=1.0), None, [], every, compile=compile)
    weights = []
    for _ in range(4):
        update(minibatch)
        weights.append(loss.weight.tolist())
    assert weights == [[-3, 0], [-6, -4], [-9, -4], [-12, -8]]


def test_a_delayed_network_is_passed_over_by_adam_between():
    loss, batch = off_policy("td3")
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2, fused=True)
    update = Update(loss, optimizer, None, [], {"loss_actor": 3})
    actor = next(iter(loss.actor_network_params.values(True, True)))
    moved = []
    for _ in range(6):
        actors, critics = copies(loss.actor_network_params), copies(loss.qvalue_network_params)
        assert "loss_actor" in update(batch.clone())
        moved.append(not torch.equal(actors[0], copies(loss.actor_network_params)[0]))
        assert not torch.equal(critics[0], copies(loss.qvalue_network_params)[0])
    assert moved == [False, False, True, False, False, True]
    assert optimizer.state[actor]["step"].item() == 2  # so its moments are of its own gradients alone


def test_which_update_comes_next_goes_on_after_a_resume():
    loss, batch = off_policy("td3")
    options = {"skip": [], "every": {"loss_actor": 2}}
    first = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.1), **options)
    first(batch.clone())
    second = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.1), **options)
    second.load_state_dict(first.state_dict())
    before = copies(loss.actor_network_params)
    second(batch.clone())
    assert not torch.equal(before[0], copies(loss.actor_network_params)[0])


def test_a_skipped_term_is_never_trained():
    loss, batch = off_policy("td3")
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.1), None, ["loss_qvalue"])
    actors, critics = copies(loss.actor_network_params), copies(loss.qvalue_network_params)
    update(batch)
    assert not torch.equal(actors[0], copies(loss.actor_network_params)[0])
    assert all(map(torch.equal, critics, copies(loss.qvalue_network_params)))


def test_a_term_that_there_is_not_is_refused():
    loss, batch = off_policy("td3")
    update = Update(loss, torch.optim.SGD(loss.parameters(), lr=0.1), None, [], {"loss_q": 2})
    with pytest.raises(UserError, match=r"no term loss_q\. Use loss_actor or loss_qvalue"):
        update(batch)


def test_networks_learn_in_train_mode_and_act_in_eval_mode_even_where_an_update_fails():
    network = nn.Sequential(nn.Dropout(0.5)).eval()
    with pytest.raises(ZeroDivisionError), train_mode([network]):
        assert 1 / (not network[0].training)
    assert not network[0].training
