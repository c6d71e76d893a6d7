"""Minibatches of answers: groups with advantages (GRPO), and right answers to imitate (expert iteration)."""

import copy
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer
from torchrl.objectives import LossModule

from hydrl.contrib.language.losses import LOG_RATIO
from hydrl.errors import UserError, warn_once
from hydrl.experience.minibatches import Minibatches
from hydrl.limits import NonNegativeFloat, PositiveInt
from hydrl.specs import INFO

LEARNED = ("prompt", "action", "action_log_prob")
MOSTLY = 0.9  # share of groups without difference from which a line says so
GroupSize = Annotated[int, Field(ge=2)]


class Groups(Minibatches):
    """Minibatches of GRPO: an answer's advantage compares it with the other answers to its prompt.

    Of several turns a conversation's rewards are summed, and all its answers have the same advantage.

    It logs for each batch the share of groups whose rewards are all equal, the divergence from the reference
    policy, which is the policy as the run began, and the largest log-ratio before the first update. The last
    should be near 0, else acting and learning disagree on probabilities.

    Args:
        buffer: holds one batch and samples without replacement.
        loss: GRPO's.
        group_size: answers to each prompt.
        epochs: passes over the batch.
        size: answers a minibatch.
        scale: ``deviation`` divides a group's advantages by the deviation of its rewards; ``none`` does not
            (Dr. GRPO).
        kl_in_reward: weight of the divergence from the reference policy that is subtracted from rewards.
        drop: leaves out groups whose rewards are all equal (DAPO); they have no advantage but dilute means.
        truncated: ``learn`` from answers cut at ``answer_tokens``, or ``mask`` them.
        log_prob: what the ratio compares with: the log-probabilities of ``acting``, or those ``recomputed``
            before the first update, where acting has another precision.
        reference: keeps the reference policy; ``False`` only if a weight needs it.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        group_size: GroupSize,
        epochs: PositiveInt,
        size: PositiveInt,
        scale: Literal["deviation", "none"] = "deviation",
        kl_in_reward: NonNegativeFloat = 0.0,
        drop: bool = False,
        truncated: Literal["learn", "mask"] = "learn",
        log_prob: Literal["acting", "recomputed"] = "acting",
        reference: bool = True,
    ) -> None:
        self.buffer, self.loss, self.policy = buffer, loss, loss.actor_network
        self.group_size, self.epochs, self.size, self.scale = group_size, epochs, size, scale
        self.kl_in_reward, self.drop, self.truncated = kl_in_reward, drop, truncated
        self.recomputes = log_prob == "recomputed"
        self.has_reference = bool(reference or kl_in_reward or loss.kl_to_ref_coeff)
        self.reference: Any = None
        self.is_warned = False

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]`` answers, the last one maybe smaller; the batch is ``[envs, turns]``."""
        turns = split_turns(batch, self.policy)
        has_answer = (turns["prompt"] != self.policy.pad).any(-1)  # not after a conversation's end
        number = torch.arange(len(turns), device=batch.device)[:, None].expand_as(has_answer)[has_answer]
        rows, info = turns.select(*LEARNED)[has_answer], batch["next", INFO]
        reward, group = turns["next", "reward"].sum((-2, -1)), turns["group"][:, 0, 0]

        def follow(name: str, values: Tensor) -> None:
            """Logs a value of each conversation."""
            info[name] = values[:, None].expand(turns.shape).reshape(*batch.shape, 1)

        if self.recomputes:
            with torch.no_grad():
                log_prob = torch.cat([self.policy.log_prob(part) for part in rows.split(self.size)])
            difference = (log_prob - rows["action_log_prob"]).abs().max()
            follow("acting_log_ratio_max", difference.expand(len(turns)))
            rows["action_log_prob"] = log_prob
        if self.has_reference:
            rows["reference_log_prob"] = self.reference_log_prob(rows)
            difference = rows["reference_log_prob"] - rows["action_log_prob"]
            reward = reward.index_add(0, number, self.kl_in_reward * difference.sum(-1))
            tokens = (rows["action"] != self.policy.pad).sum()
            divergence = (difference.expm1() - difference).sum() / tokens
            follow("kl_to_reference", divergence.expand(len(turns)))
        advantage, has_difference = group_advantages(reward, group, self.group_size, self.scale)
        self.warn_of_equal_groups((~has_difference).float().mean().item())
        follow("equal_groups", (~has_difference).float())
        rows["advantage"] = advantage[number, None, None]
        learned = has_difference | (not self.drop)
        if self.truncated == "mask":
            learned &= ~turns["next", INFO, "truncated"][:, -1, 0].bool()
        for count, minibatch in enumerate(self.split(rows[learned[number]])):
            yield minibatch
            if count == 0:
                follow("first_log_ratio_max", minibatch[LOG_RATIO].max().expand(len(turns)))

    def warn_of_equal_groups(self, share: float) -> None:
        """Warns once if a batch has next to nothing to learn from."""
        if share >= MOSTLY and not self.is_warned:
            self.is_warned = True
            warn_once(
                f"in {share:.0%} of groups all answers have the same reward, which teaches nothing. "
                "Start from a better model (algo=sft, init_from=RUN), or write an easier task."
            )

    def split(self, rows: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of all epochs."""
        for _ in range(self.epochs if len(rows) else 0):
            self.buffer.extend(rows)
            yield from self.buffer.sample(len(rows)).split(self.size)

    @torch.no_grad()
    def reference_log_prob(self, rows: TensorDictBase) -> Tensor:
        """Log-probabilities of answers by the reference policy, ``[answers, answer_tokens]``."""
        parts = rows.split(self.size)
        if self.policy.has_adapter:
            with self.policy.model.disable_adapter():
                return torch.cat([self.policy.log_prob(part) for part in parts])
        if self.reference is None:  # the first batch, once `init_from` has loaded weights
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        return torch.cat([self.reference.log_prob(part) for part in parts])

    def state_dict(self) -> dict[str, Any]:
        """The reference policy."""
        return {} if self.reference is None else {"reference": self.reference.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        if "reference" in state:
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
            self.reference.load_state_dict(state["reference"])


def split_turns(batch: TensorDictBase, policy: Any) -> TensorDictBase:
    """A batch as ``[conversations, turns]``.

    Raises:
        UserError: if it does not hold whole conversations.
    """
    if batch.shape[-1] % policy.turns:
        frames = batch.numel() // batch.shape[-1] * policy.turns
        raise UserError(
            f"collector.frames_per_batch={batch.numel()}: does not hold whole conversations of env.turns="
            f"{policy.turns}. Use collector.frames_per_batch={frames} with collector.num_envs="
            f"{frames // policy.turns}."
        )
    return batch.reshape(-1, policy.turns)


def group_advantages(reward: Tensor, group: Tensor, size: int, scale: str) -> tuple[Tensor, Tensor]:
    """Rewards compared with the others of their group.

    Args:
        reward: ``[answers]``.
        group: numbers of the groups, ``[answers]``.
        size: of each group.
        scale: ``deviation``, unbiased, or ``none``.

    Returns:
        Advantages ``[answers]``, exactly 0 if all of a group are equal; and whether they differ.

    Raises:
        UserError: for a group with fewer or more answers.
    """
    _, place, count = group.unique(return_inverse=True, return_counts=True)
    if (count != size).any():
        raise UserError(
            f"minibatches.group_size={size}: a batch has a prompt with {int(count.min())} answers. Let "
            f"collector.num_envs be a multiple of {size}."
        )
    zeros = torch.zeros(len(count), device=reward.device)
    mean = zeros.index_add(0, place, reward)[place] / size
    centered = reward - mean
    centered = centered.where(centered.abs() > 1e-5 * (1 + mean.abs()), 0.0)  # what rounding leaves
    deviation = (zeros.index_add(0, place, centered.square())[place] / (size - 1)).sqrt()
    return centered / (deviation + 1e-4) if scale == "deviation" else centered, deviation > 0


class Experts(Minibatches):
    """Minibatches of expert iteration: right answers are kept and imitated (Anthony et al. 2017; STaR, 2022).

    Args:
        buffer: keeps right answers.
        loss: that of supervised fine-tuning.
        group_size: answers to each prompt.
        updates: minibatches a batch, once the buffer holds one.
        size: answers a minibatch.
        right: reward from which an answer is kept; of several turns the sum of all.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        loss: LossModule,
        *,
        group_size: PositiveInt,
        updates: PositiveInt,
        size: PositiveInt,
        right: float = 1.0,
    ) -> None:
        self.buffer, self.updates, self.size, self.right = buffer, updates, size, right
        self.policy = loss.actor_network

    def __call__(self, batch: TensorDictBase) -> Iterator[TensorDictBase]:
        """Minibatches of ``[size]`` answers; the batch is ``[envs, turns]``."""
        turns = split_turns(batch, self.policy)
        is_right = turns["next", "reward"].sum((-2, -1)) >= self.right
        has_answer = (turns["prompt"] != self.policy.pad).any(-1)
        rows = turns.select("prompt", "action")[has_answer & is_right[:, None]]
        if len(rows):
            self.buffer.extend(rows)
        if len(self.buffer) >= self.size:
            yield from self.buffer.sample(self.updates * self.size).to(batch.device).split(self.size)
