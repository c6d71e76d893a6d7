"""A network, and what makes an actor and a critic of it."""

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
    """One logit an action, for discrete ones."""
    spec = env.action_spec_unbatched
    net = TensorDictModule(Net(spec.space.n, width), in_keys=["observation"], out_keys=["logits"])
    acting = ProbabilisticActor(
        net, in_keys=["logits"], spec=spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    return materialise(acting, env)


def q_network(env, *, width: int):
    """The value of each discrete action; acts by the greatest."""
    spec = env.action_spec_unbatched
    return materialise(QValueActor(Net(spec.space.n, width), in_keys=["observation"], spec=spec), env)


def critic(env, actor, *, width: int):
    """The value of a state."""
    return materialise(ValueOperator(Net(1, width), in_keys=["observation"]), env)


def reader(env, in_keys, *, width: int):
    """What lies before the hidden layers of every actor and critic that comes along."""
    return TensorDictModule(Net(width, width), in_keys=in_keys, out_keys=["features"])
