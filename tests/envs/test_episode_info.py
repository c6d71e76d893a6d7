"""Numbers of a task's own, which it gives in Gymnasium's `info`."""

import json
import re
from math import isnan, nan

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from matplotlib.image import imread

import hydrl
from hydrl.envs import gymnasium as tasks
from hydrl.envs import make_env
from hydrl.errors import UserError
from hydrl.experiments import search_space
from hydrl.run.run_folder import summary
from hydrl.training.evaluator import play_episodes
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, saved, settings, typed

TASK = f"{__name__}:toys/Steps-v0"
LENGTH = 5
WAVE = [1, 3, 2, 1, 5]


class Steps(gymnasium.Env):
    """Episodes of five steps; `height` is the step's number and ten times that of the episode."""

    action_space = Discrete(2)

    def __init__(self, at_end: bool = False, odd: object = None) -> None:
        self.observation_space, self.episode = Box(0.0, 10.0, (1,)), 0
        self.at_end, self.odd = at_end, odd

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.episode = 0
        self.steps, self.episode = 0, self.episode + 1
        return np.zeros(1, np.float32), {"height": 1_000.0}

    def step(self, action):
        self.steps += 1
        ended = self.steps == LENGTH
        info = {"height": np.float32(self.steps + 10 * self.episode), "first": float(self.steps)}
        info["wave"] = WAVE[self.steps - 1]
        if self.steps > 1:
            del info["first"]
        if ended or not self.at_end:
            info |= {"is_success": self.episode % 2 == 0}
        if self.odd is not None:
            info["odd"] = self.odd
        return np.full(1, self.steps, np.float32), 1.0, ended, False, info


gymnasium.register("toys/Steps-v0", Steps)
gymnasium.register(
    "toys/Never-v0", lambda: gymnasium.wrappers.TransformObservation(Steps(), lambda it: it, None)
)
OWN = ["env=gym", f"env.id={TASK}", "task=steps", "transforms=plain"]
# Of the second episode, for a seed begins one.
HEIGHTS = {"last": 5 + 20, "mean": 3 + 20, "sum": 15 + 100, "max": 5 + 20}


def made(*words: str, **options):
    chosen = settings(*SMALL, *OWN, *words)
    return make_env(chosen.build("env"), chosen.transform_builders, **options)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("how", HEIGHTS)
def test_of_an_episode_the_last_value_the_mean_the_sum_or_the_highest_counts(how, num_envs):
    env = made(f"+env.info_keys={{height:{how}}}", num_envs=num_envs, seed=0)
    rollout = env.rollout(2 * LENGTH, break_when_any_done=False).reshape(num_envs, -1)
    told = rollout["next", "episode_info", "height"]
    assert (told.dtype, told.shape) == (torch.float32, (num_envs, 2 * LENGTH, 1))
    ends = told[rollout["next", "done"]].reshape(num_envs, 2)
    second = HEIGHTS[how] + 10 * (LENGTH if how == "sum" else 1)
    assert ends.tolist() == [[HEIGHTS[how], second]] * num_envs
    assert rollout["next", "episode_info", "is_success"][rollout["next", "done"]].reshape(-1, 2)[
        0
    ].tolist() == [1, 0]


def test_what_is_missing_where_it_counts_is_not_known():
    env = made("+env.info_keys={first:last}", seed=0)
    first = env.rollout(LENGTH)["next", "episode_info", "first"].squeeze(-1).tolist()
    assert first[0] == 1
    assert all(map(isnan, first[1:]))
    for how in ("mean", "max"):  # of the steps that gave it
        env = made(f"+env.info_keys={{first:{how}}}", seed=0)
        assert env.rollout(LENGTH)["next", "episode_info", "first"].squeeze(-1).tolist() == [1] * LENGTH


def test_the_highest_value_stays_when_lower_ones_follow():
    env = made("+env.info_keys={wave:max}", seed=0)
    assert env.rollout(LENGTH)["next", "episode_info", "wave"].squeeze(-1).tolist() == [1, 3, 3, 3, 5]


