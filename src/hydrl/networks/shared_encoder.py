"""Layers that an actor and a critic share, which run once for both."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor


class SharedModule(TensorDictSequential):
    """Encoder or RNN before the head of an actor, which a critic may share.

    Attributes:
        out_key: the entry that heads read.
        shared: whether an actor and a critic share it. A loss runs both on the same observations, one after
            the other; then it runs once, and the critic gets the actor's output.
        cached: its last inputs, read with a gradient, and its output.
    """

    out_key: ClassVar[str]

    def __init__(self, *modules: TensorDictModuleBase, **options: Any) -> None:
        super().__init__(*modules, **options)
        self.shared = False
        self.layers = [module for module in self.modules() if module._parameters]  # looked for once
        # Of each object's own from the start: a compiled graph is built anew where one comes along.
        self.cached: tuple[list[tuple[Tensor, int]], Tensor] | None = None

    def forward(self, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> TensorDictBase:
        """Writes ``out_key``, ``[..., size]``, and the modules' other entries unless cached."""
        if not (self.shared and torch.is_grad_enabled()):
            return super().forward(tensordict, *args, **kwargs)
        last, self.cached = self.cached, None
        if last is not None and is_unchanged(last[0], self.input_versions(tensordict)):
            return tensordict.set(self.out_key, last[1])
        done = super().forward(tensordict, *args, **kwargs)
        if done.get(self.out_key).requires_grad:  # an advantage's have none, and no graph should meet them
            # As it is now: where it ran through sequences, TorchRL's memory has put copies there.
            self.cached = self.input_versions(done), done.get(self.out_key)
        return done

    def input_versions(self, tensordict: TensorDictBase) -> list[tuple[Tensor, int]]:
        """Its inputs and weights, each with a version that rises with in-place writes."""
        entries = [entry for entry in map(tensordict.get, self.in_keys) if entry is not None]
        # No graph has versions; in one update nothing is written between the two.
        written = not torch.compiler.is_compiling()
        weights = [
            weight for layer in self.layers for weight in layer._parameters.values() if weight is not None
        ]
        return [(tensor, tensor._version if written else 0) for tensor in (*entries, *weights)]


def is_unchanged(one: Sequence[tuple[Tensor, int]], other: Sequence[tuple[Tensor, int]]) -> bool:
    """Whether these are the same tensors, without writes in between."""
    if len(one) != len(other):
        return False
    return not [a for a, b in zip(one, other, strict=True) if a[0] is not b[0] or a[1] != b[1]]
