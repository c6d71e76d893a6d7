"""The state inside an environment: what no observation shows and no ``state_dict`` of TorchRL holds.

A run resumed in the middle of an episode repeats itself to the last bit only if the simulator, its random
number generators and every wrapper's counters stand where they stood. They are read attribute by attribute,
with what their classes and functions keep, as plain data, so that putting them back runs nothing. Whether all
that counts was read is not known here: :mod:`hydrl.run.checkpoint.env_state.verify` tries it.
"""

import array
import hashlib
import operator
import os
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping
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
from hydrl.run.checkpoint.env_state.backends import NEW, bits, label, ways_of

# What an environment is made of and does not change; all the rest has to be plain data.
CONSTANT = (
    *(EnvSpec, TensorSpec, MujocoRenderer, mujoco.MjModel),
    *(torch.device, torch.dtype, torch.Size, Enum),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType),
)
LIBRARIES = {"abc", "builtins", "collections", "enum", "gymnasium", "numpy"}
LIBRARIES |= {"ale_py", "minatar", "mpe2", "pettingzoo", "tensordict", "torch", "torchrl", "types", "typing"}
GAMES = {"minatar", "mpe2", "pettingzoo"}  # whose tasks are objects beside what a run steps
PLAIN = (type(None), bool, int, float, str, bytes)
KEYS = ("plain", "number", "enum", "tuple", "frozenset")  # what dictionaries may be kept by
CONTAINERS: dict[str, Any] = {
    each.__name__: each
    for each in (OrderedDict, defaultdict, dict, list, tuple, set, frozenset, deque, bytearray)
} | {"array.array": array.array}
FACTORIES = {each.__name__: each for each in (list, dict, set, tuple, deque, int, float, str, bool)}
OBJECTS = (types.SimpleNamespace, UserDict, UserList, ChainMap)  # the standard library's, with attributes
HOLDERS = (EnvBase, gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.Space, type, *OBJECTS)
OF_SPACES = ("_np_random", "spaces", "feature_space", "stacked_feature_space", "node_space", "edge_space")
MODULE = {*vars(nn.Module()), "_cache"}  # of every TorchRL environment; its state_dict has what counts
OURS = (GymVector, SteadySerialEnv)  # among wrappers; they keep nothing of their own
LARGE = 1 << 16  # bytes from which on a table that a fresh environment holds too is not kept

Saved = tuple[Any, ...]  # a tag and plain data


class NotCapturedError(Exception):
    """An environment holds something that is neither plain data nor known to be constant; says what."""


@dataclass
class Seen:
    """What reading has come by.

    Attributes:
        fresh: digests of large arrays that a fresh environment holds too, by where they stand.
        objects: each with its number, by its ``id``, which is nobody else's while it is held here.
        tables: large arrays and tensors, by where they stand.
    """

    fresh: Mapping[str, str] = field(default_factory=dict)
    objects: dict[int, tuple[int, Any]] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


class Filled:
    """The objects that have been given their state, by the numbers reading gave them."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.taken: dict[int, Any] = {}

    def take(self, value: Any, make: Callable[[], Any]) -> Any:
        """Numbers ``value``; where that was another object's already, what ``make`` makes."""
        if id(value) in self.taken or value is None:
            value = make()
        self.taken[id(value)] = value
        self.objects.append(value)
        return value


def simulator_state(env: TransformedEnv, fresh: Mapping[str, str] | None = None) -> Saved:
    """Everything below the transforms, as plain data: numbers, text, tensors and containers of them.

    Args:
        env: what is read.
        fresh: of :func:`tables`, which are not kept where they are equal; those of what it is put back into
            have to be.

    Raises:
        NotCapturedError: where something could not be read, as a Box2D world cannot; such an environment has
            to start anew.
    """
    return read(env.base_env, "env", Seen(fresh or {}))


