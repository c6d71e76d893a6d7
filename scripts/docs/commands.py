"""Runs the commands of README and docs/ and writes docs/notes/commands.md: which ran, how, and when.

python scripts/docs/commands.py [REGEX [DIR]]   # only commands that match, the others keep their rows; in DIR

Training is shortened with ``debug=fast`` and one thread, and a sweep to two seeds: this shows that a command
runs, not what it reaches. Results have their own pages. Takes an hour on a busy core; each command has a row
once it ended, and one that has not run yet says that only its configuration was checked.
"""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import date
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "notes" / "commands.md"
TOP = """\
# Commands

Every command of README and docs/, with the day it last ran and how, for developers. `python
scripts/docs/commands.py` runs them in a folder of its own and writes this page.

- *fast*: with `debug=fast total_frames=512`, one thread, at most two seeds; `outputs/…`, `FOLDER` and the
  like are runs and datasets of its own. The command runs; [results](../results.md) have what it reaches.
- *whole*: as it stands.
- *results*: as it stands, with each seed of its row of [results](../results.md); the seconds of a run until
  its last evaluation, and the day the row was stored.
- *checked*: only its configuration, by `tests/scripts/test_commands.py`.
- *no*: not run here, with the reason.

`tests/test_my_project.py` runs the commands of the pages on your own components.

"""
HEAD = "| command | how | ended with | seconds | day |\n| --- | --- | --- | ---: | --- |\n"
# Why a command is not run here.
REASONS = {
    r"MY_TASKS|my_package|my_teams|my_games|my_envs|entity=ME": "names of yours",
    r"10\.0\.0\.1|collector=ray": "needs a Ray cluster",
    r"submitit|srun|/shared/": "needs Slurm",
    r"storage=": "needs a database",
    r"device=cuda": "needs a GPU",
    r"render=human": "needs a display",
    r"env=dm_control|mo_gymnasium|highway_env|flappy_bird|vizdoom": "needs a package that is not in `dev`",
    r"torchrl_trainer": "takes minutes; `tests/scripts/test_benchmark.py` covers its file",
    r"logger=wandb|wandb/": "needs an account",
    r"install=bash": "changes the shell",
}
# What the runner puts in place of names a reader replaces; the first that matches.
RUNS = {
    "kuhn": ("algo=ppo env=open_spiel env.id=kuhn_poker", "nash=true$|benchmark/mcts"),
    "tag": ("algo=mappo env=simple_tag", r"untrained=|episodes=200$"),
    "sac": ("algo=sac env=pendulum", r"algo=(sac|iql|td3) env=pendulum"),
    "ppo": ("algo=ppo env=inverted_double_pendulum", r"outputs/…|run=EXPERT|init_from=RUN"),
    "of-half_cheetah": ("algo=sac env=half_cheetah", "outputs/MY_RUN"),
}
FAST = "debug=fast torch_threads=1 total_frames=512 eval.max_steps=20"
TIMEOUT = 600  # seconds


def commands() -> list[str]:
    """Commands of Python in the code blocks of the pages, once each, without comments."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages += sorted((ROOT / "docs" / "algorithms").glob("*.md"))
    unique: dict[str, None] = {}
    for page in pages:
        if page.name == "results.md":  # written by make results, which runs them
            continue
        blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)
        shell = [block for language, block in blocks if language in ("", "bash")]
        for line in (line for block in shell for line in re.sub(r"\\\n\s*", " ", block).splitlines()):
            command = " ".join(re.sub(r"\s#\s.*$", "", line).split())
            if re.match(r"(\S+=\S+ |srun |eval \"\$\()?python (train|scripts/\S+)\.py", command):
                unique[command] = None
    return [*unique]


def reason(command: str) -> str:
    """Why a command is not run here; empty if it is."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, command)), "")


def command_to_run(command: str) -> tuple[str, str]:
    """A command as it is run here, and how that is called."""
    if re.search(r"--help|--cfg", command):
        return command, "whole"
    words = re.sub(r"outputs/sweeps/…", "outputs/sweeps/lr", command)
    for name, (_, pattern) in RUNS.items():
        if re.search(pattern, command):
            words = re.sub(r"outputs/…/checkpoints/\S*", f"'{name}/checkpoints/LAST'", words)
            words = re.sub(r"outputs/…|outputs/MY_RUN|EXPERT\b|RUN\b", name, words)
    if data := re.search(r"env=(\w+) data=npz data.path=FOLDER", words):
        words = words.replace("FOLDER", f"data-{data[1]}")
    if "train.py" in words:
        words = re.sub(r"'?seed=(range\([\d,]+\)|\d+(,\d+)+)'?", "seed=0,1", words)
        is_longer = "resume=" in words or "run.dir=behaviour" in words  # which needs whole episodes
        is_fork = re.search(r"resume=(?!auto)", words) and "run.dir=" in words
        words += f" {FAST}" + (" total_frames=3_072" if is_fork else " total_frames=1_536" * is_longer)
        words += " collector.frames_per_batch=512" * bool(
            re.search("algo=recurrent_ppo(?!.*per_batch)", words)
        )
        is_short = re.search("algo=decision_transformer|algo=recurrent_ppo(?!.*sequence)", words)
        words += " minibatches.sequence=16" * bool(is_short)
    elif "search.py" in words:
        words = re.sub(r"trials=\d+|seeds=\S+", "", words) + f" trials=2 seeds=0 {FAST}"
    elif "record.py" in words:
        words = re.sub(r"frames=\S+", "frames=400", words)
    elif "evaluate.py" in words:
        words = re.sub(r"episodes=\d+", "episodes=4", words)
    return words, "whole" if words == command else "fast"


