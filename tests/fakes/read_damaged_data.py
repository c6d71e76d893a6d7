"""Reads data files one after another in a process of its own: ``python damaged.py KIND FOLDER FIRST``.

A line before each, its number, and one after it, what came of it: who started it knows which one it died of.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

MESSAGE = 400  # characters of a message, that is one line


def spoilt(whole: bytes, random: random.Random) -> bytes:
    """A file with one kind of damage; half of it is where formats keep what they declare."""
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
    """What came of each: ``read``, ``refused: MESSAGE``, ``raised: ERROR`` or ``crashed: CODE``."""
    found: list[str] = []
    listed = json.dumps([str(each) for each in files])
    while len(found) < len(files):
        done = subprocess.run(
            [sys.executable, __file__, kind, str(len(found))],
            input=listed, capture_output=True, text=True, timeout=1_800, check=False,
        )  # fmt: skip
        found += done.stdout.splitlines()
        if done.returncode:
            found.append(f"crashed: {done.returncode} {done.stderr[-300:]}")
    return found


def main() -> None:
    """Reads those from the one of that number on."""
    from hydrl.datasets import files as columns
    from hydrl.errors import UserError

    kind, first = sys.argv[1], int(sys.argv[2])
    for file in json.load(sys.stdin)[first:]:
        try:
            made = columns.read_columns(kind, Path(file), "data.path=FILE")
            columns.transitions(made)
            told = "read"
        except UserError as error:
            told = f"refused: {error}" if "\n" not in str(error) else "raised: a message of several lines"
        except Exception as error:
            told = f"raised: {type(error).__name__}: {' '.join(str(error).split())}"
        print(told, flush=True)


def folder_of(whole: Path, damaged: str, content: bytes, into: Path) -> Path:
    """A copy of a set of several files, one of which has another content."""
    shutil.copytree(whole, into)
    (into / damaged).write_bytes(content)
    return into


if __name__ == "__main__":
    main()