def load_simulator(env: TransformedEnv, state: Saved) -> None:
    """Puts back what :func:`simulator_state` read from an environment built in the same way.

    Raises:
        Exception: if the state is of another environment.
    """
    write(env.base_env, state, Filled())


def tables(env: TransformedEnv) -> dict[str, np.ndarray | torch.Tensor]:
    """The large arrays of an environment, by where they stand."""
    seen = Seen()
    read(env.base_env, "env", seen)
    return seen.tables


def digest(table: np.ndarray | torch.Tensor) -> str:
    """SHA-256 of an array and its shape."""
    data = np.ascontiguousarray(bits(table))
    return hashlib.sha256(data.tobytes() + f"{table.dtype}{tuple(table.shape)}".encode()).hexdigest()


def read(value: Any, path: str, seen: Seen) -> Saved:
    """One value as plain data; ``path`` is where it stands."""
    kind = type(value)
    if holds_environment(value):  # maybe a secret: it stays as the environment was built with it
        return ("constant",)
    if kind in PLAIN:
        return ("plain", value)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= 8:
        return ("number", value.dtype.str, value.item())
    if isinstance(value, Enum) and value.name in kind.__members__:
        return ("enum", name_of(kind), value.name)
    if isinstance(value, types.MethodType) and isinstance(value.__self__, gymnasium.Env):
        return ("method", read(value.__self__, path, seen), read(value.__func__, path, seen))
    if is_constant(value):
        return ("constant",)
    if isinstance(value, tuple | frozenset):
        return read_container(value, path, seen)
    if id(value) in seen.objects:
        return ("same", seen.objects[id(value)][0])
    seen.objects[id(value)] = len(seen.objects), value
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return read_array(value, path, seen)
    if isinstance(value, tuple(CONTAINERS.values())):
        return read_container(value, path, seen)
    if ways := ways_of(value):
        return ("state", read(ways[0](value), path, seen), label(value))
    if isinstance(value, types.FunctionType):
        kept = [read(each.cell_contents, f"{path} {name}", seen) for name, each in cells(value)]
        return ("function", kept, read(own(value), f"{path}()", seen), name_of(value))
    if isinstance(value, HOLDERS) or is_game_s(kind):
        held = {name: read(each, f"{path}.{name}", seen) for name, each in attributes(value).items()}
        module = nn.Module.state_dict(value) if isinstance(value, EnvBase) and not children(value) else {}
        return ("holder", held, dict(module), name_of(value if isinstance(value, type) else kind))
    raise NotCapturedError(f"{path} ({kind.__module__}.{kind.__name__})")


def read_array(value: Any, path: str, seen: Seen) -> Saved:
    """An array or a tensor; a large one that a fresh environment holds too as its digest."""
    if isinstance(value, torch.Tensor):
        kept: Saved = ("tensor", value.detach().clone())
    elif value.dtype.kind in "biufcSU":
        content = torch.from_numpy(bits(value).copy())
        kept = ("array", content, value.dtype.str, value.shape, isinstance(value, np.generic))
    else:
        raise NotCapturedError(f"{path} (numpy.{type(value).__name__} of {value.dtype})")
    if value.nbytes > LARGE:
        seen.tables[path] = value
        if path in seen.fresh and seen.fresh[path] == (now := digest(value)):
            return ("fresh", now)
    return kept


def read_container(value: Any, path: str, seen: Seen) -> Saved:
    """A container of the standard library, or of a class made from one."""
    kind = type(value)
    base = next(name for name, each in CONTAINERS.items() if isinstance(value, each))
    about: dict[str, Any] = {}
    kept: Any
    if isinstance(value, bytearray | array.array):
        kept, about = bytes(value), {"typecode": getattr(value, "typecode", None)}
    elif isinstance(value, dict):
        kept = read_entries(value, path, seen)
    else:
        kept = [read(each, f"{path}[{k}]", seen) for k, each in enumerate(value)]
    if isinstance(value, deque):
        about = {"maxlen": value.maxlen}
    if isinstance(value, defaultdict):
        about = {"factory": getattr(value.default_factory, "__name__", None)}
    if not about and kind is CONTAINERS[base]:
        return (base, kept)
    more = {name: read(each, f"{path}.{name}", seen) for name, each in attributes(value).items()}
    return (base, kept, name_of(kind), about, more)


