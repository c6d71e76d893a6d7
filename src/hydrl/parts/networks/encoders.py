"""Encoders: what reads observation entries, each by its kind, and joins what it makes of them.

A vector is read as it is; a picture by convolutions, of which these have been published.
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
from hydrl.parts.networks.sharing import Shared
from hydrl.parts.specs import is_picture, require_entries

Reader = Literal["auto", "mlp", "cnn", "impala", "minatar"]
LARGE = 36  # pixels of a side, the least that Nature's strides leave something of


class Features(Shared):
    """What an encoder makes of observations, ``features``."""

    made = "features"


class Readers(nn.Module):
    """A reader for each of several entries, and what they make of them in a row.

    Args:
        readers: by their entries, in order.
    """

    def __init__(self, readers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.readers = nn.ModuleDict(readers)

    def forward(self, *entries: Tensor) -> Tensor:
        """Entries ``[..., *shape]``, each of its own shape, to ``[..., size]``."""
        read = [reader(each) for reader, each in zip(self.readers.values(), entries, strict=True)]
        return read[0] if len(read) == 1 else torch.cat(read, -1)


class Picture(nn.Module):
    """Reads pictures by a network of ``[batch, C, H, W]``, whatever dimensions lie before these.

    Args:
        net: gives ``[batch, size]``.
        high: the greatest number of a pixel of whole numbers, by which they are divided; ``None`` for floats.
        channels_last: whether on a CPU the channels of a pixel are put side by side, and convolutions go on
            so: several in a row then take less time, one alone takes more.
    """

    def __init__(self, net: nn.Module, high: float | None, *, channels_last: bool = False) -> None:
        super().__init__()
        self.net, self.high, self.channels_last = net, high, channels_last

    def forward(self, pixels: Tensor) -> Tensor:
        """Pictures ``[..., C, H, W]`` to ``[..., size]``."""
        flat = pixels.reshape(-1, *pixels.shape[-3:])
        flat = flat if self.high is None else flat.float() / self.high
        if self.channels_last and flat.device.type == "cpu":
            # As contiguous(memory_format=torch.channels_last), which vmap does not know.
            flat = flat.movedim(-3, -1).contiguous().movedim(-1, -3)
        return self.net(flat).reshape(*pixels.shape[:-3], -1)


class Residual(nn.Sequential):
    """Two convolutions, whose output is added to what they read (He et al. 2016)."""

    def __init__(self, channels: int) -> None:
        layers = [(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)]
        super().__init__(*(each for pair in layers for each in pair))

    def forward(self, pixels: Tensor) -> Tensor:
        """Of the same shape."""
        return pixels + super().forward(pixels)


def cnn(channels: int, features: int | None = 512, first: int = 32) -> nn.Sequential:
    """Nature's three convolutions (Mnih et al. 2015), for pictures of 36 x 36 and more."""
    convolutions = ConvNet(
        in_features=channels,
        num_cells=[first, 2 * first, 2 * first],
        kernel_sizes=[8, 4, 3],
        strides=[4, 2, 1],
        activation_class=nn.ReLU,
    )
    return joined(convolutions, features)


def impala(channels: int, features: int | None = 256, first: int = 16) -> nn.Sequential:
    """Espeholt et al. 2018: three sections that halve the picture, of two residual blocks each."""
    widths, layers = [first, 2 * first, 2 * first], list[nn.Module]()
    for into, out in zip([channels, *widths], widths, strict=False):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(out), Residual(out)]
    return joined(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()), features)


def minatar(channels: int, features: int | None = 128, first: int = 16) -> nn.Sequential:
    """One convolution of 16 (Young and Tian 2019), for small pictures."""
    convolution = ConvNet(
        in_features=channels, num_cells=[first], kernel_sizes=[3], strides=[1], activation_class=nn.ReLU
    )
    return joined(convolution, features)


def joined(convolutions: nn.Sequential, features: int | None) -> nn.Sequential:
    """Convolutions, and a layer over all that they give; ``None`` has no such layer."""
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
    features: int | None = None,
    channels: int | None = None,
    **entries: Reader,
) -> TensorDictModuleBase | None:
    """A reader for each entry; ``None`` where all are vectors, which hidden layers read as they are.

    Args:
        env: shows the entries.
        in_keys: which of them are read.
        reader: of pictures: ``cnn`` (Nature's), ``impala``, ``minatar``, ``mlp``, which takes their pixels in
            a row, or ``auto``: Nature's where they are large enough, else ``minatar``.
        features: units of the layer over convolutions, where not as published.
        channels: of the first convolution, to which the others keep their proportion, likewise.
        **entries: a reader for an entry by its name, another than ``reader``.

    Raises:
        UserError: for a reader that does not fit an entry, or an entry that is not there.
    """
    spec = env.observation_spec
    require_entries(spec, in_keys)
    names = ["_".join(key) if isinstance(key, tuple) else key for key in in_keys]
    pictures = [name for name, key in zip(names, in_keys, strict=True) if is_picture(spec, key)]
    if unknown := sorted(entries.keys() - {*names}):
        raise UserError(f"encoder.{unknown[0]}={entries[unknown[0]]}: entries are {', '.join(names)}")
    if reader not in ("auto", "mlp") and not pictures:
        raise UserError(f"encoder={reader} reads pictures, and there are none in {', '.join(names)}")
    for name in (name for name in entries if entries[name] in CONVOLUTIONS and name not in pictures):
        raise UserError(f"encoder.{name}={entries[name]} reads pictures, and {name} is a vector; use mlp")
    if not pictures:
        for key, value in (("features", features), ("channels", channels)):
            if value is not None:
                line = f"encoder.{key}={value} is of pictures"
                raise UserError(f"{line}, and there are none in {', '.join(names)}")
        return None
    made = {}
    for name, key in zip(names, in_keys, strict=True):
        shape = spec[key].shape[spec.ndim :]
        chosen = entries.get(name, reader) if name in pictures else "vector"
        said = f"encoder.{name}" if name in entries else "encoder"
        made[name] = reader_of(said, spec[key], shape, chosen, features=features, first=channels)
    return TensorDictModule(Readers(made), in_keys=[*in_keys], out_keys=["features"])


def reader_of(
    said: str, spec: TensorSpec, shape: Sequence[int], chosen: str, **widths: int | None
) -> nn.Module:
    """What reads an entry ``[..., *shape]``, as ``said`` chose it, of the ``widths`` that are not published.

    Raises:
        UserError: for a picture of which strides leave nothing.
    """
    if chosen == "vector":
        return nn.Identity()
    channels, *sides = shape
    if chosen == "auto":
        chosen = "cnn" if min(sides) >= LARGE else "minatar"
    if chosen == "cnn" and min(sides) < LARGE:
        size = " x ".join(map(str, sides))
        raise UserError(
            f"{said}=cnn: its strides leave nothing of pictures of {size}, {LARGE} x {LARGE} is the "
            "least; use minatar or impala"
        )
    given = {name: each for name, each in widths.items() if each}
    net = CONVOLUTIONS[chosen](channels, **given) if chosen in CONVOLUTIONS else nn.Flatten()
    high = None if spec.dtype.is_floating_point else float(spec.space.high.max())
    return Picture(net, high, channels_last=chosen in ("cnn", "impala"))
