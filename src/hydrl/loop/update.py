"""The update: one step on a minibatch."""

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from hydrl.errors import DivergedError
from hydrl.loop.clock import timeit

Update = Callable[[TensorDictBase], TensorDictBase]


def make_update(
    loss: LossModule,
    optimizer: Optimizer,
    target: TargetNetUpdater | None = None,
    *,
    max_grad_norm: float | None = None,
    compile: bool = False,
    cudagraph: bool = False,
) -> Update:
    """Builds ``update(minibatch)``: forward, the sum of the loss terms backward, clip, step.

    Args:
        loss: every entry it returns under a name beginning with ``loss`` is summed.
        optimizer: over the loss's parameters.
        target: moves the target network after the step.
        max_grad_norm: the gradient's 2-norm is clipped to it; ``None`` leaves it alone.
        compile: lets ``torch.compile`` build loss, gradient and clipping at the first call.
        cudagraph: records all that as one CUDA graph and replays it; the steps of optimizer
            and target stay outside: inside they are reported to change what is learned (pytorch/rl#3002).

    Returns:
        A function from a minibatch to the loss's detached outputs, each averaged to a scalar. It raises
        :class:`~hydrl.errors.DivergedError` in place of a step that a NaN or an infinity would spoil.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = make_gradients(loss, parameters, max_grad_norm)
    compute: Update = gradients
    if compile:
        # Forward, backward and clipping become one graph.
        torch._dynamo.config.load_config({"trace_autograd_ops": True})
        # With fallback_random a loss that samples, as SAC's does, samples what it would have in eager mode.
        compute = torch.compile(gradients, options={"fallback_random": True})
    if cudagraph:
        compute = as_cuda_graph(compute, parameters)

    @timeit("time/update")
    def update(minibatch: TensorDictBase) -> TensorDictBase:
        losses = compute(minibatch)
        check_finite(losses)
        optimizer.step()
        if target is not None:
            target.step()
        return losses

    return update


def make_gradients(
    loss: LossModule, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
) -> Update:
    """The part of an update that can be compiled: forward, the terms' sum backward, the gradient clipped."""

    def gradients(minibatch: TensorDictBase) -> TensorDictBase:
        losses = loss(minibatch)
        # The loss's own order, in which gradients add up, and then what it returns besides.
        terms = terms_of(losses, first=loss.out_keys)
        total = torch.stack([losses.get(term) for term in terms]).sum()
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = laid_out_as(parameter, gradient)
        losses = losses.detach().apply(lambda value: value.mean() if value.ndim else value, batch_size=[])
        norm = nn.utils.get_total_norm([each for each in found if each is not None])
        if max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        return losses.set("grad_norm", norm)

    return gradients


def laid_out_as(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient with its numbers in memory where the parameter has its own.

    A fused optimizer steps through both alike and takes no heed of strides, which differ for critics that
    ``vmap`` evaluates together. ``backward()`` sees to it by itself, ``torch.autograd.grad`` does not.
    """
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def terms_of(losses: TensorDictBase, first: Sequence[str] = ()) -> list[str]:
    """The entries that are summed."""
    there = losses.keys()
    return [key for key in dict.fromkeys([*first, *there]) if key.startswith("loss") and key in there]


def check_finite(losses: TensorDictBase) -> None:
    """Looks at every loss term and at the gradient's norm.

    Raises:
        DivergedError: naming those that are NaN or infinite.
    """
    names = [*terms_of(losses), "grad_norm"]
    values = torch.stack([losses.get(name) for name in names])
    if not values.isfinite().all():
        bad = [f"{name} is {value}" for name, value in zip(names, values.tolist(), strict=True)]
        raise DivergedError(
            ", ".join(each for each in bad if each.rpartition(" ")[2] in ("nan", "inf", "-inf"))
        )


def as_cuda_graph(gradients: Update, parameters: Sequence[nn.Parameter]) -> Update:
    """Records what ``gradients`` does to a minibatch as a CUDA graph and replays it from the fourth call on.

    The gradients leave the graph as outputs, because the call that records computes nothing where it records.
    """

    def recorded(minibatch: TensorDictBase) -> TensorDictBase:
        losses = gradients(minibatch)
        found = {str(k): each.grad for k, each in enumerate(parameters) if each.grad is not None}
        return TensorDict({"losses": losses, "gradients": TensorDict(found)})

    graph = CudaGraphModule(recorded, in_keys=[], out_keys=[], warmup=3)

    def replayed(minibatch: TensorDictBase) -> TensorDictBase:
        out = graph(minibatch)
        for k, gradient in out["gradients"].items():
            parameters[int(k)].grad = gradient
        return out["losses"]

    return replayed
