"""Encoders: one network for each observation entry, with concatenated outputs.

Vectors pass unchanged; images are read by published convolutional networks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase
from torchrl.modules import ConvNet

from hydrl.errors import UserError, warn_once
from hydrl.limits import PositiveInt
from hydrl.networks.shared_encoder import SharedModule
from hydrl.specs import is_image, require_entries

Reader = Literal["auto", "mlp", "cnn", "impala", "minatar"]
Scale = Literal["bounds", "bytes"]
MIN_CNN_SIDE = 36  # pixels; Nature's strides need images at least this wide and high
UNBOUNDED = 2.0**31  # a wider range is that of a dtype, not bounds of an image


class Encoder(SharedModule):
    """Encoder of observations, which writes ``features``."""

    out_key = "features"


class EntryEncoders(nn.Module):
    """Network that reads several entries, each by its own network, and concatenates the outputs.

    Args:
        readers: networks by entry, in order.
    """

    def __init__(self, readers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.readers = nn.ModuleDict(readers)

    def forward(self, *entries: Tensor) -> Tensor:
        """Entries ``[..., *shape]``, each of its own shape, to ``[..., size]``."""
        outputs = [reader(entry) for reader, entry in zip(self.readers.values(), entries, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)


class ImageEncoder(nn.Module):
    """Network that scales images and reads them by a CNN, for any leading dimensions.

    Args:
        net: from ``[batch, C, H, W]`` to ``[batch, size]``.
        low: subtracted from pixels, ``[C, 1, 1]`` or a number; ``None`` subtracts nothing.
        span: divisor of pixels after that, likewise.
        channels_last: whether to use that memory format on a CPU, which is faster for several convolutions
            and slower for one.
    """

    low: float | Tensor | None
    span: float | Tensor | None

    def __init__(
        self,
        net: nn.Module,
        low: float | Tensor | None,
        span: float | Tensor | None,
        *,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.net, self.channels_last = net, channels_last
        for name, value in (("low", low), ("span", span)):
            if isinstance(value, Tensor):  # moves with the network, and is not in checkpoints
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images ``[..., C, H, W]`` to ``[..., size]``."""
        flat = pixels.reshape(-1, *pixels.shape[-3:])
        flat = flat if self.low is None else flat.float() - self.low
        flat = flat if self.span is None else flat.float() / self.span
        if self.channels_last and flat.device.type == "cpu":
            # As contiguous(memory_format=torch.channels_last), which vmap does not know.
            flat = flat.movedim(-3, -1).contiguous().movedim(-1, -3)
        return self.net(flat).reshape(*pixels.shape[:-3], -1)


class ResidualBlock(nn.Sequential):
    """Residual block of two convolutions (He et al. 2016)."""

    def __init__(self, channels: int) -> None:
        layers = [(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)]
        super().__init__(*(layer for pair in layers for layer in pair))

    def forward(self, pixels: Tensor) -> Tensor:
        """Keeps the shape."""
        return pixels + super().forward(pixels)


def cnn(channels: int, features: int | None = 512, first: int = 32) -> nn.Sequential:
    """Nature's three convolutions (Mnih et al. 2015), for images of 36 x 36 or more."""
    convolutions = ConvNet(
        in_features=channels,
        num_cells=[first, 2 * first, 2 * first],
        kernel_sizes=[8, 4, 3],
        strides=[4, 2, 1],
        activation_class=nn.ReLU,
    )
    return add_linear(convolutions, features)


def impala(channels: int, features: int | None = 256, first: int = 16) -> nn.Sequential:
    """IMPALA's network (Espeholt et al. 2018): three stages of two residual blocks, each halves the image."""
    widths, layers = [first, 2 * first, 2 * first], list[nn.Module]()
    for into, out in zip([channels, *widths], widths, strict=False):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(out), ResidualBlock(out)]
    return add_linear(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()), features)


def minatar(channels: int, features: int | None = 128, first: int = 16) -> nn.Sequential:
    """MinAtar's one convolution (Young and Tian 2019), for small images."""
    convolution = ConvNet(
        in_features=channels, num_cells=[first], kernel_sizes=[3], strides=[1], activation_class=nn.ReLU
    )
    return add_linear(convolution, features)


def add_linear(convolutions: nn.Sequential, features: int | None) -> nn.Sequential:
    """Adds a linear layer over convolutions; none for ``features=None``."""
    # The last activation comes after the flattening: before it a compiled update stores where the activation
    # is zero, and PyTorch 2.15 takes 16 ms to store a million booleans.
    convolutions.append(convolutions.pop(-2))
    return nn.Sequential(convolutions, *([nn.LazyLinear(features), nn.ReLU()] if features else []))


CONVOLUTIONS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "impala": impala, "minatar": minatar}


