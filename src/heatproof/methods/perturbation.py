"""Methods that remove parts of the image and measure the score: windows and random masks.

All of them call ``masked_scores``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.errors import HeatproofError
from heatproof.methods.base import method
from heatproof.models.model import Model
from heatproof.models.variants import variant_scores
from heatproof.models.views import seen_sides
from heatproof.tensor.batching import map_rows, rows
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import linear
from heatproof.tensor.scores import ScoreName

perturbation = partial(method, family="perturbation")

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Compat = Literal["xplique"] | None
Keep = Callable[[Tensor], Tensor]  # indices of masks (n,) -> what they keep, (n, H, W) in [0, 1]


def masked_scores(
    model: Model,
    x: Tensor,
    target: Tensor,
    count: int,
    keep: Keep,
    *,
    score: str,
    fill: Tensor | None = None,
    ids: Sequence[str] = (),
    name: str = "",
) -> Tensor:
    """Compute the score of every sample under every mask.

    Args:
        model: The model.
        x: Its input, ``(B, C, H, W)``.
        target: Class indices of shape ``(B,)``.
        count: The number of masks.
        keep: Returns what masks keep, by their indices.
        score: The name of the score.
        fill: What removed pixels become, ``(B, C, H, W)``; None makes them zero.
        ids: The ids of the samples.
        name: What the masks are, with all settings, so that the cells of a grid can share passes;
            empty: nothing is shared.

    Returns:
        Scores of shape ``(B, count)``, in double precision.
    """

    def masked(sample: Tensor, mask: Tensor) -> Tensor:
        kept = keep(mask)[:, None]
        points = x[sample].mul_(kept)
        if fill is not None:
            points += fill[sample].mul_(1 - kept)
        return points

    depends_on = [x] if fill is None else [x, fill]
    return variant_scores(
        model, target, count, masked, score=score, ids=ids, name=name, depends_on=depends_on
    ).double()


def clean_scores(
    model: Model,
    x: Tensor,
    target: Tensor,
    score: str,
    ids: Sequence[str] = (),
    name: str = "",
) -> Tensor:
    """Compute the scores ``(B,)`` of the samples as they are; ids and name as above."""

    def keep(mask: Tensor) -> Tensor:
        return x.new_ones(len(mask), 1, 1)

    return masked_scores(model, x, target, 1, keep, score=score, ids=ids, name=name)[:, 0]


def baseline_fill(
    model: Model,
    x: Tensor,
    baseline: str,
    rng: Rng,
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor | None:
    """Compute what removed pixels become with a baseline.

    Args:
        model: The model.
        x: Its input, ``(B, C, H, W)``.
        baseline: The baseline; at layers other than the input it must be zero.
        rng: The samples' noise.
        prepared: What the baseline has prepared, if it prepares.

    Returns:
        Images of the shape of x; None for zeros.

    Raises:
        HeatproofError: If the layer is not the input and the baseline not zero.
    """
    parsed = Baseline.parse(baseline)
    if parsed.label == "zero":
        return None
    if model.start_layer != "input":
        raise HeatproofError(
            f"at layer {model.start_layer} removed features become zero; "
            f"baseline={baseline} is for images"
        )
    return parsed.fill(x, model, rng, prepared=prepared)


# Occlusion


def _window(
    size: int | None, stride: int | None, of: int | None, side: int, at_input: bool
) -> tuple[int, int]:
    """Return the side of windows and their distance, both scaled if they are meant for ``of``."""
    size = size or (16 if at_input else 5)
    stride = stride or max(1, size // 2)
    if of is None:
        return size, stride
    return max(1, round(size * side / of)), max(1, round(stride * side / of))


def _occlusions(arguments: Mapping[str, Any]) -> tuple[int, int]:
    given = (arguments["size"], arguments["stride"], arguments["of"])
    height = arguments["height"]
    width = arguments["side"]
    size, stride = _window(*given, height, arguments["at_input"])
    down, along = (
        int(windows(side, size, stride, arguments["compat"])[:, seen].any(1).sum())
        for side, seen in zip((height, width), arguments["sees"](height, width), strict=True)
    )
    return down * along + 1, 0


@perturbation("occlusion", paper="Zeiler & Fergus 2014", cost=_occlusions, shares_passes=True)
def occlusion(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    size: Count | None = None,
    stride: Count | None = None,
    of: Count | None = None,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
    compat: Compat = None,
) -> Tensor:
    """The drop of the score where a window is removed, spread over the window.

    As in Rao et al. 2024, windows reach over the border, and a drop is divided by the number of
    pixels that were removed.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise, for the baseline.
        size: The side of the window; by default 16 px at the input and 5 at other layers.
        stride: The distance between windows; by default half the size.
        of: The height of the input that size and stride are meant for; at other heights they are
            scaled. By default they are in pixels.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
        compat: ``xplique`` takes whole windows only, and does not divide.
    """
    height, width = x.shape[2:]
    size, stride = _window(size, stride, of, height, model.start_layer == "input")
    if stride > size:
        raise HeatproofError(f"occlusion: stride={stride} leaves gaps between windows of {size} px")
    down, along = (windows(side, size, stride, compat).to(x) for side in (height, width))
    if down.all() or along.all():  # also where no whole window fits
        raise HeatproofError(
            f"occlusion: a window of {size} px covers all of {model.start_layer}, "
            f"{height}×{width}; give a smaller size"
        )

    def keep(window: Tensor) -> Tensor:
        return 1 - down[window // len(along), :, None] * along[window % len(along), None, :]

    fill = baseline_fill(model, x, baseline, rng, baseline_prepared)
    rows, columns = seen_sides(model, height, width)
    seen = torch.outer(down[:, rows].any(1), along[:, columns].any(1)).flatten().nonzero()[:, 0]
    seen = seen.cpu()
    name = f"occlusion {size} {stride} {compat}"
    without = masked_scores(
        model,
        x,
        target,
        len(seen),
        lambda window: keep(seen[window]),
        score=score,
        fill=fill,
        ids=rng.ids,
        name=name,
    )
    clean = clean_scores(model, x, target, score, rng.ids, f"clean, {name}")
    drops = torch.zeros(len(x), len(down) * len(along), dtype=torch.float64, device=x.device)
    drops[:, seen] = clean[:, None] - without
    drops = drops.reshape(len(x), len(down), len(along))
    if compat is None:
        drops = drops / torch.outer(down.sum(1), along.sum(1))
    down = down.double()
    along = along.double()
    return map_rows(lambda d: down.T @ d @ along, drops)


def windows(side: int, size: int, stride: int, compat: str | None = None) -> Tensor:
    """Compute which positions windows cover along one side.

    Odd windows are centred on multiples of the stride, even ones begin there.

    Args:
        side: The number of positions.
        size: The size of the window.
        stride: The distance between windows.
        compat: ``xplique`` takes whole windows only.

    Returns:
        One row per window, ``(n, side)`` of bool.
    """
    if compat == "xplique":
        starts = torch.arange(0, side - size + 1, stride)
    elif size % 2:
        starts = torch.arange(0, side + 1, stride) - size // 2
    else:
        starts = torch.arange((1 - size // stride) * stride, side, stride)
    ahead = torch.arange(side) - starts[:, None]
    covered = (ahead >= 0) & (ahead < size)
    return covered[covered.any(1)]


# RISE


@dataclass(frozen=True)
class SoftMasks:
    """Random grids, enlarged and cropped to masks; each mask is computed on demand."""

    grids: Tensor  # (N, s, s) of 0 and 1
    offsets: Tensor  # (N, 2): row and column of the crop
    down: Tensor  # (enlarged height, s)
    along: Tensor  # (enlarged width, s)
    size: tuple[int, int]

    @classmethod
    def from_grids(
        cls, grids: Tensor, offsets: Tensor, height: int, width: int, compat: str | None = None
    ) -> SoftMasks:
        """Make masks of a size from grids ``(N, s, s)`` and the offsets ``(N, 2)`` of the crops."""
        cells = grids.shape[-1]
        down, along = (
            linear(enlarged_side(side, cells, compat), cells, mirror=compat is None).to(grids)
            for side in (height, width)
        )
        return cls(grids, offsets, down, along, (height, width))

    @classmethod
    def draw(
        cls, rng: Rng, x: Tensor, masks: int, cells: int, p: float, compat: str | None
    ) -> SoftMasks:
        """Draw masks for images x, in whose grids a cell is kept with probability p."""
        height, width = x.shape[2:]
        grids = (rng.once("rise grids", (masks, cells, cells)) < p).to(x)
        room = torch.tensor(
            [_room(side, cells, compat) for side in (height, width)], device=rng.device
        )
        offsets = (rng.once("rise offsets", (masks, 2)) * room).long().to(x.device)
        return cls.from_grids(grids, offsets, height, width, compat)

    def __len__(self) -> int:
        return len(self.grids)

    def __call__(self, mask: Tensor) -> Tensor:  # (n,) -> (n, H, W)
        down, along = (
            side[self.offsets[mask, axis, None] + torch.arange(length, device=side.device)]
            for axis, (side, length) in enumerate(
                zip((self.down, self.along), self.size, strict=True)
            )
        )
        return down @ self.grids[mask] @ along.mT


def enlarged_side(side: int, cells: int, compat: str | None = None) -> int:
    """Return the side of an enlarged grid, before it is cropped."""
    return int(side * (1 + 1 / cells)) if compat == "xplique" else (cells + 1) * -(-side // cells)


def _room(side: int, cells: int, compat: str | None) -> int:
    """Return the number of positions that a crop can begin at."""
    if compat == "xplique":
        return enlarged_side(side, cells, compat) - side + 1
    return -(-side // cells)


def _masks(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return arguments["masks"], 0


@perturbation(
    "rise",
    paper="Petsiuk et al. 2018",
    signed=False,
    cost=_masks,
    shares_passes=True,
    stochastic=True,
)
def rise(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Count = 8,
    p: Fraction = 0.1,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "softmax",
    compat: Compat = None,
) -> Tensor:
    """Random soft masks, weighted by the score of what they keep; the same masks for all samples.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The noise that masks are drawn from.
        masks: The number of masks.
        cells: The number of cells along a side of a mask's grid.
        p: The probability that a cell is kept.
        baseline: What removed pixels become.
        baseline_prepared: What the baseline has prepared, if it prepares.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
        compat: ``xplique`` divides a pixel's sum by how much of it was kept, not by what is
            expected (masks · p), and enlarges the grid to ⌊H (1 + 1/cells)⌋. That library crops a
            whole batch alike; here every mask has its own crop.
    """
    drawn = SoftMasks.draw(rng, x, masks, cells, p, compat)
    fill = baseline_fill(model, x, baseline, rng, baseline_prepared)
    name = f"rise {masks} {cells} {p} {compat} {rng.seed}"
    return rise_maps(model, x, target, drawn, p, score, fill, compat, rng.ids, name)


@perturbation(
    "rise-u",
    paper="Hesse et al. 2024",
    signed=False,
    cost=_masks,
    shares_passes=True,
    stochastic=True,
)
def rise_u(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Count = 8,
    p: Fraction = 0.1,
    score: ScoreName = "softmax",
) -> Tensor:
    """RISE with removed pixels from one image of U(-1, 1) noise, the same for all samples."""
    noise = (2 * rng.once("rise-u", x.shape[1:]).to(x) - 1).expand_as(x)
    drawn = SoftMasks.draw(rng, x, masks, cells, p, None)
    name = f"rise {masks} {cells} {p} {None} {rng.seed}"
    return rise_maps(model, x, target, drawn, p, score, noise, None, rng.ids, name)


def rise_maps(
    model: Model,
    x: Tensor,
    target: Tensor,
    masks: SoftMasks,
    p: float,
    score: str,
    fill: Tensor | None,
    compat: str | None = None,
    ids: Sequence[str] = (),
    name: str = "",
) -> Tensor:
    """Compute Σ_i f(kept by M_i) M_i / (N p), of shape ``(B, H, W)``; see ``rise``."""
    scores = masked_scores(
        model, x, target, len(masks), masks, score=score, fill=fill, ids=ids, name=name
    )
    total = mask_sums(scores, masks, model.batch_size)
    if compat == "xplique":
        return total / mask_sums(torch.ones_like(scores[:1]), masks, model.batch_size)
    return total / (len(masks) * p)


def mask_sums(weights: Tensor, keep: Keep, size: int) -> Tensor:  # (B, N) -> (B, H, W)
    """Compute weighted sums of masks, a few at a time."""
    total = torch.zeros((), dtype=torch.float64, device=weights.device)
    for part in rows(torch.arange(weights.shape[1]), size):
        total = total + _weighted(weights[:, part], keep(part).double())
    return total


def _weighted(weights: Tensor, masks: Tensor) -> Tensor:  # (B, n), (n, H, W) -> (B, H, W)
    flat = masks.flatten(1)
    return map_rows(lambda w: w @ flat, weights).reshape(len(weights), *masks.shape[1:])
