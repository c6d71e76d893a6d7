"""Captures and restores the state inside an environment, which no ``state_dict`` of TorchRL holds.

A run resumed in the middle of an episode repeats itself to the last bit only if the simulator, its random
number generators and every wrapper's counters are as they were. They are read attribute by attribute, with
the state of their classes and functions, as plain data, so that restoring them runs no code. Whether
everything was captured is not known here: :mod:`hydrl.run.checkpoint.env_state.verify` tries it.
"""

import array
import hashlib
import operator
import os
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
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

from hydrl.config.migrations import new_class, table
from hydrl.envs.build import SteadySerialEnv
from hydrl.envs.gymnasium import GymVector
from hydrl.run.checkpoint.env_state.backends import NEW, accessors, bits, label

# Immutable parts of an environment; all the rest has to be plain data.
CONSTANT = (
    *(EnvSpec, TensorSpec, MujocoRenderer, mujoco.MjModel),
    *(torch.device, torch.dtype, torch.Size, Enum),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType),
)
CONSTANT_CLASSES = {  # parts as above, of packages that may be missing
    "ale_py._ale_py:Action",
    "gymnasium_robotics.envs.maze.maze_v4:Maze",  # the map
    "gymnasium_robotics.utils.mujoco_utils:MujocoModelNames",  # which follow from the model
}
LIBRARIES = {"abc", "builtins", "collections", "enum", "gymnasium", "numpy"}
# Packages whose games are objects beside the environment that is stepped.
GAMES = {"minatar", "minigrid", "mpe2", "pettingzoo"}
LIBRARIES |= {"ale_py", "gymnasium_robotics", "tensordict", "torch", "torchrl", "types", "typing"} | GAMES
PLAIN = (type(None), bool, int, float, str, bytes)
KEYS = ("plain", "number", "enum", "tuple", "frozenset")  # allowed keys of dictionaries
CONTAINERS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (OrderedDict, defaultdict, dict, list, tuple, set, frozenset, deque, bytearray)
} | {"array.array": array.array}
FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, deque, int, float, str, bool)}
OBJECTS = (types.SimpleNamespace, UserDict, UserList, ChainMap)  # the standard library's, with attributes
HOLDERS = (EnvBase, gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.Space, type, *OBJECTS)
OF_SPACES = ("_np_random", "spaces", "feature_space", "stacked_feature_space", "node_space", "edge_space")
MODULE = {*vars(nn.Module()), "_cache"}  # of every TorchRL environment; its state_dict has what counts
OURS = (GymVector, SteadySerialEnv)  # among wrappers; they have no state of their own
LARGE = 1 << 16  # bytes; a larger array that a fresh environment has too is saved as its digest

Saved = tuple[Any, ...]  # a tag and plain data


class NotCapturedError(Exception):
    """An environment holds something that is neither plain data nor known to be constant."""


@dataclass
class Reading:
    """What capturing has read so far.

    Attributes:
        fresh: digests of large arrays that a fresh environment has too, by path.
        objects: numbers of the objects read, by ``id``, which is unique while they are referenced here.
        arrays: large arrays and tensors, by path.
        variables: values of the process's environment variables that may be secrets.
    """

    fresh: Mapping[str, str] = field(default_factory=dict)
    objects: dict[int, tuple[int, Any]] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    variables: Sequence[str] = field(default_factory=lambda: [v for v in os.environ.values() if len(v) >= 8])

    def holds_variable(self, value: Any) -> bool:
        """Whether a text contains the value of an environment variable, as ``${oc.env:NAME}`` gives it."""
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
            return any(map(self.holds_variable, value.ravel().tolist()))
        text = value.decode(errors="ignore") if isinstance(value, bytes | bytearray) else value
        if not isinstance(text, str) or len(text) < 8:
            return False
        return any(variable in text for variable in self.variables)


class Restored:
    """The objects restored so far, in the order they were read."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.taken: dict[int, Any] = {}

    def take(self, value: Any, make: Callable[[], Any]) -> Any:
        """Adds ``value``, or what ``make`` makes where that is already another object's."""
        if id(value) in self.taken or value is None:
            value = make()
        self.taken[id(value)] = value
        self.objects.append(value)
        return value


