"""Actors and critics of several agents that act at once, over TorchRL's ``MultiAgentMLP``.

With several groups of agents each group has a network of its own, one after the other.
"""

from collections.abc import Sequence
from functools import partial

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

Keys = list[str | tuple[str, ...]]


def actor(
    env: EnvBase, *, num_cells: list[PositiveInt], activation: Activation, in_keys: Keys, share_params: bool
) -> TensorDictModuleBase:
    """Policy of each agent from its own observation: tanh-Gaussian if continuous, else categorical.

    Multi-discrete actions have one logit for each option of each choice.

    Args:
        env: gives the agents, their observations and their actions, ``[..., agents, size]``.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that their network reads, in each group.
        share_params: one network for all agents of a group instead of one for each.
    """
    acting = []
    for group, spec in agent_groups(env).items():
        key, read = (group, "action"), [group_key(in_key, group) for in_key in in_keys]
        drawn = {"discrete": heads.categorical, "multi-discrete": heads.multi_categorical}.get(
            action_kind_of(spec)
        )
        if drawn is None:
            warn_rounding(env, key)
        head = heads.tanh_normal(spec, key) if drawn is None else drawn(spec, key, mask=mask_key(env, key))
        layers = partial(make_agent_network, env, read, num_cells, activation, share_params, False)
        acting.append(materialise(head.build(layers, read), env))
    return join_groups(acting)


def deterministic(
    env: EnvBase, *, num_cells: list[PositiveInt], activation: Activation, in_keys: Keys, share_params: bool
) -> TensorDictModuleBase:
    """Deterministic policy of each agent from its own observation (for MADDPG).

    Args:
        env: and the others as for :func:`actor`.
    """
    spec, key = single_group_spec(env), env.action_key
    warn_rounding(env, key)
    layers = partial(make_agent_network, env, in_keys, num_cells, activation, share_params, False)
    return materialise(heads.deterministic(spec, key).build(layers, in_keys), env)


def q_value(
    env: EnvBase, *, num_cells: list[PositiveInt], activation: Activation, in_keys: Keys, share_params: bool
) -> QValueActor:
    """Greedy Q-network of each agent from its own observation.

    Args:
        env: and the others as for :func:`actor`.
    """
    head = heads.q_value(single_group_spec(env), env.action_key, mask=mask_key(env))
    layers = partial(make_agent_network, env, in_keys, num_cells, activation, share_params, False)
    return materialise(head.build(layers, in_keys), env)


def critic(
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    num_cells: list[PositiveInt],
    activation: Activation,
    in_keys: Keys,
    share_params: bool,
    centralized: bool,
) -> TensorDictModuleBase:
    """State value of each agent, ``[..., agents, 1]``.

    Args:
        env: gives the agents and their observations.
        actor: ignored; all critics are built from the same two.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that their network reads, in each group.
        share_params: one network for all agents of a group instead of one for each.
        centralized: from all agents' observations, other groups' too (MAPPO, Yu et al. 2022), or each from
            its own (IPPO, de Witt et al. 2020).
    """
    judging, specs = [], agent_groups(env)
    for group in specs:
        read = [group_key(in_key, group) for in_key in in_keys]
        others = [
            group_key(in_key, other)
            for in_key in in_keys
            for other in specs
            if other != group and centralized
        ]
        layers = partial(
            make_agent_network, env, read, num_cells, activation, share_params, centralized, others=others
        )
        head = heads.state_value("state_value" if len(specs) == 1 else (group, "state_value"))
        judging.append(materialise(head.build(layers, [*read, *others]), env))
    return join_groups(judging)


def join_groups(networks: list[TensorDictModuleBase]) -> TensorDictModuleBase:
    """The networks of several groups as one module, see :func:`hydrl.specs.group_network`."""
    return networks[0] if len(networks) == 1 else TensorDictSequential(*networks)


def partly_untrained(
    actor: TensorDictModuleBase, fresh: TensorDictModuleBase, names: Sequence[str], env: EnvBase
) -> TensorDictModuleBase:
    """A policy in which some groups act by an untrained network, with sampled actions.

    The most likely action of an untrained network is the same direction for ever.

    Args:
        actor: the trained policy.
        fresh: an untrained one.
        names: the groups that act by ``fresh``.
        env: has the agents.

    Raises:
        UserError: for an unknown group.
    """
    specs = agent_groups(env)
    if unknown := [name for name in names if name not in specs]:
        advice = f"Write {' or '.join(specs)}" if specs else "This run has a single agent"
        raise UserError(f"untrained={','.join(names)}: no such group as {unknown[0]}. {advice}.")
    if len(specs) == 1:
        return SampledPolicy(fresh)
    return TensorDictSequential(
        *(
            SampledPolicy(group_network(fresh, "actor", group))
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
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    num_cells: list[PositiveInt],
    activation: Activation,
    in_keys: Keys,
    share_params: bool,
    centralized: bool,
) -> TensorDictModuleBase:
    """Action value of each agent, ``[..., agents, 1]`` (for MADDPG and MASAC).

    Args:
        env: and the others as for :func:`critic`.
        centralized: from all agents' observations and actions (Lowe et al. 2017), or each from its own.
    """
    single_group_spec(env)
    read = [*in_keys, env.action_key]
    layers = partial(make_agent_network, env, read, num_cells, activation, share_params, centralized)
    return materialise(heads.action_value().build(layers, read), env)


def make_agent_network(
    env: EnvBase,
    in_keys: Keys,
    num_cells: list[int],
    activation: str,
    share_params: bool,
    centralized: bool,
    outputs: int,
    *,
    others: Sequence[NestedKey] = (),
) -> nn.Module:
    """Network of a group's agents, from ``in_keys``, ``[..., agents, size]``, to ``[..., agents, outputs]``.

    Args:
        env: gives the entries.
        in_keys: of one group of agents.
        num_cells: see :func:`critic`, as for the others.
        outputs: size of each agent's output.
        others: entries of other groups, concatenated to each agent's input.

    Raises:
        UserError: for missing entries.
    """
    spec, acts = env.observation_spec, env.full_action_spec
    observed = [key for key in in_keys if key not in env.action_keys]
    acted = sum(acts[key].shape[-1] for key in in_keys if key in env.action_keys)
    size_of_others = sum(spec[key].shape[-2:].numel() for key in others if total_size(spec, [key]))
    net = MultiAgentMLP(
        n_agent_inputs=total_size(spec, observed) + acted + size_of_others,
        n_agent_outputs=outputs,
        n_agents=spec[observed[0]].shape[-2],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
    return CrossGroupInput(net, len(in_keys)) if others else net


class CrossGroupInput(nn.Module):
    """Network of a group's agents that also reads all entries of other groups.

    Args:
        net: reads both concatenated, ``[..., agents, size]``.
        own: how many of the input entries are the group's own.
    """

    def __init__(self, net: nn.Module, own: int) -> None:
        super().__init__()
        self.net, self.own = net, own

    def forward(self, *entries: Tensor) -> Tensor:
        """Entries ``[..., agents, size]``, each of its own group."""
        agents = entries[0].shape[-2]
        others = [entry.flatten(-2).unsqueeze(-2) for entry in entries[self.own :]]
        shown = [entry.expand(*entry.shape[:-2], agents, -1) for entry in others]
        return self.net(torch.cat([*entries[: self.own], *shown], -1))
