"""Actors and critics of several agents, which all act at once, over TorchRL's ``MultiAgentMLP``."""

from functools import partial

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import OneHot
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator

from hydrl.parts.networks.actors import materialise, tell_of_rounding
from hydrl.parts.networks.encoders import Joined, activation_class, size_of
from hydrl.parts.specs import action_kind, action_spec

Keys = list[str | tuple[str, ...]]


def actor(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: Keys, share_params: bool
) -> ProbabilisticActor:
    """Each agent acts on its own observation: a squashed Gaussian within bounds, or one logit an action.

    Args:
        env: gives the agents, their observations and their actions, ``[..., agents, size]``.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that the network reads.
        share_params: one network for all agents instead of one for each.
    """
    spec, key = action_spec(env), env.action_key
    net = partial(network, env, in_keys, num_cells, activation, share_params, centralized=False)
    if action_kind(env).endswith("discrete"):
        made, means, bounds = net(spec.space.n), ["logits"], {}
        chosen = OneHotCategorical if isinstance(spec, OneHot) else torch.distributions.Categorical
    else:
        tell_of_rounding(env)
        made, means = Joined(net(2 * spec.shape[-1]), NormalParamExtractor()), ["loc", "scale"]
        chosen, bounds = TanhNormal, {"low": spec.space.low, "high": spec.space.high}
    *group, _ = key
    parameters = [(*group, each) for each in means]
    acting = ProbabilisticActor(
        TensorDictModule(made, in_keys=in_keys, out_keys=parameters),
        in_keys=parameters,
        out_keys=[key],
        spec=spec,
        distribution_class=chosen,
        distribution_kwargs=bounds,
        return_log_prob=True,
        log_prob_key=(*group, "action_log_prob"),
    )
    return materialise(acting, env)


def critic(
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: Keys,
    share_params: bool,
    centralized: bool,
) -> ValueOperator:
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
    net = network(env, in_keys, num_cells, activation, share_params, 1, centralized=centralized)
    return materialise(ValueOperator(net, in_keys=in_keys), env)


def network(
    env: EnvBase,
    in_keys: Keys,
    num_cells: list[int],
    activation: str,
    share_params: bool,
    outputs: int,
    *,
    centralized: bool,
) -> MultiAgentMLP:
    """Reads ``in_keys`` joined, ``[..., agents, size]``, and gives ``[..., agents, outputs]``.

    Raises:
        UserError: for entries that are not there.
    """
    return MultiAgentMLP(
        n_agent_inputs=size_of(env, in_keys),
        n_agent_outputs=outputs,
        n_agents=action_spec(env).shape[0],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
