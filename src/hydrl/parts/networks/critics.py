"""Critics: what the losses use to judge states and actions, sized from the environment's specs."""

from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.modules import MLP, ValueOperator

from hydrl.parts.networks.actors import materialise
from hydrl.parts.networks.encoders import Norm, activation_class, initialise, mlp, sharing_memory, size_of


def state_value(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    init: str | None = None,
) -> TensorDictModuleBase:
    """The value of a state, ``[..., 1]``; where ``in_keys`` say ``memory``, of what the actor remembers."""
    critic = ValueOperator(mlp(num_cells, 1, activation), in_keys=in_keys)
    whole = materialise(sharing_memory(critic, actor), env)
    initialise(critic, init, 1.0)
    return whole


def action_value(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    norm: Norm = None,
    outputs: int = 1,
) -> TensorDictModuleBase:
    """The value of an action in a state, ``[..., outputs]``, of both joined (for SAC, TD3, DDPG, CrossQ).

    Several outputs are quantiles of the return (for TQC).
    """
    if norm is None:
        net = MLP(out_features=outputs, num_cells=num_cells, activation_class=activation_class(activation))
    else:
        inputs = size_of(env, in_keys) + env.action_spec_unbatched.shape[-1]
        net = mlp(num_cells, outputs, activation, norm, inputs)
    return materialise(ValueOperator(net, in_keys=[*in_keys, "action"]), env)


def action_values(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
) -> TensorDictModuleBase:
    """The value of each choice in a state, ``[..., actions]`` (for discrete SAC)."""
    net = mlp(num_cells, env.action_spec_unbatched.space.n, activation)
    return materialise(TensorDictModule(net, in_keys=in_keys, out_keys=["action_value"]), env)