def encoder(
    env: EnvBase,
    in_keys: Sequence[NestedKey],
    *,
    reader: Reader = "auto",
    features: PositiveInt | None = None,
    channels: PositiveInt | None = None,
    scale: Scale = "bounds",
    **entries: Reader,
) -> TensorDictModuleBase | None:
    """Builds an encoder; ``None`` if all entries are vectors, which the hidden layers read themselves.

    Args:
        env: gives the entries.
        in_keys: the entries that are read.
        reader: of images: ``cnn`` (Nature's), ``impala``, ``minatar``, ``mlp`` (flattened pixels) or
            ``auto``: Nature's if they are large enough, else ``minatar``.
        features: units of the linear layer over convolutions; ``None``: as published.
        channels: of the first convolution; the others scale with it; ``None``: as published.
        scale: of images: ``bounds`` scales each channel's bounds to 0 and 1, and leaves channels without
            bounds; ``bytes``, for old runs, does so for integers only. Both divide uint8 by the greatest
            value.
        **entries: a reader for an entry by name, in place of ``reader``.

    Raises:
        UserError: for a reader that does not fit an entry, or a missing entry.
    """
    spec = env.observation_spec
    require_entries(spec, in_keys)
    names = ["_".join(key) if isinstance(key, tuple) else key for key in in_keys]
    images = [name for name, key in zip(names, in_keys, strict=True) if is_image(spec, key)]
    check_readers(reader, entries, names, images)
    if not images:
        for key, value in (("features", features), ("channels", channels)):
            if value is not None:
                problem = f"it is for images, and {', '.join(names)} has none"
                raise UserError(f"encoder.{key}={value}: {problem}. Leave it out.")
        return None
    networks = {}
    for name, key in zip(names, in_keys, strict=True):
        shape = spec[key].shape[spec.ndim :]
        kind = entries.get(name, reader) if name in images else "vector"
        key_name = f"encoder.{name}" if name in entries else "encoder"
        networks[name] = make_reader(
            key_name, spec[key], shape, kind, scale, features=features, first=channels
        )
    return TensorDictModule(EntryEncoders(networks), in_keys=[*in_keys], out_keys=["features"])


def check_readers(
    reader: str, entries: Mapping[str, str], names: Sequence[str], images: Sequence[str]
) -> None:
    """Refuses readers that do not fit the entries ``names``, of which ``images`` are images.

    Raises:
        UserError: naming the reader.
    """
    if unknown := sorted(entries.keys() - {*names}):
        raise UserError(
            f"encoder.{unknown[0]}={entries[unknown[0]]}: no such entry. Entries are {', '.join(names)}."
        )
    if reader not in ("auto", "mlp") and not images:
        raise UserError(
            f"encoder={reader}: it is for images, and {', '.join(names)} has none. Write encoder=auto."
        )
    for name in (name for name in entries if entries[name] in CONVOLUTIONS and name not in images):
        raise UserError(f"encoder.{name}={entries[name]}: {name} is a vector, not an image. Write mlp.")


def make_reader(
    key_name: str, spec: TensorSpec, shape: Sequence[int], kind: str, scale: Scale, **widths: int | None
) -> nn.Module:
    """The network that reads an entry ``[..., *shape]``.

    Args:
        key_name: the key that chose the reader, for messages.
        spec: of the entry.
        shape: without batch dimensions.
        kind: a reader, or ``vector``.
        scale: see :func:`encoder`.
        **widths: numbers of units that differ from the published ones.

    Raises:
        UserError: for an image too small for the strides.
    """
    if kind == "vector":
        return nn.Identity()
    channels, *sides = shape
    if kind == "auto":
        kind = "cnn" if min(sides) >= MIN_CNN_SIDE else "minatar"
    if kind == "cnn" and min(sides) < MIN_CNN_SIDE:
        size = " x ".join(map(str, sides))
        raise UserError(
            f"{key_name}=cnn: images of {size} are below {MIN_CNN_SIDE} x {MIN_CNN_SIDE}, the least for its "
            "strides. Write minatar or impala."
        )
    kwargs = {name: width for name, width in widths.items() if width}
    net = CONVOLUTIONS[kind](channels, **kwargs) if kind in CONVOLUTIONS else nn.Flatten()
    low, span = image_scaling(spec, shape, scale)
    return ImageEncoder(net, low, span, channels_last=kind in ("cnn", "impala"))


def image_scaling(
    spec: TensorSpec, shape: Sequence[int], scale: Scale
) -> tuple[float | Tensor | None, float | Tensor | None]:
    """The offset that is subtracted from pixels, and the divisor after that.

    Args:
        spec: of the image, with its bounds.
        shape: ``[C, H, W]``.
        scale: see :func:`encoder`.

    Returns:
        For each ``None``, one number, or ``[C, 1, 1]`` if the bounds of channels differ.
    """
    if spec.dtype == torch.uint8 or (scale == "bytes" and not spec.dtype.is_floating_point):
        return None, float(spec.space.high.max())
    if scale == "bytes":
        return None, None
    low = spec.space.low.reshape(-1, *shape)[0].flatten(1).amin(1).double()
    span = spec.space.high.reshape(-1, *shape)[0].flatten(1).amax(1).double() - low
    is_bounded = span < UNBOUNDED
    if not is_bounded.all():
        warn_once(
            f"encoder.scale={scale}: an image without bounds is not scaled. If its values are not about 0 to "
            "1, give its space bounds, or scale it in a wrapper."
        )
    low = torch.where(is_bounded, low, 0.0).float()
    span = torch.where(is_bounded & (span > 0), span, 1.0).float()
    if len({*low.tolist()}) > 1 or len({*span.tolist()}) > 1:
        return low[:, None, None], span[:, None, None]
    return low[0].item() or None, None if span[0] == 1 else span[0].item()
