"""Hidden layers of SimBa, SimbaV2, XQC, FlashSAC, DroQ and PQN: residual blocks, normalisation, dropout."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydrl.errors import UserError
from hydrl.limits import HalfOpenFraction
from hydrl.networks.layers import ConcatSequential, Layers, activation_class

SHIFT = 3.0  # constant entry of SimbaV2's input, which keeps its length after normalisation
EXPANSION = 4  # width of a block's inner layer, in widths of the block

BuildLayers = Callable[..., nn.Module]  # from num_cells, activation, size, actions and outputs


@dataclass(frozen=True)
class BlockLayers(Layers):
    """Hidden layers by one of the builders here.

    Attributes:
        build_layers: :func:`simba` or another builder of this module, or one like them.
        actions: entries of the action, the last ones of the input; 0 without an action.
    """

    build_layers: BuildLayers
    actions: int

    def __call__(self, outputs: int) -> nn.Module:
        """The layers and their output, ``[..., size]`` to ``[..., outputs]``."""
        return self.build_layers(self.num_cells, self.activation, self.size, self.actions, outputs)

    def dueling(self, advantages: int | Sequence[int], values: int | Sequence[int]) -> nn.Module:
        """Dueling network (Wang et al. 2016), whose heads are columns of one output."""
        shapes = [(size,) if isinstance(size, int) else tuple(size) for size in (advantages, values)]
        return ConcatSequential(self(sum(map(math.prod, shapes))), Dueling(*shapes))


class Dueling(nn.Module):
    """Action values from advantages and state values, which are the columns of one input."""

    def __init__(self, advantages: tuple[int, ...], values: tuple[int, ...]) -> None:
        super().__init__()
        self.advantages, self.values = advantages, values

    def forward(self, x: Tensor) -> Tensor:
        """``[..., advantages + values]`` to ``[..., *advantages]``; actions are the last dimension."""
        advantage, value = x.split([math.prod(self.advantages), math.prod(self.values)], -1)
        advantage, value = advantage.unflatten(-1, self.advantages), value.unflatten(-1, self.values)
        return value + advantage - advantage.mean(-1, keepdim=True)


class RunningNorm(nn.Module):
    """Standardises observations by mean and variance of all rows of ``train()`` mode (SimBa's RSNorm).

    Entries after the first ``size``, those of an action, stay as they are.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, eps: float = 1e-8) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size + actions]``."""
        x = x.float()
        observation, action = x[..., : self.size], x[..., self.size :]
        if self.training:
            self.add_rows(observation.detach().reshape(-1, self.size))
        observation = (observation - self.mean) * (self.variance + self.eps).rsqrt()
        return torch.cat([observation, action], -1)

    @torch.no_grad()
    def add_rows(self, rows: Tensor) -> None:
        """Adds rows ``[rows, size]`` to the statistics (Chan et al. 1979)."""
        variance, mean = torch.var_mean(rows, 0, unbiased=False)
        total = self.count + len(rows)
        delta = mean - self.mean
        squares = self.variance * self.count + variance * len(rows)
        squares = squares + delta.square() * self.count * len(rows) / total
        self.mean.add_(delta * len(rows) / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) without PyTorch's batch counter, which breaks graphs."""

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, size: int, momentum: float = 0.01, eps: float = 1e-3) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_variance", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``; in ``train()`` mode by their own batch, else by running statistics."""
        x = x.float()
        mean, variance = self.running_mean, self.running_variance
        if self.training:
            variance, mean = torch.var_mean(x.reshape(-1, x.shape[-1]), 0, unbiased=False)
            with torch.no_grad():
                for running, batch in ((self.running_mean, mean), (self.running_variance, variance)):
                    running.mul_(1 - self.momentum).add_(batch.detach() * self.momentum)
        gain, bias = self.gain_and_bias()
        factor = gain * (variance + self.eps).rsqrt()
        return x * factor + (bias - mean * factor)

    def gain_and_bias(self) -> tuple[Tensor, Tensor]:
        """What standardised entries are multiplied by, and what is added to them; ``[size]`` both."""
        return self.weight, self.bias


