"""What keeps its state where no attribute has it: how it is taken out, and put into another of its kind.

Generators of random numbers, and simulators written in C.
"""

import io
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import mujoco
import numpy as np
import torch

from hydrl.envs.dm_control import Suite
from hydrl.envs.self_play import OpponentPool

Ways = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]


def bits(table: np.ndarray | torch.Tensor) -> np.ndarray:
    """An array or a tensor as the one NumPy array of bytes."""
    if isinstance(table, torch.Tensor):
        return table.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(table).reshape(-1).view(np.uint8)


def label(value: Any) -> str:
    """The kind of a generator of random numbers, or of what else has a state."""
    kind = type(getattr(value, "bit_generator", value)).__name__
    return "Opponents" if kind == "OpponentPool" else kind  # as checkpoints name it


def mujoco_state(data: mujoco.MjData) -> np.ndarray:
    """A simulation as the bytes of one file, for a checkpoint of many small tensors is slow to write."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, time=data.time, **mujoco_arrays(data))
    return np.frombuffer(file.getvalue(), np.uint8)


def load_mujoco(data: mujoco.MjData, state: np.ndarray) -> None:
    """Puts a simulation back where :func:`mujoco_state` found it."""
    kept = np.load(io.BytesIO(state.tobytes()), allow_pickle=False)
    data.time = kept["time"].item()
    for name, each in mujoco_arrays(data).items():
        if each.shape == kept[name].shape:  # others are of the contacts there were
            np.copyto(each, kept[name])


def suite_state(suite: Suite) -> dict[str, Any]:
    """A task of dm_control: its simulation, what is changed in its model, its own attributes, its steps."""
    env, model = suite.env, mujoco_arrays(suite.env.physics.model.ptr)
    return {
        "data": mujoco_state(env.physics.data.ptr),
        "model": {name: each for name, each in model.items() if differs(each, getattr(suite.built, name))},
        "task": dict(vars(env.task)),
        "steps": [env._step_count, env._reset_next_step],
    }


def load_suite(suite: Suite, state: Mapping[str, Any]) -> None:
    """Puts a task of dm_control back where :func:`suite_state` found it."""
    env, model, data = suite.env, suite.env.physics.model.ptr, suite.env.physics.data.ptr
    for name, each in mujoco_arrays(model).items():
        if differs(each, now := state["model"].get(name, getattr(suite.built, name))):
            np.copyto(each, now)
    load_mujoco(data, state["data"])
    mujoco.mj_step1(model, data)  # a step begins with its second half, from contacts no array has
    load_mujoco(data, state["data"])
    vars(env.task).update(state["task"])
    env._step_count, env._reset_next_step = state["steps"]


def differs(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are not the same to the last bit."""
    return not np.array_equal(bits(one), bits(other))


def mujoco_arrays(data: mujoco.MjData | mujoco.MjModel) -> dict[str, np.ndarray]:
    """Every writable array of a simulation, derived ones too: observations and rewards are read from them.

    Those with an entry for each constraint are left out: the next step makes them anew, in memory that may
    hold anything.
    """
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith(("_", "efc_", "iefc_"))}
    return {
        name: each for name, each in found.items() if isinstance(each, np.ndarray) and each.flags.writeable
    }


def ale_state(emulator: Any) -> np.ndarray:
    """Atari's emulator with its random numbers, as the bytes it has for it."""
    return np.frombuffer(emulator.cloneState(include_rng=True).serialize(), np.uint8)


def load_ale(emulator: Any, state: np.ndarray) -> None:
    """Puts an emulator back where :func:`ale_state` found it."""
    emulator.restoreState(sys.modules["ale_py"].ALEState(state.tobytes()))


def ways_of(value: Any) -> Ways | None:
    """How the state of an object is taken out of it, and put into another; ``None`` where it is not known."""
    if f"{type(value).__module__}.{label(value)}" == "ale_py._ale_py.ALEInterface":  # which may not be there
        return ale_state, load_ale
    return next((ways for kind, ways in STATEFUL.items() if isinstance(value, kind)), None)


# How the state of an object is taken out of it and put into another, by its class.
STATEFUL: dict[type, Ways] = {
    np.random.Generator: (
        lambda it: it.bit_generator.state,
        lambda it, state: setattr(it.bit_generator, "state", state),
    ),
    np.random.RandomState: (lambda it: it.get_state(legacy=False), np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    mujoco.MjData: (mujoco_state, load_mujoco),
    Suite: (suite_state, load_suite),
    OpponentPool: (
        lambda it: {},
        lambda it, state: None,
    ),  # a collector keeps them; all environments share them
}
# How one is made that is not there, by its label.
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
