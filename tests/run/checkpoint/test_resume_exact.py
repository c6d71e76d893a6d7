"""A resumed run is the run that never stopped, to the last bit, whatever it was stopped by."""

import io
import json
import shutil
import signal
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import hydrl.envs
import hydrl.run.checkpoint.checkpointer
import hydrl.run.checkpoint.env_state.verify
import hydrl.run.logging.run_logger
from hydrl.errors import Interrupted
from hydrl.run.checkpoint import archive
from hydrl.training import evaluator
from tests.conftest import SMALL, SMALL_PPO, digest, killed, logged, saved, settings, start, typed

DQN = ["algo=dqn", "env=cartpole", "collector.num_envs=4", "minibatches.warmup_frames=64"]
DQN += ["minibatches.updates=8"]
PPO = ["algo=ppo", "critic.num_cells=[16,16]", "minibatches.epochs=2"]
DOT = [
    "algo=dqn",
    "env=gym",
    "env.id=tests.fakes.pixel_envs:Dot-v0",
    "+env.channels=null",
    "collector.num_envs=4",
]
DOT += ["+env.wrappers.stack._target_=gymnasium.wrappers.FrameStackObservation"]
DOT += ["+env.wrappers.stack.stack_size=4", "minibatches.warmup_frames=64", "minibatches.updates=4"]
SCENE = [
    "env=gym",
    "env.id=tests.fakes.pixel_envs:Scene-v0",
    "+env.size=12",
    "encoder.features=8",
]  # episodes of 5 steps
# Beside these: sequences and plain steps, in tests/test_algorithms.py; on disk and full, with pictures here.
SLOW = ["DQN, pictures in dictionaries", "DQN, memmap", "R2D2", "PPO, episodes cut short at random"]
SLOW += ["DQN, a game of Atari's"]  # its emulator alone: tests/run/checkpoint/env_state/test_capture.py
SLOW += ["PPO, a robot of Brax's", "PPO, a game of Jumanji's"]  # fast: a functional simulator
EXACT = {
    "PPO, fixed normaliser": [
        *PPO, "env=inverted_double_pendulum", "collector.num_envs=4", "init_stats_frames=200",
        "transforms=normalized",
    ],
    "PPO, running statistics of observations and rewards": [*PPO, "env=inverted_double_pendulum"],
    "PPO, episodes cut short at random": [
        *PPO, "env=gym", "env.id=MountainCarContinuous-v0", "+env.max_episode_steps=20",
    ],
    "PPO, Ant": [*PPO, "env=gym", "env.id=Ant-v5", "collector.num_envs=2"],
    "PPO, one environment, drawn by minibatch": [
        *PPO, "env=inverted_double_pendulum", "collector.num_envs=1", "minibatches.draw=minibatch",
        "collector.frames_per_batch=50", "total_frames=200", "eval.every_frames=100",
        "checkpoint_every_frames=100", "schedule=linear",
    ],
    "DQN, memmap": [*DQN, "buffer=memmap", "buffer.storage.max_size=500"],
    "DQN, a full memory": [*DQN, "buffer.storage.max_size=80"],
    "DQN, goals relabelled, a full memory": [
        *DQN, "env=bit_flip", "env.bits=6", "buffer=hindsight", "buffer.storage.max_size=80",
    ],
    "DQN, pictures on disk, a full memory, several steps": [
        *DOT, "buffer=memmap", "buffer.storage.max_size=80", "minibatches.n_steps=3",
    ],
    "DQN, pictures by priorities": [
        *DOT, "buffer=prioritized", "buffer.storage.max_size=500", "minibatches.draw=minibatch",
    ],
    "R2D2": [
        "algo=r2d2", "env=cartpole_masked", "collector.num_envs=4", "minibatches.sequence=6",
        "minibatches.burn_in=2", "minibatches.warmup_frames=64", "minibatches.updates=2",
        "buffer.storage.max_size=90",
    ],
    "SAC, a memory, pictures": [
        "algo=sac", "rnn=gru", "env=gym", "env.id=tests.fakes.pixel_envs:Aim-v0", "encoder.features=8",
        "collector.num_envs=2", "critic.num_cells=[16,16]", "minibatches.sequence=6", "minibatches.burn_in=2",
        "minibatches.warmup_frames=64", "minibatches.updates=2", "collector.init_random_frames=64",
    ],
    "SAC, pictures read once": [
        "algo=sac", "env=gym", "env.id=tests.fakes.pixel_envs:Aim-v0", "encoder.features=8",
        "critic.encoder=shared", "collector.num_envs=2", "critic.num_cells=[16,16]",
        "minibatches.warmup_frames=64",
        "minibatches.updates=2", "collector.init_random_frames=64",
    ],
    "several agents": [
        "algo=mappo", "critic.num_cells=[16,16]", "minibatches.epochs=2",
        "env=custom", "env._target_=tests.fakes.envs.CountingTeam", "collector.num_envs=4",
    ],
    "QMIX": [
        "algo=qmix", "mixer.mixing_embed_dim=4", "env=custom", "env._target_=tests.fakes.envs.CountingTeam",
        "+env.actions=integer",
        "collector.num_envs=4", "minibatches.warmup_frames=64", "minibatches.updates=2",
    ],
    "MASAC": [
        "algo=masac", "critic.num_cells=[16,16]", "env=custom", "env._target_=tests.fakes.envs.CountingTeam",
        "collector.num_envs=4", "collector.init_random_frames=64", "minibatches.warmup_frames=64",
        "minibatches.updates=2",
    ],
    "MAPPO, groups of agents of PettingZoo's": [
        "algo=mappo", "critic.num_cells=[16,16]", "minibatches.epochs=2",
        "env=pettingzoo", "env.id=mpe2/simple_tag_v3", "collector.num_envs=4",
    ],
    "PPO, against its earlier policies": [
        *PPO, "env=self_play", "env.id=classic/tictactoe_v3", "env.opponents.every_frames=64",
        "collector.num_envs=4",
    ],
    "PPO, a game of OpenSpiel's": [
        *PPO, "env=open_spiel", "env.id=leduc_poker", "env.opponents.every_frames=64",
        "collector.num_envs=4",
    ],
    "PPO, a game of MinAtar's": [
        *PPO, "env=minatar", "env.id=MinAtar/Breakout-v1", "collector.num_envs=4",
    ],
    "PPO, a grid and a mission in words": [
        *PPO, "env=minigrid", "env.id=BabyAI-GoToLocal-v0", "env.mission=words", "env.max_steps=20",
        "collector.num_envs=4",
    ],
    "DQN, a game of Atari's": [
        "algo=dqn", "env=atari", "env.id=ALE/Breakout-v5", "env.sticky=0.25", "collector.num_envs=2",
        "minibatches.warmup_frames=32", "minibatches.updates=1", "minibatches.size=8", "total_frames=128",
        "collector.frames_per_batch=32", "eval.every_frames=64", "checkpoint_every_frames=64",
        "log_every_frames=32",
    ],
    "PPO, a camera and what stands beside it": [*PPO, *SCENE, "collector.num_envs=2"],
    "DQN, pictures in dictionaries": [*DQN, *SCENE, "minibatches.updates=2"],
    "PPO, several choices in a dictionary": [
        *PPO, "env=gym", "env.id=tests.fakes.multi_discrete:Shown-v0",
        "+env.space=nested", "collector.num_envs=2",
    ],
    "PPO, a functional simulator": [
        *PPO, "env=custom", "env._target_=tests.fakes.functional_simulator.make_pushed",
        "collector.num_envs=4",
    ],
    "PPO, a robot of Brax's": [
        *PPO, "env=brax", "env.id=inverted_pendulum", "env.backend=spring", "env.max_episode_steps=20",
        "collector.num_envs=4",
    ],
    "PPO, a game of Jumanji's": [
        *PPO, "env=jumanji", "env.id=Snake-v1", "+env.time_limit=12", "collector.num_envs=4",
    ],
    "own environment": [
        *PPO, "env=custom", "env._target_=tests.fakes.envs.CountingEnv", "collector.num_envs=2",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in EXACT]
)
def test_going_on_equals_never_having_stopped(name, run, batches, tmp_path):
    """Parameters, targets, optimizer, buffer, generators, data after the stop, and the log."""
    zoo = (("env=pettingzoo", "mpe2"), ("env=self_play", "pettingzoo"))
    zoo += (("env=minigrid", "minigrid"), ("env=open_spiel", "pyspiel"))
    zoo += (("env=brax", "brax"), ("env=jumanji", "jumanji"))
    for family, package in (("env=minatar", "minatar"), ("env=atari", "ale_py"), *zoo):
        if family in EXACT[name]:
            pytest.importorskip(package)
    if "functional" in name:
        pytest.importorskip("jax")
    overrides = [*SMALL, "eval.max_steps=8", *EXACT[name]]
    whole = run(*overrides, folder="whole")
    unbroken = batches.copy()
    batches.clear()
    stop = killed(whole, tmp_path / "halves")
    assert 2 * stop == settings(*overrides).total_frames
    torch.rand(7)  # nothing of this process may help
    halves = run(*overrides, "resume=auto", folder="halves")

    assert len(unbroken) == 4
    assert batches == unbroken[2:]
    parts = ["actor", "loss", "optimizer", "buffer", "normaliser", "rng", "collector"]
    parts += ["exploration", "target"] if "algo=dqn" in overrides else []
    parts += ["frames"] if "pictures" in name else []
    for part in parts:
        assert digest(saved(halves, part)) == digest(saved(whole, part)), part
    assert logged(halves) == logged(whole)
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (halves, whole))
    for key in ("frames", "updates", "eval/return_mean", "eval/return_std", "best_eval/return_mean"):
        assert ours[key] == theirs[key], key
    assert ours["resumed_at_frames"] == [stop]


