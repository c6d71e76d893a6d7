"""Pictures of what a world model dreams beside what happened."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.image import AxesImage
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

OBSERVED = 5  # steps whose observations the model reads
MAX_STEPS = 45  # of a video
MAX_CURVES = 6  # numbers of vectors that have a curve
PANEL = 1.6  # inches
DPI = 80
FRAMES_PER_SECOND = 5


def draw_dream(actor: Any, episode: TensorDictBase) -> Iterator[np.ndarray]:
    """Video frames ``[height, width, 3]`` of ``uint8``, of even sides, for each step of an episode.

    The model reads the first five observations, and then only the episode's actions. Images are drawn as
    truth, dream and their difference, vectors as curves.

    Args:
        actor: has ``dream``, as :class:`hydrl.networks.world_model.DreamerActor`.
        episode: ``[time]``, from its beginning.
    """
    steps = episode.reshape(-1)[:MAX_STEPS].unsqueeze(1)
    truth, dream = (
        {key: entry[:, 0] for key, entry in side.items()} for side in actor.dream(steps, OBSERVED)
    )
    images = {key: (as_pictures(truth[key]), as_pictures(dream[key])) for key in truth if truth[key].ndim > 2}
    curves = [pair for key in truth if truth[key].ndim == 2 for pair in columns(key, truth[key], dream[key])]
    curves = curves[:MAX_CURVES]
    rows = [1.5] * len(images) + [1.0] * len(curves)
    figure = Figure(figsize=(4 * PANEL, PANEL * sum(rows) + 0.5), dpi=DPI, layout="constrained")
    canvas, title = FigureCanvasAgg(figure), figure.suptitle(" ", fontsize=9)
    grid = figure.add_gridspec(len(rows), 3, height_ratios=rows)
    updates = [
        update
        for row, pair in enumerate(images.values())
        for update in add_images(figure, grid[row, :], *pair)
    ]
    for row, curve in enumerate(curves, start=len(images)):
        updates.append(add_curves(figure.add_subplot(grid[row, :]), *curve))
    if curves:
        figure.axes[-len(curves)].legend(fontsize=7, loc="upper right")
    for step in range(len(steps)):
        title.set_text(f"step {step}: {'observed' if step < OBSERVED else 'dreamed'}")
        for update in updates:
            update(step)
        canvas.draw()
        figure.set_layout_engine("none")  # it takes as long as all else, and stays as it is
        frame = np.asarray(canvas.buffer_rgba())[..., :3]
        yield np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])


def as_pictures(entry: Tensor) -> np.ndarray:
    """Images ``[time, C, H, W]`` from 0 to 1 as colours, or as the brightest of other channels than three."""
    pixels = entry.clamp(0, 1).cpu().numpy()
    return np.moveaxis(pixels, 1, -1) if pixels.shape[1] == 3 else pixels.max(1)


def columns(key: NestedKey, truth: Tensor, dream: Tensor) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name, truth and dream of every number of a vector entry, ``[time]`` each."""
    for index in range(truth.shape[-1]):
        yield f"{key}[{index}]", truth[:, index].cpu().numpy(), dream[:, index].cpu().numpy()


def add_images(
    figure: Figure, place: SubplotSpec, truth: np.ndarray, dream: np.ndarray
) -> Iterator[Callable[[int], None]]:
    """Adds three images, ``[time, H, W]`` or ``[time, H, W, 3]``, and yields what moves them to a step."""
    pictures = {"truth": truth, "dream": dream, "difference": np.abs(truth - dream)}
    cells = place.subgridspec(1, 3)
    for column, (name, picture) in enumerate(pictures.items()):
        axes = figure.add_subplot(cells[0, column])
        axes.set_title(name, fontsize=8)
        axes.set_axis_off()
        image = axes.imshow(picture[0], cmap="gray", vmin=0, vmax=1)
        yield partial(show, image, picture)


def show(image: AxesImage, picture: np.ndarray, step: int) -> None:
    """Moves an image to a step."""
    image.set_data(picture[step])


def add_curves(axes: Axes, name: str, truth: np.ndarray, dream: np.ndarray) -> Callable[[int], None]:
    """Adds a number's two curves, ``[time]``, and returns what moves them to a step."""
    (happened,) = axes.plot([], [], color="black", label="truth")
    (dreamed,) = axes.plot([], [], color="tab:orange", linestyle="--", label="dream")
    axes.axvline(OBSERVED - 0.5, color="gray", linewidth=0.8)
    low, high = min(truth.min(), dream.min()), max(truth.max(), dream.max())
    margin = 0.05 * (high - low) + 1e-3
    axes.set(xlim=(0, max(len(truth) - 1, 1)), ylim=(low - margin, high + margin))
    axes.set_ylabel(name, fontsize=7)
    axes.tick_params(labelsize=7)

    def update(step: int) -> None:
        for line, values in ((happened, truth), (dreamed, dream)):
            line.set_data(np.arange(step + 1), values[: step + 1])

    return update
