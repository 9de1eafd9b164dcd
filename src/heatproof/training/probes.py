"""Probes: IDSDS of cheap methods while a network is fine-tuned.

IDSDS depends on how far a network was fine-tuned. The scores of a few probe methods after each
epoch show whether they have settled; they share the drops with worst-patch accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods import Expression
from heatproof.methods.explain import Explainer, check_applicable
from heatproof.models.batch import ModelBatch
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.patches import patch_sums
from heatproof.tensor.rank import spearman
from heatproof.training.distributed import ProcessGroup
from heatproof.training.loader import TrainBatch

PROBE_METHODS = ("ixg", "saliency", "gradcam", "ig(steps=10)")
MOST_PROBE_IMAGES = 256


class ProbeScores(NamedTuple):
    """IDSDS of the probe methods, and the drops that it compares with.

    Attributes:
        drop: Mean drop of the label's logit when a patch is deleted, over images and patches.
        methods: Mean IDSDS of each method that applies to the network.
        idsds: Mean over the images of the mean over the methods; None if it is undefined for all.
        error: Standard error of ``idsds``; None with fewer than two images.
        images: Images that ``idsds`` was measured on.
    """

    drop: float
    methods: dict[str, float]
    idsds: float | None
    error: float | None
    images: int


@dataclass
class Probes:
    """Accumulates the scores of the probe methods over batches.

    Attributes:
        model: A model with the weights to be measured.
        patches: Number of patches.
        seed: Seed for all noise.
    """

    model: Model
    patches: int
    seed: int
    _values: list[Tensor] = field(default_factory=list)  # (B, methods) each, nan: undefined
    _drops: list[Tensor] = field(default_factory=list)  # (B,) each

    def __post_init__(self) -> None:
        parsed = [Expression.parse(method) for method in PROBE_METHODS]
        self.expressions = [e for e in parsed if _applies(e, self.model)]

    def add(self, batch: TrainBatch, drops: Tensor) -> None:
        """Score the maps of a batch.

        Args:
            batch: The images, with their labels as targets.
            drops: How far the label's logit drops without each patch, ``(B, P)``.
        """
        rng = Rng(self.seed, batch.ids, batch.x.device)
        layers = [expression.layer for expression in self.expressions]
        explainer = Explainer(ModelBatch(self.model, batch.x, batch.labels, layers), rng)
        scores = []
        for expression in self.expressions:
            maps = explainer.transformed(expression, explainer.native(expression))
            sums = patch_sums(explainer.resized(maps), self.patches)
            scores.append(spearman(sums, drops.double()))
        if scores:
            self._values.append(torch.stack(scores, 1).cpu())
        self._drops.append(drops.double().mean(1).cpu())

    def scores(self, processes: ProcessGroup) -> ProbeScores:
        """Return the scores of all images that were added, over all processes."""
        values = torch.cat([torch.empty(0, len(self.expressions)), *self._values]).double()
        drops = torch.cat([torch.empty(0), *self._drops]).double()
        means = values.nanmean(1) if self.expressions else torch.empty(0)
        means = means[means.isfinite()]
        n_drops, drop, n, total, squares, *of_methods = processes.all_reduce(
            len(drops),
            drops.sum().item(),
            len(means),
            means.sum().item(),
            means.square().sum().item(),
            *values.isfinite().sum(0).tolist(),
            *values.nansum(0).tolist(),
        )
        count = len(self.expressions)
        methods = {}
        for expression, defined, summed in zip(
            self.expressions, of_methods[:count], of_methods[count:], strict=True
        ):
            if defined:
                methods[expression.label] = summed / defined
        idsds = total / n if n else None
        error = None
        if n > 1:
            variance = max(0.0, squares - total**2 / n) / (n - 1)
            error = math.sqrt(variance / n)
        return ProbeScores(drop / max(n_drops, 1), methods, idsds, error, int(n))


def _applies(expression: Expression, model: Model) -> bool:
    try:
        check_applicable(expression, model, has_silhouettes=False)
    except NotApplicable:
        return False
    return True