def test_self_play_goes_on_exactly_from_any_checkpoint(run, batches, capsys, tmp_path):
    """Its opponents are none and then one; the trial of the first checkpoint had none."""
    pytest.importorskip("pettingzoo")
    overrides = [*SMALL, *EXACT["PPO, against its earlier policies"], "checkpoint_every_frames=64"]
    overrides += ["env.opponents.every_frames=128", "env.opponents.pool_size=1", "keep_checkpoints=9"]
    whole, unbroken = run(*overrides, folder="whole"), batches.copy()
    assert len(set(unbroken)) == 4
    for trained, stop in ((2, 128), (3, 192)):
        halves = tmp_path / f"at {stop}"
        shutil.copytree(whole, halves)
        (halves / "summary.json").unlink()
        for each in archive.archives(halves):
            if archive.frames_of(each) > stop:
                each.unlink()
        batches.clear()
        capsys.readouterr()
        run(*overrides, "resume=auto", folder=halves.name)
        assert "everything continues exactly" in " ".join(capsys.readouterr().out.split())
        assert batches == unbroken[trained:]
        for part in ("loss", "rng", "collector"):
            assert digest(saved(halves, part)) == digest(saved(whole, part)), part


def test_a_run_of_before_that_kept_no_opponents_with_its_trial_goes_on_exactly(run, batches, monkeypatch):
    pytest.importorskip("pettingzoo")
    overrides = [*SMALL, *EXACT["PPO, against its earlier policies"], "checkpoint_every_frames=64"]
    with monkeypatch.context() as before:
        before.setattr(hydrl.run.checkpoint.env_state.verify, "opponent_pool", lambda env: None)
        folder = run(*overrides, "env.opponents.every_frames=128", "keep_checkpoints=9")
    unbroken = batches.copy()
    batches.clear()
    archive.find(folder, "last").unlink()
    (folder / "summary.json").unlink()
    run(*overrides, "env.opponents.every_frames=128", "keep_checkpoints=9", "resume=auto")
    assert batches == unbroken[3:]
    kept = saved(folder, "books")["rehearsal"]
    assert "opponents" in torch.load(io.BytesIO(kept.numpy().tobytes()), weights_only=True)


