import gc
import traceback
import weakref
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from torchrl.data import Composite, Unbounded
from torchrl.envs import (
    DoubleToFloat,
    GymWrapper,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)
from torchrl.envs.utils import check_env_specs

from hydrl import envs, specs
from hydrl.config import CONFIGS
from hydrl.envs.spaces import adapt_spaces
from hydrl.errors import UserError
from tests.conftest import SMALL, needs_vmas, settings, typed
from tests.fakes.envs import CountingEnv

OBSERVATION_NORM = partial(ObservationNorm, in_keys=["observation"])
VEC_NORM = partial(VecNorm, in_keys=["observation"], decay=1.0)
VEC_NORM_V2 = partial(VecNormV2, in_keys=["observation"], decay=1.0, reduce_batch_dims=True)
FAMILIES = {"atari": ("ale_py", "ALE/Pong-v5"), "minatar": ("minatar", "MinAtar/Breakout-v1")}
FAMILIES |= {"minigrid": ("minigrid", "MiniGrid-DoorKey-5x5-v0")}
FAMILIES |= {"envpool": ("envpool", "CartPole-v1")}
FAMILIES |= {"dm_control": ("dm_control", "cartpole-swingup")}
FAMILIES |= {"robotics": ("gymnasium_robotics", "AdroitHandDoor-v1")}
FAMILIES |= dict.fromkeys(["fetch_reach", "fetch_push"], ("gymnasium_robotics", ""))
FAMILIES |= {
    "pettingzoo": ("mpe2", "mpe2/simple_spread_v3"),
    "self_play": ("pettingzoo", "classic/tictactoe_v3"),
    "open_spiel": ("pyspiel", "kuhn_poker"),
}
FAMILIES |= dict.fromkeys(["simple_spread", "simple_tag"], ("mpe2", ""))
GROUPS = dict.fromkeys(["vmas_navigation", "pettingzoo", "simple_spread"], "agents")
GROUPS["simple_tag"] = "adversary"
NAMED = sorted(
    {file.stem for file in (CONFIGS / "env").glob("*.yaml")}
    - {
        "gym",
        "custom",
        "vmas",
        "brax",
        "jumanji",
        "prompts",
        "digits",
        "countdown",
        "sum",
    }  # the last three: test_language.py
)
slow = partial(pytest.param, marks=pytest.mark.slow)


def gym(id: str, *transforms, num_envs: int = 1, seed: int = 0, **kwargs) -> TransformedEnv:
    make = partial(envs.gymnasium_env, id, **kwargs)
    return envs.make_env(make, (DoubleToFloat, *transforms), num_envs=num_envs, seed=seed)


def configured(*overrides: str, num_envs: int = 1) -> TransformedEnv:
    """The environment a run with these overrides trains in, seeded and initialised as there."""
    torch.manual_seed(0)
    chosen = settings(*overrides)
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=num_envs, seed=0)
    envs.init_normalizers(env, 64)
    return env


def by_env(rollout, num_envs):
    """``[time]`` or ``[envs, time]`` to a list of one rollout an environment."""
    return [rollout] if num_envs == 1 else list(rollout.unbind(0))


