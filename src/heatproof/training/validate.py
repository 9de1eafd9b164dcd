"""Accuracy on whole images and on those with one cell deleted, in both readings of «worst»."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heatproof.data.base import Data
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.protocols.single_deletion import without_patches
from heatproof.tensor.scores import SCORES
from heatproof.training.distributed import ProcessGroup
from heatproof.training.loader import BatchLoader, Deletion, TrainBatch

BATCH = 64


class Accuracy(NamedTuple):
    accuracy: float  # untouched images
    worst_all: float  # right whichever one cell is deleted
    worst_largest: float  # right without the cell that takes most of the label's probability


def patch_accuracy(
    model: Model, data: Data, deletion: Deletion, seed: int = 0, workers: int = 2
) -> Accuracy:
    """Of a model as it is, on all of the data."""
    feed = BatchLoader(data, range(len(data.ids)), model, seed, workers=workers)
    modes = [(m, m.training) for m in model.module.modules()]
    try:
        return judge(model.module, feed, deletion, len(data.ids), ProcessGroup(model.device))
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def judge(
    net: nn.Module, feed: BatchLoader, deletion: Deletion, worst_images: int, team: ProcessGroup
) -> Accuracy:
    """The first `worst_images` also with each cell deleted. The work is shared by the team, which comes to the same numbers."""
    net.eval()
    images = right = closer = every = largest = 0
    for closely, part in (
        (True, feed.indices[:worst_images]),
        (False, feed.indices[worst_images:]),
    ):
        mine = part[team.rank :: team.size]
        for rows in feed.batches(
            [mine[start : start + BATCH] for start in range(0, len(mine), BATCH)]
        ):
            if not rows.ids:
                continue
            images += len(rows.ids)
            right += int((logits_of(net, rows.x).argmax(1) == rows.labels).sum())
            if closely:
                closer += len(rows.ids)
                all_right, worst_right = without_each(net, rows, deletion, feed.model, feed.seed)
                every, largest = every + int(all_right.sum()), largest + int(worst_right.sum())
    images_, right_, closer_, every_, largest_ = team.all_reduce(
        images, right, closer, every, largest
    )
    if not images_ or not closer_:
        reason = next(iter(feed.unreadable.values()), "worst_images must be at least 1")
        raise HeatproofError(
            f"there is no validation image to judge {feed.model.name} on: {reason}"
        )
    return Accuracy(right_ / images_, every_ / closer_, largest_ / closer_)


def without_each(
    net: nn.Module, rows: TrainBatch, deletion: Deletion, model: Model, seed: int
) -> tuple[Tensor, Tensor]:
    """(B,) bool each: right without any one cell, and right without the cell that takes most of the label's probability."""
    scores = (SCORES["correct"], SCORES["logprob"])
    cells, baseline, own = deletion.patches, deletion.baseline.label, partial(logits_of, net)
    right, left = without_patches(
        model, rows.x, rows.labels, scores, cells, baseline, rows.ids, seed, 4 * BATCH, own
    )
    return right.bool().all(1), right.bool().gather(1, left.argmin(1, keepdim=True))[:, 0]


def logits_of(net: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = net(x.contiguous(memory_format=torch.channels_last))
    return logits
