"""What W&B is given, read back without a server: sweeps, a run's records, and the dashboard."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import pytest
from conftest import ROOT, settings
from test_loggers import records
from wandb.sdk.launch.sweeps import utils as sweeps

import train
from hydrl.config import CONFIGS, command_line
from hydrl.config.mistakes import find
from hydrl.errors import UserError
from hydrl.run.loggers import MetricsFile, has_account, server
from hydrl.run.resume import origin
from scripts import wandb_dashboard

SWEEPS = sorted((CONFIGS / "wandb").glob("*.yaml"))
TINY = ["debug=fast", "total_frames=1_024", "~tuned"]


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


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
    sweep = sweeps.load_sweep_config(str(CONFIGS / "wandb/bayes.yaml"))
    found = settings(*command(sweep, {})[3:])
    evaluations = found.total_frames // found.eval.every_frames
    stop = sweep["early_terminate"]
    assert stop.pop("type") == "hyperband"
    brackets = [stop["min_iter"] * stop["eta"] ** power for power in range(9)]
    assert [bracket for bracket in brackets if bracket < evaluations] == [4, 8]


def test_an_agents_command_runs_offline_as_part_of_its_sweep(tmp_path: Path):
    sweep = sweeps.load_sweep_config(str(CONFIGS / "wandb/bayes.yaml"))
    values = {key: ends(each)[0] for key, each in sweep["parameters"].items()}
    words = [*command(sweep, values), "debug=fast", "total_frames=512", f"hydra.run.dir={tmp_path / 'run'}"]
    agent = {"WANDB_SWEEP_ID": "ab12cd34", "WANDB_RUN_ID": "member01", "WANDB_MODE": "offline"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, **agent, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    run = next(each.run for each in records(tmp_path / "run") if each.WhichOneof("record_type") == "run")
    assert (run.run_id, run.sweep_id) == ("member01", "ab12cd34")


def typed(monkeypatch: pytest.MonkeyPatch, word: str) -> int:
    """The exit code of ``train.py word``."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets
    monkeypatch.setattr(sys, "argv", ["train.py", word])
    job = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
    return command_line.run(job(train.main.__wrapped__), CONFIGS)


