"""No algorithm takes a forbidden action anywhere; what is right among the others is found."""

import math
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.envs import EnvBase
from torchrl.modules import EGreedyModule

import hydrl
import hydrl.training.metrics
from hydrl.config.settings import read_action_spaces
from hydrl.datasets import files
from hydrl.datasets import record as played_by
from hydrl.datasets.convert import to_env_rows
from hydrl.deploy.load import open_run
from hydrl.deploy.policy import Policy
from hydrl.envs import gymnasium_env, make_env
from hydrl.errors import UserError
from hydrl.networks import actors, heads
from hydrl.run.run_folder import summary
from hydrl.specs import make_exploration
from tests.conftest import batches_digested, digest, killed, logged, loss_of, saved, settings
from tests.fakes.probe_envs import offline, small

DISCRETE = [algo for algo, kinds in read_action_spaces().items() if "discrete" in kinds]
REFUSING = ["dreamer_v3"]  # in a line: networks/test_world_model.py
CASES = {algo: [f"algo={algo}"] for algo in DISCRETE if not offline(algo) and algo not in REFUSING}
CASES |= {
    "dqn, dueling": ["algo=dqn", "actor=dueling", "minibatches.n_steps=3"],
    "dqn, single": ["algo=dqn", "loss.module.double_dqn=false"],
    "dqn, c51": ["algo=dqn", "actor=distributional", "loss=c51"],
    "ppo, kl": ["algo=ppo", "loss=kl_penalty"],
    "ppo, pictures": ["algo=ppo", "+env.pixels=true", "encoder.features=8"],
}
FAST = ["ppo", "dqn", "rainbow", "sac_discrete"]  # one of each way to choose
PLACES = ["info", "entry", "method"]  # by turns
slow = partial(pytest.param, marks=pytest.mark.slow)
QUICK = {*((name, 3) for name in FAST if name != "rainbow"), ("sac_discrete", 1)}
SOME = [name if name in FAST else slow(name) for name in CASES]

NUMBERS = {
    "collector.num_envs": 8,
    "collector.frames_per_batch": 128,
    "minibatches.size": 64,
    "actor.num_cells": [64, 64],
    "critic.num_cells": [64, 64],
    "optim.lr": 3e-3,
    "loss.value_estimator.gamma": 0.5,
    "eval.episodes": 2,
    "eval.final_episodes": 2,
    "log_every_frames": 128,
}
FRESH = {"minibatches.epochs": 4, "minibatches.sequence": 16}
REPLAY = {
    "minibatches.updates": 8,
    "minibatches.warmup_frames": 128,
    "exploration.annealing_num_steps": 512,
    "target.tau": 0.05,
    "target.value_network_update_interval": 16,
    "loss.module.alpha_init": 0.1,
    "actor.v_min": 0.0,
    "actor.v_max": 3.0,
}
SHORT = ["total_frames=256", "eval.every_frames=128", "checkpoint_every_frames=128"]
SHORTER = ["total_frames=128", "eval.every_frames=128", "checkpoint_every_frames=64"]
FEW = ["collector.frames_per_batch=64", "collector.num_envs=4", "log_every_frames=64"]


def words(name: str, *more: str) -> list[str]:
    task = [
        "env=gym",
        "env.id=tests.fakes.masked_envs:Allows-v0",
        f"+env.says={PLACES[len(name) % 3]}",
        "transforms=plain",
    ]
    return [*small([*CASES[name], *task, "~tuned"], all=NUMBERS, fresh=FRESH, replay=REPLAY), *more]


def short(name: str) -> list[str]:
    few = [*FEW, *(SHORT if name in FAST else SHORTER)]
    few += ["collector.init_random_frames=192"] * (name == "sac_discrete")  # past the middle
    few += ["minibatches.warmup_frames=64"] * any("warmup_frames" in word for word in words(name))
    return words(name, *few)


SEVERAL = [
    algo for algo, kinds in read_action_spaces().items() if "multi-discrete" in kinds and not offline(algo)
]


