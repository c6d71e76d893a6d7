"""The state inside an environment: what no observation shows and no ``state_dict`` of TorchRL holds.

A run resumed in the middle of an episode repeats itself to the last bit only if the simulator, its random
number generators and every wrapper's counters stand where they stood. They are read attribute by attribute,
with what their classes and functions keep, as plain data, so that putting them back runs nothing. A module's
global variables are not seen.
"""

import io
import os
import random
import types
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from gymnasium.envs.registration import EnvSpec
from torch import nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase, GymWrapper, SerialEnv, TransformedEnv

from hydrl.parts.environments import GymVector, SteadySerialEnv

# What an environment is made of and does not change; all the rest has to be plain data.
CONSTANT = (
    *(gymnasium.Space, EnvSpec, TensorSpec, MujocoRenderer, mujoco.MjModel),
    *(torch.device, torch.dtype, torch.Size, Enum, property, classmethod, staticmethod),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType),
)
LIBRARIES = ("abc", "builtins", "enum", "gymnasium", "numpy", "tensordict", "torch", "torchrl", "typing")
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
HOLDERS = (EnvBase, gymnasium.Env, gymnasium.vector.VectorEnv, type)
MODULE = {*vars(nn.Module()), "_cache"}  # of every TorchRL environment; its state_dict has what counts
OURS = (GymVector, SteadySerialEnv)  # among wrappers; they keep nothing of their own

Saved = tuple[Any, ...]  # a tag and plain data


class NotCapturedError(Exception):
    """An environment holds something that is neither plain data nor known to be constant; says what."""


def simulator_state(env: TransformedEnv) -> Saved:
    """Everything below the transforms, as plain data: numbers, text, tensors and containers of them.

    Raises:
        NotCapturedError: where something could not be read, as a Box2D world cannot; such an environment has
            to start anew.
    """
    return read(env.base_env, "env", set())


def load_simulator(env: TransformedEnv, state: Saved) -> None:
    """Puts back what :func:`simulator_state` read from an environment built in the same way.

    Raises:
        ValueError: if the state is of another environment.
    """
    write(env.base_env, state)


