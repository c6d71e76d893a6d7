"""PettingZoo's tasks in which all agents act at once: seeds, groups, early ends, allowed actions."""

from functools import partial

import pytest
import torch
from torchrl.envs import StepCounter
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type

from hydrl import envs, specs
from hydrl.config.settings import check_groups
from hydrl.envs import pettingzoo_env
from hydrl.errors import UserError
from hydrl.experience.minibatches import estimate_advantages
from tests.conftest import loss_of, settings

pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")

SPREAD, TAG, HUNT = "mpe2/simple_spread_v3", "mpe2/simple_tag_v3", "tests.fakes.pettingzoo_env:HuntEnv"


def made(id, num_envs=2, seed=0, **kwargs):
    return envs.make_env(partial(pettingzoo_env, id, **kwargs), [StepCounter], num_envs=num_envs, seed=seed)


@pytest.mark.parametrize("continuous", [False, True])
def test_agents_that_are_alike_are_one_group_and_their_tasks_go_by_their_seeds(continuous):
    env = made(SPREAD, num_envs=3, continuous_actions=continuous)
    check_env_specs(env)
    assert specs.action_kind(env) == f"multi-agent {'continuous' if continuous else 'discrete'}"
    assert env.reset()["agents", "observation"].shape == (3, 3, 18)
    env.set_seed(5)
    torch.manual_seed(0)
    rollout = env.rollout(60, break_when_any_done=False)
    ends = rollout["next", "done"].squeeze(-1)
    assert ends.nonzero()[:, 1].tolist() == [24, 49] * 3  # a time limit, and not an end
    assert torch.equal(rollout["next", "truncated"].squeeze(-1), ends)
    assert not rollout["next", "terminated"].any()
    alone = made(SPREAD, num_envs=1, seed=7, continuous_actions=continuous).reset()
    assert torch.equal(alone["agents", "observation"][0], rollout["agents", "observation"][2, 0])

    task = __import__("mpe2").simple_spread_v3.parallel_env(continuous_actions=continuous)
    seen, _ = task.reset(seed=5)
    total = 0.0
    for step in range(25):
        acted = rollout["agents", "action"][0, step].numpy()
        for k, agent in enumerate(task.agents):
            assert torch.equal(rollout["agents", "observation"][0, step, k], torch.from_numpy(seen[agent]))
        seen, paid, *_ = task.step(dict(zip(task.agents, acted, strict=True)))
        total += sum(paid.values()) / 3
    assert rollout["next", "episode_reward"][0, 24].item() == pytest.approx(total, rel=1e-5)


def test_groups_are_by_name_or_as_they_are_asked_for():
    env = made(TAG)
    assert {group: spec.shape[0] for group, spec in specs.agent_groups(env).items()} == {
        "adversary": 3,
        "agent": 1,
    }
    after = env.rollout(3)["next"]
    mean = torch.cat([after[group, "episode_reward"] for group in ("adversary", "agent")], -2).mean(-2)
    assert torch.equal(after["episode_reward"], mean)
    own = after["episode_info", "adversary/return"]
    assert torch.equal(own, after["adversary", "episode_reward"].mean(-2))
    assert [*specs.agent_groups(made(SPREAD, group_map="one_group_per_agent"))] == [
        "agent_0",
        "agent_1",
        "agent_2",
    ]
    named = {"left": ["agent_1"], "right": ["agent_0", "agent_2"]}
    assert [*specs.agent_groups(made(SPREAD, group_map=named))] == ["left", "right"]
    assert [*specs.agent_groups(made(SPREAD, group_map={"team": ["agent_0", "agent_1", "agent_2"]}))] == [
        "agents"
    ]


