"""Panels of the pictures of protocols, and the bird that they show."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

import heatproof as hp
import heatproof.functional as F
from heatproof.baselines import Baseline
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng

MODEL = "paperbirds/resnet"
ORANGE, BLUE, GREY = "#d84315", "#1565c0", "#777777"


class Bird:
    """The first bird of the test split, its network, and what the pictures need of both.

    Attributes:
        model: The network.
        x: The bird in the model's input space, ``(1, 3, H, W)``.
        target: Its class, ``(1,)``.
    """

    def __init__(self, count: int) -> None:
        self.model: Model = hp.load_model(MODEL, backend="eager")
        self.data = hp.load_data("paperbirds:test", self.model, limit=count)
        self.sample = self.data.load(0)
        self.x = self.model.normalize(self.sample.image[None])
        self.target = torch.tensor([self.sample.label])

    @cached_property
    def ig(self) -> Tensor:
        return self.explain("ig")

    @cached_property
    def gradcam(self) -> Tensor:
        return self.explain("gradcam")

    def explain(self, method: str, model: Model | None = None) -> Tensor:  # (1, H, W)
        network = model or self.model
        return hp.explain(network, self.x, self.target, method, ids=[self.sample.id])

    def without(self, removed: Tensor, baseline: str) -> Tensor:
        """Return the bird without some pixels ``(H, W)``, for display."""
        rng = Rng(0, [self.sample.id], self.x.device)
        remove = Baseline.parse(baseline).remover(self.x, self.model, rng, None)
        return self.model.denormalize(remove(torch.tensor([0]), removed[None]))[0]

    def part_of_order(self, map_: Tensor, fraction: float, side: str = "most") -> Tensor:
        """Return the mask of the most or least relevant pixels, ``(H, W)``."""
        ranks = F.removal_order(map_, [self.sample.id], 0)[0]
        bound = int(fraction * ranks.numel())
        return ranks < bound if side == "most" else ranks >= ranks.numel() - bound


Panel = Callable[[Axes], object]


def picture(image: Tensor, title: str) -> Panel:
    """Show an RGB image ``(3, H, W)``."""

    def panel(ax: Axes) -> None:
        ax.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
        ax.set_title(title)
        ax.axis("off")

    return panel


def heat(values: Tensor, title: str, cells: int = 0, numbers: Tensor | None = None) -> Panel:
    """Show a map ``(H, W)``, red where positive, with lines and a number per cell."""

    def panel(ax: Axes) -> None:
        limit = float(values.abs().max()) or 1.0
        ax.imshow(values.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set_title(title)
        ax.axis("off")
        size = values.shape[0] / (cells or 1)
        for k in range(1, cells):
            ax.axhline(k * size - 0.5, color=GREY, lw=0.6)
            ax.axvline(k * size - 0.5, color=GREY, lw=0.6)
        for k, number in enumerate([] if numbers is None else numbers.tolist()):
            row, column = divmod(k, cells)
            place = ((column + 0.5) * size - 0.5, (row + 0.5) * size - 0.5)
            ax.text(*place, f"{number:.2f}", ha="center", va="center", fontsize=7)

    return panel


def scatter(
    x: Tensor,
    y: Tensor,
    title: str,
    axes: tuple[str, str],
    names: list[str] | None = None,
    size: int = 14,
) -> Panel:
    def panel(ax: Axes) -> None:
        ax.scatter(x, y, s=size, color=ORANGE)
        for name, a, b in zip(names or [], x.tolist(), y.tolist(), strict=bool(names)):
            ax.annotate(name, (a, b), xytext=(3, 3), textcoords="offset points", fontsize=7)
        label(ax, title, axes)

    return panel


def curve(
    lines: Mapping[str, tuple[Any, Any]], title: str, axes: tuple[str, str], fill: bool = True
) -> Panel:
    """Draw curves, with the area below a single one, or between two."""

    def panel(ax: Axes) -> None:
        for (name, (x, y)), color in zip(lines.items(), (ORANGE, BLUE), strict=False):
            ax.plot(x, y, color=color, marker=".", ms=4, lw=1.2, label=name)
        (x, y), *others = lines.values()
        if fill:
            ax.fill_between(x, y, others[0][1] if others else 0, color=GREY, alpha=0.25, lw=0)
        if len(lines) > 1:
            ax.legend(fontsize=7, frameon=False)
        label(ax, title, axes)

    return panel


def label(ax: Axes, title: str, axes: tuple[str, str]) -> None:
    ax.set_title(title)
    ax.set_xlabel(axes[0], fontsize=8)
    ax.set_ylabel(axes[1], fontsize=8)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def draw(panels: list[Panel], out: Path, columns: int = 0) -> None:
    """Draw panels, by default in one row, with few colours so that the file stays small."""
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8, "svg.hashsalt": "heatproof"})
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    size = (2.1 * columns, (2.2 if rows == 1 else 2.5) * rows)  # titles have two lines in grids
    figure, grid = plt.subplots(rows, columns, figsize=size, dpi=110, squeeze=False)
    axes = list(grid.flat)
    for panel, ax in zip(panels, axes, strict=False):
        panel(ax)
        ax.set_box_aspect(1)
    for ax in axes[len(panels) :]:
        ax.axis("off")
    figure.tight_layout(w_pad=0.6)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    drawn = Image.open(buffer).convert("RGB")
    drawn.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
