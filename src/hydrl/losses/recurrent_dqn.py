"""Deep Q-learning over sequences, for recurrent networks (R2D2)."""

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import TensorSpec
from torchrl.objectives import DQNLoss
from torchrl.objectives.utils import distance_loss

EPSILON = 1e-3  # of Pohlen et al.: the linear part, which makes the rescaling invertible


class RecurrentDQNLoss(DQNLoss):
    """TorchRL's DQN loss whose target network runs once through whole sequences (Kapturowski et al. 2019).

    TorchRL's own starts from a zero hidden state in the next observations.

    Args:
        value_network: the actor.
        n_steps: rewards summed before bootstrapping; fewer at the end of a sequence or a truncated episode.
        rescale: learns rescaled values, see :func:`rescale_values`, for rewards of very different sizes.
        loss_function: and the others as for :class:`torchrl.objectives.DQNLoss`.
    """

    def __init__(
        self,
        value_network: TensorDictModuleBase,
        *,
        n_steps: int = 1,
        rescale: bool = False,
        loss_function: str = "smooth_l1",
        delay_value: bool = True,
        double_dqn: bool = True,
        action_space: str | TensorSpec | None = None,
    ) -> None:
        super().__init__(
            value_network,
            loss_function=loss_function,
            delay_value=delay_value,
            double_dqn=double_dqn,
            action_space=action_space,
        )
        self.n_steps, self.rescale = n_steps, rescale

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Loss of sequences ``[size, time]`` of :func:`hydrl.experience.sequences.prepare_sequences`.

        Writes the absolute errors, ``[size, time, 1]``, as priorities.
        """
        inputs = self.read_observations(minibatch)
        with self.value_network_params.to_module(self.value_network, preserve_module_state=False):
            outputs = self.value_network(inputs.copy())
        params = self.target_value_network_params
        with torch.no_grad(), params.to_module(self.value_network, preserve_module_state=False):
            target_outputs = self.value_network(inputs.copy())
        best_actions = (outputs if self.double_dqn else target_outputs).get(self.tensor_keys.action)
        values = outputs.get(self.tensor_keys.action_value)[:, :-1]
        predicted = self.select_values(values, minibatch.get(self.tensor_keys.action))
        target = self.compute_targets(
            minibatch, self.select_values(target_outputs.get(self.tensor_keys.action_value), best_actions)
        )
        minibatch.set(self.tensor_keys.priority, (predicted - target).detach().abs().unsqueeze(-1))
        loss = distance_loss(predicted, target, self.loss_function)
        weights = self._maybe_get_priority_weight(minibatch)
        losses = TensorDict(loss=self._reduce_loss(loss, tensordict=minibatch, weights=weights))
        self._clear_weakrefs(minibatch, losses, "value_network_params", "target_value_network_params")
        return losses

    def read_observations(self, minibatch: TensorDictBase) -> TensorDictBase:
        """The network's inputs at each step and after the last, ``[size, time + 1]``."""
        size, time = minibatch.shape
        next_rows = minibatch.get("next")
        entries = {
            key: torch.cat([minibatch.get(key), next_rows.get(key)[:, -1:]], 1)
            for key in self.value_network.in_keys
        }
        return TensorDict(batch_size=[size, time + 1], device=minibatch.device).update(entries)

    def select_values(self, values: Tensor, action: Tensor) -> Tensor:
        """The values ``[..., actions]`` of one-hot or integer actions; ``[...]``."""
        if self.action_space != "categorical":
            return (values * action).sum(-1)
        index = action if action.ndim == values.ndim else action.unsqueeze(-1)
        return values.gather(-1, index).squeeze(-1)

    @torch.no_grad()
    def compute_targets(self, minibatch: TensorDictBase, values: Tensor) -> Tensor:
        """n-step targets, ``[size, time]``.

        Args:
            minibatch: with rewards and ends.
            values: of each observation by the target network, ``[size, time + 1]``.
        """
        next_rows, keys = minibatch.get("next"), self.tensor_keys
        reward, is_terminated = (next_rows.get(key).squeeze(-1) for key in (keys.reward, keys.terminated))
        cut_short = next_rows.get("is_init").squeeze(-1) & ~is_terminated
        values = unscale_values(values) if self.rescale else values
        targets, last_value = values, values[:, -1:]
        for _ in range(self.n_steps):
            bootstrapped = reward + self.value_estimator.gamma * ~is_terminated * targets[:, 1:]
            # The observation after a truncated episode is not in the sequence.
            targets = torch.cat([torch.where(cut_short, values[:, :-1], bootstrapped), last_value], 1)
        return rescale_values(targets[:, :-1]) if self.rescale else targets[:, :-1]


def rescale_values(values: Tensor) -> Tensor:
    """Values under a square root that keeps their sign (Pohlen et al. 2018)."""
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + EPSILON * values


def unscale_values(values: Tensor) -> Tensor:
    """The inverse of :func:`rescale_values`."""
    root = ((1 + 4 * EPSILON * (values.abs() + 1 + EPSILON)).sqrt() - 1) / (2 * EPSILON)
    return values.sign() * (root.square() - 1)
