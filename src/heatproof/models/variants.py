"""Scores of many variants of an image, which the evaluated cells of a grid share.

Methods that remove parts need forward passes alone, and their variants of a grid are the same
whichever of its cells is evaluated. With the scores of one cell those of the cells after it are
computed from the same logits, and kept until they are asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from heatproof.models.model import Model
from heatproof.models.views import logits_of_cells, shares_features, visible_cell

MOST_BYTES_AHEAD = 2**28  # of scores that are kept; the oldest are dropped
Variant = Callable[[Tensor, Tensor], Tensor]  # indices of samples and variants (n,) -> images
Place = tuple[int | None, int]  # the grid cell that the model sees, if it is one; and the class


class Ahead:
    """Scores that are computed before they are asked for.

    Args:
        targets: By sample, the places that are evaluated after it on the same grid.
    """

    def __init__(self, targets: Mapping[str, Sequence[Place]]):
        self._targets = targets
        self._most = max(map(len, targets.values()), default=0)
        self._scores: OrderedDict[tuple[bytes, Place], Tensor] = OrderedDict()
        self._bytes = 0

    def after(self, samples: Sequence[str]) -> list[Sequence[Place]]:
        """Return for each sample the places that are evaluated after it."""
        return [self._targets.get(sample, ()) for sample in samples]

    def is_first(self, sample: str) -> bool:
        """Return whether a sample's cell is the first of its grid that is evaluated."""
        return len(self._targets.get(sample, ())) == self._most

    def put(self, content: bytes, place: Place, scores: Tensor) -> None:
        """Keep the scores of an image's variants."""
        self._bytes += scores.nbytes - self._drop((content, place))
        self._scores[content, place] = scores
        while self._bytes > MOST_BYTES_AHEAD:
            self._bytes -= self._drop(next(iter(self._scores)))

    def take(self, wanted: Sequence[tuple[bytes, Place]]) -> list[Tensor] | None:
        """Return the scores of several images, or None if some are not there; forget them all."""
        found = [self._scores.get(key) for key in wanted]
        self._bytes -= sum(map(self._drop, wanted))
        return None if any(scores is None for scores in found) else found  # type: ignore[return-value]

    def _drop(self, key: tuple[bytes, Place]) -> int:
        scores = self._scores.pop(key, None)
        return 0 if scores is None else scores.nbytes


def variant_scores(
    model: Model,
    target: Tensor,
    count: int,
    variant: Variant,
    *,
    score: str,
    ids: Sequence[str] = (),
    name: str = "",
    depends_on: Sequence[Tensor] = (),
    from_image: bool = False,
) -> Tensor:
    """Compute the score of every variant of every sample.

    Args:
        model: The model.
        target: Class indices of shape ``(B,)``.
        count: The number of variants.
        variant: Returns variants, by the indices of their samples and their own.
        score: The name of the score.
        ids: The ids of the samples, whose grids may share passes.
        name: What the variants are, with all settings; empty: nothing is shared.
        depends_on: All that they are computed from, with a row for each sample.
        from_image: Whether variants are images also where the model starts at a later layer.

    Returns:
        Scores of shape ``(B, count)``.
    """
    score_of = model.score_function(score)
    samples = len(target)
    network = model.root if from_image else model
    own = visible_cell(network)
    ahead = network.ahead if name and shares_features(network) else None
    places: list[list[Place]] = [[(own, label)] for label in target.tolist()]
    contents: list[bytes] = []
    if ahead is not None:
        setting = repr((name, score, count, model.start, model.batch_size, model.backend))
        contents = [_digest(setting, depends_on, row) for row in range(samples)]
        found = ahead.take([(key, of[0]) for key, of in zip(contents, places, strict=True)])
        if found is not None:
            return torch.stack(found)
        after = ahead.after(ids)
        if len(set(map(len, after))) == 1:
            places = [[*of, *more] for of, more in zip(places, after, strict=True)]
    # All samples have the same cells; by cell, the classes of each sample.
    cells = [cell for cell, _ in places[0]] if samples else [own]
    classes = torch.tensor(
        [[label for _, label in of] for of in places], dtype=torch.long, device=target.device
    ).reshape(samples, len(cells))
    scores: list[Tensor] = []
    for sample, number in model.passes.chunks(samples, count):
        logits = logits_of_cells(network, variant(sample, number), cells)
        goals = classes[sample.to(classes.device)]
        scores.append(torch.stack([score_of(logits[i], goals[:, i]) for i in range(len(cells))], 1))
    of_places = torch.cat(scores).reshape(samples, count, len(cells))
    if ahead is not None:
        for row, (content, of) in enumerate(zip(contents, places, strict=True)):
            for i, place in enumerate(of[1:], 1):
                ahead.put(content, place, of_places[row, :, i].clone())
    return of_places[:, :, 0].contiguous()


def _digest(setting: str, tensors: Sequence[Tensor], row: int) -> bytes:
    """Hash what determines the variants of a sample."""
    sha = sha256(setting.encode())
    for tensor in tensors:
        content = tensor[row].detach().cpu().contiguous().reshape(-1)
        sha.update(repr((tuple(tensor.shape[1:]), tensor.dtype)).encode())
        sha.update(content.view(torch.uint8).numpy().data)
    return sha.digest()
