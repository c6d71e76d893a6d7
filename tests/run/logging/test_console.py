import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hydrl.run.logging import console
from hydrl.run.logging.console import Display, print_summary
from tests.conftest import ROOT

SUMMARY = {
    "algo": "ppo",
    "env": "cartpole",
    "seed": 7,
    "status": "finished",
    "frames": 12_345,
    "updates": 678,
    "wall_seconds": 9.87,
    "start_seconds": 5.04,
    "learning_seconds": 3.2,
    "evaluation_seconds": 1.55,
    "video_seconds": 0.0,
    "compile_seconds": 2.34,
    "frames_per_second": 1234.5,
    "eval/return_mean": 498.25,
    "eval/return_std": 1.5,
    "eval/episodes": 20,
    "best_eval/return_mean": 500.0,
    "solved_at_frames": 10_240,
    "solved_at_seconds": 8.125,
}


def test_the_closing_table_says_what_was_reached_and_where_it_lies(capsys):
    command = f"python train.py resume=/somewhere/{'long/' * 30}run"  # longer than any table
    print_summary(SUMMARY | {"status": "interrupted"}, Path("/somewhere/run[br]"), command)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == f"resume with: {command}"
    for part in (
        "ppo on cartpole, seed 7 (interrupted)",
        "498.2 ± 1.5 over 20 episodes",
        "first at threshold",
        "10,240 frames, 8.1 s",
        "12,345 frames, 678 updates",
        "9.9 s: 5.0 starting, 2.3 compiling, 3.2 learning, 1.6 evaluating",
        "1,234 frames/s in the loop",
        "/somewhere/run[br]",  # which is no markup
    ):
        assert part in shown


def test_an_evaluation_of_an_earlier_policy_says_of_which(capsys):
    for frames, shown in ((10_240, "over 20 episodes, at 10,240 frames"), (12_345, "over 20 episodes ")):
        print_summary(SUMMARY | {"eval/frames": frames}, Path("run"))
        assert shown in capsys.readouterr().out


def test_a_run_never_evaluated_has_no_line_for_it(capsys):
    nothing = dict.fromkeys(
        ("eval/return_mean", "eval/return_std", "best_eval/return_mean", "solved_at_frames")
    )
    print_summary(SUMMARY | nothing, Path("run"))
    shown = capsys.readouterr().out
    assert "evaluation" not in shown
    assert "solved" not in shown


@pytest.mark.parametrize(
    "evaluations", ["eval.every_frames=256", pytest.param("eval.every_frames=512", marks=pytest.mark.slow)]
)
def test_a_reader_that_has_left_costs_the_screen_alone(evaluations, tmp_path):
    words = ["debug=fast", "env=cartpole", "tuned=null", "total_frames=256", evaluations]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "train.py", *words, f"hydra.run.dir={tmp_path}"],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"


def run_in_shell(words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} {words}"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


TINY = "debug=fast env=cartpole tuned=null total_frames=256 eval.every_frames=256"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
def test_what_a_poor_terminal_cannot_show_is_replaced_and_files_are_utf_8_all_the_same(tmp_path):
    done = run_in_shell(f"train.py {TINY} hydra.run.dir={tmp_path}", **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode("ascii")
    assert "ppo on cartpole, seed 0" in shown
    assert "| evaluation      | 12.0 ? 2.0 over 2 episodes" in shown
    assert "12.0 ± 2.0 over 2 episodes" in (tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_whose_screen_was_closed_from_the_start_ends_as_any_other(tmp_path):
    done = run_in_shell(f"train.py {TINY} hydra.run.dir={tmp_path} <&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"


MISTAKES = ["train.py env=cartpol", "scripts/evaluate.py run=nowhere", "-m hydrl nonsense"]
SCREENS = ["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "2>&-"]


@pytest.mark.parametrize(
    ("words", "screen"),
    [
        pytest.param(words, screen, marks=() if place == other else pytest.mark.slow)
        for place, words in enumerate(MISTAKES)
        for other, screen in enumerate(SCREENS)
    ],
)
def test_a_mistake_has_its_exit_code_where_nobody_can_be_told(words, screen):
    done = run_in_shell(f"{words} {screen}")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_no_file_is_opened_in_the_place_of_a_closed_screen(tmp_path):
    """What a library prints there would else be written into it."""
    code = "from hydrl.run.logging.console import outlive_readers as o; o(); f = open(OUT, 'w')"
    code += "; f.write(str(f.fileno()))"
    code += "; import os; os.system('echo spilt; echo spilt >&2')"
    done = run_in_shell(f"""-c "OUT='{tmp_path}/file'; {code}" <&- >&- 2>&-""")
    assert done.returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_into_a_pipe_goes_a_line_at_first_and_one_an_evaluation_and_no_bar(capsys):
    display = Display("ppo cartpole", 1000)
    display.update(0, {})
    display.update(100, {"train/reward": -0.25})
    display.update(200, {"train/reward": -0.5})
    display.update(300, {"train/reward": -0.75, "eval/return_mean": 123.4, "eval/return_std": 5.6})
    display.update(400, {"train/reward": 1.0, "train/return": 20.0})
    display.update(500, {"train/reward": 1.0, "eval/return_mean": 150.0, "eval/return_std": 0.0})
    display.close()
    assert capsys.readouterr().out.splitlines() == [
        "ppo cartpole         100 frames  reward -0.250/step",
        "ppo cartpole         300 frames  reward -0.750/step  evaluation 123.4 ± 5.6",
        "ppo cartpole         500 frames  return 20.0  evaluation 150.0 ± 0.0",
    ]


def test_what_a_data_set_returned_is_not_taken_for_what_is_learned(capsys):
    display = Display("bc pendulum", 1000, data=True)
    display.update(100, {"train/reward": -0.25})
    display.update(200, {"train/reward": -0.5, "eval/return_mean": -900.0, "eval/return_std": 5.6})
    display.update(
        300, {"train/reward": -0.5, "train/return": -440.5, "eval/return_mean": -160.0, "eval/return_std": 1}
    )
    display.close()
    assert capsys.readouterr().out.splitlines() == [
        "bc pendulum         100 frames  dataset reward -0.250/step",
        "bc pendulum         200 frames  dataset reward -0.500/step  evaluation -900.0 ± 5.6",
        "bc pendulum         300 frames  dataset return -440.5  evaluation -160.0 ± 1.0",
    ]


def test_a_terminal_of_eighty_columns_shows_the_bar_and_all_figures(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(console, "console", lambda: Console(file=shown, force_terminal=True, width=80))
    display = Display("ppo-inverted_double_pendulum-seed0", 1_000_000)
    display.update(4_096, {"train/reward": 1_234.567})
    display.progress.refresh()
    before = len(shown.getvalue())
    display.update(
        512_345, {"train/return": 9_189.3, "eval/return_mean": 9_359.66, "time/frames_per_second": 1_854.1}
    )
    display.progress.refresh()
    assert "reward" not in shown.getvalue()[before:]
    display.close()
    for part in (
        "━━━",
        "512345/1000000",
        "reward 1,234.567/step",
        "return 9,189.3",
        "eval 9,359.7",
        "1,854 frames/s",
        "--:--",
    ):
        assert part in shown.getvalue()