def test_a_longer_run_goes_on_as_if_its_closing_evaluation_had_not_been(run, evaluations):
    evaluations({128: 30.0, 256: 20.0}, {128: 90.0, 256: 10.0})
    overrides = [*SMALL_PPO, "env=cartpole", "eval.reward_threshold=40"]

    def reached(folder: Path) -> tuple[int, float, int | None]:
        summary = json.loads((folder / "summary.json").read_text())
        best = archive.frames_of(archive.find(folder, "best"))
        return best, summary["best_eval/return_mean"], summary["solved_at_frames"]

    assert reached(run(*overrides, "total_frames=128", "anneal_frames=256")) == (128, 90.0, 128)
    longer = run(*overrides, "resume=auto")
    whole = run(*overrides, folder="whole")
    assert reached(longer) == reached(whole) == (128, 30.0, None)
    ours, theirs = (saved(folder, "books")["progress"] for folder in (longer, whole))
    assert ours["counters"] == theirs["counters"]
    for part in ("loss", "optimizer", "normaliser", "rng", "collector"):
        assert digest(saved(longer, part)) == digest(saved(whole, part)), part
    assert logged(longer) == logged(whole)


def test_workers_start_their_environments_anew_and_the_learner_goes_on(run, capsys):
    overrides = [*SMALL_PPO, "env=cartpole", "collector=multi_sync", "collector.num_envs=4", "~schedule"]
    overrides += ["collector.num_workers=1", "transforms=normalized", "init_stats_frames=200"]
    folder = run(*overrides, "total_frames=64")
    before = {part: saved(folder, part) for part in ("loss", "optimizer", "normaliser")}
    seen = {}

    def look(state, origin, load=hydrl.run.checkpoint.checkpointer.Checkpointer.load):
        load(state, origin)
        seen["loss"] = deepcopy(state.components["loss"].state_dict())
        seen["optimizer"] = deepcopy(state.components["optimizer"].state_dict())
        seen["normaliser"] = hydrl.envs.normalizer_state(state.env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydrl.run.checkpoint.checkpointer.Checkpointer, "load", look)
        run(*overrides, "total_frames=128", "resume=auto")
    assert "episodes start anew: they are in processes of their own" in capsys.readouterr().out
    for part, state in before.items():
        assert digest(dict(seen[part])) == digest(dict(state)), part
    assert archive.frames_of(archive.find(folder, "last")) == 128


