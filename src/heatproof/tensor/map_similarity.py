"""How similar two maps of an image are: rank correlation or structural similarity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from heatproof.tensor.rank import centred_ranks, correlation

Similarity = Literal["spearman", "ssim"]
Normalization = Literal["max", "moment"]
WINDOW = 7  # pixels along a side
LUMINANCE, CONTRAST = 0.01, 0.03  # K1 and K2 of Wang et al. 2004


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Compute the structural similarity of each pair of maps (Wang et al. 2004).

    Windows are squares of 7 px without weights, variances are those of samples, and the range of
    the values is that of both maps together.

    Args:
        a: ``(B, H, W)``, at least 7 px high and wide.
        b: ``(B, H, W)``.

    Returns:
        Similarities ``(B,)`` of float64; nan where both maps have the same single value.
    """
    x, y = a.double(), b.double()
    both = torch.stack([x, y], 1).flatten(1)
    span = both.amax(1) - both.amin(1)
    c1, c2 = (((k * span) ** 2)[:, None, None] for k in (LUMINANCE, CONTRAST))

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values[:, None], WINDOW, 1)[:, 0]

    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    mean_x, mean_y = mean(x), mean(y)
    variances = unbiased * (mean(x * x) - mean_x**2 + mean(y * y) - mean_y**2)
    covariance = unbiased * (mean(x * y) - mean_x * mean_y)
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return (luminance * (2 * covariance + c2) / (variances + c2)).mean((1, 2))


def normalized(maps: Tensor, by: Normalization | None) -> Tensor:
    """Divide maps ``(B, H, W)`` by their largest absolute value or their root mean square."""
    if by is None:
        return maps
    values = maps.double().flatten(1)
    scale = values.abs().amax(1) if by == "max" else values.square().mean(1).sqrt()
    return maps / torch.where(scale > 0, scale, 1).to(maps)[:, None, None]


def map_similarity(
    a: Tensor, b: Tensor, kind: Similarity = "spearman", normalization: Normalization | None = None
) -> Tensor:
    """Compute how similar each pair of maps is.

    Args:
        a: ``(B, H, W)``.
        b: ``(B, H, W)``.
        kind: Spearman's rank correlation of the pixels, or structural similarity.
        normalization: What maps are divided by first: their largest absolute value (``max``) or
            their root mean square (``moment``). A rank correlation does not depend on it.

    Returns:
        Similarities ``(B,)`` of float64; nan where they are not defined.
    """
    return similarity_to(a, kind, normalization)(b)


def similarity_to(
    maps: Tensor, kind: Similarity = "spearman", normalization: Normalization | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a function that compares further maps with these, which are ranked only once.

    Args:
        maps: ``(B, H, W)``.
        kind: As in `map_similarity`.
        normalization: As in `map_similarity`.
    """
    if kind == "spearman":
        ranks = centred_ranks(maps.flatten(1))
        return lambda other: correlation(ranks, centred_ranks(other.flatten(1)))
    own = normalized(maps, normalization)
    return lambda other: ssim(own, normalized(other, normalization))