def test_several_environments_leave_the_number_of_threads_closed_or_forgotten(monkeypatch):
    monkeypatch.setattr("torchrl._THREAD_POOL_INIT", 2)  # up to which TorchRL goes
    for forgotten in (False, True):
        env = envs.make_env(CountingEnv, [], num_envs=2, seed=0)
        env.reset()
        if forgotten:
            env = weakref.ref(env)
            gc.collect()
            assert env() is None
        else:
            env.close()
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize("num_envs", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("name", NAMED)
def test_every_env_config_gives_what_its_specs_say(name, num_envs):
    group = GROUPS.get(name)  # of several agents, of which all environments are one
    if "vmas" in name:
        needs_vmas()
    package, id = FAMILIES.get(name, ("", ""))
    if package:
        pytest.importorskip(package)
    algo = "mappo" if group else "dqn" if name in ("cartpole", "acrobot", "bit_flip") else "ppo"
    env = configured(f"env={name}", f"algo={algo}", *[f"env.id={id}"] * bool(id), num_envs=num_envs)
    check_env_specs(env)
    rollout = env.rollout(20, break_when_any_done=False)
    assert rollout.batch_size == ((20,) if num_envs == 1 and not group else (num_envs, 20))
    assert {"done", "terminated", "truncated", "episode_reward"} <= set(rollout["next"].keys())
    own = rollout[group] if group else rollout
    key, kind = ("pixels", torch.uint8) if "pixels" in own else ("observation", torch.float32)
    assert own[key].dtype == kind
    after = rollout["next", group] if group else rollout["next"]
    assert torch.isfinite(after[key]).all()
    assert "reward" in after


@pytest.mark.parametrize("num_envs", [1, 3])
def test_no_ghost_steps_at_episode_ends(num_envs):
    torch.manual_seed(0)
    env = gym("CartPole-v1", num_envs=num_envs)
    rollout = env.rollout(150, break_when_any_done=False)
    ends = 0
    for each in by_env(rollout, num_envs):
        done, following = each["next", "done"].squeeze(-1), each["next", "observation"]
        ends += int(done.sum())
        # The last observation of an episode is the fallen pole, not zeros and not the next episode's start.
        assert ((following[done][:, 2].abs() > 0.2095) | (following[done][:, 0].abs() > 2.4)).all()
        assert torch.equal(each["observation"][1:][~done[:-1]], following[:-1][~done[:-1]])
        assert (each["observation"][1:][done[:-1]].abs() <= 0.05).all()  # CartPole starts within 0.05
        assert (each["next", "reward"] == 1).all()
    assert ends >= 4


@pytest.mark.parametrize("id", ["CartPole-v1", "InvertedDoublePendulum-v4"])
def test_a_vector_of_tasks_gives_what_torchrl_s_own_class_gives(id, monkeypatch):
    def rollout():
        torch.manual_seed(0)
        return gym(id, StepCounter, num_envs=3).rollout(60, break_when_any_done=False)

    ours = rollout()
    monkeypatch.setattr("hydrl.envs.gymnasium.GymVector", GymWrapper)
    theirs = rollout()
    assert ours["next", "done"].any()
    entries = set(theirs.keys(True, True))
    assert set(ours.keys(True, True)) == entries
    for entry in entries:
        assert torch.equal(ours[entry], theirs[entry])
        assert ours[entry].dtype == theirs[entry].dtype


def test_seeds_are_distinct_across_envs_and_reproducible():
    first = [gym("CartPole-v1", num_envs=4, seed=seed).reset()["observation"] for seed in (1, 1, 2)]
    assert len({tuple(row.tolist()) for row in first[0]}) == 4
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("limit", ["TimeLimit", "StepCounter"])
def test_a_time_limit_truncates_and_does_not_terminate(limit, num_envs):
    if limit == "TimeLimit":
        env = gym("Pendulum-v1", StepCounter, num_envs=num_envs, max_episode_steps=7)
    else:
        env = gym("Pendulum-v1", partial(StepCounter, max_steps=7), num_envs=num_envs)
    after = env.rollout(7, break_when_any_done=False)["next"][..., -1]
    assert (after["step_count"] == 7).all()
    assert after["truncated"].all()
    assert after["done"].all()
    assert not after["terminated"].any()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_fallen_pole_terminates_and_is_not_truncated(num_envs):
    env = gym("CartPole-v1", num_envs=num_envs)
    after = env.rollout(60, break_when_any_done=False)["next"]
    done = after["done"]
    assert done.any()
    assert torch.equal(after["terminated"], done)
    assert not after["truncated"].any()


@pytest.mark.parametrize(
    ("id", "num_envs"),
    [("Hopper-v4", 8), *(slow(*each) for each in (("CartPole-v1", 1), ("CartPole-v1", 8), ("Hopper-v4", 1)))],
)
def test_normalised_random_data_is_standard(id, num_envs):
    torch.manual_seed(0)
    env = gym(id, OBSERVATION_NORM, num_envs=num_envs)
    envs.init_normalizers(env, 3_000)
    data = env.rollout(4_000 // num_envs, break_when_any_done=False)["observation"].flatten(0, -2)
    assert data.mean(0).abs().max() < 0.35
    assert (data.std(0) - 1).abs().max() < 0.35


@pytest.mark.parametrize("standard_normal", [False, True])
def test_several_envs_are_standardised_by_their_pooled_mean_and_deviation(standard_normal):
    class Fixed(CountingEnv):
        """Observes 10, 20, 10, 20, ... and a constant."""

        def observe(self, steps, action=0.0):
            self.steps = steps
            return {"observation": torch.tensor([10.0 + 10 * (steps % 2), 7.0, 7.0])}

    env = envs.make_env(Fixed, [partial(OBSERVATION_NORM, standard_normal=standard_normal)], num_envs=2)
    envs.init_normalizers(env, 400)
    data = env.rollout(2)["observation"]
    deviation = torch.tensor([10.0, 20.0]).repeat(200).std().item()
    assert data[0, :, 0].tolist() == pytest.approx([-5 / deviation, 5 / deviation], abs=1e-3)
    assert data[..., 1:].abs().max() < 1e-5  # a constant is centred; dividing by its deviation would explode


def test_one_observation_norm_over_two_entries_is_refused():
    env = envs.make_env(CountingEnv, [partial(ObservationNorm, in_keys=["observation", "other"])])
    with pytest.raises(UserError, match="ObservationNorm takes one entry"):
        envs.init_normalizers(env, 10)


@pytest.mark.parametrize(
    "norm", [OBSERVATION_NORM, VEC_NORM, VEC_NORM_V2], ids=lambda norm: norm.func.__name__
)
@pytest.mark.parametrize(("trained", "other"), [(1, 1), (1, 3), (4, 1), (4, 2)])
def test_loaded_statistics_give_identical_observations_and_stay(norm, trained, other):
    torch.manual_seed(0)
    source = gym("CartPole-v1", norm, num_envs=trained, seed=0)
    envs.init_normalizers(source, 100)
    source.rollout(40, break_when_any_done=False)
    state = envs.normalizer_state(source)
    copied = {key: {name: value.clone() for name, value in each.items()} for key, each in state.items()}

    target = gym("CartPole-v1", norm, num_envs=other, seed=5)
    envs.load_normalizer(target, state)
    envs.load_normalizer(source, state)
    raw = 3 * torch.randn(other, 4) + 1
    assert torch.allclose(normalise(source, raw[:1], trained), normalise(target, raw[:1], other), atol=1e-6)
    assert not torch.allclose(normalise(target, raw, other), raw)
    assert set(target.rollout(3)["observation"].shape[-1:]) == {4}

    for env in (source, target):
        env.rollout(30, break_when_any_done=False)
        for key, statistics in envs.normalizer_state(env).items():
            for name, value in statistics.items():
                assert torch.equal(value, copied[key][name]), name


def normalise(env: TransformedEnv, raw: torch.Tensor, num_envs: int) -> torch.Tensor:
    """What the environment's stack makes of raw observations, as its next step would."""
    norm = next(each for each in env.transform if isinstance(each, ObservationNorm | VecNorm | VecNormV2))
    zero = env.fake_tensordict().select("observation")
    observation = raw.expand(num_envs, -1) if num_envs > 1 else raw[0]
    return norm._reset(None, zero.set("observation", observation.clone()))["observation"].reshape(-1, 4)[:1]


def test_running_statistics_move_with_training_until_frozen():
    torch.manual_seed(0)
    env = gym("CartPole-v1", VEC_NORM_V2, num_envs=2)
    env.rollout(5, break_when_any_done=False)
    (before,) = envs.normalizer_state(env).values()
    env.rollout(50, break_when_any_done=False)
    (after,) = envs.normalizer_state(env).values()
    loc, count = (next(key for key in after if key.startswith(name)) for name in ("loc", "count"))
    assert after[count] - before[count] >= 100
    assert not torch.equal(after[loc], before[loc])


def test_running_statistics_are_the_data_s_mean_and_deviation():
    torch.manual_seed(0)
    raw = gym("CartPole-v1", num_envs=4, seed=0)
    env = gym("CartPole-v1", VEC_NORM_V2, num_envs=4, seed=0)
    for each in (raw, env):
        torch.manual_seed(1)
        each.data = each.rollout(50)
    seen = torch.cat([raw.data["observation"][:, :1], raw.data["next", "observation"]], 1).flatten(0, 1)
    norm = env.transform[2]
    assert torch.allclose(norm.loc["observation"], seen.mean(0), atol=1e-4)
    assert torch.allclose(norm.scale["observation"], seen.std(0, unbiased=False), rtol=1e-2)


def test_returns_are_raw_wherever_the_reward_is_scaled():
    scaling = partial(RewardScaling, loc=0.0, scale=0.01)
    for stack in ([scaling], [scaling, RewardSum], [RewardSum, scaling]):
        env = gym("CartPole-v1", *stack, num_envs=2)
        after = env.rollout(5)["next"]
        assert torch.allclose(after["reward"], torch.tensor(0.01))
        assert torch.equal(after["episode_reward"][..., 0], torch.arange(1.0, 6).expand(2, 5))
        assert sum(isinstance(each, RewardSum) for each in env.transform) == 1


@pytest.mark.parametrize("num_envs", [1, 2])
def test_torchrl_s_own_pendulum_ends_at_200_steps_with_its_own_reward_summed(num_envs):
    env = configured("env=torchrl_pendulum", "transforms=normalized", num_envs=num_envs)
    check_env_specs(env)
    rollout = env.rollout(250, break_when_any_done=False)
    for each in by_env(rollout, num_envs):
        assert each["observation"].shape == (250, 2)
        assert each["next", "done"].squeeze(-1).nonzero().squeeze(-1).tolist() == [199]
        assert not each["next", "terminated"].any()
        total = each["next", "reward"][:200].sum()
        assert each["next", "episode_reward"][199].item() == pytest.approx(total.item(), rel=1e-4)
    starts = rollout["observation"].reshape(num_envs, 250, 2)[:, 0]
    assert len({tuple(start.tolist()) for start in starts}) == num_envs


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_user_s_own_environment_class_will_do(num_envs):
    overrides = ("env=custom", "env._target_=tests.fakes.envs.CountingEnv", "+env.short=3", "+env.long=5")
    env = configured(*overrides, num_envs=num_envs)
    check_env_specs(env)
    rollout = env.rollout(40, break_when_any_done=False)
    ended = rollout["next"][rollout["next", "done"].squeeze(-1)]
    assert set(ended["episode_reward"].squeeze(-1).tolist()) == {3.0, 5.0}
    assert torch.equal(ended["episode_reward"].long(), ended["step_count"])
    if num_envs > 1:
        lengths = rollout["next", "done"].squeeze(-1).long().cumsum(-1)
        assert len({tuple(each.tolist()) for each in lengths}) > 1  # seeded apart


@pytest.mark.parametrize(
    ("actions", "kind"), [("continuous", "continuous"), ("one_hot", "discrete"), ("integer", "discrete")]
)
def test_action_kind_is_read_without_a_reset(actions, kind):
    make = partial(CountingEnv, actions=actions, resettable=False)
    assert specs.action_kind(envs.make_env(make, [OBSERVATION_NORM])) == kind


@pytest.mark.parametrize(
    ("actions", "name"),
    [
        ("binary", "multi-discrete"),
        ("several", "multi-discrete"),
        ("stacked", "multi-discrete"),
        ("one_hot_several", "one-hot multi-discrete"),
        ("one_hot_stacked", "one-hot multi-discrete"),
        ("half_bounded", "not finitely bounded"),
    ],
)
def test_an_unusual_action_space_is_called_by_its_name(actions, name):
    assert specs.action_kind(envs.make_env(partial(CountingEnv, actions=actions), [])) == name


@pytest.mark.parametrize("num_envs", [1, 2])
def test_what_gymnasium_cannot_make_is_told_in_one_line(num_envs):
    with pytest.raises(UserError, match=r"^env\.id=NoSuchTask-v0: cannot be created: .*") as told:
        envs.gymnasium_env("NoSuchTask-v0", num_envs=num_envs)
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match=r"wing_span"):
        envs.gymnasium_env("CartPole-v1", num_envs=num_envs, wing_span=3)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_task_of_one_s_own_that_no_module_registers_or_of_the_old_api_says_so(
    num_envs, tmp_path, monkeypatch
):
    (tmp_path / "half_done.py").write_text(OLD)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r'Register it in half_done: gymnasium.register\("New", CLASS\)'):
        envs.gymnasium_env("half_done:New", num_envs=num_envs)
    with pytest.raises(UserError, match=r"its reset does not take seed and options .*check_env"):
        envs.gymnasium_env("half_done:Old-v0", num_envs=num_envs)
    with pytest.raises(UserError, match=r"no module not_here\. If it is yours, start with PYTHONPATH=DIR"):
        envs.gymnasium_env("not_here:New-v0", num_envs=num_envs)


