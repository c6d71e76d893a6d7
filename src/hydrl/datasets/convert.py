"""Conversion of dataset columns to transitions of an environment: shapes, dtypes and units."""

import json
from collections.abc import Mapping, Sequence
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

from hydrl.datasets.files import (
    NEXT_OBSERVATIONS,
    Columns,
    column_entries,
    episode_ends,
    has_old_minari_format,
    minari_folder,
)
from hydrl.envs.external_env import GymIO, adapt_input
from hydrl.envs.spaces import is_image, is_vector
from hydrl.envs.transforms import ActionMask, ActionScaling, CopyTensors, RunningNorm
from hydrl.envs.transitions import action_entries
from hydrl.errors import UserError, warn_once
from hydrl.experience.episodes import EPISODE, RETURN_TO_GO
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


def read_about(kind: str, path: Path) -> dict[str, Any]:
    """Contents of a dataset's ``about.json``; empty if there is none."""
    if kind == "minari":
        folder = minari_folder(path).parent
    else:
        folder = path.parent if path.is_file() and path.stem == "data" else path
    with suppress(OSError, ValueError, RecursionError):
        description = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return description if isinstance(description, dict) else {}
    return {}


def is_old_format(kind: str, path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a dataset with this ``about.json`` has format 1, with values as the policy has them."""
    if about:
        return about.get("format") != FORMAT
    return kind == "minari" and has_old_minari_format(path)


def check_task(dataset_task: Any, task: str, label: str) -> None:
    """Checks that a dataset is of the run's environment, if it names its own.

    Raises:
        UserError: if it is of another.
    """
    if dataset_task not in (None, task):
        raise UserError(f"{label}: the dataset is of env={dataset_task}, the run of env={task}.")


def check_transforms(env: TransformedEnv, label: str) -> None:
    """Checks that the environment's transforms can be applied to a dataset.

    Raises:
        UserError: for an unsupported transform.
    """
    for transform in env.transform:
        if not isinstance(transform, SUPPORTED_TRANSFORMS):
            name = type(transform).__name__
            raise UserError(f"{label}: {name} cannot be applied to a dataset. Remove it from transforms.")


def reward_transforms(env: TransformedEnv) -> list[Transform]:
    """The environment's transforms of single rewards."""
    return [transform for transform in env.transform if isinstance(transform, REWARD_TRANSFORMS)]


def to_env_rows(columns: Columns, env: TransformedEnv, label: str, io: GymIO | None = None) -> TensorDictBase:
    """Transitions ``[rows]`` of the environment below the transforms, in its own units.

    Args:
        columns: columns by :func:`hydrl.datasets.files.transitions`.
        env: gives the observation and action specs.
        label: the dataset as the user named it, for messages.
        io: converter from the environment's own spaces; ``None`` if values are already the policy's.

    Raises:
        UserError: for observations or actions that do not fit the specs.
    """
    base_env = env.base_env
    spec = base_env.action_spec_unbatched
    rows = TensorDict(batch_size=[len(columns["rewards"])])
    columns = to_policy_columns(columns, io, label) if io else columns
    set_observations(rows, columns, base_env.observation_spec_unbatched, label)
    if "actions" not in columns:
        names = ", ".join(name for name in columns if name.startswith("actions/"))
        raise UserError(f"{label}: has columns {names}. Write one column actions.")
    rows.set("action", convert_action(columns["actions"], spec, action_kind(env), f"{label}: actions"))
    set_episode_entries(rows, columns)
    for transform in env.transform:
        if isinstance(transform, ActionMask):
            check_action_mask(rows, transform.in_keys[1], label, choice_sizes(spec))
    return rows


def set_observations(rows: TensorDictBase, columns: Columns, spec: Composite, label: str) -> None:
    """Sets the observations of ``rows`` and their next ones, by the environment's ``spec``."""
    keys = [key for key in spec.keys(True, True) if INFO not in (key, key[0])]
    is_only = len([*spec.keys(True, True)]) == 1
    for name in sorted({*column_entries(columns)} - {"", *map(column_name, keys)}):
        warn_once(f"{label}: column observations/{name} is ignored: the environment has no such observation")
    for key in keys:
        next_key: Any = ("next", *(key if isinstance(key, tuple) else (key,)))
        for column, entry in (("observations", key), (NEXT_OBSERVATIONS, next_key)):
            values = find_column(column_entries(columns, column), key, column, is_only=is_only, label=label)
            rows.set(entry, convert_observation(values, spec[key], f"{label}: {column}"))


def set_episode_entries(rows: TensorDictBase, columns: Columns) -> None:
    """Sets rewards, done flags, step counts, episode returns and episode ids of ``rows``."""
    ends = {
        "terminated": columns["terminals"],
        "truncated": columns["timeouts"],
        "done": episode_ends(columns),
    }
    after = {name: torch.as_tensor(flags.astype(bool)) for name, flags in ends.items()}
    after |= {"reward": as_float32(columns["rewards"]), "episode_reward": as_float32(columns["next_returns"])}
    after["step_count"] = torch.as_tensor(columns["steps"])
    before = {name: torch.zeros(len(rows), dtype=torch.bool) for name in ends}
    before |= {"episode_reward": as_float32(columns["returns"]), "step_count": after["step_count"] - 1}
    before[RETURN_TO_GO] = as_float32(columns["to_go"])
    rows.set(EPISODE, torch.as_tensor(columns["episodes"].astype(np.int32)))
    rows.update({name: values.unsqueeze(-1) for name, values in before.items()})
    rows["next"].update({name: values.unsqueeze(-1) for name, values in after.items()})


def to_policy_columns(columns: Columns, io: GymIO, label: str) -> Columns:
    """Columns in the environment's own spaces as the policy reads them; other shapes are unchanged.

    Raises:
        UserError: for a discrete value outside its space.
    """
    encoded = ("observations", NEXT_OBSERVATIONS, "actions")
    converted = {name: values for name, values in columns.items() if name.partition("/")[0] not in encoded}
    for column in encoded[:2]:
        inputs = to_network_inputs(column_entries(columns, column), io, f"{label}: {column}")
        converted |= {"/".join(filter(None, [column, name])): values for name, values in inputs.items()}
    actions = encode_actions(column_entries(columns, "actions"), io.action_space, f"{label}: actions")
    return converted | {"actions": actions}


def to_network_inputs(observations: Columns, io: GymIO, label: str) -> Columns:
    """Observation columns by entry name, in the environment's own spaces, as network inputs."""
    inputs, is_dict = dict(observations), isinstance(io.adapted_env.observation_space, Dict)
    if io.mask_entry in inputs:
        inputs[MASK] = inputs.pop(io.mask_entry)
    if io.mask_entry and MASK in inputs and inputs[MASK].ndim > 2:  # of stacked frames, the newest last
        inputs[MASK] = inputs[MASK][:, -1]
    names = []
    for name, (path, space) in io.entries.items():
        candidates = (name, "_".join(map(str, path))) if path else ("", "observation", "pixels")
        if column := [candidate for candidate in candidates if candidate in inputs]:
            names.append(name if path else column[0])
            inputs[names[-1]] = encode_column(inputs.pop(column[0]), space, label)
    if not is_dict and names and "" not in io.entries and len(names) == len(io.entries):  # one vector of all
        rows = [inputs.pop(name) for name in names]
        inputs["observation"], names = np.concatenate(rows, -1), ["observation"]
    if io.observe and len(names) == 1:
        vectors, space = inputs[names[0]], io.adapted_env.observation_space
        reduced = next(iter(space.values())).shape if is_dict else space.shape
        if vectors.shape[1:] != reduced and vectors.ndim > 1 and len(vectors[0]) > max(io.observe):
            inputs[names[0]] = vectors[:, io.observe]
    return inputs


def encode_column(values: np.ndarray, space: Space, label: str) -> np.ndarray:
    """Values of a space as networks read them: images channels first, discrete one-hot, others a vector."""
    if is_vector(space) or not has_entry_shape(values, space):
        return values
    if isinstance(space, Discrete | MultiDiscrete):
        values = discrete_values(values, space, label)
    if is_image(space):
        values = values.astype(np.uint8) if space.dtype == np.bool_ else values
        return adapt_input(torch.as_tensor(values), space).numpy()
    return adapt_input(torch.as_tensor(values), space).numpy().astype(np.float32)


def has_entry_shape(values: np.ndarray, space: Space) -> bool:
    """Whether rows have the shape of a space; a single number may have the shape ``[1]``."""
    return values.shape[1:] == space.shape or (space.shape == () and values.shape[1:] == (1,))


def discrete_values(values: np.ndarray, space: Any, label: str) -> np.ndarray:
    """Values ``[rows, *shape]`` of a ``Discrete`` or ``MultiDiscrete`` space as integers.

    Raises:
        UserError: for a value outside the space.
    """
    values = values.reshape(-1, *space.shape)
    sizes = space.n if space.shape == () else space.nvec
    check_discrete(values, sizes, label, np.asarray(space.start))
    return values.astype(np.int64)


def encode_actions(actions: Columns, space: Space, label: str) -> np.ndarray:
    """Actions in an environment's own space as one array, discrete values counted from 0.

    Args:
        actions: columns by entry name.
        space: the environment's action space.
        label: the dataset as the user named it, for messages.

    Raises:
        UserError: for a missing entry or a discrete value outside its space.
    """
    if "" in actions and isinstance(space, Dict | Tuple):
        return actions[""]  # already one vector
    parts = []
    for name, (_, entry_space) in action_entries(space).items():
        if name not in actions:
            raise UserError(f"{label} has entries {', '.join(actions)}. The environment has {space}.")
        values = actions[name]
        if has_entry_shape(values, entry_space):
            if isinstance(entry_space, Discrete | MultiDiscrete):
                values = discrete_values(values, entry_space, label) - np.asarray(entry_space.start)
            values = values.reshape(len(values), -1)
        parts.append(values)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, -1)


