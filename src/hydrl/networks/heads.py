"""Heads: the last part of a network, made from the action spec, independent of the layers below."""

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

from hydrl.networks.layers import ConcatSequential
from hydrl.specs import choice_sizes, nested_spec, sibling_key

Scale = Literal["per_state", "log_std", "bounded_log_std", "independent"]
MASKED_LOGIT = -1e9  # a logit of probability 0; the gradient of an infinite one would be NaN
POLICY_GAIN = 0.01  # gain of a policy's last layer: initially almost the same policy for all observations

MakeLayers = Callable[[int], nn.Module]  # builds hidden layers with an output of a given size


@dataclass(frozen=True)
class Head:
    """The last part of a network.

    Attributes:
        make_net: builds the module that writes ``out_keys``, from a function that builds the hidden layers
            with an output of a given size, ``[..., size]``.
        out_keys: the entries it writes.
        wrap: makes an actor or critic from that module.
        gain: of the last layer, for orthogonal initialisation.
        takes_action: whether it reads the action in addition to the observation.
    """

    make_net: Callable[[Any], nn.Module]
    out_keys: Sequence[NestedKey]
    wrap: Callable[[TensorDictModuleBase], TensorDictModuleBase] = lambda net: net
    gain: float = 1.0
    takes_action: bool = False

    def build(
        self, layers: MakeLayers, in_keys: Sequence[NestedKey], preceding: Sequence[TensorDictModuleBase] = ()
    ) -> TensorDictModuleBase:
        """The actor or critic: this head over ``layers``, which read ``in_keys``, after ``preceding``."""
        net = TensorDictModule(self.make_net(layers), in_keys=in_keys, out_keys=self.out_keys)
        return self.wrap(TensorDictSequential(*preceding, net) if preceding else net)


def tanh_normal(
    spec: TensorSpec, key: NestedKey = "action", *, scale: Scale = "per_state", scale_init: float = 1.0
) -> Head:
    """Head of a Gaussian policy squashed into the action bounds.

    Args:
        spec: of the action, ``[..., size]``.
        key: of the action; the distribution's parameters are its siblings.
        scale: see :func:`hydrl.networks.actors.tanh_normal`, as ``scale_init``.
    """
    bounds = {"low": spec.space.low, "high": spec.space.high}
    net = partial(loc_and_scale, size=spec.shape[-1], scale=scale, scale_init=scale_init)
    return distribution_head(net, ["loc", "scale"], spec, key, TanhNormal, bounds)


def gaussian(
    spec: TensorSpec, key: NestedKey = "action", *, scale: Scale = "independent", scale_init: float = 1.0
) -> Head:
    """Head of a Gaussian policy without squashing; arguments as of :func:`tanh_normal`."""
    net = partial(loc_and_scale, size=spec.shape[-1], scale=scale, scale_init=scale_init)
    return distribution_head(net, ["loc", "scale"], spec, key, IndependentNormal, {})


def loc_and_scale(layers: MakeLayers, size: int, scale: Scale, scale_init: float) -> nn.Module:
    """Network that ends in the mean and standard deviation of ``size`` action dimensions."""
    if scale == "independent":
        return ConcatSequential(
            layers(size), AddStateIndependentNormalScale(size, init_value=math.log(scale_init))
        )
    net = layers(2 * size)
    if scale in ("log_std", "bounded_log_std"):
        scale_module: nn.Module = LogStd(bounded=scale == "bounded_log_std")
    else:
        scale_module = NormalParamExtractor(f"biased_softplus_{scale_init}")
    return ConcatSequential(*(net if isinstance(net, nn.Sequential) else [net]), scale_module)


