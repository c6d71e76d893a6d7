"""Sweeps: the folder of each member, what becomes of it wherever it runs, and the table of all at the end.

The process that was started leaves a note for each member in the sweep's folder, and whatever process or
machine the member runs in keeps it up to date; exit code and table are read from these.
"""

import hashlib
import io
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self, TextIO, cast

import psutil
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hydrl.errors import Interrupted
from hydrl.run.files import atomically

ENDS = {0: "finished", 1: "failed", 2: "refused", 3: "diverged"}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.5  # seconds within which a signal that comes again is the same one, sent to the whole group
GRACE = 15.0  # seconds for a run to end in by itself, see hydrl.run.process.Stop
LONGEST = 120  # characters of a member's folder; file systems take 255 bytes

# Not in a folder's name: the member is the same run with any of these.
UNNAMED = (
    "resume",
    "trust",
    "run_dir",
    "logger",
    "log_every_frames",
    "checkpoint_every_frames",
    "keep_checkpoints",
)


def folder_name(overrides: Sequence[str]) -> str:
    """A member's folder: its overrides in an order of their own, whatever list they come from.

    Algorithm and environment come first and the seed last, so that a listing has repetitions side by side.
    Nothing in it needs quotes in a shell or in ``hydra.run.dir=DIR``.

    Args:
        overrides: as typed, without secrets.
    """
    given = dict(each.lstrip("+~").partition("=")[::2] for each in overrides)
    named = {
        key: re.sub(r"[^\w.+-]+", "_", value, flags=re.ASCII).strip("_.")
        for key, value in given.items()
        if re.split(r"[./]", key)[0] not in UNNAMED
    }
    parts = [named.pop(key) for key in ("algo", "env") if key in named]
    seed = [f"seed{named.pop('seed')}"] if "seed" in named else []
    parts += [f"{key.replace('/', '.')}_{value}".rstrip("_") for key, value in sorted(named.items())]
    name = "-".join([*parts, *seed]) or "default"
    if len(name) > LONGEST:
        digest = hashlib.blake2s(name.encode(), digest_size=4).hexdigest()
        name = f"{name[: LONGEST - 9]}-{digest}"
    return name


def member_folder(*, _root_: DictConfig) -> str:
    """The resolver ``${member:}`` of ``hydra.sweep.subdir``; members alike but for a secret are counted."""
    name, number = folder_name(overrides_of(_root_)), OmegaConf.select(_root_, "hydra.job.num")
    if number is None:  # not a member, as in --cfg hydra
        return name
    notes = Board(Path(_root_.hydra.sweep.dir)).read()
    before = sum(folder_name(note.overrides) == name for other, note in notes.items() if other < number)
    return f"{name}-{before + 1}" if before else name


OmegaConf.register_new_resolver("member", member_folder, replace=True)


def overrides_of(cfg: DictConfig) -> list[str]:
    """What was typed, without secrets."""
    root = cast(dict[str, Any], OmegaConf.to_container(cfg))
    return cast(list[str], root["hydra"]["overrides"]["task"])


@dataclass(frozen=True)
class Note:
    """What is known of a member.

    Attributes:
        overrides: that make it, without secrets.
        status: ``not begun``, ``running``, ``interrupted`` or one of ``ENDS``.
        exit_code: of a run that ends so; 1, a defect's, as long as it has not ended.
        folder: the run folder.
        error: why it failed, in a line.
        host: where it runs.
        pid: the process it runs in.
    """

    overrides: list[str]
    status: str = "not begun"
    exit_code: int = 1
    folder: str = ""
    error: str = ""
    host: str = ""
    pid: int = 0

    @property
    def is_here(self) -> bool:
        """Whether it was last seen running in a process of this machine."""
        return self.status == "running" and self.host == socket.gethostname()

    @property
    def state(self) -> str:
        """The status, with ``killed`` for one that says it runs and does not."""
        if not self.is_here:
            return self.status
        try:
            alive = psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            alive = False
        return "running" if alive else "killed"


