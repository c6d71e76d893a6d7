"""Summary of an offline dataset: sizes, ranges, episode ends and returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from hydrl.datasets import files
from hydrl.datasets.convert import FORMAT, column_name, read_about
from hydrl.datasets.files import NEXT_OBSERVATIONS, Columns
from hydrl.datasets.from_run import is_normalized, read_run_buffer
from hydrl.datasets.record import episode_returns
from hydrl.errors import UserError
from hydrl.experience.episodes import EPISODE
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.console import print_table
from hydrl.training.metrics import episodes_of

# The environment's own discrete spaces may start at another number.
ZERO_BASED = "choices are counted from 0, as networks have them"


def open_dataset(path: Path, label: str) -> tuple[str, Columns, np.ndarray, np.ndarray, str]:
    """Opens a dataset of any kind.

    Returns:
        its kind, its columns, returns and lengths of its finished episodes (empty if a run did not record
        them), and its units in words if they are not the environment's own.

    Raises:
        UserError: if there is none.
    """
    if not path.exists() and not files.is_minari_name(path):
        raise UserError(f"{label}: there is no such file or folder")
    kind = files.suggest_kind(path).removeprefix("use data=") if path.exists() else "minari"
    kind = "run" if kind == "replay_buffer" else kind
    if kind not in ("run", "npz", "h5", "minari"):
        raise UserError(f"{label}: no set of data and no run lies there")
    if kind != "run":
        columns = files.read_columns(kind, path, label)
        written = read_about(path)
        older = bool(written) and written.get("format") != FORMAT
        if kind == "minari":
            older = files.has_old_minari_format(path)
        return (
            kind,
            columns,
            *episode_returns(columns),
            ZERO_BASED if older and has_discrete_actions(columns) else "",
        )
    buffer, settings, left, _ = read_run_buffer(path, "data")
    rows = buffer.storage[:]
    if rows.ndim > 1 or rows.get("action", None) is None:
        what = "whole sequences" if rows.ndim > 1 else "of several agents"
        raise UserError(f"{label}: its rows are {what}, which no other run reads")
    ended = episodes_of(rows)
    lengths = ended.get("step_count", None)
    columns = buffer_columns(rows)
    return (
        kind,
        columns,
        ended["episode_reward"].reshape(-1).numpy(),
        np.empty(0) if lengths is None else lengths.reshape(-1).numpy(),
        describe_units(
            settings,
            left,
            several=rows.get("steps_to_next_obs", None) is not None,
            choices=has_discrete_actions(columns),
        ),
    )


def has_discrete_actions(columns: Columns) -> bool:
    """Whether a dataset's actions are discrete."""
    return "actions" in columns and columns["actions"].dtype.kind in "iu"


def describe_units(
    settings: Mapping[str, Any], left: list[str], *, several: bool, choices: bool = False
) -> str:
    """Units of a run's replay-buffer rows, in words.

    Args:
        settings: settings of the run.
        left: names of reward transforms that cannot be undone.
        several: whether rewards are n-step sums.
        choices: whether actions are discrete.
    """
    notes = ["rewards are the discounted sum of minibatches.n_steps"] if several else []
    notes += [f"rewards as transforms.{name} left them" for name in left]
    if is_normalized(settings):
        notes.append("what is observed as its normaliser showed it; `record` plays in the task's own")
    notes += [ZERO_BASED] if choices else []
    return ", ".join(notes) or "the task's own"