def capture(env: TransformedEnv, fresh: Mapping[str, str] | None = None) -> Saved:
    """Reads everything below the transforms as plain data: numbers, text, tensors and containers.

    Args:
        env: what is read.
        fresh: digests of :func:`large_arrays`; equal ones are not saved, and have to be equal where they are
            restored.

    Raises:
        NotCapturedError: where something cannot be read, as a Box2D world; such an environment has to start
            anew.
    """
    return read(env.base_env, "env", Reading(fresh or {}))


def restore(env: TransformedEnv, state: Saved) -> None:
    """Restores what :func:`capture` read from an environment built in the same way.

    Raises:
        Exception: if the state is of another environment.
    """
    write(env.base_env, state, Restored())


def large_arrays(env: TransformedEnv) -> dict[str, np.ndarray | torch.Tensor]:
    """The large arrays of an environment, by path."""
    reading = Reading()
    read(env.base_env, "env", reading)
    return reading.arrays


def digest(array: np.ndarray | torch.Tensor) -> str:
    """SHA-256 of an array and its shape."""
    data = np.ascontiguousarray(bits(array))
    return hashlib.sha256(data.tobytes() + f"{array.dtype}{tuple(array.shape)}".encode()).hexdigest()


def read(value: Any, path: str, reading: Reading) -> Saved:
    """Reads one value as plain data; ``path`` is where it is, for messages."""
    kind = type(value)
    if reading.holds_variable(value):  # maybe a secret: it stays as the environment was built with it
        return ("constant",)
    if kind in PLAIN:
        return ("plain", value)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= 8:
        return ("number", value.dtype.str, value.item())
    if isinstance(value, Enum) and value.name in kind.__members__:
        return ("enum", name_of(kind), value.name)
    if isinstance(value, types.MethodType) and isinstance(value.__self__, gymnasium.Env):
        return ("method", read(value.__self__, path, reading), read(value.__func__, path, reading))
    if is_constant(value):
        return ("constant",)
    if isinstance(value, tuple | frozenset):
        return read_container(value, path, reading)
    if id(value) in reading.objects:
        return ("same", reading.objects[id(value)][0])
    reading.objects[id(value)] = len(reading.objects), value
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return read_array(value, path, reading)
    if isinstance(value, tuple(CONTAINERS.values())):
        return read_container(value, path, reading)
    if functions := accessors(value):
        return ("state", read(functions[0](value), path, reading), label(value))
    if isinstance(value, types.FunctionType):
        closure = [read(cell.cell_contents, f"{path} {name}", reading) for name, cell in cells(value)]
        return ("function", closure, read(function_state(value), f"{path}()", reading), name_of(value))
    if isinstance(value, HOLDERS) or is_game_class(kind):
        own = {name: read(entry, f"{path}.{name}", reading) for name, entry in attributes(value).items()}
        module = nn.Module.state_dict(value) if isinstance(value, EnvBase) and not children(value) else {}
        return ("holder", own, dict(module), name_of(value if isinstance(value, type) else kind))
    is_labelled = hasattr(kind, "checkpoint_label")  # as a pool of EnvPool's
    raise NotCapturedError(
        value.checkpoint_label if is_labelled else f"{path} ({kind.__module__}.{kind.__name__})"
    )


def read_array(value: Any, path: str, reading: Reading) -> Saved:
    """Reads an array or a tensor; of a large one that a fresh environment has too, its digest."""
    if isinstance(value, torch.Tensor):
        saved: Saved = ("tensor", value.detach().clone())
    elif value.dtype.kind in "biufcSU":
        content = torch.from_numpy(bits(value).copy())
        saved = ("array", content, value.dtype.str, value.shape, isinstance(value, np.generic))
    else:
        raise NotCapturedError(f"{path} (numpy.{type(value).__name__} of {value.dtype})")
    if value.nbytes > LARGE:
        reading.arrays[path] = value
        if path in reading.fresh and reading.fresh[path] == (now := digest(value)):
            return ("fresh", now)
    return saved


