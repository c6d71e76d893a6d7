"""Hidden layers: MLPs, normalisation, noisy layers, initialisation."""

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
from torchrl.modules.models import DuelingMlpDQNet

from hydrl.errors import UserError
from hydrl.networks.encoders import Encoder

NEEDS_ARGUMENTS = (nn.MultiheadAttention, nn.Threshold)  # cannot be built without arguments

Norm = Callable[[int], nn.Module]


class ConcatSequential(nn.Sequential):
    """``nn.Sequential`` that concatenates several inputs along the last dimension."""

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
    """MLP with hidden layers of ``num_cells`` and a linear output; the first batch sets the input size.

    Args:
        num_cells: units of each hidden layer.
        out_features: size of the output.
        activation: a class name of ``torch.nn``.
        norm: builds a normalisation layer of a size, before the first layer and after each hidden one; a
            ``LayerNorm`` only after hidden ones, as it would remove an observation's scale.
        in_features: size of the input, required by ``norm``.
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
    """Hidden layers; called with an output size, they build an MLP.

    Attributes:
        size: of the input, required by ``norm``.
    """

    num_cells: list[int]
    activation: str
    norm: Norm | None
    size: int

    def __call__(self, outputs: int) -> nn.Module:
        """The layers and a linear output, ``[..., size]`` to ``[..., outputs]``."""
        return mlp(self.num_cells, outputs, self.activation, self.norm, self.size)

    def dueling(self, advantages: int | Sequence[int], values: int | Sequence[int]) -> nn.Module:
        """Dueling network: a trunk with a head for advantages and one for the state value, added."""
        if len(self.num_cells) < 2:
            raise UserError(
                f"actor.num_cells={self.num_cells}: actor=dueling needs a layer for the trunk and one for "
                "the heads. Write [64,64]."
            )
        cls = activation_class(self.activation)
        *trunk, head = self.num_cells
        net = DuelingMlpDQNet(
            out_features=advantages,
            out_features_value=values,
            mlp_kwargs_feature={
                "num_cells": trunk[:-1],
                "out_features": trunk[-1],
                "activation_class": cls,
                "activate_last_layer": True,
            },
            mlp_kwargs_output={"num_cells": [head], "activation_class": cls},
        )
        return ConcatSequential(net)


class ActionValueLayers(Layers):
    """Hidden layers by TorchRL's MLP, for observation and action; it initialises layers in another order."""

    def __call__(self, outputs: int) -> nn.Module:
        """The MLP, of several inputs that it concatenates."""
        activation = activation_class(self.activation)
        return MLP(out_features=outputs, num_cells=self.num_cells, activation_class=activation)


def activation_class(name: str) -> type[nn.Module]:
    """The activation class of ``torch.nn`` by name.

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
            f"activation={name}: no such activation in torch.nn. Write Tanh, ReLU, ELU, SiLU or GELU."
        )
    return activation


def init_weights(module: TensorDictModuleBase, init: str | None, last_gain: float) -> TensorDictModuleBase:
    """Initialises linear and convolutional layers in place.

    Args:
        module: with known sizes.
        init: ``orthogonal`` with gain sqrt(2) and zero biases (Saxe et al. 2014; for PPO, Andrychowicz et al.
            2021), or ``None`` for PyTorch's.
        last_gain: gain of the last layer.
    """
    if init == "orthogonal":
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def redraw_weights(module: nn.Module, init: str | None, last_gain: float) -> nn.Module:
    """Draws the weights of a network anew, in place, by its layers' own distributions and by ``init``.

    Arguments as of :func:`init_weights`.
    """
    for layer in module.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    return init_weights(module, init, last_gain)


class BatchRenorm(BatchRenorm1d):
    """TorchRL's batch renormalisation (Ioffe 2017), for any batch shape and with a warm-up that ends.

    Its statistics are float32, whatever the precision of the layer before.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Leaves out what ``self.running_mean += x`` assigns once it has added: it would cut the graph."""
        if name not in self.__dict__.get("_buffers", ()):
            super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., num_features]``, standardised; in ``train()`` mode by their own batch."""
        self.num_batches_tracked.clamp_max_(self.warmup_steps)  # TorchRL's own counts on: 2, 3, ...
        return super().forward(x.reshape(-1, x.shape[-1]).float()).reshape(x.shape)


class NoisyLinear(modules.NoisyLinear):
    """TorchRL's noisy layer (Fortunato et al. 2018), with fresh noise at each use, in losses too.

    As in their algorithm 1, each action and, in each update, values, target and choice have noise of their
    own. TorchRL's keeps its noise until it is reset, which never reaches a loss's copy of the weights, and
    has no noise in losses, so that its scale is not learned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., in_features]``; noisy in ``train()`` mode and where actions are explored."""
        if not self.training and exploration_type() is not ExplorationType.RANDOM:
            return nn.functional.linear(x, self.weight_mu, self.bias_mu)
        input_noise, output_noise = self._scale_noise(self.in_features), self._scale_noise(self.out_features)
        weight = self.weight_mu + self.weight_sigma * output_noise.outer(input_noise)
        return nn.functional.linear(x, weight, self.bias_mu + self.bias_sigma * output_noise)


def noisy_layers(module: TensorDictModuleBase, deviation: float | None) -> TensorDictModuleBase:
    """Replaces linear layers, except an encoder's, by :class:`NoisyLinear`.

    Args:
        module: with known sizes; changed in place and returned.
        deviation: of the initial noise, times the square root of a layer's inputs (of outputs for biases);
            ``None`` changes nothing.
    """
    encoder_modules = {
        id(submodule)
        for encoder in module.modules()
        if isinstance(encoder, Encoder)
        for submodule in encoder.modules()
    }
    parents = [parent for parent in module.modules() if id(parent) not in encoder_modules]
    for parent in parents if deviation else []:
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                sizes, device = (layer.in_features, layer.out_features), layer.weight.device
                noisy = NoisyLinear(*sizes, device=device, std_init=deviation)
                setattr(parent, name, noisy.train(layer.training))
    return module
