"""Encoders and RNNs that an actor and a critic share, which run once for both."""

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
        shared: whether an actor and a critic share it. A loss runs one after the other on the same
            observations; the module runs once, and the critic gets the cached output.
        cached: the last inputs with a gradient, and the output.
    """

    out_key: ClassVar[str]

    def __init__(self, *modules: TensorDictModuleBase, **options: Any) -> None:
        super().__init__(*modules, **options)
        self.shared = False
        self.layers = [module for module in self.modules() if module._parameters]  # found once, as it is slow
        # An attribute of each object from the start: a new one would recompile the graph.
        self.cached: tuple[list[tuple[Tensor, int]], Tensor] | None = None

    def forward(self, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> TensorDictBase:
        """Writes ``out_key``, ``[..., size]``, and the modules' other entries unless cached."""
        if not (self.shared and torch.is_grad_enabled()):
            return super().forward(tensordict, *args, **kwargs)
        cached, self.cached = self.cached, None
        if cached is not None and is_unchanged(cached[0], self.input_versions(tensordict)):
            return tensordict.set(self.out_key, cached[1])
        outputs = super().forward(tensordict, *args, **kwargs)
        if outputs.get(self.out_key).requires_grad:  # not those of advantages
            # The inputs as they are now: over sequences TorchRL's RNN replaces them by copies.
            self.cached = self.input_versions(outputs), outputs.get(self.out_key)
        return outputs

    def input_versions(self, tensordict: TensorDictBase) -> list[tuple[Tensor, int]]:
        """Its inputs and weights, each with a version that rises with in-place writes."""
        entries = [entry for entry in map(tensordict.get, self.in_keys) if entry is not None]
        # A compiled graph has no versions; within one update nothing is written between the two runs.
        has_versions = not torch.compiler.is_compiling()
        weights = [
            weight for layer in self.layers for weight in layer._parameters.values() if weight is not None
        ]
        return [(tensor, tensor._version if has_versions else 0) for tensor in (*entries, *weights)]


def is_unchanged(one: Sequence[tuple[Tensor, int]], other: Sequence[tuple[Tensor, int]]) -> bool:
    """Whether both are the same tensors, without writes in between."""
    if len(one) != len(other):
        return False
    return all(
        tensor is other_tensor and version == other_version
        for (tensor, version), (other_tensor, other_version) in zip(one, other, strict=True)
    )
