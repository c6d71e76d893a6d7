"""Critics: what the losses use to judge states and actions, over a network of one's choice."""

from typing import Unpack

from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from hydrl.networks import heads
from hydrl.networks.build import NetworkOptions, make_network


def state_value(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """The value of a state, ``[..., 1]``; where ``in_keys`` say ``memory``, of what the actor remembers.

    Args:
        env: gives, by one reset, the size of the observation.
        actor: see :func:`hydrl.networks.build.make_network`.
        **net: what lies before, see :class:`hydrl.networks.build.NetworkOptions`.
    """
    return make_network(env, heads.state_value(), actor, **net)


def action_value(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    outputs: int = 1,
    **net: Unpack[NetworkOptions],
) -> TensorDictModuleBase:
    """The value of an action in a state, ``[..., outputs]``, of both joined (for SAC, TD3, DDPG, CrossQ).

    Several outputs are quantiles of the return (for TQC).
    """
    return make_network(env, heads.action_value(outputs), actor, **net)


def discriminator(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """How likely an action in a state is an expert's, ``[..., 1]``, of both joined (for GAIL)."""
    return make_network(env, heads.discriminator(), actor, **net)


def action_values(
    env: EnvBase, actor: TensorDictModuleBase | None = None, **net: Unpack[NetworkOptions]
) -> TensorDictModuleBase:
    """The value of each choice in a state, ``[..., actions]`` (for discrete SAC)."""
    return make_network(env, heads.action_values(env.action_spec_unbatched), actor, **net)
