"""Actors and critics of several agents, which all act at once, over TorchRL's ``MultiAgentMLP``."""

from functools import partial

from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, ProbabilisticActor

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
    return MultiAgentMLP(
        n_agent_inputs=size_of(env.observation_spec, in_keys),
        n_agent_outputs=outputs,
        n_agents=action_spec(env).shape[0],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
