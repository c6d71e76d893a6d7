"""What W&B is given, read back without a server: sweeps, a run's records, and the dashboard."""

import csv
import io
import json
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2
from wandb.sdk.launch.sweeps import utils as sweeps

import train
from hydrl.config.tree import find
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive
from hydrl.run.logging.loggers import MetricsFile
from scripts.wandb import dashboard
from tests.conftest import HANGING, ROOT, resume_point, settings, typed

SWEEPS = sorted((ROOT / "scripts" / "wandb").glob("*.yaml"))
TINY = ["debug=fast", "total_frames=512", "eval.every_frames=512", "~tuned"]


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(folder: Path, seconds: float = HANGING) -> list[Any]:
    """The records of the finished offline run below ``folder``; W&B writes the last after it said so."""
    end = time.monotonic() + seconds
    while True:
        found = list(written(folder))
        if time.monotonic() > end or any(each.WhichOneof("record_type") == "exit" for each in found):
            return found
        time.sleep(0.1)


def written(folder: Path) -> Iterator[Any]:
    """The records that are in the file so far.

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
        if position + 7 + length > len(data):  # it is being written
            return
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


# Sweeps


def ends(parameter: dict[str, Any]) -> list[Any]:
    """The values of a parameter, or the ends of what it is drawn from."""
    if "values" in parameter:
        return parameter["values"]
    assert parameter["distribution"] in {"uniform", "int_uniform", "log_uniform_values"}
    return [parameter["min"], parameter["max"]]


def command(sweep: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The words an agent starts for these values, by W&B's own functions."""
    filled = sweeps.create_sweep_command_args(
        {"args": {key: {"value": value} for key, value in values.items()}}
    )
    macros = {"${env}": ["/usr/bin/env"], "${program}": [sweep["program"]]}
    macros["${args_no_hyphens}"] = filled["args_no_hyphens"]
    return [
        word for each in sweeps.create_sweep_command(sweep["command"]) for word in macros.get(each, [each])
    ]


def test_there_is_a_sweep_of_each_kind():
    assert [file.stem for file in SWEEPS] == ["bayes", "grid", "random"]


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_train_takes_every_value_that_a_sweep_can_draw(file: Path):
    sweep = sweeps.load_sweep_config(str(file))
    assert sweep["method"] == file.stem
    assert (ROOT / sweep["program"]).is_file()
    assert sweep["metric"] == {"name": "eval/return_mean", "goal": "maximize"}
    several = max(len(ends(parameter)) for parameter in sweep["parameters"].values())
    for draw in range(several):
        values = {
            key: ends(each)[min(draw, len(ends(each)) - 1)] for key, each in sweep["parameters"].items()
        }
        env, python, program, *overrides = command(sweep, values)
        assert (env, python, program) == ("/usr/bin/env", "python", "train.py")
        assert {"logger=wandb", "eval.stop_when_solved=false"} <= set(overrides)
        found = settings(*overrides).model_dump()
        for key, value in values.items():
            assert find(found, {"env": "task"}.get(key, key)) == value, key


def test_hyperband_looks_at_evaluations_that_the_run_comes_to():
    sweep = sweeps.load_sweep_config(str(SWEEPS[0]))
    found = settings(*command(sweep, {})[3:])
    evaluations = found.total_frames // found.eval.every_frames
    stop = sweep["early_terminate"]
    assert stop.pop("type") == "hyperband"
    brackets = [stop["min_iter"] * stop["eta"] ** power for power in range(9)]
    assert [bracket for bracket in brackets if bracket < evaluations] == [4, 8, 16]


@pytest.fixture
def anew() -> Iterator[None]:
    """W&B as a process finds it that has not used it: it reads an agent's words once."""
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("anew")
def test_an_agents_command_runs_offline_as_part_of_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sweep = sweeps.load_sweep_config(str(SWEEPS[0]))
    values = {key: ends(each)[0] for key, each in sweep["parameters"].items()}
    _, _, script, *words = command(sweep, values)
    agent = {"WANDB_SWEEP_ID": "ab12cd34", "WANDB_RUN_ID": "member01", "WANDB_MODE": "offline"}
    for name, value in agent.items():
        monkeypatch.setenv(name, value)
    words += ["debug=fast", "total_frames=256", "eval.every_frames=256"]
    done = typed(*words, f"hydra.run.dir={tmp_path / 'run'}", script=script)
    assert done.returncode == 0, done.stderr
    run = next(each.run for each in records(tmp_path / "run") if each.WhichOneof("record_type") == "run")
    assert (run.run_id, run.sweep_id) == ("member01", "ab12cd34")


# A run


