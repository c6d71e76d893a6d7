import csv
import json
import struct
from typing import ClassVar

import pytest
from wandb.proto import wandb_internal_pb2

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


@pytest.fixture
def _no_account(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(folder):
    """Every record of the offline run below ``folder``.

    The file is a LevelDB log: blocks of 32 KiB with chunks of checksum, length, type (1 whole, 2 first,
    3 middle, 4 last) and data, after W&B's own header of 7 bytes.
    """
    (file,) = (path for path in folder.rglob("run-*.wandb") if not path.parent.is_symlink())
    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32_768 - position % 32_768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.usefixtures("_no_account")
def test_wandb_without_an_account_keeps_config_metrics_and_group_offline(run, capsys):
    folder = run("debug=fast", "algo=dqn", "env=cartpole", "~tuned", "logger=wandb", "logger.tags=[mine]")

    assert f"wandb sync {folder}/wandb/offline-run-" in capsys.readouterr().out
    history, config, runs = [], {}, []
    for record in records(folder):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append(
                {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            )
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "run":
            runs.append(record.run)
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}

    assert config["algo"] == "dqn"
    assert config["env"] == {"_target_": "hydrl.parts.environments.gymnasium_env", "id": "CartPole-v1"}
    assert config["buffer"]["storage"]["max_size"] == 100_000
    assert runs[0].run_group == "dqn-cartpole"
    assert list(runs[0].tags) == ["dqn", "cartpole", "mine"]

    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["frames"] for row in history] == [int(row["frames"]) for row in rows]
    for sent, written in zip(history, rows, strict=True):
        for key, value in written.items():
            if value:
                assert sent[key] == pytest.approx(float(value), rel=1e-6), key
    assert {key.split("/")[0] for row in rows for key in row} == {"frames", "train", "eval", "loss", "time"}


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


def test_all_films_are_one_artifact_and_those_made_afterwards_are_shown_too(tmp_path, monkeypatch):
    class Run:
        id = "abc"
        sent: ClassVar = []
        log_artifact = sent.append
        log = sent.append

    monkeypatch.setattr("wandb.Video", lambda path, format: path)
    (tmp_path / "videos").mkdir()
    for name in ("video-best.mp4", "videos/final.mp4", "videos/000000000256.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    loggers.send_artifacts(Run, tmp_path)
    artifact, shown = Run.sent
    assert list(artifact.manifest.entries) == [
        "video-best.mp4",
        "videos/000000000256.mp4",
        "videos/final.mp4",
    ]
    assert shown == {"video/best": str(tmp_path / "video-best.mp4")}


@pytest.mark.usefixtures("_no_account")
def test_an_account_is_found_in_the_environment_or_the_netrc_file(monkeypatch, tmp_path):
    assert not loggers.has_account()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert loggers.has_account()
    (tmp_path / "netrc").write_text("machine example.org login user password secret\n")
    assert not loggers.has_account()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert loggers.has_account()
