import errno
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

import hydrl.run.logging.loggers
from hydrl.errors import RunError
from hydrl.run.logging.run_logger import RunInfo, RunLogger
from hydrl.training import Clock, Metrics, Progress
from hydrl.training.evaluator import Evaluation
from tests.conftest import composed, settings

LEARNERS = [SimpleNamespace(update=SimpleNamespace(learning_rate=0.5))]


@pytest.fixture
def record(tmp_path):
    made = open_record(tmp_path)
    yield made
    made.close()


def open_record(folder) -> RunLogger:
    chosen = settings("env=cartpole", "~tuned", "eval.reward_threshold=100", "resume=auto", run_dir=folder)
    info = RunInfo(**chosen.identity)
    metrics = Metrics(LEARNERS, None)
    return RunLogger(folder, {}, info, Progress(9, 10, solved_return=100), metrics, Clock(began=0.0))


def take(record: RunLogger, returned: float, *losses: float) -> None:
    """A batch of 10 frames, whose last step ends an episode, as the loop hands it over."""
    done, total = torch.zeros(10, 1, dtype=torch.bool), torch.zeros(10, 1)
    done[-1], total[-1] = True, returned
    step = TensorDict({"done": done, "episode_reward": total}, [10])
    record.progress.collected(10)
    record.progress.learned(len(losses))
    made = [TensorDict({"loss_critic": torch.tensor(value)}) for value in losses]
    record.metrics.learned(TensorDict({"next": step}, [10]), made)


def evaluation(mean: float) -> Evaluation:
    return Evaluation(torch.tensor([mean - 2, mean + 2]), torch.tensor([3, 5]))


def test_an_evaluation_stands_in_the_row_of_its_frames_only(record):
    take(record, 1.0)
    record.progress.evaluated(evaluation(70.0), seconds=1.0)
    record.write()
    take(record, 1.0)
    record.write()
    first, second = record.file.rows
    assert (first["frames"], first["eval/return_mean"], first["time/elapsed"] > 0) == (10, 70.0, True)
    assert (second["frames"], "eval/return_mean" in second) == (20, False)


def test_rows_and_films_wait_for_an_evaluation_that_is_not_over(record, monkeypatch, tmp_path):
    sent = []
    monkeypatch.setattr(hydrl.run.logging.loggers, "log", lambda _, frames, row: sent.append(frames))
    monkeypatch.setattr(
        hydrl.run.logging.loggers, "show", lambda _, frames, *film: sent.append((frames, *film))
    )
    for _ in range(3):
        take(record, 1.0)
        if record.progress.frames in (10, 30):
            record.progress.awaited.append(record.progress.frames)
        record.write()
        if record.progress.frames == 10:
            record.show("eval/video", tmp_path)
    held = record.state_dict()["held"]
    assert (sent, record.file.rows, [each[0] for each in held]) == ([], [], [10, 10, 20, 30])

    record.progress.awaited = [30]
    record.progress.evaluated(evaluation(70.0), 1.0, frames=10)
    record.flush()
    assert sent == [10, (10, "eval/video", tmp_path), 20]
    assert [row.get("eval/return_mean") for row in record.file.rows] == [70.0, None]
    assert [each[0] for each in record.pending_rows] == [30]


def test_episodes_that_an_evaluation_cut_are_told_once_and_stand_in_row_summary_and_table(record, capsys):
    cut = Evaluation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([7, 1_000, 1_000]), 2)
    for evaluated in (evaluation(70.0), cut, cut):
        take(record, 1.0)
        record.progress.evaluated(evaluated, seconds=1.0)
        record.write()
    assert [row["eval/cut_episodes"] for row in record.file.rows] == [0, 2, 2]
    line = (
        "2 of 3 episodes were still running after 1,000 steps and count as they are; "
        "eval.max_steps=10_000 lets them continue"
    )
    assert capsys.readouterr().out.splitlines().count(line) == 1
    again = Progress(9, 10, solved_return=None)
    again.load_state_dict(record.progress.state_dict())
    assert again.evaluation.cut_episodes == 2

    record.finish(cut)
    assert json.loads((record.directory / "summary.json").read_text())["eval/cut_episodes"] == 2
    assert "2 of these episodes, still running at eval.max_steps" in capsys.readouterr().out
    record.finish(evaluation(55.0))
    assert json.loads((record.directory / "summary.json").read_text())["eval/cut_episodes"] == 0
    assert "still running" not in capsys.readouterr().out


def test_a_resumed_record_drops_the_rows_that_came_after_the_checkpoint(record, tmp_path):
    take(record, 10.0, 1.0)
    record.write()
    state = record.state_dict()
    take(record, 1000.0, 99.0)
    record.write()  # after the checkpoint, before the kill
    record.close()

    (tmp_path / "summary.json").write_text("of what was reached before")
    resumed = open_record(tmp_path)
    try:
        resumed.load_state_dict(state)
        assert not (tmp_path / "summary.json").exists()
        resumed.progress.frames = 10
        take(resumed, 50.0, 5.0)
        resumed.write()
    finally:
        resumed.close()
    assert [row["train/return"] for row in resumed.file.rows] == [10.0, 50.0]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("write", [RunLogger.write, RunLogger.finish])
def test_a_run_folder_deleted_under_the_run_is_named_and_not_begun_anew(record, write):
    take(record, 1.0)
    record.write()
    shutil.rmtree(record.directory)
    take(record, 1.0)
    with pytest.raises(RunError, match=rf"^{record.directory} was deleted or moved"):
        write(record)
    assert not record.directory.exists()


@pytest.mark.parametrize(("ids", "told"), [({"wandb": "abc123"}, 1), ({}, 0)])
def test_a_logger_that_goes_on_is_said_to_keep_the_rows_that_come_anew(record, capsys, ids, told):
    take(record, 10.0)
    record.write()
    state = record.state_dict()
    for _ in range(2):
        take(record, 20.0)
        record.write()
    record.run_ids = ids
    capsys.readouterr()
    record.load_state_dict(state)
    record.load_state_dict(state)  # there are none ahead any more
    said = capsys.readouterr().out
    assert said.count("wandb: keeps the 2 log rows sent after this checkpoint") == told
    assert said.count("keeps") == told


def test_a_full_disk_is_blamed_where_a_file_is_written(record, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    take(record, 1.0)
    monkeypatch.setattr("csv.DictWriter.writerows", refuse)
    with pytest.raises(RunError, match=r"metrics\.csv cannot be written: No space left on device$"):
        record.load_state_dict({"rows": 0})


def test_the_summary_reports_the_closing_evaluation_and_an_interrupted_one_its_last(record):
    take(record, 1.0, 1.0, 1.0)
    record.progress.evaluated(evaluation(70.0), seconds=1.0)
    record.write()
    record.finish(status="interrupted")
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
    take(record, 10.0, 2.0)
    record.write()
    take(record, 30.0, 4.0)
    record.finish()
    last = record.file.rows[-1]
    assert (last["frames"], last["train/return"], last["loss/critic"]) == (20, 30.0, 4.0)
    record.finish()
    assert len(record.file.rows) == 2


def test_a_run_s_name_has_no_colon():
    assert RunInfo("ppo", "my_envs:MyEnv-v0", 1, {}).name == "ppo-my_envs-MyEnv-v0-seed1"
    cfg = composed("env=gym", "env.id=my_envs:MyEnv-v0", hydra=True)
    assert "/ppo-my_envs-MyEnv-v0/" in f"/{cfg.hydra.run.dir}".replace("outputs/", "")
