"""Layers of networks: hidden ones by their widths, normalised, noisy, drawn anew."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl import modules
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import MLP, BatchRenorm1d

from hydrl.errors import UserError
from hydrl.networks.encoders import Encoder

NEEDS_ARGUMENTS = (nn.MultiheadAttention, nn.Threshold)  # cannot be built without arguments

Norm = Callable[[int], nn.Module]


class ConcatSequential(nn.Sequential):
    """Reads several entries as one, joined along the last dimension."""

    def forward(self, *entries: Tensor) -> Any:
        """Entries ``[..., size]``, each of its own size."""
        return super().forward(entries[0] if len(entries) == 1 else torch.cat(entries, -1))


def mlp(
    num_cells: Sequence[int],
    out_features: int,
    activation: str,
    norm: Norm | None = None,
    in_features: int = 0,
) -> nn.Sequential:
    """Hidden layers of ``num_cells`` and a linear output; input sizes come with the first batch.

    Args:
        num_cells: units of each hidden layer.
        out_features: size of the output.
        activation: a class name of ``torch.nn``.
        norm: builds what normalises so many features, before the first layer and after each hidden one; a
            ``LayerNorm`` after hidden ones alone, as it would take from an observation how large it is.
        in_features: size of the input, which ``norm`` must know.
    """
    first = None if norm is None else norm(in_features)
    layers: list[nn.Module] = [] if first is None or isinstance(first, nn.LayerNorm) else [first]
    for cells in num_cells:
        layers += [nn.LazyLinear(cells), activation_class(activation)()]
        if norm is not None:
            layers.append(norm(cells))
    return ConcatSequential(*layers, nn.LazyLinear(out_features))


@dataclass(frozen=True)
class Layers:
    """Hidden layers of ``num_cells``; called with the size of an output that follows them.

    Attributes:
        size: of what they read, where ``norm`` must know it.
    """

    num_cells: list[int]
    activation: str
    norm: Norm | None
    size: int

    def __call__(self, outputs: int) -> nn.Module:
        """The layers and a linear output, ``[..., size]`` to ``[..., outputs]``."""
        return mlp(self.num_cells, outputs, self.activation, self.norm, self.size)


class ActionValueLayers(Layers):
    """The same as TorchRL's MLP, of observation and action; it draws inner layers first, others the first."""

    def __call__(self, outputs: int) -> nn.Module:
        """The layers and a linear output, of several entries that are joined."""
        activation = activation_class(self.activation)
        return MLP(out_features=outputs, num_cells=self.num_cells, activation_class=activation)


def activation_class(name: str) -> type[nn.Module]:
    """``"Tanh"`` to ``torch.nn.Tanh``.

    Raises:
        UserError: if ``torch.nn`` has no activation of that name that is built without arguments.
    """
    activation = getattr(nn, name, None)
    if (
        not isinstance(activation, type)
        or activation.__module__ != "torch.nn.modules.activation"
        or activation in NEEDS_ARGUMENTS
    ):
        raise UserError(
            f"activation={name} is not an activation of torch.nn; try Tanh, ReLU, ELU, SiLU or GELU"
        )
    return activation


def init_weights(module: TensorDictModuleBase, init: str | None, last_gain: float) -> TensorDictModuleBase:
    """Draws the weights of linear and convolutional layers anew.

    Args:
        module: with sizes; changed in place and given back.
        init: ``orthogonal``, with zero biases and a gain of sqrt(2) (Saxe et al. 2014; for PPO,
            Andrychowicz et al. 2021), or ``None``, which leaves PyTorch's.
        last_gain: that of the last layer.
    """
    if init == "orthogonal":
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class BatchRenorm(BatchRenorm1d):
    """TorchRL's (Ioffe 2017), for a batch of any shape, and done with its warm-up where that ends."""

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., num_features]``, standardised; in ``train()`` mode by their own batch."""
        self.num_batches_tracked.clamp_max_(self.warmup_steps)  # TorchRL's own would count on: 2, 3, ...
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class NoisyLinear(modules.NoisyLinear):
    """TorchRL's (Fortunato et al. 2018), which draws its noise anew at each use and learns how much of it.

    That is their algorithm 1: each action, and in each update the values, the target and the choice of its
    action, have noise of their own. TorchRL's keeps what it drew until it is told, which never reaches a
    loss's copy of the weights, and leaves noise out of losses, so that its scale is not learned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., in_features]``; noisy in ``train()`` mode and where actions are explored."""
        if not self.training and exploration_type() is not ExplorationType.RANDOM:
            return nn.functional.linear(x, self.weight_mu, self.bias_mu)
        into, out = self._scale_noise(self.in_features), self._scale_noise(self.out_features)
        weight = self.weight_mu + self.weight_sigma * out.outer(into)
        return nn.functional.linear(x, weight, self.bias_mu + self.bias_sigma * out)


def noisy_layers(module: TensorDictModuleBase, deviation: float | None) -> TensorDictModuleBase:
    """Puts a :class:`NoisyLinear` in the place of each linear layer, but for those of an encoder.

    Args:
        module: with sizes; changed in place and given back.
        deviation: of the noise at the start, times the square root of a layer's inputs (a bias's: outputs);
            ``None`` changes nothing.
    """
    within = {
        id(submodule) for one in module.modules() if isinstance(one, Encoder) for submodule in one.modules()
    }
    for parent in (
        [submodule for submodule in module.modules() if id(submodule) not in within] if deviation else []
    ):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                sizes, device = (layer.in_features, layer.out_features), layer.weight.device
                noisy = NoisyLinear(*sizes, device=device, std_init=deviation)
                setattr(parent, name, noisy.train(layer.training))
    return module
