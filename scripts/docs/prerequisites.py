"""What rows of the results start from: runs, and datasets that are recorded of them, once for every seed."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrl.errors import RunError
from hydrl.experiments.processes import ProcessPool, TrainingProcess
from hydrl.experiments.sweep import folder_name, train_all

RECORD = Path(__file__).parents[1] / "record.py"
ADDED = ("data.path=", "init_from=")  # words that a row's runs get


class Prerequisites:
    """Runs and datasets by name, as declared in ``scripts/results.yaml``.

    An entry has ``overrides`` of a run and may have ``record``, arguments of ``scripts/record.py``. Like a
    row it may learn from the ``data`` of another entry, which is its dataset, or its run's replay buffer if
    it records none, or start from the run of another one, ``init_from``.

    Args:
        declared: the entries by name.
        out: folder of all runs.
    """

    def __init__(self, declared: Mapping[str, Mapping[str, Any]], out: Path) -> None:
        self.declared, self.out = declared, out

    def words(self, row: Mapping[str, Any], seed: int) -> list[str]:
        """The overrides that name what a row's run, or an entry's, starts from."""
        words = [f"data.path={self.data(row['data'], seed)}"] if "data" in row else []
        return words + ([f"init_from={self.run(row['init_from'], seed)}"] if "init_from" in row else [])

    def run(self, name: str, seed: int) -> Path:
        """The run folder of an entry."""
        return self.out / folder_name(self.overrides(name, seed))

    def data(self, name: str, seed: int) -> Path:
        """What is learned from: the dataset of an entry, or its run."""
        recorded = "record" in self.declared[name]
        return self.out / f"{name}-seed{seed}" if recorded else self.run(name, seed)

    def overrides(self, name: str, seed: int) -> list[str]:
        """The overrides of an entry's run, without those of :meth:`words`."""
        return [*self.declared[name]["overrides"], f"seed={seed}"]

    def needed(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Names of the entries that a row needs, in the order in which they are made."""
        for name in (row[key] for key in ("data", "init_from") if key in row):
            yield from self.needed(self.declared[name])
            yield name

    def make(self, rows: Sequence[tuple[Mapping[str, Any], int]], jobs: int) -> None:
        """Makes what rows need, each with its seed, and what is not there yet.

        Raises:
            RunError: if a run or a recording failed.
        """
        steps = dict.fromkeys((name, seed) for row, seed in rows for name in self.needed(row))
        while missing := [step for step in steps if not self.is_made(*step)]:
            ready = [
                (name, seed)
                for name, seed in missing
                if all(self.is_made(before, seed) for before in self.needed(self.declared[name]))
            ]
            words = {self.run(*step): self.words(self.declared[step[0]], step[1]) for step in ready}
            members = [
                list(member) for member in dict.fromkeys(tuple(self.overrides(*step)) for step in ready)
            ]
            if train_all(members, self.out, RowPool(jobs, words), ["resume=auto"]):
                raise RunError(
                    f"a run that rows start from has failed; what it printed is in {self.out}/*.log"
                )
            for name, seed in ready:
                self.record(name, seed)

    def is_made(self, name: str, seed: int) -> bool:
        """Whether an entry's run is finished and its dataset recorded."""
        return (self.run(name, seed) / "summary.json").is_file() and self.data(name, seed).is_dir()

    def record(self, name: str, seed: int) -> None:
        """Records an entry's dataset, if it has one.

        Raises:
            RunError: if that failed.
        """
        words = [*self.declared[name].get("record", ())]
        if not words or (out := self.data(name, seed)).is_dir():
            return
        command = [sys.executable, str(RECORD), f"run={self.run(name, seed)}", f"out={out}", *words]
        if subprocess.run(command, check=False).returncode:
            raise RunError(f"{out} could not be recorded; see above")

    def described(self) -> list[tuple[str, str]]:
        """Names of entries and the commands that make them, with the name of what they start from."""
        rows = []
        for name, entry in self.declared.items():
            keys = {"data": "data.path", "init_from": "init_from"}
            started = [f"{word}={entry[key]}" for key, word in keys.items() if key in entry]
            commands = [" ".join(["python train.py", *entry["overrides"], *started, "seed=100"])]
            if "record" in entry:
                commands.append(" ".join(["python scripts/record.py run=…", f"out={name}", *entry["record"]]))
            rows.append((name, "<br>".join(f"`{command}`" for command in commands)))
        return rows


class RowPool(ProcessPool):
    """A pool of runs that get further overrides, which the names of their folders do not have.

    Args:
        limit: number of runs that share the cores.
        words: the further overrides by run folder.
    """

    def __init__(self, limit: int, words: Mapping[Path, Sequence[str]]) -> None:
        super().__init__(limit)
        self.words = words

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> TrainingProcess:
        """Starts a run, see :class:`~hydrl.experiments.processes.TrainingProcess`."""
        return super().start([*arguments, *self.words.get(folder, ())], folder, shown)
