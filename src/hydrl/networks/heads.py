"""Heads: what networks end in. A head knows an action spec and its distribution, and nothing before it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from tensordict import NestedKey
from tensordict.nn import (
    AddStateIndependentNormalScale,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Size, Tensor, nn
from torch.distributions import Categorical, Distribution, Independent
from torchrl.data import OneHot, TensorSpec
from torchrl.modules import (
    DistributionalDQNnet,
    DistributionalQValueActor,
    IndependentNormal,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
)
from torchrl.modules import OneHotCategorical as OneHotOfTorchRL
from torchrl.modules.models import DuelingMlpDQNet

from hydrl.errors import UserError
from hydrl.networks.layers import ConcatSequential, Layers, activation_class
from hydrl.specs import choice_sizes, nested_spec, sibling_key

Scale = Literal["per_state", "log_std", "independent"]
MASKED_LOGIT = (
    -1e9
)  # a logit of probability 0; what is made of an infinite one has no gradient that is a number
POLICY_GAIN = 0.01  # gain of a policy's last layer, so that it begins near the same for all observations

MakeLayers = Callable[[int], nn.Module]  # layers with an output of so many numbers


@dataclass(frozen=True)
class Head:
    """What a network ends in.

    Attributes:
        net: hidden layers with their output to the module whose results are the entries ``out_keys``. It is
            given what builds the layers, called with the size of their output, ``[..., size]``.
        out_keys: what that module writes.
        whole: what writes these to what acts or judges by them.
        gain: of the last layer, where layers are drawn orthogonal.
        of_actions: whether it is read off an observation and an action together.
    """

    make_net: Callable[[Any], nn.Module]
    out_keys: Sequence[NestedKey]
    wrap: Callable[[TensorDictModuleBase], TensorDictModuleBase] = lambda net: net
    gain: float = 1.0
    takes_action: bool = False

    def build(
        self, layers: MakeLayers, in_keys: Sequence[NestedKey], before: Sequence[TensorDictModuleBase] = ()
    ) -> TensorDictModuleBase:
        """What acts or judges, by ``layers`` over ``in_keys``, some of which what is ``before`` writes."""
        net = TensorDictModule(self.make_net(layers), in_keys=in_keys, out_keys=self.out_keys)
        return self.wrap(TensorDictSequential(*before, net) if before else net)


def tanh_normal(
    spec: TensorSpec, key: NestedKey = "action", *, scale: Scale = "per_state", scale_init: float = 1.0
) -> Head:
    """A Gaussian squashed into the action bounds.

    Args:
        spec: of the action, ``[..., size]``.
        key: of the action; the parameters of the distribution stand beside it.
        scale: see :func:`hydrl.networks.actors.tanh_normal`, as ``scale_init``.
    """
    bounds = {"low": spec.space.low, "high": spec.space.high}
    net = partial(loc_and_scale, size=spec.shape[-1], scale=scale, scale_init=scale_init)
    return distribution_head(net, ["loc", "scale"], spec, key, TanhNormal, bounds)


def gaussian(
    spec: TensorSpec, key: NestedKey = "action", *, scale: Scale = "independent", scale_init: float = 1.0
) -> Head:
    """A Gaussian without squashing, whatever the bounds; arguments as of :func:`tanh_normal`."""
    net = partial(loc_and_scale, size=spec.shape[-1], scale=scale, scale_init=scale_init)
    return distribution_head(net, ["loc", "scale"], spec, key, IndependentNormal, {})


def loc_and_scale(layers: MakeLayers, size: int, scale: Scale, scale_init: float) -> nn.Module:
    """Layers that end in the mean and the standard deviation of ``size`` action dimensions."""
    if scale == "independent":
        return ConcatSequential(
            layers(size), AddStateIndependentNormalScale(size, init_value=math.log(scale_init))
        )
    net = layers(2 * size)
    mapped = LogStd() if scale == "log_std" else NormalParamExtractor(f"biased_softplus_{scale_init}")
    return ConcatSequential(*(net if isinstance(net, nn.Sequential) else [net]), mapped)


class LogStd(nn.Module):
    """Mean and standard deviation from a mean and a log standard deviation, which is clamped to -20..2.

    As in SAC's published code (Haarnoja et al. 2018) and in Stable-Baselines3.
    """

    def forward(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., 2 * size]`` to twice ``[..., size]``."""
        loc, log_std = parameters.chunk(2, -1)
        return loc, log_std.clamp(-20, 2).exp()


