import json

import pytest
import torch
from conftest import settings
from tensordict import TensorDict
from torch import nn

from hydrl.evaluation import Evaluation
from hydrl.record import Record


@pytest.fixture
def record(tmp_path):
    chosen = settings("env=cartpole", "tuned=none", "eval.solved_at=100", run_dir=tmp_path)
    made = Record(chosen, started=0.0, actor=nn.Linear(2, 1), critic=None)
    yield made
    made.close()


def batch(returns: list[float], frames: int = 10) -> TensorDict:
    """A batch of ``frames`` whose last steps end one episode for each of ``returns``."""
    done = torch.zeros(frames, 1, dtype=torch.bool)
    total = torch.zeros(frames, 1)
    for position, value in enumerate(returns):
        done[position], total[position] = True, value
    step = TensorDict({"done": done, "episode_reward": total}, [frames])
    return TensorDict({"next": step}, [frames])


def losses(*values: float) -> list[TensorDict]:
    return [TensorDict({"loss_critic": torch.tensor(value)}) for value in values]


def evaluation(mean: float) -> Evaluation:
    return Evaluation(torch.tensor([mean - 2, mean + 2]), torch.tensor([3, 5]))


def test_a_row_averages_everything_since_the_last(record):
    record.learned(batch([10.0, 20.0]), losses(1.0, 3.0))
    record.learned(batch([60.0]), losses(6.0))
    record.write({"train/learning_rate": 0.5})
    record.learned(batch([]), [])
    record.write({})

    first, second = record.metrics.rows
    assert first["frames"] == 20
    assert first["train/return"] == 30.0  # of three episodes, not of two batches
    assert first["train/episodes"] == 3
    assert first["loss/critic"] == 4.0
    assert first["train/learning_rate"] == 0.5
    assert second["frames"] == 30
    assert "train/return" not in second
    assert "loss/critic" not in second


def test_only_a_better_evaluation_replaces_the_best_policy(record):
    def saved():
        return torch.load(record.directory / "checkpoints" / "best.pt", weights_only=True)["frames"]

    record.learned(batch([1.0]), [])
    assert record.evaluated(evaluation(50.0), {}) is False
    assert saved() == 10
    record.learned(batch([1.0]), [])
    record.evaluated(evaluation(40.0), {})
    assert saved() == 10
    record.learned(batch([1.0]), [])
    assert record.evaluated(evaluation(100.0), {}) is True
    assert saved() == 30
    assert (record.best, record.solved_at_frames) == (100.0, 30)


def test_solved_is_the_first_time_only(record):
    record.learned(batch([1.0]), [])
    record.evaluated(evaluation(100.0), {})
    record.learned(batch([1.0]), [])
    record.evaluated(evaluation(200.0), {})
    assert record.solved_at_frames == 10


def test_the_summary_reports_the_closing_evaluation_and_an_interrupted_one_its_last(record):
    record.learned(batch([1.0]), losses(1.0, 1.0))
    record.evaluated(evaluation(70.0), {})
    record.write({})
    record.finish(None)
    interrupted = json.loads((record.directory / "summary.json").read_text())
    record.finish(evaluation(55.0))
    finished = json.loads((record.directory / "summary.json").read_text())

    assert interrupted["eval/return_mean"] == 70.0
    assert finished["eval/return_mean"] == 55.0
    assert finished["eval/return_std"] == 2.0
    assert finished["best_eval/return_mean"] == 70.0
    assert (finished["frames"], finished["updates"]) == (10, 2)
    assert finished["versions"]["torchrl"] == "0.14.1"


def test_a_run_that_ends_between_two_rows_keeps_what_came_in_since(record):
    record.learned(batch([10.0]), losses(2.0))
    record.write({})
    record.learned(batch([30.0]), losses(4.0))
    record.finish(None)
    last = record.metrics.rows[-1]
    assert (last["frames"], last["train/return"], last["loss/critic"]) == (20, 30.0, 4.0)
    record.finish(None)
    assert len(record.metrics.rows) == 2
