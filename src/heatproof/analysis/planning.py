"""Images that it takes to find a difference of methods, among all pairs of a setting.

A paired difference with the spread s over images has the standard error s / √n. It is found if it
is as many standard errors as the largest difference of M equal methods is by chance: the percentile
of the studentized range, which the tests of all pairs (`families`) have for many images. To be
found in four of five data sets, the true difference must be larger by the 80th percentile of the
normal distribution. The spread comes from a pilot, or is stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from heatproof.analysis.families import FEWEST_FOR_MID_P, LEVEL, POWER
from heatproof.analysis.intervals import GROUP
from heatproof.analysis.settings import SettingScores
from heatproof.errors import HeatproofError

MOST_FREEDOM = 1e6
MOST_ROUNDS = 5  # until the number of images, and the percentile for as many, hardly change


def check_difference(difference: float) -> None:
    """Check a difference of mean scores that is to be found; raises HeatproofError."""
    if not 0 < difference < math.inf:
        raise HeatproofError(
            f"{difference:g} is no difference to find; name one above 0, such as 0.05"
        )


def images_for(difference: float, spread: float, methods: int) -> float:
    """Return how many images show a true difference of two of several methods, in 4 of 5 data sets.

    Args:
        difference: The true difference of their means.
        spread: Standard deviation of their paired differences over images.
        methods: How many methods are compared in all pairs.

    Returns:
        The number of images, or of grids; infinity for a spread that is not known.
    """
    from scipy.special import ndtri, stdtrit  # slow to import

    if not math.isfinite(spread):
        return math.inf
    count = math.inf
    for _ in range(MOST_ROUNDS):
        critical = stdtrit(min(count, MOST_FREEDOM) - 1, 1 - _level_of_a_pair(methods) / 2)
        enough = ((critical + ndtri(POWER)) * spread / difference) ** 2
        count = max(enough, FEWEST_FOR_MID_P)
    return math.ceil(count)


@cache
def _level_of_a_pair(methods: int) -> float:
    """Return the level of each pair that keeps that of all pairs of equal methods at 5 %."""
    from scipy.special import ndtr
    from scipy.stats import studentized_range

    if methods < 3:
        return LEVEL
    critical = studentized_range.ppf(1 - LEVEL, methods, math.inf) / math.sqrt(2)
    return float(2 * ndtr(-critical))


def needed_images(
    settings: Sequence[SettingScores], difference: float, methods: int | None = None
) -> pd.DataFrame:
    """Return how many images show a difference under each setting of a run.

    Args:
        settings: The scores of the run.
        difference: The true difference that is to be found.
        methods: How many methods will be compared; by default those that the run ranks.

    Returns:
        One line per model, protocol, setting and baseline: ``methods``, ``n`` (images or grids of
        the run), ``typical`` and ``largest``, the spreads of paired differences of the median pair
        and of the one that varies most, and how many images show the difference for these:
        ``needed`` and ``needed_for_all``; nan where fewer than two methods are ranked.
    """
    lines = []
    for scores in settings:
        tests = scores.pairs
        count = methods or len(tests.methods)
        errors = tests.errors[np.triu_indices(len(tests.methods), 1)]
        spreads = errors[np.isfinite(errors)] * math.sqrt(tests.count)
        ends = (
            (float(np.median(spreads)), float(spreads.max())) if len(spreads) else (math.nan,) * 2
        )
        needed = [images_for(difference, s, count) if len(spreads) else math.nan for s in ends]
        lines.append((*scores.key, count, tests.count, *ends, *needed))
    names = ["methods", "n", "typical", "largest", "needed", "needed_for_all"]
    return pd.DataFrame(lines, columns=[*GROUP, *names])
