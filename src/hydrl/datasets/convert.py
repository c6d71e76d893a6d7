"""Columns as rows of a task: of its shapes and kinds, in its own units."""

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
from torchrl.data import OneHot, TensorSpec
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

from hydrl.datasets.files import NEXT, Columns, ends, observed
from hydrl.envs.external_env import GymIO, adapt_input
from hydrl.envs.spaces import is_image, is_vector
from hydrl.envs.transforms import ActionMask, ActionScaling, CopyTensors, RunningNorm
from hydrl.envs.transitions import action_entries
from hydrl.errors import UserError
from hydrl.experience.episodes import EPISODE, RETURN_TO_GO
from hydrl.library_setup import warn_once
from hydrl.specs import INFO, MASK, action_kind, choice_sizes

REWARDS = (RewardScaling, RewardClipping, SignTransform, BinarizeReward)  # row by row
# These change no number of an observation, or are followed here.
FOLLOWED = (
    *(RewardSum, StepCounter, DoubleToFloat, ActionScaling, CopyTensors, InitTracker),
    *(RandomTruncationTransform, ObservationNorm, RunningNorm, ActionMask),
    *REWARDS,
)
ABOUT = "about.json"
FORMAT = 2  # of sets whose values are in the spaces of the task itself; 1, which says none, has the policy's
SLACK = 1e-3  # of the span of an action's bounds, by which rounding may lead past them


def about(path: Path) -> dict[str, Any]:
    """What a folder of :mod:`hydrl.datasets.record` says of the set in it; empty for others.

    The set may be named by its folder, or by its file in that.
    """
    folder = path.parent if path.is_file() and path.stem == "data" else path
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def check_task(has: Any, task: str, told: str) -> None:
    """The data is of the run's task, where it says what it is of.

    Raises:
        UserError: if it is of another.
    """
    if has not in (None, task):
        raise UserError(f"{told} has data of env={has}, not of env={task}")


def check_transforms(env: TransformedEnv, told: str) -> None:
    """A run's transforms do to rows what they do to steps.

    Raises:
        UserError: for one of which that is not known.
    """
    for each in env.transform:
        if not isinstance(each, FOLLOWED):
            raise UserError(
                f"{told}: {type(each).__name__} changes what the task shows, and would leave the data as "
                "it is; leave that transform out"
            )


def scales_of(env: TransformedEnv) -> list[Transform]:
    """The transforms that change a reward by itself."""
    return [each for each in env.transform if isinstance(each, REWARDS)]


def fitting(columns: Columns, env: TransformedEnv, told: str, own: GymIO | None = None) -> TensorDictBase:
    """Transitions as rows ``[rows]`` of the task below ``env``, in its own units.

    Args:
        columns: of :func:`hydrl.datasets.files.transitions`.
        env: says what an observation and an action are.
        told: how the user named the set, for messages.
        own: of the task, where values are in its own spaces; of others they are as the policy has them.

    Raises:
        UserError: for what the task does not show or take.
    """
    task, count = env.base_env, len(columns["rewards"])
    rows = TensorDict(batch_size=[count])
    spec = task.observation_spec_unbatched
    shown = [each for each in spec.keys(True, True) if INFO not in (each, each[0])]
    columns = of_policy(columns, own, told) if own else columns
    for name in sorted({*observed(columns)} - {"", *map(name_of, shown)}):
        warn_once(f"{told}: the task does not show observations/{name}, which is left out")
    for key in shown:
        for column in ("observations", NEXT):
            values = entry(
                observed(columns, column), key, column, alone=len([*spec.keys(True, True)]) == 1, told=told
            )
            place: Any = (
                key if column == "observations" else ("next", *(key if isinstance(key, tuple) else (key,)))
            )
            rows.set(place, observation(values, spec[key], f"{told}: {column}"))
    if "actions" not in columns:
        named = ", ".join(name for name in columns if name.startswith("actions/"))
        raise UserError(f"{told}: it has {named}, and the task takes one array, actions")
    rows.set(
        "action", action(columns["actions"], task.action_spec_unbatched, action_kind(env), f"{told}: actions")
    )
    terminal, done = (torch.as_tensor(each.astype(bool)) for each in (columns["terminals"], ends(columns)))
    after = {
        "terminated": terminal,
        "truncated": torch.as_tensor(columns["timeouts"].astype(bool)),
        "done": done,
    }
    after |= {"reward": single(columns["rewards"]), "episode_reward": single(columns["next_returns"])}
    after["step_count"] = torch.as_tensor(columns["steps"])
    before = {name: torch.zeros(count, dtype=torch.bool) for name in ("terminated", "truncated", "done")}
    before |= {"episode_reward": single(columns["returns"]), "step_count": after["step_count"] - 1}
    before[RETURN_TO_GO] = single(columns["to_go"])
    rows.set(EPISODE, torch.as_tensor(columns["episodes"].astype(np.int32)))
    rows.update({name: each.unsqueeze(-1) for name, each in before.items()})
    rows["next"].update({name: each.unsqueeze(-1) for name, each in after.items()})
    for each in env.transform:
        if isinstance(each, ActionMask):
            heed(rows, each.in_keys[1], told, choice_sizes(task.action_spec_unbatched))
    return rows