def test_success_is_followed_without_being_named(monkeypatch):
    monkeypatch.setattr(tasks, "PROBED", {})
    found = lambda *words: [*made(*words).observation_spec.get("episode_info", {}).keys()]  # noqa: E731
    assert found() == found("+env.at_end=true") == ["is_success"]
    assert found("+env.info_keys=[height]") == ["is_success", "height"]
    assert found("+env.info_keys={is_success:mean}") == ["is_success"]
    assert found("+env.info_keys=[]") == []
    monkeypatch.setattr(tasks, "make_wrapped_env", None)  # nothing is made to look
    assert tasks.find_success_keys("CartPole-v1") == []


def test_a_trial_draws_from_nothing_of_the_run(monkeypatch):
    monkeypatch.setattr(tasks, "PROBED", {})
    chosen = settings(*SMALL, *OWN)
    torch.manual_seed(0), np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1]
    assert tasks.find_success_keys(TASK, at_end=True) == ["is_success"]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    seen = [make_env(chosen.build("env"), [], seed=3).rollout(20)["observation"] for _ in range(2)]
    assert torch.equal(*seen)


def test_success_told_of_too_late_to_be_found_is_said(monkeypatch, capsys):
    monkeypatch.setattr(tasks, "PROBED", {})
    monkeypatch.setattr(tasks, "PROBE_STEPS", 3)
    env = made("+env.at_end=true")
    env.rollout(LENGTH)
    assert (
        "returns is_success in info. Write env.info_keys=[is_success] to log it." in capsys.readouterr().err
    )