OLD = """
import gymnasium

class Old(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self):
        return self.observation_space.sample()

gymnasium.register("Old-v0", Old)
"""


class Defective(gymnasium.Env):
    def __init__(self, **kwargs: object) -> None:
        len(5)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_defect_in_a_task_of_one_s_own_keeps_its_line(num_envs, monkeypatch):
    spec = EnvSpec("Defective-v0", entry_point=Defective)
    monkeypatch.setitem(gymnasium.registry, "Defective-v0", spec)
    with pytest.raises(TypeError, match="has no len") as told:
        envs.gymnasium_env("Defective-v0", num_envs=num_envs)
    lines = "".join(traceback.format_exception(told.value)).splitlines()
    assert [line.strip() for line in lines].count("len(5)") == 1


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("task", "size"), [("FrozenLake-v1", 16), ("Blackjack-v1", 32 + 11 + 2)])
def test_choices_and_tuples_are_observed_as_one_vector(task, size, num_envs):
    env = configured("env=gym", f"env.id={task}", "transforms=plain", num_envs=num_envs)
    check_env_specs(env)
    observation = env.reset()["observation"]
    assert observation.dtype == torch.float32
    assert observation.shape == (*env.batch_size, size)
    assert set(observation.unique().tolist()) == {0.0, 1.0}


