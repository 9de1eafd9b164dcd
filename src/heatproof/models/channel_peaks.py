"""The largest activations of some channels of a layer, by which a run shows what a network sees."""

from __future__ import annotations

from torch import Tensor

from heatproof.tensor.noise import generator

KEPT_CHANNELS = 6


def channel_peaks(features: Tensor) -> Tensor:  # (B, C, h, w) -> (B, KEPT_CHANNELS)
    """Return the largest activation of some channels (see `chosen_channels`)."""
    return features[:, chosen_channels(features.shape[1])].flatten(2).amax(2)


def chosen_channels(width: int) -> list[int]:
    """Choose channels of a layer at random, the same for all networks of that width."""
    chosen = generator(0, "channels", width).permutation(width)[:KEPT_CHANNELS]
    return sorted(chosen.tolist())