def test_a_longer_run_takes_the_learning_rate_to_its_end_over_the_new_length(run):
    overrides = [*SMALL, "env=inverted_double_pendulum", "schedule=linear", "optim.lr=1e-3"]
    overrides += ["minibatches.epochs=1", "critic.num_cells=[16,16]"]
    run(*overrides)
    folder = run(*overrides, "total_frames=512", "resume=auto")
    rates = [float(row["train/learning_rate"]) for row in logged(folder)]
    assert rates[:4] == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0])
    assert rates[4:] == pytest.approx([3 / 8 * 1e-3, 2 / 8 * 1e-3, 1 / 8 * 1e-3, 0.0])


def test_epsilon_falls_by_the_frames_of_all_environments_and_goes_on_where_it_stood(run):
    words = [*SMALL, *DQN, "minibatches.updates=1", "exploration.annealing_num_steps=250"]
    for frames in (128, 192):  # of four environments each
        folder = run(*words, f"total_frames={frames}", "anneal_frames=256", "resume=auto")
        epsilon = pytest.approx(1 - 0.95 * frames / 250, abs=1e-4)  # it falls in single precision
        assert saved(folder, "exploration")["eps"].item() == epsilon
        assert float(logged(folder)[-1]["train/epsilon"]) == epsilon