KEYS = ["+env.info_keys={height:mean,first:last}"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Three environments, each with batches of 16 steps: no batch ends with an episode."""
    folder = tmp_path_factory.mktemp("informed") / "run"
    words = [*SMALL_PPO, *OWN, *KEYS, "collector.num_envs=4", f"hydra.run.dir={folder}"]
    done = typed(*words, curves=True)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_all_that_shows_numbers_shows_them(unbroken):
    folder, done = unbroken
    rows = logged(folder)
    # 16 steps of each environment: its episodes 5, 6, 7 end in the first batch, with heights of 53, 63, 73.
    assert [float(rows[0][f"train/{name}"]) for name in ("height", "is_success")] == pytest.approx(
        [63, 1 / 3]
    )
    assert float(rows[0]["train/episodes"]) == 12
    evaluated = [row for row in rows if row["eval/height"]]
    assert {(float(row["eval/height"]), float(row["eval/is_success"])) for row in evaluated} == {(23, 1)}
    assert "train/first" not in rows[0]
    assert "eval/first" not in rows[0]
    line = "env.info_keys: first is missing in the info of the first 12 episodes"
    assert done.stdout.count(line) == 1
    reached = summary(folder)
    assert [reached[f"eval/{name}"] for name in ("height", "is_success", "first")] == [23, 1, None]
    for row in ("height          │ 23", "is_success      │ 1", "first           │ unknown"):
        assert row in done.stdout
    assert "height" in (folder / "run.html").read_text()
    inches = imread(folder / "curves.png").shape[0] / 150
    assert inches == pytest.approx(4 + 2 * 1.6, abs=0.02)  # a panel of each that is known


def test_a_run_resumed_in_the_middle_of_episodes_goes_on_with_them(unbroken, tmp_path):
    folder = tmp_path / "killed"
    assert killed(unbroken[0], folder) == 128
    resumed = typed(f"resume={folder}", "trust=true")
    assert resumed.returncode == 0, resumed.stderr
    assert "everything continues exactly" in resumed.stdout
    assert logged(folder) == logged(unbroken[0])
    assert digest(saved(folder, "actor")) == digest(saved(unbroken[0], "actor"))


def test_evaluate_prints_and_keeps_them(unbroken):
    folder, _ = unbroken
    done = typed(f"run={folder}", "episodes=3", "trust=true", script="scripts/evaluate.py")
    assert done.returncode == 0, done.stderr
    for row in (r"height +│ 23 ", r"is_success +│ 1 ", r"first +│ unknown "):
        assert re.search(row, done.stdout), done.stdout
    kept = json.loads((folder / "evaluation.json").read_text())
    assert kept["info"] == {"is_success": [1.0] * 3, "height": [23.0] * 3, "first": [None] * 3}
    assert (kept["eval/height"], kept["eval/is_success"]) == (23, 1)


def test_a_policy_needs_none_of_them_to_act(unbroken):
    policy = hydrl.load(unbroken[0], trust=True)
    assert policy.predict(np.zeros(1, np.float32)) in (0, 1)


def test_those_that_were_cut_count_as_they_stand():
    env = made("+env.info_keys={height:sum}", num_envs=2, seed=0)
    acts = lambda now: now.set("action", torch.tensor([[1, 0]] * 2))  # noqa: E731
    acts.modules = list
    evaluation = play_episodes(env, acts, max_steps=3)
    assert (evaluation.cut_episodes, evaluation.info["height"].tolist()) == (2, [1 + 2 + 3 + 60.0] * 2)
    unknown = type(evaluation)(torch.zeros(3), torch.ones(3), info={"is_success": torch.tensor([1, nan, 0])})
    assert unknown.metrics()["eval/is_success"] == 0.5


def test_a_replay_memory_does_without_them(run):
    folder = run(*OWN, "algo=dqn", *SMALL, "minibatches.warmup_frames=64", "total_frames=128", *KEYS)
    assert "episode_info" not in str(saved(folder, "buffer").keys())
    assert "episode_info" not in saved(folder, "buffer")["next"]
    assert logged(folder)[0]["train/height"]


@pytest.mark.slow
def test_workers_hand_them_over(run):
    words = ["collector=multi_sync", "collector.num_workers=2", "collector.num_envs=1", "total_frames=64"]
    (row,) = logged(run(*SMALL_PPO, *OWN, *KEYS, *words))
    # 32 steps of one environment each: episodes 2 to 7, of which every second succeeds.
    assert [float(row[f"train/{name}"]) for name in ("episodes", "height", "is_success")] == [12, 3 + 45, 0.5]


# What is added, and what the answer holds.
MISTAKES = {
    "+env.info_keys=distance": "env.info_keys=distance: should be a list of names in info. Write [distance]",
    "env.info_keys=[1]": "env.info_keys=[1]: should be a list of names",
    "+env.info_keys={distance:least}": "env.info_keys.distance=least: should be last, mean, sum or max",
    "+env.info_keys=[episodes]": "train/episodes and eval/episodes is a metric of hydrl's own",
    "env=custom env._target_=torchrl.envs.PendulumEnv +env.info_keys=[a] ~env.id": "env.info_keys=[a]: this "
    "key is for Gymnasium environments",
    "env.info_key=[a]": "env.info_key=[a]: no such key",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_does_not_fit_is_refused_before_anything_starts(words):
    own = ["task=x"] if "custom" in words else OWN
    done = typed(*SMALL, *own, *words.removesuffix(" ~env.id").split(), "hydra.run.dir=nowhere")
    assert done.returncode == 2
    assert MISTAKES[words] in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("odd", ["far", "[1.0,2.0]"])
def test_what_is_no_number_is_a_line(odd):
    env = made("+env.info_keys=[odd]", f"+env.odd={odd}")
    with pytest.raises(
        UserError, match=r"env.info_keys: env.id=\S+ returned info\['odd'\]=.*not a number\. Leave"
    ):
        env.rollout(2)


def test_a_search_maximises_one():
    words = ["algo=ppo", *OWN, *KEYS, "maximise=eval/height"]
    assert search_space.read_plan(words).maximise == "eval/height"
    assert search_space.read_plan(words[:-1]).maximise == "eval/return_mean"
    with pytest.raises(UserError, match=r"search\.maximise=return: should match"):
        search_space.read_plan([*words[:-1], "maximise=return"])
