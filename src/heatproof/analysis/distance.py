"""How far apart two curves are: can a metric tell the maps apart that it judges?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from scipy.spatial.distance import cdist

from heatproof.errors import HeatproofError


def hausdorff(a: np.ndarray, b: np.ndarray) -> float:  # (n, D), (m, D)
    """The largest distance from a point of one curve to the nearest point of the other; points that are not finite are left out."""
    known = [points[np.isfinite(points).all(1)] for points in (a, b)]
    if not all(len(points) for points in known):
        raise HeatproofError("a curve without a finite point has no distance to another")
    between = cdist(*known)
    return float(max(between.min(0).max(), between.min(1).max()))


def least_distance(curves: Sequence[np.ndarray]) -> float:
    """Between the two curves that are nearest to each other: near zero, a metric cannot tell all of them apart."""
    if len(curves) < 2:
        raise HeatproofError(f"a distance is between two curves; got {len(curves)}")
    return min(hausdorff(a, b) for a, b in combinations(curves, 2))
