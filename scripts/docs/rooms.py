"""Draws ``docs/rooms.svg``: the rooms of ``src/hydrl`` and which of them import which, read off the imports.

    python scripts/docs/rooms.py

An arrow that follows from others is left out: A imports C is not drawn where A imports B and B imports C.
"""

import tomllib
from pathlib import Path
from typing import Any

import grimp
import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "rooms.svg"
HEIGHT = 0.5  # of a box; rows are 1 apart
# Single files that every room may import stand in one box.
SHARED = "specs, nan_checks, library_setup, errors"


def layers() -> list[list[str]]:
    """The rooms from the top to the bottom, as the first import contract in ``pyproject.toml`` lists them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [[name.strip().removeprefix("hydrl.") for name in row.split("|")] for row in rows]
    return [[name for name in row if name not in SHARED.split(", ")] for row in rooms if row != ["errors"]]


def imports() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second."""
    graph = grimp.build_graph("hydrl")
    rooms = [name for row in layers() for name in row]

    def room(module: str) -> str:
        return ".".join(module.split(".")[1:2])

    pairs = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pairs.add((room(module), room(imported)))
    return {(user, used) for user, used in pairs if user != used and {user, used} <= {*rooms}}


def reduced(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """``pairs`` without those that follow from others."""
    rooms = {room for pair in pairs for room in pair}

    def reaches(start: str, end: str, without: tuple[str, str]) -> bool:
        return any(
            (start, room) in pairs
            and (start, room) != without
            and (room == end or reaches(room, end, without))
            for room in rooms
        )

    return {pair for pair in pairs if not reaches(*pair, without=pair)}


def draw(path: Path) -> None:
    """Writes the picture; its description lists all imports, for the test that compares them."""
    rows = [row for row in layers() if row]
    pairs = imports()
    places = {}
    for height, row in enumerate(reversed(rows), start=1):
        for number, name in enumerate(row):
            places[name] = ((number - (len(row) - 1) / 2) * 2.6, float(height))
    figure, axes = pyplot.subplots(figsize=(7.5, 0.75 * (len(rows) + 1)))
    for user, used in sorted(reduced(pairs)):
        (left, top), (right, bottom) = places[user], places[used]
        rows_down = top - bottom
        bend = 0.0 if rows_down <= 1 else (0.1 + 0.08 * rows_down) * (1 if left + right <= 0 else -1)
        axes.annotate(
            "",
            (right, bottom + HEIGHT / 2),
            (left, top - HEIGHT / 2),
            zorder=0,
            arrowprops={"arrowstyle": "-|>", "color": "#555555", "connectionstyle": f"arc3,rad={bend}"},
        )
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10}
    for name, (x, y) in places.items():
        axes.text(x, y, name, bbox={"boxstyle": "round,pad=0.35", "fc": "#e8f0fb", "ec": "#4a76b8"}, **style)
    axes.text(0, 0, SHARED, bbox={"boxstyle": "round,pad=0.35", "fc": "#f2f2f2", "ec": "#888888"}, **style)
    axes.set_xlim(-4, 4)
    axes.set_ylim(-0.5, len(rows) + 0.5)
    axes.axis("off")
    with matplotlib.rc_context({"svg.hashsalt": "hydrl", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Description": described(pairs)}, bbox_inches="tight")


def described(pairs: set[tuple[str, str]]) -> str:
    """The arrows as text."""
    return "; ".join(f"{user} imports {used}" for user, used in sorted(pairs))


if __name__ == "__main__":
    draw(PICTURE)
