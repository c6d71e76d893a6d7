"""GAIL: minibatches of the discriminator, and the reward that it gives the policy."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.objectives import GAILLoss

from hydrl.errors import UserError
from hydrl.experience.minibatches import Minibatches
from hydrl.limits import PositiveInt

RewardForm = Literal["positive", "negative", "signed"]


class ExpertMinibatches(Minibatches):
    """Minibatches for GAIL's discriminator: equally many steps of the expert and of the fresh batch.

    Args:
        buffer: ignored.
        loss: its keys name the entries.
        data: the expert's dataset.
        updates: minibatches for each batch.
        size: frames of a minibatch, of each of the two.

    Raises:
        UserError: if the dataset lacks an entry.
    """

    def __init__(
        self,
        buffer: ReplayBuffer | None,
        loss: GAILLoss,
        *,
        data: ReplayBuffer,
        updates: PositiveInt,
        size: PositiveInt,
    ) -> None:
        self.data, self.updates, self.size = data, updates, size
        keys = loss.tensor_keys
        self.expert_to_policy = {
            keys.expert_observation: keys.collector_observation,
            keys.expert_action: keys.collector_action,
        }
        if missing := [key for key in self.expert_to_policy if key not in data[:1].keys(True, True)]:
            raise UserError(
                f"data: the dataset has no {missing[0]}, an entry in loss.keys. Use another dataset."
            )

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]``; the batch is ``[time]`` or ``[envs, time]``."""
        steps = batch.select(*self.expert_to_policy).reshape(-1)
        for _ in range(self.updates):
            expert = self.data.sample(self.size).select(*self.expert_to_policy).to(steps.device)
            policy_steps = steps[torch.randint(len(steps), (self.size,), device=steps.device)]
            policy_entries = {name: policy_steps[key] for key, name in self.expert_to_policy.items()}
            yield expert.update(TensorDict(policy_entries, [self.size]))


class ImitationReward:
    """Rewards from the discriminator's probability that a step is an expert's.

    Args:
        networks: of the run, by name.
        form: ``positive``, ``-log(1 - D)``, rewards each step, and so staying alive; ``negative``, ``log D``,
            costs at each step, and so rewards ending; ``signed``, their sum, rewards likely experts' steps
            and costs otherwise (Fu et al. 2018).
    """

    def __init__(self, networks: Mapping[str, Any], *, form: RewardForm) -> None:
        self.discriminator, self.form = networks["discriminator"], form

    @torch.no_grad()
    def __call__(self, batch: TensorDictBase) -> None:
        """Replaces the rewards of a batch of any shape; the environment's own are logged."""
        outputs = self.discriminator(batch.select(*self.discriminator.in_keys))
        batch["next", "reward"] = imitation_reward(outputs["d_logits"], self.form)


def imitation_reward(probability: Tensor, form: RewardForm) -> Tensor:
    """Rewards from an expert's probabilities, of the same shape, at most 14."""
    probability = probability.clamp(1e-6, 1 - 1e-6)
    log_expert, log_other = probability.log(), (1 - probability).log()
    return {"positive": -log_other, "negative": log_expert, "signed": log_expert - log_other}[form]
