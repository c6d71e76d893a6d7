"""Encoders: one reader for each observation entry by its kind, and their outputs concatenated.

Vectors are read as they are; images by published convolutional networks.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase
from torchrl.modules import ConvNet

from hydrl.errors import UserError
from hydrl.library_setup import warn_once
from hydrl.limits import PositiveInt
from hydrl.networks.shared_encoder import SharedModule
from hydrl.specs import is_image, require_entries

Reader = Literal["auto", "mlp", "cnn", "impala", "minatar"]
Scale = Literal["bounds", "bytes"]
MIN_CNN_SIDE = 36  # pixels of a side, the least that Nature's strides leave something of
UNBOUNDED = 2.0**31  # bounds as far apart are none, but the ends of a kind of numbers


class Encoder(SharedModule):
    """Encoder of observations, which writes ``features``."""

    out_key = "features"


class EntryEncoders(nn.Module):
    """Reads several entries, each by its own network, and concatenates the outputs.

    Args:
        readers: networks by entry, in order.
    """

    def __init__(self, readers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.readers = nn.ModuleDict(readers)

    def forward(self, *entries: Tensor) -> Tensor:
        """Entries ``[..., *shape]``, each of its own shape, to ``[..., size]``."""
        read = [reader(entry) for reader, entry in zip(self.readers.values(), entries, strict=True)]
        return read[0] if len(read) == 1 else torch.cat(read, -1)


class ImageEncoder(nn.Module):
    """Reads images by a network of ``[batch, C, H, W]``, for any leading dimensions.

    Args:
        net: returns ``[batch, size]``.
        low: subtracted from pixels, ``[C, 1, 1]`` or a number; ``None`` for nothing.
        span: pixels are then divided by it, likewise.
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
            if isinstance(value, Tensor):  # follows the network to its device, and is in no checkpoint
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
    # The last activation changes places with what puts its numbers in a row. Before that a compiled update
    # stores where it is zero, and of truth values PyTorch 2.15 stores a million in 16 ms.
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
        in_keys: which of them are read.
        reader: of images: ``cnn`` (Nature's), ``impala``, ``minatar``, ``mlp`` (flattened pixels) or
            ``auto``: Nature's if they are large enough, else ``minatar``.
        features: units of the layer over convolutions; ``None``: as published.
        channels: of the first convolution; the others keep their proportion; ``None``: as published.
        scale: of images: ``bounds`` scales each channel's bounds to 0 and 1, and leaves channels without
            bounds; ``bytes``, of old runs, does so for integers alone. Both divide uint8 by the greatest
            value.
        **entries: a reader for an entry by name, in place of ``reader``.

    Raises:
        UserError: for a reader that does not fit an entry, or a missing entry.
    """
    spec = env.observation_spec
    require_entries(spec, in_keys)
    names = ["_".join(key) if isinstance(key, tuple) else key for key in in_keys]
    images = [name for name, key in zip(names, in_keys, strict=True) if is_image(spec, key)]
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
    if not images:
        for key, value in (("features", features), ("channels", channels)):
            if value is not None:
                none = f"it is for images, and {', '.join(names)} has none"
                raise UserError(f"encoder.{key}={value}: {none}. Leave it out.")
        return None
    networks = {}
    for name, key in zip(names, in_keys, strict=True):
        shape = spec[key].shape[spec.ndim :]
        chosen = entries.get(name, reader) if name in images else "vector"
        option = f"encoder.{name}" if name in entries else "encoder"
        networks[name] = make_reader(
            option, spec[key], shape, chosen, scale, features=features, first=channels
        )
    return TensorDictModule(EntryEncoders(networks), in_keys=[*in_keys], out_keys=["features"])


def make_reader(
    option: str, spec: TensorSpec, shape: Sequence[int], chosen: str, scale: Scale, **widths: int | None
) -> nn.Module:
    """The network that reads an entry ``[..., *shape]``.

    Args:
        option: the key that chose the reader, for messages.
        spec: of the entry.
        shape: without batch dimensions.
        chosen: a reader, or ``vector``.
        scale: see :func:`encoder`.
        **widths: that differ from the published ones.

    Raises:
        UserError: for an image too small for the strides.
    """
    if chosen == "vector":
        return nn.Identity()
    channels, *sides = shape
    if chosen == "auto":
        chosen = "cnn" if min(sides) >= MIN_CNN_SIDE else "minatar"
    if chosen == "cnn" and min(sides) < MIN_CNN_SIDE:
        size = " x ".join(map(str, sides))
        raise UserError(
            f"{option}=cnn: images of {size} are below {MIN_CNN_SIDE} x {MIN_CNN_SIDE}, the least for its "
            "strides. Write minatar or impala."
        )
    kwargs = {name: width for name, width in widths.items() if width}
    net = CONVOLUTIONS[chosen](channels, **kwargs) if chosen in CONVOLUTIONS else nn.Flatten()
    low, span = image_scaling(spec, shape, scale)
    return ImageEncoder(net, low, span, channels_last=chosen in ("cnn", "impala"))


def image_scaling(
    spec: TensorSpec, shape: Sequence[int], scale: Scale
) -> tuple[float | Tensor | None, float | Tensor | None]:
    """What is subtracted from an image's pixels, and what they are then divided by.

    Args:
        spec: of the image, with its bounds.
        shape: ``[C, H, W]``.
        scale: see :func:`encoder`.

    Returns:
        Each ``None`` for nothing, one number, or ``[C, 1, 1]`` where the bounds of channels differ.
    """
    if spec.dtype == torch.uint8 or (scale == "bytes" and not spec.dtype.is_floating_point):
        return None, float(spec.space.high.max())
    if scale == "bytes":
        return None, None
    low = spec.space.low.reshape(-1, *shape)[0].flatten(1).amin(1).double()
    span = spec.space.high.reshape(-1, *shape)[0].flatten(1).amax(1).double() - low
    known = span < UNBOUNDED
    if not known.all():
        warn_once(
            f"encoder.scale={scale}: an image without bounds is not scaled. If its values are not about 0 to "
            "1, give its space bounds, or scale it in a wrapper."
        )
    low = torch.where(known, low, 0.0).float()
    span = torch.where(known & (span > 0), span, 1.0).float()
    if len({*low.tolist()}) > 1 or len({*span.tolist()}) > 1:
        return low[:, None, None], span[:, None, None]
    return low[0].item() or None, None if span[0] == 1 else span[0].item()