def both(algo: str, *more: str) -> list[str]:
    task = [f"algo={algo}", "env=gym", "env.id=tests.fakes.masked_envs:Both-v0", "transforms=plain", "~tuned"]
    return [*small(task, all=NUMBERS, fresh=FRESH), *more]


def test_of_several_choices_the_allowed_are_taken(run, tmp_path):
    folder = run(*both("ppo", "total_frames=256", "eval.every_frames=256"))
    policy = hydrl.load(folder, trust=True)
    mask = np.array([[1, 0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0, 0]])
    assert policy.predict(np.zeros((2, 7), np.float32), mask=mask).tolist() == [[0, 8], [1, 5]]
    program = torch.export.load(policy.export(tmp_path / "policy.pt2")).module()
    assert program(torch.zeros(2, 7), torch.as_tensor(mask).float()).tolist() == [[0, 8], [1, 5]]


@pytest.mark.slow
@pytest.mark.parametrize("algo", SEVERAL)
def test_of_several_choices_what_pays_is_found(algo, run):
    frames = f"total_frames={4_096 if algo == 'ppo' else 8_192}"
    assert summary(run(*both(algo, frames, "eval.every_frames=8192")))["eval/return_mean"] > 19


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many actions were taken in each batch, of which each was allowed."""
    return counting(monkeypatch)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    learned = hydrl.training.metrics.Metrics.learned

    def count(self, batch, *losses):
        taken, allowed = batch["action"].bool(), batch["action_mask"]
        assert (taken.sum(-1) == 1).all()
        assert not (taken & ~allowed).any()
        seen.append(len(batch.reshape(-1)))
        return learned(self, batch, *losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", count)
    return seen


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Callable[[str], tuple[Path, list[str], list[int]]]:
    """The folder of a case's short run, digests of its batches, and how many actions each has."""
    from train import train

    @cache
    def of(name: str) -> tuple[Path, list[str], list[int]]:
        folder = tmp_path_factory.mktemp("finished") / "run"
        with pytest.MonkeyPatch.context() as patch:
            acted, batches = counting(patch), batches_digested(patch)
            train(settings(*short(name), run_dir=folder))
        return folder, batches, acted

    return of


@pytest.mark.parametrize(
    "name", [slow(each) if each in ("dqn, single", "ppo, kl") else each for each in CASES]
)
def test_only_allowed_actions_are_taken_and_all_that_is_logged_is_a_number(name, finished):
    """The task raises where a forbidden one is, in training, exploring and evaluation."""
    folder, _, acted = finished(name)
    assert acted == [64] * (4 if name in FAST else 2)
    rows = [float(value) for row in logged(folder) for value in row.values() if value]
    assert all(math.isfinite(each) and abs(each) < 1e4 for each in rows)  # no value of a forbidden action
    if name == "dqn":
        assert saved(folder, "buffer")["next"]["action_mask"].dtype == torch.bool


@pytest.mark.parametrize("algo", filter(offline, DISCRETE))
def test_what_learns_from_data_acts_among_the_allowed_too(algo, finished, run):
    """As evaluated, in a task that raises; the data says what was allowed at each of its steps."""
    task = [
        f"algo={algo}",
        "env=gym",
        "env.id=tests.fakes.masked_envs:Allows-v0",
        "transforms=plain",
        "~tuned",
    ]
    numbers = small([*task, f"data.path={finished('dqn')[0]}"], all=NUMBERS)
    if algo == "gail":  # which acts in the task, too
        numbers += ["data=replay_buffer", "total_frames=256", "eval.every_frames=256"]
    else:
        numbers += ["total_frames=1024", "eval.every_frames=1024", "log_every_frames=512"]
    folder = run(*numbers)
    rows = [float(value) for row in logged(folder) for value in row.values() if value]
    assert all(math.isfinite(each) and abs(each) < 1e4 for each in rows)