class UnitBatchNorm(BatchNorm):
    """Batch normalisation; gains and biases, rows of ``unit_gain``, keep the sum of their squares, ``size``.

    After each update :func:`hydrl.training.update.keep_norms` projects ``unit_gain``, found by its name.
    """

    def __init__(self, size: int, momentum: float = 0.01, eps: float = 1e-5) -> None:
        super().__init__(size, momentum, eps)
        self.unit_gain = nn.Parameter(torch.stack([self.weight.data, self.bias.data]))
        del self.weight, self.bias

    def gain_and_bias(self) -> tuple[Tensor, Tensor]:
        """The rows of ``unit_gain``."""
        gain, bias = self.unit_gain.unbind(-2)
        return gain, bias


class UnitRMSNorm(nn.Module):
    """Divides entries by their root mean square (Zhang and Sennrich 2019).

    Gains keep their mean square, 1, as :class:`UnitBatchNorm`'s.
    """

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.unit_gain = eps, nn.Parameter(torch.ones(1, size))

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``."""
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.unit_gain.squeeze(-2)


class InitLinear(nn.Linear):
    """Linear layer with orthogonal or He-normal weights and zero biases.

    Args:
        size: of the input.
        outputs: of the output.
        he: normal with variance 2 / size (He et al. 2015); else orthogonal (Saxe et al. 2014).
    """

    def __init__(self, size: int, outputs: int, *, he: bool = False) -> None:
        self.he = he
        super().__init__(size, outputs)

    def reset_parameters(self) -> None:
        """Draws the weights."""
        if self.he:
            nn.init.kaiming_normal_(self.weight)
        else:
            nn.init.orthogonal_(self.weight)
        nn.init.zeros_(self.bias)


class UnitLinear(nn.Module):
    """Linear layer whose rows of weights have norm 1.

    After each update :func:`hydrl.training.update.keep_norms` projects ``unit_weight``, found by its name,
    see ``loss.unit_norm``.
    """

    def __init__(self, size: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.unit_weight = nn.Parameter(torch.empty(outputs, size))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws orthogonal weights, and normalises their rows."""
        nn.init.orthogonal_(self.unit_weight)
        with torch.no_grad():
            self.unit_weight.copy_(nn.functional.normalize(self.unit_weight, dim=-1))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]`` to ``[..., outputs]``."""
        return nn.functional.linear(x, self.unit_weight, self.bias)


class Scaler(nn.Module):
    """Learned factor of each entry, which starts at ``init`` (Loshchilov et al. 2024).

    Its parameter starts at ``scale``, which sets how fast the factor is learned.
    """

    def __init__(self, size: int, init: float, scale: float) -> None:
        super().__init__()
        self.factor, self.ratio = nn.Parameter(torch.full((size,), scale)), init / scale

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``."""
        return x * (self.factor * self.ratio)


class UnitNorm(nn.Module):
    """Divides entries by their length."""

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``."""
        return nn.functional.normalize(x, dim=-1, eps=1e-8)


class ShiftedUnitNorm(nn.Module):
    """Appends a constant entry and divides by the length, so that the input's length is not lost."""

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]`` to ``[..., size + 1]``."""
        return nn.functional.normalize(torch.cat([x, torch.full_like(x[..., :1], SHIFT)], -1), dim=-1)


class Residual(nn.Sequential):
    """Adds its input to its layers' output."""

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``."""
        return x + super().forward(x)


class UnitResidual(nn.Module):
    """Moves from its input towards its layers' output, by a learned share of each entry, on the unit sphere.

    Args:
        layers: from ``[..., size]`` to ``[..., size]``.
        share: factor of the way to their output.
    """

    def __init__(self, layers: nn.Module, share: Scaler) -> None:
        super().__init__()
        self.layers, self.share = layers, share

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., size]``."""
        return nn.functional.normalize(x + self.share(self.layers(x) - x), dim=-1, eps=1e-8)


def simba(num_cells: Sequence[int], activation: str, size: int, actions: int, outputs: int) -> nn.Module:
    """SimBa's layers (Lee et al. 2024): running statistics, pre-norm residual blocks, a last layer norm.

    Args:
        num_cells: width of each block; all are equal.
        activation: a class name of ``torch.nn``; the paper has ReLU.
        size: of the input.
        actions: entries of the action, the last ones of the input.
        outputs: size of the output.
    """
    width, act = block_width(num_cells), activation_class(activation)
    blocks = [
        Residual(
            nn.LayerNorm(width, eps=1e-6),
            InitLinear(width, EXPANSION * width, he=True),
            act(),
            InitLinear(EXPANSION * width, width, he=True),
        )
        for _ in num_cells
    ]
    first = RunningNorm(size - actions), InitLinear(size, width)
    return ConcatSequential(*first, *blocks, nn.LayerNorm(width, eps=1e-6), InitLinear(width, outputs))


