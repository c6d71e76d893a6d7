import csv
import json
import re
import signal
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hydrl.run.logging import loggers
from tests.conftest import ROOT, start


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


def test_the_training_return_has_a_column_before_an_episode_has_ended(tmp_path):
    metrics = loggers.MetricsFile(tmp_path / "metrics.csv")
    metrics.write(100, {"train/reward": 0.5})
    assert metrics.path.read_text().splitlines() == ["frames,train/return,train/reward", "100,,0.5"]
    metrics.write(200, {"train/reward": 0.25, "train/return": 3.0})
    metrics.keep(2)
    assert metrics.rows[0] == {"frames": 100, "train/reward": 0.5}  # and loggers are sent no empty cell
    assert metrics.path.read_text().splitlines()[1:] == ["100,,0.5", "200,3.0,0.25"]


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
    assert "frames" not in events.Tags()["scalars"]
    (final,) = events.Scalars("final/return_mean")
    assert final.value == pytest.approx(json.loads((folder / "summary.json").read_text())["eval/return_mean"])


def test_tensorboard_has_the_configuration_in_its_hparams_tab(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    config = {"seed": 0, "optim": {"_target_": "torch.optim.Adam", "lr": 1e-3}, "actor": {"num_cells": [64]}}
    loggers.close(loggers.tensorboard(directory=tmp_path, config=config, name="run"))
    (folder,) = {path.parent for path in tmp_path.rglob("events.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["optim.lr"].number_value == 1e-3
    assert hparams["actor.num_cells"].string_value == "[64]"
    assert set(hparams) == {"seed", "optim.lr", "actor.num_cells"}


def trackio_rows(place: Path) -> dict[str, list[tuple[int, dict]]]:
    """The rows of each run that trackio holds, by the run's name."""
    found: dict[str, list[tuple[int, dict]]] = {}
    with sqlite3.connect(place / "hydrl.db") as database:
        for name, step, text in database.execute("select run_name, step, metrics from metrics order by id"):
            found.setdefault(name, []).append((step, json.loads(text)))
    return found


needs_trackio = pytest.mark.skipif(not find_spec("trackio"), reason="its folder is settled by its import")


@needs_trackio
@pytest.mark.slow
def test_trackio_goes_on_with_a_stopped_run_beside_w_and_b_and_leaves_nothing_running(tmp_path, monkeypatch):
    place, folder = tmp_path / "trackio", tmp_path / "run"
    monkeypatch.setenv("TRACKIO_DIR", str(place))
    monkeypatch.setenv("HF_TOKEN", "hf_none")  # whose owner trackio would ask the Hub for
    words = [
        "debug=fast",
        "env=cartpole",
        "~tuned",
        "logger=[wandb,trackio]",
        "logger.wandb.mode=offline",
        "compile=false",
        "minibatches.epochs=1",
        "eval.every_frames=256",
        f"hydra.run.dir={folder}",
    ]

    with start(*words, "total_frames=1_000_000") as process:
        for line in process.stdout:
            if "evaluation" in line:
                break
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
    assert process.returncode == 130
    assert "Uploading" not in output  # as trackio says at each end
    running = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in running if str(folder) in str(each)]
    ((name, before),) = trackio_rows(place).items()
    with start(*words, "resume=auto", f"total_frames={before[-1][0] + 256}") as process:
        output = process.communicate()[0]
    assert process.returncode == 0
    (order,) = re.findall("TRACKIO_PLOT_ORDER [?]= (.*)", (ROOT / "Makefile").read_text())
    shown = f"TRACKIO_DIR={place} TRACKIO_PLOT_ORDER='{order}' HF_HUB_OFFLINE=1 trackio show --project hydrl"
    assert shown in output

    assert name.startswith("ppo-cartpole-seed0-")
    ((again, rows),) = trackio_rows(place).items()
    assert again == name
    assert rows[: len(before)] == before
    assert rows[-1][0] > before[-1][0]
    with (folder / "metrics.csv").open() as file:
        kept = {int(row["frames"]): row for row in csv.DictReader(file)}
    sent = [(step, row["eval/return_mean"]) for step, row in rows if "eval/return_mean" in row]
    assert sent
    assert all(value == pytest.approx(float(kept[step]["eval/return_mean"])) for step, value in sent)
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    with sqlite3.connect(place / "hydrl.db") as database:
        (told,) = {text for (text,) in database.execute("select config from configs")}
    config = json.loads(told)
    assert (config["_Group"], config["optim"]["lr"], config["_Username"]) == ("ppo-cartpole", 6e-4, None)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_samples_of_an_evaluation_are_sent_as_a_table(name):
    pytest.importorskip(name)
    kind = {"wandb": loggers.WandbLogger, "trackio": loggers.TrackioLogger}[name]
    sent = []

    class Logger(kind):
        """A logger without a run."""

        experiment = SimpleNamespace(log=lambda row, step: sent.append((row, step)))

        def __init__(self):
            pass

    samples = [
        {"prompt": "s31=", "answer": "13", "reward": 1.0},
        {"prompt": "s20=", "answer": "2", "reward": 0.0},
    ]
    loggers.show_samples([Logger()], 64, samples)
    ((row, step),) = sent
    assert step == 64
    table = row["samples"]
    if name == "wandb":
        columns, rows = table.columns, table.data
    else:
        columns, rows = [*table.data[0]], [[*row.values()] for row in table.data]
    assert columns == ["prompt", "answer", "reward"]
    assert rows == [["s31=", "13", 1.0], ["s20=", "2", 0.0]]