def read_container(value: Any, path: str, reading: Reading) -> Saved:
    """Reads a container of the standard library, or of a subclass."""
    kind = type(value)
    base = next(name for name, base_kind in CONTAINERS.items() if isinstance(value, base_kind))
    options: dict[str, Any] = {}
    content: Any
    if isinstance(value, bytearray | array.array):
        content, options = bytes(value), {"typecode": getattr(value, "typecode", None)}
    elif isinstance(value, dict):
        content = read_entries(value, path, reading)
    else:
        content = [read(element, f"{path}[{k}]", reading) for k, element in enumerate(value)]
    if isinstance(value, deque):
        options = {"maxlen": value.maxlen}
    if isinstance(value, defaultdict):
        options = {"factory": getattr(value.default_factory, "__name__", None)}
    if not options and kind is CONTAINERS[base]:
        return (base, content)
    more = {name: read(attribute, f"{path}.{name}", reading) for name, attribute in attributes(value).items()}
    return (base, content, name_of(kind), options, more)


def read_entries(value: dict[Any, Any], path: str, reading: Reading) -> Any:
    """Reads the entries of a dictionary: as pairs, or by key where all keys are plain."""
    if not all(type(key) in PLAIN and not reading.holds_variable(key) for key in value):
        pairs = [
            (read(key, f"{path} key", reading), read(entry, f"{path}[]", reading))
            for key, entry in value.items()
        ]
        if unknown := [key for key, _ in pairs if key[0] not in KEYS]:
            raise NotCapturedError(f"{path} (a {unknown[0][0]} as a key)")
        return pairs
    return {key: read(entry, f"{path}[{key!r}]", reading) for key, entry in value.items()}


def write(value: Any, saved: Saved, restored: Restored) -> Any:
    """Restores ``saved``, in place if possible; returns what replaces ``value``."""
    match saved:
        case ("constant",):
            return value
        case ("plain", content):
            return content
        case ("number", kind, content):
            return np.dtype(kind).type(content)
        case ("enum", name, member):
            return find_class(name, Enum, value).__members__[member]
        case ("same", number):
            return restored.objects[number]
        case ("method", owner, function):
            owner = write(getattr(value, "__self__", None), owner, restored)
            method = types.MethodType(write(getattr(value, "__func__", None), function, restored), owner)
            return value if value == method else method
        case ("array" | "tensor" | "fresh", *_):
            return write_array(value, saved, restored)
        case ("state", content, *names):
            same_kind = value if not names or label(value) == names[0] else None
            value = restored.take(same_kind, NEW.get(names[0], refuse) if names else refuse)
            _, set_state = accessors(value) or refuse()
            set_state(value, write(None, content, restored))
        case ("function", closure, more, *names):
            if not isinstance(value, types.FunctionType) or (names and not is_same(names[0], name_of(value))):
                raise ValueError(f"the function {names} is not there")
            restored.take(value, refuse)
            for (_, cell), content in zip(cells(value), closure, strict=True):
                cell.cell_contents = write(cell.cell_contents, content, restored)
            write(function_state(value), more, restored)
        case ("holder", own, module, *names):
            return write_holder(value, own, module, *names, restored=restored)
        case (base, content, *more) if base in CONTAINERS:
            return write_container(value, base, content, *more, restored=restored)
        case _:
            raise ValueError("not a state of an environment")
    return value


def write_array(value: Any, saved: Saved, restored: Restored) -> Any:
    """Restores an array or a tensor; an array is filled in place, because others may share its memory."""
    match saved:
        case ("fresh", expected):
            if not isinstance(value, np.ndarray | torch.Tensor) or digest(value) != expected:
                raise ValueError("a table is not what it was in a fresh environment")
            return restored.take(value, lambda: value)
        case ("tensor", tensor):
            device = value.device if isinstance(value, torch.Tensor) else tensor.device
            return restored.take(None, lambda: tensor.clone().to(device))
        case (_, content, kind, shape, is_scalar):
            new = content.clone().numpy().view(kind).reshape(shape)
            if isinstance(value, np.ndarray) and (value.shape, value.dtype) == (new.shape, new.dtype):
                if not value.flags.writeable:
                    return restored.take(value if np.array_equal(bits(value), content) else None, lambda: new)
                np.copyto(restored.take(value, lambda: new), new)
                return restored.objects[-1]
            return restored.take(None, lambda: new[()] if is_scalar else new)


