import json
import time
from contextlib import closing

import pytest
import torch
from conftest import settings
from tensordict import TensorDict

from hydrl.loop.evaluation import Evaluation
from hydrl.run.record import Record


@pytest.fixture
def record(tmp_path):
    chosen = settings("env=cartpole", "~tuned", "eval.solved_at=100", run_dir=tmp_path)
    made = Record(chosen, started=0.0)
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


def take(record: Record, batch: TensorDict, losses: list[TensorDict]) -> None:
    """A batch as the loop hands it over."""
    record.collected(batch)
    record.learned(batch, losses)


def evaluation(mean: float) -> Evaluation:
    return Evaluation(torch.tensor([mean - 2, mean + 2]), torch.tensor([3, 5]))


def test_a_film_is_due_at_the_first_evaluation_of_each_interval(tmp_path):
    chosen = settings("env=cartpole", "~tuned", "eval.video_every_frames=100", run_dir=tmp_path)
    with closing(Record(chosen, started=0.0)) as record:
        filmed = []
        for record.frames in (30, 60, 99, 130, 199, 350, 360, 400):
            if record.film_due:
                filmed.append(record.frames)
                record.filmed_at = record.frames
    assert filmed == [30, 130, 350, 400]


def test_a_row_averages_everything_since_the_last(record):
    take(record, batch([10.0, 20.0]), losses(1.0, 3.0))
    take(record, batch([60.0]), losses(6.0))
    record.write({"train/learning_rate": 0.5})
    take(record, batch([]), [])
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


def test_only_a_better_evaluation_is_the_best(record):
    take(record, batch([1.0]), [])
    record.evaluated(evaluation(50.0))
    assert not record.solved
    assert record.best_at == 10
    take(record, batch([1.0]), [])
    record.evaluated(evaluation(40.0))
    assert (record.best, record.best_at, record.evaluated_at) == (50.0, 10, 20)
    take(record, batch([1.0]), [])
    record.evaluated(evaluation(100.0))
    assert record.solved
    assert (record.best, record.best_at, record.solved_at_frames) == (100.0, 30, 30)


def test_a_resumed_record_goes_on_as_if_it_had_never_stopped(record, tmp_path):
    """Rows, means over what came in before and after, counters and clocks; later rows of the file go."""
    take(record, batch([10.0]), losses(1.0))
    record.write({"train/learning_rate": 0.5})
    take(record, batch([30.0]), losses(3.0))
    record.evaluated(evaluation(70.0))
    state = record.state_dict()
    take(record, batch([1000.0]), losses(99.0))
    record.write({"train/of_the_lost_time": 1.0})  # after the checkpoint, before the kill

    settings = record.settings
    resumed = Record(settings, started=time.time())
    try:
        resumed.load_state_dict(state)
        take(resumed, batch([50.0]), losses(5.0))
        resumed.write({"train/learning_rate": 0.25})
        first, second = resumed.metrics.rows
        assert (first["frames"], first["train/return"]) == (10, 10.0)
        assert (second["frames"], second["train/return"], second["loss/critic"]) == (30, 40.0, 4.0)
        assert second["eval/return_mean"] == 70.0
        assert resumed.best == 70.0
        assert resumed.updates == 3
        assert resumed.resumed_at == [20]
        assert time.time() - resumed.started >= state["elapsed"]
        text = (record.directory / "metrics.csv").read_text()
    finally:
        resumed.close()
    assert "of_the_lost_time" not in text
    assert len(text.splitlines()) == 3


def test_solved_is_the_first_time_only(record):
    take(record, batch([1.0]), [])
    record.evaluated(evaluation(100.0))
    take(record, batch([1.0]), [])
    record.evaluated(evaluation(200.0))
    assert record.solved_at_frames == 10


def test_the_summary_reports_the_closing_evaluation_and_an_interrupted_one_its_last(record):
    take(record, batch([1.0]), losses(1.0, 1.0))
    record.evaluated(evaluation(70.0))
    record.write({})
    record.finish(None, "interrupted")
    interrupted = json.loads((record.directory / "summary.json").read_text())
    record.finish(evaluation(55.0))
    finished = json.loads((record.directory / "summary.json").read_text())

    assert (interrupted["status"], finished["status"]) == ("interrupted", "finished")
    assert interrupted["eval/return_mean"] == 70.0
    assert finished["eval/return_mean"] == 55.0
    assert finished["eval/return_std"] == 2.0
    assert finished["best_eval/return_mean"] == 70.0
    assert (finished["frames"], finished["updates"]) == (10, 2)
    assert finished["versions"]["torchrl"] == "0.14.1"


def test_a_run_that_ends_between_two_rows_keeps_what_came_in_since(record):
    take(record, batch([10.0]), losses(2.0))
    record.write({})
    take(record, batch([30.0]), losses(4.0))
    record.finish(None)
    last = record.metrics.rows[-1]
    assert (last["frames"], last["train/return"], last["loss/critic"]) == (20, 30.0, 4.0)
    record.finish(None)
    assert len(record.metrics.rows) == 2
