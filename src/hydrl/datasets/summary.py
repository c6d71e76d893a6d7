"""Summary of an offline dataset: sizes, ranges, episode ends and returns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from hydrl.datasets import files
from hydrl.datasets.convert import column_name, is_old_format, read_about
from hydrl.datasets.files import NEXT_OBSERVATIONS, Columns
from hydrl.datasets.from_run import is_normalized, read_run_buffer
from hydrl.datasets.record import episode_returns
from hydrl.errors import UserError
from hydrl.experience.episodes import EPISODE
from hydrl.run.atomic_files import atomically
from hydrl.run.logging.console import print_table
from hydrl.training.metrics import episodes_of

# The environment's own discrete spaces may start at another number.
ZERO_BASED = "discrete actions counted from 0"


def open_dataset(path: Path, label: str) -> tuple[str, Columns, np.ndarray, np.ndarray, str]:
    """Opens a dataset of any kind.

    Returns:
        the option of ``data`` that reads it, its columns, returns and lengths of its complete episodes (empty
        if a run did not record them), and its units in words if they are not the environment's own.

    Raises:
        UserError: if there is none.
    """
    if not path.exists() and not files.is_minari_id(path):
        raise UserError(f"{label}: no such file or folder.")
    kind = files.guess_kind(path) if path.exists() else "minari"
    if kind is None:
        raise UserError(f"{label}: no offline dataset and no run in this folder.")
    if kind != "replay_buffer":
        columns = files.read_columns(kind, path, label)
        is_old = is_old_format(kind, path, read_about(kind, path)) and has_discrete_actions(columns)
        return kind, columns, *episode_returns(columns), ZERO_BASED * is_old
    buffer, settings, applied, _ = read_run_buffer(path, "data")
    rows = buffer.storage[:]
    if rows.ndim > 1 or rows.get("action", None) is None:
        content = "sequences" if rows.ndim > 1 else "transitions of several agents"
        raise UserError(f"{label}: its rows are {content}. No other run can read them.")
    episodes = episodes_of(rows)
    lengths = episodes.get("step_count", None)
    columns = buffer_columns(rows)
    n_step, discrete = rows.get("steps_to_next_obs", None) is not None, has_discrete_actions(columns)
    return (
        kind,
        columns,
        episodes["episode_reward"].reshape(-1).numpy(),
        np.empty(0) if lengths is None else lengths.reshape(-1).numpy(),
        describe_units(settings, applied, n_step=n_step, discrete=discrete),
    )


def has_discrete_actions(columns: Columns) -> bool:
    """Whether a dataset's actions are discrete."""
    return "actions" in columns and columns["actions"].dtype.kind in "iu"


def describe_units(settings: Mapping[str, Any], applied: list[str], *, n_step: bool, discrete: bool) -> str:
    """Units of a run's replay-buffer rows, in words.

    Args:
        settings: settings of the run.
        applied: names of reward transforms that cannot be undone.
        n_step: whether rewards are n-step sums.
        discrete: whether actions are discrete.
    """
    notes = ["rewards are the discounted sum of minibatches.n_steps"] * n_step
    notes += [f"rewards include transforms.{name}" for name in applied]
    notes += ["observations are normalized (`record` has the environment's own)"] * is_normalized(settings)
    return ", ".join([*notes, *[ZERO_BASED] * discrete]) or "the environment's own"


def buffer_columns(rows: TensorDictBase) -> Columns:
    """Columns of replay-buffer rows; one-hot actions become integers."""
    after, actions = rows["next"], rows["action"]
    if actions.ndim == 2 and not actions.is_floating_point() and bool((actions.sum(-1) == 1).all()):
        actions = actions.argmax(-1) if actions.shape[-1] > 1 else actions
    others = {"reward", "done", "terminated", "truncated", "episode_reward", "step_count", "cut_short"}
    columns = {"actions": actions.numpy(), "rewards": after["reward"].reshape(-1).numpy()}
    for key in after.keys(True, True):
        if key not in others and key in rows.keys(True, True):
            columns[f"observations/{column_name(key)}"] = rows[key].numpy()
    done = (after["done"] & ~after.get("cut_short", torch.zeros_like(after["done"]))).reshape(-1)
    if EPISODE in rows.keys():  # noqa: SIM118 - a tensordict's keys
        columns["episodes"] = rows[EPISODE].numpy()
        done &= torch.as_tensor(last_rows(columns["episodes"]))  # n-step rows see an end more than once
    terminated = after["terminated"].reshape(-1)
    return columns | {"terminals": (done & terminated).numpy(), "timeouts": (done & ~terminated).numpy()}


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
    is_buffer, count = kind == "replay_buffer", len(columns["rewards"])
    open_end = "" if is_buffer else describe_open_end(columns)
    table = {"rows": f"{count:,}", "episodes": describe_ends(columns, len(returns)) + open_end}
    if len(returns):
        table["return"] = f"{returns.mean():,.1f} ± {returns.std():,.1f}, {describe_range(returns)}"
    if len(lengths):
        table["length"] = f"{lengths.mean():,.1f}, {describe_range(lengths)}"
    for name, values in columns.items():
        if name.partition("/")[0] in ("observations", "actions", "rewards"):
            size = " x ".join(map(str, values.shape[1:])) or "a number"
            table[name] = f"{size}, {values.dtype}, {describe_range(values)}"
    if not (is_buffer or files.column_entries(columns, NEXT_OBSERVATIONS)):
        count = len(files.transitions(columns)["rewards"])
    table["next observations"] = f"of {count:,} rows"
    if is_buffer:
        table["sequences"] = "yes" if "episodes" in columns else "no: saved by an older version"
    if units:
        table["units"] = units
    print_table(f"{path}, data={kind}", table)


def describe_ends(columns: Columns, count: int) -> str:
    """How ``count`` episodes ended, in words; terminated counts before truncated."""
    terminated = columns["terminals"].astype(bool)
    truncated = int((files.episode_ends(columns) & ~terminated).sum())
    limits = f"{truncated:,}" if "timeouts" in columns else "unknown"
    return f"{count:,} complete: {int(terminated.sum()):,} terminated, {limits} truncated"


def describe_open_end(columns: Columns) -> str:
    """The number of rows after the last episode end, in words; empty if there are none."""
    last = np.flatnonzero(np.r_[True, files.episode_ends(columns)])[-1]
    rest = len(columns["rewards"]) - int(last)
    return f"; the last {rest:,} rows have no end" if rest else ""


def describe_range(values: np.ndarray) -> str:
    """Minimum and maximum, in one number format."""
    ends = [float(values.min()), float(values.max())]
    largest = max(map(abs, ends))
    is_whole = values.dtype.kind != "f" or bool((values == np.floor(values)).all())
    form = "z,.0f" if is_whole else "z,.1f"
    if largest >= 1e9 or (largest < 100 and not is_whole):
        form = "z.3g"
    return " to ".join(f"{end:{form}}" for end in ends)


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
