"""Draws ``docs/dataflow.svg``: one batch through the loop, and the config group that chooses each component.

python scripts/docs/dataflow.py
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
# Component, its place, and the config groups that choose it.
BOXES = {
    "environment": (0, 2, "env"),
    "transforms": (1, 2, "transforms"),
    "collector": (2, 2, "collector"),
    "replay buffer\nor rollout": (3, 2, "buffer, data"),
    "minibatches": (3, 1, "minibatches"),
    "loss": (3, 0, "loss, target"),
    "optimizer": (2, 0, "optim, schedule"),
    "networks": (1, 0, "actor, critic, value,\nencoder, rnn, layers"),
    "exploration": (1, 1, "exploration"),
}
ARROWS = [
    ("environment", "transforms", ""),
    ("transforms", "collector", ""),
    ("collector", "replay buffer\nor rollout", "batch"),
    ("replay buffer\nor rollout", "minibatches", ""),
    ("minibatches", "loss", "minibatch"),
    ("loss", "optimizer", "gradients"),
    ("optimizer", "networks", "update"),
    ("networks", "exploration", "actions"),
]
STEP = 2.6, 1.55  # between boxes


def draw(path: Path) -> None:
    """Writes the picture."""
    figure, axes = pyplot.subplots(figsize=(8.4, 4.6))
    places = {name: (x * STEP[0], y * STEP[1]) for name, (x, y, _) in BOXES.items()}
    for start, end, label in [*ARROWS, ("exploration", "collector", "")]:
        gap = 46 if BOXES[start][1] == BOXES[end][1] else 26
        style = {"arrowstyle": "-|>", "color": "#555555", "shrinkA": gap, "shrinkB": gap}
        axes.annotate("", places[end], places[start], zorder=0, arrowprops=style)
        middle = [(a + b) / 2 for a, b in zip(places[start], places[end], strict=True)]
        level = BOXES[start][1] == BOXES[end][1]
        aside: dict[str, Any] = {"ha": "center"} if level else {"ha": "left"}
        axes.text(
            middle[0] + 0.1 * (not level),
            middle[1] + 0.13 * level,
            label,
            fontsize=8,
            color="#555555",
            **aside,
        )
    for name, (_, _, groups) in BOXES.items():
        x, y = places[name]
        box = {"boxstyle": "round,pad=0.4", "fc": "#e8f0fb", "ec": "#4a76b8"}
        axes.text(x, y, name, ha="center", va="center", fontsize=10, bbox=box)
        axes.text(x, y - 0.38, groups, ha="center", va="top", fontsize=8, color="#1b5e20", family="monospace")
    axes.set_xlim(-1.2, 3 * STEP[0] + 1.2)
    axes.set_ylim(-1.0, 2 * STEP[1] + 0.6)
    axes.axis("off")
    with matplotlib.rc_context({"svg.hashsalt": "hydrl", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", dpi=90)


if __name__ == "__main__":
    draw(ROOT / "docs" / "dataflow.svg")