def write_container(
    value: Any,
    base: str,
    content: Any,
    name: str = "",
    options: Any = None,
    more: Any = None,
    *,
    restored: Restored,
) -> Any:
    """Restores a container, of the class it was."""
    kind, options = CONTAINERS[base], options or {}
    cls = find_class(name, kind, value) if name else kind
    is_like = type(value) is cls and getattr(value, "maxlen", None) == options.get("maxlen")
    old = value if is_like else None
    if kind in (tuple, frozenset):
        before = [*(old if old and kind is tuple else ()), *[None] * len(content)]
        new = [write(element, saved, restored) for element, saved in zip(before, content, strict=False)]
        is_equal = old is not None and len(old) == len(new) and all(map(operator.is_, old, new))
        value = old if is_equal else kind.__new__(cls, new)
    else:
        value = restored.take(old, partial(empty_container, kind, cls, options))
        fill(value, kind, content, options, restored)
    if more:
        write_attributes(value, more, restored)
    return value


def fill(value: Any, kind: Any, content: Any, options: Mapping[str, Any], restored: Restored) -> None:
    """Fills a container of ``kind`` or a subclass, none of whose code runs."""
    if kind is bytearray:
        value[:] = content
    elif kind is array.array:
        value[:] = array.array(options["typecode"], content)
    elif issubclass(kind, dict):
        is_mapping = isinstance(content, Mapping)
        pairs = [(("plain", key), entry) for key, entry in content.items()] if is_mapping else content
        entries = dict[Any, Any]()
        for saved_key, saved_entry in pairs:
            key = write(None, saved_key, restored)
            entries[key] = write(kind.get(value, key), saved_entry, restored)
        kind.clear(value)
        for key, entry in entries.items():
            kind.__setitem__(value, key, entry)
    else:
        before = [*(() if kind is set else value), *[None] * len(content)]
        new = [write(old, saved, restored) for old, saved in zip(before, content, strict=False)]
        kind.clear(value)
        (kind.update if kind is set else kind.extend)(value, new)


def empty_container(kind: Any, cls: type, options: Mapping[str, Any]) -> Any:
    """An empty container of ``cls``, a subclass of ``kind``, none of whose code runs."""
    if kind is array.array:
        return kind.__new__(cls, options["typecode"])
    container = kind.__new__(cls)
    if kind is deque:
        deque.__init__(container, (), options.get("maxlen"))
    if kind is defaultdict and options["factory"] is not None:
        container.default_factory = FACTORIES[options["factory"]]
    return container


def write_holder(value: Any, own: Any, module: Any, name: str = "", *, restored: Restored) -> Any:
    """Restores an object with attributes; a game's may refer to objects that a new one does not have yet."""
    cls = type(value)
    if name and not is_same(name, name_of(value if isinstance(value, type) else cls)):
        present, cls, value = cls.__name__, find_class(name, object, None), None
        if cls not in OBJECTS and not is_game_class(cls):
            raise ValueError(f"{present} stands where {name} stood")
    new = object.__new__ if is_game_class(cls) else cls.__new__ if cls in OBJECTS else None
    value = restored.take(value, partial(new, cls) if new else refuse)
    write_attributes(value, own, restored)
    if module:
        nn.Module.load_state_dict(value, module)
    return value


def write_attributes(value: Any, saved: Mapping[str, Saved], restored: Restored) -> None:
    """Gives an object the attributes it had, and no others."""
    present = attributes(value)
    new_names = table()["attributes"].get(
        current_name(name_of(value if isinstance(value, type) else type(value))), {}
    )
    saved = {new_names.get(name, name): content for name, content in saved.items()}
    for name, content in saved.items():
        if content == ("constant",):
            continue
        new = write(present.get(name), content, restored)
        if name in present and new is present[name]:
            continue
        if isinstance(value, type):
            type.__setattr__(value, name, new)
        else:
            vars(value)[name] = new
    for name in present.keys() - saved.keys():
        if not isinstance(value, type):
            vars(value).pop(name, None)


