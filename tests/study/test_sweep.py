import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hydra
import psutil
import pytest
from conftest import start
from hydra.core.override_parser.overrides_parser import OverridesParser

import train
from hydrl.config import CONFIGS, command_line
from hydrl.config.settings import Settings
from hydrl.errors import DivergedError, Interrupted, UserError
from hydrl.study import sweep
from hydrl.study.sweep import LONGEST, Board, Note, folder_name

TINY = ["-m", "debug=fast", "~tuned", "algo=ppo", "env=cartpole"]
SUMMARY = {
    "frames": 2048,
    "wall_seconds": 12.3,
    "eval/return_mean": 497.25,
    "eval/return_std": 3.5,
    "solved_at_frames": 1024,
    "solved_at_seconds": 7.4,
}


begin = partial(start, start_new_session=True)  # a group of its own, for Ctrl-C


@pytest.fixture
def swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[list[str]], str]]:
    """Runs a sweep whose members only ``end``; gives exit code, the table and all that was printed."""
    main = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(
        train.main.__wrapped__
    )
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets

    def call(line: str, end: Callable[[Settings], None]) -> tuple[int, list[list[str]], str]:
        def trained(settings: Settings, origin: object) -> None:
            end(settings)
            (Path(settings.run_dir) / "summary.json").write_text(json.dumps(SUMMARY))

        monkeypatch.setattr(train, "train", trained)
        arguments = ["-m", *line.split(), f"hydra.sweep.dir={tmp_path / 'sweep'}"]
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = command_line.run(main, CONFIGS)
        printed = capsys.readouterr()
        return code, rows(printed.out), printed.out + printed.err

    return call


def rows(output: str) -> list[list[str]]:
    """The cells of the last table, by row, those over several lines put together."""
    table = output[output.rindex("┏") :] if "┏" in output else ""
    found: list[list[str]] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if cells and cells[0]:
            found.append(cells)
        elif cells:
            found[-1] = [f"{above} {below}".strip() for above, below in zip(found[-1], cells, strict=True)]
    return found


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["seed=3", "algo=ppo", "env=cartpole"], "ppo-cartpole-seed3"),
        (["env=cartpole", "seed=3", "algo=ppo"], "ppo-cartpole-seed3"),
        (["algo=ppo", "resume=auto", "trust=true", "logger=wandb", "logger.project=x"], "ppo"),
        (["optim.lr=1e-3", "+env.max_episode_steps=50"], "env.max_episode_steps_50-optim.lr_1e-3"),
        (["actor.num_cells=[64,64]", "~transforms.normalize"], "actor.num_cells_64_64-transforms.normalize"),
        (["env=gym", "env.id='ALE/Pong v5'"], "gym-env.id_ALE_Pong_v5"),
        (["+env.token=***", "seed=0"], "env.token-seed0"),
        (["+env.login=${oc.env:NAME}"], "env.login_oc.env_NAME"),
        ([], "default"),
    ],
)
def test_a_member_s_folder_is_named_by_its_overrides(overrides: list[str], name: str):
    assert folder_name(overrides) == name
    typed = OverridesParser.create().parse_override(f"hydra.run.dir=outputs/{name}")
    assert typed.value() == f"outputs/{name}"  # without quotes


def test_a_long_name_is_cut_and_still_its_own():
    one, other = (folder_name([*(f"a.key{k}={k}" for k in range(40)), f"seed={s}"]) for s in (0, 1))
    assert len(one) == len(other) == LONGEST
    assert one != other


def test_the_table_says_what_became_of_each_member(swept, tmp_path):
    def end(settings: Settings) -> None:
        match settings.seed:
            case 1:
                raise UserError("seed=1 is refused")
            case 2:
                raise DivergedError("loss_actor is nan")
            case 3:
                raise RuntimeError("a defect")

    code, table, output = swept("algo=dqn env=cartpole seed=range(5)", end)
    assert code == 1
    assert f"{tmp_path / 'sweep'}: 2 of 5 finished" in output
    assert "algo=dqn env=cartpole" in output
    scores = ["2,048", "497.2 ± 3.5", "1,024 frames, 7 s", "12"]
    none = [""] * 4
    assert table == [
        ["0", "seed=0", "finished", *scores, "dqn-cartpole-seed0"],
        ["1", "seed=1", "refused", *none, "seed=1 is refused"],
        ["2", "seed=2", "diverged", *none, table[2][-1]],
        ["3", "seed=3", "failed", *none, "RuntimeError: a defect"],
        ["4", "seed=4", "finished", *scores, "dqn-cartpole-seed4"],
    ]
    assert "diverged at frame 0: loss_actor is nan" in table[2][-1]
    assert "Traceback" in output  # a defect keeps it


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([None, None], 0),
        ([None, UserError("")], 2),
        ([DivergedError(""), None], 3),
        ([UserError(""), RuntimeError("")], 1),
    ],
)
def test_the_worst_end_is_the_exit_code(errors: list[Exception | None], code: int, swept):
    def end(settings: Settings) -> None:
        if error := errors[settings.seed]:
            raise error

    assert swept("seed=0,1", end)[0] == code


