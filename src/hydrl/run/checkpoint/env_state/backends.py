"""Reads and writes state that no attribute holds: random number generators, and simulators written in C."""

import io
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import mujoco
import numpy as np
import torch

from hydrl.envs.dm_control import Suite
from hydrl.envs.jax_env import JaxState
from hydrl.envs.open_spiel import SpielGame
from hydrl.envs.self_play import OpponentPool

Accessors = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]


def bits(array: np.ndarray | torch.Tensor) -> np.ndarray:
    """The bytes of an array or a tensor."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def label(value: Any) -> str:
    """The class name of a random number generator's bit generator, or of another object with a state."""
    kind = type(getattr(value, "bit_generator", value)).__name__
    return "Opponents" if kind == "OpponentPool" else kind  # as checkpoints name it


def mujoco_state(data: mujoco.MjData) -> np.ndarray:
    """The bytes of a simulation as one file, because a checkpoint of many small tensors is slow to write."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, time=data.time, **mujoco_arrays(data))
    return np.frombuffer(file.getvalue(), np.uint8)


def load_mujoco(data: mujoco.MjData, state: np.ndarray) -> None:
    """Restores a simulation from :func:`mujoco_state`."""
    saved = np.load(io.BytesIO(state.tobytes()), allow_pickle=False)
    data.time = saved["time"].item()
    for name, array in mujoco_arrays(data).items():
        if array.shape == saved[name].shape:  # others depend on the contacts of that moment
            np.copyto(array, saved[name])


def suite_state(suite: Suite) -> dict[str, Any]:
    """The state of a dm_control task: simulation, changed model arrays, attributes and step counters."""
    env, model = suite.env, mujoco_arrays(suite.env.physics.model.ptr)
    return {
        "data": mujoco_state(env.physics.data.ptr),
        "model": {name: array for name, array in model.items() if differs(array, getattr(suite.built, name))},
        "task": dict(vars(env.task)),
        "steps": [env._step_count, env._reset_next_step],
    }


def load_suite(suite: Suite, state: Mapping[str, Any]) -> None:
    """Restores a dm_control task from :func:`suite_state`."""
    env, model, data = suite.env, suite.env.physics.model.ptr, suite.env.physics.data.ptr
    for name, array in mujoco_arrays(model).items():
        if differs(array, saved := state["model"].get(name, getattr(suite.built, name))):
            np.copyto(array, saved)
    load_mujoco(data, state["data"])
    mujoco.mj_step1(model, data)  # a step begins with its second half, from contacts no array has
    load_mujoco(data, state["data"])
    vars(env.task).update(state["task"])
    env._step_count, env._reset_next_step = state["steps"]


def differs(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays differ in any bit."""
    return not np.array_equal(bits(one), bits(other))


def mujoco_arrays(data: mujoco.MjData | mujoco.MjModel) -> dict[str, np.ndarray]:
    """Every writable array of a simulation, also derived ones, which observations and rewards are read from.

    Arrays with an entry for each constraint are left out: the next step makes them anew.
    """
    names = [name for name in dir(data) if not name.startswith(("_", "efc_", "iefc_"))]
    arrays = {name: array for name in names if isinstance(array := getattr(data, name), np.ndarray)}
    return {name: array for name, array in arrays.items() if array.flags.writeable}


def ale_state(emulator: Any) -> np.ndarray:
    """The bytes of Atari's emulator, with its random number generator."""
    return np.frombuffer(emulator.cloneState(include_rng=True).serialize(), np.uint8)


def load_ale(emulator: Any, state: np.ndarray) -> None:
    """Restores an emulator from :func:`ale_state`."""
    emulator.restoreState(sys.modules["ale_py"].ALEState(state.tobytes()))


def accessors(value: Any) -> Accessors | None:
    """The functions that read and write the state of an object; ``None`` for unknown ones."""
    if f"{type(value).__module__}.{label(value)}" == "ale_py._ale_py.ALEInterface":
        return ale_state, load_ale
    return next((functions for kind, functions in STATEFUL.items() if isinstance(value, kind)), None)


# Functions that read and write the state of an object, by its class.
STATEFUL: dict[type, Accessors] = {
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    np.random.RandomState: (lambda state: state.get_state(legacy=False), np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    mujoco.MjData: (mujoco_state, load_mujoco),
    Suite: (suite_state, load_suite),
    SpielGame: (SpielGame.state_dict, SpielGame.load_state_dict),
    JaxState: (JaxState.state_dict, JaxState.load_state_dict),
    OpponentPool: (lambda pool: {}, lambda pool, state: None),  # shared; the collector saves them
}
# Functions that make a missing generator, by its label.
NEW: dict[str, Callable[[], Any]] = {
    "MT19937": lambda: np.random.Generator(np.random.MT19937()),
    "PCG64": lambda: np.random.Generator(np.random.PCG64()),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM()),
    "Philox": lambda: np.random.Generator(np.random.Philox()),
    "SFC64": lambda: np.random.Generator(np.random.SFC64()),
    "RandomState": np.random.RandomState,
    "Random": random.Random,
    "Generator": torch.Generator,
}