def categorical(spec: TensorSpec, key: NestedKey = "action", *, mask: NestedKey | None = None) -> Head:
    """One logit an action; one-hot or integer, as ``spec`` says.

    Args:
        spec: of the action.
        key: see :func:`tanh_normal`.
        mask: the entry that says which actions are allowed; the others have no probability.
    """
    one_hot = isinstance(spec, OneHot)
    known: dict[str, Any] = {}
    chosen: Callable[..., Distribution] = OneHotCategorical if one_hot else Categorical
    if mask is not None:
        chosen, known = masked_categorical, {"one_hot": one_hot}
    return distribution_head(lambda layers: layers(spec.space.n), ["logits"], spec, key, chosen, known, mask)


class OneHotCategorical(OneHotOfTorchRL):
    """A choice as a one among zeros: TorchRL's, with a draw that does not cut a compiled loss in pieces."""

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``[*sample_shape, ..., actions]``, drawn as TorchRL's own draws it."""
        return nn.functional.one_hot(Categorical.sample(self, Size(sample_shape)), self.num_samples)


def masked_categorical(logits: Tensor, mask: Tensor, one_hot: bool) -> Distribution:
    """A choice among the actions that ``mask`` allows, of ``logits``, both ``[..., actions]``.

    TorchRL's own, ``MaskedOneHotCategorical``, tells no log-probability of what a compiled loss draws.
    """
    kind = OneHotCategorical if one_hot else Categorical
    return kind(logits=logits.masked_fill(~mask, MASKED_LOGIT))


def multi_categorical(spec: TensorSpec, key: NestedKey = "action", *, mask: NestedKey | None = None) -> Head:
    """One logit for each option of each choice, in a row; choices are integers, drawn by themselves.

    Args:
        spec: of the action, ``[choices]``.
        key: of the action; the logits, ``[..., options of all choices]``, stand beside it.
        mask: the entry that says which of these options are allowed; the others have no probability.
    """
    sizes = torch.tensor(choice_sizes(spec), device=spec.device)
    option = torch.arange(int(sizes.max()), device=spec.device)
    valid = option < sizes.unsqueeze(-1)
    places = (sizes.cumsum(0) - sizes).unsqueeze(-1) + option
    table = {"places": places * valid, "valid": valid}
    return distribution_head(
        lambda layers: layers(int(sizes.sum())), ["logits"], spec, key, independent_categoricals, table, mask
    )


