"""PettingZoo environments of several agents that act at once, one or several stepped together."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, flatdim, flatten
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from hydrl.envs.action_masks import parse_mask
from hydrl.envs.checked_env import copy_kwargs, describe_value, is_env_error
from hydrl.envs.optional import check_id, require_package
from hydrl.envs.spaces import RESERVED_KEYS, child_spaces, choice_sizes, unflatten_choices
from hydrl.errors import UserError
from hydrl.specs import AGENTS, ALIVE, GONE, MASK, has_room

PACKAGES = {"mpe2": "mpe2"}  # package by the first half of an id
PACKAGES |= {family: f"pettingzoo.{family}" for family in ("atari", "butterfly", "classic", "sisl")}
OWN = "Your own environment is env.id=MODULE:CLASS, a pettingzoo.ParallelEnv."
ENDS = ("done", "terminated", "truncated")
GroupMap = Literal["all_in_one_group", "one_group_per_agent"] | dict[str, list[str]] | None
GroupArrays = dict[str, dict[str, np.ndarray]]  # arrays [num_envs, agents, ...] by group and name


class Group(NamedTuple):
    """Agents with the same observation and action spaces, which may share a network.

    Attributes:
        name: of the group.
        agents: names, in order.
        actions: the action space of one agent.
        size: of one agent's observation as a vector.
    """

    name: str
    agents: list[str]
    actions: gymnasium.Space
    size: int


def pettingzoo_env(
    id: str,
    num_envs: int = 1,
    device: str = "cpu",
    group_map: GroupMap = None,
    continuous_actions: bool | None = None,
    **kwargs: Any,
) -> "MultiAgentEnv":
    """TorchRL environment of PettingZoo environments whose agents act at once.

    Args:
        id: ``mpe2/simple_spread_v3``, or ``MODULE:CLASS`` for your own ``pettingzoo.ParallelEnv``.
        num_envs: environments stepped together.
        device: where observations and actions live; the environments run on the CPU.
        group_map: agents that share a network; ``None`` groups them by name without number, as
            ``adversary_0`` and ``adversary_1``. Others: ``all_in_one_group``, ``one_group_per_agent``, or
            your own groups, ``{hunters: [adversary_0, adversary_1], prey: [agent_0]}``.
        continuous_actions: for environments with both kinds, as MPE; ``None``: their default.
        **kwargs: passed to the environment.

    Raises:
        UserError: for an unknown or turn-based environment, a missing package, an unknown keyword, unlike
            agents in one group, or unsupported actions.
    """
    if continuous_actions is not None:
        kwargs["continuous_actions"] = continuous_actions
    envs = [make_parallel_env(id, copy_kwargs(kwargs)) for _ in range(num_envs)]
    return MultiAgentEnv(envs, f"env.id={id}", group_map, device)


def make_parallel_env(id: str, kwargs: dict[str, Any]) -> Any:
    """Makes a ``pettingzoo.ParallelEnv``.

    Raises:
        UserError: as :func:`pettingzoo_env`.
    """
    pettingzoo = require_package("pettingzoo", "pettingzoo")
    env = call_maker(find_maker(id), id, kwargs)
    if isinstance(env, pettingzoo.AECEnv):
        raise UserError(turns_message(id))
    if not all(hasattr(env, attribute) for attribute in ("possible_agents", "action_space", "step", "reset")):
        raise UserError(f"env.id={id}: it made a {type(env).__name__}, no PettingZoo environment. {OWN}")
    return env


def call_maker(maker: Any, id: str, kwargs: dict[str, Any]) -> Any:
    """Calls a maker with its keywords.

    Raises:
        UserError: for unknown keywords, or a missing package.
    """
    try:
        return maker(**kwargs)
    except (TypeError, ImportError) as error:
        is_library = getattr(maker, "__module__", "").partition(".")[0] in ("pettingzoo", "mpe2")
        if not is_library and is_env_error(error):
            raise
        raise UserError(f"env.id={id}: cannot be created: {' '.join(str(error).split())}") from error


def find_maker(id: str) -> Any:
    """The function or class that makes a parallel environment.

    Raises:
        UserError: for an unknown or turn-based environment.
    """
    if ":" in id:
        return import_own_env(id)
    module = import_env_module(id)
    if not hasattr(module, "parallel_env"):
        raise UserError(turns_message(id))
    return module.parallel_env


def import_own_env(id: str) -> Any:
    """Imports the user's class or function by ``MODULE:NAME``.

    Raises:
        UserError: if it cannot be imported.
    """
    module, _, name = id.partition(":")
    advice = "Put it next to the folder of --config-dir=DIR, or its folder into PYTHONPATH."
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise UserError(f"env.id={id}: cannot be created: {error}") from None
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise UserError(f"env.id={id}: cannot be created: {error}. {advice}") from None


def import_env_module(id: str) -> Any:
    """Imports the module of a PettingZoo environment, ``FAMILY/NAME_vN``.

    Raises:
        UserError: if it is unknown or its package is missing.
    """
    family, _, name = id.partition("/")
    if family in PACKAGES:
        require_package(PACKAGES[family], "pettingzoo")
    check_id(id, list_env_ids())
    try:
        return import_module(f"{PACKAGES[family]}.{name}")
    except ImportError as error:
        extra = "hydrl[pettingzoo]" if family in ("mpe2", "classic") else f"pettingzoo[{family}]"
        raise UserError(f"env.id={id}: {' '.join(str(error).split())}. Run pip install '{extra}'.") from error


def list_env_ids() -> list[str]:
    """The ids of all installed environments, ``FAMILY/NAME_vN``, without importing them."""
    env_ids = []
    for family, package in PACKAGES.items():
        spec = find_spec(package)
        folders = (spec.submodule_search_locations if spec else None) or []
        env_ids += [
            f"{family}/{file.stem}" for folder in folders for file in Path(folder).glob("*_v[0-9]*.py")
        ]
    return sorted(env_ids)


def turns_message(id: str) -> str:
    """The message for a turn-based environment."""
    return f"env.id={id}: it is a turn-based game. Write env=self_play env.id={id}."


class MultiAgentEnv(EnvBase):
    """TorchRL environment of PettingZoo environments stepped together, ``[num_envs]``, with agents in groups.

    An agent observes a vector, ``(GROUP, observation)``; other spaces are flattened, discrete ones one-hot.
    An episode ends when all agents have ended. An agent that ends earlier is not ``alive``: it observes
    zeros, its reward is 0, its actions have no effect and losses skip it. It is ``gone`` if it terminated,
    and then nothing is bootstrapped. TorchRL's ``PettingZooWrapper`` holds only one environment.

    Args:
        envs: ``pettingzoo.ParallelEnv`` each.
        label: their name in messages.
        group_map: see :func:`pettingzoo_env`.
        device: where tensors live.
    """

    has_consecutive_seeds = True  # see _set_seed

    def __init__(self, envs: Sequence[Any], label: str, group_map: GroupMap, device: str) -> None:
        super().__init__(device=device, batch_size=[len(envs)])
        self.envs, self.label = [*envs], label
        self.metadata, env = getattr(envs[0], "metadata", {}), envs[0]
        self.spaces = {agent: env.observation_space(agent) for agent in env.possible_agents}
        self.groups = make_groups(env, group_map, label)
        self.positions = {
            agent: (group.name, position)
            for group in self.groups
            for position, agent in enumerate(group.agents)
        }
        self.seeds: list[int | None] = [None] * len(envs)
        _, infos = env.reset()
        masked_agents = {agent for agent, space in self.spaces.items() if MASK in child_spaces(space)}
        masked_agents |= {agent for agent in self.spaces if MASK in (infos.get(agent) or {})}
        self.has_mask = {group.name: bool(masked_agents & {*group.agents}) for group in self.groups}
        shapes = {group.name: (len(envs), len(group.agents)) for group in self.groups}
        self.arrays: GroupArrays = {
            group.name: self.empty_arrays(group, shapes[group.name]) for group in self.groups
        }
        self.make_specs(shapes)

    def make_specs(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Sets TorchRL's specs; ``whole`` is ``(num_envs, agents)`` of each group."""
        observation_specs, action_specs, reward_specs = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for group in self.groups:
            shape, action = shapes[group.name], action_spec_of(group, self.label)
            entries = {name: observation_spec_of(array) for name, array in self.arrays[group.name].items()}
            observation_specs[group.name] = Composite(entries, shape=shape)
            action_specs[group.name] = Composite(
                {"action": action.expand(*shape, *action.shape)}, shape=shape
            )
            reward_specs[group.name] = Composite({"reward": Unbounded((*shape, 1))}, shape=shape)
        done_specs = {name: Binary(1, (*self.batch_size, 1), dtype=torch.bool) for name in ENDS}
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = (
            Composite(specs, shape=self.batch_size).to(self.device)
            for specs in (observation_specs, action_specs, reward_specs, done_specs)
        )

    def empty_arrays(self, group: Group, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """A group's arrays before anything is observed."""
        arrays = {"observation": np.zeros((*shape, group.size), np.float32)}
        arrays |= {ALIVE: np.ones((*shape, 1), bool), GONE: np.zeros((*shape, 1), bool)}
        if self.has_mask[group.name]:
            arrays[MASK] = np.ones((*shape, sum(choice_sizes(group.actions))), bool)
        return arrays

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        to_reset = np.ones(len(self.envs), bool)
        if tensordict is not None and (reset_mask := tensordict.get("_reset", None)) is not None:
            to_reset = reset_mask.reshape(-1).numpy(force=True)
        for index in np.flatnonzero(to_reset).tolist():
            seed, self.seeds[index] = self.seeds[index], None
            observations, infos = self.envs[index].reset(seed=seed)
            for agent, (group, position) in self.positions.items():
                self.arrays[group][ALIVE][index, position] = agent in self.envs[index].agents
                self.arrays[group][GONE][index, position] = False
                self.write_agent(index, agent, observations, infos)
        return self.to_tensordict({})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = {group.name: tensordict[group.name, "action"].numpy(force=True) for group in self.groups}
        rewards = {
            name: np.zeros((*arrays[ALIVE].shape,), np.float32) for name, arrays in self.arrays.items()
        }
        done_flags = {name: np.zeros((len(self.envs), 1), bool) for name in ENDS}
        for index, env in enumerate(self.envs):
            acting_agents = [*env.agents]
            if acting_agents:  # else its episode is over
                agent_actions = {agent: self.env_action(agent, actions, index) for agent in acting_agents}
                observations, agent_rewards, terminated, truncated, infos = env.step(agent_actions)
                for agent, (group, position) in self.positions.items():
                    is_over = terminated.get(agent) or truncated.get(agent) or agent not in env.agents
                    self.arrays[group][ALIVE][index, position] = not is_over
                    if agent in agent_actions:
                        rewards[group][index, position] = agent_rewards.get(agent, 0.0)
                        self.arrays[group][GONE][index, position] = is_over and not truncated.get(agent)
                    self.write_agent(index, agent, observations, infos)
                done_flags["truncated"][index] = any(truncated.values())
            done_flags["done"][index] = not any(arrays[ALIVE][index].any() for arrays in self.arrays.values())
        done_flags["truncated"] &= done_flags["done"]
        done_flags["terminated"] = done_flags["done"] & ~done_flags["truncated"]
        return self.to_tensordict(rewards, **done_flags)

    def env_action(self, agent: str, actions: Mapping[str, np.ndarray], index: int) -> Any:
        """An agent's action in its own action space."""
        group, position = self.positions[agent]
        action, space = actions[group][index, position], self.envs[index].action_space(agent)
        if isinstance(space, Box):
            return action.reshape(space.shape).astype(space.dtype)
        return unflatten_choices(space, np.ravel(action))

    def write_agent(
        self, index: int, agent: str, observations: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> None:
        """Writes an agent's observation and action mask; zeros and all valid if it has ended.

        Raises:
            UserError: for an observation of another shape than its space.
        """
        group, position = self.positions[agent]
        arrays, observation = self.arrays[group], observations.get(agent)
        arrays["observation"][index, position] = (
            0.0 if observation is None else self.flatten_observation(agent, observation)
        )
        if MASK in arrays:
            mask = find_mask(observation, infos.get(agent)) if arrays[ALIVE][index, position] else None
            size = arrays[MASK].shape[-1]
            arrays[MASK][index, position] = (
                True if mask is None else parse_mask(mask, size, f"{self.label}: {MASK}")
            )

    def flatten_observation(self, agent: str, observation: Any) -> np.ndarray:
        """An agent's observation as a vector, without its action mask."""
        entries, space = child_spaces(self.spaces[agent]), without_mask(self.spaces[agent])
        if MASK in entries:
            others = {name: observation[name] for name in entries if name != MASK}
            observation = others if isinstance(space, Dict) else next(iter(others.values()))
        if not isinstance(space, Box):
            return flatten(space, observation)
        if np.shape(observation) != space.shape:
            raise UserError(
                f"{self.label}: the observation of {agent} has shape {list(np.shape(observation))}, but its "
                f"space has shape {list(space.shape)}. Make the two agree."
            )
        return np.ravel(observation)

    def to_tensordict(self, rewards: Mapping[str, np.ndarray], **done_flags: np.ndarray) -> TensorDictBase:
        """A copy of the current arrays as a tensordict."""
        entries_by_group: dict[Any, Any] = dict(done_flags)
        for name, entries in self.arrays.items():
            agents = {key: torch.from_numpy(array.copy()) for key, array in entries.items()}
            agents |= {"reward": torch.from_numpy(rewards[name])} if rewards else {}
            entries_by_group[name] = TensorDict(agents, entries[ALIVE].shape[:-1])
        return TensorDict(entries_by_group, self.batch_size).to(self.device)

    def _set_seed(self, seed: int | None) -> None:
        """Environment ``k`` begins its next episode with ``seed + k``."""
        self.seeds = [None if seed is None else seed + index for index in range(len(self.envs))]

    def render(self) -> Any:
        """An image of the first environment, if it was made with a ``render_mode``."""
        return self.envs[0].render()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environments."""
        if not self.is_closed:
            for env in self.envs:
                env.close()
        super().close(raise_if_closed=raise_if_closed)


class PettingZooIO:
    """Converts PettingZoo's dictionaries by agent to a policy's tensordicts, and actions back.

    Args:
        make: makes a :class:`MultiAgentEnv` of one environment.
    """

    def __init__(self, make: Callable[..., MultiAgentEnv]) -> None:
        self.env = make(num_envs=1)

    def read(self, observations: Any, masks: Any = None) -> TensorDict:
        """Observations as a tensordict ``[]``; missing agents have ended.

        Args:
            observations: by agent.
            masks: action masks by agent, if the environment gives them in ``info``.

        Raises:
            UserError: for anything but such a dictionary, or an unknown agent.
        """
        env, infos = self.env, {agent: {MASK: mask} for agent, mask in (masks or {}).items()}
        if not isinstance(observations, Mapping) or not observations or {*observations} - {*env.positions}:
            raise UserError(
                f"observation: got {describe_value(observations)}. Pass a dictionary by agent, of those that "
                f"still act among {', '.join(env.positions)}."
            )
        for agent, (group, position) in env.positions.items():
            is_alive = agent in observations
            env.arrays[group][ALIVE][0, position], env.arrays[group][GONE][0, position] = (
                is_alive,
                not is_alive,
            )
            env.write_agent(0, agent, observations, infos)
        self.agents = [*observations]
        return env.to_tensordict({})[0]

    def write(self, tensordict: TensorDictBase) -> dict[str, Any]:
        """The actions by agent for the environment's ``step``, of the agents last read."""
        actions = {
            group.name: tensordict[group.name, "action"].numpy(force=True)[None] for group in self.env.groups
        }
        agent_actions = {agent: self.env.env_action(agent, actions, 0) for agent in self.agents}
        return {
            agent: int(action) if action.shape == () else action for agent, action in agent_actions.items()
        }


def make_groups(env: Any, group_map: GroupMap, label: str) -> list[Group]:
    """The groups of agents; a single group is called ``agents``.

    Raises:
        UserError: for names that do not fit, or unlike agents in one group.
    """
    agents = [*env.possible_agents]
    if isinstance(group_map, Mapping):
        members_of = {name: [*members] for name, members in group_map.items()}
        grouped_agents = [agent for members in members_of.values() for agent in members]
        if sorted(grouped_agents) != sorted(agents) or not all(members_of.values()):
            raise UserError(
                f"env.group_map={group_map}: each agent should be in one group. The agents of {label} are "
                f"{', '.join(agents)}."
            )
    elif group_map == "all_in_one_group":
        members_of = {AGENTS: agents}
    else:
        members_of = {}
        for agent in agents:
            per_agent = group_map == "one_group_per_agent"
            members_of.setdefault(agent if per_agent else re.sub(r"_\d+$", "", agent), []).append(agent)
    if len(members_of) == 1:
        members_of = {AGENTS: agents}
    if reserved := sorted({*members_of} & RESERVED_KEYS):
        raise UserError(f"env.group_map: {reserved[0]} is a reserved name. Give the group another one.")
    return [make_group(env, name, members, group_map) for name, members in members_of.items()]


def make_group(env: Any, name: str, agents: list[str], group_map: GroupMap) -> Group:
    """A group of agents.

    Raises:
        UserError: if their spaces differ.
    """
    first, *others = agents
    signatures = [
        (flatdim(without_mask(env.observation_space(agent))), choice_sizes(space) or space)
        for agent, space in [(agent, env.action_space(agent)) for agent in agents]
    ]
    for agent, signature in zip(others, signatures[1:], strict=True):
        if signature != signatures[0]:
            differences = [
                f"{member} observes {size} numbers and {describe_actions(actions)}"
                for member, (size, actions) in ((first, signatures[0]), (agent, signature))
            ]
            alternatives = "null (by names), or env.group_map=" * (group_map is not None)
            raise UserError(
                f"env.group_map={group_map or 'null'}: agents of one group must be alike, but "
                f"{' and '.join(differences)}. "
                f"Write env.group_map={alternatives}one_group_per_agent, with algo=mappo or algo=ippo."
            )
    return Group(name, agents, env.action_space(first), signatures[0][0])


def describe_actions(actions: Any) -> str:
    """The numbers of options, or the action space, in words for messages."""
    several = " and of ".join(map(str, actions)) if isinstance(actions, list) else ""
    return f"has {several} actions" if several else f"acts in {actions}"


def without_mask(space: gymnasium.Space) -> gymnasium.Space:
    """An agent's observation space without its action mask; a single remaining entry is not nested."""
    if MASK not in child_spaces(space):
        return space
    others = {name: subspace for name, subspace in child_spaces(space).items() if name != MASK}
    return next(iter(others.values())) if len(others) == 1 else Dict(others)


def find_mask(observation: Any, info: Any) -> Any:
    """An agent's action mask, from its observation or ``info``; ``None`` without one."""
    masks = [source[MASK] for source in (observation, info) if isinstance(source, Mapping) and MASK in source]
    return masks[0] if masks else None


def observation_spec_of(array: np.ndarray) -> TensorSpec:
    """The spec of an entry of the observation."""
    if array.dtype == bool:
        return Binary(array.shape[-1], array.shape, dtype=torch.bool)
    return Unbounded(array.shape, dtype=torch.float32)


def action_spec_of(group: Group, label: str) -> TensorSpec:
    """The spec of one agent's action: an integer, several, or bounded floats.

    Raises:
        UserError: for other spaces.
    """
    space, sizes = group.actions, choice_sizes(group.actions)
    if len(sizes) == 1:
        return Categorical(sizes[0], dtype=torch.int64)
    if sizes:
        return MultiCategorical(sizes)
    if isinstance(space, Box) and space.dtype.kind == "f" and has_room(space.low, space.high):
        low, high = (torch.as_tensor(bound.ravel(), dtype=torch.float32) for bound in (space.low, space.high))
        return Bounded(low, high)
    raise UserError(
        f"{label}: the actions of {group.agents[0]} are {space}. Supported are discrete and multi-discrete "
        "ones of two options or more, and a Box of floats with finite bounds, low below high."
    )
