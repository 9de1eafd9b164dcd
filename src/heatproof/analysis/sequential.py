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
* `bet_evidence`: the capital of bets on values that have a lowest possible one, averaged over their
  sizes (Waudby-Smith and Ramdas 2024; Orabona and Jun 2024). It is exact whatever the distribution.

Evidence is the natural logarithm of the capital: a mean is refuted with an error of at most
``error`` where it has reached ``log(1 / error)``.
"""

from __future__ import annotations

import math

import numpy as np

SIZES = np.geomspace(2**-8, 1, 17)  # of bets: the fraction that the lowest value would lose
STEPS = 9  # of a bisection, which halves an interval
TINY = 1e-300
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


def bet_evidence(values: np.ndarray, lowest: np.ndarray) -> np.ndarray:  # (N, K), (K,) -> (K,)
    """Return the evidence that the mean of values is larger than zero.

    It is the capital of bets that stake the same fraction on every value, averaged over fractions.
    The order of the values does not matter.

    Args:
        values: Values ``(N, K)``.
        lowest: The lowest possible values, below zero.
    """
    shares = np.maximum(values / -lowest, -1)
    with np.errstate(divide="ignore"):  # what stakes everything may lose it
        capitals = np.stack([np.log1p(size * shares).sum(0) for size in SIZES])
    return np.asarray(np.logaddexp.reduce(capitals, 0) - math.log(len(SIZES)))


def bet_low(values: np.ndarray, lowest: np.ndarray, error: float) -> np.ndarray:  # (N, K), ... (K,)
    """Return lower ends of the mean of values.

    Args:
        values: Values ``(N, K)``.
        lowest: The lowest possible values.
        error: The error of a lower end.
    """
    low, high = np.array(lowest, dtype=float), values.mean(0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        refuted = bet_evidence(values - middle, np.minimum(lowest - middle, -TINY)) >= -math.log(
            error
        )
        low = np.where(refuted, middle, low)
        high = np.where(refuted, high, middle)
    return low