def run(command: str, folder: Path) -> int:
    """Runs a command in a folder, in a fork of this process, which has imported PyTorch; its exit code."""
    for newest in re.findall(r"'?(\w+)/checkpoints/LAST'?", command):
        files = sorted((folder / newest / "checkpoints").glob("checkpoint-*"))
        command = re.sub(rf"'?{newest}/checkpoints/LAST'?", str(files[-1].relative_to(folder)), command)
    for name in re.findall(r"(?:out|hydra\.run\.dir)=(\w+)", command):
        if "resume=" not in command:
            shutil.rmtree(folder / name, ignore_errors=True)  # of another page's command
    child = get_context("fork").Process(target=run_in_child, args=(shlex.split(command), folder))
    child.start()
    child.join(TIMEOUT)
    if child.exitcode is None:
        child.kill()
        return 124
    return child.exitcode


def run_in_child(words: list[str], folder: Path) -> None:
    """Runs the script that a command's words name, as Python would; never returns."""
    try:
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        print(f"\n$ {shlex.join(words)}", flush=True)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            os.environ[name] = value
        script = str(ROOT / words[1])
        sys.argv = [script, *words[2:]]
        runpy.run_path(script, run_name="__main__")
        os._exit(0)
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def prepare(folder: Path) -> None:
    """Trains the runs and records the datasets that commands name."""
    shutil.copyfile(ROOT / "docs" / "published" / "gym_mujoco.csv", folder / "mine.csv")
    for name, (words, _) in RUNS.items():
        if not (folder / name / "summary.json").is_file():
            run(f"python train.py {words} {FAST} hydra.run.dir={name}", folder)
    if not (folder / "outputs" / "sweeps" / "lr").is_dir():
        words = f"algo=dqn env=cartpole seed=0,1 {FAST} hydra.sweep.dir=outputs/sweeps/lr"
        run(f"python train.py -m {words}", folder)
    for env in ("half_cheetah", "cartpole", "pendulum", "hopper", "inverted_double_pendulum"):
        if (folder / f"data-{env}").is_dir():
            continue
        algo = "dqn" if env == "cartpole" else "sac"
        run(f"python train.py algo={algo} env={env} {FAST} hydra.run.dir=of-{env} resume=auto", folder)
        run(f"python scripts/record.py run=of-{env} frames=2_000 random=1 out=data-{env}", folder)


def read_rows() -> dict[str, str]:
    """The page's rows by command."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    return {row.split("`")[1].replace("\\|", "|"): row for row in re.findall(r"^\| `.*$", text, re.M)}


def rows_of_results() -> dict[str, str]:
    """Rows of the commands that `make results` has run as they stand."""
    by_words = {frozenset(shlex.split(command)[2:]): command for command in commands()}
    rows = {}
    for file in sorted((ROOT / "docs" / "results").glob("*.jsonl")):
        runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        words = [word for word in runs[0]["overrides"] if not re.match("resume=|seed=", word)]
        if command := by_words.get(frozenset(words)):
            seconds = sum(run["curve"][-1][1] for run in runs) / len(runs)
            git = ["git", "log", "-1", "--format=%as", "--", str(file)]
            day = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            rows[command] = f"| {cell(command)} | results | 0 | {seconds:.0f} | {day} |"
    return rows


def cell(command: str) -> str:
    """A command in a cell of the page's table."""
    return f"`{command.replace('|', chr(92) + '|')}`"


def page_text(rows: Mapping[str, str]) -> str:
    """The page, with the rows of commands that have run and of those that cannot."""
    lines = []
    for command in commands():
        why = reason(command)
        new = f"| {cell(command)} | {'no' if why else 'checked'} | {why} | | |"
        row = rows.get(command, new)
        lines.append(new if why and "| results |" not in row else row)
    return TOP + HEAD + "".join(f"{line}\n" for line in lines)


def run_all(pattern: str, folder: Path) -> Iterator[None]:
    """Runs the commands that match, and writes the page after each."""
    rows = rows_of_results() | {
        command: row for command, row in read_rows().items() if not re.search(r"\| (checked|no) \|", row)
    }
    for command in commands():
        if reason(command) or not re.search(pattern, command):
            continue
        words, how = command_to_run(command)
        began = time.monotonic()
        code = run(words, folder)
        seconds = f"{time.monotonic() - began:.0f}"
        rows[command] = f"| {cell(command)} | {how} | {code} | {seconds} | {date.today()} |"
        print(rows[command], flush=True)
        PAGE.write_text(page_text(rows), encoding="utf-8")
        yield


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    import hydrl.api.runs  # noqa: F401  # PyTorch and all that a run imports, once for all commands

    place = Path("".join(sys.argv[2:3]) or tempfile.mkdtemp(prefix="hydrl-commands-"))
    print(place, flush=True)
    prepare(place)
    for _ in run_all("".join(sys.argv[1:2]), place):
        pass
