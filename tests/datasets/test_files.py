"""Sets of transitions as arrays: what follows what, and what is refused."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer

from hydrl import envs
from hydrl.datasets import convert, files, summary
from hydrl.errors import UserError
from hydrl.training.metrics import Metrics
from tests.conftest import settings

LEARNERS = [SimpleNamespace(update=SimpleNamespace(learning_rate=0.5))]

# Three episodes: one ends by itself, one at its time limit, one is still running.
REWARDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
TERMINALS = [0, 1, 0, 0, 0, 0, 0]
TIMEOUTS = [0, 0, 0, 0, 1, 0, 0]


def small(**changes) -> files.Columns:
    columns = {
        "observations": np.arange(21, dtype=np.float64).reshape(7, 3),
        "actions": np.linspace(-2, 2, 7, dtype=np.float32).reshape(7, 1),
        "rewards": np.array(REWARDS),
        "terminals": np.array(TERMINALS, bool),
        "timeouts": np.array(TIMEOUTS, np.uint8),
    }
    return {name: values for name, values in {**columns, **changes}.items() if values is not None}


@pytest.fixture(scope="module")
def pendulum():
    chosen = settings("algo=sac", "env=pendulum", "~tuned")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    yield env
    env.close()


@pytest.fixture(scope="module")
def cartpole():
    chosen = settings("algo=dqn", "env=cartpole", "~tuned")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    yield env
    env.close()


def written(columns: files.Columns, tmp_path, kind: str = "npz"):
    if kind == "h5":
        pytest.importorskip("h5py")
    files.write_columns(kind, tmp_path / f"data.{kind}", columns)
    return files.read_columns(kind, tmp_path / f"data.{kind}", "data.path=FILE")


@pytest.mark.parametrize("kind", ["npz", "h5"])
def test_a_row_is_followed_by_the_next_of_its_episode_and_by_no_other(kind, tmp_path, pendulum):
    rows = convert.to_env_rows(files.transitions(written(small(), tmp_path, kind)), pendulum, "FILE")
    # Row 4 runs into its time limit and row 6 is the last: what came after them nobody knows.
    assert rows["observation"][:, 0].tolist() == [0, 3, 6, 9, 15]
    # Row 1 ended by itself, and nothing is bootstrapped from it: what stands there is not the next episode's.
    assert rows["next", "observation"][:, 0].tolist() == [3, 3, 9, 12, 18]
    assert rows["next", "reward"].flatten().tolist() == [1, 2, 4, 8, 32]
    assert rows["next", "terminated"].flatten().tolist() == [False, True, False, False, False]
    assert not rows["next", "truncated"].any()
    assert rows["next", "episode_reward"].flatten().tolist() == [1, 3, 4, 12, 32]
    assert rows["episode_reward"].flatten().tolist() == [0, 1, 0, 4, 0]
    assert rows["next", "step_count"].flatten().tolist() == [1, 2, 1, 2, 1]
    assert rows["observation"].dtype == torch.float32


def test_where_it_is_known_what_followed_all_rows_stay_and_a_limit_is_no_end_of_the_tasks_own(pendulum):
    after = np.arange(100, 121, dtype=np.float32).reshape(7, 3)
    rows = convert.to_env_rows(files.transitions(small(next_observations=after)), pendulum, "FILE")
    assert torch.equal(rows["next", "observation"], torch.as_tensor(after))
    assert rows["next", "terminated"].flatten().tolist() == [bool(flag) for flag in TERMINALS]
    assert rows["next", "truncated"].flatten().tolist() == [bool(flag) for flag in TIMEOUTS]
    assert rows["next", "done"].flatten().nonzero().flatten().tolist() == [1, 4]


AFTER = np.arange(100, 121, dtype=np.float32).reshape(7, 3)


@pytest.mark.parametrize("kind", ["npz", "h5"])
@pytest.mark.parametrize("after", [None, AFTER])
@pytest.mark.parametrize("both", [0, 1])
def test_episodes_are_counted_whole_whatever_is_known_of_what_followed(kind, after, both, tmp_path):
    limits = np.array([0, both, 0, 0, 1, 0, 0])  # a row may end by itself as its time limit comes
    written(small(next_observations=after, timeouts=limits), tmp_path, kind)
    opened = summary.open_dataset(tmp_path / f"data.{kind}", "FILE")
    assert opened[0] == kind
    assert opened[2].tolist() == [1 + 2, 4 + 8 + 16]  # the last two rows are of one that has no end
    assert opened[3].tolist() == [2, 3]
    columns, returns = opened[1:3]
    assert summary.describe_ends(columns, len(returns)) == "2 complete: 1 terminated, 1 truncated"
    assert summary.describe_open_end(columns) == "; the last 2 rows have no end"
    assert summary.describe_open_end({**columns, "terminals": np.eye(7)[6]}) == ""


@pytest.mark.parametrize("after", [None, AFTER])
def test_rows_know_what_their_whole_episode_returns(after, pendulum):
    columns = files.transitions(small(next_observations=after))
    rows = convert.to_env_rows(columns, pendulum, "FILE")
    to_go = {0: 3, 1: 2, 2: 28, 3: 24, 4: 16}  # the time limit's own reward, 16, among them
    known = [0, 1, 2, 3] + ([4] if after is not None else [])
    ended = rows["return_to_go"].isfinite().flatten()
    assert rows["return_to_go"][ended].flatten().tolist() == [to_go[row] for row in known]
    data = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    data.extend(rows)
    metrics = Metrics(LEARNERS, None, data=data)
    metrics.learned(rows[:1], [])
    wanted = {"train/return": 15.5, "train/episodes": 2, "train/episode_length": 2.5, "train/reward": 1.0}
    assert metrics.row() == wanted | {"train/learning_rate": 0.5}


def test_what_a_task_does_not_show_is_said_to_be_left_out(pendulum, capsys, monkeypatch):
    observations = {"observations": None, "observations/observation": np.zeros((7, 3))}
    columns = files.transitions(small(**observations, **{"observations/action_mask": np.ones((7, 5), bool)}))
    assert convert.to_env_rows(columns, pendulum, "FILE").get("action_mask", None) is None
    message = "warning: FILE: column observations/action_mask is ignored: the environment has no such "
    assert capsys.readouterr().err == f"{message}observation\n"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([15.0, 411.0], "15 to 411"),
        ([9.5, 500.0], "9.5 to 500.0"),
        ([-0.0, 0.153], "0 to 0.153"),
        ([-1508.2, -972.14], "-1,508.2 to -972.1"),
        ([1e38, 2e38], "1e+38 to 2e+38"),
    ],
)
def test_both_ends_of_a_range_have_one_form(values, text):
    assert summary.describe_range(np.array(values)) == text


def test_only_what_minari_could_call_a_set_is_fetched(tmp_path):
    assert files.is_minari_id(Path("pendulum/expert-v0"))
    assert not files.is_minari_id(Path("outputs/run"))
    assert not files.is_minari_id(tmp_path / "expert-v0")
    for name in ("outputs/run", "set.npz", str(tmp_path / "set-v0")):
        with pytest.raises(UserError, match=f"^{name}: no such file or folder"):
            summary.open_dataset(Path(name), name)


def test_choices_are_one_hot_as_the_task_takes_them(cartpole):
    columns = files.transitions(
        {
            "observations": np.zeros((3, 4), np.float32),
            "actions": np.array([[1], [0], [1]], np.int32),
            "rewards": np.ones((3, 1)),
            "terminals": np.array([0, 0, 1]),
            "timeouts": np.zeros(3),
        }
    )
    columns = {name: values.reshape(3) if name == "rewards" else values for name, values in columns.items()}
    assert convert.to_env_rows(columns, cartpole, "FILE")["action"].tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(UserError, match=r"FILE: actions has the value 2\. The environment has 0 to 1"):
        convert.to_env_rows(columns | {"actions": np.array([0, 2, 1])}, cartpole, "FILE")


NAN = np.arange(21.0).reshape(7, 3).copy()
NAN[5, 1] = np.nan
REFUSED = {
    "no column rewards. Its columns: observations, .*, reward\\.$": {"rewards": None, "reward": np.ones(7)},
    "no column rewards. Its columns: observations, actions, terminals, timeouts": {"rewards": None},
    "no column terminals": {"terminals": None},
    "no timeouts and no next_observations: one episode would run": {"timeouts": None},
    "no row that ends an episode and no next_observations": {
        "terminals": np.zeros(7),
        "timeouts": np.zeros(7),
    },
    "observations has a NaN or an infinity in row 5": {"observations": NAN},
    "actions has 6 rows, rewards has 7": {"actions": np.zeros((6, 1))},
    "terminals is not boolean": {"terminals": np.full(7, 2)},
    "the dataset has no rows": {name: values[:0] for name, values in small().items()},
    "actions has dtype <U1, not numbers": {"actions": np.array(list("abcdefg"))},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_whole_set_is_refused_in_a_line(message, tmp_path):
    with pytest.raises(UserError, match=f"^data.path=FILE: {message}"):
        written(small(**REFUSED[message]), tmp_path)


UNFIT = {
    r"observations has rows of shape \[2\]\. The environment has \[3\]": {"observations": np.zeros((7, 2))},
    r"actions has rows of shape \[2\]\. The environment has \[1\]": {"actions": np.zeros((7, 2))},
    "actions range from -2 to 2.5. The environment's bounds are -2 to 2": {
        "actions": np.array([[2.5], *[[-2.0]] * 6]),
    },
    "no column observations/observation, as the environment has. Its columns: observations/eye": {
        "observations": None,
        "observations/eye": np.zeros((7, 3)),
    },
    "observations has dtype uint8. The environment has float32": {"observations": np.zeros((7, 3), np.uint8)},
}


@pytest.mark.parametrize("message", UNFIT)
def test_what_does_not_fit_the_task_is_refused_in_a_line(message, pendulum):
    with pytest.raises(UserError, match=f"FILE: {message}"):
        convert.to_env_rows(files.transitions(small(**UNFIT[message])), pendulum, "FILE")


def test_a_package_that_is_not_there_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "data.h5").touch()
    with pytest.raises(UserError, match=r"^data=h5: needs h5py\. Run pip install 'hydrl\[minari\]'\.$"):
        files.read_columns("h5", tmp_path, "data.path=X")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.npz", "no such file. Give another path"),
        (".", "no data.npz in this folder. Give another path"),
        ("text.npz", "cannot be read as npz: not a NumPy archive.$"),
        ("pickled.npz", "cannot be read as npz"),
        ("one.npy", "cannot be read as npz: one array without a name"),
        ("empty.npz", "cannot be read as npz: No data left in file"),
        ("half.npz", "cannot be read as npz: File is not a zip file"),
        ("spoilt.npz", "cannot be read as npz: rewards is not an array: Bad CRC-32 for file 'rewards.npy'"),
        ("other.npz", "cannot be read as npz: it is HDF5. Use data=h5"),
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
        files.read_columns("npz", tmp_path / name, "data.path=X")
