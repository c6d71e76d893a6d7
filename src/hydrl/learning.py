"""Learning: the loss with its value estimator, and the update that takes one step on a minibatch."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import nn
from torch.optim import Optimizer
from torchrl import timeit
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

Update = Callable[[TensorDictBase], TensorDictBase]


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


def make_update(
    loss: LossModule,
    optimizer: Optimizer,
    *,
    max_grad_norm: float | None,
    target: TargetNetUpdater | None = None,
    compile: bool = False,
    cudagraph: bool = False,
) -> Update:
    """Builds ``update(minibatch)``: forward, the sum of the loss terms backward, clip, step.

    Args:
        loss: every entry it returns under a name beginning with ``loss`` is summed.
        optimizer: over the loss's parameters.
        max_grad_norm: the gradient's 2-norm is clipped to it; ``None`` leaves it alone.
        target: moves the target network after the step.
        compile: lets ``torch.compile`` build the loss and its gradient at the first call.
        cudagraph: records loss and gradient as one CUDA graph and replays it; the step stays outside, because
            a step inside was seen to change what is learned (TorchRL's issues 3002 and 4216).

    Returns:
        A function from a minibatch to the loss's detached outputs, each averaged to a scalar.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    terms = [key for key in loss.out_keys if key.startswith("loss")]

    def forward(minibatch: TensorDictBase) -> tuple[torch.Tensor, TensorDictBase]:
        losses = loss(minibatch)
        total = torch.stack([losses.get(term) for term in terms]).sum()
        return total, losses.detach().apply(
            lambda value: value.mean() if value.ndim else value, batch_size=[]
        )

    if compile:
        # With fallback_random a loss that samples, as SAC's does, samples what it would have in eager mode.
        forward = torch.compile(forward, options={"fallback_random": True})

    def gradients(minibatch: TensorDictBase) -> TensorDictBase:
        optimizer.zero_grad(set_to_none=not cudagraph)  # a graph writes where it wrote when it was recorded
        total, losses = forward(minibatch)
        total.backward()
        return losses

    if cudagraph:
        gradients = CudaGraphModule(gradients, in_keys=[], out_keys=[], warmup=3)

    @timeit("time/update")
    def update(minibatch: TensorDictBase) -> TensorDictBase:
        losses = gradients(minibatch)
        if max_grad_norm is not None:
            losses.set("grad_norm", nn.utils.clip_grad_norm_(parameters, max_grad_norm))
        optimizer.step()
        if target is not None:
            target.step()
        return losses

    return update
