"""Critics of states and actions, over a network of any architecture."""

from typing import Annotated, Unpack

from pydantic import Field
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from hydrl.limits import PositiveFloat
from hydrl.networks import heads
from hydrl.networks.build import NetworkOptions, make_network


def state_value(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """State-value network, ``[..., 1]``.

    Args:
        env: gives, by one reset, the size of the observation.
        actor: see :func:`hydrl.networks.build.make_network`.
        **net: see :class:`hydrl.networks.build.NetworkOptions`.
    """
    return make_network(env, heads.state_value(), actor, **net)


def action_value(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    outputs: int = 1,
    **net: Unpack[NetworkOptions],
) -> TensorDictModuleBase:
    """Q-network of state and action concatenated, ``[..., outputs]`` (for SAC, TD3, DDPG, CrossQ).

    Several outputs are quantiles of the return (for TQC).
    """
    return make_network(env, heads.action_value(outputs), actor, **net)


def categorical(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    v_max: PositiveFloat,
    atoms: Annotated[int, Field(gt=1)],
    prior_std: PositiveFloat | None = None,
    **net: Unpack[NetworkOptions],
) -> TensorDictModuleBase:
    """Distribution of the return of an action in a state, over even returns (for SimbaV2, XQC, FlashSAC).

    Args:
        env: and the others as for :func:`state_value`.
        v_max: the largest return, of scaled rewards; ``-v_max`` is the smallest.
        atoms: number of returns.
        prior_std: width of the initial distribution; ``None``: even.
    """
    return make_network(env, heads.return_distribution(v_max, atoms, prior_std), actor, **net)


def discriminator(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """GAIL's discriminator: the probability that a state and action are an expert's, ``[..., 1]``."""
    return make_network(env, heads.discriminator(), actor, **net)


def action_values(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """Q-network with one value for each discrete action, ``[..., actions]`` (for discrete SAC)."""
    return make_network(env, heads.action_values(env.action_spec_unbatched), actor, **net)
