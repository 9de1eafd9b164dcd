"""Images that come up again: two maps may remove the same pixels of a sample.

``x|abs`` is ``x`` where nothing is negative, XGrad-CAM behind a global pooling is Grad-CAM up to
rounding, and the pixels above two thresholds may be the same. Such images are run once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from heatproof.tensor.noise import generator

MOST_OUTPUT_BYTES = 2**28  # for a batch of samples
KEY_BITS_PER_PIXEL = 40  # sums of four million pixels fit into 64 bits

Row = tuple[Tensor, Tensor]  # logits (K,) and embedding (D,) of one image


class KnownOutputs:
    """Outputs of a network for images without some pixels, by what identifies each image.

    The oldest outputs are forgotten where they would take more than ``limit`` bytes.
    """

    def __init__(self, limit: int = MOST_OUTPUT_BYTES):
        self._limit = limit
        self._bytes = 0
        self._rows: dict[Hashable, Row] = {}

    def complete(
        self, images: Sequence[Hashable], run: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of images, running each that is not known, once.

        Args:
            images: What identifies each of n images.
            run: Maps the numbers ``(m,)`` of some images to logits ``(m, K)`` and embeddings
                ``(m, D)``.

        Returns:
            Logits ``(n, K)`` and embeddings ``(n, D)``.
        """
        found = {image: self._rows[image] for image in set(images) if image in self._rows}
        new: dict[Hashable, int] = {}
        for number, image in enumerate(images):
            if image not in found:
                new.setdefault(image, number)
        if new:
            outputs = run(torch.tensor(list(new.values())))
            self._keep(dict(zip(new, zip(*outputs, strict=True), strict=True)), found)
            if len(new) == len(images):
                return outputs
        logits, embedding = zip(*(found[image] for image in images), strict=True)
        return torch.stack(logits), torch.stack(embedding)

    def _keep(self, new: Mapping[Hashable, Row], found: dict[Hashable, Row]) -> None:
        """Add rows to what is known, and to what was found."""
        found.update(new)
        self._rows.update(new)
        self._bytes += sum(map(_size, new.values()))
        while self._bytes > self._limit:
            self._bytes -= _size(self._rows.pop(next(iter(self._rows))))


def _size(row: Row) -> int:
    return sum(part.numel() * part.element_size() for part in row)


def removed_pixels(ranks: Tensor, bounds: Tensor, below: bool) -> list[list[tuple[int, ...]]]:
    """Return what identifies the removed pixels of each sample at each step.

    Every pixel has two random numbers, and a set of pixels the sums of these: the sums of all steps
    follow from one pass over the ranks. That two of a million sets are taken for each other has a
    probability below 1e-12.

    Args:
        ranks: Rank of every pixel, ``(B, H, W)``; every rank occurs once.
        bounds: Ranks that separate removed from kept pixels, ``(B, S)``.
        below: Whether the pixels below the bound are removed, or the others.

    Returns:
        For each sample and step, the number of pixels and the two sums.
    """
    flat = ranks.flatten(1)
    pixels = flat.shape[1]
    keys = _pixel_keys(pixels).to(ranks.device)[:, None].expand(-1, len(flat), -1)
    by_rank = torch.empty_like(keys).scatter_(2, flat.expand_as(keys), keys)
    sums = torch.nn.functional.pad(by_rank.cumsum(2), (1, 0))
    removed = sums.gather(2, bounds.expand(2, *bounds.shape))
    counts = bounds
    if not below:
        removed = sums[:, :, -1:] - removed
        counts = pixels - bounds
    stacked = torch.cat([counts[None], removed]).permute(1, 2, 0).tolist()
    return [[tuple(step) for step in steps] for steps in stacked]


@lru_cache(4)
def _pixel_keys(pixels: int) -> Tensor:  # (2, pixels)
    draws = generator(0, "pixel keys").integers(0, 2**KEY_BITS_PER_PIXEL, (2, pixels))
    return torch.from_numpy(draws)