def test_a_set_that_a_policy_played_says_what_was_allowed(finished, run, tmp_path):
    chosen, trained, evaluator = open_run(
        finished("dqn")[0], checkpoint="last", device=torch.device("cpu"), trust=True
    )
    made = played_by.record_episodes(
        chosen, evaluator, trained, frames=160, sampled=False, stream=3, random=0.5
    )
    allowed, ends = made["observations/action_mask"], made["terminals"]
    assert (allowed.sum(-1) == 3).all()
    assert allowed[np.arange(len(ends)), made["actions"]].all()
    made["next_observations/action_mask"][ends] = False  # as a game has it, and sets of others
    env = make_env(chosen.build("env"), chosen.transform_builders)
    told = to_env_rows(files.transitions(made), env, "data.path=set")["next"]
    assert told["action_mask"][told["done"][:, 0]].all()  # where nobody acts
    assert (told["action_mask"][~told["done"][:, 0]].sum(-1) == 3).all()
    played_by.save_dataset("npz", tmp_path / "set", made, {})
    task = [
        "algo=bc",
        "env=gym",
        "env.id=tests.fakes.masked_envs:Allows-v0",
        "transforms=plain",
        "~tuned",
        "data=npz",
    ]
    folder = run(
        *small([*task, f"data.path={tmp_path / 'set'}"], all=NUMBERS),
        *("total_frames=512", "eval.every_frames=512"),
    )
    assert all(math.isfinite(float(value)) for row in logged(folder) for value in row.values() if value)
    made["actions"][7] = (~allowed[7]).argmax()
    with pytest.raises(UserError, match=r"^set: action \d of row 7 is invalid by its action_mask\.$"):
        to_env_rows(files.transitions(made), env, "set")


def test_a_set_of_several_choices_says_what_was_allowed(run, tmp_path):
    folder = run(*both("ppo", "total_frames=256", "eval.every_frames=256"))
    opened = open_run(folder, checkpoint="last", device=torch.device("cpu"), trust=True)
    chosen, trained, evaluator = opened
    made = played_by.record_episodes(
        chosen, evaluator, trained, frames=64, sampled=False, stream=3, random=1.0
    )
    played_by.save_dataset("npz", tmp_path / "set", made, {})
    task = [
        "algo=bc",
        "env=gym",
        "env.id=tests.fakes.masked_envs:Both-v0",
        "transforms=plain",
        "~tuned",
        "data=npz",
    ]
    task += ["total_frames=512", "eval.every_frames=512"]
    learned = run(*small([*task, f"data.path={tmp_path / 'set'}"], all=NUMBERS), folder="learned")
    assert math.isfinite(summary(learned)["eval/return_mean"])
    first = made["observations/action_mask"][7, :3]
    made["actions"][7, 0] = (~first).argmax()
    played_by.save_dataset("npz", tmp_path / "wrong", made, {})
    with pytest.raises(UserError, match=r"action \[\d, \d\] of row 7 is invalid by its action_mask\.$"):
        run(*small([*task, f"data.path={tmp_path / 'wrong'}"], all=NUMBERS), folder="wrong")


