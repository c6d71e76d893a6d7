"""Sets of transitions as arrays: what follows what, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from conftest import settings

from hydrl.errors import UserError
from hydrl.parts import environments
from hydrl.run import columns, rows

# Three episodes: one ends by itself, one at its time limit, one is still running.
REWARDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
TERMINALS = [0, 1, 0, 0, 0, 0, 0]
TIMEOUTS = [0, 0, 0, 0, 1, 0, 0]


def small(**changes) -> columns.Columns:
    made = {
        "observations": np.arange(21, dtype=np.float64).reshape(7, 3),
        "actions": np.linspace(-2, 2, 7, dtype=np.float32).reshape(7, 1),
        "rewards": np.array(REWARDS),
        "terminals": np.array(TERMINALS, bool),
        "timeouts": np.array(TIMEOUTS, np.uint8),
    }
    return {name: each for name, each in {**made, **changes}.items() if each is not None}


@pytest.fixture(scope="module")
def pendulum():
    chosen = settings("algo=sac", "env=pendulum", "~tuned")
    env = environments.make_env(chosen.build("env"), chosen.transform_builders)
    yield env
    env.close()


@pytest.fixture(scope="module")
def cartpole():
    chosen = settings("algo=dqn", "env=cartpole", "~tuned")
    env = environments.make_env(chosen.build("env"), chosen.transform_builders)
    yield env
    env.close()


def written(made: columns.Columns, tmp_path, kind: str = "npz"):
    if kind == "h5":
        pytest.importorskip("h5py")
    columns.write(kind, tmp_path / f"data.{kind}", made)
    return columns.read(kind, tmp_path / f"data.{kind}", "data.path=FILE")


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_a_row_is_followed_by_the_next_of_its_episode_and_by_no_other(kind, tmp_path, pendulum):
    made = rows.fitting(columns.transitions(written(small(), tmp_path, kind)), pendulum, "FILE")
    # Row 4 runs into its time limit and row 6 is the last: what came after them nobody knows.
    assert made["observation"][:, 0].tolist() == [0, 3, 6, 9, 15]
    # Row 1 ended by itself, and nothing is bootstrapped from it: what stands there is not the next episode's.
    assert made["next", "observation"][:, 0].tolist() == [3, 3, 9, 12, 18]
    assert made["next", "reward"].flatten().tolist() == [1, 2, 4, 8, 32]
    assert made["next", "terminated"].flatten().tolist() == [False, True, False, False, False]
    assert not made["next", "truncated"].any()
    assert made["next", "episode_reward"].flatten().tolist() == [1, 3, 4, 12, 32]
    assert made["episode_reward"].flatten().tolist() == [0, 1, 0, 4, 0]
    assert made["next", "step_count"].flatten().tolist() == [1, 2, 1, 2, 1]
    assert made["observation"].dtype == torch.float32


def test_where_it_is_known_what_followed_all_rows_stay_and_a_limit_is_no_end_of_the_tasks_own(pendulum):
    after = np.arange(100, 121, dtype=np.float32).reshape(7, 3)
    made = rows.fitting(columns.transitions(small(next_observations=after)), pendulum, "FILE")
    assert torch.equal(made["next", "observation"], torch.as_tensor(after))
    assert made["next", "terminated"].flatten().tolist() == [bool(each) for each in TERMINALS]
    assert made["next", "truncated"].flatten().tolist() == [bool(each) for each in TIMEOUTS]
    assert made["next", "done"].flatten().nonzero().flatten().tolist() == [1, 4]


def test_choices_are_one_hot_as_the_task_takes_them(cartpole):
    made = columns.transitions(
        {
            "observations": np.zeros((3, 4), np.float32),
            "actions": np.array([[1], [0], [1]], np.int32),
            "rewards": np.ones((3, 1)),
            "terminals": np.array([0, 0, 1]),
            "timeouts": np.zeros(3),
        }
    )
    made = {name: each.reshape(3) if name == "rewards" else each for name, each in made.items()}
    assert rows.fitting(made, cartpole, "FILE")["action"].tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(UserError, match="FILE: actions has 2, and there are the choices 0 to 1"):
        rows.fitting(made | {"actions": np.array([0, 2, 1])}, cartpole, "FILE")


NAN = np.arange(21.0).reshape(7, 3).copy()
NAN[5, 1] = np.nan
REFUSED = {
    "it has no rewards; its columns are observations, actions, terminals, timeouts": {"rewards": None},
    "it has no terminals": {"terminals": None},
    "it has no timeouts and no next_observations, so that one episode would run": {"timeouts": None},
    "it has no row that ends an episode and no next_observations": {
        "terminals": np.zeros(7),
        "timeouts": np.zeros(7),
    },
    "observations has a NaN or an infinity in row 5": {"observations": NAN},
    "actions has 6 rows and rewards 7": {"actions": np.zeros((6, 1))},
    "terminals should be true or false": {"terminals": np.full(7, 2)},
    "it has no rows": {name: each[:0] for name, each in small().items()},
    "actions holds <U1, and numbers are read": {"actions": np.array(list("abcdefg"))},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_whole_set_is_refused_in_a_line(message, tmp_path):
    with pytest.raises(UserError, match=f"^data.path=FILE: {message}"):
        written(small(**REFUSED[message]), tmp_path)


UNFIT = {
    r"observations has rows of shape \[2\], and the task shows \[3\]": {"observations": np.zeros((7, 2))},
    r"actions has rows of shape \[2\], and the task takes \[1\]": {"actions": np.zeros((7, 2))},
    "actions reach from -2 to 2.5, and the task takes -2 to 2": {
        "actions": np.array([[2.5], *[[-2.0]] * 6]),
    },
    "it has no observations/observation, which the task shows; it has observations/eye": {
        "observations": None,
        "observations/eye": np.zeros((7, 3)),
    },
    "observations has uint8, and the task shows float32": {"observations": np.zeros((7, 3), np.uint8)},
}


@pytest.mark.parametrize("message", UNFIT)
def test_what_does_not_fit_the_task_is_refused_in_a_line(message, pendulum):
    with pytest.raises(UserError, match=f"FILE: {message}"):
        rows.fitting(columns.transitions(small(**UNFIT[message])), pendulum, "FILE")


def test_a_package_that_is_not_there_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "data.h5").touch()
    with pytest.raises(UserError, match=r"^data=h5 needs h5py; pip install 'hydrl\[minari\]'$"):
        columns.read("h5", tmp_path, "data.path=X")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.npz", "there is no such file; give another path"),
        (".", "there is no data.npz in it; give another path"),
        ("text.npz", r"cannot be read as npz: This file contains pickled \(object\) data\.$"),
        ("pickled.npz", "cannot be read as npz"),
        ("one.npy", "cannot be read as npz: it holds one array"),
        ("empty.npz", "cannot be read as npz: No data left in file"),
        ("half.npz", "cannot be read as npz: File is not a zip file"),
        ("spoilt.npz", "cannot be read as npz: Bad CRC-32 for file 'rewards.npy'"),
        ("other.npz", "cannot be read as npz: it is HDF5; use data=h5"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(name, message, tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "pickled.npz", observations=np.array([print], dtype=object))
    (tmp_path / "empty.npz").touch()
    (tmp_path / "other.npz").write_bytes(b"\x89HDF\r\n\x1a\n and more")
    np.savez(tmp_path / "whole.npz", rewards=np.ones(100))
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "spoilt.npz").write_bytes(whole[:400] + b"spoilt" + whole[406:])
    with pytest.raises(UserError, match=f"data.path=X:? {message}"):
        columns.read("npz", tmp_path / name, "data.path=X")
