"""Conversion of dataset columns to an environment's rows: shapes, dtypes and units."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, OneHot, TensorSpec
from torchrl.envs import (
    BinarizeReward,
    DoubleToFloat,
    InitTracker,
    ObservationNorm,
    RandomTruncationTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SignTransform,
    StepCounter,
    Transform,
    TransformedEnv,
)

from hydrl.datasets.files import NEXT_OBSERVATIONS, Columns, column_entries, episode_ends
from hydrl.envs.external_env import GymIO, adapt_input
from hydrl.envs.spaces import is_image, is_vector
from hydrl.envs.transforms import ActionMask, ActionScaling, CopyTensors, RunningNorm
from hydrl.envs.transitions import action_entries
from hydrl.errors import UserError
from hydrl.experience.episodes import EPISODE, RETURN_TO_GO
from hydrl.library_setup import warn_once
from hydrl.specs import INFO, MASK, action_kind, choice_sizes

REWARD_TRANSFORMS = (RewardScaling, RewardClipping, SignTransform, BinarizeReward)  # of single rewards
# Transforms that change no value of an observation, or that are applied to datasets too.
SUPPORTED_TRANSFORMS = (
    *(RewardSum, StepCounter, DoubleToFloat, ActionScaling, CopyTensors, InitTracker),
    *(RandomTruncationTransform, ObservationNorm, RunningNorm, ActionMask),
    *REWARD_TRANSFORMS,
)
ABOUT = "about.json"
FORMAT = 2  # values are in the environment's own spaces; format 1, not written down, has the policy's
BOUND_TOLERANCE = 1e-3  # share of an action's range by which rounding may exceed its bounds


def read_about(path: Path) -> dict[str, Any]:
    """Contents of the ``about.json`` of a dataset, named by folder or file; empty if there is none."""
    folder = path.parent if path.is_file() and path.stem == "data" else path
    with suppress(OSError, ValueError, RecursionError):
        description = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return description if isinstance(description, dict) else {}
    return {}


def check_task(has: Any, task: str, label: str) -> None:
    """Checks that a dataset that names its task is of the run's.

    Raises:
        UserError: if it is of another.
    """
    if has not in (None, task):
        raise UserError(f"{label} has data of env={has}, not of env={task}")


def check_transforms(env: TransformedEnv, label: str) -> None:
    """Checks that the environment's transforms can be applied to a dataset.

    Raises:
        UserError: for an unsupported transform.
    """
    for transform in env.transform:
        if not isinstance(transform, SUPPORTED_TRANSFORMS):
            raise UserError(
                f"{label}: {type(transform).__name__} changes what the task shows, and would leave the data "
                "as it is; leave that transform out"
            )


def reward_transforms(env: TransformedEnv) -> list[Transform]:
    """The environment's transforms of single rewards."""
    return [transform for transform in env.transform if isinstance(transform, REWARD_TRANSFORMS)]


def to_env_rows(
    columns: Columns, env: TransformedEnv, label: str, own: GymIO | None = None
) -> TensorDictBase:
    """Transitions as rows ``[rows]`` of the environment below the transforms, in its own units.

    Args:
        columns: columns by :func:`hydrl.datasets.files.transitions`.
        env: gives the observation and action specs.
        label: how the user named the dataset, for messages.
        own: converter from the environment's own spaces; ``None`` if values are already the policy's.

    Raises:
        UserError: for observations or actions that do not fit the specs.
    """
    task = env.base_env
    rows = TensorDict(batch_size=[len(columns["rewards"])])
    columns = to_policy_columns(columns, own, label) if own else columns
    set_observations(rows, columns, task.observation_spec_unbatched, label)
    if "actions" not in columns:
        named = ", ".join(name for name in columns if name.startswith("actions/"))
        raise UserError(f"{label}: it has {named}, and the task takes one array, actions")
    rows.set(
        "action",
        convert_action(columns["actions"], task.action_spec_unbatched, action_kind(env), f"{label}: actions"),
    )
    set_episode_entries(rows, columns)
    for transform in env.transform:
        if isinstance(transform, ActionMask):
            check_action_mask(rows, transform.in_keys[1], label, choice_sizes(task.action_spec_unbatched))
    return rows


