"""Sweeps: what is told of their members, and that every member ends as it should, wherever it runs."""

import json
import os
import signal
import sys
import time
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
from hydrl.errors import DivergedError, UserError
from hydrl.study import sweep
from hydrl.study.sweep import LONGEST, folder_name

TINY = ["-m", "debug=fast", "tuned=none", "algo=ppo", "env=cartpole"]
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
        monkeypatch.setattr(sys, "argv", ["train.py", *line.split(), f"hydra.sweep.dir={tmp_path / 'sweep'}"])
        code = sweep.close(command_line.run(main))
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
        (["env=cartpole", "seed=3", "algo=ppo"], "ppo-cartpole-seed3"),
        (["algo=ppo", "resume=auto", "trust=true", "logger=wandb", "logger.project=x"], "ppo"),
        (["optim.lr=1e-3", "+env.max_episode_steps=50"], "env.max_episode_steps_50-optim.lr_1e-3"),
        (["actor.num_cells=[64,64]", "~transforms.normalize"], "actor.num_cells_64_64-transforms.normalize"),
        (["env=gym", "env.id='ALE/Pong v5'"], "gym-env.id_ALE_Pong_v5"),
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

    code, table, output = swept("-m algo=dqn env=cartpole seed=range(5)", end)
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
    assert "resume=auto" not in output  # all have ended


@pytest.mark.parametrize(
    ("line", "errors", "code"),
    [
        ("-m seed=0,1", [None, None], 0),
        ("-m seed=0,1", [None, UserError("")], 2),
        ("-m seed=0,1", [DivergedError(""), None], 3),
        ("-m seed=0,1", [UserError(""), RuntimeError("")], 1),
        ("seed=0", [DivergedError("")], 3),
        ("seed=0", [None], 0),
    ],
)
def test_the_worst_end_is_the_exit_code(
    line: str, errors: list[Exception | None], code: int, swept, tmp_path
):
    def end(settings: Settings) -> None:
        if error := errors[settings.seed]:
            raise error

    assert swept(f"{line} hydra.run.dir={tmp_path / 'single'}", end)[0] == code


def test_an_interrupted_sweep_begins_no_further_member_and_says_how_to_go_on(swept, tmp_path):
    begun = []

    def end(settings: Settings) -> None:
        begun.append(settings.seed)
        if settings.seed == 1 and len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)  # as no training is there to take it

    before = signal.getsignal(signal.SIGTERM)
    code, table, output = swept("-m seed=0,1,2,3", end)
    assert code == 143
    assert [row[2] for row in table] == ["finished", "interrupted"]
    assert f"{tmp_path / 'sweep'}: 1 of 4 finished, 2 not begun" in " ".join(output.split())
    assert f"hydra.sweep.dir={tmp_path / 'sweep'} resume=auto" in output
    assert signal.getsignal(signal.SIGTERM) is before
    # Another list of members forgets what became of those.
    code, table, _ = swept("-m seed=2,1 resume=auto", end)
    assert (code, begun) == (0, [0, 1, 2, 1])
    assert [row[1:3] for row in table] == [["seed=2", "finished"], ["seed=1", "finished"]]


def test_a_sweep_that_never_began_has_no_table(swept):
    code, table, output = swept("-m seed=0,1 optim.lrr=1", lambda settings: None)
    assert (code, table) == (2, [])
    assert output.startswith("error: optim.lrr=1: there is no such key")


def test_ctrl_c_leaves_a_checkpoint_in_a_sweep_of_one_process(tmp_path):
    begun = begin(*TINY, "seed=0,1", "total_frames=1_000_000", f"hydra.sweep.dir={tmp_path}")
    assert begun.stdout
    next(line for line in begun.stdout if "evaluation" in line)
    os.killpg(begun.pid, signal.SIGINT)
    output = begun.communicate(timeout=60)[0]
    assert begun.returncode == 130, output
    assert [row[2] for row in rows(output)] == ["interrupted"]
    assert "Traceback" not in output
    assert list(tmp_path.glob("*-seed0/checkpoints/checkpoint-*"))


def test_joblib_s_members_end_well_on_ctrl_c_and_go_on_from_another_list(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    place = [f"hydra.sweep.dir={tmp_path}", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    folder = "ppo-cartpole-debug_fast-total_frames_8192-tuned_null-seed{}"
    # The refused member is small, so loky takes the next one for a leak and replaces its process: Ctrl-C
    # meets one that has just been started, which must not end and take the other ones with it.
    begun = begin(*TINY, "seed=-1,0,1,2,3", "total_frames=8192", *place)
    assert begun.stdout
    lines = []
    for line in begun.stdout:
        lines.append(line)
        if "A worker stopped" in line:
            break
    time.sleep(0.5)
    members = psutil.Process(begun.pid).children(recursive=True)
    os.killpg(begun.pid, signal.SIGINT)
    output = "".join(lines) + begun.communicate(timeout=60)[0]
    assert begun.returncode == 130, output
    assert not psutil.wait_procs(members, timeout=10)[1]
    assert "Traceback" not in output
    assert "not ended" not in output
    status = {row[1]: row[2] for row in rows(output)}
    assert status["seed=-1"] == "refused", output
    assert "interrupted" in status.values(), output
    done = [seed for seed in range(3) if status.get(f"seed={seed}") == "finished"]
    stopped = next(seed for seed in range(4) if status.get(f"seed={seed}") == "interrupted")
    before = {seed: (tmp_path / folder.format(seed) / "summary.json").stat().st_mtime_ns for seed in done}
    assert done

    begun = begin(
        *TINY, f"seed={stopped},{done[0]}", "total_frames=8192", "resume=auto", place[0]
    )  # one after the other
    output, _ = begun.communicate(timeout=60)
    assert begun.returncode == 0, output
    assert [row[1:3] for row in rows(output)] == [
        [f"seed={stopped}", "finished"],
        [f"seed={done[0]}", "finished"],
    ]
    assert json.loads((tmp_path / folder.format(stopped) / "summary.json").read_text())["frames"] == 8192
    assert (tmp_path / folder.format(done[0]) / "summary.json").stat().st_mtime_ns == before[done[0]]


def test_joblib_s_members_save_and_end_when_the_sweep_is_killed(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    place = [f"hydra.sweep.dir={tmp_path}", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    begun = begin(*TINY, "seed=0,1,2", "total_frames=1_000_000", *place)
    assert begun.stdout
    next(line for line in begun.stdout if "evaluation" in line)
    members = psutil.Process(begun.pid).children(recursive=True)
    begun.kill()
    assert not psutil.wait_procs(members, timeout=30)[1]
    found = sweep.outcomes(tmp_path / "members")
    assert "interrupted" in [each["status"] for each in found]
    assert len(found) <= 2  # the third never began
