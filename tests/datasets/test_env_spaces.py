"""What leaves a run and enters it is in the task's own spaces, of whatever kind these are."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, flatten
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import hydrl
from hydrl import envs
from hydrl.datasets import files, summary
from hydrl.datasets import minari as minari_sets
from hydrl.datasets import record as played
from hydrl.datasets.collector import load_dataset
from hydrl.deploy import export
from hydrl.deploy.load import open_run
from hydrl.envs.external_env import GymIO
from hydrl.envs.transitions import action_entries, entry_paths, flat_arrays, nest_arrays
from hydrl.errors import UserError
from hydrl.run.video import record_episode
from tests.conftest import SMALL, SMALL_PPO, settings
from tests.deploy.test_policy import runner
from tests.fakes.any_space_env import KINDS, AnySpaceEnv
from train import train

SHORT = [
    *SMALL_PPO,
    "transforms=plain",
    "total_frames=64",
    "eval.every_frames=64",
    "env=gym",
    "env.id=tests.fakes.any_space_env:Any-v0",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a short run of a kind, trained once."""
    folders = {}

    def call(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("kinds") / "run"
            train(settings(*SHORT, f"+env.kind={kind}", run_dir=folders[kind]))
        return folders[kind]

    return call


def recorded(run: Path, monkeypatch):
    """What a run played: its settings, the columns, what is said of them, and what the tasks have kept."""
    chosen, trained, evaluator = open_run(run, checkpoint="last", device=torch.device("cpu"), trust=True)
    monkeypatch.setattr(AnySpaceEnv, "record", record := [])
    columns = played.record_episodes(
        chosen, evaluator, trained, frames=16, sampled=False, stream=3, random=0.5
    )
    return (
        chosen,
        columns,
        played.describe_dataset(chosen, columns, run, "last", trained, sampled=False, random=0.5),
        record,
    )


def rows(columns, column: str, space, entries) -> list:
    """The values of a space, row by row."""
    found_columns = files.column_entries(columns, column)
    arrays = {path: found_columns.get("", found_columns.get(name)) for name, (path, _) in entries.items()}
    nested = nest_arrays(space, arrays)
    return [*iterate(batch_space(space, len(columns["rewards"])), nested)]


def same(a, b) -> bool:
    """Whether two values of a space are the same."""
    if isinstance(a, dict):
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return np.array_equal(a, b)


def check(columns, kind: str, record) -> None:
    """Each row is what a task gave and took, in its spaces."""
    observation_space, acted = KINDS[kind]
    values = [
        rows(columns, "observations", observation_space, entry_paths(observation_space)),
        rows(columns, "actions", acted, action_entries(acted)),
        rows(columns, files.NEXT_OBSERVATIONS, observation_space, entry_paths(observation_space)),
    ]
    assert len(values[0]) == 16
    for space, column in zip((observation_space, acted, observation_space), values, strict=True):
        assert all(space.contains(sample) for sample in column)
    for row in zip(*values, strict=True):
        assert any(all(map(same, row, taken)) for taken in record)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_every_format_is_what_the_task_gave_and_took(kind, folder, monkeypatch, tmp_path):
    minari = pytest.importorskip("minari")
    chosen, columns, about, record = recorded(folder(kind), monkeypatch)
    assert about["format"] == 2
    check(columns, kind, record)
    for form in ("npz", "h5"):
        played.save_dataset(form, tmp_path / form, columns, about)
        check(files.read_columns(form, tmp_path / form, "set"), kind, record)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari_sets.save_minari("kinds/set-v0", columns, about, chosen.env, chosen.build("env"))
    theirs = minari.load_dataset("kinds/set-v0")
    assert (theirs.observation_space, theirs.action_space) == KINDS[kind]
    for episode in theirs.iterate_episodes():
        for space, values, count in (
            (theirs.observation_space, episode.observations, 5),
            (theirs.action_space, episode.actions, 4),
        ):
            assert all(space.contains(sample) for sample in iterate(batch_space(space, count), values))
    assert json.loads((tmp_path / "kinds" / "set-v0" / "about.json").read_text()) == about
    with_names = files.read_columns("minari", Path("kinds/set-v0"), "set")
    assert len(with_names["rewards"]) == 16


@pytest.mark.parametrize("kind", KINDS)
def test_predict_gives_actions_of_the_task_s_own_space(kind, folder):
    observation_space, acted = KINDS[kind]
    policy = hydrl.load(folder(kind), checkpoint="last", trust=True)
    for drawn in (True, False):
        assert all(
            acted.contains(policy.predict(observation_space.sample(), deterministic=drawn)) for _ in range(8)
        )


@pytest.mark.parametrize("form", ["npz", "minari"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_learned_as_the_same_options_and_the_networks_see_the_same(
    kind, form, folder, monkeypatch, tmp_path
):
    """By hand: each row as the environment itself turns it into what networks read."""
    if form == "minari":
        pytest.importorskip("minari")
    chosen, columns, about, _ = recorded(folder(kind), monkeypatch)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    place = tmp_path / "set" if form == "npz" else Path("kinds/set-v0")
    if form == "npz":
        played.save_dataset("npz", place, columns, about)
    else:
        minari_sets.save_minari(str(place), columns, about, chosen.env, chosen.build("env"))
    data, env = read(chosen, place, form)
    own = GymIO(chosen.build("env"), env.base_env.action_spec_unbatched, "test")
    observation_space, acted = KINDS[kind]
    for place, observation in enumerate(
        rows(columns, "observations", observation_space, entry_paths(observation_space))
    ):
        for name, value in own.read(observation).items():
            assert torch.equal(data[name][place].float(), value.float()), name
    for place, action in enumerate(rows(columns, "actions", acted, action_entries(acted))):
        written = own.write(data["action"][place])
        assert np.allclose(
            flatten(acted, written), flatten(acted, action), rtol=1e-6
        )  # rows: single precision


def read(chosen, place: Path, form: str = "npz"):
    """The rows of a set as a run of those settings has them, and an environment."""
    make_env = partial(envs.make_env, chosen.build("env"), chosen.transform_builders, device="cpu")
    env = make_env()
    actor = chosen.build("actor")(env)
    words = {"path": str(place), "task": chosen.task, "kind": form, "make_env": make_env}
    return load_dataset(env, actor, **words).storage[:], env


def of_others(actions) -> files.Columns:
    """A set of a task of two numbers that is not said to be anybody's."""
    columns = {"observations": np.zeros((3, 2), np.float32), "actions": np.array(actions)}
    return columns | {"rewards": np.ones(3), "terminals": np.array([0, 0, 1]), "timeouts": np.zeros(3)}


def test_what_a_replay_buffer_has_is_shown_with_how_its_choices_are_counted(run):
    words = [
        "algo=dqn",
        *SMALL,
        "transforms=plain",
        "env=gym",
        "env.id=tests.fakes.any_space_env:Any-v0",
        "+env.kind=start",
    ]
    folder = run(
        *words, "total_frames=128", "minibatches.warmup_frames=64", "exploration.annealing_num_steps=128"
    )
    _, columns, *_, units = summary.open_dataset(folder, "set")
    assert {*columns["actions"].tolist()} == {0, 1, 2}
    assert units == "discrete actions counted from 0"


def test_sets_from_before_are_counted_from_0_and_those_of_others_as_the_task_counts(folder, tmp_path):
    chosen = settings("algo=ppo", *SHORT, "+env.kind=start")
    before = {"task": chosen.task, "made_by": {"algo": "ppo"}}
    played.save_dataset("npz", tmp_path / "before", of_others([0, 2, 1]), before)
    files.write_columns("npz", tmp_path / "others.npz", of_others([5, 7, 6]))
    for place in (tmp_path / "before", tmp_path / "before" / "data.npz", tmp_path / "others.npz"):
        assert read(chosen, place)[0]["action"].argmax(-1).tolist() == [0, 2, 1]
        units = summary.open_dataset(place, "set")[-1]
        assert units == ("" if place.stem == "others" else summary.ZERO_BASED)
    files.write_columns("npz", tmp_path / "wrong.npz", of_others([5, 2, 6]))
    with pytest.raises(UserError, match=r"actions has the value 2\. The environment has 5 to 7\.$"):
        read(chosen, tmp_path / "wrong.npz")


def test_a_minari_set_from_before_is_counted_from_0(monkeypatch, tmp_path):
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    chosen = settings("algo=ppo", *SHORT, "+env.kind=start")
    for name, description, start in (
        ("before-v0", "3 steps of Any, played by /x/run", 0),
        ("others-v0", "mine", 5),
    ):
        minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=[
                EpisodeBuffer(
                    id=0,
                    observations=np.zeros((4, 2), np.float32),
                    actions=np.array([0, 2, 1]) + start,
                    rewards=np.ones(3),
                    terminations=np.array([False, False, True]),
                    truncations=np.zeros(3, bool),
                )
            ],
            observation_space=KINDS["start"][0],
            action_space=Discrete(3, start=start),
            description=description,
        )
        assert read(chosen, Path(name), "minari")[0]["action"].argmax(-1).tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("kind", "played_there"), [("start", 7), pytest.param("choices", [2, 0], marks=pytest.mark.slow)]
)
def test_a_run_learns_from_an_expert_s_numbers_what_the_expert_played(kind, played_there, run, tmp_path):
    """By `train.py` itself, whose environment is one of the task's."""
    observation, columns = KINDS[kind][0].sample(), of_others([played_there] * 3)
    files.write_columns(
        "npz", tmp_path / "others.npz", columns | {"observations": np.stack([observation] * 3)}
    )
    words = ["algo=bc", "~tuned", "total_frames=2048", "collector.frames_per_batch=256"]
    words += ["minibatches.size=64", "eval.every_frames=2048", "eval.episodes=1", "eval.final_episodes=1"]
    words += ["env=gym", "env.id=tests.fakes.any_space_env:Any-v0", f"+env.kind={kind}", "transforms=plain"]
    folder = run(*words, "data=npz", f"data.path={tmp_path / 'others.npz'}", "optim.lr=0.01")
    policy = hydrl.load(folder, checkpoint="last", trust=True)
    assert np.array_equal(policy.predict(observation), played_there)


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_plays_what_predict_gives_in_the_task_s_own_space(kind, folder, monkeypatch, tmp_path):
    observation_space, acted = KINDS[kind]
    _, trained, evaluator = open_run(folder(kind), checkpoint="last", device=torch.device("cpu"), trust=True)
    monkeypatch.setattr(AnySpaceEnv, "record", record := [])
    record_episode(evaluator, tmp_path / "video.mp4", trained, 2)
    policy = hydrl.load(folder(kind), checkpoint="last", trust=True)
    assert len(record) == 4
    for before, action, _ in record:
        assert observation_space.contains(before)
        assert acted.contains(action)
        assert np.allclose(flatten(acted, action), flatten(acted, policy.predict(before)), atol=1e-5)


EXPORTED = [name for name in KINDS if not isinstance(KINDS[name][1], Dict)]


@pytest.mark.parametrize("suffix", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", EXPORTED)
def test_a_file_gives_actions_of_the_task_s_own_space_as_predict_does(kind, suffix, folder, tmp_path):
    observation_space, acted = KINDS[kind]
    policy = hydrl.load(folder(kind), checkpoint="last", trust=True)
    play = runner(policy.export(tmp_path / f"policy.{suffix}"))
    entries, drawn = (
        [space for _, space in entry_paths(observation_space).values()],
        [observation_space.sample() for _ in range(8)],
    )
    rows = concatenate(observation_space, drawn, create_empty_array(observation_space, 8))
    inputs = [*flat_arrays(rows, observation_space).values()]
    action, *_ = play(
        *(values.astype(export.input_dtype(space)) for values, space in zip(inputs, entries, strict=True))
    )
    expected = np.stack([policy.predict(minibatch) for minibatch in drawn])
    assert action.shape == (8, *acted.shape)
    assert np.allclose(action, expected, atol=1e-5)
    if not isinstance(acted, Box):
        assert action.dtype == np.int64
        assert np.array_equal(action, expected)
    assert all(acted.contains(sample) for sample in action.astype(acted.dtype))
