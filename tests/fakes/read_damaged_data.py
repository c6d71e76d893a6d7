"""Reads damaged data files in a separate process: ``python read_damaged_data.py KIND FIRST``.

It prints one line for each file, so that its parent knows at which file it crashed.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

MESSAGE = 400  # characters of a message


def spoilt(whole: bytes, random: random.Random) -> bytes:
    """A file's bytes with one random kind of damage, in half of the cases in a header or footer."""
    data, place = bytearray(whole), random.randrange(len(whole))
    if random.random() < 0.5:
        place = random.choice(
            [random.randrange(min(4096, len(whole))), -random.randint(1, min(900, len(whole)))]
        )
    length = random.choice([1, 1, 2, 4, 8, 64])
    match random.randrange(6):
        case 0:
            data[place] ^= 1 << random.randrange(8)
        case 1:
            data[place : place + length or None] = random.randbytes(length)
        case 2:
            data[place : place + length or None] = b"\xff" * length
        case 3:
            data[place : place + length or None] = b"\0" * length
        case 4:
            del data[place:]
        case 5:
            del data[place : place + length or None]
    return bytes(data)


def outcomes(kind: str, files: list[Path]) -> list[str]:
    """The outcome of each file: ``read``, ``refused: MESSAGE``, ``raised: ERROR`` or ``crashed: CODE``."""
    results: list[str] = []
    listed = json.dumps([str(file) for file in files])
    while len(results) < len(files):
        done = subprocess.run(
            [sys.executable, __file__, kind, str(len(results))],
            input=listed, capture_output=True, text=True, timeout=1_800, check=False,
        )  # fmt: skip
        results += done.stdout.splitlines()
        if done.returncode:
            results.append(f"crashed: {done.returncode} {done.stderr[-300:]}")
    return results


def main() -> None:
    """Reads the files from number FIRST on."""
    from hydrl.datasets import files as columns
    from hydrl.errors import UserError

    kind, first = sys.argv[1], int(sys.argv[2])
    for file in json.load(sys.stdin)[first:]:
        try:
            table = columns.read_columns(kind, Path(file), "data.path=FILE")
            columns.transitions(table)
            outcome = "read"
        except UserError as error:
            outcome = f"refused: {error}" if "\n" not in str(error) else "raised: a message of several lines"
        except Exception as error:
            outcome = f"raised: {type(error).__name__}: {' '.join(str(error).split())}"
        print(outcome, flush=True)


def folder_of(whole: Path, damaged: str, content: bytes, into: Path) -> Path:
    """A copy of a dataset of several files, one of which has another content."""
    shutil.copytree(whole, into)
    (into / damaged).write_bytes(content)
    return into


if __name__ == "__main__":
    main()
