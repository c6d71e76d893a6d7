"""The state inside an environment: what no observation shows and no ``state_dict`` of TorchRL holds.

A run resumed in the middle of an episode repeats itself to the last bit only if the simulator, its random
number generators and every wrapper's counters stand where they stood. They are read attribute by attribute
and kept as plain data, so that putting them back runs nothing.
"""

import math
import os
import random
import types
from collections import deque
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

# What an environment is made of and does not change; all the rest has to be plain data.
CONSTANT = (
    gymnasium.Space,
    EnvSpec,
    TensorSpec,
    MujocoRenderer,
    mujoco.MjModel,
    Enum,
    torch.device,
    torch.dtype,
    torch.Size,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
)
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
HOLDERS = (EnvBase, gymnasium.Env, gymnasium.vector.VectorEnv)
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
MODULE = {*vars(nn.Module()), "_cache"}  # of every TorchRL environment; its state_dict has what counts

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
    """One value as plain data; ``path`` is where it stands and ``seen`` whose attributes are being read."""
    if holds_environment(value):  # maybe a secret: it stays as the environment was built with it
        return ("constant",)
    if value is None or (isinstance(value, bool | int | float | str | bytes) and not isinstance(value, Enum)):
        return ("plain", value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, CONSTANT) or id(value) in seen:
        return ("constant",)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return ("text", value.tolist(), str(value.dtype))
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufc":
            raise NotCapturedError(f"{path} ({type(value).__name__} of {value.dtype})")
        return ("array", torch.from_numpy(np.array(value)), isinstance(value, np.generic))
    if isinstance(value, torch.Tensor):
        return ("tensor", value.detach().clone())
    if SEQUENCES.get(type(value).__name__) is type(value):
        return (type(value).__name__, [read(each, f"{path}[{k}]", seen) for k, each in enumerate(value)])
    if isinstance(value, dict):
        return ("dict", {key: read(each, f"{path}[{key!r}]", seen) for key, each in value.items()})
    if isinstance(value, np.random.Generator):
        return ("generator", read(value.bit_generator.state, path, seen))
    if isinstance(value, np.random.RandomState):
        return ("random_state", read(value.get_state(legacy=False), path, seen))
    if isinstance(value, random.Random):
        return ("random", value.getstate())
    if isinstance(value, torch.Generator):
        return ("torch_generator", value.get_state())
    if isinstance(value, mujoco.MjData):
        state = np.empty(mujoco.mj_stateSize(value.model, INTEGRATION))
        mujoco.mj_getState(value.model, value, state, INTEGRATION)
        arrays = mujoco_arrays(value)  # joined, for a file of many small tensors is slow to write
        joined = np.concatenate([np.frombuffer(each.tobytes(), np.uint8) for each in arrays.values()])
        shapes = {name: each.shape for name, each in arrays.items()}
        return ("mujoco", torch.from_numpy(state), shapes, torch.from_numpy(joined))
    if isinstance(value, HOLDERS):
        seen.add(id(value))
        held = {name: read(each, f"{path}.{name}", seen) for name, each in attributes(value).items()}
        module = nn.Module.state_dict(value) if isinstance(value, EnvBase) and not children(value) else {}
        return ("holder", held, dict(module))
    raise NotCapturedError(f"{path} ({type(value).__module__}.{type(value).__name__})")


def holds_environment(value: Any) -> bool:
    """Whether a text holds the value of an environment variable, as one given by ``${oc.env:NAME}`` does."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return any(map(holds_environment, value.ravel().tolist()))
    text = value.decode(errors="ignore") if isinstance(value, bytes) else value
    return isinstance(text, str) and any(len(each) >= 8 and each in text for each in os.environ.values())


def write(value: Any, saved: Saved) -> Any:
    """What stands where ``value`` stands once ``saved`` is put back; arrays are filled in place."""
    match saved:
        case ("constant",):
            return value
        case ("plain", kept):
            return kept
        case ("array", kept, scalar):
            array = kept.numpy()
            if scalar:
                return array[()]
            if isinstance(value, np.ndarray) and value.shape == array.shape and value.dtype == array.dtype:
                np.copyto(value, array)
                return value
            return array.copy()
        case ("text", kept, kind):
            return np.array(kept, dtype=kind)
        case ("tensor", kept):
            return kept.clone()
        case ("dict", kept):
            now = value if isinstance(value, dict) else {}
            return {key: write(now.get(key), each) for key, each in kept.items()}
        case ("generator", kept):
            value.bit_generator.state = write(None, kept)
        case ("random_state", kept):
            value.set_state(write(None, kept))
        case ("random", kept):
            value.setstate(kept)
        case ("torch_generator", kept):
            value.set_state(kept)
        case ("mujoco", state, shapes, joined):
            write_mujoco(value, state, shapes, joined)
        case ("holder", held, module):
            for name, each in held.items():
                own = getattr(type(value), name, None)
                if name not in vars(value) and (callable(own) or isinstance(own, property)):
                    raise ValueError(f"{name} is no attribute of {type(value).__name__}")
                put(value, name, write(vars(value).get(name), each))
            if module:
                nn.Module.load_state_dict(value, module)
        case (kind, kept) if kind in SEQUENCES:
            there = list(value) if type(value) is SEQUENCES[kind] else []
            there += [None] * (len(kept) - len(there))
            made = SEQUENCES[kind](write(old, each) for old, each in zip(there, kept, strict=False))
            return deque(made, value.maxlen) if isinstance(value, deque) else made
        case _:
            raise ValueError("not a state of an environment")
    return value


def write_mujoco(
    data: mujoco.MjData, state: torch.Tensor, shapes: dict[str, tuple[int, ...]], joined: torch.Tensor
) -> None:
    """Puts a simulation back where :func:`read` found it."""
    mujoco.mj_setState(data.model, data, state.numpy(), INTEGRATION)
    content, arrays = joined.numpy().tobytes(), mujoco_arrays(data)
    position = 0
    for name, shape in shapes.items():
        kept = np.frombuffer(content, arrays[name].dtype, math.prod(shape), position).reshape(shape)
        position += kept.nbytes
        if arrays[name].shape == shape:  # others are of the contacts there were
            np.copyto(arrays[name], kept)


def put(holder: Any, name: str, value: Any) -> None:
    """Sets an attribute that changed; what was filled in place stays the object it was."""
    if vars(holder).get(name) is not value:
        object.__setattr__(holder, name, value)


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes that hold the state of an environment or one of its wrappers."""
    if inner := children(holder):
        return inner
    hidden = MODULE if isinstance(holder, EnvBase) else ()
    return {name: each for name, each in vars(holder).items() if name not in hidden}


def children(holder: Any) -> dict[str, Any]:
    """What TorchRL's own wrappers hold; they keep nothing else from one step to the next."""
    if isinstance(holder, GymWrapper):
        return {"_env": holder._env}
    if isinstance(holder, TransformedEnv):
        return {"base_env": holder.base_env}
    if isinstance(holder, SerialEnv):
        return {"_envs": holder._envs}
    return {}


def mujoco_arrays(data: mujoco.MjData) -> dict[str, np.ndarray]:
    """Every writable array of a simulation, derived ones too: observations and rewards are read from them.

    Those with an entry for each constraint are left out: the next step makes them anew, in memory that may
    hold anything.
    """
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith(("_", "efc_", "iefc_"))}
    return {
        name: each for name, each in found.items() if isinstance(each, np.ndarray) and each.flags.writeable
    }