def check_action_mask(rows: TensorDictBase, key: NestedKey, label: str, sizes: Sequence[int] = ()) -> None:
    """Checks actions against their masks; empty masks at episode ends become all true, as in a run.

    Args:
        rows: ``[rows]``.
        key: entry of the mask, ``[rows, actions]``.
        label: the dataset as the user named it, for messages.
        sizes: sizes of multi-discrete actions; empty for discrete ones.

    Raises:
        UserError: for an invalid action.
    """
    mask, actions, after = rows[key], rows["action"], rows["next"]
    if sizes:
        columns = actions + torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)
    else:
        actions = actions.argmax(-1) if actions.shape == mask.shape else actions
        columns = actions.unsqueeze(-1)
    if not (is_valid := mask.gather(-1, columns.long()).all(-1)).all():
        row = int(is_valid.long().argmin())
        raise UserError(f"{label}: action {actions[row].tolist()} of row {row:,} is invalid by its {key}.")
    after[key] = after[key] | ~after[key].any(-1, keepdim=True)


def column_name(key: NestedKey) -> str:
    """An entry's name in columns; nested keys are joined by ``_``."""
    return "_".join(key) if isinstance(key, tuple) else key


def as_float32(values: np.ndarray) -> Tensor:
    """Values as a single-precision tensor."""
    return torch.as_tensor(values.astype(np.float32))


