"""Critics: what the losses use to judge states and actions, sized from the environment's specs."""

from torchrl.envs import EnvBase
from torchrl.modules import MLP, ValueOperator

from hydrl.parts.actors import activation_class, materialise, mlp


def state_value(env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]) -> ValueOperator:
    """The value of a state, ``[..., 1]``."""
    return materialise(ValueOperator(mlp(num_cells, 1, activation), in_keys=in_keys), env)


def action_value(env: EnvBase, *, num_cells: list[int], activation: str, in_keys: list[str]) -> ValueOperator:
    """The value of an action in a state, ``[..., 1]``, from both concatenated (for SAC, TD3, DDPG)."""
    net = MLP(out_features=1, num_cells=num_cells, activation_class=activation_class(activation))
    return materialise(ValueOperator(net, in_keys=[*in_keys, "action"]), env)
