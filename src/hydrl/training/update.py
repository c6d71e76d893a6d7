"""Updates: gradient steps on minibatches."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from hydrl.errors import DivergedError, UserError

Gradients = Callable[[TensorDictBase, tuple[str, ...]], TensorDictBase]


class Update:
    """One gradient step on a minibatch: forward, sum of loss terms, backward, clip, optimizer step.

    Args:
        loss: every entry it returns under a name beginning with ``loss`` is summed.
        optimizer: over the loss's parameters.
        target: updates the target network after the step.
        skip: terms that are never trained.
        every: terms trained at every n-th update only, as TD3's ``loss_actor`` at every second; between,
            their networks have no gradient and the optimizer skips them.
        max_grad_norm: the gradient's 2-norm is clipped to it; ``None`` does not clip.
        target_kl: stops a batch's updates once the divergence of the policy from the one that acted exceeds
            1.5 times this, in nats, on a minibatch, as in Stable-Baselines3; ``None`` never stops. If that
            happens to batches in a row, the learning rate is lowered, see :meth:`update_all`.
        compile: compiles loss, gradient and clipping by ``torch.compile`` at the first call.
        cudagraph: records all that as one CUDA graph; the steps of optimizer and target stay outside: inside
            they are reported to change what is learned (pytorch/rl#3002).

    Raises:
        UserError: for a ``target_kl`` with a loss that returns no ``kl_approx`` or ``kl``.
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: Optimizer,
        target: TargetNetUpdater | None = None,
        skip: Sequence[str] = (),
        every: Mapping[str, int] | None = None,
        *,
        max_grad_norm: float | None = None,
        target_kl: float | None = None,
        compile: bool = False,
        cudagraph: bool = False,
    ) -> None:
        self.kl_key = next((key for key in ("kl_approx", "kl") if key in loss.out_keys), "")
        if target_kl is not None and not self.kl_key:
            raise UserError(f"target_kl={target_kl}: {type(loss).__name__} has no KL divergence. Use null.")
        self.optimizer, self.target, self.target_kl = optimizer, target, target_kl
        self.skip, self.every, self.num_updates = tuple(skip), dict(every or {}), 0
        self.lr_factor, self.stopped_early = (
            1.0,
            False,
        )  # of the learning rate; the last batch
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradients = make_gradients(loss, parameters, max_grad_norm)
        if compile:
            # Forward, backward and clipping become one graph.
            torch._dynamo.config.load_config({"trace_autograd_ops": True})
            # With fallback_random a loss that samples, as SAC's does, samples what it would in eager mode.
            options: dict[str, Any] = {"fallback_random": True, "guard_filter_fn": keep_guards}
            self.gradients = torch.compile(self.gradients, options=options)
        if cudagraph:
            self.gradients = as_cuda_graphs(self.gradients, parameters)

    def update_all(self, minibatches: Iterable[TensorDictBase]) -> list[TensorDictBase]:
        """Updates on each minibatch, until ``target_kl`` stops; the outputs of :meth:`__call__`.

        If the policy's deviation has become small, single steps go too far, and stopping after a few does not
        help. So each stopped batch right after another halves the learning rate, and each other one raises it
        by half, at most to the schedule's.
        """
        outputs, stopped = list[TensorDictBase](), False
        with scaled_learning_rate(self.optimizer, self.lr_factor):
            for minibatch in minibatches:
                if stopped := (losses := self(minibatch)) is None:
                    break
                outputs.append(losses)
        if not stopped:
            self.lr_factor = min(1.5 * self.lr_factor, 1.0)
        elif self.stopped_early:
            self.lr_factor /= 2
        self.stopped_early = stopped
        return outputs

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next batch, in the optimizer's first parameter group."""
        return float(self.lr_factor * self.optimizer.param_groups[0]["lr"])

    def __call__(self, minibatch: TensorDictBase) -> TensorDictBase | None:
        """The loss's detached outputs, averaged to scalars; ``None`` if ``target_kl`` prevented the step.

        Raises:
            DivergedError: in place of a step, for a NaN or infinite loss or gradient.
            UserError: if the loss has no term that ``skip`` or ``every`` names.
        """
        late = (term for term, every in self.every.items() if (self.num_updates + 1) % every)
        losses = self.gradients(minibatch, (*self.skip, *late))
        check_finite(losses)
        for term in (*self.skip, *self.every):
            if term not in losses:
                terms = " or ".join(loss_terms(losses))
                raise UserError(f"loss.skip and loss.every: the loss has no term {term}. Use {terms}.")
        if self.target_kl is not None and losses[self.kl_key] > 1.5 * self.target_kl:
            return None
        self.optimizer.step()
        if self.target is not None:
            self.target.step()
        self.num_updates += 1
        return losses

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the state of ``target_kl``."""
        return {"made": self.num_updates, "pace": self.lr_factor, "left": self.stopped_early}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        self.num_updates = state["made"]
        self.lr_factor = state.get("pace", 1.0)  # older runs have neither this nor the next
        self.stopped_early = state.get("left", False)


def keep_norms(optimizer: Optimizer, loss: nn.Module, patterns: Sequence[str]) -> None:
    """Projects rows of weights and gains of normalisations to their norm after each step of an optimizer.

    Args:
        optimizer: over the loss's parameters.
        loss: its matrices ``[..., outputs, inputs]`` are divided by the length of their rows; parameters
            named ``unit_gain``, ``[..., rows, size]``, get a mean square of 1 / rows.
        patterns: of the matrices' names, as ``*unit_weight``.
    """
    trained = {name: parameter for name, parameter in loss.named_parameters() if parameter.requires_grad}
    matrices = [
        parameter
        for name, parameter in trained.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    gains = [parameter for name, parameter in trained.items() if name.endswith("unit_gain")]

    @torch.no_grad()
    def project(*_: Any) -> None:
        for matrix in matrices:
            matrix.div_(torch.linalg.vector_norm(matrix, dim=-1, keepdim=True).clamp_min(1e-8))
        for gain in gains:
            gain.mul_((gain.square().sum((-2, -1), keepdim=True) / gain.shape[-1] + 1e-8).rsqrt())

    if matrices or gains:
        optimizer.register_step_post_hook(project)


@contextmanager
def scaled_learning_rate(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Context manager that multiplies an optimizer's learning rates."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@contextmanager
def train_mode(networks: Collection[nn.Module]) -> Iterator[None]:
    """Context manager in which networks are in ``train()`` mode; otherwise they act in ``eval()`` mode."""
    for network in networks:
        network.train()
    try:
        yield
    finally:
        for network in networks:
            network.eval()


def anneal(schedule: LRScheduler | None, exploration: Any, frames: int) -> None:
    """Steps the learning-rate schedule, and anneals exploration by ``frames``."""
    if schedule is not None:
        schedule.step()
    if exploration is not None:
        exploration.step(frames)


def make_gradients(
    loss: LossModule, parameters: Sequence[nn.Parameter], max_grad_norm: float | None
) -> Gradients:
    """The part of an update that can be compiled: forward, backward of the terms' sum, clipping.

    A loss may have ``split_minibatch(minibatch)``, which returns parts whose gradients are added, each
    weighted by its share of the rows.
    """

    def part_gradients(minibatch: TensorDictBase, untrained: tuple[str, ...]) -> tuple[TensorDictBase, Any]:
        losses = loss(minibatch)
        lost = [key for key, value in losses.items() if value.requires_grad and key[:4] != "loss"]
        if unlisted := [key for key in lost if key not in loss.out_keys]:
            raise UserError(
                f"loss: {unlisted[0]} has a gradient and is not summed; name it loss_… or detach it"
            )
        # The loss's own order, in which gradients add up, and then what it returns besides.
        terms = [term for term in loss_terms(losses, first=loss.out_keys) if term not in untrained]
        total = torch.stack([losses.get(term) for term in terms]).sum()
        found_gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for key, value in minibatch.items():
            # What the loss wrote there, as SAC's does loc and scale: given away with its graph, it would cut
            # the compiled one in two.
            if value.requires_grad:
                minibatch.set(key, value.detach())
        losses = losses.apply(lambda value: (value.mean() if value.ndim else value).detach(), batch_size=[])
        return losses, found_gradients

    split = getattr(loss, "split_minibatch", lambda minibatch: [minibatch])

    def gradients(minibatch: TensorDictBase, untrained: tuple[str, ...]) -> TensorDictBase:
        parts = split(minibatch)
        losses, found_gradients = part_gradients(parts[0], untrained)
        if len(parts) > 1:
            shares = [len(part) / len(minibatch) for part in parts]
            others = (part_gradients(part, untrained) for part in parts[1:])
            losses, found_gradients = weighted_sum([(losses, found_gradients), *others], shares)
        for parameter, gradient in zip(parameters, found_gradients, strict=True):
            parameter.grad = match_layout(parameter, gradient)
        norm = nn.utils.get_total_norm([gradient for gradient in found_gradients if gradient is not None])
        if max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        return losses.set("grad_norm", norm)

    return gradients


def weighted_sum(
    results: Sequence[tuple[TensorDictBase, Sequence[Tensor | None]]], shares: Sequence[float]
) -> tuple[TensorDictBase, list[Tensor | None]]:
    """Losses and gradients of a minibatch from those of its parts, whose rows are these shares of it."""
    weighted = [losses * share for (losses, _), share in zip(results, shares, strict=True)]
    total = weighted[0]
    for losses in weighted[1:]:
        total = total + losses
    sums: list[Tensor | None] = []
    for gradients in zip(*(gradients for _, gradients in results), strict=True):
        known = [
            gradient * share
            for gradient, share in zip(gradients, shares, strict=True)
            if gradient is not None
        ]
        sums.append(torch.stack(known).sum(0) if known else None)
    return total, sums


def keep_guards(guards: Sequence[Any]) -> list[bool]:
    """Which of a graph's guards to keep: all but those on tensordict's list of known classes.

    That list grows whenever a new class appears, as with the first checkpoint, and would cause a
    recompilation.
    """
    return ["_TENSORCLASS_MEMO" not in guard.name for guard in guards]


def match_layout(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient with its parameter's memory layout.

    Fused optimizers ignore strides, which differ for critics that ``vmap`` evaluates together. ``backward()``
    matches them, ``torch.autograd.grad`` does not.
    """
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def loss_terms(losses: TensorDictBase, first: Sequence[str] = ()) -> list[str]:
    """The entries that are summed."""
    keys = [key for key, _ in losses.items()]
    return [key for key in dict.fromkeys([*first, *keys]) if key.startswith("loss") and key in keys]