def find_column(entries: Columns, key: NestedKey, column: str, *, is_only: bool, label: str) -> np.ndarray:
    """The column of an observation entry; the only entry may be unnamed.

    Raises:
        UserError: if it is missing.
    """
    name = "" if is_only and "" in entries else column_name(key)
    if name not in entries:
        names = ", ".join("/".join(filter(None, [column, entry])) for entry in entries)
        raise UserError(f"{label}: no column {column}/{name}, as the environment has. Its columns: {names}.")
    return entries[name]


def convert_observation(values: np.ndarray, spec: TensorSpec, label: str) -> Tensor:
    """Observations ``[rows, ...]`` in the shape and dtype of ``spec``: one-hot, images channels first.

    Raises:
        UserError: if they do not fit.
    """
    shape, row_shape = tuple(spec.shape), values.shape[1:]
    is_discrete = values.dtype.kind in "iu" and row_shape in ((), (1,))
    if is_discrete and len(shape) == 1 and shape != (1,) and spec.dtype.is_floating_point:
        check_discrete(values.reshape(-1), shape[0], label)
        return torch.eye(shape[0])[torch.as_tensor(values.reshape(-1).astype(np.int64))]
    if len(shape) == 3 and row_shape != shape and row_shape == (*shape[1:], shape[0]):
        values = np.moveaxis(values, -1, 1)
    elif row_shape != shape and len(shape) == 1 and int(np.prod(row_shape)) == shape[0]:
        values = values.reshape(-1, *shape)
    check_shape(values.shape[1:], shape, label)
    if spec.dtype == torch.bool and ((values == 0) | (values == 1)).all():  # a mask of zeros and ones
        values = values.astype(bool)
    exact = {torch.uint8: np.uint8, torch.bool: np.bool_}.get(spec.dtype)  # images and masks
    if values.dtype != exact if exact else values.dtype == np.uint8:
        dtype = str(spec.dtype).removeprefix("torch.")
        raise UserError(f"{label} has dtype {values.dtype}. The environment has {dtype}.")
    return torch.as_tensor(np.ascontiguousarray(values)) if exact else as_float32(values)