class LogStd(nn.Module):
    """Module from mean and log standard deviation to mean and standard deviation.

    Args:
        bounded: maps the logarithm into -10..2 by a tanh, as in the published code of SimBa, SimbaV2 and
            FlashSAC; else clamps it to -20..2, as SAC's (Haarnoja et al. 2018) and Stable-Baselines3.
    """

    def __init__(self, *, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded

    def forward(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., 2 * size]`` to twice ``[..., size]``."""
        loc, log_std = parameters.chunk(2, -1)
        return loc, (6 * log_std.tanh() - 4 if self.bounded else log_std.clamp(-20, 2)).exp()


def categorical(spec: TensorSpec, key: NestedKey = "action", *, mask: NestedKey | None = None) -> Head:
    """Head of a categorical policy, one-hot or integer by ``spec``.

    Args:
        spec: of the action.
        key: see :func:`tanh_normal`.
        mask: the entry of the action mask; invalid actions have no probability.
    """
    one_hot = isinstance(spec, OneHot)
    distribution_kwargs: dict[str, Any] = {}
    distribution: Callable[..., Distribution] = OneHotCategorical if one_hot else Categorical
    if mask is not None:
        distribution, distribution_kwargs = masked_categorical, {"one_hot": one_hot}
    return distribution_head(
        lambda layers: layers(spec.space.n), ["logits"], spec, key, distribution, distribution_kwargs, mask
    )


class OneHotCategorical(OneHotOfTorchRL):
    """TorchRL's one-hot categorical, with a ``sample`` that does not break a compiled loss's graph."""

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``[*sample_shape, ..., actions]``, with TorchRL's random numbers."""
        return nn.functional.one_hot(Categorical.sample(self, Size(sample_shape)), self.num_samples)


def masked_categorical(logits: Tensor, mask: Tensor, one_hot: bool) -> Distribution:
    """Categorical over valid actions, from ``logits`` and ``mask``, both ``[..., actions]``.

    TorchRL's ``MaskedOneHotCategorical`` gives no log-probability of a sample in a compiled loss.
    """
    distribution = OneHotCategorical if one_hot else Categorical
    return distribution(logits=logits.masked_fill(~mask, MASKED_LOGIT))


def multi_categorical(spec: TensorSpec, key: NestedKey = "action", *, mask: NestedKey | None = None) -> Head:
    """Head of a multi-discrete policy: independent categoricals, whose logits are in one row.

    Args:
        spec: of the action, ``[choices]``.
        key: of the action; the logits, ``[..., options of all choices]``, are its sibling.
        mask: the entry of the action mask, likewise; invalid options have no probability.
    """
    sizes = torch.tensor(choice_sizes(spec), device=spec.device)
    option = torch.arange(int(sizes.max()), device=spec.device)
    valid = option < sizes.unsqueeze(-1)
    logit_indices = (sizes.cumsum(0) - sizes).unsqueeze(-1) + option
    distribution_kwargs = {"logit_indices": logit_indices * valid, "valid": valid}
    options = independent_categoricals, distribution_kwargs, mask
    return distribution_head(lambda layers: layers(int(sizes.sum())), ["logits"], spec, key, *options)


def independent_categoricals(
    logits: Tensor, logit_indices: Tensor, valid: Tensor, mask: Tensor | None = None
) -> Independent:
    """Distribution of several independent categoricals.

    Args:
        logits: ``[..., options of all choices]``.
        logit_indices: ``[choices, most]``, the index of each option's logit.
        valid: ``[choices, most]``, the options that a choice has; the others get the lowest finite logit, as
            with -inf the gradient of a divergence is NaN.
        mask: ``[..., options of all choices]``, the valid actions.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, MASKED_LOGIT)
    lowest = torch.finfo(logits.dtype).min
    return Independent(Categorical(logits=logits[..., logit_indices].masked_fill(~valid, lowest)), 1)


def distribution_head(
    net: Callable[[MakeLayers], nn.Module],
    parameters: list[str],
    spec: TensorSpec,
    key: NestedKey,
    distribution: Callable[..., Distribution],
    distribution_kwargs: dict[str, Any],
    mask: NestedKey | None = None,
) -> Head:
    """Head with a distribution over actions, whose ``parameters`` are siblings of ``key``.

    Arguments in ``distribution_kwargs`` are constant; a ``mask`` comes from the environment.
    """
    names = {parameter: sibling_key(key, parameter) for parameter in parameters}
    make_actor = partial(
        ProbabilisticActor,
        in_keys=[*names.values()] if mask is None else {**names, "mask": mask},
        out_keys=[key],
        spec=spec,
        distribution_class=distribution,
        distribution_kwargs=distribution_kwargs,
        return_log_prob=True,
        log_prob_key=sibling_key(key, "action_log_prob"),
    )
    return Head(net, [*names.values()], make_actor, POLICY_GAIN)


def deterministic(spec: TensorSpec, key: NestedKey = "action") -> Head:
    """Head of a deterministic policy within the bounds; the unsquashed action is a sibling of ``key``."""
    param = sibling_key(key, "param")

    def wrap(net: TensorDictModuleBase) -> TensorDictSequential:
        return TensorDictSequential(net, TanhModule(in_keys=[param], out_keys=[key], spec=spec))

    return Head(lambda layers: layers(spec.shape[-1]), [param], wrap)


def q_value(
    spec: TensorSpec, key: NestedKey = "action", *, dueling: bool = False, mask: NestedKey | None = None
) -> Head:
    """Head of a greedy Q-network; among equal values the first action is taken.

    TorchRL's one-hot action would have several ones then, and sum their values.

    Args:
        spec: of the action.
        key: of the action; its values are its sibling.
        dueling: see :meth:`hydrl.networks.layers.Layers.dueling`.
        mask: the entry of the action mask; invalid actions have the lowest value.
    """
    actions, names = spec.space.n, {"action_value_key": sibling_key(key, "action_value"), "action_key": key}
    names["chosen_action_value_key"] = sibling_key(key, "chosen_action_value")

    def net(layers: Any) -> nn.Module:
        return layers.dueling(actions, 1) if dueling else layers(actions)

    def wrap(values: TensorDictModuleBase) -> QValueActor:
        return set_one_hot_choice(
            QValueActor(values, spec=nested_spec(spec, key), action_mask_key=mask, **names), argmax_one_hot
        )

    return Head(net, [names["action_value_key"]], wrap)


def distributional(
    spec: TensorSpec, returns: Tensor, *, dueling: bool, mask: NestedKey | None = None
) -> Head:
    """Head of a distributional Q-network: log-probabilities of ``returns``, ``[..., atoms, actions]``.

    It is greedy in the mean. With a ``mask`` invalid actions get the lowest numbers; TorchRL's actor masks
    values only.
    """
    actions, atoms = spec.space.n, len(returns)

    def net(layers: Any) -> nn.Module:
        if dueling:
            return layers.dueling((atoms, actions), (atoms, 1))
        return ConcatSequential(layers(atoms * actions), nn.Unflatten(-1, (atoms, actions)))

    def wrap(log_probs: TensorDictModuleBase) -> QValueActor:
        if mask is not None:
            masking = TensorDictModule(
                mask_log_probs, in_keys=["action_value", mask], out_keys=["action_value"]
            )
            log_probs = TensorDictSequential(log_probs, DistributionalDQNnet(), masking)
        actor = DistributionalQValueActor(
            log_probs, spec=spec, support=returns, make_log_softmax=mask is None
        )
        return set_one_hot_choice(
            actor, partial(argmax_one_hot if mask is None else masked_argmax_one_hot, returns=returns)
        )

    return Head(net, ["action_value"], wrap)


def quantile_values(
    spec: TensorSpec, quantiles: int, *, dueling: bool, mask: NestedKey | None = None
) -> Head:
    """Head of a Q-network of quantiles of returns, ``[..., quantiles, actions]``, greedy in their mean."""
    actions = spec.space.n

    def net(layers: Any) -> nn.Module:
        if dueling:
            return ConcatSequential(layers.dueling((quantiles, actions), (quantiles, 1)), QuantileMean())
        return ConcatSequential(
            layers(quantiles * actions), nn.Unflatten(-1, (quantiles, actions)), QuantileMean()
        )

    def wrap(values: TensorDictModuleBase) -> QValueActor:
        return set_one_hot_choice(
            QValueActor(values, spec=nested_spec(spec, "action"), action_mask_key=mask), argmax_one_hot
        )

    return Head(net, ["action_value", "quantiles"], wrap)


class QuantileMean(nn.Module):
    """Action values ``[..., actions]``, the mean of quantiles ``[..., quantiles, actions]``, and these."""

    def forward(self, quantiles: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        return quantiles.mean(-2), quantiles


def state_value(key: NestedKey = "state_value") -> Head:
    """Head of a state value, ``[..., 1]``, as the entry ``key``."""
    return Head(lambda layers: layers(1), [key])


def action_value(outputs: int = 1) -> Head:
    """Head of an action value, ``[..., outputs]``; several outputs are quantiles of the return."""
    return Head(lambda layers: layers(outputs), ["state_action_value"], takes_action=True)


def return_distribution(v_max: float, atoms: int, prior_std: float | None) -> Head:
    """Head of a distribution of returns: log-probabilities ``[..., atoms]`` and their mean ``[..., 1]``."""
    return Head(
        lambda layers: ConcatSequential(layers(atoms), ReturnDistribution(v_max, atoms, prior_std)),
        ["state_action_log_prob", "state_action_value"],
        takes_action=True,
    )


class ReturnDistribution(nn.Module):
    """Categorical distribution over returns, evenly spaced from ``-v_max`` to ``v_max``.

    Args:
        v_max: the largest return.
        atoms: number of returns.
        prior_std: standard deviation of the distribution for logits of 0, a normal one with a part that is
            even; ``None``: even. Targets narrow an even one slowly, by the discount alone.
    """

    support: Tensor
    prior: Tensor

    def __init__(self, v_max: float, atoms: int, prior_std: float | None) -> None:
        super().__init__()
        self.register_buffer("support", torch.linspace(-v_max, v_max, atoms))
        prior = torch.zeros(atoms)
        if prior_std is not None:
            prior = ((self.support / prior_std).square() / -2).exp().add(1e-3).log()
        self.register_buffer("prior", prior)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """``[..., atoms]`` to log-probabilities and their mean."""
        log_prob = (logits.float() + self.prior).log_softmax(-1)
        return log_prob, (log_prob.exp() * self.support).sum(-1, keepdim=True)


def features(outputs: int) -> Head:
    """Head of features of an observation, ``[..., outputs]`` (for RND)."""
    return Head(lambda layers: layers(outputs), ["random_features"])


def discriminator() -> Head:
    """Head of a discriminator, a probability ``[..., 1]``, under the name TorchRL's loss reads."""
    return Head(lambda layers: ConcatSequential(layers(1), nn.Sigmoid()), ["d_logits"], takes_action=True)


def action_values(spec: TensorSpec) -> Head:
    """Head of one value for each discrete action, ``[..., actions]``."""
    return Head(lambda layers: layers(spec.space.n), ["action_value"])


def make_support(v_min: float, v_max: float, atoms: int) -> Tensor:
    """The returns of a distributional critic, ``[atoms]``, evenly from ``v_min`` to ``v_max``.

    TorchRL's projection divides by their distance in float32. For one support in fifteen that puts the
    highest return past the last atom, into the next row or out of the minibatch; ``v_max`` is then lowered by
    its last bits.
    """
    while True:
        returns = torch.linspace(v_min, v_max, atoms)
        lowest, highest = returns[0].item(), returns[-1].item()
        if (returns[-1] - lowest) / ((highest - lowest) / (atoms - 1)) <= atoms - 1:
            return returns
        v_max = torch.nextafter(returns[-1], returns[0]).item()


def set_one_hot_choice(actor: QValueActor, choose: Callable[[Tensor], Tensor]) -> QValueActor:
    """Makes an actor choose its one-hot actions by ``choose``."""
    actor[-1].action_func_mapping["one_hot"] = choose
    return actor


def argmax_one_hot(values: Tensor, returns: Tensor | None = None) -> Tensor:
    """Greedy one-hot actions, ``[..., actions]``, of values, or of log-probabilities of ``returns``."""
    if returns is not None:
        values = (values.exp() * returns.unsqueeze(-1)).sum(-2)
    return torch.zeros_like(values, dtype=torch.long).scatter_(-1, values.argmax(-1, keepdim=True), 1)


def masked_argmax_one_hot(log_probs: Tensor, returns: Tensor) -> Tensor:
    """Greedy valid one-hot actions of log-probabilities ``[..., atoms, actions]`` with a mask applied."""
    lowest = torch.finfo(log_probs.dtype).min
    means = (log_probs.exp() * returns.unsqueeze(-1)).sum(-2)
    return argmax_one_hot(means.masked_fill(log_probs.amax(-2) == lowest, lowest))


def mask_log_probs(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities ``[..., atoms, actions]``, with the lowest number for invalid actions."""
    return log_probs.masked_fill(~mask.unsqueeze(-2), torch.finfo(log_probs.dtype).min)
