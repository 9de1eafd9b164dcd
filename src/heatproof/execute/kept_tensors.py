"""The tensors of a task that a run stores: logits, images, maps, shared results and curves."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from heatproof.models.channel_peaks import channel_peaks
from heatproof.protocols.base import SAMPLES_WITH_PICTURES, Shared
from heatproof.runs.format import (
    CHANNEL_PEAKS,
    IMAGES,
    LOGITS,
    BlockKey,
    TensorKey,
)

PICTURE_TENSOR = "picture"  # what a protocol calls a shared tensor that is kept for few samples


class KeptTensors:
    """Collects the tensors of a task, block by block of its samples.

    Small tensors are kept for all samples, images and maps for the first ones. Positions of samples
    are counted among those of the task that can be read.

    Args:
        keep_maps: For how many samples of the task images and maps are kept.
        keep_pictures: For how many samples protocols' pictures are kept.

    Attributes:
        blocks: The tensors of each block.
    """

    def __init__(self, keep_maps: int, keep_pictures: int):
        self.keep_maps = keep_maps
        self.keep_pictures = keep_pictures
        self.blocks: dict[BlockKey, Tensor] = {}

    def has_clean(self, start: int) -> bool:
        """Return whether the batch that starts at a position is there."""
        return BlockKey(start, LOGITS) in self.blocks

    def add_clean(
        self, start: int, logits: Tensor, images: Tensor, features: Tensor | None
    ) -> None:
        """Add what the network makes of the images of a batch.

        Args:
            start: Position of the first image.
            logits: Logits ``(B, K)``.
            images: Pixels in [0, 1], ``(B, C, H, W)``.
            features: Activations ``(B, C, h, w)`` of the last spatial layer; None if there is none.
        """
        if features is not None:
            self._add(start, CHANNEL_PEAKS, channel_peaks(features))
        self._add(start, IMAGES, (images * 255).round().clamp(0, 255).byte())
        self._add(start, LOGITS, logits)

    def add_map(self, start: int, method: str, maps: Tensor) -> None:
        """Add maps ``(B, h, w)`` in half precision, scaled so that small values do not vanish.

        If protocols explain different classes, the maps of the first one in the spec are kept.
        """
        if BlockKey(start, TensorKey.map(method)) in self.blocks:
            return
        maps = maps[: max(0, self.keep_maps - start)]
        scale = maps.abs().flatten(1).amax(1).nan_to_num(1.0, 1.0)
        scale = torch.where(scale > 0, scale, 1.0)
        scaled = (maps / scale[:, None, None]).half()
        self._add(start, TensorKey.map_scale(method), scale)
        self._add(start, TensorKey.map(method), scaled)

    def add_shared(self, start: int, protocol: str, shared: Shared) -> None:
        """Add what a protocol has computed for all methods."""
        for name, values in shared.items():
            values = values if name == PICTURE_TENSOR else values.float()
            self._add(start, TensorKey.shared(protocol, name), values)

    def add_curves(
        self, start: int, protocol: str, method: str, curves: Mapping[str, Tensor]
    ) -> None:
        """Add curves ``(B, S)`` of a method."""
        for name, curve in curves.items():
            self._add(start, TensorKey.curve(protocol, method, name), curve)

    def finished(self, samples: int) -> dict[TensorKey, Tensor]:
        """Return the tensors that all blocks have; others are missing some samples.

        Args:
            samples: Number of samples of the task that can be read.
        """
        by_key: dict[TensorKey, list[Tensor]] = {}
        for block in sorted(self.blocks, key=lambda block: block.start):
            by_key.setdefault(block.tensor, []).append(self.blocks[block])
        tensors = {key: torch.cat(parts) for key, parts in by_key.items()}
        return {
            key: values
            for key, values in tensors.items()
            if len(values) == min(samples, self._limit(key))
        }

    def _limit(self, key: TensorKey) -> int:
        """Return for how many samples of the task a tensor is kept."""
        if key.kind in ("images", "map", "map_scale"):
            return self.keep_maps
        return self.keep_pictures if key.name == PICTURE_TENSOR else sys.maxsize

    def _add(self, start: int, key: TensorKey, values: Tensor) -> None:
        """Add the values of a block, as long as there are fewer samples than the limit."""
        values = values[: max(0, self._limit(key) - start)]
        self.blocks[BlockKey(start, key)] = values.cpu()


def kept_tensors(start: int, keep_maps: int) -> KeptTensors:
    """Return the collector of a task whose first sample has the index ``start``."""
    maps = max(0, keep_maps - start)
    return KeptTensors(maps, max(0, min(SAMPLES_WITH_PICTURES - start, maps)))
