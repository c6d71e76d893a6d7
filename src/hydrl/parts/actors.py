"""Actors: what maps an observation to an action, sized from the environment's specs."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictModuleBase,
)
from torch import Tensor, nn
from torchrl.data import OneHot
from torchrl.envs import EnvBase
from torchrl.modules import (
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)
from torchrl.modules.models import DuelingMlpDQNet

from hydrl.errors import UserError
from hydrl.parts.environments import action_kind, require_entries
from hydrl.parts.finite import check_finite

NEEDING_MORE = (nn.MultiheadAttention, nn.Threshold)  # cannot be built without arguments


def mlp(num_cells: Sequence[int], out_features: int, activation: str) -> nn.Sequential:
    """Hidden layers of ``num_cells`` and a linear output; input sizes come with the first batch.

    ``activation`` names a class of ``torch.nn``.
    """
    layers: list[nn.Module] = []
    for cells in num_cells:
        layers += [nn.LazyLinear(cells), activation_class(activation)()]
    return Joined(*layers, nn.LazyLinear(out_features))


class Joined(nn.Sequential):
    """Reads several entries as one, joined along the last dimension."""

    def forward(self, *entries: Tensor) -> Any:
        """Entries ``[..., size]``, each of its own size."""
        return super().forward(entries[0] if len(entries) == 1 else torch.cat(entries, -1))


def activation_class(name: str) -> type[nn.Module]:
    """``"Tanh"`` to ``torch.nn.Tanh``.

    Raises:
        UserError: if ``torch.nn`` has no activation of that name that is built without arguments.
    """
    found = getattr(nn, name, None)
    if (
        not isinstance(found, type)
        or found.__module__ != "torch.nn.modules.activation"
        or found in NEEDING_MORE
    ):
        raise UserError(
            f"activation={name} is not an activation of torch.nn; try Tanh, ReLU, ELU, SiLU or GELU"
        )
    return found


def tanh_normal(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    scale: str = "per_state",
) -> ProbabilisticActor:
    """A Gaussian squashed into the action bounds, for continuous actions.

    Args:
        env: gives the action bounds and, by one reset, the size of the observation.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries the network reads.
        scale: ``per_state``, computed by the network and mapped as ``NormalParamExtractor`` does, or
            ``independent``, one learned number an action dimension (Schulman et al. 2017).
    """
    spec = env.action_spec_unbatched
    size = spec.shape[-1]
    if scale == "independent":
        net = Joined(mlp(num_cells, size, activation), AddStateIndependentNormalScale(size))
    else:
        net = Joined(*mlp(num_cells, 2 * size, activation), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=in_keys, out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    return materialise(actor, env)


def categorical(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]
) -> ProbabilisticActor:
    """One logit an action, for discrete actions (one-hot or integer, as the environment's spec says)."""
    spec = env.action_spec_unbatched
    one_hot = isinstance(spec, OneHot)
    actor = ProbabilisticActor(
        TensorDictModule(mlp(num_cells, spec.space.n, activation), in_keys=in_keys, out_keys=["logits"]),
        in_keys=["logits"],
        spec=spec,
        distribution_class=OneHotCategorical if one_hot else torch.distributions.Categorical,
        return_log_prob=True,
    )
    return materialise(actor, env)


def stochastic(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]
) -> ProbabilisticActor:
    """The distribution that fits: :func:`categorical` for discrete actions, else :func:`tanh_normal`."""
    build = categorical if action_kind(env) == "discrete" else tanh_normal
    return build(env, num_cells=num_cells, activation=activation, in_keys=in_keys)


def q_value(env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]) -> QValueActor:
    """One action value an action; acts by the greatest (Mnih et al. 2015)."""
    spec = env.action_spec_unbatched
    return materialise(QValueActor(mlp(num_cells, spec.space.n, activation), in_keys=in_keys, spec=spec), env)


def dueling(env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]) -> QValueActor:
    """Action values as state value plus advantage (Wang et al. 2016).

    The last of ``num_cells`` is the width of the two heads, the others are the shared trunk.
    """
    if len(num_cells) < 2:
        raise UserError(
            f"actor.num_cells={num_cells} is too short for actor=dueling; give trunk and heads, as [64,64]"
        )
    spec = env.action_spec_unbatched
    cls = activation_class(activation)
    *trunk, head = num_cells
    net = DuelingMlpDQNet(
        out_features=spec.space.n,
        mlp_kwargs_feature={
            "num_cells": trunk[:-1],
            "out_features": trunk[-1],
            "activation_class": cls,
            "activate_last_layer": True,
        },
        mlp_kwargs_output={"num_cells": [head], "activation_class": cls},
    )
    return materialise(QValueActor(Joined(net), in_keys=in_keys, spec=spec), env)


def materialise(module: TensorDictModuleBase, env: EnvBase) -> TensorDictModuleBase:
    """Gives lazy layers their sizes by one forward pass over a reset, as the TorchRL tutorials do.

    The module comes back in ``eval()`` mode, in which it acts and plays; updates are made in ``train()``.

    Raises:
        UserError: if the environment does not give what the module reads.
        DivergedError: if what it gives is no number.
    """
    actions = env.action_keys
    in_keys = [key for key in module.in_keys if key not in actions]
    require_entries(env.observation_spec, in_keys)
    module.to(env.device)
    with torch.no_grad():
        start = env.reset()
        check_finite(start.unsqueeze(-1), in_keys)
        module(env.rand_action(start) if len(in_keys) < len(module.in_keys) else start)
    return module.eval()