def refuse() -> Any:
    """Raises for what cannot be made.

    Raises:
        ValueError: always.
    """
    raise ValueError("it refers to an object that one just made has not yet")


def is_same(name: str, other: str) -> bool:
    """Whether ``name``, as a checkpoint has it, names the present class or function ``other``."""
    return current_name(name) == other


def current_name(name: str) -> str:
    """The present name of a class or function that a checkpoint names as ``module:qualified.name``."""
    module, colon, path = name.partition(":")
    return colon.join(new_class(module, path)) if colon else name


def name_of(value: Any) -> str:
    """The module and qualified name of a class or function, as ``module:qualified.name``."""
    return f"{value.__module__}:{value.__qualname__}"


def find_class(name: str, base: type, present: Any) -> Any:
    """Finds a class by name: that of the present object, or one of a loaded module; imports nothing.

    Raises:
        ValueError: if there is none, or it is not made from ``base``.
    """
    name = current_name(name)
    if name_of(type(present)) == name:
        return type(present)
    module, _, path = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in path.split("."):
        cls = vars(cls).get(part) if isinstance(cls, type | types.ModuleType) else None
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"the class {name} is not there")
    return cls


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes with the state of an environment, wrapper or class; an object has its classes too."""
    if isinstance(holder, type):
        own = {name: value for name, value in vars(holder).items() if not name.startswith(("__", "_abc_"))}
        return {name: value for name, value in own.items() if not is_descriptor(value)}
    if isinstance(holder, gymnasium.Space):  # the rest of it is as it was built
        return {name: value for name, value in vars(holder).items() if name in OF_SPACES}
    hidden = MODULE if isinstance(holder, EnvBase) else ()
    own = {name: value for name, value in getattr(holder, "__dict__", {}).items() if name not in hidden}
    if is_stateless(type(holder)):  # whose spaces are neither sampled nor seeded
        own = {name: value for name, value in own.items() if not isinstance(value, gymnasium.Space)}
    # Classes first: attributes may refer to them, by number.
    classes = {f"class {kind.__name__}": kind for kind in type(holder).__mro__ if not is_stateless(kind)}
    return children(holder) or classes | own


def children(holder: Any) -> dict[str, Any]:
    """What TorchRL's wrappers and ours contain; they keep nothing else from one step to the next."""
    for kind, name in ((GymWrapper, "_env"), (TransformedEnv, "base_env"), (SerialEnv, "_envs")):
        if isinstance(holder, kind) and (is_stateless(type(holder)) or type(holder) in OURS):
            return {name: getattr(holder, name)}
    return {}


def is_descriptor(value: Any) -> bool:
    """Whether a class's attribute describes state of its objects, as a property does."""
    return hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType)


def is_stateless(kind: type) -> bool:
    """Whether a class is a library's, which keeps no state in classes."""
    return package_of(kind) in LIBRARIES or issubclass(kind, Enum)


def is_game_class(kind: type) -> bool:
    """Whether a class is of a package of games, or the user's own with PettingZoo's API."""
    return any(package_of(base) in GAMES for base in kind.__mro__)


def package_of(kind: Any) -> str:
    """The top-level package of a class or a function."""
    return str(kind.__module__).partition(".")[0]


def is_constant(value: Any) -> bool:
    """Whether an environment does not change a value."""
    if isinstance(value, CONSTANT) or (isinstance(value, type) and is_stateless(value)):
        return True
    # What PettingZoo renders with.
    return package_of(type(value)) == "pygame" or name_of(type(value)) in CONSTANT_CLASSES


def cells(function: types.FunctionType) -> list[tuple[str, types.CellType]]:
    """The closure of a function: names and cells."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in pairs if cell != types.CellType()]  # which is an empty one


def function_state(function: types.FunctionType) -> list[Any]:
    """The state of a function: its attributes, and defaults that may be changed in place."""
    if package_of(function) in LIBRARIES:
        return []
    return [vars(function), list(function.__defaults__ or ()), function.__kwdefaults__ or {}]
