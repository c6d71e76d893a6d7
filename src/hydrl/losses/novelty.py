"""RND: the predictor's loss, and the rewards that it adds for PPO."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.objectives import RNDLoss

from hydrl.errors import UserError
from hydrl.experience.minibatches import Minibatches
from hydrl.experience.scaled_rewards import ReturnStatistics
from hydrl.limits import Fraction, NonNegativeFloat, OpenFraction, PositiveInt
from hydrl.networks.distillation import RandomNetwork
from hydrl.specs import INFO


class NoveltyLoss(RNDLoss):
    """TorchRL's loss of random network distillation (Burda et al. 2019), of one network's two parts.

    Args:
        network: the predictor and the random network.
        update_fraction: share of a minibatch's frames that are learned from.

    Raises:
        UserError: for another network.
    """

    def __init__(self, network: RandomNetwork, *, update_fraction: Fraction = 1.0) -> None:
        if not isinstance(network, RandomNetwork):
            raise UserError("predictor: it is no random network. Write predictor=random_network.")
        super().__init__(network.predictor, network.target, update_fraction=update_fraction)
        self.statistics = network.statistics  # kept with the loss
        self.network = [network]  # a list, so that its parameters are not registered again


class NoveltyRewards(Minibatches):
    """Adds rewards for unfamiliar next observations to a batch, then yields minibatches of these.

    Rewards are the predictor's errors before its updates, divided by the deviation of their discounted sum,
    which goes on through ends of episodes. Their sum in each episode is logged, ``train/novelty_return``.

    Args:
        buffer: ignored.
        loss: the predictor's.
        coefficient: of the rewards.
        gamma: discount of their sum.
        epochs: passes over the batch.
        size: frames of a minibatch; ``frames // size`` of them an epoch.
    """

    def __init__(
        self,
        buffer: ReplayBuffer | None,
        loss: NoveltyLoss,
        *,
        coefficient: NonNegativeFloat,
        gamma: OpenFraction,
        epochs: PositiveInt,
        size: PositiveInt,
    ) -> None:
        self.network, self.coefficient = loss.network[0], coefficient
        self.epochs, self.size = epochs, size
        self.statistics, self.sums = ReturnStatistics(gamma), torch.zeros(1)

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        self.network.add_statistics(batch["next"])
        self.add_rewards(batch)
        observations = self.network.normalize(batch["next"]).reshape(-1)
        for _ in range(self.epochs):
            order = torch.randperm(len(observations), device=observations.device)
            for indices in order.split(self.size)[: max(len(order) // self.size, 1)]:
                yield TensorDict({"next": {"observation": observations[indices]}}, [len(indices)])

    @torch.no_grad()
    def add_rewards(self, batch: TensorDictBase) -> None:
        """Adds rewards to those of the batch, and writes their sum so far in each episode."""
        following = batch["next"]
        novelty = self.network(following.select(*self.network.in_keys))["novelty"]
        never = torch.zeros_like(following["done"])
        self.statistics.add(TensorDict({"next": {"reward": novelty, "done": never}}, batch.batch_size))
        rewards = self.coefficient * novelty / self.statistics.scale(None)
        following["reward"] = following["reward"] + rewards
        followed = following.get(INFO, TensorDict({}, batch.batch_size))
        followed["novelty_return"] = self.sum_by_episode(rewards, following["done"])
        following[INFO] = followed

    def sum_by_episode(self, rewards: Tensor, done: Tensor) -> Tensor:
        """Sums so far in each episode, of rewards ``[time, 1]`` or ``[envs, time, 1]``."""
        sums, written = self.sums.to(rewards.device), []
        for reward, ended in zip(rewards.unbind(-2), done.unbind(-2), strict=True):
            sums = sums + reward
            written.append(sums)
            sums = sums.masked_fill(ended, 0.0)
        self.sums = sums
        return torch.stack(written, -2)

    def state_dict(self) -> dict[str, Any]:
        """Statistics of returns, and the sums of the running episodes."""
        return {"returns": self.statistics.state_dict(), "sums": self.sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.statistics.load_state_dict(state["returns"])
        self.sums = state["sums"]
