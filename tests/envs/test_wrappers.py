"""Wrappers around a Gymnasium task, by configuration."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import hydrl
from hydrl.config.trust import check_trust
from hydrl.datasets import record
from hydrl.deploy.load import open_run
from hydrl.envs import make_env
from hydrl.errors import UserError
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, saved, settings, typed

TASK = f"{__name__}:toys/Count-v0"


class Count(gymnasium.Env):
    """Observes the step of an episode of ten; each pays 1."""

    observation_space, action_space = Box(0.0, 10.0, (1,)), Discrete(2)

    def __init__(self, observe: int = 0) -> None:
        self.observe = observe

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 10, False, {}


class Pays(gymnasium.RewardWrapper):
    """Multiplies what is paid, then adds the step of the episode as it counts it itself."""

    def __init__(self, env: gymnasium.Env, times: float, noise: float = 0.0) -> None:
        super().__init__(env)
        self.times, self.noise, self.paid = times, noise, 0

    def reset(self, **kwargs):
        self.paid = 0
        return super().reset(**kwargs)

    def reward(self, reward):
        self.paid += 1
        return self.times * float(reward) + self.noise * (self.np_random.random() + self.paid)


def from_ten(reward: float) -> float:
    return 10 - reward


def nothing(env: gymnasium.Env) -> str:
    return "no environment"


def fails(env: gymnasium.Env) -> gymnasium.Env:
    raise RuntimeError("of one's own")


gymnasium.register("toys/Count-v0", Count)
OWN = ["env=gym", f"env.id={TASK}", "task=count"]
PAYS = f"+env.wrappers.pays._target_={__name__}.Pays"
TWICE = [PAYS, "+env.wrappers.pays.times=2"]
FRAMES = ["+env.wrappers.frames._target_=gymnasium.wrappers.FrameStackObservation"]
FRAMES += ["+env.wrappers.frames.stack_size=3"]


def made(*words: str, **options):
    chosen = settings(*SMALL, *OWN, "transforms=plain", *words)
    return make_env(chosen.build("env"), chosen.transform_builders, **options)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_they_stand_in_order_around_each_single_environment(num_envs):
    less = ["+env.wrappers.less._target_=gymnasium.wrappers.TransformReward"]
    less += [f"+env.wrappers.less.func={{_target_:{__name__}.from_ten,_partial_:true}}"]
    for first, second, expected in ((TWICE, less, 10.0 - 2.0), (less, TWICE, 2 * (10.0 - 1.0))):
        env = made(*first, *second, num_envs=num_envs)
        rollout = env.rollout(4)
        assert rollout["next", "reward"].unique().tolist() == [expected]
    env = made(*FRAMES, num_envs=num_envs)
    seen = env.rollout(3)["next", "observation"].reshape(-1, 3, 3)
    assert seen[0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert (seen == seen[0]).all()


def test_one_for_training_alone_is_not_evaluated_with(run):
    folder = run(*SMALL_PPO, *OWN, *TWICE, "+env.wrappers.pays.training_only=true", "transforms=plain")
    rows = logged(folder)
    assert {row["train/return"] for row in rows if row["train/return"]} == {"20.0"}
    assert {row["eval/return_mean"] for row in rows if row["eval/return_mean"]} == {"10.0"}
    policy = hydrl.load(folder, trust=True)
    assert policy.env().rollout(20, policy.actor)["next", "episode_reward"].max() == 10
    chosen, trained, evaluator = open_run(folder, checkpoint="last", device=torch.device("cpu"), trust=True)
    made = record.record_episodes(chosen, evaluator, trained, frames=40, sampled=False, stream=3, random=0.5)
    assert made["rewards"].tolist() == [1.0] * 40


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Trained in two wrappers, one of which counts and draws; no batch ends with an episode."""
    folder = tmp_path_factory.mktemp("wrapped") / "run"
    words = [*SMALL_PPO, *OWN, *TWICE, "+env.wrappers.pays.noise=0.1", *FRAMES, "transforms=plain"]
    done = typed(*words, "collector.num_envs=2", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder


def test_training_and_evaluation_have_them_alike(unbroken):
    policy = hydrl.load(unbroken, trust=True)
    assert policy.env().rollout(20, policy.actor)["next", "observation"].shape == (10, 3)
    (kept,) = {each.shape for name, each in policy.actor.named_parameters() if name.endswith("0.weight")}
    assert kept[-1] == 3
    assert float(logged(unbroken)[-1]["eval/return_mean"]) > 20  # twice 10, and what it adds


def test_a_resumed_run_goes_on_in_them_as_they_stood(unbroken, tmp_path):
    folder = tmp_path / "killed"
    assert killed(unbroken, folder) == 128
    resumed = typed(f"resume={folder}", "trust=true")
    assert resumed.returncode == 0, resumed.stderr
    assert "everything continues exactly" in resumed.stdout, resumed.stdout
    assert logged(folder) == logged(unbroken)
    assert digest(saved(folder, "actor")) == digest(saved(unbroken, "actor"))


def test_predict_takes_what_the_wrapped_task_gives(unbroken):
    policy = hydrl.load(unbroken, trust=True)
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make(TASK), 3)
    observation, _ = env.reset(seed=0)
    policy.reset()
    now = policy.env().reset()
    for _ in range(5):
        acted = policy.actor(now)["action"].argmax().item()
        action = policy.predict(observation)
        assert action == acted
        observation, *_ = env.step(action)
        now["observation"] = torch.as_tensor(observation).flatten().float()
    with pytest.raises(UserError, match=r"Pass float32 of shape \[3, 1\]"):
        policy.predict(np.zeros(1, np.float32))


