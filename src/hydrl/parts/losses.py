"""Losses: TorchRL's own over the networks, with their value estimator."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torchrl.objectives import LossModule


def make_loss(
    module: Callable[..., LossModule],
    value_estimator: dict[str, Any],
    actor: nn.Module,
    critic: nn.Module | None,
) -> LossModule:
    """TorchRL's loss over the actor and, if there is one, the critic; it shares their parameters.

    Args:
        module: builds the loss module from the networks.
        value_estimator: keywords of ``loss.make_value_estimator``, discount included.
        actor: materialised.
        critic: materialised, or ``None`` where the actor is judged by itself.
    """
    loss = module(actor) if critic is None else module(actor, critic)
    loss.make_value_estimator(**value_estimator)
    return loss
