"""What an earlier run kept in its replay memory, in the place of a collector."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hydrl.errors import UserError
from tests.conftest import saved, settings

SMALL = ["~tuned", "total_frames=512", "collector.frames_per_batch=128", "minibatches.size=32"]
SMALL += ["eval.every_frames=512", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=20"]
REPLAY = [*SMALL, "minibatches.warmup_frames=128", "minibatches.updates=1"]
IQL = ["algo=iql", *SMALL, "env=pendulum"]


@pytest.fixture(scope="module")
def replay_runs(tmp_path_factory):
    """The folder of a short run, made when it is first asked for."""
    from train import train

    folders: dict[str, Path] = {}

    def of(*words: str) -> Path:
        if str(words) not in folders:
            folders[str(words)] = tmp_path_factory.mktemp("replay_runs") / "run"
            train(settings(*words, run_dir=folders[str(words)]))
        return folders[str(words)]

    return of


SAC = ("algo=sac", "env=pendulum", *REPLAY)


@pytest.fixture
def minibatches(monkeypatch):
    """Batches that were learned from."""
    import hydrl.training.metrics

    batches = []
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, losses):
        batches.append(batch.clone())
        learned(self, batch, losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)
    return batches


def test_batches_are_rows_of_the_data_and_no_environment_is_stepped_for_them(
    replay_runs, run, monkeypatch, minibatches
):
    import hydrl.run.logging.run_logger

    data = replay_runs(*SAC)
    minibatches.clear()
    drawn_as = []
    save = hydrl.run.logging.run_logger.save_curves
    monkeypatch.setattr(
        hydrl.run.logging.run_logger, "save_curves", lambda *a, **k: (drawn_as.append(k), save(*a, **k))
    )
    run(*IQL, f"data.path={data}")
    assert [drawn["frames_are"] for drawn in drawn_as] == ["transitions drawn from data"]
    assert [drawn["training"] for drawn in drawn_as] == ["the data's episodes, mean"]
    rows = saved(data, "buffer")
    stored = {tuple(row.tolist()) for row in torch.cat([rows["observation"], rows["action"]], -1)}
    acted = torch.cat([minibatch["action"] for minibatch in minibatches])
    assert rows["action"].abs().max() > 1.9  # of 2, the task's own unit
    assert 0.9 < acted.abs().max() <= 1
    drawn = torch.cat([torch.cat([minibatch["observation"] for minibatch in minibatches]), 2 * acted], -1)
    assert len(minibatches) == 4
    assert drawn.shape == (512, 4)
    assert {tuple(row.tolist()) for row in drawn} <= stored
    assert len(drawn.unique(dim=0)) > 250  # with replacement, of 512


def scaled(target: str, *numbers: str) -> list[str]:
    place = "+transforms.reward_scaling"
    return [f"{place}._target_=torchrl.envs.{target}", *(f"{place}.{number}" for number in numbers)]


def test_rewards_that_were_scaled_are_in_the_tasks_unit_again(replay_runs, run, minibatches):
    data = replay_runs(*SAC, *scaled("RewardScaling", "loc=0.0", "scale=0.1"))
    rows = saved(data, "buffer")["next"]["reward"]
    assert -1.7 < rows.min() < -0.4  # of -16.3 at the least
    minibatches.clear()
    run(*IQL, f"data.path={data}")
    whole = torch.cat([minibatch["next", "reward"] for minibatch in minibatches])
    assert torch.isin((whole * 100).round(), (rows * 1000).round()).float().mean() > 0.99
    minibatches.clear()
    run(*IQL, f"data.path={data}", *scaled("RewardScaling", "loc=0.0", "scale=0.5"), folder="halved")
    halves = torch.cat([minibatch["next", "reward"] for minibatch in minibatches])
    assert torch.allclose(2 * halves, whole, atol=1e-5)  # drawn alike


def test_rewards_that_were_clipped_are_said_to_be(replay_runs, run, capsys, monkeypatch):
    data = replay_runs(*SAC, *scaled("RewardClipping", "clamp_min=-1.0", "clamp_max=1.0"))
    run(*IQL, f"data.path={data}")
    message = f"data.path={data}: rewards include transforms.reward_scaling of that run"
    assert message in capsys.readouterr().err


def test_a_checkpoint_may_be_named_instead_of_a_run(replay_runs, run):
    (archive,) = (replay_runs(*SAC) / "checkpoints").glob("*.torchrl")
    assert (run(*IQL, f"data.path={archive}") / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, "no such folder"),
        (["algo=sac", "env=inverted_pendulum", *REPLAY], "the dataset is of env=inverted_pendulum"),
        (
            ["algo=sac", "env=pendulum", "transforms=running_norm", *REPLAY],
            "its observations are normalized",
        ),
        (
            ["algo=sac", "env=pendulum", "rnn=gru", "minibatches.sequence=16", *REPLAY],
            "it has sequences of 16 steps, as its RNN learned them. Use a run without rnn",
        ),
        (["algo=sac", "env=pendulum", "+env.observe=[0,1]", *REPLAY], "observation is "),
        (["algo=ppo", "env=pendulum", "transforms=plain", *SMALL], "the run has no replay buffer. Record"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit_is_told_in_a_line(words, message, replay_runs, run, tmp_path):
    path = tmp_path / "nothing" if words is None else replay_runs(*words)
    with pytest.raises(UserError, match=f"^data.path={path}: .*{message}"):
        run(*IQL, f"data.path={path}")


MIXED = [
    "algo=sac",
    *REPLAY,
    "env=pendulum",
    "minibatches=mixed",
    "data=replay_buffer",
    "minibatches.share=0.25",
]


def test_a_minibatch_is_of_the_memory_and_of_the_data_in_the_share_asked_for(replay_runs, run, monkeypatch):
    from hydrl.training.update import Update

    minibatches = []
    update = Update.__call__

    def spy(self, minibatch):
        minibatches.append(minibatch.select("observation", "action", ("next", "reward")).clone())
        return update(self, minibatch)

    data = replay_runs(*SAC)
    monkeypatch.setattr(Update, "__call__", spy)
    folder = run(*MIXED, f"data.path={data}", "seed=1", "minibatches.updates=2")

    def rows(which):
        stored = saved(which, "buffer")
        return {
            tuple(row) for row in torch.cat([stored["observation"], stored["next"]["reward"]], -1).tolist()
        }

    offline, own = rows(data), rows(folder)
    assert len(minibatches) == 8
    for minibatch in minibatches:
        drawn = torch.cat([minibatch["observation"], minibatch["next", "reward"]], -1).tolist()
        assert [tuple(row) in own for row in drawn] == [True] * 24 + [False] * 8
        assert [tuple(row) in offline for row in drawn] == [False] * 24 + [True] * 8
        assert minibatch["action"].abs().max() <= 1  # scaled, of both


DOT = [
    "algo=dqn",
    *REPLAY,
    "env=gym",
    "env.id=tests.fakes.pixel_envs:Dot-v0",
    "+env.channels=null",
    "collector.num_envs=4",
]
DOT += ["+env.wrappers.stack._target_=gymnasium.wrappers.FrameStackObservation"]
DOT += ["+env.wrappers.stack.stack_size=2"]
OF_PICTURES = ["minibatches=mixed", "data=replay_buffer", "minibatches.share=0.25", "seed=100"]


def test_pictures_of_data_are_those_that_its_run_was_shown(replay_runs, run, monkeypatch):
    from hydrl.training.update import Update

    minibatches = []
    update = Update.__call__

    def spy(self, minibatch):
        minibatches.append(minibatch.select("pixels", ("next", "pixels")).clone())
        return update(self, minibatch)

    data = replay_runs(*DOT)
    monkeypatch.setattr(Update, "__call__", spy)
    folder = run(*DOT, *OF_PICTURES, f"data.path={data}")

    def shown(which):
        """Pairs of stacks, made by hand of the files of rows and of frames."""
        rows, frames = saved(which, "buffer"), saved(which, "frames")["rows"]["pixels"]
        assert not {"features", "action_value"} & {*rows}  # which losses make anew
        pairs = [frames[images][:, :, 0] for images in (rows["pixels"], rows["next"]["pixels"])]
        assert pairs[0].shape == (512, 2, 12, 12)
        return {row.numpy().tobytes() for row in torch.cat(pairs, 1)}

    offline, own = shown(data), shown(folder)
    assert len(offline - own) > 400
    for minibatch in minibatches:
        drawn = [
            row.numpy().tobytes() for row in torch.cat([minibatch["pixels"], minibatch["next", "pixels"]], 1)
        ]
        assert all(row in own for row in drawn[:24])
        assert all(row in offline for row in drawn[24:])
    assert len(minibatches) == 4


def test_pictures_of_another_size_are_refused(replay_runs, run):
    data = replay_runs(*DOT)
    message = r"pixels is \[2, 12, 12\] torch.uint8. The environment has \[2, 14, 14\] torch.uint8"
    with pytest.raises(UserError, match=f"data.path={data}: {message}"):
        run(*DOT, *OF_PICTURES, "+env.size=14", f"data.path={data}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["~data"],
            "minibatches needs a dataset. Add data=replay_buffer data.path=DIR, or use minibatches=replay",
        ),
        (["minibatches.share=0.01"], "share=0.01: it leaves one source out of minibatches.size=32"),
        (
            ["minibatches.n_steps=3"],
            "n_steps=3: does not go with minibatches=mixed, which mixes single steps",
        ),
        (["minibatches.share=1.0"], "minibatches.share=1.0: should be less than 1"),
        (
            ["buffer=prioritized"],
            "buffer=prioritized: minibatches=mixed samples uniformly. Write buffer=replay",
        ),
        (["data.path=nowhere"], "data.path=nowhere: no such folder"),
    ],
)
def test_what_cannot_be_mixed_is_told_before_anything_is_learned(replay_runs, run, words, message):
    path = [] if "~data" in words or "data.path=nowhere" in words else [f"data.path={replay_runs(*SAC)}"]
    with pytest.raises(UserError, match=message):
        run(*MIXED, *path, *words)


def test_data_that_nothing_reads_is_told(replay_runs):
    with pytest.raises(
        UserError, match=r"data: nothing reads the dataset\. Use minibatches=mixed, or data=null"
    ):
        settings(*SAC, "data=replay_buffer", f"data.path={replay_runs(*SAC)}")
    with pytest.raises(
        UserError,
        match=r"data: nothing reads the dataset\. Use algo=bc, or another algorithm that learns from",
    ):
        settings("algo=ppo", "env=cartpole", "data=replay_buffer", "data.path=x")


def test_a_folder_that_is_no_runs_is_told(run, tmp_path):
    with pytest.raises(UserError, match=f"^data.path={tmp_path}: not a run folder. Give another path"):
        run(*IQL, f"data.path={tmp_path}")


def test_a_run_goes_on_from_data_that_was_moved(replay_runs, run, tmp_path, capsys):
    data, words = replay_runs(*SAC), [*IQL, "anneal_frames=1_024"]
    folder = run(*words, f"data.path={data}")
    shutil.copytree(data, tmp_path / "moved")
    run(*words, f"data.path={tmp_path / 'moved'}", "total_frames=1_024", "resume=auto")
    printed = capsys.readouterr()
    assert "warning" not in printed.err
    assert "data.path" not in printed.out
    assert json.loads((folder / "summary.json").read_text())["frames"] == 1_024


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_on_from_no_other_rows_than_it_began_with_and_a_fork_may(
    replay_runs, run, tmp_path, capsys
):
    data = tmp_path / "data"
    shutil.copytree(replay_runs(*SAC), data)
    words = [*IQL, "anneal_frames=1_024", f"data.path={data}"]
    folder = run(*words)
    began = json.loads((folder / "summary.json").read_text())["data"]
    assert began["checkpoint"] == str(data / "checkpoints" / "checkpoint-000000000512.torchrl")
    assert began["rows"] == 512
    shutil.copytree(folder, tmp_path / "as_it_was")
    shutil.rmtree(data)
    shutil.copytree(replay_runs(*SAC, "seed=1"), data)
    before = files_of(folder)
    message = rf"^data.path={data}: the dataset has changed. .* 512 .* digest {began['digest']}; "
    with pytest.raises(UserError, match=f"{message}now it has 512 rows of .* fork the run.$") as refused:
        run(*words, "total_frames=1_024", "resume=auto")
    assert files_of(folder) == before
    fork = run(*words, "total_frames=1_024", f"resume={tmp_path / 'as_it_was'}", folder="fork")
    learned = json.loads((fork / "summary.json").read_text())["data"]
    assert learned["digest"] != began["digest"]
    assert learned["digest"] in str(refused.value)
    assert f"the fork uses 512 rows of {learned['checkpoint']}" in capsys.readouterr().err


def test_the_same_rows_are_the_same_in_another_form(run, tmp_path):
    """Written over with other compression and in another order of columns, and then with one other reward."""
    rng = np.random.default_rng(0)
    columns = {
        "observations": rng.uniform(-1, 1, (300, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (300, 1)).astype(np.float32),
        "rewards": rng.uniform(-1, 0, 300),
        "terminals": np.zeros(300, bool),
        "timeouts": np.arange(300) % 30 == 29,
    }
    np.savez(tmp_path / "set.npz", **columns)
    words = [*IQL, "anneal_frames=2_048", "data=npz", f"data.path={tmp_path / 'set.npz'}"]
    folder = run(*words)
    np.savez_compressed(tmp_path / "set.npz", **dict(reversed(columns.items())))
    run(*words, "total_frames=1_024", "resume=auto")
    assert json.loads((folder / "summary.json").read_text())["data"]["checkpoint"] is None
    columns["rewards"][123] += 0.5
    np.savez(tmp_path / "set.npz", **columns)
    with pytest.raises(UserError, match=r"the dataset has changed.* Restore the dataset, or add"):
        run(*words, "total_frames=2_048", "resume=auto")


def test_a_checkpoint_from_before_digests_goes_on_and_says_that_it_has_none(
    replay_runs, run, monkeypatch, capsys
):
    import hydrl.run.checkpoint.archive

    save, words = (
        hydrl.run.checkpoint.archive.save,
        [*IQL, "anneal_frames=1_024", f"data.path={replay_runs(*SAC)}"],
    )

    def save_as_before(run, states, metadata, *, keep):
        return save(
            run, states, {name: value for name, value in metadata.items() if name != "data"}, keep=keep
        )

    monkeypatch.setattr(hydrl.run.checkpoint.archive, "save", save_as_before)
    run(*words)
    monkeypatch.undo()
    run(*words, "total_frames=1_024", "resume=auto")
    printed = capsys.readouterr().err
    assert printed.count("does not record the rows of data.path") == 1
