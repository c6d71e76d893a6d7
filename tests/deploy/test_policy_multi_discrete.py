"""A run of several choices acts on its plain task, in a loop and in a file, as it does in the run."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hydrl
from hydrl.deploy.load import open_run
from hydrl.errors import UserError
from hydrl.run.video import record_episode
from hydrl.training.evaluator import SeedStream, episode_seed
from tests.conftest import SMALL_PPO, settings
from tests.deploy.test_policy import runner
from tests.fakes.multi_discrete import SPACES
from train import train

SHORT = [
    *SMALL_PPO,
    "total_frames=64",
    "critic.num_cells=[16]",
    "env=gym",
    "env.id=tests.fakes.multi_discrete:Shown-v0",
]
FEW = ["grid", "grid of bits", "one", "nested"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a short run on that space, trained once."""
    folders = {}

    def call(space: str):
        if space not in folders:
            folders[space] = tmp_path_factory.mktemp("several") / "run"
            train(settings(*SHORT, f"+env.space={space}", run_dir=folders[space]))
        return folders[space]

    return call


@pytest.fixture
def load(folder):
    return lambda space: hydrl.load(folder(space), checkpoint="last", trust=True)


def task(space: str) -> gymnasium.Env:
    return gymnasium.make("tests.fakes.multi_discrete:Shown-v0", space=space)


@pytest.mark.parametrize(
    "space", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in SPACES]
)
def test_predict_returns_what_the_plain_task_takes_and_earns_what_the_evaluation_says(space, load):
    """One observation or many; the task itself refuses an action of another shape, kind or range."""
    policy, plain = load(space), task(space)
    seed = episode_seed(policy.evaluator.seed, policy.frames, SeedStream.LATER)
    wanted = policy.evaluator(policy.frames, 1, SeedStream.LATER)
    plain.reset(seed=seed)
    observations, earned, ended = plain.reset()[0], np.float32(0), False
    while not ended:
        observations, reward, ended, _, _ = plain.step(policy.predict(observations))
        earned += np.float32(reward)
    assert [earned] == wanted.returns.tolist()

    envs = SyncVectorEnv([lambda: task(space)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, _ = envs.reset(seed=1)
    many = policy.predict(observations)
    envs.step(many)
    own, kind = plain.action_space, envs.single_action_space
    for place, action in enumerate(gymnasium.vector.utils.iterate(envs.action_space, many)):
        alone = policy.predict(observations[place])
        assert own.contains(alone)
        np.testing.assert_allclose(flatten(kind, action), flatten(kind, alone), rtol=1e-5)


def test_drawn_actions_are_of_every_option(load):
    policy = load("grid")
    observations = np.zeros((4_000, *task("grid").observation_space.shape), np.float32)
    drawn = policy.predict(observations, deterministic=False)
    assert drawn.dtype == np.int32
    nvec = SPACES["grid"].nvec
    assert [
        len(np.unique(column)) for column in drawn.reshape(len(observations), -1).T
    ] == nvec.ravel().tolist()


@pytest.mark.parametrize(("space", "suffix"), [("grid", "onnx"), ("grid of bits", "pt2"), ("one", "pt2")])
def test_a_file_gives_what_predict_gives(space, suffix, load, tmp_path, capsys):
    policy, plain = load(space), task(space)
    path = policy.export(tmp_path / f"policy.{suffix}")
    shape = ", ".join(map(str, ("batch", *plain.action_space.shape)))
    assert f" -> action int64 [{shape}]\n" in capsys.readouterr().out
    envs = SyncVectorEnv([lambda: task(space)] * 64)
    observations, _ = envs.reset(seed=1)
    (actions,) = runner(path)(observations)
    assert np.array_equal(actions, policy.predict(observations))
    if suffix == "pt2":
        files = {"policy.json": ""}
        torch.export.load(path, extra_files=files)
        (output,) = json.loads(files["policy.json"])["outputs"]
        assert (output["low"], output["high"]) == ((0, 1) if space == "grid of bits" else (1, 3))


def test_no_file_is_written_of_actions_in_a_dictionary(load, tmp_path):
    with pytest.raises(UserError, match=r"^export: actions in Dict\(.* are not supported. Use predict.$"):
        load("nested").export(tmp_path / "policy.pt2")


def test_a_film_is_of_the_policy_that_was_trained(folder, tmp_path):
    _, frames, evaluator = open_run(folder("grid"), checkpoint="last", device="cpu", trust=True)
    wanted = evaluator(frames, 1, SeedStream.FINAL)
    value, steps, _ = record_episode(evaluator, tmp_path / "film.mp4", frames, SeedStream.FINAL)
    assert (value, steps) == (pytest.approx(wanted.mean, rel=1e-4), 5)
