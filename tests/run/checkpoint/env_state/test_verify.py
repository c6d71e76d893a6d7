"""Whether a task goes on from what is kept of it is tried: it goes on exactly, or its episodes start anew."""

import re

import pytest
import torch

from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.archive import tensor_bytes
from hydrl.run.checkpoint.env_state.verify import Rehearsal
from tests.conftest import digest, killed, saved
from tests.fakes import stateful_envs

TINY = ["~tuned", "algo=ppo", "env=gym", "collector.num_envs=2", "collector.frames_per_batch=64"]
TINY += ["minibatches.size=32", "minibatches.epochs=1", "eval.every_frames=64", "eval.episodes=2"]
TINY += ["eval.final_episodes=2", "eval.max_steps=10", "log_every_frames=64", "checkpoint_every_frames=64"]
TINY += ["actor.num_cells=[16,16]", "critic.num_cells=[16,16]"]
TOLD = "if this run is resumed, its episodes start anew: "
REASONS = {
    "OfTheModule": "a restored copy gave another",
    "OfAFunction": "a restored copy gave another",
    "OfALibrary": "a restored copy gave another",
    "OfTheClock": "a restored copy gave another",
    "Unseeded": "a restored copy gave another",
    "Hidden": "a restored copy gave another",
    "Swapped": "a restored copy fails (ValueError: Swapped stands where tests.fakes.stateful_envs:Other",
    "Touchy": "a restored copy fails (OSError: no such connection)",
    "Port": "no second environment can be made (OSError: address already in use)",
}


@pytest.fixture
def said(capsys):
    """What a run has said since this was last asked, in one line."""
    return lambda: re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["Containers", "Generators", "Prices"])
def test_what_is_found_by_reading_goes_on_exactly(name, run, batches, said, monkeypatch, tmp_path):
    task = [*TINY, f"env.id=hidden/{name}-v0"]
    whole = run(*task, "total_frames=128", folder="whole")
    assert TOLD not in said()
    unbroken = batches.copy()
    assert len(set(unbroken)) == 2
    batches.clear()
    assert killed(whole, tmp_path / "halves") == 64
    torch.rand(7)
    halves = run(*task, "total_frames=128", "resume=auto", folder="halves")
    assert "everything continues exactly" in said()
    assert batches == unbroken[1:]
    for part in ("loss", "optimizer", "normaliser", "rng", "collector"):
        assert digest(saved(halves, part)) == digest(saved(whole, part)), part

    # And trying it has moved nothing.
    batches.clear()
    monkeypatch.setattr(Rehearsal, "before_saving", lambda *_: None)
    run(*task, "total_frames=128", folder="untried")
    assert batches == unbroken


GO_ON = ("OfTheModule", "Port")


@pytest.mark.parametrize("name", [name for name in REASONS if name not in GO_ON])
def test_where_reading_finds_too_little_it_is_said_at_the_first_checkpoint(name, run, said):
    folder = run(*TINY, f"env.id=hidden/{name}-v0", "total_frames=64")
    assert TOLD + REASONS[name] in said()
    assert saved(folder, "collector")["simulator"] is None


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in GO_ON else pytest.mark.slow) for name in REASONS],
)
def test_where_reading_finds_too_little_the_episodes_start_anew_and_the_run_goes_on(
    name, run, said, monkeypatch
):
    task, reason = [*TINY, f"env.id=hidden/{name}-v0"], REASONS[name]
    folder = run(*task, "total_frames=64")
    assert TOLD + reason in said()
    assert saved(folder, "collector")["simulator"] is None
    monkeypatch.setattr(stateful_envs.Port, "limit", 4)
    run(*task, "total_frames=128", "resume=auto")
    assert re.search(r"resumed after 64 frames from \S+; episodes start anew: " + re.escape(reason), said())


@pytest.mark.parametrize(
    "name",
    [
        *("OfTheModule", "Swapped", "Touchy"),  # one of each reason
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("OfAFunction", "OfALibrary", "OfTheClock", "Unseeded")
        ),
    ],
)
def test_a_run_that_kept_what_cannot_be_put_back_goes_on(name, run, said, monkeypatch):
    """As earlier versions kept it, that did not try."""
    task, reason = [*TINY, f"env.id=hidden/{name}-v0"], REASONS[name]
    with monkeypatch.context() as patch:
        patch.setattr(Rehearsal, "before_saving", lambda *_: None)
        folder = run(*task, "total_frames=64")
    assert saved(folder, "collector")["simulator"] is not None
    assert TOLD not in said()
    run(*task, "total_frames=128", "resume=auto")
    found = said()
    assert re.search(r"resumed after 64 frames from \S+; episodes start anew: " + re.escape(reason), found)
    assert TOLD + reason in found
    assert archive.frames_of(archive.find(folder, "last")) == 128


def test_what_another_process_finds_another_is_told_there(run, said, monkeypatch):
    """A clock of whole hours stands still while a run tries; one that is resumed looks at it again."""
    task = [*TINY, "env.id=hidden/OfTheHour-v0"]
    run(*task, "total_frames=64")
    assert TOLD not in said()
    monkeypatch.setattr(stateful_envs, "SECONDS", 1)
    run(*task, "total_frames=128", "resume=auto")
    assert "episodes start anew: a restored copy gave another" in said()


def test_a_table_that_a_fresh_environment_holds_too_is_not_kept(run, said, monkeypatch):
    """1.2 MB in each environment, beside 80 kB that change."""
    for num_envs in (1, 4):
        task = [*TINY, "env.id=hidden/Prices-v0", f"collector.num_envs={num_envs}"]
        folder = run(*task, "total_frames=64", folder=f"of {num_envs}")
        kept = tensor_bytes(saved(folder, "collector")["simulator"])
        assert num_envs * 80_000 <= kept < num_envs * 100_000
        assert archive.find(folder, "last").stat().st_size < 200_000 + num_envs * 200_000
    assert TOLD not in said()
    monkeypatch.setattr(stateful_envs.Prices, "rows", 90_000)
    run(*task, "total_frames=128", "resume=auto", folder=f"of {num_envs}")
    assert "episodes start anew: a restored copy fails (ValueError: a table" in said()