def set_observations(rows: TensorDictBase, columns: Columns, spec: Composite, label: str) -> None:
    """Sets the observations of ``rows`` and their next ones, by the environment's ``spec``."""
    keys = [key for key in spec.keys(True, True) if INFO not in (key, key[0])]
    for name in sorted({*column_entries(columns)} - {"", *map(column_name, keys)}):
        warn_once(f"{label}: the task does not show observations/{name}, which is left out")
    for key in keys:
        for column in ("observations", NEXT_OBSERVATIONS):
            values = find_column(
                column_entries(columns, column),
                key,
                column,
                alone=len([*spec.keys(True, True)]) == 1,
                label=label,
            )
            place: Any = (
                key if column == "observations" else ("next", *(key if isinstance(key, tuple) else (key,)))
            )
            rows.set(place, convert_observation(values, spec[key], f"{label}: {column}"))


def set_episode_entries(rows: TensorDictBase, columns: Columns) -> None:
    """Sets rewards, done flags, step counts, episode returns and episode ids of ``rows``."""
    terminal, done = (
        torch.as_tensor(flags.astype(bool)) for flags in (columns["terminals"], episode_ends(columns))
    )
    after = {
        "terminated": terminal,
        "truncated": torch.as_tensor(columns["timeouts"].astype(bool)),
        "done": done,
    }
    after |= {"reward": as_float32(columns["rewards"]), "episode_reward": as_float32(columns["next_returns"])}
    after["step_count"] = torch.as_tensor(columns["steps"])
    before = {name: torch.zeros(len(rows), dtype=torch.bool) for name in ("terminated", "truncated", "done")}
    before |= {"episode_reward": as_float32(columns["returns"]), "step_count": after["step_count"] - 1}
    before[RETURN_TO_GO] = as_float32(columns["to_go"])
    rows.set(EPISODE, torch.as_tensor(columns["episodes"].astype(np.int32)))
    rows.update({name: values.unsqueeze(-1) for name, values in before.items()})
    rows["next"].update({name: values.unsqueeze(-1) for name, values in after.items()})


def to_policy_columns(columns: Columns, own: GymIO, label: str) -> Columns:
    """Columns in the environment's own spaces as the policy reads them; other shapes stay as they are.

    Raises:
        UserError: for a discrete value outside its space.
    """
    outside = ("observations", NEXT_OBSERVATIONS, "actions")
    converted = {name: values for name, values in columns.items() if name.partition("/")[0] not in outside}
    for column in outside[:2]:
        inputs = to_network_inputs(column_entries(columns, column), own, f"{label}: {column}")
        converted |= {"/".join(filter(None, [column, name])): values for name, values in inputs.items()}
    return converted | {
        "actions": encode_actions(column_entries(columns, "actions"), own.action_space, f"{label}: actions")
    }


def to_network_inputs(observations: Columns, own: GymIO, label: str) -> Columns:
    """Observation columns by entry name, in the environment's own spaces, as network inputs."""
    inputs, alone = dict(observations), isinstance(own.adapted_env.observation_space, Dict)
    if own.mask_entry in inputs:
        inputs[MASK] = inputs.pop(own.mask_entry)
    if own.mask_entry and MASK in inputs and inputs[MASK].ndim > 2:  # of stacked frames, the newest last
        inputs[MASK] = inputs[MASK][:, -1]
    names = []
    for name, (path, space) in own.entries.items():
        written = (name, "_".join(map(str, path))) if path else ("", "observation", "pixels")
        if place := [candidate for candidate in written if candidate in inputs]:
            names.append(name if path else place[0])
            inputs[names[-1]] = encode_column(inputs.pop(place[0]), space, label)
    if not alone and names and "" not in own.entries and len(names) == len(own.entries):  # one vector of all
        rows = [inputs.pop(name) for name in names]
        inputs["observation"], names = np.concatenate(rows, -1), ["observation"]
    if own.observe and len(names) == 1:
        whole, shown = inputs[names[0]], own.adapted_env.observation_space
        reduced = next(iter(shown.values())).shape if alone else shown.shape
        if whole.shape[1:] != reduced and whole.ndim > 1 and len(whole[0]) > max(own.observe):
            inputs[names[0]] = whole[:, own.observe]
    return inputs


