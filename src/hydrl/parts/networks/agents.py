"""Actors and critics of several agents, which all act at once, over TorchRL's ``MultiAgentMLP``."""

from functools import partial

from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, QValueActor

from hydrl.parts.networks import heads
from hydrl.parts.networks.actors import tell_of_rounding
from hydrl.parts.networks.layers import activation_class
from hydrl.parts.networks.network import materialise
from hydrl.parts.specs import action_kind, action_spec, mask_key, size_of

Keys = list[str | tuple[str, ...]]


def actor(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: Keys, share_params: bool
) -> ProbabilisticActor:
    """Each agent acts on its own observation: a squashed Gaussian within bounds, or one logit an action.

    Of several choices at once that is one for each option of each.

    Args:
        env: gives the agents, their observations and their actions, ``[..., agents, size]``.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that the network reads.
        share_params: one network for all agents instead of one for each.
    """
    kind = action_kind(env).removeprefix("multi-agent ")
    drawn = {"discrete": heads.categorical, "multi-discrete": heads.several}.get(kind)
    if drawn is None:
        tell_of_rounding(env)
    spec, key = action_spec(env), env.action_key
    head = heads.tanh_normal(spec, key) if drawn is None else drawn(spec, key, mask=mask_key(env))
    layers = partial(of_agents, env, in_keys, num_cells, activation, share_params, False)
    return materialise(head.over(layers, in_keys), env)


def deterministic(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: Keys, share_params: bool
) -> TensorDictModuleBase:
    """Each agent has one action for what it observes itself, squashed into the bounds (for MADDPG).

    Args:
        env: and the others as for :func:`actor`.
    """
    tell_of_rounding(env)
    layers = partial(of_agents, env, in_keys, num_cells, activation, share_params, False)
    return materialise(heads.deterministic(action_spec(env), env.action_key).over(layers, in_keys), env)


def q_value(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: Keys, share_params: bool
) -> QValueActor:
    """Each agent acts by the greatest value of its own actions, from what it observes itself.

    Args:
        env: and the others as for :func:`actor`.
    """
    head = heads.q_value(action_spec(env), env.action_key, mask=mask_key(env))
    layers = partial(of_agents, env, in_keys, num_cells, activation, share_params, False)
    return materialise(head.over(layers, in_keys), env)


def critic(
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: Keys,
    share_params: bool,
    centralized: bool,
) -> TensorDictModuleBase:
    """The value of a state for each agent, ``[..., agents, 1]``.

    Args:
        env: gives the agents and their observations.
        actor: not read here; every critic is built from the same two.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that the network reads.
        share_params: one network for all agents instead of one for each.
        centralized: from what all agents observe (Yu et al. 2022) or each from its own (de Witt et al. 2020).
    """
    layers = partial(of_agents, env, in_keys, num_cells, activation, share_params, centralized)
    return materialise(heads.state_value().over(layers, in_keys), env)


def action_value(
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: Keys,
    share_params: bool,
    centralized: bool,
) -> TensorDictModuleBase:
    """The value of actions in a state for each agent, ``[..., agents, 1]`` (for MADDPG and MASAC).

    Args:
        env: and the others as for :func:`critic`.
        centralized: from what all agents observe and do (Lowe et al. 2017) or each from its own.
    """
    read = [*in_keys, env.action_key]
    layers = partial(of_agents, env, read, num_cells, activation, share_params, centralized)
    return materialise(heads.action_value().over(layers, read), env)


def of_agents(
    env: EnvBase,
    in_keys: Keys,
    num_cells: list[int],
    activation: str,
    share_params: bool,
    centralized: bool,
    outputs: int,
) -> MultiAgentMLP:
    """Reads ``in_keys`` joined, ``[..., agents, size]``, and gives ``[..., agents, outputs]``.

    Raises:
        UserError: for entries that are not there.
    """
    spec, observed = action_spec(env), [key for key in in_keys if key != env.action_key]
    acted = spec.shape[-1] if env.action_key in in_keys else 0
    return MultiAgentMLP(
        n_agent_inputs=size_of(env.observation_spec, observed) + acted,
        n_agent_outputs=outputs,
        n_agents=spec.shape[0],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