@pytest.mark.parametrize("name", SOME)
def test_going_on_equals_never_having_stopped(name, finished, run, batches, tmp_path):
    """What is drawn at random among the allowed, too."""
    whole, unbroken, _ = finished(name)
    batches.clear()
    assert 2 * killed(whole, tmp_path / "halves") == summary(whole)["frames"]
    torch.rand(7)
    halves = run(*short(name), "resume=auto", folder="halves")
    assert batches == unbroken[len(unbroken) // 2 :]
    for part in ("actor", "loss", "optimizer", "rng", "collector"):
        assert digest(saved(halves, part)) == digest(saved(whole, part)), part
    assert logged(halves) == logged(whole)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (name, allowed) if (name, allowed) in QUICK else slow(name, allowed)
        for name in CASES
        for allowed in (3, 1)
    ],
)
def test_what_pays_among_the_allowed_is_found(name, allowed, run):
    """One of three at each step; where it is the only one, from the start."""
    frames = {3: 2_048, 1: 512}[allowed] if name in FAST else 4_096
    until_solved = ["eval.every_frames=512", "eval.reward_threshold=19.5", "eval.stop_when_solved=true"]
    until_solved = until_solved if allowed == 3 else ["eval.every_frames=4096"]
    folder = run(*words(name, f"+env.allowed={allowed}", f"total_frames={frames}", *until_solved))
    assert summary(folder)["eval/return_mean"] > (19.4 if allowed == 3 else 19.9)
    rows = logged(folder)
    if allowed == 1:
        assert {float(row["train/return"]) for row in rows if row["train/return"]} == {20.0}
    if name == "sac_discrete":
        assert all(0.01 < float(row["train/alpha"]) < 1 for row in rows if row["train/alpha"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_none_of_100_000_actions_is_a_forbidden_one(name, run, acted):
    one = "updates" if any("minibatches.updates" in each for each in words(name)) else "epochs"
    few = [f"minibatches.{one}=1", "collector.num_envs=32", "eval.every_frames=50_000"]
    if name == "recurrent_ppo":
        few.append("minibatches.sequence=4")  # as many steps as each environment has in a batch
    run(*words(name, "total_frames=100_000", *few))
    assert sum(acted) >= 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_workers_take_allowed_actions_alone(name, run, acted):
    folder = run(
        *words(name, *SHORT), "collector=multi_sync", "collector.num_workers=2", "collector.num_envs=4"
    )
    assert sum(acted) == 256
    assert summary(folder)["frames"] == 256


def played(policy: Policy, name: str, steps: int, *, given: bool) -> float:
    """The return of so many steps of the plain environment, which raises where they are forbidden ones."""
    says = PLACES[len(name) % 3]
    env, total = gymnasium.make("tests.fakes.masked_envs:Allows-v0", says=says), 0.0
    (seen, info), ended = env.reset(seed=0), False
    for step in range(steps):
        if ended:
            seen, info = env.reset()
            policy.reset()
        masks = {"info": info.get("action_mask"), "method": env.unwrapped.mask, "entry": None}
        action = policy.predict(
            seen, deterministic=bool(step % 2), **({"mask": masks[says]} if given else {})
        )
        seen, reward, ended, _, info = env.step(action)
        total += float(reward)
    return total


@pytest.mark.parametrize("name", FAST)
def test_predict_acts_among_the_allowed(name, finished):
    policy, says = hydrl.load(finished(name)[0], trust=True), PLACES[len(name) % 3]
    assert played(policy, name, 100, given=says != "entry") > 0
    env = gymnasium.make("tests.fakes.masked_envs:Allows-v0", says=says)
    seen, _ = env.reset(seed=1)
    masks = np.eye(8, dtype=np.int8)
    many = (
        {key: np.stack([each] * 8) for key, each in seen.items()} if says == "entry" else np.stack([seen] * 8)
    )
    policy.reset()
    assert policy.predict(many, mask=masks).tolist() == [*range(8)]
    policy.reset()
    assert policy.predict(seen, mask=[0, 0, 0, 1, 0, 0, 0, 0]) == 3
    for wrong, line in [
        (np.zeros(8), "the mask: every action is invalid"),
        (np.ones(7), r"Pass (booleans|int8) of shape \[8\]"),
        (np.full(8, 2), "should be 8 booleans"),
    ]:
        policy.reset()
        with pytest.raises(UserError, match=line):
            policy.predict(seen, mask=wrong)
    if says != "entry":
        with pytest.raises(UserError, match=r"has no action mask\. Pass it as mask="):
            policy.predict(seen)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_an_exported_policy_is_given_the_mask(name, finished, tmp_path):
    policy = hydrl.load(finished(name)[0], trust=True)
    program = torch.export.load(policy.export(tmp_path / "policy.pt2")).module()
    seen = torch.rand(8, 9)
    assert program(seen, torch.eye(8)).tolist() == [*range(8)]


def test_a_run_that_lets_forbidden_actions_be_tried_has_no_use_for_a_mask(run):
    all_allowed = ["+env.action_mask=false", "+env.allowed=8", "env.says=entry", "total_frames=128"]
    folder = run(*words("ppo", *all_allowed))
    seen = {"observation": np.zeros(9, np.float32), "action_mask": np.ones(8, np.int8)}
    assert hydrl.load(folder, trust=True).predict(seen) in range(8)
    with pytest.raises(UserError, match="this policy uses no action mask"):
        hydrl.load(folder, trust=True).predict(seen, mask=np.ones(8))
    config = folder / "config_resolved.yaml"  # without it the run is as an older one, which observed its mask
    config.write_text(config.read_text().replace("  action_mask: false\n", ""))
    with pytest.raises(UserError, match=r"does not fit its environment: .* write env.action_mask: false"):
        hydrl.load(folder, trust=True)


def test_a_mask_that_is_observed_is_no_padding_of_several_steps(run):
    """TorchRL takes an entry of the name `mask` for that."""
    tried = ["+env.action_mask=false", "+env.allowed=8", "env.says=entry", "total_frames=256"]
    folder = run(*words("dqn, dueling", *tried))
    assert saved(folder, "buffer")["mask"].shape == (232, 8)  # the last three steps wait for more


def test_what_cannot_heed_a_mask_is_refused_before_the_run():
    env = allowing()
    heeding = settings(*words("dqn")).build("actor")(env)
    deaf = settings(*words("dqn")).build("actor")(allowing(action_mask=False))
    with pytest.raises(UserError, match=re.escape("actor: it reads observation, but not the action mask")):
        make_exploration(EGreedyModule, env, deaf)
    with pytest.raises(UserError, match="exploration: Identity takes no action_mask_key"):
        make_exploration(lambda spec: nn.Identity(), env, heeding)
    assert make_exploration(lambda *_, **__: None, env, heeding) is None
    assert make_exploration(EGreedyModule, env, heeding).action_mask_key == "action_mask"


def allowing(num_envs: int = 1, **keys: object) -> EnvBase:
    make = partial(gymnasium_env, id="tests.fakes.masked_envs:Allows-v0", **keys)
    return make_env(make, [], num_envs=num_envs, seed=0)


def rows_of(env, count: int = 40) -> TensorDict:
    return env.rollout(count, break_when_any_done=False).reshape(-1)


@pytest.mark.parametrize("actor", ["q_value", "dueling", "distributional"])
def test_values_choose_among_the_allowed_also_where_all_are_equal(actor):
    env = allowing(4)
    c51 = {"v_min": 0.0, "v_max": 2.0, "atoms": 3, "dueling": False}
    more = {"distributional": c51, "dueling": {"dueling": True}}.get(actor, {})
    make = actors.distributional if actor == "distributional" else actors.q_value
    net = make(env, num_cells=[8, 8], activation="ReLU", **more)
    rows = rows_of(env)
    for zero in (False, True):
        if zero:
            for each in net.parameters():
                each.data.zero_()
        chosen = net(rows.clone())
        assert (chosen["action"].sum(-1) == 1).all()
        assert (chosen["action"].bool() & ~rows["action_mask"]).sum() == 0
        if zero:  # the first that is allowed
            assert torch.equal(chosen["action"].argmax(-1), rows["action_mask"].int().argmax(-1))


@pytest.mark.parametrize("double", [True, False])
def test_a_target_is_of_the_best_that_is_allowed_next(double):
    env = allowing(4)
    chosen = settings(*words("dqn"), f"loss.module.double_dqn={str(double).lower()}")
    net, rows = chosen.build("actor")(env), rows_of(env)
    loss = loss_of(chosen, env, actor=net)
    values = net(rows["next"].clone().exclude("action"))["action_value"]
    best = values.where(rows["next", "action_mask"], -torch.inf).amax(-1)
    target = rows["next", "reward"].squeeze(-1) + 0.5 * best * ~rows["next", "terminated"].squeeze(-1)
    own = (net(rows.clone())["action_value"] * rows["action"]).sum(-1)
    loss(rows)
    torch.testing.assert_close(rows["td_error"].squeeze(-1), (own - target).detach().square())
    assert (values.amax(-1) == best).all()  # with the forbidden ones at the least
    assert values[~rows["next", "action_mask"]].amax() < -1e30


def test_entropy_and_divergence_are_of_the_allowed_and_have_gradients():
    spec = allowing().action_spec_unbatched
    actor = heads.categorical(spec, mask="action_mask").build(lambda size: nn.Linear(2, size), ["seen"])
    mask = torch.tensor([[True] * 3 + [False] * 5, [True] + [False] * 7])
    rows = TensorDict({"seen": torch.randn(2, 2), "action_mask": mask}, [2])
    one = actor.get_dist(rows)
    plain = torch.distributions.Categorical(logits=rows["logits"][0, :3])
    torch.testing.assert_close(one.entropy(), torch.stack([plain.entropy(), torch.tensor(0.0)]))
    torch.testing.assert_close(one.probs[0, :3], plain.probs)
    other = heads.masked_categorical(rows["logits"].detach() + torch.randn(2, 8), mask, one_hot=True)
    apart = torch.distributions.kl_divergence(other, one)
    theirs = torch.distributions.Categorical(logits=other.logits[0, :3])
    torch.testing.assert_close(
        apart, torch.stack([torch.distributions.kl_divergence(theirs, plain), torch.tensor(0.0)])
    )
    for term in (one.entropy().sum(), apart.sum(), (one.probs * one.logits).sum()):
        (gradient,) = torch.autograd.grad(term, actor.parameters().__next__(), retain_graph=True)
        assert gradient.isfinite().all()


def test_the_entropy_that_discrete_sac_aims_at_is_a_share_of_what_is_allowed():
    env = allowing(4)
    chosen = settings(*words("sac_discrete"))
    actor = chosen.build("actor")(env)
    loss = loss_of(chosen, env, actor=actor, critic=chosen.build("critic")(env, actor))
    rows = rows_of(env)
    rows["action_mask"] = rows["action_mask"].clone()
    rows["action_mask"][:80] = rows["action"][:80].bool()  # of these a single one
    counts = rows["action_mask"].sum(-1)
    assert counts.unique().tolist() == [1, 3]
    loss.log_alpha.data.fill_(0.7)
    entropy = actor.get_dist(rows.clone()).entropy()
    wanted = (0.7 * (entropy - 0.98 * counts.log())).mean()
    torch.testing.assert_close(loss(rows)["loss_alpha"], wanted.detach())


@pytest.mark.slow
def test_a_way_around_walls_is_found_in_fewer_frames_where_they_are_forbidden(run):
    """Frames until the shortest way, of 16 steps, is taken; walls that are tried cost a step."""
    task = ["algo=dqn", "env=gym", "env.id=tests.fakes.masked_envs:Walls-v0", "transforms=plain", "~tuned"]
    more = [
        "total_frames=30_000",
        "eval.every_frames=1_000",
        "eval.reward_threshold=-16",
        "eval.stop_when_solved=true",
    ]
    numbers = small(task, all=NUMBERS | {"loss.value_estimator.gamma": 0.95}, replay=REPLAY)
    frames: dict[bool, int] = {}
    for heeds in (True, False):
        frames[heeds] = 0
        for seed in range(3):
            words = [f"+env.heeds={heeds}", f"seed={seed}", "exploration.annealing_num_steps=4_000"]
            folder = run(*numbers, *more, *words, folder=f"{heeds}{seed}")
            frames[heeds] += summary(folder)["solved_at_frames"] or 30_000
    print(frames)
    assert frames[True] < 0.7 * frames[False]