def test_an_interrupted_sweep_begins_no_further_member_and_says_how_to_go_on(swept, tmp_path):
    def end(settings: Settings) -> None:
        if settings.seed == 1:
            raise Interrupted(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    code, table, output = swept("seed=0,1,2", end)
    assert code == 143
    assert [row[2] for row in table] == ["finished", "interrupted", "not begun"]
    assert f"hydra.sweep.dir={tmp_path / 'sweep'} resume=auto" in output
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_sweep_that_never_began_has_no_table(swept):
    code, table, output = swept("seed=0,1 optim.lrr=1", lambda settings: None)
    assert code == 2
    assert not table
    assert output.startswith("error: optim.lrr=1: there is no such key")


def test_no_secret_is_in_a_folder_s_name_or_a_note(swept, tmp_path):
    code, table, output = swept("+env.api_key=hush-1,hush-2 seed=0,1", lambda settings: None)
    assert code == 0
    names = ["env.api_key-seed0", "env.api_key-seed1", "env.api_key-seed0-2", "env.api_key-seed1-2"]
    assert [row[-1] for row in table] == names
    assert "#0: +env.api_key=*** seed=0\n" in output
    assert "hush" not in output
    assert not [path for path in tmp_path.rglob("*") if "hush" in path.name]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]


def test_a_member_whose_process_is_gone_was_killed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, host, state in (
        (gone.pid, socket.gethostname(), "killed"),
        (os.getpid(), socket.gethostname(), "running"),
        (gone.pid, "elsewhere", "running"),
    ):
        assert Note([], status="running", host=host, pid=pid).state == state


def test_lines_of_several_members_bear_their_numbers(tmp_path):
    with (tmp_path / "output").open("w") as file:
        marked = sweep.Marked(file, "#3 ")
        print("one\ntwo", file=marked)
        print("par", end="", file=marked)
        print("t", file=marked)
        assert not marked.isatty()
    assert (tmp_path / "output").read_text() == "#3 one\n#3 two\n#3 part\n"


def test_a_launcher_whose_package_is_missing_names_the_extra(swept, monkeypatch):
    monkeypatch.setattr(command_line, "launchers", lambda: ["basic"])
    for name, extra in (("joblib", "joblib"), ("submitit_slurm", "submitit")):
        code, _, output = swept(f"seed=0,1 hydra/launcher={name}", lambda settings: None)
        assert code == 2
        assert output.count("\n") == 1
        assert f"pip install -e '.[{extra}]'" in output


def test_submitit_is_given_no_secret_to_write(swept):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    line = "hydra/launcher=submitit_local +env.token=hush-hush seed=0,1"
    code, _, output = swept(line, lambda settings: None)
    assert code == 2
    assert "write +env.token='${oc.env:NAME}'" in output
    assert "hush" not in output


def test_joblib_s_members_end_well_on_ctrl_c_and_go_on_from_another_list(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    place = [f"hydra.sweep.dir={tmp_path}", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = begin(*TINY, "seed=0,1,2,-1", *place)
    lines = []
    assert sweep.stdout
    for line in sweep.stdout:
        lines.append(line)
        if line.startswith("#2 ") and "evaluation" in line:
            break
    members = psutil.Process(sweep.pid).children(recursive=True)
    os.killpg(sweep.pid, signal.SIGINT)
    output = "".join(lines) + sweep.communicate(timeout=60)[0]
    assert sweep.returncode == 130, output
    assert not psutil.wait_procs(members, timeout=10)[1]
    assert "Traceback" not in output
    status = {row[1]: row[2] for row in rows(output)}
    assert status["seed=2"] == "interrupted", output
    assert "finished" in (status["seed=0"], status["seed=1"]), output
    done = next(seed for seed in (0, 1) if status[f"seed={seed}"] == "finished")
    folder = "ppo-cartpole-debug_fast-tuned_none-seed{}"
    before = (tmp_path / folder.format(done) / "summary.json").stat().st_mtime_ns

    sweep = begin(*TINY, "seed=-1,2,1,0", "resume=auto", place[0])  # one after the other
    output, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 2, output
    assert {row[1]: row[2] for row in rows(output)} == {
        "seed=-1": "refused",
        **{f"seed={seed}": "finished" for seed in (0, 1, 2)},
    }
    resumed = json.loads((tmp_path / folder.format(2) / "summary.json").read_text())
    assert resumed["resumed_at_frames"]
    assert resumed["frames"] == 2048
    assert (tmp_path / folder.format(done) / "summary.json").stat().st_mtime_ns == before


def test_joblib_s_members_end_when_the_sweep_is_killed(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    place = [f"hydra.sweep.dir={tmp_path}", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = begin(*TINY, "seed=0,1", "total_frames=1_000_000", *place)
    assert sweep.stdout
    next(line for line in sweep.stdout if "evaluation" in line)
    members = psutil.Process(sweep.pid).children(recursive=True)
    sweep.kill()
    assert not psutil.wait_procs(members, timeout=30)[1]
    assert Board(tmp_path).stopped.exists()
    assert [note.status for note in Board(tmp_path).read().values()].count("interrupted") >= 1


def test_submitit_s_local_executor_runs_a_sweep(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep = begin(*TINY, "seed=0,-1", f"hydra.sweep.dir={tmp_path}", "hydra/launcher=submitit_local")
    output, _ = sweep.communicate(timeout=90)
    assert sweep.returncode == 2, output  # the mistake's, made in another process
    assert output.startswith(f"members print to {tmp_path}/.submitit/*/*.out\n")
    assert [row[2] for row in rows(output)] == ["finished", "refused"]
    logs = [file.read_text() for file in tmp_path.glob(".submitit/*/*.out")]
    assert any("2,048 frames" in log for log in logs)