class Board:
    """The notes of a sweep.

    Args:
        sweep: the sweep's folder.
    """

    def __init__(self, sweep: Path) -> None:
        self.folder = sweep / ".members"
        self.stopped = self.folder / "stopped"  # no further member begins
        self.owner = self.folder / "pid"  # of the process that was started

    def clear(self, members: Sequence[list[str]]) -> None:
        """Begins anew, with the overrides of each member."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for each in self.folder.iterdir():
            each.unlink()
        self.owner.write_text(str(os.getpid()))
        for number, overrides in enumerate(members):
            self.write(number, Note(overrides))

    def write(self, number: int, note: Note) -> None:
        """Puts a member's note up, in place of the one before."""
        with atomically(self.folder / f"{number}.json") as partial:
            partial.write_text(json.dumps(asdict(note)) + "\n")

    def read(self) -> dict[int, Note]:
        """Every member's note by its number."""
        files = sorted(self.folder.glob("[0-9]*.json"), key=lambda file: int(file.stem))
        return {int(file.stem): Note(**json.loads(file.read_text())) for file in files}


class Sweep:
    """A sweep as the process sees it that was started, which hands signals on to members elsewhere."""

    def __init__(self, folder: Path, members: Sequence[list[str]]) -> None:
        self.folder, self.board = folder, Board(folder)
        self.board.clear(members)
        self.signum = 0
        self.signalled = 0.0
        self.in_hand = False  # a member runs in this very process
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Takes the signals."""
        self.previous = {each: signal.signal(each, self.receive) for each in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Gives them back."""
        for each, handler in self.previous.items():
            signal.signal(each, handler)

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """Members in other processes end after the batch in hand; at a second signal at once."""
        if self.in_hand:
            raise Interrupted(signum)
        if self.signum and time.monotonic() - self.signalled < SAME:
            return
        again, self.signum, self.signalled = bool(self.signum), signum, time.monotonic()
        self.board.stopped.touch()
        here = [note.pid for note in self.board.read().values() if note.is_here]
        for pid in here:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if again else signum)
        if again or not here:
            raise Interrupted(signum)

    def exit_code(self) -> int:
        """Of all members; 1, a defect's, weighs most."""
        codes = [note.exit_code for note in self.board.read().values()]
        return min((code for code in codes if code), default=0)


# Of this process, if it was the one started.
_sweep: Sweep | None = None
# In a launcher's process: no member is in hand.
_idle = threading.Event()


class Begin(Callback):
    """Hydra's callback, in the process that was started."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Puts up the notes and takes the signals; what is not writable Hydra itself will tell."""
        global _sweep
        members = expected(config)
        launcher = config.hydra.launcher
        if members and launcher.get("n_jobs", 1) < 0:  # joblib's: a process without a member is of no use
            jobs = min(len(members), max(1, (os.cpu_count() or 1) + 1 + launcher.n_jobs))
            with read_write(config), open_dict(config):
                launcher.n_jobs = jobs
        if "submitit_folder" in launcher:
            print(f"members print to {config.hydra.sweep.dir}/.submitit/*/*.out", flush=True)
        with suppress(OSError, ValueError):  # as in a thread, which cannot take signals
            _sweep = Sweep(Path(config.hydra.sweep.dir), members).__enter__()


def expected(config: DictConfig) -> list[list[str]]:
    """The overrides of each member, as Hydra's own sweeper makes them; none if it is another's."""
    if not config.hydra.sweeper._target_.endswith(".BasicSweeper"):
        return []
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    fixed = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    typed = cast(list[str], OmegaConf.to_container(config.hydra.overrides.task))
    return BasicSweeper.split_arguments(parser.parse_overrides([*fixed, *typed]), None)[0]


def take_part(hydra: DictConfig, overrides: list[str], job: Callable[[], tuple[int, str]]) -> None:
    """Runs a member of a sweep, in this process or in a launcher's, and notes what becomes of it.

    Args:
        hydra: Hydra's own configuration.
        overrides: the member's, without secrets.
        job: the run; gives its exit code and why it failed.
    """
    board, number = Board(Path(hydra.sweep.dir)), hydra.job.num
    note = Note(overrides, folder=hydra.runtime.output_dir, host=socket.gethostname(), pid=os.getpid())
    with in_hand() if _sweep else elsewhere(board, number):
        board.write(number, replace(note, status="running"))
        if board.stopped.exists():  # looked for after the note, so that one of the two is seen
            board.write(number, Note(overrides))
            return
        print(f"\n#{number}: {' '.join(overrides)}" if _sweep else " ".join(overrides), flush=True)
        try:
            code, error = job()
        except (Interrupted, KeyboardInterrupt) as stop:
            code = stop.exit_code if isinstance(stop, Interrupted) else 128 + signal.SIGINT
            board.write(number, replace(note, status="interrupted", exit_code=code))
            if _sweep:
                raise
        else:
            board.write(number, replace(note, status=ENDS.get(code, "failed"), exit_code=code, error=error))


