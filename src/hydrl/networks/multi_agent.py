"""Actors and critics of several agents that act at once, over TorchRL's ``MultiAgentMLP``.

With several groups of agents each group has a network of its own, one after the other.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MultiAgentMLP, QValueActor

from hydrl.errors import UserError
from hydrl.limits import Activation, PositiveInt
from hydrl.networks import heads
from hydrl.networks.actors import warn_rounding
from hydrl.networks.build import materialise
from hydrl.networks.layers import activation_class
from hydrl.specs import (
    action_kind_of,
    agent_groups,
    group_key,
    group_network,
    mask_key,
    single_group_spec,
    total_size,
)


class AgentNetworkOptions(TypedDict):
    """Keywords of all networks of agents, see :func:`make_agent_network`.

    Attributes:
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that their network reads, in each group.
        share_params: one network for all agents of a group instead of one for each.
    """

    num_cells: list[PositiveInt]
    activation: Activation
    in_keys: list[str | tuple[str, ...]]
    share_params: bool


def actor(env: EnvBase, **net: Unpack[AgentNetworkOptions]) -> TensorDictModuleBase:
    """Policy of each agent from its own observation: tanh-Gaussian if continuous, else categorical.

    Multi-discrete actions have one logit for each option of each choice.

    Args:
        env: gives the agents, their observations and their actions, ``[..., agents, size]``.
        **net: see :class:`AgentNetworkOptions`.
    """
    actors = []
    for group, spec in agent_groups(env).items():
        key, group_keys = (group, "action"), [group_key(in_key, group) for in_key in net["in_keys"]]
        kind = action_kind_of(spec)
        if kind in ("discrete", "multi-discrete"):
            make_head = heads.categorical if kind == "discrete" else heads.multi_categorical
            head = make_head(spec, key, mask=mask_key(env, key))
        else:
            warn_rounding(env, key)
            head = heads.tanh_normal(spec, key)
        options: dict[str, Any] = {**net, "in_keys": group_keys}
        make_layers = partial(make_agent_network, env, **options)
        actors.append(materialise(head.build(make_layers, group_keys), env))
    return join_groups(actors)


def deterministic(env: EnvBase, **net: Unpack[AgentNetworkOptions]) -> TensorDictModuleBase:
    """Deterministic policy of each agent from its own observation (for MADDPG).

    Args:
        env: and the others as for :func:`actor`.
    """
    spec, key = single_group_spec(env), env.action_key
    warn_rounding(env, key)
    make_layers = partial(make_agent_network, env, **net)
    return materialise(heads.deterministic(spec, key).build(make_layers, net["in_keys"]), env)


def q_value(env: EnvBase, **net: Unpack[AgentNetworkOptions]) -> QValueActor:
    """Greedy Q-network of each agent from its own observation.

    Args:
        env: and the others as for :func:`actor`.
    """
    head = heads.q_value(single_group_spec(env), env.action_key, mask=mask_key(env))
    make_layers = partial(make_agent_network, env, **net)
    return materialise(head.build(make_layers, net["in_keys"]), env)


def critic(
    env: EnvBase, actor: nn.Module | None = None, *, centralized: bool, **net: Unpack[AgentNetworkOptions]
) -> TensorDictModuleBase:
    """State value of each agent, ``[..., agents, 1]``.

    Args:
        env: gives the agents and their observations.
        actor: ignored; all critics are built from the same two.
        centralized: from all agents' observations, other groups' too (MAPPO, Yu et al. 2022), or each from
            its own (IPPO, de Witt et al. 2020).
    """
    critics, specs = [], agent_groups(env)
    for group in specs:
        group_keys = [group_key(in_key, group) for in_key in net["in_keys"]]
        other_groups = [other for other in specs if other != group and centralized]
        others = [group_key(in_key, other) for in_key in net["in_keys"] for other in other_groups]
        options: dict[str, Any] = {**net, "in_keys": group_keys, "centralized": centralized, "others": others}
        make_layers = partial(make_agent_network, env, **options)
        head = heads.state_value("state_value" if len(specs) == 1 else (group, "state_value"))
        critics.append(materialise(head.build(make_layers, [*group_keys, *others]), env))
    return join_groups(critics)


def join_groups(networks: list[TensorDictModuleBase]) -> TensorDictModuleBase:
    """The networks of several groups as one module, see :func:`hydrl.specs.group_network`."""
    return networks[0] if len(networks) == 1 else TensorDictSequential(*networks)


def partly_untrained(
    actor: TensorDictModuleBase, untrained: TensorDictModuleBase, names: Sequence[str], env: EnvBase
) -> TensorDictModuleBase:
    """A policy in which some groups act by an untrained network, with sampled actions.

    An untrained network's most likely action is the same in all states.

    Args:
        actor: the trained policy.
        untrained: an untrained one.
        names: the groups that act by it.
        env: has the agents.

    Raises:
        UserError: for an unknown group.
    """
    specs = agent_groups(env)
    if unknown := [name for name in names if name not in specs]:
        advice = f"Write {' or '.join(specs)}" if specs else "This run has a single agent"
        raise UserError(f"untrained={','.join(names)}: no such group as {unknown[0]}. {advice}.")
    if len(specs) == 1:
        return SampledPolicy(untrained)
    return TensorDictSequential(
        *(
            SampledPolicy(group_network(untrained, "actor", group))
            if group in names
            else group_network(actor, "actor", group)
            for group in specs
        )
    )


class SampledPolicy(TensorDictModuleBase):
    """Policy whose actions are sampled even in deterministic evaluation.

    Args:
        actor: a stochastic policy.
    """

    def __init__(self, actor: TensorDictModuleBase) -> None:
        super().__init__()
        self.actor, self.in_keys, self.out_keys = actor, actor.in_keys, actor.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes a sampled action."""
        with set_exploration_type(ExplorationType.RANDOM):
            return self.actor(tensordict)


