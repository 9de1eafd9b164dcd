"""How alike two networks are (Section 4.1 of Hesse et al. 2024): their confidence, their maps, and what excites their channels."""

from __future__ import annotations

import numpy as np


def softmax_gaps(
    a: np.ndarray, b: np.ndarray, labels: np.ndarray
) -> np.ndarray:  # (N, K), (N, K), (N,) -> (N,)
    """|difference| of the label's probability."""
    return np.abs(_probability(a, labels) - _probability(b, labels))


def _probability(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    return powers[np.arange(len(labels)), labels] / powers.sum(1)


def stretched(maps: np.ndarray) -> np.ndarray:  # (N, h, w) -> same
    """Each from 0 to 1; nan where a map is the same everywhere, or not finite."""
    maps = maps.astype(float)
    low, high = maps.min((1, 2), keepdims=True), maps.max((1, 2), keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(high > low, (maps - low) / (high - low), np.nan)


def map_gaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (N, H, W), (N, H, W) -> (N,)
    """Mean |difference| over the pixels."""
    return np.abs(a - b).mean((1, 2))


def top(peaks: np.ndarray, count: int) -> np.ndarray:  # (N, C) -> (C, count)
    """The samples that excite each channel most, strongest first; of equal ones the first."""
    return np.argsort(-peaks, axis=0, kind="stable")[:count].T


def shared(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (C, k), (C, k) -> (C,)
    """How many samples the two have in common, channel by channel."""
    return (a[:, :, None] == b[:, None, :]).any(2).sum(1)