def read(value: Any, path: str, seen: set[int]) -> Saved:
    """One value as plain data; ``path`` is where it stands and ``seen`` what is being looked into."""
    kind = type(value)
    if holds_environment(value):  # maybe a secret: it stays as the environment was built with it
        return ("constant",)
    if isinstance(value, CONSTANT) or id(value) in seen or (isinstance(value, type) and is_library_s(value)):
        return ("constant",)
    if value is None or isinstance(value, bool | int | float | str):
        return ("plain", value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcSU":
        content = torch.from_numpy(np.array(value).reshape(-1).view(np.uint8))
        return ("array", content, value.dtype.str, value.shape, isinstance(value, np.generic))
    if isinstance(value, torch.Tensor):
        return ("tensor", value.detach().clone())
    if SEQUENCES.get(kind.__name__) is kind:
        return (kind.__name__, [read(each, f"{path}[{k}]", seen) for k, each in enumerate(value)])
    if isinstance(value, dict):
        return ("dict", {key: read(each, f"{path}[{key!r}]", seen) for key, each in value.items()})
    for known, (get, _) in STATEFUL.items():
        if isinstance(value, known):
            return ("state", read(get(value), path, seen))
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        kept = [read(each.cell_contents, f"{path} {name}", seen) for name, each in cells(value)]
        return ("function", kept, read(own(value), f"{path}()", seen))
    if isinstance(value, HOLDERS):
        held = {name: read(each, f"{path}.{name}", seen) for name, each in attributes(value).items()}
        module = nn.Module.state_dict(value) if isinstance(value, EnvBase) and not children(value) else {}
        return ("holder", held, dict(module))
    raise NotCapturedError(f"{path} ({kind.__module__}.{kind.__name__})")


def holds_environment(value: Any) -> bool:
    """Whether a text holds the value of an environment variable, as one given by ``${oc.env:NAME}`` does."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return any(map(holds_environment, value.ravel().tolist()))
    text = value.decode(errors="ignore") if isinstance(value, bytes) else value
    return isinstance(text, str) and any(len(each) >= 8 and each in text for each in os.environ.values())


def write(value: Any, saved: Saved) -> Any:
    """What stands where ``value`` stands once ``saved`` is put back; what can be is filled in place."""
    match saved:
        case ("constant",):
            return value
        case ("plain", kept):
            return kept
        case ("array", content, kind, shape, is_scalar):
            array = content.clone().numpy().view(kind).reshape(shape)
            if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (array.shape, array.dtype):
                return array[()] if is_scalar else array
            np.copyto(value, array)
        case ("tensor", kept):
            return kept.clone()
        case ("dict", kept):
            value = value if isinstance(value, dict) else {}
            entries = {key: write(value.get(key), each) for key, each in kept.items()}
            value.clear()
            value.update(entries)
        case ("state", kept):
            (put,) = (put for known, (_, put) in STATEFUL.items() if isinstance(value, known))
            put(value, write(None, kept))
        case ("function", kept, more):
            write(own(value), more)
            for (_, cell), each in zip(cells(value), kept, strict=True):
                cell.cell_contents = write(cell.cell_contents, each)
        case ("holder", held, module):
            there: dict[str, Any] = attributes(value)
            for name, each in held.items():
                if (now := write(there.get(name), each)) is not there.get(name):
                    (setattr if isinstance(value, type) else object.__setattr__)(value, name, now)
            if module:
                nn.Module.load_state_dict(value, module)
        case (kind, kept) if kind in SEQUENCES:
            same = type(value) is SEQUENCES[kind]
            before = [*(value if same else ()), *[None] * len(kept)]
            made = [write(old, each) for old, each in zip(before, kept, strict=False)]
            if not same or not isinstance(value, list | deque):
                return SEQUENCES[kind](made)
            value.clear()
            value.extend(made)
        case _:
            raise ValueError("not a state of an environment")
    return value


def attributes(holder: Any) -> dict[str, Any]:
    """What holds the state of an environment, a wrapper or a class; an object holds its classes."""
    if isinstance(holder, type):
        return {name: each for name, each in vars(holder).items() if not name.startswith(("__", "_abc_"))}
    hidden = MODULE if isinstance(holder, EnvBase) else ()
    own = {name: each for name, each in vars(holder).items() if name not in hidden}
    classes = {f"class {each.__name__}": each for each in type(holder).__mro__ if not is_library_s(each)}
    return children(holder) or own | classes


def children(holder: Any) -> dict[str, Any]:
    """What TorchRL's own wrappers and ours hold; they keep nothing else from one step to the next."""
    for kind, name in ((GymWrapper, "_env"), (TransformedEnv, "base_env"), (SerialEnv, "_envs")):
        if isinstance(holder, kind) and (is_library_s(type(holder)) or type(holder) in OURS):
            return {name: getattr(holder, name)}
    return {}


def is_library_s(kind: type) -> bool:
    """Whether a class keeps no state of its own."""
    return kind.__module__.partition(".")[0] in LIBRARIES or issubclass(kind, Enum)


def cells(function: types.FunctionType) -> list[tuple[str, types.CellType]]:
    """What a function keeps of the one it was made in, by name."""
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in named if cell != types.CellType()]  # which is an empty one


def own(function: types.FunctionType) -> list[Any]:
    """What a function keeps itself: its attributes, and defaults that may be changed in place."""
    if str(function.__module__).partition(".")[0] in LIBRARIES:
        return []
    return [vars(function), list(function.__defaults__ or ()), function.__kwdefaults__ or {}]


def mujoco_state(data: mujoco.MjData) -> np.ndarray:
    """A simulation as the bytes of one file, for a checkpoint of many small tensors is slow to write."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, time=data.time, **mujoco_arrays(data))
    return np.frombuffer(file.getvalue(), np.uint8)


def load_mujoco(data: mujoco.MjData, state: np.ndarray) -> None:
    """Puts a simulation back where :func:`mujoco_state` found it."""
    kept = np.load(io.BytesIO(state.tobytes()), allow_pickle=False)
    data.time = kept["time"].item()
    for name, array in mujoco_arrays(data).items():
        if array.shape == kept[name].shape:  # others are of the contacts there were
            np.copyto(array, kept[name])


def mujoco_arrays(data: mujoco.MjData) -> dict[str, np.ndarray]:
    """Every writable array of a simulation, derived ones too: observations and rewards are read from them.

    Those with an entry for each constraint are left out: the next step makes them anew, in memory that may
    hold anything.
    """
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith(("_", "efc_", "iefc_"))}
    return {
        name: each for name, each in found.items() if isinstance(each, np.ndarray) and each.flags.writeable
    }


# How the state of an object is taken out of it and put into another, by its class.
STATEFUL: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    np.random.Generator: (
        lambda it: it.bit_generator.state,
        lambda it, state: setattr(it.bit_generator, "state", state),
    ),
    np.random.RandomState: (lambda it: it.get_state(legacy=False), np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    mujoco.MjData: (mujoco_state, load_mujoco),
}
