"""Methods that remove parts of the image and watch the score: windows and random masks. `masked_scores` is the mechanism of them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from heatproof.tensor.batching import each, rows
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import linear
from heatproof.tensor.scores import ScoreName, score_function

perturbation = partial(method, family="perturbation")

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Compat = Literal["xplique"] | None
Keep = Callable[[Tensor], Tensor]  # numbers of masks (n,) -> what they keep, (n, H, W) in [0, 1]


def masked_scores(
    model: Model,
    x: Tensor,
    target: Tensor,
    count: int,
    keep: Keep,
    *,
    score: str,
    fill: Tensor | None = None,
) -> Tensor:  # (B, count) float64
    """The score of every sample under every mask. What is not kept comes from `fill`, (B, C, H, W); None: it becomes zero."""
    found = torch.empty(len(x), count, dtype=torch.float64, device=x.device)
    for sample, mask in model.passes.chunks(len(x), count):
        kept = keep(mask)[:, None]
        points = x[sample].mul_(kept)
        if fill is not None:
            points += fill[sample].mul_(1 - kept)
        found[sample, mask] = score_function(score)(model.logits(points), target[sample]).double()
    return found


def clean_scores(model: Model, x: Tensor, target: Tensor, score: str) -> Tensor:  # (B,) float64
    return score_function(score)(model.logits(x), target).double()


def fill_of(
    model: Model,
    x: Tensor,
    baseline: str,
    rng: Rng,
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor | None:
    painted = Baseline.parse(baseline)
    if painted.label == "zero":
        return None
    if model.start_layer != "input":
        raise HeatproofError(
            f"at layer {model.start_layer} removed features become zero; baseline={baseline} is for images"
        )
    return painted.fill(x, model, rng, prepared=prepared)


# Occlusion


def _window(size: int | None, stride: int | None, at_input: bool = True) -> tuple[int, int]:
    size = size or (16 if at_input else 5)
    return size, stride or max(1, size // 2)


def _occlusions(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return len(
        windows(
            arguments["side"], *_window(arguments["size"], arguments["stride"]), arguments["compat"]
        )
    ) ** 2 + 1, 0


@perturbation("occlusion", paper="Zeiler & Fergus 2014", cost=_occlusions)
def occlusion(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    size: Count | None = None,
    stride: Count | None = None,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "logit",
    compat: Compat = None,
) -> Tensor:
    """The drop of the score where a window is removed, spread over the window (16 px in steps of 8; 5 in steps of 2 at other layers).

    stride: half the size if not given. As Rao et al. 2024, windows stand over the border too, and a drop is divided by the pixels that were
    removed. `compat=xplique`: only whole windows, and nothing is divided.
    """
    size, stride = _window(size, stride, model.start_layer == "input")
    height, width = x.shape[2:]
    if stride > size:
        raise HeatproofError(f"occlusion: stride={stride} leaves gaps between windows of {size} px")
    down, along = (windows(side, size, stride, compat).to(x) for side in (height, width))
    if down.all() or along.all():  # also where no whole window fits
        raise HeatproofError(
            f"occlusion: a window of {size} px covers all of {model.start_layer}, {height}×{width}; give a smaller size"
        )

    def keep(window: Tensor) -> Tensor:
        return 1 - down[window // len(along), :, None] * along[window % len(along), None, :]

    seen = masked_scores(
        model,
        x,
        target,
        len(down) * len(along),
        keep,
        score=score,
        fill=fill_of(model, x, baseline, rng, baseline_prepared),
    )
    drops = (clean_scores(model, x, target, score)[:, None] - seen).reshape(
        len(x), len(down), len(along)
    )
    if compat is None:
        drops = drops / torch.outer(down.sum(1), along.sum(1))
    down, along = down.double(), along.double()
    return each(lambda d: down.T @ d @ along, drops)


def windows(
    side: int, size: int, stride: int, compat: str | None = None
) -> Tensor:  # (n, side) bool
    """Along one side, which places each window covers. Odd windows are centred on multiples of the stride, even ones begin there."""
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
    """Random grids, enlarged and cropped, each made when it is asked for."""

    grids: Tensor  # (N, s, s) of 0 and 1
    offsets: Tensor  # (N, 2): row and column of the crop
    down: Tensor  # (enlarged height, s)
    along: Tensor  # (enlarged width, s)
    size: tuple[int, int]

    @classmethod
    def of(
        cls, grids: Tensor, offsets: Tensor, height: int, width: int, compat: str | None = None
    ) -> SoftMasks:
        cells = grids.shape[-1]
        down, along = (
            linear(enlarged_side(side, cells, compat), cells, mirror=compat is None).to(grids)
            for side in (height, width)
        )
        return cls(grids, offsets, down, along, (height, width))

    @classmethod
    def drawn(
        cls, rng: Rng, x: Tensor, masks: int, cells: int, p: float, compat: str | None
    ) -> SoftMasks:
        height, width = x.shape[2:]
        grids = (rng.once("rise grids", (masks, cells, cells)) < p).to(x)
        room = torch.tensor(
            [_room(side, cells, compat) for side in (height, width)], device=rng.device
        )
        offsets = (rng.once("rise offsets", (masks, 2)) * room).long().to(x.device)
        return cls.of(grids, offsets, height, width, compat)

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
    return int(side * (1 + 1 / cells)) if compat == "xplique" else (cells + 1) * -(-side // cells)


def _room(side: int, cells: int, compat: str | None) -> int:
    """How many places a crop can begin at."""
    return (
        enlarged_side(side, cells, compat) - side + 1 if compat == "xplique" else -(-side // cells)
    )


def _masks(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return arguments["masks"], 0


@perturbation("rise", paper="Petsiuk et al. 2018", signed=False, cost=_masks)
def rise(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Count = 8,
    p: Share = 0.1,
    baseline: BaselineName = "zero",
    baseline_prepared: Mapping[str, Tensor] | None = None,
    score: ScoreName = "softmax",
    compat: Compat = None,
) -> Tensor:
    """Random soft masks, weighted by the score of what they keep; the same masks for all samples.

    `compat=xplique`: a pixel's sum is divided by how much of it was kept, not by what is expected (masks · p), and the grid is enlarged to
    ⌊H (1 + 1/cells)⌋; that library crops a whole batch alike, here every mask has a place of its own.
    """
    drawn = SoftMasks.drawn(rng, x, masks, cells, p, compat)
    return rise_maps(
        model,
        x,
        target,
        drawn,
        p,
        score,
        fill_of(model, x, baseline, rng, baseline_prepared),
        compat,
    )


@perturbation("rise-u", paper="Hesse et al. 2024", signed=False, cost=_masks)
def rise_u(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    masks: Count = 1000,
    cells: Count = 8,
    p: Share = 0.1,
    score: ScoreName = "softmax",
) -> Tensor:
    """RISE over one image of U(-1, 1) noise, the same for all samples."""
    noise = (2 * rng.once("rise-u", x.shape[1:]).to(x) - 1).expand_as(x)
    return rise_maps(
        model, x, target, SoftMasks.drawn(rng, x, masks, cells, p, None), p, score, noise
    )


def rise_maps(
    model: Model,
    x: Tensor,
    target: Tensor,
    masks: SoftMasks,
    p: float,
    score: str,
    fill: Tensor | None,
    compat: str | None = None,
) -> Tensor:
    """Σ_i f(kept by M_i) M_i / (N p)."""
    scores = masked_scores(model, x, target, len(masks), masks, score=score, fill=fill)
    total = mask_sums(scores, masks, model.batch_size)
    return total / (
        mask_sums(torch.ones_like(scores[:1]), masks, model.batch_size)
        if compat == "xplique"
        else len(masks) * p
    )


def mask_sums(weights: Tensor, keep: Keep, size: int) -> Tensor:  # (B, N) -> (B, H, W)
    """Sums of masks, a few at a time."""
    total = torch.zeros((), dtype=torch.float64, device=weights.device)
    for part in rows(torch.arange(weights.shape[1]), size):
        total = total + _weighted(weights[:, part], keep(part).double())
    return total


def _weighted(weights: Tensor, masks: Tensor) -> Tensor:  # (B, n), (n, H, W) -> (B, H, W)
    flat = masks.flatten(1)
    return each(lambda w: w @ flat, weights).reshape(len(weights), *masks.shape[1:])
