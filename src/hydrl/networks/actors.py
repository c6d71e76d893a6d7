"""Actors for each kind of action, over a network of any architecture."""

from typing import Annotated, Literal, Unpack

from pydantic import Field
from tensordict import NestedKey
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import ActionScaling, EnvBase, TransformedEnv
from torchrl.modules import DistributionalQValueActor, ProbabilisticActor, QValueActor

from hydrl.errors import warn_once
from hydrl.limits import PositiveFloat
from hydrl.networks import heads
from hydrl.networks.build import NetworkOptions, make_network
from hydrl.networks.layers import noisy_layers
from hydrl.specs import action_kind, mask_key

ScaleKind = Literal["per_state", "log_std", "bounded_log_std", "independent"]
Std = Annotated[float, Field(gt=0.01, allow_inf_nan=False)]  # smaller ones cannot be reached
# float32 values between two bounds; with fewer, 1 action in 100 loses more than 0.1 % of its probability
MIN_FLOATS = 8_000


def tanh_normal(
    env: EnvBase, *, scale: ScaleKind = "per_state", scale_init: Std = 1.0, **net: Unpack[NetworkOptions]
) -> ProbabilisticActor:
    """Gaussian policy squashed into the action bounds, for continuous actions.

    Args:
        env: gives the action bounds and, by one reset, the size of the observation.
        scale: ``per_state``: an output of the network, mapped as ``NormalParamExtractor`` does; ``log_std``
            and ``bounded_log_std``: its logarithm is, see :class:`hydrl.networks.heads.LogStd`;
            ``independent``: one learned parameter for each action dimension (Schulman et al. 2017).
        scale_init: approximate initial standard deviation, before squashing.
        **net: see :class:`hydrl.networks.build.NetworkOptions`.
    """
    warn_rounding(env)
    head = heads.tanh_normal(env.action_spec_unbatched, scale=scale, scale_init=scale_init)
    return make_network(env, head, **net)


def deterministic(env: EnvBase, **net: Unpack[NetworkOptions]) -> TensorDictModuleBase:
    """Deterministic policy squashed into the action bounds (for DDPG and TD3)."""
    warn_rounding(env)
    return make_network(env, heads.deterministic(env.action_spec_unbatched), **net)


def categorical(
    env: EnvBase, *, scale: ScaleKind = "per_state", scale_init: Std = 1.0, **net: Unpack[NetworkOptions]
) -> ProbabilisticActor:
    """Categorical policy with one logit for each action, one-hot or integer by the environment's spec.

    Multi-discrete actions have one logit for each option of each choice, and choices are independent.

    Args:
        env: and the others as for :func:`tanh_normal`.
        scale: ignored, as ``scale_init``, for algorithms with both kinds of actions.
    """
    head = heads.multi_categorical if action_kind(env) == "multi-discrete" else heads.categorical
    return make_network(env, head(env.action_spec_unbatched, mask=mask_key(env)), **net)


def gaussian(
    env: EnvBase, *, scale: ScaleKind = "independent", scale_init: Std = 1.0, **net: Unpack[NetworkOptions]
) -> ProbabilisticActor:
    """Gaussian policy without squashing for continuous actions; :func:`categorical` for discrete ones.

    As in Stable-Baselines3 and CleanRL. Actions may lie outside the bounds:
    :class:`hydrl.envs.transforms.ActionClipping` clips them on their way to the environment. Without a
    transform that does so it warns.

    Args:
        env: and the others as for :func:`tanh_normal`.
        scale: see :func:`tanh_normal`.
        scale_init: initial standard deviation.
    """
    if action_kind(env) in ("discrete", "multi-discrete"):
        return categorical(env, scale=scale, scale_init=scale_init, **net)
    transforms = env.transform if isinstance(env, TransformedEnv) else ()
    if not any(isinstance(transform, ActionScaling) for transform in transforms):
        warn_once(
            "actor=gaussian: nothing clips actions at the environment's bounds. Add "
            "+transforms.action_clipping._target_=hydrl.envs.transforms.action_clipping."
        )
    head = heads.gaussian(env.action_spec_unbatched, scale=scale, scale_init=scale_init)
    return make_network(env, head, **net)