@contextmanager
def in_hand() -> Iterator[None]:
    """A member runs in the process that was started, which then needs to hand no signal on."""
    assert _sweep
    _sweep.in_hand = True
    try:
        yield
    finally:
        _sweep.in_hand = False


@contextmanager
def elsewhere(board: Board, number: int) -> Iterator[None]:
    """A member runs in a launcher's process: its lines bear its number, and it ends with the sweep's process.

    Between two members signals are ignored: who ends is for the sweep's own process to say.
    """

    def receive(signum: int, frame: FrameType | None) -> None:
        ignore()
        raise Interrupted(signum)

    def ignore() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)

    _idle.clear()
    follow_owner(board)
    for each in SIGNALS:
        signal.signal(each, receive)
    mark = f"#{number} "
    with redirect_stdout(Marked(sys.stdout, mark)), redirect_stderr(Marked(sys.stderr, mark)):
        try:
            yield
        finally:
            ignore()
            _idle.set()


def follow_owner(board: Board) -> None:
    """Ends this process after the batch in hand when the sweep's own is gone, even by SIGKILL.

    Only a child of it: what another program started, as submitit does, is that program's to end.
    """
    parent = os.getppid()
    if str(parent) != board.owner.read_text() or any(each.name == "owner" for each in threading.enumerate()):
        return

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        board.stopped.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        _idle.wait(GRACE)
        os._exit(1)

    threading.Thread(target=follow, name="owner", daemon=True).start()


class Marked(io.TextIOBase):
    """An output that several members share: whole lines, each with a mark, and no terminal's tricks."""

    def __init__(self, output: TextIO, mark: str) -> None:
        self.output, self.mark, self.rest = output, mark, ""

    def write(self, text: str) -> int:
        """Prints what lines are complete, at once."""
        *lines, self.rest = (self.rest + text).split("\n")
        if lines:
            self.output.write("".join(f"{self.mark}{line}\n" if line else "\n" for line in lines))
            self.output.flush()
        return len(text)

    def fileno(self) -> int:
        """Of the output itself, for libraries that write past Python."""
        return self.output.fileno()


def close(code: int) -> int:
    """Ends the sweep of this process, if it began one, with the table of its members.

    Args:
        code: what Hydra's own work ended with.

    Returns:
        the exit code of it all.
    """
    global _sweep
    if _sweep is None:
        return code
    sweep, _sweep = _sweep, None
    sweep.__exit__()
    notes = sweep.board.read()
    if any(note.status != "not begun" for note in notes.values()):
        show(sweep.folder, notes)
    return 128 + sweep.signum if sweep.signum else code or sweep.exit_code()


def show(folder: Path, notes: Mapping[int, Note]) -> None:
    """Prints the table."""
    from rich.table import Table
    from rich.text import Text

    from hydrl.run.screen import console

    lists = [note.overrides for note in notes.values()]
    common = [each for each in lists[0] if len(lists) > 1 and all(each in other for other in lists)]
    done = sum(note.status == "finished" for note in notes.values())
    table = Table(title=Text(f"{folder}: {done} of {len(notes)} finished\n{' '.join(common)}".strip()))
    numbers = ("#", "frames", "evaluation", "seconds")
    for name in ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error"):
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for number, note in notes.items():
        own = " ".join(each for each in note.overrides if each not in common)
        table.add_row(str(number), *(Text(each) for each in (own, *cells(note))))
    console().print(table)
    if {"running", "interrupted", "not begun"} & {note.status for note in notes.values()}:
        print(f"go on with the same command and hydra.sweep.dir={folder} resume=auto")


def cells(note: Note) -> list[str]:
    """A member's row from its status on."""
    status = note.state
    summary: dict[str, Any] = {}
    if status in ("finished", "diverged", "interrupted"):  # another may have left a summary there before
        with suppress(OSError, ValueError):
            summary = json.loads((Path(note.folder) / "summary.json").read_text())
    mean, solved = summary.get("eval/return_mean"), summary.get("solved_at_frames")
    return [
        status,
        f"{summary['frames']:,}" if summary else "",
        "" if mean is None else f"{mean:,.1f} ± {summary['eval/return_std']:,.1f}",
        "" if solved is None else f"{solved:,} frames, {summary['solved_at_seconds']:.0f} s",
        f"{summary['wall_seconds']:,.0f}" if summary else "",
        shorten(note.error) or Path(note.folder).name,
    ]


def shorten(text: str, length: int = 100) -> str:
    """The first line, cut where it gets long."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= length else f"{line[: length - 1]}…"