@dataclass
class Logged:
    """Three tiny runs; the first one's W&B records by kind."""

    folder: Path
    records: dict[str, list[Any]]
    metrics: set[str]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    place = tmp_path_factory.mktemp("wandb")
    (place / "ppo" / "videos").mkdir(parents=True)
    (place / "ppo" / "videos" / "final.mp4").write_bytes(b"a film")
    metrics: set[str] = set()
    ours = [
        "logger=wandb",
        "logger.wandb.mode=offline",
        "logger.wandb.artifacts=true",
        "logger.wandb.group=mine",
    ]
    for algo, env, words in (
        ("ppo", "cartpole", [*ours, "logger.wandb.tags=[short]"]),
        ("dqn", "cartpole", ["minibatches.warmup_frames=256"]),
        ("sac", "pendulum", ["minibatches.updates=1", "minibatches.warmup_frames=256"]),
    ):
        chosen = settings(f"algo={algo}", f"env={env}", *TINY, *words, run_dir=place / algo)
        train.train(chosen, resume_point(chosen))
        file = MetricsFile(place / algo / "metrics.csv")
        file.keep(1000)
        metrics |= set(file.columns)
    kinds: dict[str, list[Any]] = {}
    for record in records(place / "ppo"):
        kind = record.WhichOneof("record_type")
        kinds.setdefault(kind, []).append(getattr(record, kind))
    return Logged(place / "ppo", kinds, metrics)


def rows_sent(history: list[Any]) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item}
        for row in history
    ]