def encode_column(values: np.ndarray, space: Space, label: str) -> np.ndarray:
    """Values of a space as networks read them: images channels first, discrete one-hot, others a vector."""
    single_number = space.shape == () and values.shape[1:] == (1,)
    if is_vector(space) or (values.shape[1:] != space.shape and not single_number):
        return values
    if isinstance(space, Discrete | MultiDiscrete):
        start = np.asarray(space.start)
        check_choices(
            values.reshape(-1, *space.shape), space.n if space.shape == () else space.nvec, label, start
        )
        values = values.reshape(-1, *space.shape).astype(np.int64)
    if is_image(space):
        values = values.astype(np.uint8) if space.dtype == np.bool_ else values
        return adapt_input(torch.as_tensor(values), space).numpy()
    return adapt_input(torch.as_tensor(values), space).numpy().astype(np.float32)


def encode_actions(taken: Columns, space: Space, label: str) -> np.ndarray:
    """Actions in an environment's own space as one array, discrete values counted from 0.

    Args:
        taken: columns by entry name.
        space: the environment's action space.
        label: how the user named the dataset, for messages.

    Raises:
        UserError: for a missing entry or a discrete value outside its space.
    """
    if "" in taken and isinstance(space, Dict | Tuple):
        return taken[""]  # in a row already
    rows = []
    for name, (_, entry_space) in action_entries(space).items():
        if name not in taken:
            raise UserError(f"{label} has {', '.join(taken)}, and the task takes {space}")
        values = taken[name]
        if values.shape[1:] == entry_space.shape or (entry_space.shape == () and values.shape[1:] == (1,)):
            if isinstance(entry_space, Discrete | MultiDiscrete):
                sizes, start = (
                    entry_space.n if entry_space.shape == () else entry_space.nvec,
                    np.asarray(entry_space.start),
                )
                values = values.reshape(-1, *entry_space.shape)
                check_choices(values, sizes, label, start)
                values = values.astype(np.int64) - start
            values = values.reshape(len(values), -1)
        rows.append(values)
    return rows[0] if len(rows) == 1 else np.concatenate(rows, -1)


def check_action_mask(rows: TensorDictBase, key: NestedKey, label: str, several: Sequence[int] = ()) -> None:
    """Checks actions against their masks; empty masks at episode ends become all true, as in a run.

    Args:
        rows: ``[rows]``.
        key: entry of the mask, ``[rows, actions]``.
        label: how the user named the dataset, for messages.
        several: sizes of multi-discrete actions; empty for discrete ones.

    Raises:
        UserError: for an invalid action.
    """
    allowed, taken, after = rows[key], rows["action"], rows["next"]
    if several:
        places = taken + torch.tensor(several).cumsum(0) - torch.tensor(several)
    else:
        taken = taken.argmax(-1) if taken.shape == allowed.shape else taken
        places = taken.unsqueeze(-1)
    if not (fits := allowed.gather(-1, places.long()).all(-1)).all():
        row = int(fits.long().argmin())
        raise UserError(f"{label}: row {row:,} takes action {taken[row].tolist()}, which its {key} forbids")
    after[key] = after[key] | ~after[key].any(-1, keepdim=True)


def column_name(key: NestedKey) -> str:
    """An entry's name in columns; nested keys are joined by ``_``."""
    return "_".join(key) if isinstance(key, tuple) else key


def as_float32(values: np.ndarray) -> Tensor:
    """Values as a single-precision tensor."""
    return torch.as_tensor(values.astype(np.float32))


def find_column(
    columns: dict[str, np.ndarray], key: NestedKey, column: str, *, alone: bool, label: str
) -> np.ndarray:
    """The column of an observation entry; a single entry may be unnamed.

    Raises:
        UserError: if it is missing.
    """
    name = column_name(key)
    if alone and "" in columns:
        name = ""
    if name not in columns:
        has = ", ".join("/".join(filter(None, [column, name])) for name in columns)
        raise UserError(f"{label}: it has no {column}/{name}, which the task shows; it has {has}")
    return columns[name]


