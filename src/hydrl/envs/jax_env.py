"""Functional simulators of JAX, one or several stepped together, as a TorchRL environment."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from multiprocessing import parent_process
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from hydrl.envs.build import EnvFamily
from hydrl.envs.optional import require_package
from hydrl.envs.spaces import RENAMED_ENTRIES, channels_are_last, is_image
from hydrl.errors import print_lines
from hydrl.specs import MASK

COMPILED: set[str] = set()  # ids whose compilation this process has announced
# As `StepCounter` of TorchRL has its own `step_count`.
ENTRY_NAMES = RENAMED_ENTRIES | {"": "observation", "step_count": "elapsed_steps"}
ENDS = ("done", "terminated", "truncated")


class JaxFamily(EnvFamily):
    """Functional simulators of JAX: Brax and Jumanji."""

    copies_arrays = True


class Outcome(NamedTuple):
    """What a step led to, arrays ``[num_envs]``."""

    reward: Any
    terminated: Any
    truncated: Any


class FunctionalSimulator:
    """Interface of a simulator whose state is an argument: pure functions of one environment.

    Attributes:
        id: the environment's, for messages.
        action_spec: of one environment.
        max_episode_steps: the time limit in steps; ``None`` without one.
        fps: steps in a second of simulated time; ``None`` if it has none.
    """

    id: str
    action_spec: TensorSpec
    max_episode_steps: int | None = None
    fps: float | None = None

    def reset(self, key: Any) -> Any:
        """The first state of an episode by a key; the state is a tree of JAX arrays."""
        raise NotImplementedError

    def step(self, state: Any, action: Any) -> Any:
        """The next state."""
        raise NotImplementedError

    def observe(self, state: Any) -> tuple[Any, Any]:
        """The observation, a tree of arrays ``[num_envs, ...]``, and the action mask or ``None``."""
        raise NotImplementedError

    def image_bounds(self, name: str) -> tuple[float, float] | None:
        """The lowest and highest value of an image that is observed as ``name``; ``None`` if unknown."""
        return None

    def outcome(self, state: Any) -> Outcome:
        """What the step to states led to."""
        raise NotImplementedError

    def convert_action(self, action: np.ndarray) -> np.ndarray:
        """hydrl's actions, ``[num_envs, ...]``, as the simulator takes them."""
        return action

    def render(self, state: Any) -> np.ndarray:
        """An image of the first of several states, ``[height, width, 3]``."""
        raise NotImplementedError

    @cached_property
    def jitted(self) -> "JittedFunctions":
        """The functions for several environments, which all environments of this simulator share."""
        return JittedFunctions(self)


class JittedFunctions:
    """A simulator's functions, compiled by JAX for several environments.

    Args:
        simulator: the functions of one environment.
    """

    def __init__(self, simulator: FunctionalSimulator) -> None:
        import jax
        from jax import numpy as jnp

        def strengthen(tree: Any) -> Any:
            # A weakly typed state would be compiled a second time when it comes back strongly typed.
            return jax.tree.map(lambda array: jnp.asarray(array, array.dtype), tree)

        def split(keys: Any) -> Any:
            return jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)

        def merge(mask: Any, new: Any, old: Any) -> Any:
            def choose(one: Any, other: Any) -> Any:
                return jnp.where(mask.reshape(-1, *[1] * (one.ndim - 1)), one, other)

            return jax.tree.map(choose, new, old)

        self.reset = jax.jit(lambda keys: strengthen(jax.vmap(simulator.reset)(keys)))
        self.step = jax.jit(lambda state, action: strengthen(jax.vmap(simulator.step)(state, action)))
        self.split, self.merge = jax.jit(split), jax.jit(merge)
        self.make_keys = jax.jit(jax.vmap(jax.random.PRNGKey))