def of_policy(columns: Columns, own: GymIO, told: str) -> Columns:
    """Values in a task's own spaces as the policy has them; those of another shape are left as they are.

    Raises:
        UserError: for a choice that its space does not have.
    """
    outside = ("observations", NEXT, "actions")
    made = {name: each for name, each in columns.items() if name.partition("/")[0] not in outside}
    for column in outside[:2]:
        seen = of_networks(observed(columns, column), own, f"{told}: {column}")
        made |= {"/".join(filter(None, [column, name])): each for name, each in seen.items()}
    return made | {"actions": counted_from_0(observed(columns, "actions"), own.acted, f"{told}: actions")}


def of_networks(seen: Columns, own: GymIO, told: str) -> Columns:
    """What is observed, by its entries' names, as the task's own spaces have it, for the networks."""
    made, alone = dict(seen), isinstance(own.task.observation_space, Dict)
    if own.entry in made:
        made[MASK] = made.pop(own.entry)
    if own.entry and MASK in made and made[MASK].ndim > 2:  # of stacked frames, the newest last
        made[MASK] = made[MASK][:, -1]
    names = []
    for name, (path, space) in own.entries.items():
        written = (name, "_".join(map(str, path))) if path else ("", "observation", "pixels")
        if place := [each for each in written if each in made]:
            names.append(name if path else place[0])
            made[names[-1]] = numbers_of(made.pop(place[0]), space, told)
    if not alone and names and "" not in own.entries and len(names) == len(own.entries):  # one vector of all
        rows = [made.pop(name) for name in names]
        made["observation"], names = np.concatenate(rows, -1), ["observation"]
    if own.observe and len(names) == 1:
        whole, shown = made[names[0]], own.task.observation_space
        reduced = next(iter(shown.values())).shape if alone else shown.shape
        if whole.shape[1:] != reduced and whole.ndim > 1 and len(whole[0]) > max(own.observe):
            made[names[0]] = whole[:, own.observe]
    return made


def numbers_of(values: np.ndarray, space: Space, told: str) -> np.ndarray:
    """Rows of a space as networks read them: pictures channels first, choices one-hot, others a vector."""
    single_number = space.shape == () and values.shape[1:] == (1,)
    if is_vector(space) or (values.shape[1:] != space.shape and not single_number):
        return values
    if isinstance(space, Discrete | MultiDiscrete):
        start = np.asarray(space.start)
        check_choices(
            values.reshape(-1, *space.shape), space.n if space.shape == () else space.nvec, told, start
        )
        values = values.reshape(-1, *space.shape).astype(np.int64)
    if is_image(space):
        values = values.astype(np.uint8) if space.dtype == np.bool_ else values
        return adapt_input(torch.as_tensor(values), space).numpy()
    return adapt_input(torch.as_tensor(values), space).numpy().astype(np.float32)


