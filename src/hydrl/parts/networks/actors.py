"""Actors: what maps an observation to an action, sized from the environment's specs."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.data import OneHot
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.modules import (
    DistributionalQValueActor,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
)
from torchrl.modules.models import DuelingMlpDQNet

from hydrl.errors import UserError
from hydrl.parts.finite import check_finite
from hydrl.parts.libraries import tell
from hydrl.parts.networks.encoders import (
    STATES,
    Joined,
    Memory,
    Norm,
    activation_class,
    initialise,
    mlp,
    noisy_layers,
    reading,
    size_of,
)
from hydrl.parts.specs import action_kind, action_spec, require_entries

Scale = Literal["per_state", "independent"]
FINE = 8_000  # numbers between bounds; of fewer, one action in 100 loses more than 0.1 % of its probability
SMALL = 0.01  # gain of a policy's last layer, so that it begins near the same for all observations


def tanh_normal(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    norm: Norm = None,
    memory: Memory = None,
    init: str | None = None,
    scale: Scale = "per_state",
    scale_init: float = 1.0,
) -> ProbabilisticActor:
    """A Gaussian squashed into the action bounds, for continuous actions.

    Args:
        env: gives the action bounds and, by one reset, the size of the observation.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries the network reads.
        norm: see :func:`hydrl.parts.networks.encoders.mlp`.
        memory: ``{"lstm": 64}`` or ``{"gru": 64}`` lets it remember, in as many units.
        init: see :func:`hydrl.parts.networks.encoders.initialise`.
        scale: ``per_state``, computed by the network and mapped as ``NormalParamExtractor`` does, or
            ``independent``, one learned number an action dimension (Schulman et al. 2017).
        scale_init: the Gaussian's deviation at the start, about, before it is squashed.
    """
    tell_of_rounding(env)
    spec = env.action_spec_unbatched
    size, inputs = spec.shape[-1], size_of(env, in_keys)
    if scale == "independent":
        means, start = mlp(num_cells, size, activation, norm, inputs), math.log(scale_init)
        net = Joined(means, AddStateIndependentNormalScale(size, init_value=start))
    else:
        mapped = NormalParamExtractor(f"biased_softplus_{scale_init}")
        net = Joined(*mlp(num_cells, 2 * size, activation, norm, inputs), mapped)
    actor = ProbabilisticActor(
        reading(net, ["loc", "scale"], env, in_keys, memory),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    return initialise(materialise(actor, env), init, SMALL)


def deterministic(
    env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str], memory: Memory = None
) -> TensorDictSequential:
    """One action for an observation, squashed into the bounds (for DDPG and TD3)."""
    tell_of_rounding(env)
    spec = env.action_spec_unbatched
    net = reading(mlp(num_cells, spec.shape[-1], activation), ["param"], env, in_keys, memory)
    squash = TanhModule(in_keys=["param"], out_keys=["action"], spec=spec)
    return materialise(TensorDictSequential(net, squash), env)


def categorical(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    memory: Memory = None,
    init: str | None = None,
    scale: Scale = "per_state",
    scale_init: float = 1.0,
) -> ProbabilisticActor:
    """One logit an action, for discrete actions (one-hot or integer, as the environment's spec says).

    Args:
        env: and the others as for :func:`tanh_normal`.
        scale: not read here, as ``scale_init``: an algorithm for both kinds of actions sets the deviation.
    """
    spec = env.action_spec_unbatched
    one_hot = isinstance(spec, OneHot)
    actor = ProbabilisticActor(
        reading(mlp(num_cells, spec.space.n, activation), ["logits"], env, in_keys, memory),
        in_keys=["logits"],
        spec=spec,
        distribution_class=OneHotCategorical if one_hot else torch.distributions.Categorical,
        return_log_prob=True,
    )
    return initialise(materialise(actor, env), init, SMALL)


def stochastic(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    memory: Memory = None,
    init: str | None = None,
    scale: Scale = "per_state",
    scale_init: float = 1.0,
) -> ProbabilisticActor:
    """The distribution that fits: :func:`categorical` for discrete actions, else :func:`tanh_normal`."""
    build = categorical if action_kind(env) == "discrete" else tanh_normal
    net: dict[str, Any] = {"num_cells": num_cells, "activation": activation, "in_keys": in_keys}
    return build(env, **net, memory=memory, init=init, scale=scale, scale_init=scale_init)


def q_value(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    noisy: float | None = None,
    dueling: bool = False,
) -> QValueActor:
    """One action value an action; acts by the greatest (Mnih et al. 2015).

    Args:
        env: and the others as for :func:`tanh_normal`.
        noisy: see :func:`hydrl.parts.networks.encoders.noisy_layers`.
        dueling: action values are state value plus advantage (Wang et al. 2016). The last of ``num_cells``
            is the width of the two heads, the others are the shared trunk.
    """
    actions = env.action_spec_unbatched.space.n
    net = two_heads(num_cells, activation, actions, 1) if dueling else mlp(num_cells, actions, activation)
    return greedy(reading(net, ["action_value"], env, in_keys), env, noisy)


def distributional(
    env: EnvBase,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    noisy: float | None = None,
    v_min: float,
    v_max: float,
    atoms: int,
    dueling: bool,
) -> DistributionalQValueActor:
    """For each action the probabilities of returns; acts by the greatest mean (Bellemare et al. 2017).

    Its ``action_value`` are log-probabilities, ``[..., atoms, actions]``.

    Args:
        env: and the others as for :func:`q_value`.
        v_min: the least return, of the rewards as they are learned from; one beyond counts as this.
        v_max: the greatest, more than ``v_min``.
        atoms: returns that are told apart, at even distances; the loss reads them off the actor.
        dueling: as :func:`q_value`, with a value and an advantage for each atom (Hessel et al. 2018).
    """
    actions = env.action_spec_unbatched.space.n
    net = (
        two_heads(num_cells, activation, (atoms, actions), (atoms, 1))
        if dueling
        else Joined(mlp(num_cells, atoms * actions, activation), nn.Unflatten(-1, (atoms, actions)))
    )
    scores = reading(net, ["action_value"], env, in_keys)
    return greedy(scores, env, noisy, support(v_min, v_max, atoms).to(env.device))


def two_heads(
    num_cells: list[int], activation: str, advantages: int | Sequence[int], values: int | Sequence[int]
) -> nn.Module:
    """A trunk with a head for the advantage of each action and one for the state's value, added."""
    if len(num_cells) < 2:
        raise UserError(
            f"actor.num_cells={num_cells} is too short for actor=dueling; give trunk and heads, as [64,64]"
        )
    cls = activation_class(activation)
    *trunk, head = num_cells
    net = DuelingMlpDQNet(
        out_features=advantages,
        out_features_value=values,
        mlp_kwargs_feature={
            "num_cells": trunk[:-1],
            "out_features": trunk[-1],
            "activation_class": cls,
            "activate_last_layer": True,
        },
        mlp_kwargs_output={"num_cells": [head], "activation_class": cls},
    )
    return Joined(net)


def support(v_min: float, v_max: float, atoms: int) -> Tensor:
    """The returns that are told apart, ``[atoms]``, evenly from ``v_min`` to ``v_max``.

    TorchRL's projection divides by their distance in float32, and for one support in fifteen that puts the
    greatest return past the last atom, into the next row or out of the minibatch. There ``v_max`` is lowered
    by its last bits.
    """
    while True:
        returns = torch.linspace(v_min, v_max, atoms)
        least, greatest = returns[0].item(), returns[-1].item()
        if (returns[-1] - least) / ((greatest - least) / (atoms - 1)) <= atoms - 1:
            return returns
        v_max = torch.nextafter(returns[-1], returns[0]).item()


def greedy(
    values: TensorDictModuleBase, env: EnvBase, noisy: float | None, returns: Tensor | None = None
) -> QValueActor:
    """Acts by the greatest of the ``values``, by the first of several that are equal.

    TorchRL's one-hot action has a one for each of them, is no action then and sums their values.

    Args:
        values: writes ``action_value``, ``[..., actions]``, or scores of returns, ``[..., atoms, actions]``.
        env: gives the actions.
        noisy: see :func:`hydrl.parts.networks.encoders.noisy_layers`.
        returns: ``[atoms]``, where their distribution is learned.
    """
    spec = env.action_spec_unbatched
    if returns is None:
        actor, choice = QValueActor(values, spec=spec), first_greatest
    else:
        actor = DistributionalQValueActor(values, spec=spec, support=returns)
        choice = partial(first_greatest, returns=returns)
    actor[-1].action_func_mapping["one_hot"] = choice
    return noisy_layers(materialise(actor, env), noisy)


def first_greatest(values: Tensor, returns: Tensor | None = None) -> Tensor:
    """One-hot, ``[..., actions]``, of ``values`` of that shape, or of log-probabilities of ``returns``."""
    if returns is not None:
        values = (values.exp() * returns.unsqueeze(-1)).sum(-2)
    return torch.zeros_like(values, dtype=torch.long).scatter_(-1, values.argmax(-1, keepdim=True), 1)


def tell_of_rounding(env: EnvBase) -> None:
    """Warns of bounds between which float32, in which actions are kept, has few numbers to tell them apart.

    The probability of a stored action is then not that of the action that was drawn.
    """
    bounds = action_spec(env.base_env if isinstance(env, TransformedEnv) else env).space
    low, high = bounds.low.flatten().float(), bounds.high.flatten().float()
    far = torch.maximum(low.abs(), high.abs())
    between = (high - low) / (far.nextafter(far * 2) - far)
    if (least := between.min()) < FINE:
        a, b = (each[between.argmin()].item() for each in (low, high))
        tell(
            f"an action lies between {a:,.10g} and {b:,.10g}, where float32 has {least:,.0f} numbers, too "
            "few for its probability; use other bounds in the task, as gymnasium.wrappers.RescaleAction does"
        )


def materialise(module: TensorDictModuleBase, env: EnvBase) -> TensorDictModuleBase:
    """Gives lazy layers their sizes by one forward pass over a reset, as the TorchRL tutorials do.

    That leaves no trace in the statistics of a normalisation, for it is made in ``eval()`` mode, in which the
    module acts and plays; updates are made in ``train()``.

    Raises:
        UserError: if the environment does not give what the module reads.
        DivergedError: if what it gives is no number.
    """
    actions = env.action_keys
    in_keys = [key for key in module.in_keys if key not in (*actions, *STATES)]
    require_entries(env.observation_spec, in_keys)
    module.to(env.device).eval()
    with torch.no_grad():
        start = env.reset()
        check_finite(start.unsqueeze(-1), in_keys)
        start["is_init"] = torch.ones(*env.batch_size, 1, dtype=torch.bool, device=env.device)
        module(env.rand_action(start) if set(actions) & set(module.in_keys) else start)
    return module
