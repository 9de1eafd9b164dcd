"""Accuracy on clean images and on images with one patch deleted, with two notions of "worst"."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heatproof.errors import HeatproofError
from heatproof.models.heads import as_logits
from heatproof.protocols.single_deletion import scores_without_patches
from heatproof.tensor.scores import SCORES, HeadName, is_correct
from heatproof.training.distributed import ProcessGroup
from heatproof.training.loader import BatchLoader, Deletion, PixelDeletion, TrainBatch
from heatproof.training.probes import MOST_PROBE_IMAGES, Probes

BATCH_SIZE = 64


class Accuracy(NamedTuple):
    """Accuracy with and without deleted patches.

    Attributes:
        accuracy: Fraction of clean images that are classified correctly.
        worst_all: Fraction of images that stay correct whichever single patch is deleted.
        worst_largest: Fraction of images that stay correct when the patch is deleted whose
            deletion leaves the label the lowest probability.
    """

    accuracy: float
    worst_all: float
    worst_largest: float


@torch.no_grad()
def validate(
    net: nn.Module,
    loader: BatchLoader,
    deletion: Deletion | PixelDeletion,
    worst_images: int,
    processes: ProcessGroup,
    probes: Probes | None = None,
) -> Accuracy:
    """Measure clean and worst-patch accuracy of a network, which is left in eval mode.

    The processes divide the images among themselves and all return the same numbers.

    Args:
        net: Network from images ``(B, C, H, W)`` to logits ``(B, K)``.
        loader: The validation images.
        deletion: Patch grid and baseline.
        worst_images: Number of images, from the first on, that are also tested with each patch
            deleted.
        processes: The processes that take part.
        probes: Scored on the first of these images, with the same drops.

    Returns:
        Clean and worst-patch accuracy.

    Raises:
        HeatproofError: If no validation image can be read.
    """
    net.eval()
    images = correct = tested = correct_all = correct_largest = 0
    probed = min(MOST_PROBE_IMAGES, worst_images)
    for indices, delete_patches, probing in (
        (loader.indices[:probed], True, probes),
        (loader.indices[probed:worst_images], True, None),
        (loader.indices[worst_images:], False, None),
    ):
        local = indices[processes.rank :: processes.size]
        groups = [local[start : start + BATCH_SIZE] for start in range(0, len(local), BATCH_SIZE)]
        for batch in loader.batches(groups):
            if not batch.ids:
                continue
            logits = _logits(net, loader.model.head, batch.x)
            images += len(batch.ids)
            correct += int(is_correct(logits, batch.labels, loader.model.head).sum())
            if delete_patches:
                tested += len(batch.ids)
                without = _without_patches(net, batch, deletion, loader)
                correct_all += int(without.correct.all(1).sum())
                correct_largest += int(without.correct_largest.sum())
                if probing:
                    clean = SCORES["logit"](logits, batch.labels)
                    probing.add(batch, clean[:, None] - without.logit)
    n_images, n_correct, n_tested, n_all, n_largest = processes.all_reduce(
        images, correct, tested, correct_all, correct_largest
    )
    if not n_images or not n_tested:
        reason = next(iter(loader.unreadable.values()), "worst_images must be at least 1")
        raise HeatproofError(
            f"there is no validation image to evaluate {loader.model.name} on: {reason}"
        )
    return Accuracy(n_correct / n_images, n_all / n_tested, n_largest / n_tested)


class WithoutPatches(NamedTuple):
    """Outputs of a network for images without each patch, ``(B, P)``."""

    correct: Tensor  # bool
    log_prob: Tensor
    logit: Tensor

    @property
    def correct_largest(self) -> Tensor:  # (B,) bool
        """Images that stay correct without the patch that leaves the lowest probability."""
        worst = self.log_prob.argmin(1, keepdim=True)
        return self.correct.gather(1, worst)[:, 0]


def _without_patches(
    net: nn.Module, batch: TrainBatch, deletion: Deletion | PixelDeletion, loader: BatchLoader
) -> WithoutPatches:
    correct, log_prob, logit = scores_without_patches(
        loader.model,
        batch.x,
        batch.labels,
        [loader.model.score_function(name) for name in ("correct", "logprob", "logit")],
        deletion.patches,
        deletion.baseline.label,
        batch.ids,
        loader.seed,
        4 * BATCH_SIZE,
        partial(_logits, net, loader.model.head),
    )
    return WithoutPatches(correct.bool(), log_prob, logit)


def _logits(net: nn.Module, head: HeadName, x: Tensor) -> Tensor:
    return as_logits(net(x.contiguous(memory_format=torch.channels_last)), head)