@pytest.mark.parametrize(
    ("algo", "continuous"),
    [
        ("qmix", False),
        ("vdn", False),
        ("independent_q", False),
        ("maddpg", True),
        ("independent_ddpg", True),
        ("masac", True),
    ],
)
def test_what_learns_one_group_refuses_several(algo, continuous):
    env = made(TAG, continuous_actions=continuous)
    chosen = settings(f"algo={algo}", "env=pettingzoo", f"env.id={TAG}")
    network = "as .*=multi_agent_.* is built for the observations and actions of one group"
    told = f"^algo={algo}: learns one group of agents, {network}, and env.id={TAG} has adversary and agent. "
    with pytest.raises(UserError, match=f"{told}Use algo=mappo or algo=ippo.$"):
        check_groups(chosen, [*specs.agent_groups(env)], alike=specs.are_alike(env))
    with pytest.raises(UserError, match=r"in the groups adversary and agent, .* Write actor=multi_agent"):
        chosen.build("critic")(env, chosen.build("actor")(env))


def test_agents_that_are_alike_are_offered_one_group():
    env, chosen = made(SPREAD, group_map="one_group_per_agent"), settings("algo=qmix", "env=simple_spread")
    with pytest.raises(UserError, match=r"algo=ippo, or env\.group_map=all_in_one_group\.$"):
        check_groups(chosen, [*specs.agent_groups(env)], alike=specs.are_alike(env))
    assert not specs.are_alike(made(TAG))
    check_groups(settings("algo=mappo", "env=simple_tag"), ["adversary", "agent"], alike=False)
    check_groups(chosen, ["agents"], alike=True)


@pytest.mark.parametrize(
    ("id", "more", "told"),
    [
        (
            TAG,
            {"group_map": "all_in_one_group"},
            "^env.group_map=all_in_one_group: .*, but adversary_0 observes 16 numbers and has 5 actions "
            r"and agent_0 observes 14 .*\. Write env.group_map=null \(by names\), or env.group_map=one_",
        ),
        (
            TAG,
            {"group_map": {"all": ["agent_0"]}},
            "each agent should be in one group. The agents of .* are adversary_0, ",
        ),
        ("simple_spread_v3", {}, r"no such game. Write mpe2/simple_spread_v3"),
        ("mpe2/simple_spred_v3", {}, r"no such game. Write mpe2/simple_spread_v3"),
        ("classic/tictactoe_v3", {}, r"a turn-based game\. Write env=self_play env\.id=classic/tictactoe_v3"),
        (SPREAD, {"cycles": 3}, "cannot be created: .*unexpected keyword argument 'cycles'"),
        (
            "tests.fakes.pettingzoo_env:Hint",
            {},
            "cannot be created: module 'tests.fakes.pettingzoo_env' has no attribute 'Hint'",
        ),
        ("hunters:HuntEnv", {}, "cannot be created: No module named 'hunters'. Put it next to"),
        ("tests.fakes.envs:CountingTeam", {"num_agents": 3}, "cannot be created"),
        ("collections:Counter", {}, "made a Counter, no PettingZoo environment. Your own environment is"),
    ],
)
def test_what_cannot_be_made_is_told_in_a_line(id, more, told):
    with pytest.raises(UserError, match=told):
        made(id, **more)


def test_an_agent_that_has_ended_sees_and_is_paid_nothing_and_the_episode_goes_on():
    rollout = made(HUNT, num_envs=1).rollout(6, break_when_any_done=False)[0]
    assert rollout["next", "done"].flatten().tolist() == [False, False, False, True, False, False]
    alive = rollout["hunter", "alive"].squeeze(-1)
    assert alive[:, 0].tolist() == [True, True, False, False, True, True]
    assert alive[:, 1].all()
    assert rollout["prey", "alive"].flatten().tolist() == [True, True, True, False, True, True]
    assert rollout["next", "hunter", "reward"][..., 0][:4].tolist() == [[1, 2], [1, 2], [0, 2], [0, 2]]
    seen = rollout["next", "hunter", "observation"]
    assert seen[:4, 0].tolist() == [[1, 0], [2, 0], [0, 0], [0, 0]]  # the last of its own is there
    assert seen[:4, 1].tolist() == [[1, 1], [2, 1], [3, 1], [4, 1]]
    assert rollout["next", "hunter", "gone"][..., 0][:4].tolist() == [[0, 0], [1, 0], [1, 0], [1, 1]]
    # 1 + 1 of the first hunter, 2 a step of the second, -3 of the prey
    assert rollout["next", "episode_reward"][3].item() == pytest.approx((2 + 8 - 3) / 3)