# What is added to a task of one's own, and what the answer holds.
MISTAKES = {
    "+env.wrappers.x._target_=gymnasium.wrappers.NoSuch": "cannot be imported",
    "+env.wrappers.x._target_=gymnasium.wrappers.TimeLimit +env.wrappers.x.max_steps=3": "gymnasium.wrappers."
    "TimeLimit takes no max_steps. Write env.wrappers.x.max_episode_steps=",
    "+env.wrappers.x._target_=gymnasium.wrappers.TimeLimit +env.wrappers.x.max_episode_steps=a": "should be "
    "an integer",
    "+env.wrappers.x._target_=gymnasium.wrappers.TimeLimit": "missing a required argument: "
    "'max_episode_steps'",
    "+env.wrappers.x._target_=torch.nn.Identity": "torch.nn.Identity: this class is no Wrapper. Name one, "
    "or a function that makes one when called as wrapper(env, …)",
    "+env.wrappers.x._target_=gymnasium.wrappers.vector.ClipReward": "this class is no Wrapper",
    "+env.wrappers.x.min=3": "env.wrappers.x={min: 3}: should have _target_",
    "+env.wrappers.x=null": "Write ~env.wrappers.x.",
    "+env.wrappers=[{_target_:gymnasium.wrappers.TimeLimit}]": "should be wrappers by names of yours",
    "+env.wrappers.x._target_=gymnasium.wrappers.NormalizeObservation": "Use transforms=running_norm",
    "+env.wrappers.x._target_=gymnasium.wrappers.ClipReward +env.wrappers.x.training_only=1": "env.wrappers."
    "x.training_only=1: should be true or false",
    "+env.observe=[0]": f"env.observe=[0]: env.id={TASK} takes observe too, and here it is a key of hydrl's",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_does_not_fit_is_refused_before_anything_starts(words):
    with pytest.raises(UserError) as raised:
        settings(*SMALL, *OWN, *words.split())
    assert MISTAKES[words] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_wrappers_are_for_gymnasium_s_tasks():
    target = "env._target_=torchrl.envs.PendulumEnv"
    wrapper = "+env.wrappers.x._target_=gymnasium.wrappers.ClipReward"
    for word, key in ((wrapper, "wrappers"), ("+env.observe=[0]", "observe")):
        line = rf"env.{key}=.*: this key is for Gymnasium environments, and {target} makes another"
        with pytest.raises(UserError, match=line):
            settings(*SMALL, "env=custom", target, word)


# What only making it shows, and what the answer holds.
LATE = {
    "+env.wrappers.x._target_=gymnasium.wrappers.RescaleAction +env.wrappers.x.min_action=0 "
    "+env.wrappers.x.max_action=1": f"env.wrappers.x: cannot wrap env.id={TASK}: ",
    f"+env.wrappers.x._target_={__name__}.nothing": "env.wrappers.x: it returned a str. Write ",
    "+env.wrappers.x._target_=gymnasium.wrappers.FrameStackObservation +env.wrappers.x.stack_size=2 "
    "+env.wrappers.x.training_only=true": "env.wrappers.x.training_only=true: it changes the "
    "observation_space",
}


@pytest.mark.parametrize("words", LATE)
def test_what_does_not_fit_around_the_task_is_a_line_too(words):
    with pytest.raises(UserError) as raised:
        made(*words.split())
    assert LATE[words] in str(raised.value)
    with pytest.raises(RuntimeError, match="of one's own"):  # as it was raised
        made(f"+env.wrappers.x._target_={__name__}.fails")


def test_a_stranger_s_run_may_have_gymnasium_s_and_no_others():
    def node(target):
        return {"env": {"wrappers": {"x": {"_target_": target}}}}

    check_trust(node("gymnasium.wrappers.FrameStackObservation"), "run=x")
    for target in ("gymnasium.wrappers.RecordVideo", "my_envs.Slippery", "os.system"):
        with pytest.raises(UserError, match=f"names {target}, which is not one of hydrl's components"):
            check_trust(node(target), "run=x")