def independent_categoricals(
    logits: Tensor, places: Tensor, valid: Tensor, mask: Tensor | None = None
) -> Independent:
    """Several choices, each with probabilities of its own.

    Args:
        logits: ``[..., options of all choices]``.
        places: ``[choices, most]``, where in these each choice has the logit of each option.
        there: ``[choices, most]``, which options it has; those it lacks get the least number there is, for
            with -inf the gradient of a divergence is NaN.
        mask: which of the options of all choices are allowed.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, MASKED_LOGIT)
    least = torch.finfo(logits.dtype).min
    return Independent(Categorical(logits=logits[..., places].masked_fill(~valid, least)), 1)


def distribution_head(
    net: Callable[[MakeLayers], nn.Module],
    parameters: list[str],
    spec: TensorSpec,
    key: NestedKey,
    distribution: Callable[..., Distribution],
    known: dict[str, Any],
    mask: NestedKey | None = None,
) -> Head:
    """A distribution over actions, whose ``parameters`` the network writes beside ``key``.

    What of it is ``known`` is the same in all states; a ``mask`` the environment gives.
    """
    named = {parameter: sibling_key(key, parameter) for parameter in parameters}
    acting = partial(
        ProbabilisticActor,
        in_keys=[*named.values()] if mask is None else {**named, "mask": mask},
        out_keys=[key],
        spec=spec,
        distribution_class=distribution,
        distribution_kwargs=known,
        return_log_prob=True,
        log_prob_key=sibling_key(key, "action_log_prob"),
    )
    return Head(net, [*named.values()], acting, POLICY_GAIN)


def deterministic(spec: TensorSpec, key: NestedKey = "action") -> Head:
    """One action, squashed into the bounds; the number that is squashed stands beside ``key``."""
    param = sibling_key(key, "param")

    def whole(net: TensorDictModuleBase) -> TensorDictSequential:
        return TensorDictSequential(net, TanhModule(in_keys=[param], out_keys=[key], spec=spec))

    return Head(lambda layers: layers(spec.shape[-1]), [param], whole)


def q_value(
    spec: TensorSpec, key: NestedKey = "action", *, dueling: bool = False, mask: NestedKey | None = None
) -> Head:
    """One value an action; acts by the greatest, by the first of several that are equal.

    TorchRL's one-hot action has a one for each of them, is no action then and sums their values.

    Args:
        spec: of the action.
        key: of the action; its values stand beside it.
        dueling: see :func:`dueling_network`.
        mask: the entry that says which actions are allowed; the others have the least value there is.
    """
    actions, named = spec.space.n, {"action_value_key": sibling_key(key, "action_value"), "action_key": key}
    named["chosen_action_value_key"] = sibling_key(key, "chosen_action_value")

    def net(layers: Any) -> nn.Module:
        return dueling_network(layers, actions, 1) if dueling else layers(actions)

    def whole(values: TensorDictModuleBase) -> QValueActor:
        return set_one_hot_choice(
            QValueActor(values, spec=nested_spec(spec, key), action_mask_key=mask, **named), argmax_one_hot
        )

    return Head(net, [named["action_value_key"]], whole)


def distributional(
    spec: TensorSpec, returns: Tensor, *, dueling: bool, mask: NestedKey | None = None
) -> Head:
    """Log-probabilities of ``returns``, ``[..., atoms, actions]``; acts by the greatest mean.

    With a ``mask``, as :func:`q_value`, those of a forbidden action are the least numbers there are, which
    TorchRL's actor knows of values alone.
    """
    actions, atoms = spec.space.n, len(returns)

    def net(layers: Any) -> nn.Module:
        if dueling:
            return dueling_network(layers, (atoms, actions), (atoms, 1))
        return ConcatSequential(layers(atoms * actions), nn.Unflatten(-1, (atoms, actions)))

    def whole(scores: TensorDictModuleBase) -> QValueActor:
        if mask is not None:
            heeding = TensorDictModule(
                mask_log_probs, in_keys=["action_value", mask], out_keys=["action_value"]
            )
            scores = TensorDictSequential(scores, DistributionalDQNnet(), heeding)
        acting = DistributionalQValueActor(scores, spec=spec, support=returns, make_log_softmax=mask is None)
        return set_one_hot_choice(
            acting, partial(argmax_one_hot if mask is None else masked_argmax_one_hot, returns=returns)
        )

    return Head(net, ["action_value"], whole)


def state_value(key: NestedKey = "state_value") -> Head:
    """The value of a state, ``[..., 1]``, as the entry ``key``."""
    return Head(lambda layers: layers(1), [key])


def action_value(outputs: int = 1) -> Head:
    """The value of an action in a state, ``[..., outputs]``; several are quantiles of the return."""
    return Head(lambda layers: layers(outputs), ["state_action_value"], takes_action=True)


def discriminator() -> Head:
    """How likely an action in a state is an expert's, ``[..., 1]``, by the name TorchRL's loss reads it."""
    return Head(lambda layers: ConcatSequential(layers(1), nn.Sigmoid()), ["d_logits"], takes_action=True)


def action_values(spec: TensorSpec) -> Head:
    """The value of each choice in a state, ``[..., actions]``."""
    return Head(lambda layers: layers(spec.space.n), ["action_value"])


def dueling_network(
    layers: Layers, advantages: int | Sequence[int], values: int | Sequence[int]
) -> nn.Module:
    """A trunk with a head for the advantage of each action and one for the state's value, added."""
    if len(layers.num_cells) < 2:
        raise UserError(
            f"actor.num_cells={layers.num_cells} is too short for actor=dueling; give trunk and heads, as "
            "[64,64]"
        )
    cls = activation_class(layers.activation)
    *trunk, head = layers.num_cells
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
    return ConcatSequential(net)


def make_support(v_min: float, v_max: float, atoms: int) -> Tensor:
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


def set_one_hot_choice(actor: QValueActor, choice: Callable[[Tensor], Tensor]) -> QValueActor:
    """The actor, whose one-hot actions are made by ``choice``."""
    actor[-1].action_func_mapping["one_hot"] = choice
    return actor


def argmax_one_hot(values: Tensor, returns: Tensor | None = None) -> Tensor:
    """One-hot, ``[..., actions]``, of ``values`` of that shape, or of log-probabilities of ``returns``."""
    if returns is not None:
        values = (values.exp() * returns.unsqueeze(-1)).sum(-2)
    return torch.zeros_like(values, dtype=torch.long).scatter_(-1, values.argmax(-1, keepdim=True), 1)


def masked_argmax_one_hot(scores: Tensor, returns: Tensor) -> Tensor:
    """The same of log-probabilities ``[..., atoms, actions]`` that :func:`mask_log_probs` made."""
    least = torch.finfo(scores.dtype).min
    means = (scores.exp() * returns.unsqueeze(-1)).sum(-2)
    return argmax_one_hot(means.masked_fill(scores.amax(-2) == least, least))


def mask_log_probs(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities ``[..., atoms, actions]``, where ``mask``, ``[..., actions]``, allows the action."""
    return scores.masked_fill(~mask.unsqueeze(-2), torch.finfo(scores.dtype).min)
