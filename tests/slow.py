"""The slow tests, file by file: `make test-slow`, or `make test-slow parts="test_probes"` for some.

How long they take is said before they start. Which have passed is kept in outputs/test-slow, for each commit
with what was changed since: called again, as where it was stopped, it leaves them out.
"""

import hashlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Of a test, measured on a core with little other work beside it; those of other files take about fifteen.
SECONDS = {
    "run/checkpoint/test_kills": 1_200,
    "test_learning_checks": 100,
    "test_algorithms": 12,
    "test_probes": 3,
    "envs/families/test_against_simulators": 10,
}
SECONDS |= {"envs/test_self_play": 300, "test_gate": 300}


class Passed:
    """Writes each test that passed into a file, at once."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self.file.open("a") as file:
                print(report.nodeid, file=file)


def tested() -> str:
    """Names the commit and what was changed since."""
    said = [subprocess.check_output(["git", *words]) for words in (["rev-parse", "HEAD"], ["diff", "HEAD"])]
    return hashlib.sha256(b"".join(said)).hexdigest()[:12]


def collected() -> dict[str, list[str]]:
    """The slow tests of each file that has some."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--collect-only"]
    parts = defaultdict(list)
    for line in subprocess.check_output(command, text=True).splitlines():
        if "::" in line:
            parts[line.removeprefix("tests/").partition(".py::")[0]].append(line)
    return parts


def left(parts: dict[str, list[str]], passed: set[str], cores: int) -> dict[str, tuple[list[str], float]]:
    """The tests of each part that have not passed, and how many minutes they take; the longest part last."""
    found = {}
    for part, tests in parts.items():
        if tests := [each for each in tests if each not in passed]:
            found[part] = (tests, len(tests) * SECONDS.get(part, 15) / 60 / min(cores, len(tests)))
    return dict(sorted(found.items(), key=lambda item: item[1][1]))


def main(chosen: list[str]) -> int:
    record = ROOT / "outputs/test-slow" / tested()
    record.parent.mkdir(parents=True, exist_ok=True)
    passed = set(record.read_text().splitlines()) if record.exists() else set()
    parts = collected()
    chosen = [f"test_{part}" if f"test_{part}" in parts else part for part in chosen]
    if unknown := sorted({*chosen} - {*parts}):
        sys.exit(f"no slow tests in {', '.join(unknown)}; there are {', '.join(parts)}")
    cores = os.cpu_count() or 1
    todo = left({part: parts[part] for part in chosen or parts}, passed, cores)
    for part, (tests, minutes) in todo.items():
        print(f"{part:36} {len(tests):4} of {len(parts[part]):4} tests  {minutes:5.1f} minutes")
    whole = sum(minutes for _, minutes in todo.values())
    rest = "stopped, the same command goes on with the rest" if todo else f"all passed, as {record} says"
    print(f"together {whole:.0f} minutes on {cores} cores; {rest}", flush=True)
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets it too, and ends
    failed = False
    for tests, _ in todo.values():
        code = subprocess.call([sys.executable, __file__, "--passed", record, *tests])
        failed |= code != 0
        if code == pytest.ExitCode.INTERRUPTED:
            break
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--passed"]:
        _, _, record, *tests = sys.argv
        sys.exit(pytest.main(["-n", "auto", "-m", "slow", *tests], plugins=[Passed(Path(record))]))
    sys.exit(main(sys.argv[1:]))