def read_entries(value: dict[Any, Any], path: str, seen: Seen) -> Any:
    """The entries of a dictionary: pairs, or by their keys where these are plain."""
    if not all(type(key) in PLAIN and not holds_environment(key) for key in value):
        pairs = [
            (read(key, f"{path} key", seen), read(each, f"{path}[]", seen)) for key, each in value.items()
        ]
        if unknown := [key for key, _ in pairs if key[0] not in KEYS]:
            raise NotCapturedError(f"{path} (a {unknown[0][0]} as a key)")
        return pairs
    return {key: read(each, f"{path}[{key!r}]", seen) for key, each in value.items()}


def holds_environment(value: Any) -> bool:
    """Whether a text holds the value of an environment variable, as one given by ``${oc.env:NAME}`` does."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return any(map(holds_environment, value.ravel().tolist()))
    text = value.decode(errors="ignore") if isinstance(value, bytes | bytearray) else value
    if not isinstance(text, str) or len(text) < 8:
        return False
    return any(len(each) >= 8 and each in text for each in os.environ.values())


def write(value: Any, saved: Saved, filled: Filled) -> Any:
    """What stands where ``value`` stands once ``saved`` is put back; what can be is filled in place."""
    match saved:
        case ("constant",):
            return value
        case ("plain", kept):
            return kept
        case ("number", kind, kept):
            return np.dtype(kind).type(kept)
        case ("enum", name, member):
            return known(name, Enum, value).__members__[member]
        case ("same", number):
            return filled.objects[number]
        case ("method", of, function):
            it = write(getattr(value, "__self__", None), of, filled)
            does = write(getattr(value, "__func__", None), function, filled)
            return value if value == types.MethodType(does, it) else types.MethodType(does, it)
        case ("array" | "tensor" | "fresh", *_):
            return write_array(value, saved, filled)
        case ("state", kept, *named):
            there = value if not named or label(value) == named[0] else None
            value = filled.take(there, NEW.get(named[0], refuse) if named else refuse)
            _, put = ways_of(value) or refuse()
            put(value, write(None, kept, filled))
        case ("function", kept, more, *named):
            if not isinstance(value, types.FunctionType) or (named and not alike(named[0], name_of(value))):
                raise ValueError(f"the function {named} is not there")
            filled.take(value, refuse)
            for (_, cell), each in zip(cells(value), kept, strict=True):
                cell.cell_contents = write(cell.cell_contents, each, filled)
            write(own(value), more, filled)
        case ("holder", held, module, *named):
            return write_holder(value, held, module, *named, filled=filled)
        case (base, kept, *more) if base in CONTAINERS:
            return write_container(value, base, kept, *more, filled=filled)
        case _:
            raise ValueError("not a state of an environment")
    return value


def write_array(value: Any, saved: Saved, filled: Filled) -> Any:
    """An array or a tensor; an array is filled in place, for others may look into it."""
    match saved:
        case ("fresh", kept):
            if not isinstance(value, np.ndarray | torch.Tensor) or digest(value) != kept:
                raise ValueError("a table is not what it was in a fresh environment")
            return filled.take(value, lambda: value)
        case ("tensor", kept):
            device = value.device if isinstance(value, torch.Tensor) else kept.device
            return filled.take(None, lambda: kept.clone().to(device))
        case (_, content, kind, shape, is_scalar):
            made = content.clone().numpy().view(kind).reshape(shape)
            if isinstance(value, np.ndarray) and (value.shape, value.dtype) == (made.shape, made.dtype):
                if not value.flags.writeable:
                    return filled.take(value if np.array_equal(bits(value), content) else None, lambda: made)
                np.copyto(filled.take(value, lambda: made), made)
                return filled.objects[-1]
            return filled.take(None, lambda: made[()] if is_scalar else made)


def write_container(
    value: Any, base: str, kept: Any, name: str = "", about: Any = None, more: Any = None, *, filled: Filled
) -> Any:
    """A container, of the class it was."""
    kind, about = CONTAINERS[base], about or {}
    cls = known(name, kind, value) if name else kind
    there = value if type(value) is cls and getattr(value, "maxlen", None) == about.get("maxlen") else None
    if kind in (tuple, frozenset):
        before = [*(there if there and kind is tuple else ()), *[None] * len(kept)]
        made = [write(old, each, filled) for old, each in zip(before, kept, strict=False)]
        same = there is not None and len(there) == len(made) and all(map(operator.is_, there, made))
        value = there if same else kind.__new__(cls, made)
    else:
        value = filled.take(there, partial(empty, kind, cls, about))
        fill(value, kind, kept, about, filled)
    if more:
        write_attributes(value, more, filled)
    return value


def fill(value: Any, kind: Any, kept: Any, about: Mapping[str, Any], filled: Filled) -> None:
    """Gives a container what it held; of a class made from ``kind``, none of whose code runs."""
    if kind is bytearray:
        value[:] = kept
    elif kind is array.array:
        value[:] = array.array(about["typecode"], kept)
    elif issubclass(kind, dict):
        pairs = [(("plain", key), each) for key, each in kept.items()] if isinstance(kept, Mapping) else kept
        entries = dict[Any, Any]()
        for saved, each in pairs:
            key = write(None, saved, filled)
            entries[key] = write(kind.get(value, key), each, filled)
        kind.clear(value)
        for key, each in entries.items():
            kind.__setitem__(value, key, each)
    else:
        before = [*(() if kind is set else value), *[None] * len(kept)]
        made = [write(old, each, filled) for old, each in zip(before, kept, strict=False)]
        kind.clear(value)
        (kind.update if kind is set else kind.extend)(value, made)


def empty(kind: Any, cls: type, about: Mapping[str, Any]) -> Any:
    """A container of a class made from ``kind``; no code of that class runs."""
    if kind is array.array:
        return kind.__new__(cls, about["typecode"])
    made = kind.__new__(cls)
    if kind is deque:
        deque.__init__(made, (), about.get("maxlen"))
    if kind is defaultdict and about["factory"] is not None:
        made.default_factory = FACTORIES[about["factory"]]
    return made


def write_holder(value: Any, held: Any, module: Any, name: str = "", *, filled: Filled) -> Any:
    """What has attributes; what a game is made of may refer to more than one just made has yet."""
    cls = type(value)
    if name and not alike(name, name_of(value if isinstance(value, type) else cls)):
        there, cls, value = cls.__name__, known(name, object, None), None
        if cls not in OBJECTS and not is_game_s(cls):
            raise ValueError(f"{there} stands where {name} stood")
    new = object.__new__ if is_game_s(cls) else cls.__new__ if cls in OBJECTS else None
    value = filled.take(value, partial(new, cls) if new else refuse)
    write_attributes(value, held, filled)
    if module:
        nn.Module.load_state_dict(value, module)
    return value


def write_attributes(value: Any, held: Mapping[str, Saved], filled: Filled) -> None:
    """Gives a holder the attributes it had, and no others."""
    there = attributes(value)
    new_names = table()["attributes"].get(
        current(name_of(value if isinstance(value, type) else type(value))), {}
    )
    held = {new_names.get(name, name): each for name, each in held.items()}
    for name, each in held.items():
        if each == ("constant",):
            continue
        now = write(there.get(name), each, filled)
        if name in there and now is there[name]:
            continue
        if isinstance(value, type):
            type.__setattr__(value, name, now)
        else:
            vars(value)[name] = now
    for name in there.keys() - held.keys():
        if not isinstance(value, type):
            vars(value).pop(name, None)


def refuse() -> Any:
    """For what cannot be made.

    Raises:
        ValueError: always.
    """
    raise ValueError("it refers to an object that one just made has not yet")


def alike(name: str, other: str) -> bool:
    """Whether ``name``, as a checkpoint has it, names the class or function ``other`` of today."""
    return current(name) == other


def current(name: str) -> str:
    """The name of today of a class or function that a checkpoint names as ``module:qualified.name``."""
    module, colon, path = name.partition(":")
    return colon.join(new_class(module, path)) if colon else name


def name_of(value: Any) -> str:
    """Where a class or a function is defined."""
    return f"{value.__module__}:{value.__qualname__}"


def known(name: str, base: type, there: Any) -> Any:
    """A class by its name: that of what stands there, or one in a module that is loaded; nothing is imported.

    Raises:
        ValueError: if there is none, or it is not made from ``base``.
    """
    name = current(name)
    if name_of(type(there)) == name:
        return type(there)
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"the class {name} is not there")
    return found


def attributes(holder: Any) -> dict[str, Any]:
    """What holds the state of an environment, a wrapper or a class; an object holds its classes."""
    if isinstance(holder, type):
        own = {name: each for name, each in vars(holder).items() if not name.startswith(("__", "_abc_"))}
        return {name: each for name, each in own.items() if not is_descriptor(each)}
    if isinstance(holder, gymnasium.Space):  # the rest of it is as it was built
        return {name: each for name, each in vars(holder).items() if name in OF_SPACES}
    hidden = MODULE if isinstance(holder, EnvBase) else ()
    own = {name: each for name, each in getattr(holder, "__dict__", {}).items() if name not in hidden}
    if is_library_s(type(holder)):  # which samples none, and whose spaces nobody seeds
        own = {name: each for name, each in own.items() if not isinstance(each, gymnasium.Space)}
    # Classes first: what an attribute may refer to of them is then found again by its number.
    classes = {f"class {each.__name__}": each for each in type(holder).__mro__ if not is_library_s(each)}
    return children(holder) or classes | own


def children(holder: Any) -> dict[str, Any]:
    """What TorchRL's own wrappers and ours hold; they keep nothing else from one step to the next."""
    for kind, name in ((GymWrapper, "_env"), (TransformedEnv, "base_env"), (SerialEnv, "_envs")):
        if isinstance(holder, kind) and (is_library_s(type(holder)) or type(holder) in OURS):
            return {name: getattr(holder, name)}
    return {}