def simba_v2(num_cells: Sequence[int], activation: str, size: int, actions: int, outputs: int) -> nn.Module:
    """SimbaV2's layers (Lee et al. 2025): features and rows of weights have norm 1.

    Blocks interpolate between their input and output. Arguments as of :func:`simba`.
    """
    width, act = block_width(num_cells), activation_class(activation)
    gain, inner = math.sqrt(2 / width), EXPANSION * width
    blocks = [
        UnitResidual(
            nn.Sequential(
                UnitLinear(width, inner),
                Scaler(inner, gain / math.sqrt(EXPANSION), gain / math.sqrt(EXPANSION)),
                act(),
                UnitLinear(inner, width),
                UnitNorm(),
            ),
            Scaler(width, 1 / (len(num_cells) + 1), 1 / math.sqrt(width)),
        )
        for _ in num_cells
    ]
    first = RunningNorm(size - actions), ShiftedUnitNorm(), UnitLinear(size + 1, width)
    last = UnitLinear(width, width), Scaler(width, 1.0, 1.0), UnitLinear(width, outputs, bias=True)
    return ConcatSequential(*first, Scaler(width, gain, gain), UnitNorm(), *blocks, *last)


def xqc(num_cells: Sequence[int], activation: str, size: int, actions: int, outputs: int) -> nn.Module:
    """XQC's layers (Palenicek et al. 2025): rows of unit norm, batch normalisation, activation.

    Observation and action are normalised before the first. Arguments as of :func:`simba`, except that the
    layers of ``num_cells`` may differ.
    """
    layers: list[nn.Module] = [BatchNorm(size)]
    for inputs, cells in zip([size, *num_cells[:-1]], num_cells, strict=True):
        layers += [UnitLinear(inputs, cells), BatchNorm(cells), activation_class(activation)()]
    return ConcatSequential(*layers, UnitLinear(num_cells[-1], outputs, bias=True))


def flash_sac(num_cells: Sequence[int], activation: str, size: int, actions: int, outputs: int) -> nn.Module:
    """FlashSAC's layers (Kim et al. 2026): inverted residual blocks of batch norms, a last RMS norm.

    Rows of weights have norm 1, and gains of normalisations a mean square of 1. Arguments as of
    :func:`simba`.
    """
    width, act = block_width(num_cells), activation_class(activation)
    inner = EXPANSION * width
    blocks = [
        Residual(
            *(UnitLinear(width, inner), UnitBatchNorm(inner), act()),
            *(UnitLinear(inner, width), UnitBatchNorm(width), act()),
        )
        for _ in num_cells
    ]
    first, last = (UnitBatchNorm(size), UnitLinear(size, width)), UnitLinear(width, outputs, bias=True)
    return ConcatSequential(*first, *blocks, UnitRMSNorm(width), last)


def layer_norm(
    num_cells: Sequence[int],
    activation: str,
    size: int,
    actions: int,
    outputs: int,
    dropout: HalfOpenFraction = 0.0,
) -> nn.Module:
    """Layers of PQN (Gallici et al. 2024) and DroQ (Hiraoka et al. 2022): layer norm before each activation.

    Arguments as of :func:`xqc`.

    Args:
        dropout: probability that an entry is zero before its layer norm, in ``train()`` mode.
    """
    layers: list[nn.Module] = []
    for inputs, cells in zip([size, *num_cells[:-1]], num_cells, strict=True):
        drop = [nn.Dropout(dropout)] if dropout else []
        layers += [nn.Linear(inputs, cells), *drop, nn.LayerNorm(cells), activation_class(activation)()]
    return ConcatSequential(*layers, nn.Linear([size, *num_cells][-1], outputs))


def block_width(num_cells: Sequence[int]) -> int:
    """The width of residual blocks.

    Raises:
        UserError: if there is none, or several.
    """
    if len({*num_cells}) != 1:
        advice = str([max(num_cells, default=128)] * max(len(num_cells), 1)).replace(" ", "")
        raise UserError(
            f"num_cells={list(num_cells)}: residual blocks have one width. Write num_cells={advice}."
        )
    return num_cells[0]
