"""What is in a set of data: sizes, ranges, how its episodes end and what they return."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from hydrl.datasets import files
from hydrl.datasets.convert import FORMAT, about, name_of
from hydrl.datasets.files import NEXT, Columns
from hydrl.datasets.from_run import kept, standardised
from hydrl.datasets.record import returns_of
from hydrl.errors import UserError
from hydrl.experience.episodes import EPISODE
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.console import print_table
from hydrl.training.metrics import episodes_of

# The environment's own numbers may begin elsewhere.
COUNTED = "choices are counted from 0, as networks have them"


def opened(path: Path, told: str) -> tuple[str, Columns, np.ndarray, np.ndarray, str]:
    """A set of whatever kind.

    Returns:
        its kind, its columns, the returns and lengths of the episodes that ended in it (none, where a run
        counted none), and in what units its numbers are, where they are not the environment's own.

    Raises:
        UserError: if there is none.
    """
    if not path.exists() and not files.is_name(path):
        raise UserError(f"{told}: there is no such file or folder")
    kind = files.instead(path).removeprefix("use data=") if path.exists() else "minari"
    kind = "run" if kind == "replay_buffer" else kind
    if kind not in ("run", "npz", "h5", "minari"):
        raise UserError(f"{told}: no set of data and no run lies there")
    if kind != "run":
        made = files.read(kind, path, told)
        written = about(path)
        older = bool(written) and written.get("format") != FORMAT
        if kind == "minari":
            older = files.older_minari(path)
        return kind, made, *returns_of(made), COUNTED if older and has_choices(made) else ""
    buffer, settings, left, _ = kept(path, "data")
    rows = buffer.storage[:]
    if rows.ndim > 1 or rows.get("action", None) is None:
        what = "whole sequences" if rows.ndim > 1 else "of several agents"
        raise UserError(f"{told}: its rows are {what}, which no other run reads")
    ended = episodes_of(rows)
    lengths = ended.get("step_count", None)
    made = of_memory(rows)
    return (
        kind,
        made,
        ended["episode_reward"].reshape(-1).numpy(),
        np.empty(0) if lengths is None else lengths.reshape(-1).numpy(),
        units(
            settings,
            left,
            several=rows.get("steps_to_next_obs", None) is not None,
            choices=has_choices(made),
        ),
    )


def has_choices(made: Columns) -> bool:
    """Whether the actions of a set are choices."""
    return "actions" in made and made["actions"].dtype.kind in "iu"


def units(settings: Mapping[str, Any], left: list[str], *, several: bool, choices: bool = False) -> str:
    """In which a run kept its rows.

    Args:
        settings: the run's.
        left: its transforms of rewards that cannot be undone.
        several: whether a row is of several steps.
        choices: whether the actions are.
    """
    found = ["rewards are the discounted sum of minibatches.n_steps"] if several else []
    found += [f"rewards as transforms.{name} left them" for name in left]
    if standardised(settings):
        found.append("what is observed as its normaliser showed it; `record` plays in the task's own")
    found += [COUNTED] if choices else []
    return ", ".join(found) or "the task's own"


def of_memory(rows: TensorDictBase) -> Columns:
    """The columns of what a replay memory keeps; a choice is its number."""
    after, taken = rows["next"], rows["action"]
    if taken.ndim == 2 and not taken.is_floating_point() and bool((taken.sum(-1) == 1).all()):
        taken = taken.argmax(-1) if taken.shape[-1] > 1 else taken
    own = {"reward", "done", "terminated", "truncated", "episode_reward", "step_count", "cut_short"}
    made = {"actions": taken.numpy(), "rewards": after["reward"].reshape(-1).numpy()}
    for key in after.keys(True, True):
        if key not in own and key in rows.keys(True, True):
            made[f"observations/{name_of(key)}"] = rows[key].numpy()
    over = (after["done"] & ~after.get("cut_short", torch.zeros_like(after["done"]))).reshape(-1)
    if EPISODE in rows.keys():  # noqa: SIM118 - a tensordict's keys
        made["episodes"] = rows[EPISODE].numpy()
        over &= torch.as_tensor(last_of(made["episodes"]))  # rows of several steps see an end more than once
    ended = after["terminated"].reshape(-1)
    return made | {"terminals": (over & ended).numpy(), "timeouts": (over & ~ended).numpy()}


def last_of(episodes: np.ndarray) -> np.ndarray:
    """``[rows]``, whether a row is the last of its episode."""
    last = np.zeros(len(episodes), bool)
    _, backwards = np.unique(episodes[::-1], return_index=True)
    last[len(episodes) - 1 - backwards] = True
    return last


def show(
    path: Path, kind: str, made: Columns, returns: np.ndarray, lengths: np.ndarray, units: str = ""
) -> None:
    """The set as a table."""
    table = {"rows": f"{len(made['rewards']):,}"}
    table["episodes"] = over(made, len(returns)) + ("" if kind == "run" else open_end(made))
    if len(returns):
        table["return"] = f"{returns.mean():,.1f} ± {returns.std():,.1f}, {span(returns)}"
    if len(lengths):
        table["length"] = f"{lengths.mean():,.1f}, {span(lengths)}"
    for name in (each for each in made if each.partition("/")[0] in ("observations", "actions", "rewards")):
        table[name] = described(made[name])
    below = f"of the row below, known of {len(files.transitions(made)['rewards']):,} rows"
    table["what follows"] = "known of each row" if kind == "run" or of_next(made) else below
    if kind == "run":
        older = "not told apart, as an older run kept them: single transitions"
        table["sequences"] = "told apart" if "episodes" in made else older
    if units:
        table["units"] = units
    print_table(f"{path}, data={kind}", table)


def over(made: Columns, count: int) -> str:
    """How ``count`` episodes ended; one that did both at once ended by itself."""
    by_itself = made["terminals"].astype(bool)
    limited = f"{int((files.ends(made) & ~by_itself).sum()):,}" if "timeouts" in made else "unknown"
    return f"{count:,} ended: {int(by_itself.sum()):,} by themselves, {limited} at a time limit"


def open_end(made: Columns) -> str:
    """What of a set comes after its last end, which is no whole episode; empty where nothing does."""
    last = np.flatnonzero(np.r_[True, files.ends(made)])[-1]
    running = len(made["rewards"]) - int(last)
    return f"; the last {running:,} rows have no end" if running else ""


def of_next(made: Columns) -> bool:
    """Whether a set has the next observation of each row."""
    return bool(files.observed(made, NEXT))


def span(values: np.ndarray) -> str:
    """The least and the greatest, both in one form."""
    ends = [float(values.min()), float(values.max())]
    most, whole = max(map(abs, ends)), values.dtype.kind != "f" or bool((values == np.floor(values)).all())
    form = "z.3g" if most >= 1e9 or (most < 100 and not whole) else "z,.0f" if whole else "z,.1f"
    return " to ".join(f"{each:{form}}" for each in ends)


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
