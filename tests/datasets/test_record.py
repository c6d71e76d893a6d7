"""Episodes that a finished run plays, as data, and what is shown of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.datasets import files, record, summary
from hydrl.errors import SaveError, UserError
from hydrl.run.checkpoint import archive
from hydrl.training.metrics import episodes_of
from tests.conftest import logged, saved, settings, typed

SMALL = ["~tuned", "total_frames=256", "collector.frames_per_batch=128", "minibatches.size=32"]
SMALL += ["eval.every_frames=512", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=20"]
# Its observations are standardised, its rewards scaled, its actions in [-1, 1] for a task that takes 2.
NORMALISED = ["algo=sac", "env=pendulum", "transforms=normalized", "init_stats_frames=200", "seed=3"]
NORMALISED += ["+transforms.reward_scaling._target_=torchrl.envs.RewardScaling"]
NORMALISED += ["+transforms.reward_scaling.loc=0.0", "+transforms.reward_scaling.scale=0.01"]
NORMALISED += ["minibatches.warmup_frames=128", "minibatches.updates=1", "+env.max_episode_steps=30"]


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    """The folder of a short run whose policy sees and does all in units of its own."""
    from train import train

    folder = tmp_path_factory.mktemp("played") / "run"
    train(settings(*NORMALISED, *SMALL, run_dir=folder))
    return folder


@pytest.fixture(scope="module")
def recorded(normalised, tmp_path_factory):
    """A folder with its episodes, and what was said."""
    out = tmp_path_factory.mktemp("recorded") / "set"
    done = typed(f"run={normalised}", f"out={out}", "frames=500", script="scripts/record.py")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_what_is_kept_is_in_the_tasks_own_units_and_in_whole_episodes(recorded, normalised):
    out, printed = recorded
    columns = files.read_columns("npz", out, "out")
    cosine, sine, speed = columns["observations"].T
    assert np.allclose(cosine**2 + sine**2, 1, atol=1e-5)
    # Pendulum's own equations, action and reward as Gymnasium has them: nothing was scaled.
    angle, torque = np.arctan2(sine, cosine), columns["actions"][:, 0]
    assert np.allclose(columns["rewards"], -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=1e-4)
    turned = np.clip(speed + (15 * sine + 3 * torque) * 0.05, -8, 8)
    assert np.allclose(columns["next_observations"][:, 2], turned, atol=1e-4)
    assert abs(torque).max() > 1e-3
    # Whole episodes of 30, of 500 frames together.
    assert len(torque) == 17 * 30
    assert not columns["terminals"].any()
    assert np.flatnonzero(columns["timeouts"]).tolist() == [*range(29, 510, 30)]
    same = ~columns["timeouts"][:-1]
    assert np.array_equal(columns["next_observations"][:-1][same], columns["observations"][1:][same])
    about = json.loads((out / "about.json").read_text())
    assert (about["task"], about["rows"], about["episodes"]) == ("pendulum", 510, 17)
    assert about["return_mean"] == pytest.approx(columns["rewards"].sum() / 17, rel=1e-5)
    bounds = {"low": [-1.0, -1.0, -8.0], "high": [1.0, 1.0, 8.0]}
    assert about["specs"]["observations/observation"] == {"shape": [3], "dtype": "float32", **bounds}
    assert about["specs"]["actions"] == {"shape": [1], "dtype": "float32", "low": [-2.0], "high": [2.0]}
    assert about["made_by"]["frames"] == archive.frames_of(archive.find(normalised, "last"))
    assert f"510 frames of 17 episodes, return {about['return_mean']:,.1f}" in printed


def test_the_policy_of_the_run_acts_and_what_is_sampled_differs(recorded, normalised, tmp_path):
    import hydrl

    columns = files.read_columns("npz", recorded[0], "out")
    policy = hydrl.load(normalised)
    actions = policy.predict(columns["observations"][:20])
    assert np.allclose(columns["actions"][:20], actions, atol=1e-5)
    sampled = tmp_path / "sampled"
    words = [f"run={normalised}", f"out={sampled}", "frames=30", "sampled=true"]
    assert typed(*words, script="scripts/record.py").returncode == 0
    drawn = files.read_columns("npz", sampled, "out")
    assert abs(drawn["actions"] - policy.predict(drawn["observations"])).max() > 0.05


def test_a_policy_without_a_distribution_is_not_sampled():
    chosen = settings("algo=td3", "env=pendulum")
    evaluator = SimpleNamespace(actor=torch.nn.Linear(3, 1))
    with pytest.raises(UserError, match=r"^sampled=true: the policy of algo=td3 has no distribution"):
        record.record_episodes(chosen, evaluator, 0, frames=10, sampled=True, stream=2)


def test_a_share_is_played_at_random_in_episodes_after_the_policys(recorded, normalised, tmp_path):
    words = [f"run={normalised}", f"out={tmp_path / 'set'}", "frames=1_440", "random=0.5"]
    done = typed(*words, script="scripts/record.py")
    assert done.returncode == 0, done.stderr
    mixed, alone = (files.read_columns("npz", folder, "out") for folder in (tmp_path / "set", recorded[0]))
    assert all(np.array_equal(mixed[name][:510], alone[name]) for name in alone)  # 720 frames of its policy's
    torque, starts = mixed["actions"][720:, 0], mixed["observations"][720::30]
    assert np.flatnonzero(mixed["timeouts"][720:]).tolist() == [*range(29, 720, 30)]
    # Evenly from -2 to 2, in the task's unit: a mean of 0 and a deviation of 4 / sqrt(12), within 4 errors.
    assert abs(torque.mean()) < 4 * 1.155 / 720**0.5
    assert torque.std() == pytest.approx(1.155, abs=0.09)
    assert abs(np.corrcoef(torque[:-1], torque[1:])[0, 1]) < 0.15
    assert not np.isclose(starts[:, 2], mixed["observations"][:720:30, 2]).any()
    about = json.loads((tmp_path / "set" / "about.json").read_text())
    assert (about["rows"], about["episodes"], about["made_by"]["random"]) == (1_440, 48, 0.5)


def test_what_was_recorded_is_learned_from_and_standardised_by_its_own_statistics(recorded, run, monkeypatch):
    import hydrl.training.metrics

    minibatches = []
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, losses):
        minibatches.append(batch.clone())
        learned(self, batch, losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)
    words = ["algo=bc", "env=pendulum", *SMALL, "data=npz", f"data.path={recorded[0]}"]
    words += ["transforms=normalized", "+transforms.reward_scaling._target_=torchrl.envs.RewardScaling"]
    words += ["+transforms.reward_scaling.loc=0.0", "+transforms.reward_scaling.scale=0.5"]
    folder = run(*words, "collector.frames_per_batch=10_000", "total_frames=10_000")
    columns = files.read_columns("npz", recorded[0], "out")
    mean, deviation = columns["observations"].mean(0), columns["observations"].std(0, ddof=1)
    statistics = saved(folder, "normaliser")["0"]
    assert np.allclose(-statistics["loc"] / statistics["scale"], mean, atol=1e-4)
    assert np.allclose(1 / statistics["scale"], deviation, rtol=1e-4)
    (batch,) = minibatches
    returned = columns["rewards"].reshape(17, 30).sum(1).mean()  # by its episodes, whichever rows were drawn
    (row,) = logged(folder)
    assert float(row["train/return"]) == pytest.approx(returned, rel=1e-5)
    assert (float(row["train/episodes"]), float(row["train/episode_length"])) == (17, 30)
    raw = batch["observation"].numpy() * deviation + mean
    after = batch["next", "observation"].numpy() * deviation + mean
    place = [int(np.abs(columns["observations"] - row).sum(1).argmin()) for row in raw[:50]]
    assert np.allclose(after[:50], columns["next_observations"][place], atol=1e-3)
    assert np.allclose(batch["next", "reward"][:50, 0], 0.5 * columns["rewards"][place], atol=1e-4)
    assert np.allclose(2 * batch["action"][:50], columns["actions"][place], atol=1e-4)

    import hydrl

    policy = hydrl.load(folder)  # with those statistics
    shown = torch.as_tensor((columns["observations"][:5] - mean) / deviation, dtype=torch.float32)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        acted = policy.actor(TensorDict(observation=shown, batch_size=[5]))["action"]
    assert np.allclose(policy.predict(columns["observations"][:5]), 2 * acted, atol=1e-4)


def test_an_episode_that_never_ends_is_cut_as_by_a_time_limit(normalised, tmp_path, monkeypatch):
    import hydrl.datasets.record

    monkeypatch.setattr(hydrl.datasets.record, "episode_limit", lambda env: 7)
    words = [f"run={normalised}", f"out={tmp_path / 'set'}", "frames=50"]
    assert typed(*words, script="scripts/record.py").returncode == 0
    columns = files.read_columns("npz", tmp_path / "set", "out")
    assert np.flatnonzero(columns["timeouts"]).tolist() == [*range(6, 56, 7)]
    assert not columns["terminals"].any()


def test_what_cannot_be_recorded_is_told_in_a_line(normalised, recorded, tmp_path):
    out = recorded[0]
    for words, message in {
        (f"run={normalised}", f"out={out}"): f"out={out}: already exists. Use another folder.",
        (f"run={normalised}", "out=new", "frames=0"): "frames=0: out of range. Use 1 or more.",
        (f"run={normalised}", "out=new", "random=1.5"): "random=1.5: out of range. Use a share from 0 to 1.",
        (f"run={normalised}", "out=new", "format=csv"): "format=csv: unknown. Use npz, h5 or minari.",
        (f"run={normalised}", "out=new", "format=minari"): "out=new: not a name of a Minari",
        (f"run={normalised}", "out=a/b-v0", "format=minari"): "out=a/b-v0: not a name of a Minari",
        (
            f"run={normalised}",
            "out=ab/c-v01",
            "format=minari",
        ): "out=ab/c-v01: not a name of a Minari",
        (f"run={tmp_path}", "out=new"): f"run={tmp_path}: not a run",
    }.items():
        done = typed(*words, script="scripts/record.py")
        assert done.returncode == 2
        assert message in done.stderr


def test_a_set_is_shown_as_a_table_and_a_picture(recorded, normalised, tmp_path):
    out, _ = recorded
    done = typed(str(out), f"picture={tmp_path / 'returns.png'}", script="scripts/data.py")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "returns.png").read_bytes()[:4] == b"\x89PNG"
    assert not (out / "returns.png").exists()
    assert "17 complete: 0 terminated, 17 truncated" in done.stdout
    mean = json.loads((out / "about.json").read_text())["return_mean"]
    assert f"{mean:,.1f} ±" in done.stdout
    memory = typed(str(normalised), "picture=false", script="scripts/data.py")
    assert memory.returncode == 0, memory.stderr
    rows = saved(normalised, "buffer")
    assert f"{len(rows['action']):,}" in memory.stdout
    assert f"{int(rows['next']['done'].sum())} complete: 0 terminated" in memory.stdout
    assert "observations are normalized" in memory.stdout
    nothing = typed(str(tmp_path), script="scripts/data.py")
    assert nothing.returncode == 2
    assert "no offline dataset and no run in this folder" in nothing.stderr


def test_data_of_another_task_and_of_other_transforms_is_refused(recorded, run):
    path = f"data.path={recorded[0]}"
    with pytest.raises(UserError, match="the dataset is of env=pendulum, the run of env=inverted_pendulum"):
        run("algo=bc", "env=inverted_pendulum", *SMALL, "data=npz", path)
    with pytest.raises(UserError, match="running statistics are not updated by a dataset"):
        run("algo=bc", "env=pendulum", *SMALL, "data=npz", path, "transforms=running_norm")
    clip = ["+transforms.clip._target_=torchrl.envs.ClipTransform", "+transforms.clip.in_keys=[observation]"]
    with pytest.raises(UserError, match="ClipTransform cannot be applied to a dataset"):
        run("algo=bc", "env=pendulum", *SMALL, "data=npz", path, *clip, "+transforms.clip.low=-1")
    with pytest.raises(UserError, match=r"not a run folder\. Use data=npz"):
        run("algo=bc", "env=pendulum", *SMALL, path)


def test_a_set_of_minaris_is_written_that_its_own_reader_and_a_run_read(
    normalised, run, monkeypatch, tmp_path
):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    words = [f"run={normalised}", "out=pendulum/played-v0", "frames=100", "format=minari"]
    done = typed(*words, script="scripts/record.py")
    assert done.returncode == 0, done.stderr
    assert "120 frames of 4 episodes" in done.stdout
    theirs = minari.load_dataset("pendulum/played-v0")
    assert (theirs.total_episodes, theirs.total_steps) == (4, 120)
    assert theirs.spec.env_spec.id == "Pendulum-v1"
    episode = next(theirs.iterate_episodes())
    assert episode.observations.shape == (31, 3)
    assert episode.truncations.tolist() == [False] * 29 + [True]
    assert not episode.terminations.any()
    columns = files.read_columns("minari", Path("pendulum/played-v0"), "told")
    assert np.array_equal(columns["observations"][:30], episode.observations[:-1])
    assert np.array_equal(columns["next_observations"][:30], episode.observations[1:])
    angle = np.arctan2(columns["observations"][:, 1], columns["observations"][:, 0])
    torque, speed = columns["actions"][:, 0], columns["observations"][:, 2]
    assert np.allclose(columns["rewards"], -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=1e-4)
    by_folder = files.read_columns("minari", tmp_path / "pendulum" / "played-v0", "told")
    assert np.array_equal(by_folder["rewards"], columns["rewards"])
    assert "pendulum/played-v0: Minari has this dataset" in typed(*words, script="scripts/record.py").stderr
    folder = run("algo=bc", "env=pendulum", *SMALL, "data=minari", "data.path=pendulum/played-v0")
    assert (folder / "summary.json").exists()
    with pytest.raises(
        UserError, match=r"data.path=nosuch-v0: no such Minari dataset on this machine\. Run minari"
    ):
        run("algo=bc", "env=pendulum", *SMALL, "data=minari", "data.path=nosuch-v0", folder="no")


def test_of_a_memory_each_episode_counts_once_however_many_steps_a_row_has():
    """Two environments' episodes, of two steps a row: the last but one row sees the end, too."""
    ends = torch.tensor([0, 1, 1, 0, 0, 1], dtype=torch.bool)[:, None]
    after = {"reward": torch.ones(6, 1), "done": ends, "terminated": ends & (torch.arange(6) < 3)[:, None]}
    after["episode_reward"] = torch.tensor([2.0, 3.0, 3.0, 2.0, 3.0, 7.0])[:, None]
    rows = TensorDict({"next": after, "episode": torch.tensor([4, 4, 4, 5, 7, 6])}, [6])
    rows["episode_reward"], rows["action"] = torch.zeros(6, 1), torch.eye(3, dtype=torch.int64)[[0, 1, 2] * 2]
    columns = summary.buffer_columns(rows)
    assert columns["actions"].tolist() == [0, 1, 2] * 2
    assert summary.describe_ends(columns, 2) == "2 complete: 1 terminated, 1 truncated"
    assert sorted(episodes_of(rows)["episode_reward"].flatten().tolist()) == [3.0, 7.0]
    rows["next", "cut_short"] = (torch.arange(6) == 5)[:, None]  # which is no whole episode
    assert summary.describe_ends(summary.buffer_columns(rows), 1) == "1 complete: 1 terminated, 0 truncated"
    assert episodes_of(rows)["episode_reward"].flatten().tolist() == [3.0]


def test_units_say_what_a_run_made_of_its_rows():
    plain = {"transforms": {"double": {"_target_": "torchrl.envs.DoubleToFloat"}}}
    assert summary.describe_units(plain, [], n_step=False, discrete=False) == "the environment's own"
    units = summary.describe_units(plain, ["clipping"], n_step=True, discrete=False)
    assert (
        units == "rewards are the discounted sum of minibatches.n_steps, rewards include transforms.clipping"
    )


def test_where_no_folder_can_be_made_nothing_is_played(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^out={tmp_path}/file/x: cannot be created: Not a dir"):
        record.check_does_not_exist(tmp_path / "file" / "x")
    record.check_does_not_exist(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_set_that_cannot_be_written_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_columns", full)
    with pytest.raises(SaveError, match="No space left on device"):
        record.save_dataset("npz", tmp_path / "out", {}, {})
    assert not (tmp_path / "out").exists()