def test_a_run_is_named_grouped_tagged_and_configured_in_levels(logged: Logged):
    run = logged.records["run"][0]
    assert (run.display_name, run.run_group, run.job_type) == ("ppo-cartpole-seed0", "mine", "train")
    assert list(run.tags) == ["ppo", "cartpole", "short"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.git.commit == head.stdout.strip()  # none of a checkout without git
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["optim"]["lr"] == settings("algo=ppo", "env=cartpole", *TINY).optim["lr"]
    assert config["loss"]["value_estimator"]["gamma"] == 0.99
    assert config["env"] == {"_target_": "hydrl.envs.gymnasium_env", "id": "CartPole-v1"}


def test_the_rows_are_those_of_metrics_csv(logged: Logged):
    sent = rows_sent(logged.records["history"])
    with (logged.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["frames"] for row in sent] == [int(row["frames"]) for row in rows]
    for ours, theirs in zip(rows, sent, strict=True):
        for key, value in ours.items():
            if value:
                assert theirs[key] == pytest.approx(float(value), rel=1e-6), key
    assert {key.split("/")[0] for row in rows for key in row} == {"frames", "train", "eval", "loss", "time"}


def test_the_summary_is_the_closing_evaluation_s_not_the_last_row_s(logged: Logged):
    told: dict[str, Any] = {}
    for each in logged.records["summary"]:
        told |= {item.key or item.nested_key[-1]: json.loads(item.value_json) for item in each.update}
    reached = json.loads((logged.folder / "summary.json").read_text())
    keys = ("status", "eval/return_mean", "eval/return_std", "eval/episodes", "best_eval/return_mean")
    assert {key: told[key] for key in keys} == {key: reached[key] for key in keys}


def contents(artifact: Any) -> dict[str, Path]:
    return {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}


def test_the_code_the_best_checkpoint_and_the_videos_are_artifacts(logged: Logged):
    artifacts = {each.type: contents(each) for each in logged.records["artifact"]}
    assert set(artifacts) == {"code", "checkpoint", "video"}
    package = ROOT / "src" / "hydrl"
    assert set(artifacts["code"]) == {str(path.relative_to(package)) for path in package.rglob("*.py")}
    path = "training/update.py"
    assert artifacts["code"][path].read_bytes() == (package / path).read_bytes()
    best = artifacts["checkpoint"]
    assert set(best) == {archive.find(logged.folder, "best").name}
    assert {name: path.read_bytes() for name, path in artifacts["video"].items()} == {"final.mp4": b"a film"}


def test_without_an_account_it_logs_offline_and_sends_no_artifact_unless_asked(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET_TASK", "CartPole-v1")
    folder = run("algo=dqn", "env=cartpole", "env.id=${oc.env:SECRET_TASK}", *TINY, "logger=wandb")
    assert f"wandb sync {folder}/wandb/offline-run-" in capsys.readouterr().out
    found = records(folder)
    kinds = {each.artifact.type for each in found if each.WhichOneof("record_type") == "artifact"}
    assert kinds <= {"code"}
    # W&B notes the code twice, and on a busy machine one or the other was missing at times.
    assert kinds or any("code_path" in item.value_json for each in found for item in each.config.update)
    run_sent = next(each.run for each in found if each.WhichOneof("record_type") == "run")
    config = {item.key: json.loads(item.value_json) for item in run_sent.config.update}
    assert config["env"]["id"] == "${oc.env:SECRET_TASK}"  # what an environment variable holds stays there
    assert run_sent.run_group == "dqn-cartpole"


def test_a_run_that_was_never_evaluated_sends_no_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    from hydrl.run.logging.loggers import send_artifacts

    send_artifacts(None, tmp_path)
    assert "not all artifacts are sent to W&B: run=" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_left_for_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import wandb as library
    from torchrl.record import loggers as theirs

    from hydrl.run.logging import loggers

    started = []

    class Refusing(theirs.WandbLogger):
        def __init__(self, *args: Any, mode: str, **kwargs: Any) -> None:
            started.append(mode)
            if mode == "online":
                raise library.errors.CommError("no route\nto host")
            super().__init__(*args, mode=mode, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loggers, "WandbLogger", Refusing)
        config = {"algo": "ppo", "task": "x", "logger": {"wandb": {"artifacts": False}}}
        options: dict[str, Any] = {"project": "p", "entity": None, "tags": [], "mode": "online"}
        logger = loggers.wandb(directory=tmp_path, config=config, name="n", init_timeout=HANGING, **options)
        loggers.close(logger)
    assert started == ["online", "offline"]
    assert "W&B could not be reached (no route); logging offline\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("account", "chosen", "mode"),
    [(True, None, "online"), (False, None, "offline"), (True, "offline", "offline")],
)
def test_a_run_is_online_where_w_and_b_knows_an_account_and_nothing_else_was_chosen(
    account: bool, chosen: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from hydrl.run.logging import loggers

    monkeypatch.setattr("wandb.login", lambda prompt, verify: account)
    if chosen:
        monkeypatch.setenv("WANDB_MODE", chosen)
    assert loggers.start_run(lambda mode: mode, "auto", tmp_path) == mode  # type: ignore[arg-type, return-value]


# The dashboard


def drawn(view: Any) -> set[str]:
    """The metrics of all panels."""
    panels = [panel for section in view.sections for panel in section.panels]
    return {key for panel in panels for key in (getattr(panel, "media_keys", None) or panel.y)}


def test_the_dashboard_draws_only_what_runs_log(logged: Logged):
    view = dashboard.workspace(dashboard.Arguments(entity="me"))
    filmed = {*dashboard.VIDEOS, "time/video"}  # tests/run/test_video.py looks at these
    assert drawn(view) - filmed <= logged.metrics
    assert {"eval/return_mean", "train/q_value", "train/epsilon", "loss/kl_approx"} <= drawn(view)


def test_the_dashboard_averages_groups_with_a_band_over_seeds():
    spec = dashboard.workspace(dashboard.Arguments(entity="me", name="mine"))._spec
    assert (spec["entity"], spec["displayName"]) == ("me", "mine")
    section = spec["spec"]["section"]
    sections = {each["name"]: each["panels"] for each in section["panelBankConfig"]["sections"]}
    assert list(sections) == [*dashboard.SECTIONS, "Videos"]
    plots = [panel["config"] for name in list(sections)[:-1] for panel in sections[name]]
    for plot in plots:
        assert (plot["xAxis"], plot["groupBy"]) == ("frames", "group")
        assert (plot["groupAgg"], plot["groupArea"], plot["aggregate"]) == ("mean", "stddev", True)
    assert section["runSets"][0]["grouping"][0]["name"] == "group"


def test_a_dry_dashboard_asks_no_server(capsys: pytest.CaptureFixture[str]):
    dashboard.main(dashboard.Arguments(dry=True))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Return: eval/return_mean, eval/return_min, train/return, train/episode_length"
    assert lines[-1] == "Videos: videos"


def test_a_dashboard_is_saved_and_its_address_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import wandb_workspaces.workspaces as views

    saved: list[Any] = []
    monkeypatch.setattr("wandb.login", lambda prompt, verify: True)
    monkeypatch.setattr(dashboard, "urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setattr(views.Workspace, "save", lambda self: saved.append(self) or self)
    monkeypatch.setattr(views.Workspace, "url", property(lambda self: f"https://x/{self.entity}"))
    dashboard.main(dashboard.Arguments(entity="me", project="theirs"))
    assert capsys.readouterr().out == "https://x/me\n"
    assert [(each.entity, each.project) for each in saved] == [("me", "theirs")]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "no W&B account. Run wandb login, or use dry=true"),
        (["entity"], "entity: no value. Write KEY=VALUE"),
        (["user=x"], "user=x: no such key. The top level has entity, project, name, dry"),
        (["dry=3x"], "'3x' is not a valid bool"),
    ],
)
def test_a_dashboard_that_cannot_be_saved_is_one_line(words: list[str], answer: str):
    done = typed(*words, script="scripts/wandb/dashboard.py")
    assert done.returncode == 2
    assert answer in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("wandb.login", lambda prompt, verify: True)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9 cannot be reached"):
        dashboard.main(dashboard.Arguments(entity="me"))
