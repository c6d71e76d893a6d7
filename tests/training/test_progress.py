import pytest
import torch

from hydrl.training.evaluator import Evaluation
from hydrl.training.progress import Progress, crossed


def evaluation(mean: float) -> Evaluation:
    return Evaluation(torch.tensor([mean - 2, mean + 2]), torch.tensor([3, 5]))


def never(frames: int) -> Evaluation:
    raise AssertionError(f"nobody asked for fresh episodes, here after {frames} frames")


@pytest.mark.parametrize(
    ("before", "frames", "expected"),
    [
        (0, 9, False),
        (0, 10, True),
        (9, 10, True),
        (10, 19, False),
        (19, 21, True),
        (8, 35, True),
        (10, 10, False),
    ],
)
def test_due_is_the_crossing_of_a_multiple(before, frames, expected):
    assert crossed(10, before, frames) == expected


@pytest.mark.parametrize("batch", [1, 7, 64, 100, 250])
def test_something_due_every_hundred_frames_happens_once_a_hundred_or_once_a_batch(batch):
    progress = Progress(batches=2_000 // batch, frames_per_batch=batch, solved_return=None)
    times = 0
    while progress.batches_left:
        progress.collected(batch)
        times += progress.due(100)
    assert progress.frames == progress.total_frames
    assert times == min(progress.frames // 100, 2_000 // batch)


def test_only_a_better_evaluation_is_the_best_and_solved_is_the_first_time_only():
    progress = Progress(batches=9, frames_per_batch=10, solved_return=100.0)
    seen = []
    for mean in (50.0, 40.0, 100.0, 200.0):
        progress.collected(10)
        progress.evaluated(evaluation(mean), seconds=progress.frames / 10)
        assert not progress.confirmed(never, print)  # which is not asked for
        seen.append((progress.best, progress.best_at, progress.improved, progress.solved))
    assert seen == [
        (50.0, 10, True, False),
        (50.0, 10, False, False),
        (100.0, 30, True, True),
        (200.0, 40, True, True),
    ]
    assert (progress.solved_at_frames, progress.solved_at_seconds) == (30, 3.0)
    progress.collected(10)
    assert not progress.solved  # nobody looked at these frames
    assert progress.evaluation_now is None


def test_what_fresh_episodes_refuse_is_not_the_best_and_what_they_confirm_may_be():
    progress = Progress(batches=3, frames_per_batch=10, solved_return=100.0, stop_when_solved=True)
    seen, said = [], []
    for mean, fresh in ((120.0, 90.0), (80.0, None), (110.0, 105.0)):
        progress.collected(10)
        progress.evaluated(evaluation(mean), seconds=progress.frames / 10)
        again = never if fresh is None else {progress.frames: evaluation(fresh)}.__getitem__
        ended = progress.confirmed(again, said.append)
        seen.append((ended, progress.score, progress.best, progress.best_at))
    assert seen == [(False, 90.0, 90.0, 10), (False, 80.0, 90.0, 10), (True, 105.0, 105.0, 30)]
    assert said == ["not solved: 2 fresh episodes returned 90.0; the threshold is 100"]
    assert progress.solved_at_frames == 10


def test_without_a_threshold_nothing_is_solved():
    progress = Progress(batches=1, frames_per_batch=10, solved_return=None)
    progress.collected(10)
    progress.evaluated(evaluation(1e9), seconds=1.0)
    assert not progress.solved


def test_a_resumed_run_counts_on():
    progress = Progress(batches=4, frames_per_batch=10, solved_return=100.0)
    progress.collected(10)
    progress.learned(3)
    progress.evaluated(evaluation(120.0), seconds=5.0)
    resumed = Progress(batches=4, frames_per_batch=10, solved_return=100.0)
    resumed.load_state_dict(progress.state_dict())
    assert (resumed.frames, resumed.updates, resumed.batches_left) == (10, 3, 3)
    assert (resumed.solved, resumed.solved_at_seconds, resumed.evaluation.mean) == (True, 5.0, 120.0)
    assert resumed.due(10)
    assert resumed.resumed_at == [10]


def test_a_resumed_run_takes_back_what_fresh_episodes_refuse_as_the_run_itself_would():
    options = {"batches": 4, "frames_per_batch": 10, "solved_return": 100.0, "stop_when_solved": True}
    progress = Progress(**options)
    for mean in (70.0, 120.0):
        progress.collected(10)
        progress.evaluated(evaluation(mean), seconds=1.0)
    assert (progress.best, progress.best_at) == (120.0, 20)  # stopped before the fresh ones were played
    resumed = Progress(**options)
    resumed.load_state_dict(progress.state_dict())
    assert not resumed.confirmed({20: evaluation(60.0)}.__getitem__, print)
    assert (resumed.best, resumed.best_at, resumed.improved) == (70.0, 10, False)


def test_an_evaluation_of_an_earlier_moment_counts_for_that_moment():
    progress = Progress(9, 10, solved_return=100, stop_when_solved=True)
    progress.collected(10)
    progress.awaited = [10]
    assert progress.improved  # it may be, so it is saved
    progress.collected(10)
    progress.evaluated(evaluation(120.0), 3.0, frames=10)
    assert (progress.solved_at_frames, progress.best_at, progress.evaluated_at) == (10, 10, 10)
    assert (progress.reached, progress.solved) == (True, False)
