"""Mean maps in bins of the score (AggAtt, Rao et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import BIN_EDGE_PERCENTILES, bin_slices

# Edges of the bins, for fewer and fewer maps: the paper's need 250.
COARSER = (BIN_EDGE_PERCENTILES, (0, 10, 50, 90, 100), (0, 50, 100), (0, 100))
FEWEST_IN_BIN = 5  # the mean of fewer maps shows the images rather than the method
MAPS_RESIZED_AT_ONCE = 64


def fills_bins(count: int, edges: tuple[float, ...]) -> bool:
    """Return whether each bin gets enough maps."""
    try:
        slices = bin_slices(count, edges)
    except HeatproofError:
        return False
    return all(part.stop - part.start >= FEWEST_IN_BIN for part in slices)


def mean_maps(maps: Iterable[Tensor], size: tuple[int, int], signed: bool) -> Tensor:
    """Compute the mean of maps at the size of the image, with few of them in memory at a time.

    Args:
        maps: Maps ``(h, w)`` at the resolution of their layer.
        size: Height and width of the mean.
        signed: Whether to average the maps as they are instead of their positive part.

    Returns:
        The mean map, of shape ``size``.
    """
    total = torch.zeros(size, dtype=torch.float64)
    count = 0
    remaining = iter(maps)
    while chunk := list(islice(remaining, MAPS_RESIZED_AT_ONCE)):
        large = resize(torch.stack(chunk), *size)
        total += (large if signed else large.clamp(min=0)).double().sum(0)
        count += len(chunk)
    return (total / count).float()