def stochastic(
    env: EnvBase, *, scale: ScaleKind = "per_state", scale_init: Std = 1.0, **net: Unpack[NetworkOptions]
) -> ProbabilisticActor:
    """Policy by the kind of action: :func:`categorical`, or :func:`tanh_normal` if continuous."""
    build = categorical if action_kind(env) in ("discrete", "multi-discrete") else tanh_normal
    return build(env, scale=scale, scale_init=scale_init, **net)


def q_value(
    env: EnvBase, *, noisy: PositiveFloat | None = None, dueling: bool = False, **net: Unpack[NetworkOptions]
) -> QValueActor:
    """Greedy Q-network with one value for each action (Mnih et al. 2015).

    Args:
        env: and the others as for :func:`tanh_normal`.
        noisy: see :func:`hydrl.networks.layers.noisy_layers`.
        dueling: action values are state value plus advantage (Wang et al. 2016). The last of ``num_cells``
            is the width of the two heads, the others are the shared trunk.
    """
    head = heads.q_value(env.action_spec_unbatched, dueling=dueling, mask=mask_key(env))
    return noisy_layers(make_network(env, head, **net), noisy)


def distributional(
    env: EnvBase,
    *,
    noisy: PositiveFloat | None = None,
    v_min: float,
    v_max: float,
    atoms: Annotated[int, Field(gt=1)],
    dueling: bool,
    **net: Unpack[NetworkOptions],
) -> DistributionalQValueActor:
    """Distributional Q-network, greedy in the mean return (C51, Bellemare et al. 2017).

    Its ``action_value`` are log-probabilities, ``[..., atoms, actions]``.

    Args:
        env: and the others as for :func:`q_value`.
        v_min: lower end of the support, in returns of scaled rewards; smaller ones are clipped to it.
        v_max: upper end, above ``v_min``.
        atoms: evenly spaced returns of the support, which the loss reads from the actor.
        dueling: as :func:`q_value`, with a value and an advantage for each atom (Hessel et al. 2018).
    """
    returns = heads.make_support(v_min, v_max, atoms).to(env.device)
    head = heads.distributional(env.action_spec_unbatched, returns, dueling=dueling, mask=mask_key(env))
    return noisy_layers(make_network(env, head, **net), noisy)


def quantile(
    env: EnvBase,
    *,
    noisy: PositiveFloat | None = None,
    quantiles: Annotated[int, Field(gt=1)],
    dueling: bool = False,
    **net: Unpack[NetworkOptions],
) -> QValueActor:
    """Q-network of quantiles of returns, greedy in their mean (QR-DQN, Dabney et al. 2018).

    Args:
        env: and the others as for :func:`q_value`.
        quantiles: of the return of each action, evenly spaced.
        dueling: as :func:`q_value`, with a value and an advantage for each quantile.
    """
    head = heads.quantile_values(env.action_spec_unbatched, quantiles, dueling=dueling, mask=mask_key(env))
    return noisy_layers(make_network(env, head, **net), noisy)


def warn_rounding(env: EnvBase, key: NestedKey = "action") -> None:
    """Warns of action bounds between which float32 has few values.

    The log-probability of a stored action then differs from that of the sampled one.
    """
    bounds = (env.base_env if isinstance(env, TransformedEnv) else env).full_action_spec_unbatched[key].space
    low, high = bounds.low.flatten().float(), bounds.high.flatten().float()
    magnitude = low.abs().maximum(high.abs())
    floats_between = (high - low) / (magnitude.nextafter(magnitude * 2) - magnitude)
    if (fewest := floats_between.min()) < MIN_FLOATS:
        lower, upper = (bound[floats_between.argmin()].item() for bound in (low, high))
        warn_once(
            f"an action's bounds are {lower:,.10g} and {upper:,.10g}, between which float32 has "
            f"{fewest:,.0f} values: too few for its probability. Rescale it, as by "
            "gymnasium.wrappers.RescaleAction."
        )