FLOATS = Box(-1, 1, (3,), np.float32)
CHOICE = Discrete(2)


class Spaced(gymnasium.Env):
    """Observes at random and takes any action of its space; nothing resets it before it is known to fit."""

    def __init__(self, actions: Space, observations: Space, reward: object = 1.0, **kwargs: object) -> None:
        self.action_space, self.observation_space, self.reward = actions, observations, reward
        self.taken = set()

    def reset(self, *, seed: int | None = None, options: object = None):
        assert self.reward is not None, "reset"
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.add(repr(action))
        return self.observation_space.sample(), self.reward, False, self.np_random.random() < 0.1, {}


@pytest.fixture
def spaced(monkeypatch, run):
    """Trains PPO for two batches in a task of these spaces."""

    def call(num_envs: int, **spaces: object) -> None:
        spec = EnvSpec(
            "Spaced-v0", entry_point=partial(Spaced, **{"observations": FLOATS, "actions": CHOICE} | spaces)
        )
        monkeypatch.setitem(gymnasium.registry, "Spaced-v0", spec)
        run(
            "algo=ppo", "env=gym", "env.id=Spaced-v0", "debug=fast", "total_frames=128", "eval.max_steps=5",
            f"collector.num_envs={num_envs}", "collector.frames_per_batch=64", "minibatches.size=32",
            "minibatches.epochs=1",
        )  # fmt: skip

    return call


