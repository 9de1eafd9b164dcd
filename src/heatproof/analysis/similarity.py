"""Similarity of two networks: confidence, maps and channels (Hesse et al. 2024, Sec. 4.1)."""

from __future__ import annotations

import numpy as np

from heatproof.tensor.scores import HeadName


def softmax_gaps(
    a: np.ndarray,
    b: np.ndarray,
    labels: np.ndarray,
    heads: tuple[HeadName, HeadName] = ("softmax", "softmax"),
) -> np.ndarray:
    """Compute the absolute differences of the label's probability.

    Args:
        a: Logits of one network, ``(N, K)``.
        b: Logits of the other network, ``(N, K)``.
        labels: ``(N,)``.
        heads: The heads of the two networks.

    Returns:
        Differences ``(N,)``.
    """
    return np.abs(_probability(a, labels, heads[0]) - _probability(b, labels, heads[1]))


def _probability(logits: np.ndarray, labels: np.ndarray, head: HeadName) -> np.ndarray:
    if head != "softmax":
        from scipy.special import expit  # slow to import

        return expit(logits[np.arange(len(labels)), labels].astype(float))
    powers = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    return powers[np.arange(len(labels)), labels] / powers.sum(1)


def stretched(maps: np.ndarray) -> np.ndarray:  # (N, h, w) -> same
    """Rescale each map to [0, 1]; nan for maps that are constant or not finite."""
    maps = maps.astype(float)
    low = maps.min((1, 2), keepdims=True)
    high = maps.max((1, 2), keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(high > low, (maps - low) / (high - low), np.nan)


def map_gaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (N, H, W), (N, H, W) -> (N,)
    """Compute the mean absolute difference over the pixels."""
    return np.abs(a - b).mean((1, 2))


def top(peaks: np.ndarray, count: int) -> np.ndarray:  # (N, C) -> (C, count)
    """Return the samples with the highest activation of each channel, highest first."""
    return np.argsort(-peaks, axis=0, kind="stable")[:count].T


def shared(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (C, k), (C, k) -> (C,)
    """Count the samples that two networks have in common, per channel."""
    return (a[:, :, None] == b[:, None, :]).any(2).sum(1)