def counted_from_0(taken: Columns, space: Space, told: str) -> np.ndarray:
    """Actions of a task's own space, by the names of what it holds, in a row, choices counted from 0.

    Raises:
        UserError: for a choice that the space does not have, and where an entry lacks.
    """
    if "" in taken and isinstance(space, Dict | Tuple):
        return taken[""]  # in a row already
    rows = []
    for name, (_, each) in action_entries(space).items():
        if name not in taken:
            raise UserError(f"{told} has {', '.join(taken)}, and the task takes {space}")
        values = taken[name]
        if values.shape[1:] == each.shape or (each.shape == () and values.shape[1:] == (1,)):
            if isinstance(each, Discrete | MultiDiscrete):
                sizes, start = each.n if each.shape == () else each.nvec, np.asarray(each.start)
                values = values.reshape(-1, *each.shape)
                check_choices(values, sizes, told, start)
                values = values.astype(np.int64) - start
            values = values.reshape(len(values), -1)
        rows.append(values)
    return rows[0] if len(rows) == 1 else np.concatenate(rows, -1)


def heed(rows: TensorDictBase, key: NestedKey, told: str, several: Sequence[int] = ()) -> None:
    """What was allowed, as a run's own steps have it: all, where nothing was left as an episode ended.

    Args:
        rows: ``[rows]``.
        key: of what was allowed, ``[rows, actions]``.
        told: how the user named the set, for messages.
        several: how many options each of several choices has, ``allowed`` in a row; none of a single one.

    Raises:
        UserError: for an action that was not allowed where it was taken.
    """
    allowed, taken, after = rows[key], rows["action"], rows["next"]
    if several:
        places = taken + torch.tensor(several).cumsum(0) - torch.tensor(several)
    else:
        taken = taken.argmax(-1) if taken.shape == allowed.shape else taken
        places = taken.unsqueeze(-1)
    if not (fits := allowed.gather(-1, places.long()).all(-1)).all():
        row = int(fits.long().argmin())
        raise UserError(f"{told}: row {row:,} takes action {taken[row].tolist()}, which its {key} forbids")
    after[key] = after[key] | ~after[key].any(-1, keepdim=True)


def name_of(key: NestedKey) -> str:
    """An entry's name, of one within others theirs before it."""
    return "_".join(key) if isinstance(key, tuple) else key


def single(values: np.ndarray) -> Tensor:
    """In single precision."""
    return torch.as_tensor(values.astype(np.float32))


def entry(there: dict[str, np.ndarray], key: NestedKey, column: str, *, alone: bool, told: str) -> np.ndarray:
    """The values of an entry of an observation; that of the only one may have no name.

    Raises:
        UserError: if there are none.
    """
    name = name_of(key)
    if alone and "" in there:
        name = ""
    if name not in there:
        has = ", ".join("/".join(filter(None, [column, each])) for each in there)
        raise UserError(f"{told}: it has no {column}/{name}, which the task shows; it has {has}")
    return there[name]


