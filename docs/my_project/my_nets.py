"""A network, and functions that build an actor, a critic and an encoder with it."""

from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import OneHotCategorical, ProbabilisticActor, QValueActor, ValueOperator

from hydrl.networks import materialise


class Net(nn.Module):
    """Two layers and a shortcut around them."""

    def __init__(self, outputs: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(width), nn.SiLU(), nn.Linear(width, outputs))
        self.shortcut = nn.LazyLinear(outputs)

    def forward(self, observation):
        return self.layers(observation) + self.shortcut(observation)


def actor(env, *, width: int):
    """Actor for discrete actions: one logit for each action."""
    spec = env.action_spec_unbatched
    net = TensorDictModule(Net(spec.space.n, width), in_keys=["observation"], out_keys=["logits"])
    acting = ProbabilisticActor(
        net, in_keys=["logits"], spec=spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    return materialise(acting, env)


def q_network(env, *, width: int):
    """Q-network: a value for each discrete action; acts greedily."""
    spec = env.action_spec_unbatched
    return materialise(QValueActor(Net(spec.space.n, width), in_keys=["observation"], spec=spec), env)


def critic(env, actor, *, width: int):
    """State-value network."""
    return materialise(ValueOperator(Net(1, width), in_keys=["observation"]), env)


def reader(env, in_keys, *, width: int):
    """Encoder: observations to features, for every actor and critic."""
    return TensorDictModule(Net(width, width), in_keys=in_keys, out_keys=["features"])