def convert_observation(values: np.ndarray, spec: TensorSpec, label: str) -> Tensor:
    """Observations ``[rows, ...]`` in the shape and dtype of ``spec``: one-hot, images channels first.

    Raises:
        UserError: if they do not fit.
    """
    wanted, has = tuple(spec.shape), values.shape[1:]
    choices = values.reshape(len(values)) if values.dtype.kind in "iu" and has in ((), (1,)) else None
    if choices is not None and len(wanted) == 1 and wanted != (1,) and spec.dtype.is_floating_point:
        check_choices(choices, wanted[0], label)
        return torch.eye(wanted[0])[torch.as_tensor(choices.astype(np.int64))]
    if len(wanted) == 3 and has != wanted and has == (*wanted[1:], wanted[0]):
        values = np.moveaxis(values, -1, 1)
    elif has != wanted and len(wanted) == 1 and int(np.prod(has)) == wanted[0]:
        values = values.reshape(-1, *wanted)
    if values.shape[1:] != wanted:
        raise UserError(f"{label} has rows of shape {list(has)}, and the task shows {list(wanted)}")
    if spec.dtype == torch.bool and ((values == 0) | (values == 1)).all():  # a mask of zeros and ones
        values = values.astype(bool)
    exact = {torch.uint8: np.uint8, torch.bool: np.bool_}.get(spec.dtype)  # images and masks
    if values.dtype != exact if exact else values.dtype == np.uint8:
        raise UserError(
            f"{label} has {values.dtype}, and the task shows {str(spec.dtype).removeprefix('torch.')}"
        )
    return torch.as_tensor(np.ascontiguousarray(values)) if exact else as_float32(values)


def convert_action(values: np.ndarray, spec: TensorSpec, kind: str, label: str) -> Tensor:
    """Actions ``[rows, ...]`` as the spec has them; continuous ones are clamped to its bounds.

    Raises:
        UserError: if they do not fit.
    """
    if kind == "discrete":
        choices, count = values, int(spec.space.n)
        if values.shape[1:] == (count,) and count > 1 and ((values == 0) | (values == 1)).all():
            choices = values.argmax(-1)
        elif values.shape[1:] not in ((), (1,)):
            raise UserError(
                f"{label} has rows of shape {list(values.shape[1:])}, and the task takes a choice"
            )
        choices = choices.reshape(len(values))
        check_choices(choices, count, label)
        chosen = torch.as_tensor(choices.astype(np.int64))
        return (
            torch.eye(count, dtype=spec.dtype)[chosen] if isinstance(spec, OneHot) else chosen.to(spec.dtype)
        )
    if kind == "multi-discrete":
        sizes = choice_sizes(spec)
        if values.shape[1:] != (len(sizes),):
            has = list(values.shape[1:])
            raise UserError(f"{label} has rows of shape {has}, and the task takes {len(sizes)} choices")
        check_choices(values, np.array(sizes), label)
        return torch.as_tensor(values.astype(np.int64)).to(spec.dtype)
    if kind != "continuous":
        raise UserError(f"{label}: the task has {kind} actions, of which no set is read")
    wanted = tuple(spec.shape)
    if int(np.prod(values.shape[1:])) != wanted[-1]:
        raise UserError(
            f"{label} has rows of shape {list(values.shape[1:])}, and the task takes {list(wanted)}"
        )
    taken, (low, high) = (
        as_float32(values).reshape(-1, *wanted),
        (spec.space.low.cpu().float(), spec.space.high.cpu().float()),
    )
    slack = BOUND_TOLERANCE * (high - low)
    if ((taken < low - slack) | (taken > high + slack)).any():
        reach, bounds = (
            f"{a:.4g} to {b:.4g}" for a, b in ((taken.min(), taken.max()), (low.min(), high.max()))
        )
        raise UserError(f"{label} reach from {reach}, and the task takes {bounds}")
    return taken.clamp(low, high)


def check_choices(choices: np.ndarray, count: Any, label: str, start: Any = 0) -> None:
    """Checks that discrete values are integers in ``[start, start + count)``, for each choice of several.

    Raises:
        UserError: naming the first that is not.
    """
    wrong = (choices != choices.astype(np.int64)) | (choices < start) | (choices >= start + count)
    if wrong.any():
        place = np.unravel_index(wrong.argmax(), wrong.shape)
        least, most = (np.broadcast_to(bound, wrong.shape)[place] for bound in (start, start + count - 1))
        raise UserError(f"{label} has {choices[place]}, and there are the choices {least} to {most}")
