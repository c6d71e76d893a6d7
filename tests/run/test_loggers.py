import csv

import pytest

from hydrl.run import loggers


def test_metrics_file_has_frames_first_and_widens_when_a_metric_appears(tmp_path):
    path = tmp_path / "metrics.csv"
    metrics = loggers.MetricsFile(path)
    metrics.write(100, {"train/return": 1.5})
    metrics.write(200, {"train/return": 2.5, "loss/critic": 0.25})
    metrics.write(300, {"loss/critic": 0.125})

    with path.open() as file:
        header, *rows = csv.reader(file)
    assert header == ["frames", "train/return", "loss/critic"]
    assert rows == [["100", "1.5", ""], ["200", "2.5", "0.25"], ["300", "", "0.125"]]


def test_a_resumed_metrics_file_is_that_of_an_unbroken_run(tmp_path):
    whole, halves = (loggers.MetricsFile(tmp_path / name) for name in ("whole.csv", "halves.csv"))
    rows = [{"train/return": 1.5}, {"time/elapsed": 3.0, "eval/episodes": 2}, {"loss/critic": 0.1}]
    for frames, row in enumerate(rows):
        whole.write(frames, row)
        halves.write(frames, row)
    again = loggers.MetricsFile(tmp_path / "halves.csv")
    again.keep(1)  # the checkpoint was older than the file
    for frames, row in enumerate(rows[1:], 1):
        again.write(frames, row)
    assert (tmp_path / "halves.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert again.rows == whole.rows


def test_a_metrics_file_that_is_killed_while_it_widens_has_lost_nothing(tmp_path, monkeypatch):
    metrics = loggers.MetricsFile(tmp_path / "metrics.csv")
    metrics.write(100, {"train/return": 1.5})
    before = metrics.path.read_text()

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(csv.DictWriter, "writerows", die)
    with pytest.raises(KeyboardInterrupt):
        metrics.write(200, {"train/return": 2.5, "loss/critic": 0.25})
    assert metrics.path.read_text() == before
    assert list(tmp_path.iterdir()) == [metrics.path]


def test_tensorboard_holds_the_rows_of_metrics_csv(run):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run("debug=fast", "algo=dqn", "env=cartpole", "~tuned", "logger=tensorboard")

    events = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    sent = {(event.step, round(event.value, 4)) for event in events.Scalars("eval/return_mean")}
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["eval/return_mean"]]
    assert sent == {(int(row["frames"]), round(float(row["eval/return_mean"]), 4)) for row in rows}
    assert len(sent) == 2
