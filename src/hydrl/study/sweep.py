"""Sweeps: the folder and the outcome of each member, wherever it runs, and the table of them at the end.

Hydra's launcher runs the members, in the process that was started or in others. Each writes its outcome to
``members/NUMBER.json`` in the sweep's folder, from which the started process takes table and exit code.
"""

import hashlib
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any, cast

import psutil
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hydrl.config import command_line
from hydrl.config.settings import Role, keys
from hydrl.errors import Interrupted
from hydrl.run.files import atomically

STATUS = {0: "finished", 1: "failed", 2: "refused", 3: "diverged"}  # by exit code
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.5  # seconds within which a signal that comes again is the same one, sent to the whole group
NUMBERS = ("#", "frames", "evaluation", "seconds")  # columns of the table
LONGEST = 120  # characters of a member's folder; file systems take 255 bytes


def folder_name(overrides: Sequence[str]) -> str:
    """A member's folder by its overrides in an order of its own: algorithm, environment, ..., seed.

    What makes no other run is left out, and nothing in it needs quotes in a shell or in Hydra's grammar.
    """
    given = dict(each.lstrip("+~").partition("=")[::2] for each in overrides)
    labels = {"algo": "", "env": "", "seed": "seed"}
    parts = []
    for key in sorted(given, key=lambda key: (key == "seed", key not in labels, key)):
        if re.split(r"[./]", key)[0] not in keys(Role.PROCESS, Role.RECORD):
            part = labels.get(key, f"{key}_") + given[key]
            parts.append(re.sub(r"[^a-zA-Z0-9.+-]+", "_", part).strip("_."))
    name = "-".join(parts) or "default"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}-{hashlib.blake2s(name.encode(), digest_size=4).hexdigest()}"
    return name


def overrides_of(hydra: DictConfig) -> list[str]:
    """What was typed, interpolations unresolved."""
    return cast(list[str], OmegaConf.to_container(hydra.overrides.task))


# The resolver ${member:} of hydra.sweep.subdir.
OmegaConf.register_new_resolver(
    "member", lambda *, _root_: folder_name(overrides_of(_root_.hydra)), replace=True
)


def outcomes(members: Path) -> list[dict[str, Any]]:
    """Of the members that have begun, by number."""
    found = [json.loads(file.read_text()) for file in members.glob("[0-9]*.json")]
    return sorted(found, key=lambda outcome: outcome["number"])


class Sweep:
    """A sweep in the process that was started: takes the signals, and hands them on to other processes.

    Args:
        folder: of the sweep; outcomes of an earlier process are removed.
        size: how many members there are.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.members = folder, size, folder / "members"
        self.signum, self.signalled = 0, 0.0
        self.members.mkdir(parents=True, exist_ok=True)
        for each in self.members.iterdir():
            each.unlink()
        self.previous = {each: signal.signal(each, self.receive) for each in SIGNALS}

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """Ends a member here by ``Interrupted``, one elsewhere after its batch; a second signal kills."""
        if self.signum and time.monotonic() - self.signalled < SAME:
            return
        again, self.signum, self.signalled = bool(self.signum), signum, time.monotonic()
        (self.members / "stopped").touch()
        running = {each["pid"] for each in outcomes(self.members) if each["status"] == "running"}
        children = [] if again else psutil.Process().children(recursive=True)
        elsewhere = [each for each in children if each.pid in running]
        for each in elsewhere:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signum)
        if not elsewhere:  # joblib kills its processes when this gets to it
            raise Interrupted(signum)


_sweep: Sweep | None = None  # of this process, if it was the one started
_exit_code = 0  # of the single run
_training = threading.Lock()  # held while this process runs a member


class Begin(Callback):
    """Hydra's callback in the process that was started."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Takes the signals; that a folder is not writable Hydra tells a moment later."""
        global _sweep
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(overrides_of(config.hydra))
        size = math.prod(len(list(each.sweep_iterator())) for each in parsed if each.is_discrete_sweep())
        with suppress(OSError):
            _sweep = Sweep(Path(config.hydra.sweep.dir), size)
        if not config.hydra.launcher._target_.endswith(".BasicLauncher"):
            # Processes begin with this mask: until `prepare`, Ctrl-C would end one, and joblib all others.
            threading.Thread(target=threading.Event().wait, daemon=True).start()  # without it, for this one
            resource_tracker.ensure_running()  # Python's: as it starts, it takes the mask away
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def job(train: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Makes a function Hydra's job: a failure is told and kept for :func:`close`, and a sweep goes on."""

    @wraps(train)
    def wrapper(cfg: DictConfig) -> None:
        run(train, cfg)  # apart, as joblib copies what a decorated function names itself

    return wrapper


def run(train: Callable[[DictConfig], None], cfg: DictConfig) -> None:
    """Runs a job: one of its own, or a member of a sweep."""
    global _exit_code
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        run_member(train, cfg)
    else:
        _exit_code, _ = command_line.attempt(train, cfg)
        if _exit_code == 2 and HydraConfig.initialized():
            remove_unused_folder(HydraConfig.get())


def remove_unused_folder(hydra: DictConfig) -> None:
    """Takes away the empty folder that Hydra made for a run which was refused, not one that was named."""
    if not any(each.startswith("hydra.run.dir") for each in hydra.overrides.hydra):
        for folder in Path(hydra.runtime.output_dir, "_").parents[:2]:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def run_member(train: Callable[[DictConfig], None], cfg: DictConfig) -> None:
    """Runs a member of a sweep, in the process that was started or in a launcher's.

    Raises:
        Interrupted: in the process that was started, so that no further member begins.
    """
    hydra, overrides = HydraConfig.get(), overrides_of(HydraConfig.get())
    members, number = Path(hydra.sweep.dir) / "members", hydra.job.num

    def write(status: str, exit_code: int = 1, error: str = "") -> None:
        outcome = {"number": number, "overrides": overrides, "folder": hydra.runtime.output_dir}
        outcome |= {"pid": os.getpid(), "status": status, "exit_code": exit_code, "error": error}
        with atomically(members / f"{number}.json") as partial:
            partial.write_text(json.dumps(outcome) + "\n")

    if _sweep is None:
        prepare(members)
    with _training:
        try:
            write("running")
            if (members / "stopped").exists():  # looked for after writing, so that one of the two is seen
                (members / f"{number}.json").unlink()
                return
            print(f"\n#{number}: {' '.join(overrides)}", flush=True)
            exit_code, error = command_line.attempt(train, cfg)
            write(STATUS.get(exit_code, "failed"), exit_code, error)
        except Interrupted as stop:
            write("interrupted", stop.exit_code)
            if _sweep:
                raise


@cache
def prepare(members: Path) -> None:
    """Prepares a launcher's process, which ends when the sweep's own does, even by SIGKILL.

    Without a member in hand it ignores signals: joblib kills all its processes where one dies.
    """
    parent = os.getppid()

    def receive(signum: int, frame: FrameType | None) -> None:
        if _training.locked():
            for each in SIGNALS:
                signal.signal(each, signal.SIG_IGN)
            raise Interrupted(signum)

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        (members / "stopped").touch()
        os.kill(os.getpid(), signal.SIGTERM)
        with _training:
            os._exit(1)

    os.environ["TTY_COMPATIBLE"] = "0"  # rich's: bars of several processes would overwrite each other
    for each in SIGNALS:
        signal.signal(each, receive)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=follow, daemon=True).start()


