"""Evaluations in a process of their own are those of the loop's turn, wherever the run is by then."""

import json
import pickle
import re
import shutil
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import SMALL_PPO, digest, logged, saved, settings

from hydrl.errors import UserError, WorkerError
from hydrl.run import checkpoint
from hydrl.run.looks import LooksBeside, played
from hydrl.run.resume import origin

# Its normaliser's statistics change with every batch, and each look is due two batches after the one before.
WORDS = [*SMALL_PPO, "env=inverted_double_pendulum", "collector.num_envs=2", "total_frames=512"]
WORDS += ["eval.max_steps=100", "checkpoint_every_frames=192", "keep_checkpoints=9"]
BESIDE = [*WORDS, "eval.mode=process"]
SAME = ("frames", "updates", "eval/return_mean", "best_eval/return_mean", "solved_at_frames")


def trained(folder: Path, *words: str) -> Path:
    from train import train

    chosen = settings(*words, run_dir=folder)
    train(chosen, origin(chosen))
    return folder


def told(folder: Path) -> dict[str, object]:
    summary = json.loads((folder / "summary.json").read_text())
    return {key: summary[key] for key in SAME}


def evaluated(folder: Path) -> dict[int, str]:
    """Mean returns by frames, as the log has them."""
    rows = {int(row["frames"]): row.get("eval/return_mean", "") for row in logged(folder)}
    return {frames: mean for frames, mean in rows.items() if mean}


def scores(folder: Path) -> dict[int, str]:
    """The same, as the checkpoints have them."""
    there = dict(checkpoint.readable(checkpoint.archives(folder))).values()
    return {each["frames"]: str(each[checkpoint.SCORE]) for each in there if checkpoint.SCORE in each}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with evaluations in the loop's turn, and beside it."""
    folder = tmp_path_factory.mktemp("looks")
    return trained(folder / "loop", *WORDS), trained(folder / "beside", *BESIDE)


def test_all_is_logged_and_learned_as_in_the_loop(runs):
    loop, beside = runs
    assert logged(beside) == logged(loop)
    assert [*evaluated(beside)] == [128, 256, 384, 512]
    assert told(beside) == told(loop)
    for part in ("loss", "optimizer", "normaliser", "rng", "collector"):
        assert digest(saved(beside, part)) == digest(saved(loop, part)), part


def test_a_checkpoint_has_the_weights_its_score_tells_of(runs):
    loop, beside = runs
    assert scores(beside) == evaluated(loop)
    assert scores(loop)
    for frames in scores(loop):
        for part in ("actor", "normaliser"):
            ours, theirs = (digest(saved(folder, part, str(frames))) for folder in runs)
            assert ours == theirs, (frames, part)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose first evaluation ended with its process, and what was said of it."""
    folder = tmp_path_factory.mktemp("failed") / "run"

    def kill(self, hand_over=LooksBeside.hand_over):
        if self.asked:
            self.process.kill()
            self.process.join()
        hand_over(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LooksBeside, "hand_over", kill)
        with pytest.raises(WorkerError) as error:
            trained(folder, *BESIDE)
    return folder, str(error.value)


def test_where_its_process_ends_the_run_is_saved_and_ends(failed):
    folder, said = failed
    assert re.match(r"the process that evaluates \(process \d+\) was killed by SIGKILL", said)
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    assert checkpoint.frames_of(checkpoint.find(folder, "last")) == 128
    assert evaluated(folder) == scores(folder) == {}


@pytest.mark.parametrize("mode", ["loop", "process"])
def test_what_was_not_over_is_played_when_the_run_goes_on(runs, failed, mode, tmp_path):
    folder = shutil.copytree(failed[0], tmp_path / "run")
    (asked,) = saved(folder, "books")["looks"]["asked"]
    assert asked["frames"] == 128
    assert digest(dict(asked["actor"])) == digest(dict(saved(folder, "actor")))
    trained(folder, *WORDS, f"eval.mode={mode}", "resume=auto")
    assert logged(folder) == logged(runs[0])
    assert told(folder) == told(runs[0])
    assert scores(folder)[128] == scores(runs[1])[128]


def test_what_fails_in_its_process_is_told():
    def refuse(state):
        raise UserError("not this one") if state else TypeError("no weights")

    there = SimpleNamespace(actor=SimpleNamespace(load_state_dict=refuse))
    assert played(there, {"actor": True}) == "not this one"
    lost = played(there, {"actor": None})
    assert lost.startswith("\nTraceback")
    ours, theirs = Pipe()
    theirs.send_bytes(pickle.dumps(lost))
    with pytest.raises(WorkerError, match=r"(?s)^the evaluation after 128 frames failed: .*no weights$"):
        LooksBeside.receive(SimpleNamespace(pipe=ours, asked=[{"frames": 128}]))


@pytest.mark.slow
def test_after_one_that_solved_the_task_the_next_is_waited_for_and_ends_the_run(tmp_path):
    folder = trained(tmp_path / "run", *BESIDE, "eval.solved_at=1", "eval.stop_when_solved=true")
    assert told(folder)["solved_at_frames"] == 128
    assert told(folder)["frames"] == 256
    assert [*evaluated(folder)] == [128, 256]