def buffer_columns(rows: TensorDictBase) -> Columns:
    """Columns of replay-buffer rows; one-hot actions become integers."""
    after, taken = rows["next"], rows["action"]
    if taken.ndim == 2 and not taken.is_floating_point() and bool((taken.sum(-1) == 1).all()):
        taken = taken.argmax(-1) if taken.shape[-1] > 1 else taken
    own = {"reward", "done", "terminated", "truncated", "episode_reward", "step_count", "cut_short"}
    columns = {"actions": taken.numpy(), "rewards": after["reward"].reshape(-1).numpy()}
    for key in after.keys(True, True):
        if key not in own and key in rows.keys(True, True):
            columns[f"observations/{column_name(key)}"] = rows[key].numpy()
    over = (after["done"] & ~after.get("cut_short", torch.zeros_like(after["done"]))).reshape(-1)
    if EPISODE in rows.keys():  # noqa: SIM118 - a tensordict's keys
        columns["episodes"] = rows[EPISODE].numpy()
        over &= torch.as_tensor(last_rows(columns["episodes"]))  # n-step rows see an end more than once
    ended = after["terminated"].reshape(-1)
    return columns | {"terminals": (over & ended).numpy(), "timeouts": (over & ~ended).numpy()}


def last_rows(episodes: np.ndarray) -> np.ndarray:
    """Whether a row is the last of its episode, ``[rows]``."""
    last = np.zeros(len(episodes), bool)
    _, backwards = np.unique(episodes[::-1], return_index=True)
    last[len(episodes) - 1 - backwards] = True
    return last


def print_summary(
    path: Path, kind: str, columns: Columns, returns: np.ndarray, lengths: np.ndarray, units: str = ""
) -> None:
    """Prints the dataset's summary as a table."""
    table = {"rows": f"{len(columns['rewards']):,}"}
    table["episodes"] = describe_ends(columns, len(returns)) + (
        "" if kind == "run" else describe_open_end(columns)
    )
    if len(returns):
        table["return"] = f"{returns.mean():,.1f} ± {returns.std():,.1f}, {describe_range(returns)}"
    if len(lengths):
        table["length"] = f"{lengths.mean():,.1f}, {describe_range(lengths)}"
    for name in (
        name for name in columns if name.partition("/")[0] in ("observations", "actions", "rewards")
    ):
        table[name] = describe_values(columns[name])
    below = f"of the row below, known of {len(files.transitions(columns)['rewards']):,} rows"
    table["what follows"] = "known of each row" if kind == "run" or has_next_observations(columns) else below
    if kind == "run":
        older = "not told apart, as an older run kept them: single transitions"
        table["sequences"] = "told apart" if "episodes" in columns else older
    if units:
        table["units"] = units
    print_table(f"{path}, data={kind}", table)


def describe_ends(columns: Columns, count: int) -> str:
    """How ``count`` episodes ended, in words; terminated counts before truncated."""
    by_itself = columns["terminals"].astype(bool)
    limited = (
        f"{int((files.episode_ends(columns) & ~by_itself).sum()):,}" if "timeouts" in columns else "unknown"
    )
    return f"{count:,} ended: {int(by_itself.sum()):,} by themselves, {limited} at a time limit"


def describe_open_end(columns: Columns) -> str:
    """The number of rows after the last episode end, in words; empty if there are none."""
    last = np.flatnonzero(np.r_[True, files.episode_ends(columns)])[-1]
    running = len(columns["rewards"]) - int(last)
    return f"; the last {running:,} rows have no end" if running else ""


def has_next_observations(columns: Columns) -> bool:
    """Whether a dataset has a column of next observations."""
    return bool(files.column_entries(columns, NEXT_OBSERVATIONS))


def describe_range(values: np.ndarray) -> str:
    """Minimum and maximum, in one number format."""
    ends = [float(values.min()), float(values.max())]
    most, whole = max(map(abs, ends)), values.dtype.kind != "f" or bool((values == np.floor(values)).all())
    form = "z.3g" if most >= 1e9 or (most < 100 and not whole) else "z,.0f" if whole else "z,.1f"
    return " to ".join(f"{end:{form}}" for end in ends)


def describe_values(values: np.ndarray) -> str:
    """Shape, dtype and range of a column, in words."""
    size = " x ".join(map(str, values.shape[1:])) or "a number"
    return f"{size}, {values.dtype}, {describe_range(values)}"


def draw_returns(path: Path, returns: np.ndarray, title: str) -> None:
    """Draws a histogram of episode returns."""
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