def is_descriptor(value: Any) -> bool:
    """Whether a class's attribute is there for what its objects keep, as a property is."""
    return hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType)


def is_library_s(kind: type) -> bool:
    """Whether a class keeps no state of its own."""
    return package_of(kind) in LIBRARIES or issubclass(kind, Enum)


def is_game_s(kind: type) -> bool:
    """Whether a class is of a package of games, or a task of one's own by the API of PettingZoo."""
    return any(package_of(each) in GAMES for each in kind.__mro__)


def package_of(kind: Any) -> str:
    """The package that a class or a function is of."""
    return str(kind.__module__).partition(".")[0]


def is_constant(value: Any) -> bool:
    """Whether an environment is made of it and does not change it."""
    if isinstance(value, CONSTANT) or (isinstance(value, type) and is_library_s(value)):
        return True
    # What PettingZoo draws with, and a choice of Atari's emulator.
    return package_of(type(value)) == "pygame" or name_of(type(value)) == "ale_py._ale_py:Action"


def cells(function: types.FunctionType) -> list[tuple[str, types.CellType]]:
    """What a function keeps of the one it was made in, by name."""
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in named if cell != types.CellType()]  # which is an empty one


def own(function: types.FunctionType) -> list[Any]:
    """What a function keeps itself: its attributes, and defaults that may be changed in place."""
    if package_of(function) in LIBRARIES:
        return []
    return [vars(function), list(function.__defaults__ or ()), function.__kwdefaults__ or {}]