def action_value(
    env: EnvBase, actor: nn.Module | None = None, *, centralized: bool, **net: Unpack[AgentNetworkOptions]
) -> TensorDictModuleBase:
    """Action value of each agent, ``[..., agents, 1]`` (for MADDPG and MASAC).

    Args:
        env: and the others as for :func:`critic`.
        centralized: from all agents' observations and actions (Lowe et al. 2017), or each from its own.
    """
    single_group_spec(env)
    group_keys = [*net["in_keys"], env.action_key]
    options: dict[str, Any] = {**net, "in_keys": group_keys, "centralized": centralized}
    make_layers = partial(make_agent_network, env, **options)
    return materialise(heads.action_value().build(make_layers, group_keys), env)


def make_agent_network(
    env: EnvBase,
    outputs: int,
    *,
    in_keys: Sequence[NestedKey],
    num_cells: list[int],
    activation: str,
    share_params: bool,
    centralized: bool = False,
    others: Sequence[NestedKey] = (),
) -> nn.Module:
    """Network of a group's agents, from ``in_keys``, ``[..., agents, size]``, to ``[..., agents, outputs]``.

    Args:
        env: gives the entries.
        outputs: size of each agent's output.
        in_keys: entries of one group of agents.
        num_cells: see :class:`AgentNetworkOptions`.
        activation: likewise.
        share_params: likewise.
        centralized: whether each agent's network reads all agents' entries.
        others: entries of other groups, concatenated to each agent's input.

    Raises:
        UserError: for missing entries.
    """
    spec, action_specs = env.observation_spec, env.full_action_spec
    observed_keys = [key for key in in_keys if key not in env.action_keys]
    action_size = sum(action_specs[key].shape[-1] for key in in_keys if key in env.action_keys)
    size_of_others = sum(spec[key].shape[-2:].numel() for key in others if total_size(spec, [key]))
    net = MultiAgentMLP(
        n_agent_inputs=total_size(spec, observed_keys) + action_size + size_of_others,
        n_agent_outputs=outputs,
        n_agents=spec[observed_keys[0]].shape[-2],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
    return OtherGroupsInput(net, len(in_keys)) if others else net


class OtherGroupsInput(nn.Module):
    """Network of a group's agents that also reads other groups' entries.

    Args:
        net: reads both concatenated, ``[..., agents, size]``.
        num_own: input entries of the group itself.
    """

    def __init__(self, net: nn.Module, num_own: int) -> None:
        super().__init__()
        self.net, self.own = net, num_own

    def forward(self, *entries: Tensor) -> Tensor:
        """Entries ``[..., agents, size]``, each of its own group."""
        agents = entries[0].shape[-2]
        others = [entry.flatten(-2).unsqueeze(-2) for entry in entries[self.own :]]
        expanded = [entry.expand(*entry.shape[:-2], agents, -1) for entry in others]
        return self.net(torch.cat([*entries[: self.own], *expanded], -1))
