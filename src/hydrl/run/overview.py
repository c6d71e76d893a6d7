"""What is in a set of data: sizes, ranges, how its episodes end and what they return."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from hydrl.errors import UserError
from hydrl.parts.experience.episodes import EPISODE
from hydrl.run import columns
from hydrl.run.columns import NEXT, Columns
from hydrl.run.files import atomically
from hydrl.run.kept import kept
from hydrl.run.played import name_of, returns_of
from hydrl.run.screen import console, key_value_table, short


def opened(path: Path, told: str) -> tuple[str, Columns, np.ndarray, np.ndarray]:
    """A set of whatever kind.

    Returns:
        its kind, its columns, and the returns and lengths of the episodes that ended in it.

    Raises:
        UserError: if there is none.
    """
    kind = columns.instead(path).removeprefix("use data=") if path.exists() else "minari"
    if kind not in ("run", "npz", "h5", "minari"):
        raise UserError(f"{told}: no set of data and no run lies there")
    if kind != "run":
        made = columns.read(kind, path, told)
        return kind, made, *returns_of(made)
    buffer, *_ = kept(path, "data")
    rows = buffer.storage[:]
    ended = rows["next"][rows["next", "done"].reshape(-1)]
    lengths = ended.get("step_count", torch.zeros(len(ended)))  # of a run that counted none
    return kind, of_memory(rows), ended["episode_reward"].reshape(-1).numpy(), lengths.reshape(-1).numpy()


def of_memory(rows: TensorDictBase) -> Columns:
    """The columns of what a replay memory keeps."""
    after = rows["next"]
    own = {"reward", "done", "terminated", "truncated", "episode_reward", "step_count", "cut_short"}
    made = {"actions": rows["action"].numpy(), "rewards": after["reward"].reshape(-1).numpy()}
    for key in after.keys(True, True):
        if key not in own and key in rows.keys(True, True):
            made[f"observations/{name_of(key)}"] = rows[key].numpy()
    if EPISODE in rows.keys():  # noqa: SIM118 - a tensordict's keys
        made["episodes"] = rows[EPISODE].numpy()
    ended = after["terminated"].reshape(-1)
    return made | {
        "terminals": ended.numpy(),
        "timeouts": (after["done"].reshape(-1) & ~ended).numpy(),
    }


def show(path: Path, kind: str, made: Columns, returns: np.ndarray, lengths: np.ndarray) -> None:
    """The set as a table."""
    table = key_value_table(f"{path}, data={kind}")
    table.add_row("rows", f"{len(made['rewards']):,}")
    by_itself, limited = (
        int(made[name].astype(bool).sum()) if name in made else None for name in columns.ENDS
    )
    over = "unknown" if limited is None else f"{limited:,}"
    table.add_row("episodes", f"{len(returns):,} ended: {by_itself:,} by themselves, {over} at a time limit")
    if len(returns):
        table.add_row("return", f"{returns.mean():,.1f} ± {returns.std():,.1f}, {span(returns)}")
        table.add_row("length", f"{lengths.mean():,.1f}, {span(lengths)}")
    for name in (each for each in made if each.partition("/")[0] in ("observations", "actions", "rewards")):
        table.add_row(name, described(made[name]))
    table.add_row(
        "what follows", "known of each row" if kind == "run" or of_next(made) else "of the row below"
    )
    if kind == "run":
        older = "not told apart, as an older run kept them: single transitions"
        table.add_row("sequences", "told apart" if "episodes" in made else older)
    console().print(table)


def of_next(made: Columns) -> bool:
    """Whether a set has the next observation of each row."""
    return bool(columns.observed(made, NEXT))


def span(values: np.ndarray) -> str:
    """The least and the greatest."""
    return f"{short(float(values.min()))} to {short(float(values.max()))}"


def described(values: np.ndarray) -> str:
    """Shape and kind of a row, and the range of its numbers."""
    size = " x ".join(map(str, values.shape[1:])) or "a number"
    return f"{size}, {values.dtype}, {span(values)}"


def draw(path: Path, returns: np.ndarray, title: str) -> None:
    """A picture of how often which return was reached."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    axes.hist(returns, bins=min(50, max(10, len(returns) // 5)), color="#0072B2")
    axes.axvline(returns.mean(), color="#E69F00", label=f"mean {returns.mean():,.1f}")
    axes.set(title=title, xlabel="return of an episode", ylabel="episodes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(edgecolor="none")
    with atomically(path) as partial:
        figure.savefig(partial, format="png")
