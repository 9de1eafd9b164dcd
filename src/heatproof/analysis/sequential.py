"""Confidence sequences: intervals of a mean that hold for every number of images at once.

An ordinary 95 % interval holds for a number of images that is fixed beforehand. Looking after every
few images, and stopping when it is clear, makes it wrong more often. The intervals here may be
looked at as often as one likes: with a probability of 95 % all of them contain the mean, so that a
race can stop whenever it is decided. Two kinds are built on the same idea, a bet against a mean
that grows as long as the values speak against it, and that exceeds 1 / error with a probability of
at most the error if the mean is the true one (Ville 1939).

* `t_evidence`: a mixture over effect sizes of likelihood ratios that do not depend on the standard
  deviation (Lai 1976; Wang and Ramdas 2025). It is exact for normal values, and for others as the
  first look is later, as the asymptotic confidence sequences are that it agrees with in the limit
  (Waudby-Smith et al. 2021; Robbins 1970).
* `betting_evidence`: capital of bets whose size follows from the values before, for values between
  two bounds (Waudby-Smith and Ramdas 2024). It is exact whatever their distribution.

Evidence is the natural logarithm of the capital: a mean is refuted with an error of at most
``error`` where it has reached ``log(1 / error)``.
"""

from __future__ import annotations

import math

import numpy as np

TRUNCATED = 0.5  # of the capital, at most, may be lost by one value
STEPS = 40  # of a bisection, which halves an interval
SAME = 1e-12  # relative: a spread that is smaller is rounding


def mixture_scale(images: float, error: float) -> float:
    """Return the scale of the mixture whose intervals are narrowest at a number of images.

    It is the pseudo-count of `t_evidence`: the variance of effect sizes is its inverse (Howard et
    al. 2021, section 3.5; Waudby-Smith et al. 2021, appendix B.2).

    Args:
        images: The number of images.
        error: The error of the interval.
    """
    doubled = -2 * math.log(error)
    return images / (doubled + math.log(doubled + 1))


def t_evidence(
    count: np.ndarray, mean: np.ndarray, variance: np.ndarray, scale: np.ndarray | float
) -> np.ndarray:
    """Return the evidence that the mean of values is not zero, in either direction.

    Args:
        count: Number of values.
        mean: Their mean.
        variance: Their mean squared deviation from it.
        scale: What `mixture_scale` returns.
    """
    square = mean**2
    variance = np.where(variance > SAME * square, variance, 0.0)
    shrunk = scale / (count + scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (variance + square) / (variance + shrunk * square)
    ratio = np.where(square + variance > 0, ratio, 1.0)
    return np.asarray(0.5 * (np.log(shrunk) + count * np.log(ratio)))


def t_reach(
    count: np.ndarray, variance: np.ndarray, scale: np.ndarray | float, error: float
) -> np.ndarray:
    """Return how far the interval of a mean reaches to either side; infinity if values are few.

    Args:
        count: Number of values.
        variance: Their mean squared deviation from their mean.
        scale: What `mixture_scale` returns.
        error: The error of the interval.
    """
    shrunk = scale / (count + scale)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = np.exp((-2 * math.log(error) - np.log(shrunk)) / count)
        square = variance * (ratio - 1) / (1 - ratio * shrunk)
    return np.where(ratio * shrunk < 1, np.sqrt(np.maximum(square, 0)), np.inf)


def bets(values: np.ndarray, error: float) -> np.ndarray:  # (N, K) -> same
    """Return the sizes of bets on values in [0, 1], each from the values before it.

    They are those of the predictable plug-in of Waudby-Smith and Ramdas 2024, equation 26.
    """
    number = np.arange(1, len(values) + 1)[:, None]
    means = np.minimum((0.5 + np.cumsum(values, 0)) / (number + 1), 1)
    spread = (0.25 + np.cumsum((values - means) ** 2, 0)) / (number + 1)
    before = np.vstack([np.full((1, values.shape[1]), 0.25), spread[:-1]])
    sizes: np.ndarray = np.sqrt(2 * math.log(1 / error) / (number * np.log1p(number) * before))
    return sizes


def betting_evidence(
    values: np.ndarray, sizes: np.ndarray, mean: np.ndarray | float
) -> np.ndarray:  # (N, K) -> same
    """Return the evidence after every value that the mean of values in [0, 1] is larger.

    Args:
        values: Values ``(N, K)``.
        sizes: What `bets` returns.
        mean: The means that are bet against, ``(K,)`` or one for all.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        limited = np.minimum(sizes, TRUNCATED / np.asarray(mean))
        gains = limited * (values - mean)
    return np.cumsum(np.log1p(np.nan_to_num(gains, nan=0.0)), 0)


def betting_low(values: np.ndarray, error: float, ends: np.ndarray) -> np.ndarray:  # (N, K) -> …
    """Return lower ends of the mean of values in [0, 1]: one for each K and each of some counts.

    Args:
        values: Values ``(N, K)``.
        error: The error of the lower end.
        ends: Numbers of values ``(E,)``; the evidence of all smaller numbers counts as well.

    Returns:
        Lower ends ``(E, K)``.
    """
    sizes = bets(values, error)
    low = np.zeros((len(ends), values.shape[1]))
    for i, end in enumerate(ends):
        below = np.zeros(values.shape[1])
        above = np.ones(values.shape[1])
        for _ in range(STEPS):
            middle = (below + above) / 2
            evidence = betting_evidence(values[:end], sizes[:end], middle).max(0, initial=0.0)
            refuted = evidence >= math.log(1 / error)
            below = np.where(refuted, middle, below)
            above = np.where(refuted, above, middle)
        low[i] = below
    return low
