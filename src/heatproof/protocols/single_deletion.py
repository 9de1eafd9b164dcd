"""Single deletion (Hesse et al. 2024): does a map rank patches as the model's score drops do?

``sds`` evaluates the model as it is, ``idsds`` the model after fine-tuning on images with deleted
patches, so that deletions are in-domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.models.model import Model, model_score
from heatproof.protocols.base import (
    EvalBatch,
    Kind,
    Protocol,
    Scores,
    Shared,
    protocol,
)
from heatproof.protocols.in_domain import InDomain
from heatproof.tensor.batching import chunks, rows
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.patches import grid_side, patch_masks, patch_sums, square_root
from heatproof.tensor.rank import spearman
from heatproof.tensor.scores import Score, ScoreName


def patch_drops(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    patches: int = 16,
    baseline: str = "zero",
    score: str | Score = "logit",
    ids: Sequence[str] | None = None,
    seed: int = 0,
    *,
    clean: Tensor | None = None,
    batch_size: int = 64,
    prepared: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Measure how much the target's score drops when each patch is removed.

    It costs one forward pass per patch, and one for the clean image unless ``clean`` is given.

    Args:
        model: A ``Model`` or any callable from images ``(B, C, H, W)`` to logits ``(B, K)``.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Class indices ``(B,)``.
        patches: Number of patches, a square number whose root divides the image's sides.
        baseline: What replaces the removed patch.
        score: ``logit``, ``softmax``, ``logprob``, ``sigmoid``, ``correct``, or a function of
            logits and targets.
        ids: Sample ids, which key noise; by default the row numbers.
        seed: Seed for noise.
        clean: Logits of the clean images ``(B, K)``, if they are known.
        batch_size: Images per pass, if ``model`` is not a ``Model``.
        prepared: What the baseline has prepared, if it needs reference images.

    Returns:
        Drops ``f_t(x) - f_t(x without patch)`` of shape ``(B, P)``; patches row by row.

    Raises:
        HeatproofError: If ``patches`` is not a square number that divides the image.
    """
    score_of = model_score(model, score)
    (left,) = scores_without_patches(
        model, x, target, (score_of,), patches, baseline, ids, seed, batch_size, prepared=prepared
    )
    if clean is None:
        clean = _clean_logits(model, x, batch_size)
    return score_of(clean, target)[:, None] - left


def _clean_logits(
    model: Model | Callable[[Tensor], Tensor], x: Tensor, batch_size: int
) -> Tensor:  # (B, K)
    if isinstance(model, Model):
        return model.logits(x)
    with torch.no_grad():
        return torch.cat([model(part) for part in rows(x, batch_size)])


def scores_without_patches(
    model: Model | Callable[[Tensor], Tensor],
    x: Tensor,
    target: Tensor,
    scores: Sequence[Score],
    patches: int,
    baseline: str,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    logits: Callable[[Tensor], Tensor] | None = None,
    prepared: Mapping[str, Tensor] | None = None,
) -> list[Tensor]:
    """Compute scores of images without each patch, with one forward pass per patch.

    Args:
        model: A ``Model`` or any callable from images ``(B, C, H, W)`` to logits ``(B, K)``.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Class indices ``(B,)``.
        scores: Functions of logits and targets.
        patches: Number of patches.
        baseline: What replaces the removed patch.
        ids: Sample ids, which key noise; by default the row numbers.
        seed: Seed for noise.
        batch_size: Images per pass, if ``logits`` is given or ``model`` is not a ``Model``.
        logits: Computes logits in place of the model, which then only defines the baseline.
        prepared: What the baseline has prepared, if it needs reference images.

    Returns:
        One tensor ``(B, P)`` per score.
    """
    baseline_model = model if isinstance(model, Model) else None
    if logits is None and isinstance(model, Model):
        batch_size = model.batch_size
        logits = model.logits
    logits = logits or model
    rng = Rng(seed, sample_ids(ids, len(x)), x.device)
    remove = Baseline.parse(baseline).remover(x, baseline_model, rng, prepared)
    masks = patch_masks(patches, *x.shape[2:]).to(x.device)
    scored: list[list[Tensor]] = []
    with torch.no_grad():
        for sample, patch in chunks(len(x), patches, batch_size):
            out = logits(remove(sample, masks[patch]))
            scored.append([score(out, target[sample]) for score in scores])
    return [torch.cat(parts).reshape(len(x), patches) for parts in zip(*scored, strict=True)]


@protocol
class SingleDeletion(Protocol):
    id: ClassVar[str] = "sds"
    kind: ClassVar[Kind] = "faithfulness"
    summary: ClassVar[str] = (
        "rank correlation of the attribution per patch with the drop of the target's score "
        "when that patch is deleted"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)
    random_score: ClassVar[float | None] = 0.0
    shared_by_sample: ClassVar[tuple[str, ...]] = ("drops", "correct", "log_prob")
    citation: ClassVar[str] = (
        "Hesse, Schaub-Meyer, Roth: "
        "Benchmarking the Attribution Quality of Vision Models. NeurIPS 2024"
    )

    baseline: BaselineName = Field(default="zero", description="what replaces a deleted patch")
    patches: int = Field(default=16, description="number of patches, a square number: 4, 16, 64, …")
    score: ScoreName = Field(
        default="logit", description="the score of the target whose drops count"
    )

    @field_validator("patches")
    @classmethod
    def _square(cls, value: int) -> int:
        square_root(value)
        return value

    def check(self, model: Model) -> None:
        super().check(model)
        grid_side(self.patches, model.height, model.width)

    def shared_passes(self) -> Mapping[Hashable, int]:
        return {("patches", self.patches, self.baseline): self.patches}

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Compute what the model returns without each patch.

        Returns:
            ``drops`` of the score, ``correct`` (whether the target is still predicted) and
            ``log_prob`` of the target, ``(B, P)`` each; nan where the network has no classes.
        """
        names = [self.score, *([] if model.head == "regression" else ["correct", "logprob"])]
        scores = [model.score_function(name) for name in names]
        left, *others = scores_without_patches(
            model,
            batch.x,
            batch.target,
            scores,
            self.patches,
            self.baseline,
            batch.ids,
            batch.rng.seed,
            prepared=Baseline.parse(self.baseline).prepared_by(batch.prepared_baseline),
        )
        correct, log_prob = others or [torch.full_like(left, torch.nan)] * 2
        return {
            "drops": scores[0](batch.clean, batch.target)[:, None] - left,
            "correct": correct,
            "log_prob": log_prob,
        }

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        sums = patch_sums(maps, self.patches)
        rho = spearman(sums, shared["drops"].double())
        constant = (sums == sums[:, :1]).all(1).tolist()
        finite = torch.isfinite(shared["drops"]).all(1).tolist()
        reasons = []
        for row, value in enumerate(rho.tolist()):
            if not math.isnan(value):
                reasons.append("")
            elif not finite[row]:
                reasons.append("the model's score is not finite")
            elif constant[row]:
                reasons.append("the map is the same in every patch")
            else:
                reasons.append("every patch drops the score by the same amount")
        return Scores(rho, reasons)


@protocol
class InDomainSingleDeletion(InDomain, SingleDeletion):
    id: ClassVar[str] = "idsds"
    kind: ClassVar[Kind] = "in-domain"
    summary: ClassVar[str] = (
        "sds on weights that were fine-tuned with deleted patches, so that deletions are in-domain"
    )

    @property
    def canonical(self) -> str:
        return super().canonical.replace("missing=None, ", "")  # as before there was the setting

    @property
    def fine_tuning(self) -> str:
        return f"{self.patches}/{self.baseline}"