def observation(values: np.ndarray, spec: TensorSpec, told: str) -> Tensor:
    """Of the shape and kind of ``spec``, ``[rows, ...]``: choices one-hot, and pictures channels first.

    Raises:
        UserError: if that cannot be.
    """
    wanted, has = tuple(spec.shape), values.shape[1:]
    choices = values.reshape(len(values)) if values.dtype.kind in "iu" and has in ((), (1,)) else None
    if choices is not None and len(wanted) == 1 and wanted != (1,) and spec.dtype.is_floating_point:
        check_choices(choices, wanted[0], told)
        return torch.eye(wanted[0])[torch.as_tensor(choices.astype(np.int64))]
    if len(wanted) == 3 and has != wanted and has == (*wanted[1:], wanted[0]):
        values = np.moveaxis(values, -1, 1)
    elif has != wanted and len(wanted) == 1 and int(np.prod(has)) == wanted[0]:
        values = values.reshape(-1, *wanted)
    if values.shape[1:] != wanted:
        raise UserError(f"{told} has rows of shape {list(has)}, and the task shows {list(wanted)}")
    if spec.dtype == torch.bool and ((values == 0) | (values == 1)).all():  # a mask of zeros and ones
        values = values.astype(bool)
    exact = {torch.uint8: np.uint8, torch.bool: np.bool_}.get(spec.dtype)  # of pictures and masks
    if values.dtype != exact if exact else values.dtype == np.uint8:
        raise UserError(
            f"{told} has {values.dtype}, and the task shows {str(spec.dtype).removeprefix('torch.')}"
        )
    return torch.as_tensor(np.ascontiguousarray(values)) if exact else single(values)


def action(values: np.ndarray, spec: TensorSpec, kind: str, told: str) -> Tensor:
    """As the task takes it: numbers within its bounds, or a choice, one-hot where the spec says so.

    Raises:
        UserError: for one that it does not take.
    """
    if kind == "discrete":
        choices, count = values, int(spec.space.n)
        if values.shape[1:] == (count,) and count > 1 and ((values == 0) | (values == 1)).all():
            choices = values.argmax(-1)
        elif values.shape[1:] not in ((), (1,)):
            raise UserError(f"{told} has rows of shape {list(values.shape[1:])}, and the task takes a choice")
        choices = choices.reshape(len(values))
        check_choices(choices, count, told)
        chosen = torch.as_tensor(choices.astype(np.int64))
        return (
            torch.eye(count, dtype=spec.dtype)[chosen] if isinstance(spec, OneHot) else chosen.to(spec.dtype)
        )
    if kind == "multi-discrete":
        sizes = choice_sizes(spec)
        if values.shape[1:] != (len(sizes),):
            has = list(values.shape[1:])
            raise UserError(f"{told} has rows of shape {has}, and the task takes {len(sizes)} choices")
        check_choices(values, np.array(sizes), told)
        return torch.as_tensor(values.astype(np.int64)).to(spec.dtype)
    if kind != "continuous":
        raise UserError(f"{told}: the task has {kind} actions, of which no set is read")
    wanted = tuple(spec.shape)
    if int(np.prod(values.shape[1:])) != wanted[-1]:
        raise UserError(
            f"{told} has rows of shape {list(values.shape[1:])}, and the task takes {list(wanted)}"
        )
    taken, (low, high) = (
        single(values).reshape(-1, *wanted),
        (spec.space.low.cpu().float(), spec.space.high.cpu().float()),
    )
    slack = SLACK * (high - low)
    if ((taken < low - slack) | (taken > high + slack)).any():
        reach, bounds = (
            f"{a:.4g} to {b:.4g}" for a, b in ((taken.min(), taken.max()), (low.min(), high.max()))
        )
        raise UserError(f"{told} reach from {reach}, and the task takes {bounds}")
    return taken.clamp(low, high)


def check_choices(choices: np.ndarray, count: Any, told: str, start: Any = 0) -> None:
    """Each is a number of one, those beginning at ``start``; of several choices ``[rows, ...]`` each its own.

    Raises:
        UserError: for one that is none.
    """
    wrong = (choices != choices.astype(np.int64)) | (choices < start) | (choices >= start + count)
    if wrong.any():
        place = np.unravel_index(wrong.argmax(), wrong.shape)
        least, most = (np.broadcast_to(each, wrong.shape)[place] for each in (start, start + count - 1))
        raise UserError(f"{told} has {choices[place]}, and there are the choices {least} to {most}")