def check_shape(row_shape: Sequence[int], shape: Sequence[int], label: str) -> None:
    """Checks the shape of a column's rows.

    Raises:
        UserError: if it is not the environment's ``shape``.
    """
    if tuple(row_shape) != tuple(shape):
        raise UserError(f"{label} has rows of shape {list(row_shape)}. The environment has {list(shape)}.")


def convert_action(values: np.ndarray, spec: TensorSpec, kind: str, label: str) -> Tensor:
    """Actions ``[rows, ...]`` as the spec has them; continuous ones are clamped to its bounds.

    Raises:
        UserError: if they do not fit.
    """
    if kind == "discrete":
        count = int(spec.space.n)
        if values.shape[1:] == (count,) and count > 1 and ((values == 0) | (values == 1)).all():
            values = values.argmax(-1)
        elif values.shape[1:] != (1,):
            check_shape(values.shape[1:], (), label)
        check_discrete(values.reshape(-1), count, label)
        actions = torch.as_tensor(values.reshape(-1).astype(np.int64))
        one_hot = isinstance(spec, OneHot)
        return torch.eye(count, dtype=spec.dtype)[actions] if one_hot else actions.to(spec.dtype)
    if kind == "multi-discrete":
        sizes = choice_sizes(spec)
        check_shape(values.shape[1:], (len(sizes),), label)
        check_discrete(values, np.array(sizes), label)
        return torch.as_tensor(values.astype(np.int64)).to(spec.dtype)
    if kind != "continuous":
        raise UserError(f"{label}: offline datasets have no {kind} actions. Use another environment.")
    shape = tuple(spec.shape)
    if int(np.prod(values.shape[1:])) != shape[-1]:
        check_shape(values.shape[1:], shape, label)
    actions = as_float32(values).reshape(-1, *shape)
    low, high = spec.space.low.cpu().float(), spec.space.high.cpu().float()
    slack = BOUND_TOLERANCE * (high - low)
    if ((actions < low - slack) | (actions > high + slack)).any():
        reached, bounds = (
            f"{a:.4g} to {b:.4g}" for a, b in ((actions.min(), actions.max()), (low.min(), high.max()))
        )
        raise UserError(f"{label} range from {reached}. The environment's bounds are {bounds}.")
    return actions.clamp(low, high)


def check_discrete(values: np.ndarray, count: Any, label: str, start: Any = 0) -> None:
    """Checks that discrete values are integers in ``[start, start + count)``; bounds may be arrays.

    Raises:
        UserError: naming the first wrong value.
    """
    wrong = (values != values.astype(np.int64)) | (values < start) | (values >= start + count)
    if wrong.any():
        index = np.unravel_index(wrong.argmax(), wrong.shape)
        low, high = (np.broadcast_to(bound, wrong.shape)[index] for bound in (start, start + count - 1))
        raise UserError(f"{label} has the value {values[index]}. The environment has {low} to {high}.")
