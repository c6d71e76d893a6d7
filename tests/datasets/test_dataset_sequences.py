"""Episodes are told apart in what a run kept, of a full memory too, and a policy acts for their returns."""

import gymnasium
import pytest
import torch

import hydrl
from hydrl import envs
from hydrl.datasets.collector import load_dataset
from hydrl.errors import UserError
from hydrl.experience.episodes import EpisodeCounter
from hydrl.experience.minibatches import Replay
from tests.conftest import saved, settings

pytest.importorskip("transformers")
TASK = ["env=gym", "env.id=tests.fakes.envs:PendulumIn-v0", "+env.unit=2.0", "+env.max_episode_steps=20"]
SMALL = ["~tuned", "eval.every_frames=9_999", "eval.episodes=2", "eval.final_episodes=2"]
# Episodes of 20 steps in three environments, of which the memory keeps the last 100.
SAC = ["algo=sac", *TASK, *SMALL, "total_frames=264", "collector.frames_per_batch=24"]
SAC += ["collector.num_envs=3", "minibatches.updates=1", "buffer.storage.max_size=100", "minibatches.size=8"]
SAC += ["minibatches.warmup_frames=72"]
DT = ["algo=decision_transformer", *TASK, *SMALL, "actor.width=16", "actor.layers=1", "minibatches.size=40"]
DT += ["minibatches.sequence=5", "collector.frames_per_batch=80", "total_frames=160"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run whose memory has wrapped."""
    from train import train

    run = tmp_path_factory.mktemp("stored") / "run"
    train(settings(*SAC, run_dir=run))
    return run


def drawn(folder, sequence):
    chosen = settings(*DT, f"data.path={folder}")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders)
    return load_dataset(
        env, chosen.build("actor")(env), path=str(folder), task=chosen.task, sequence=sequence
    )


def test_returns_are_told_of_a_memory_that_has_wrapped(folder):
    stored = saved(folder, "buffer")
    assert len(stored["episode"]) == 100
    assert len(stored["episode"].unique()) >= 6
    rows = drawn(folder, 5).storage[:]
    assert 20 < len(rows) < 100  # those of the running ones are left out
    for number in rows["episode"].unique():
        episode = rows[rows["episode"] == number]
        assert episode["next", "step_count"].diff(dim=0).unique().tolist() == [1]
        assert torch.equal(episode["next", "observation"][:-1], episode["observation"][1:])
        assert episode["next", "done"][-1]
        to_go = episode["next", "reward"].flip(0).cumsum(0).flip(0)
        assert torch.allclose(episode["return_to_go"], to_go, atol=1e-3)


def test_what_is_drawn_are_steps_of_an_episode_one_after_another(folder):
    pieces = drawn(folder, 5).sample(400).reshape(-1, 5)
    assert pieces["collector", "mask"].any()
    assert (pieces["episode"] == pieces["episode"][:, :1]).all()
    following = pieces["step_count"].diff(dim=1).squeeze(-1)
    assert (following == pieces["collector", "mask"][:, 1:].long()).all()
    assert pieces["action"].abs().max() <= 1  # as the policy takes them


def test_what_an_older_run_kept_is_single_transitions(run, monkeypatch):
    monkeypatch.setattr(EpisodeCounter, "add_episode_ids", lambda self, batch: batch)
    older = run(*SAC)
    with pytest.raises(UserError, match=f"^data.path={older}: an older version saved it"):
        drawn(older, 5)
    assert len(drawn(older, None).sample(8)) == 8


def test_a_run_of_an_older_version_goes_on_as_it_was(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(EpisodeCounter, "add_episode_ids", lambda self, batch: batch)
        patch.setattr(Replay, "state_dict", lambda self: {})
        run(*SAC, "total_frames=72", "anneal_frames=264")
    folder = run(*SAC, "resume=auto")
    assert len(saved(folder, "buffer")["action"]) == 100
    assert "episode" not in saved(folder, "buffer")


def test_a_policy_for_a_return_is_told_what_its_steps_paid(folder, run):
    trained = run(*DT, f"data.path={folder}", "eval.target_return=-50")
    policy = hydrl.load(trained, checkpoint="last", trust=True)
    env = gymnasium.make("tests.fakes.envs:PendulumIn-v0", unit=2.0, max_episode_steps=20)
    observation, _ = env.reset(seed=3)
    reward, returned, first = None, 0.0, None
    for _ in range(8):
        action = policy.predict(observation, reward=reward)
        first = action if first is None else first
        assert policy.now["episode_reward"].item() == pytest.approx(returned, rel=1e-5)
        observation, reward, *_ = env.step(action)
        returned += reward
    with pytest.raises(UserError, match=r"^reward: a return-conditioned policy"):
        policy.predict(observation)
    policy.reset()
    assert policy.predict(env.reset(seed=3)[0]) == pytest.approx(first, abs=1e-6)
    with pytest.raises(UserError, match=r"^export: return-conditioned policies"):
        policy.export(trained / "policy.pt2")