@pytest.mark.parametrize("says", ["observation", "info"])
def test_actions_that_an_agent_may_not_take_are_never_taken(says):
    env = made(HUNT, says=says, first=3)  # which asserts it
    check_env_specs(env)
    actor = settings("algo=mappo", "env=pettingzoo", f"env.id={HUNT}").build("actor")(env)
    for policy in (None, actor):
        with set_exploration_type(ExplorationType.RANDOM):
            rollout = env.rollout(40, policy, break_when_any_done=False)
        odd = rollout["hunter", "observation"][..., 0] % 2 == 1
        allowed = rollout["hunter", "action_mask"]
        assert torch.equal(~allowed[..., 2], odd & rollout["hunter", "alive"].squeeze(-1))
        assert (rollout["prey", "action"] == 2).any()
        assert set(rollout["hunter", "action"].unique().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("group_map", ["null", "{all: [hunter_0, hunter_1], prey: [prey_0]}"])
def test_targets_end_where_each_agent_ends_and_what_comes_after_is_left_out(group_map):
    """By hand: with a lambda of 0 a target is the reward and half the value of what comes after it."""
    chosen = settings(
        "algo=ippo", "env=pettingzoo", f"env.id={HUNT}", f"env.group_map={group_map}",
        "+env.lives=[2,4,9]", "+env.limit=5", "loss.value_estimator.lmbda=0",
        "loss.value_estimator.gamma=0.5",
    )  # fmt: skip
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2, seed=0)
    parts = {part: chosen.build(part)(env) for part in ("actor", "critic")}
    loss = loss_of(chosen, specs.action_spec(env), **parts)
    hunters, prey = specs.agent_groups(env)
    with torch.no_grad():
        batch = env.rollout(5, parts["actor"], break_when_any_done=False)
        following = parts["critic"](batch["next"].clone())
        for each in loss.of_groups.values():
            estimate_advantages(batch, each)
    assert batch["next", "truncated"][:, 4].all()
    value, target = following[hunters, "state_value"], batch[hunters, "value_target"]
    for k, ends in enumerate((1, 3)):
        for step in range(ends + 1):
            expected = k + 1 + (0.5 * value[:, step, k] if step < ends else 0.0)
            torch.testing.assert_close(target[:, step, k], torch.as_tensor(expected).expand(2, 1))
    last = -1 + 0.5 * following[prey, "state_value"][:, 4, 0]  # its time was up
    torch.testing.assert_close(batch[prey, "value_target"][:, 4, 0], last)

    advantage, alive = batch[hunters, "advantage"], batch[hunters, "alive"]
    for k in range(2):
        own = advantage[:, :, k][alive[:, :, k]]
        assert own.mean().abs() < 1e-5
        assert own.std().item() == pytest.approx(1.0, abs=1e-4)

    def terms():
        return {key: each.item() for key, each in loss(batch.reshape(-1)).items() if key.startswith("loss_")}

    before = terms()
    assert {*before} == {
        f"loss_{group}/{term}" for group in (hunters, prey) for term in ("objective", "critic", "entropy")
    }
    for name in ("advantage", "value_target"):
        batch[hunters, name][~alive] = 1e6
    assert terms() == pytest.approx(before)


def test_a_critic_that_sees_all_sees_other_groups_and_each_group_has_networks_of_its_own():
    env = made(TAG)
    words = ["env=pettingzoo", f"env.id={TAG}"]
    for algo, sees in (("mappo", True), ("ippo", False)):
        critic = settings(f"algo={algo}", *words).build("critic")(env)
        start = env.reset()
        before = critic(start.clone())["agent", "state_value"]
        start["adversary", "observation"][:, 1] += 1
        assert (critic(start)["agent", "state_value"] != before).all().item() == sees
    actor = settings("algo=mappo", *words).build("actor")(env)
    assert {*actor.out_keys} >= {("adversary", "action"), ("agent", "action"), ("agent", "action_log_prob")}
    start = env.reset()
    before = actor(start.clone())
    start["adversary", "observation"][:] += 1
    after = actor(start)
    assert torch.equal(after["agent", "logits"], before["agent", "logits"])
    assert not torch.isclose(after["adversary", "logits"], before["adversary", "logits"]).all()