WORK = {
    "from five": {"actions": Discrete(3, start=5)},
    "choices": {"actions": MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-2, 3]], dtype=np.int32)},
    "as many options": {"actions": MultiDiscrete([3, 3])},
    "one of several": {"actions": MultiDiscrete([3], start=[2])},
    "bits": {"actions": MultiBinary((2, 2))},
    "a tuple": {"actions": Tuple((CHOICE, Discrete(3, start=1)))},
    "a dictionary": {"actions": Dict(a=CHOICE, b=Tuple((MultiDiscrete([2, 1]), MultiBinary(2))))},
    "boxes": {"actions": Dict(a=FLOATS, b=Tuple((Box(0, 3, (), np.float64),)))},
    "one number": {"actions": Box(-1, 1, (), np.float32)},
    "sees integers": {"observations": Box(0, 9, (3,), np.int64)},
    "sees a picture": {"observations": Box(0, 255, (5, 5, 3), np.uint8)},
    "sees one number": {"observations": Box(-1, 1, (), np.float32)},
    "sees a choice": {"observations": Discrete(4, start=2)},
    "sees a dictionary": {"observations": Dict(a=CHOICE, b=FLOATS)},
    "sees a tuple": {"observations": Tuple((CHOICE, FLOATS))},
    "reward in an array": {"reward": np.ones(1)},
}
REFUSED = {
    "no choice": (Discrete(1), r"Discrete\(1\)"),
    "no choices": (MultiDiscrete([1, 1]), r"MultiDiscrete\(\[1 1\]\)"),
    "unbounded boxes": (Tuple((FLOATS, Box(0, np.inf, (2,), np.float32))), r"Tuple\(.*\)"),
    "a dictionary": (Dict(a=CHOICE, b=FLOATS), r"Dict\(.*\)"),
    "half-bounded": (Box(0, np.inf, (2,), np.float32), r"Box\(0.0, inf, .*"),
    "unbounded": (Box(-np.inf, np.inf, (2,), np.float32), r"Box\(-inf, inf, .*"),
    "too wide": (Box(-3e38, 3e38, (2,), np.float32), r"Box\(-3e\+38, .*"),
    "nothing between": (Box(np.float32([0, 1]), np.float32([1, 1])), r"Box\(.*"),
    "integers": (Box(0, 3, (2,), np.int64), r"Box\(0, 3, .*"),
}