def check_finite(losses: TensorDictBase) -> None:
    """Checks every loss term and the gradient's norm.

    Raises:
        DivergedError: naming those that are NaN or infinite.
    """
    names = [*loss_terms(losses), "grad_norm"]
    terms = torch.stack([losses.get(name) for name in names])
    if not terms.isfinite().all():
        pairs = zip(names, terms.tolist(), strict=True)
        raise DivergedError(", ".join(f"{name} is {value}" for name, value in pairs if not isfinite(value)))


def as_cuda_graphs(gradients: Gradients, parameters: Sequence[nn.Parameter]) -> Gradients:
    """Records ``gradients`` as a CUDA graph and replays it from the fourth call on.

    Each set of left-out terms has a graph of its own. The gradients are outputs of the graph, because the
    call that records computes nothing.

    Raises:
        UserError: while recording, if the loss waits for values from the GPU, as TorchRL's PPO does to check
            that the entropy is finite; compiled it does not.
    """

    def record(untrained: tuple[str, ...]) -> CudaGraphModule:
        def recorded(minibatch: TensorDictBase) -> TensorDictBase:
            losses = gradients(minibatch, untrained)
            by_index = {str(k): parameter.grad for k, parameter in enumerate(parameters)}
            computed = {index: gradient for index, gradient in by_index.items() if gradient is not None}
            return TensorDict({"losses": losses, "gradients": TensorDict(computed)})

        return CudaGraphModule(recorded, in_keys=[], out_keys=[], warmup=3)

    graphs: dict[tuple[str, ...], CudaGraphModule] = {}

    def replayed(minibatch: TensorDictBase, untrained: tuple[str, ...]) -> TensorDictBase:
        if untrained not in graphs:
            graphs[untrained] = record(untrained)
        try:
            out = graphs[untrained](minibatch)
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            raise UserError(
                "cudagraph=true: the loss waits for values from the GPU, which no CUDA graph can record. "
                "Add compile=true, or use cudagraph=false."
            ) from error
        for k, parameter in enumerate(parameters):
            parameter.grad = out["gradients"].get(str(k), None)
        return out["losses"]

    return replayed
