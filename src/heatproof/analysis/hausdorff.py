"""Distances between curves: can a metric distinguish the maps that it scores?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from heatproof.errors import HeatproofError


def hausdorff(a: np.ndarray, b: np.ndarray) -> float:  # (n, D), (m, D)
    """Compute the Hausdorff distance of two curves.

    It is the largest distance from a point of one curve to the nearest point of the other. Points
    that are not finite are left out.

    Raises:
        HeatproofError: If a curve has no finite point.
    """
    finite = [points[np.isfinite(points).all(1)] for points in (a, b)]
    if not all(len(points) for points in finite):
        raise HeatproofError("a curve without a finite point has no distance to another")
    from scipy.spatial.distance import cdist  # takes a second to import

    between = cdist(*finite)
    return float(max(between.min(0).max(), between.min(1).max()))


def least_distance(curves: Sequence[np.ndarray]) -> float:
    """Return the distance of the two nearest curves; near 0, the metric cannot distinguish them.

    Raises:
        HeatproofError: If there are fewer than two curves.
    """
    if len(curves) < 2:
        raise HeatproofError(f"a distance needs at least two curves; got {len(curves)}")
    return min(hausdorff(a, b) for a, b in combinations(curves, 2))