class JaxState:
    """The states of several environments in JAX, and the keys that their next episodes come from.

    Environment ``k`` has the key of the seed + ``k``: its episodes do not depend on the other environments.

    Args:
        simulator: steps the environments.
        num_envs: how many.
    """

    def __init__(self, simulator: FunctionalSimulator, num_envs: int) -> None:
        self.simulator, self.num_envs, self.functions = simulator, num_envs, simulator.jitted
        announce_compilation(simulator.id, num_envs)
        self.seed(0)
        self.states: Any = None
        self.reset(None)

    def seed(self, seed: int) -> None:
        """Makes the environments' keys; the next reset begins with them."""
        seeds = (seed + np.arange(self.num_envs)) % 2**32
        self.keys = self.functions.make_keys(seeds.astype(np.uint32))

    def reset(self, mask: np.ndarray | None) -> None:
        """Begins an episode in the environments that a mask names, ``[num_envs]``; ``None``: in all."""
        keys, reset_keys = self.functions.split(self.keys)
        states = self.functions.reset(reset_keys)
        if mask is not None and not mask.all():
            keys, states = self.functions.merge(mask.copy(), (keys, states), (self.keys, self.states))
        self.keys, self.states = keys, states

    def step(self, action: np.ndarray) -> None:
        """Steps all environments."""
        action = np.array(self.simulator.convert_action(action))  # JAX may keep the memory that it is given
        self.states = self.functions.step(self.states, action)

    def observe(self) -> dict[str, torch.Tensor]:
        """Observation entries: images ``[num_envs, C, H, W]``, vectors of floats, and the action mask."""
        import jax

        observation, mask = self.simulator.observe(self.states)
        leaves, _ = jax.tree_util.tree_flatten_with_path(observation)
        entries = dict(adapt_entry(path_name(path), np.array(leaf)) for path, leaf in leaves)
        if mask is not None:
            entries[MASK] = np.array(mask, bool).reshape(self.num_envs, -1)
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in entries.items()}

    def outcome(self) -> dict[str, torch.Tensor]:
        """Reward and ends of the last step, ``[num_envs, 1]``."""
        reward, terminated, truncated = map(np.array, self.simulator.outcome(self.states))
        arrays = {"reward": reward.astype(np.float32), "terminated": terminated, "truncated": truncated}
        return {name: torch.from_numpy(array[:, None]) for name, array in arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """The leaves of the states, and the keys, as arrays of their own."""
        import jax

        return {
            "states": [np.array(leaf) for leaf in jax.tree.leaves(self.states)],
            "keys": np.array(self.keys),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`.

        Raises:
            ValueError: if it is of another environment.
        """
        import jax
        from jax import numpy as jnp

        leaves, structure = jax.tree.flatten(self.states)
        new = [jnp.array(array) for array in state["states"]]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != [(leaf.shape, leaf.dtype) for leaf in new]:
            raise ValueError("the state is of another environment")
        self.states, self.keys = jax.tree.unflatten(structure, new), jnp.array(state["keys"])


class JaxEnv(EnvBase):
    """TorchRL environment of a functional simulator, whose arrays are copied in both directions.

    Args:
        simulator: the functions of one environment.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; JAX has a device of its own.
    """

    has_consecutive_seeds = True

    def __init__(self, simulator: FunctionalSimulator, num_envs: int = 1, device: str = "cpu") -> None:
        super().__init__(device=device, batch_size=[] if num_envs == 1 else [num_envs])
        self.label, self.max_episode_steps = simulator.id, simulator.max_episode_steps
        self.metadata = {"render_fps": simulator.fps}
        self.shows_all = True  # see hydrl.specs.observation_keys
        self.state = JaxState(simulator, num_envs)
        entries = self.state.observe()
        self.observation_spec = Composite(
            {name: self.entry_spec(name, entry) for name, entry in entries.items()},
            shape=self.batch_size,
            device=self.device,
        )
        spec = simulator.action_spec.to(self.device)
        self.action_spec = spec.expand(*self.batch_size, *spec.shape)
        self.reward_spec = Unbounded((*self.batch_size, 1), device=self.device)
        end = Categorical(2, shape=(*self.batch_size, 1), dtype=torch.bool, device=self.device)
        self.full_done_spec = Composite({name: end.clone() for name in ENDS}, shape=self.batch_size)

    def entry_spec(self, name: str, entry: torch.Tensor) -> TensorSpec:
        """The spec of an observation entry, by its value ``[num_envs, ...]``."""
        shape = torch.Size([*self.batch_size, *entry.shape[1:]])
        if name == MASK:
            return Binary(shape[-1], shape, dtype=torch.bool, device=self.device)
        if entry.ndim == 4 and (bounds := self.state.simulator.image_bounds(name)):
            return Bounded(*bounds, shape, dtype=entry.dtype, device=self.device)
        return Unbounded(shape, dtype=entry.dtype, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.state.reset(None if mask is None else mask.reshape(-1).numpy(force=True))
        no_end = torch.zeros(self.state.num_envs, 1, dtype=torch.bool)
        return self.to_tensordict({name: no_end.clone() for name in ENDS})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get(self.action_key)
        if isinstance(self.action_spec, OneHot):
            action = action.to(torch.int32).argmax(-1).to(torch.int32)
        self.state.step(action.numpy(force=True).reshape(self.state.num_envs, *action.shape[self.ndim :]))
        outcome = self.state.outcome()
        return self.to_tensordict(outcome | {"done": outcome["terminated"] | outcome["truncated"]})

    def to_tensordict(self, entries: dict[str, torch.Tensor]) -> TensorDictBase:
        """The present observation and other entries, ``[num_envs, ...]``."""
        all_entries = self.state.observe() | entries
        shaped = {
            name: entry.reshape(*self.batch_size, *entry.shape[1:]) for name, entry in all_entries.items()
        }
        return TensorDict(shaped, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.state.seed(seed or 0)

    def render(self) -> np.ndarray:
        """An image of the first environment, ``[height, width, 3]``."""
        return self.state.simulator.render(self.state.states)


def load_jax(package: str, family: str) -> ModuleType:
    """Imports a package that needs JAX, on the CPU unless the user chose another platform.

    JAX computes with as many threads as PyTorch does now. What it prints when it is imported is dropped.

    Args:
        package: ``brax.envs`` or ``jumanji``.
        family: the option of ``env``.

    Raises:
        UserError: if a package is missing.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    with silence_output():
        return require_package(package, "jax", family)


@contextmanager
def silence_output() -> Iterator[None]:
    """Drops what Python prints in the block; MuJoCo's MJX reports packages that are optional."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def announce_compilation(id: str, num_envs: int) -> None:
    """Prints, once a process, that JAX compiles an environment; never in a worker process."""
    if id not in COMPILED and parent_process() is None:
        COMPILED.add(id)
        print_lines(
            f"env.id={id}: JAX compiles it, once for each number of environments (now {num_envs}).",
            sys.stderr,
        )


def path_name(path: tuple[Any, ...]) -> str:
    """The name of an entry by its path in a tree, ``OUTER_INNER``."""
    parts = [getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key in path]
    name = "_".join(map(str, parts))
    return ENTRY_NAMES.get(name, name)


def adapt_entry(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """An entry as networks read it, with its name: an image ``[n, C, H, W]``, or a vector of floats.

    Args:
        name: of the entry; a single image is called ``pixels``.
        array: ``[n, ...]``.
    """
    shape = array.shape[1:]
    if is_image(Box(-np.inf, np.inf, shape, np.float32)):
        array = array.transpose(0, 3, 1, 2) if channels_are_last(shape) else array
        return "pixels" if name == "observation" else name, array.astype(np.float32)
    return name, array.reshape(len(array), -1).astype(np.float32)