def test_a_stop_loses_nothing(tmp_path):
    """The stopped half and the resumed half together log what the unbroken run logs."""
    words = [*SMALL, "env=cartpole", "critic.num_cells=[16,16]", "collector.frames_per_batch=256"]
    words += [
        "minibatches.size=64",
        "total_frames=2_048",
        "eval.every_frames=512",
        "checkpoint_every_frames=1_000_000",
    ]
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = start(*words, f"hydra.run.dir={stopped}")
    next(line for line in process.stdout if "evaluation" in line)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 143, output
    assert "python train.py resume=" in output
    assert archive.frames_of(archive.find(stopped, "last")) < 2_048

    done = typed(f"resume={stopped}")
    assert done.returncode == 0, done.stderr
    assert "everything continues exactly" in done.stdout.replace("\n", " ")
    assert typed(*words, f"hydra.run.dir={whole}").returncode == 0
    assert logged(stopped) == logged(whole)
    assert digest(saved(stopped, "loss")) == digest(saved(whole, "loss"))


@pytest.mark.parametrize("closing", [False, True])
def test_an_evaluation_that_a_stop_breaks_off_is_played_when_the_run_goes_on(run, monkeypatch, closing):
    words = [*SMALL, "env=cartpole", "critic.num_cells=[16,16]", "eval.every_frames=128"]
    words += ["eval.reward_threshold=5", "eval.stop_when_solved=true"] if closing else []
    whole, played = run(*words, folder="whole"), []

    def broken(*asked, play=evaluator.play_episodes, **options):
        played.append(None)
        if len(played) < 1 + closing:  # the next one confirms
            return play(*asked, **options)
        signal.raise_signal(signal.SIGTERM)
        raise Interrupted(signal.SIGTERM, in_batch=True)  # as its timer does

    with monkeypatch.context() as patch:
        patch.setattr(hydrl.envs.build, "play_episodes", broken)
        with pytest.raises(Interrupted):
            run(*words, folder="stopped")
    folder = run(*words, "resume=auto", folder="stopped")
    assert len(played) == 1 + closing
    assert logged(folder) == logged(whole)
    assert digest(saved(folder, "loss")) == digest(saved(whole, "loss"))


def test_a_run_stopped_while_it_confirms_a_solution_confirms_it_when_it_is_resumed(run, monkeypatch):
    overrides = [*SMALL_PPO, "env=cartpole", "eval.reward_threshold=5", "eval.stop_when_solved=true"]
    whole = json.loads((run(*overrides, folder="whole") / "summary.json").read_text())
    assert whole["frames"] == 128

    def interrupted(self, *_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hydrl.run.logging.run_logger.RunLogger, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(*overrides, folder="stopped")
    ended = json.loads((run(*overrides, "resume=auto", folder="stopped") / "summary.json").read_text())
    for key in ("frames", "updates", "eval/return_mean", "solved_at_frames", "status"):
        assert ended[key] == whole[key], key


def test_a_folder_that_was_moved_goes_on_with_its_replay_memory_on_disk(run, tmp_path):
    overrides = [*SMALL, *DQN, "buffer=memmap", "buffer.storage.max_size=500"]
    began = run(*overrides, folder="began")
    shutil.copytree(began, whole := tmp_path / "whole")
    (tmp_path / "elsewhere").mkdir()
    killed(began, tmp_path / "elsewhere" / "after")
    shutil.rmtree(began)
    after = run(*overrides, "resume=auto", folder="elsewhere/after")
    assert digest(saved(after, "buffer")) == digest(saved(whole, "buffer"))
    assert logged(after) == logged(whole)
    assert not began.exists()


def test_the_w_and_b_run_goes_on_as_the_same_run(run):
    overrides = [*SMALL_PPO, "env=cartpole", "logger=wandb", "logger.wandb.mode=offline"]
    folder = run(*overrides, "total_frames=128")
    run(*overrides, "resume=auto")
    names = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    assert len(names) == 2
    assert len({name.split("-")[3] for name in names}) == 1  # -1 follows where both began in a second