@pytest.mark.parametrize("word", ["wandb=bayes", "+wandb=bayes", "~wandb"])
def test_a_sweep_is_no_choice(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert typed(monkeypatch, word) == 2
    assert f"error: {word}: configs/wandb holds sweeps" in capsys.readouterr().err


def test_help_lists_no_sweeps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        typed(monkeypatch, "--help")
    listed = capsys.readouterr().out.splitlines()
    assert "wandb: bayes, grid, random" not in listed
    assert "logger: csv, tensorboard, wandb" in listed


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
    (place / "ppo").mkdir()
    (place / "ppo" / "video-best.mp4").write_bytes(b"a film")
    metrics: set[str] = set()
    ours = ["logger=wandb", "logger.mode=offline", "logger.artifacts=true", "logger.group=mine"]
    for algo, env, words in (
        ("ppo", "cartpole", [*ours, "logger.tags=[short]"]),
        ("dqn", "cartpole", []),
        ("sac", "pendulum", ["minibatches.updates=1", "minibatches.warmup_frames=256"]),
    ):
        chosen = settings(f"algo={algo}", f"env={env}", *TINY, *words, run_dir=place / algo)
        train.train(chosen, origin(chosen))
        file = MetricsFile(place / algo / "metrics.csv")
        file.keep(1000)
        metrics |= set(file.columns)
    kinds: dict[str, list[Any]] = {}
    for record in records(place / "ppo"):
        kind = record.WhichOneof("record_type")
        kinds.setdefault(kind, []).append(getattr(record, kind))
    return Logged(place / "ppo", kinds, metrics)


def test_a_run_is_named_grouped_tagged_and_configured_in_levels(logged: Logged):
    run = logged.records["run"][0]
    assert (run.display_name, run.run_group, run.job_type) == ("ppo-cartpole-seed0", "mine", "train")
    assert list(run.tags) == ["ppo", "cartpole", "short"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["optim"]["lr"] == settings("algo=ppo", "env=cartpole", *TINY).optim["lr"]
    assert config["loss"]["value_estimator"]["gamma"] == 0.99


def test_the_summary_is_the_closing_evaluation_s_not_the_last_row_s(logged: Logged):
    told: dict[str, Any] = {}
    for each in logged.records["summary"]:
        told |= {item.key or item.nested_key[-1]: json.loads(item.value_json) for item in each.update}
    reached = json.loads((logged.folder / "summary.json").read_text())
    keys = ("status", "eval/return_mean", "eval/return_std", "eval/episodes", "best_eval/return_mean")
    assert {key: told[key] for key in keys} == {key: reached[key] for key in keys}


def test_the_code_and_the_resolved_configuration_are_saved(logged: Logged):
    saved = {file.path for each in logged.records["files"] for file in each.files}
    (files,) = logged.folder.glob("wandb/offline-run-*/files")
    for path in ("train.py", "src/hydrl/learning.py"):
        assert f"code/{path}" in saved
        assert (files / "code" / path).read_bytes() == (ROOT / path).read_bytes()
    assert "resolved_config.yaml" in saved
    ours = (logged.folder / "config_resolved.yaml").read_bytes()
    assert (files / "resolved_config.yaml").read_bytes() == ours
    kept = {path.suffix for path in (files / "code").rglob("*") if path.is_file()}
    assert kept == {".py"}  # no YAML, which could hold a secret
    assert not (files / "diff.patch").exists()


def test_the_best_checkpoint_and_the_videos_are_artifacts(logged: Logged):
    artifacts = {each.type: each for each in logged.records["artifact"]}
    assert set(artifacts) == {"checkpoint", "video"}
    best = {entry.path: Path(entry.local_path) for entry in artifacts["checkpoint"].manifest.contents}
    assert {"inventory.json", "manifest.json", "components/0000-actor/state.pt"} <= set(best)
    assert all(path.is_file() and logged.folder in path.parents for path in best.values())
    assert [entry.path for entry in artifacts["video"].manifest.contents] == ["video-best.mp4"]
    keys = [tuple(item.nested_key) for each in logged.records["history"] for item in each.item]
    assert ("video/best", "path") in keys


def test_nothing_but_numbers_is_sent_unless_asked(run: Callable[..., Path]):
    folder = run("algo=dqn", "env=cartpole", *TINY, "logger=wandb", "logger.mode=offline")
    assert "artifact" not in {each.WhichOneof("record_type") for each in records(folder)}


def test_a_run_that_was_never_evaluated_sends_no_checkpoint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    from hydrl.run.loggers import send_artifacts

    class Run:
        id = "abc"

    send_artifacts(Run(), tmp_path)
    assert "not all artifacts are sent to W&B: run=" in capsys.readouterr().out


def test_the_account_of_another_server_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "netrc").write_text("machine tracking.example.org login user password secret\n")
    assert not has_account()
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracking.example.org")
    assert has_account()
    assert server() == "https://tracking.example.org"


# The dashboard


def drawn(view: Any) -> set[str]:
    """The metrics of all panels."""
    panels = [panel for section in view.sections for panel in section.panels]
    return {key for panel in panels for key in (getattr(panel, "media_keys", None) or panel.y)}


def test_the_dashboard_draws_only_what_runs_log(logged: Logged):
    view = wandb_dashboard.workspace(wandb_dashboard.Arguments(entity="me"))
    filmed = {*wandb_dashboard.VIDEOS, "time/video"}  # tests/test_video.py looks at these
    assert drawn(view) - filmed <= logged.metrics
    assert {"eval/return_mean", "train/q_value", "train/epsilon", "loss/kl_approx"} <= drawn(view)


def test_the_dashboard_averages_groups_with_a_band_over_seeds():
    spec = wandb_dashboard.workspace(wandb_dashboard.Arguments(entity="me", name="mine"))._spec
    assert (spec["entity"], spec["displayName"]) == ("me", "mine")
    section = spec["spec"]["section"]
    sections = {each["name"]: each["panels"] for each in section["panelBankConfig"]["sections"]}
    assert list(sections) == [*wandb_dashboard.SECTIONS, "Videos"]
    plots = [panel["config"] for name in list(sections)[:-1] for panel in sections[name]]
    for plot in plots:
        assert (plot["xAxis"], plot["groupBy"]) == ("frames", "group")
        assert (plot["groupAgg"], plot["groupArea"], plot["aggregate"]) == ("mean", "stddev", True)
    assert section["runSets"][0]["grouping"][0]["name"] == "group"


def test_a_dry_dashboard_asks_no_server(capsys: pytest.CaptureFixture[str]):
    wandb_dashboard.main(wandb_dashboard.Arguments(dry=True))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Return: eval/return_mean, eval/return_min, train/return, train/episode_length"
    assert lines[-1] == "Videos: videos"


def test_a_dashboard_is_saved_and_its_address_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import wandb_workspaces.workspaces as views

    saved: list[Any] = []
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setattr(wandb_dashboard, "urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setattr(views.Workspace, "save", lambda self: saved.append(self) or self)
    monkeypatch.setattr(views.Workspace, "url", property(lambda self: f"https://x/{self.entity}"))
    wandb_dashboard.main(wandb_dashboard.Arguments(entity="me", project="theirs"))
    assert capsys.readouterr().out == "https://x/me\n"
    assert [(each.entity, each.project) for each in saved] == [("me", "theirs")]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "needs a W&B account: wandb login; dry=true shows it"),
        (["entity"], "entity: write key=value"),
        (["user=x"], "user=x: there is no such key; the top level has entity, project, name, dry"),
        (["dry=3x"], "dry=3x: "),
    ],
)
def test_a_dashboard_that_cannot_be_saved_is_one_line(words: list[str], answer: str):
    done = subprocess.run(
        [sys.executable, "scripts/wandb_dashboard.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert answer in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:9 cannot be reached"):
        wandb_dashboard.main(wandb_dashboard.Arguments(entity="me"))
