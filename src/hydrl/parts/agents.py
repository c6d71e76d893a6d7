"""Actors and critics of several agents, which all act at once, over TorchRL's ``MultiAgentMLP``."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torchrl.data import OneHot
from torchrl.envs import EnvBase
from torchrl.modules import MultiAgentMLP, OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator

from hydrl.parts.actors import Joined, activation_class, materialise
from hydrl.parts.environments import action_kind, action_spec, require_entries

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
    group = key[:-1]
    shape = {"num_cells": num_cells, "activation": activation, "share_params": share_params}
    if action_kind(env).endswith("discrete"):
        net = network(env, in_keys, spec.space.n, centralized=False, **shape)
        means, options = ["logits"], {}
        chosen = OneHotCategorical if isinstance(spec, OneHot) else torch.distributions.Categorical
    else:
        net = Joined(network(env, in_keys, 2 * spec.shape[-1], centralized=False, **shape), NormalParamExtractor())
        means, options, chosen = ["loc", "scale"], {"low": spec.space.low, "high": spec.space.high}, TanhNormal
    parameters = [(*group, each) for each in means]
    acting = ProbabilisticActor(
        TensorDictModule(net, in_keys=in_keys, out_keys=parameters),
        in_keys=parameters,
        out_keys=[key],
        spec=spec,
        distribution_class=chosen,
        distribution_kwargs=options,
        return_log_prob=True,
        log_prob_key=(*group, "action_log_prob"),
    )
    return materialise(acting, env)


def critic(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: Keys, share_params: bool, centralized: bool
) -> ValueOperator:
    """The value of a state for each agent, ``[..., agents, 1]``.

    Args:
        env: gives the agents and their observations.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: entries of the agents that the network reads.
        share_params: one network for all agents instead of one for each.
        centralized: from what all agents observe (Yu et al. 2022) or from each one's own (de Witt et al. 2020).
    """
    shape = {"num_cells": num_cells, "activation": activation, "share_params": share_params}
    net = network(env, in_keys, 1, centralized=centralized, **shape)
    return materialise(ValueOperator(net, in_keys=in_keys), env)


def network(
    env: EnvBase,
    in_keys: Keys,
    outputs: int,
    *,
    num_cells: list[int],
    activation: str,
    share_params: bool,
    centralized: bool,
) -> MultiAgentMLP:
    """Reads ``in_keys`` joined, ``[..., agents, size]``, and gives ``[..., agents, outputs]``.

    Raises:
        UserError: for entries that are not there.
    """
    spec = env.observation_spec
    require_entries(spec, in_keys)
    return MultiAgentMLP(
        n_agent_inputs=sum(spec[key].shape[-1] for key in in_keys),
        n_agent_outputs=outputs,
        n_agents=action_spec(env).shape[0],
        centralized=centralized,
        share_params=share_params,
        num_cells=num_cells,
        activation_class=activation_class(activation),
        device=env.device,
    )
