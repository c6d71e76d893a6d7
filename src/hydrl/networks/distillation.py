"""A network that predicts the features of a random one, for exploration."""

from collections.abc import Iterator
from typing import Any, Unpack

from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.transforms.rnd import RunningMeanStd

from hydrl.limits import PositiveInt
from hydrl.networks import heads
from hydrl.networks.build import NetworkOptions, make_network

CLIP = 5.0  # of normalized observations, as in the paper


def random_network(
    env: EnvBase,
    actor: TensorDictModuleBase | None = None,
    *,
    features: PositiveInt,
    target_num_cells: list[int],
    **net: Unpack[NetworkOptions],
) -> "RandomNetwork":
    """Random network distillation (Burda et al. 2019) over a network of any architecture.

    Args:
        env: gives, by its specs and one reset, the observations.
        actor: ignored; nothing is shared with it.
        features: outputs of both networks.
        target_num_cells: hidden layers of the random network.
        **net: of the predictor, see :class:`hydrl.networks.build.NetworkOptions`.
    """
    predictor = make_network(env, heads.features(features), **net)
    net["num_cells"] = target_num_cells
    return RandomNetwork(predictor, make_network(env, heads.features(features), **net), env)


class RandomNetwork(TensorDictModuleBase):
    """Error of a predictor of a random network's features, over normalized and clipped observations.

    Args:
        predictor: learns the features of observations, ``[..., features]``.
        target: has random weights, which stay.
        env: gives the shapes of the observations.
    """

    def __init__(self, predictor: TensorDictModuleBase, target: TensorDictModuleBase, env: EnvBase) -> None:
        super().__init__()
        self.predictor, self.target = Features(predictor), Features(target.requires_grad_(False))
        self.in_keys: list[NestedKey] = [*predictor.in_keys]
        self.out_keys: list[NestedKey] = ["novelty"]
        shapes = [env.observation_spec[key].shape[env.batch_dims :] for key in self.in_keys]
        self.statistics = nn.ModuleList(RunningMeanStd(tuple(shape)) for shape in shapes).to(env.device)

    def by_entry(self) -> Iterator[tuple[NestedKey, Any]]:
        """Entries of the observation with their statistics."""
        yield from zip(self.in_keys, self.statistics, strict=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes ``novelty``, the mean squared error of the features, ``[..., 1]``."""
        observations = self.normalize(tensordict)
        errors = (self.predictor(observations) - self.target(observations)).square()
        return tensordict.set("novelty", errors.mean(-1, keepdim=True))

    def add_statistics(self, tensordict: TensorDictBase) -> None:
        """Adds observations of any batch shape to the running mean and deviation of each entry."""
        for key, statistics in self.by_entry():
            statistics.update(tensordict[key])

    def normalize(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The observations alone, normalized and clipped to -5..5."""
        normalized = {
            key: statistics.normalize(tensordict[key]).clamp(-CLIP, CLIP)
            for key, statistics in self.by_entry()
        }
        return TensorDict(normalized, tensordict.batch_size, tensordict.device)


class Features(nn.Module):
    """Callable from a ``TensorDict`` of observations to their features, for TorchRL's ``RNDLoss``."""

    def __init__(self, network: TensorDictModuleBase) -> None:
        super().__init__()
        self.network = network

    def forward(self, observations: TensorDictBase) -> Tensor:
        """``[..., features]``."""
        features: Tensor = self.network(observations.select(*self.network.in_keys))["random_features"]
        return features