@pytest.mark.filterwarnings("ignore")  # Gymnasium's, of spaces and rewards it advises against
@pytest.mark.parametrize(
    ("name", "num_envs"),
    # In turn in one environment and in two; the others are slow.
    [(slow, pytest.param)[(at + more) % 2](name, more) for at, name in enumerate(WORK) for more in (1, 2)],
)
def test_what_a_task_may_see_do_and_pay(name, num_envs, spaced):
    spaced(num_envs, **WORK[name])


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(("actions", "named"), REFUSED.values(), ids=REFUSED)
def test_actions_nothing_here_learns_are_refused_before_the_first_reset(actions, named, num_envs, spaced):
    told = rf"^env\.id=Spaced-v0: cannot be created: its actions are {named}\. Supported are [^\n]*$"
    with pytest.raises(UserError, match=told):
        spaced(num_envs, actions=actions, reward=None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reward", [np.ones(2), "much"])
def test_a_reward_that_is_not_one_number_is_refused(reward, spaced):
    with pytest.raises(
        UserError, match=r"^env\.id=Spaced-v0: it returned the reward .*\. Return one number, or give it"
    ):
        spaced(2, reward=reward)


class Entries(CountingEnv):
    """Observes two vectors, a number without dimensions and an integer."""

    def __init__(self, **toy: object) -> None:
        super().__init__(**toy)
        self.observation_spec = Composite(
            observation=Unbounded(3),
            other=Unbounded(2),
            flat=Unbounded(()),
            whole=Unbounded(1, dtype=torch.int64),
        )

    def observe(self, steps, action=0.0):
        more = {"other": torch.ones(2), "flat": torch.tensor(1.0), "whole": torch.ones(1, dtype=torch.int64)}
        return super().observe(steps, action) | more


@pytest.mark.parametrize("name", ["tanh_normal", "state_independent", "categorical", "q_value", "dueling"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_networks_read_several_entries_joined(name, num_envs):
    discrete = name in ("categorical", "q_value", "dueling")
    make = partial(Entries, actions="one_hot" if discrete else "continuous")
    env = envs.make_env(make, [], num_envs=num_envs, seed=0)
    chosen = settings(
        "algo=dqn" if name in ("q_value", "dueling") else "algo=ppo",
        "env=cartpole" if discrete else "env=pendulum",
        *("~tuned", f"actor={name}", "actor.in_keys=[observation,other]", "actor.num_cells=[7,6]"),
    )
    actor = chosen.build("actor")(env)
    assert next(each for each in actor.modules() if isinstance(each, torch.nn.Linear)).in_features == 5
    assert actor(env.reset())["action"].shape[:-1] == env.batch_size


@pytest.mark.parametrize("key", ["flat", "whole"])
def test_entries_that_are_no_vectors_of_floats_are_refused(key):
    env = envs.make_env(Entries, [partial(ObservationNorm, in_keys=[key])])
    with pytest.raises(UserError, match=rf"^in_keys=\['{key}'\]: {key} is torch\..* not a vector of floats"):
        envs.init_normalizers(env, 10)


class Words(gymnasium.Space):
    """A class of the user's own, as MiniGrid's missions are."""

    def sample(self, mask=None, probability=None):
        return "go"

    def contains(self, x):
        return isinstance(x, str)

    def __repr__(self):
        return "Words()"


@pytest.mark.parametrize("inside", [True, False])
def test_a_space_of_one_s_own_is_refused_in_a_line(inside):
    space = gymnasium.spaces.Dict({"mission": Words()}) if inside else Words()
    env = gymnasium.make("CartPole-v1")
    env.observation_space = space
    entry = " mission" if inside else ""
    with pytest.raises(TypeError, match=rf"^its observation{entry} is a Words, a space of no fixed size or"):
        adapt_spaces(env)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_game_of_turns_is_refused_in_a_line(num_envs, tmp_path):
    words = [
        "algo=dqn",
        "env=custom",
        "env._target_=torchrl.envs.TicTacToeEnv",
        "actor.in_keys=[board]",
        *SMALL,
    ]
    done = typed(*words, f"collector.num_envs={num_envs}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert line.startswith("error: env._target_=torchrl.envs.TicTacToeEnv: it violates its own specs under ")
    assert "env=self_play" in line