def close(code: int) -> int:
    """Gives the signals back and prints the table, if this process began a sweep.

    Args:
        code: what Hydra's own work ended with.

    Returns:
        the exit code of it all; of several members' the least, as 1, a defect's, weighs most.
    """
    global _sweep, _exit_code
    sweep, _sweep = _sweep, None
    single, _exit_code = _exit_code, 0
    if sweep is None:
        return code or single
    for signum, handler in sweep.previous.items():
        signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if found := outcomes(sweep.members):
        show(sweep, found)
    codes = [each["exit_code"] for each in found if each["exit_code"]]
    return 128 + sweep.signum if sweep.signum else code or min(codes, default=0)


def show(sweep: Sweep, found: Sequence[Mapping[str, Any]]) -> None:
    """Prints the table, and how to go on where a member has not ended."""
    from rich.table import Table
    from rich.text import Text

    from hydrl.run.screen import console

    lists = [each["overrides"] for each in found]
    common = [each for each in lists[0] if len(lists) > 1 and all(each in other for other in lists)]
    done, waiting = sum(each["status"] == "finished" for each in found), sweep.size - len(found)
    title = f"{sweep.folder}: {done} of {sweep.size} finished" + f", {waiting} not begun" * bool(waiting)
    table = Table(title=Text(f"{title}\n{' '.join(common)}".strip()))
    for name in ("#", "overrides", "status", "frames", "evaluation", "solved", "seconds", "folder or error"):
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for each in found:
        own = " ".join(word for word in each["overrides"] if word not in common)
        table.add_row(*map(Text, [str(each["number"]), own, *cells(each)]))
    console().print(table)
    if waiting or {"running", "interrupted"} & {each["status"] for each in found}:
        print(f"go on with the same command and hydra.sweep.dir={sweep.folder} resume=auto")


def cells(outcome: Mapping[str, Any]) -> list[str]:
    """A member's row from its status on; one that still says it runs was killed, or runs elsewhere."""
    status, folder, error = outcome["status"], Path(outcome["folder"]), outcome["error"].partition("\n")[0]
    summary: dict[str, Any] = {}
    if status in ("finished", "diverged", "interrupted"):  # others may have found an earlier run's there
        with suppress(OSError, ValueError):
            summary = json.loads((folder / "summary.json").read_text())
    mean, solved = summary.get("eval/return_mean"), summary.get("solved_at_frames")
    return [
        "not ended" if status == "running" else status,
        f"{summary['frames']:,}" if summary else "",
        "" if mean is None else f"{mean:,.1f} ± {summary['eval/return_std']:,.1f}",
        "" if solved is None else f"{solved:,} frames, {summary['solved_at_seconds']:.0f} s",
        f"{summary['wall_seconds']:,.0f}" if summary else "",
        (error if len(error) <= 100 else f"{error[:99]}…") or folder.name,
    ]
