"""Loss of an ensemble of probabilistic networks, which TorchRL lacks: the likelihood of what they predict."""

import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrl.objectives import LossModule

from hydrl.limits import NonNegativeFloat
from hydrl.networks.ensemble import Ensemble, PlanningActor, concat_entries
from hydrl.specs import BOOTSTRAP


class EnsembleLoss(LossModule):
    """Negative log-likelihood of the ensemble with which a policy plans (PETS, Chua et al. 2018).

    Each member learns from its own bootstrapped sample: a row counts by the member's weight in the entry
    ``bootstrap``, ``[..., members]``, which :class:`hydrl.experience.bootstrap.Bootstrap` writes.

    Args:
        actor_network: the policy.
        bounds_coeff: weight of the distance between the learned bounds of log-variances.
    """

    out_keys = ["loss_likelihood", "loss_end", "loss_bounds", "error"]  # noqa: RUF012 - as TorchRL's have it

    def __init__(self, actor_network: PlanningActor, *, bounds_coeff: NonNegativeFloat = 0.01) -> None:
        super().__init__()
        self.model, self.bounds_coeff = actor_network.model, bounds_coeff
        self.observation_keys = actor_network.observation_keys
        self.set_keys()

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch ``[size]``.

        ``error`` is the root mean squared error of the predicted means in units of the data's own root mean
        square: 0 is perfect, 1 predicts no change.
        """
        network: Ensemble = self.model.module
        observation = concat_entries(minibatch, self.observation_keys)
        next_rows = minibatch["next"]
        change = concat_entries(next_rows, self.observation_keys) - observation
        target = torch.cat([change, next_rows["reward"]], -1)
        network.fit(observation, target)
        particles = observation.unsqueeze(-2).expand(-1, network.members, -1)
        inputs = TensorDict({"particles": particles, "action": minibatch["action"]}, minibatch.shape)
        predicted = self.model(inputs)
        weights = minibatch.get(BOOTSTRAP, torch.ones_like(particles[..., 0])).unsqueeze(-1)
        scaled_error = (target.unsqueeze(-2) - predicted["loc"]) / predicted["scale"]
        likelihood = scaled_error.square() + 2 * (predicted["scale"] / network.unit).log()
        ended = next_rows["terminated"].float().unsqueeze(-2).expand_as(predicted["end_logit"])
        end = binary_cross_entropy_with_logits(predicted["end_logit"], ended, reduction="none")
        error = (target.unsqueeze(-2) - predicted["loc"]).detach() / network.unit
        return TensorDict(
            {
                "loss_likelihood": (weights * likelihood).mean(),
                "loss_end": (weights * end).mean(),
                "loss_bounds": self.bounds_coeff * (network.max_log_var - network.min_log_var).mean(),
                "error": error.square().mean().sqrt(),
            }
        )
