"""Protocols that follow the target's score while pixels are removed in the order of a map.

``deletion``, ``insertion`` and their difference ``srg`` (as in Picard et al. 2024), ``ids`` (Samek
et al. 2017, as in Hesse et al. 2024) and ``road`` (Rong et al. 2022).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines import Baseline, BaselineName
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Scores, Shared, protocol
from heatproof.protocols.removal import (
    BOUNDED,
    AtLeastTwo,
    Curve,
    CurveScore,
    Outputs,
    RemovalSteps,
    Side,
    by_sample,
    cached,
    scores_with_reasons,
    updated_curve,
)
from heatproof.tensor.curves import auc
from heatproof.tensor.information import information_measures
from heatproof.tensor.ood_distance import knn_distance

NORMALIZES_EMBEDDINGS = {"ood": True, "ood-raw": False}


class _ExplainsPrediction(Curve):
    """A curve that explains the model's prediction, unless a setting asks for the label."""

    target: ClassVar[Literal["label", "prediction"]] = "prediction"

    of: Literal["label"] | None = Field(
        default=None,
        description="label: explain the label as soundness and completeness do, and share their "
        "passes; by default the prediction",
    )

    @property
    def target_policy(self) -> Literal["label", "prediction"]:
        return self.of or self.target


class _AreaUnderCurve(_ExplainsPrediction):
    """The area under a curve from the image to one without any pixels, or back."""

    citation: ClassVar[str] = (
        "Petsiuk, Das, Saenko: RISE. BMVC 2018; "
        "Picard, Boissin, Subhash, Cadène, Fel: Back to the Baseline. 2024"
    )

    ood: bool = Field(
        default=False,
        description="also measure the distance to reference images, and the information left, "
        "along the curve",
    )

    @property
    def preparation_key(self) -> str:
        return "bank of embeddings" if self.ood else ""

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """Compute a bank of embeddings, and the distances beyond which images are out of domain.

        These are the 95 % quantiles of the distances between nearest reference images.
        """
        bank = torch.cat([model.forward(x)[1] for x in batches])
        if len(bank) < 2:
            raise HeatproofError(
                f"{self.id}: ood needs at least two reference images; got {len(bank)}"
            )
        far = [
            knn_distance(bank, bank, 2, normalize).quantile(0.95)
            for normalize in NORMALIZES_EMBEDDINGS.values()
        ]
        return {"bank": bank, "far": torch.stack(far)}

    def shared_passes(self) -> Mapping[Hashable, int]:
        passes = dict(super().shared_passes())
        if self.ood:
            passes["clean embedding"] = 1
        return passes

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Add the distances beyond which an image counts as out of domain."""
        shared = dict(super().compute_shared(model, batch))
        if self.ood:
            shared["far"] = batch.prepared["far"].expand(len(batch.x), -1)
        return shared

    def _domain_measures(
        self, model: Model, batch: EvalBatch, outputs: Outputs
    ) -> dict[str, Tensor]:
        """Compute distances to reference images and the information left, ``(B, S)`` each."""
        flat = outputs.embedding.flatten(0, 1)
        bank = batch.prepared["bank"]
        samples = len(outputs.embedding)
        distances = {
            name: by_sample(knn_distance(flat, bank, 1, normalize), samples)
            for name, normalize in NORMALIZES_EMBEDDINGS.items()
        }
        measures = information_measures(model.head)
        logits = model.class_logits(outputs.logits)
        information = {name: measure(logits) for name, measure in measures.items()}
        return distances | information

    def deletion_steps(self) -> RemovalSteps:
        return RemovalSteps(self.baseline, "most", self.inner_fractions())

    def insertion_steps(self) -> RemovalSteps:
        return RemovalSteps(self.baseline, "least", self.inner_fractions(), counts_kept=True)

    def curve(
        self, model: Model, batch: EvalBatch, maps: Tensor, steps: RemovalSteps
    ) -> dict[str, Tensor]:
        """Compute the score along a deletion or an insertion, with its measures.

        Returns:
            Curves ``(B, steps + 1)``, from the image to one without pixels (deletion) or back.
        """
        inner = [self.outputs(model, batch, maps, steps)] if steps.fractions else []
        parts = [self._clean(model, batch), *inner, self.end(model, batch)]
        if steps.side == "least":
            parts[0], parts[-1] = parts[-1], parts[0]
        logits = torch.cat([part.logits for part in parts], 1)
        curves = {"score": self.scores(model, logits, batch.target)}
        if self.ood:
            embedding = torch.cat([part.embedding for part in parts], 1)
            curves |= self._domain_measures(model, batch, Outputs(logits, embedding))
        return curves

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        curves = self.curve(model, batch, maps, self.removal_steps()[0])
        return scores_with_reasons(auc(curves["score"]), curves)

    def _clean(self, model: Model, batch: EvalBatch) -> Outputs:
        """Return the outputs for the clean images; only ``ood`` needs a pass, for embeddings."""
        if not self.ood:
            return Outputs(batch.clean[:, None], batch.clean.new_empty(len(batch.clean), 1, 0))
        return cached(
            batch.batch_cache,
            "clean embedding",
            lambda: Outputs(batch.clean[:, None], model.forward(batch.x)[1][:, None]),
        )


@protocol
class Deletion(_AreaUnderCurve):
    id: ClassVar[str] = "deletion"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = (
        "area under the target's score while pixels are removed, most relevant first"
    )
    higher_is_better: ClassVar[bool] = False

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        return (self.deletion_steps(),)


@protocol
class Insertion(_AreaUnderCurve):
    id: ClassVar[str] = "insertion"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = (
        "area under the target's score while pixels are inserted into an empty image, "
        "most relevant first"
    )
    higher_is_better: ClassVar[bool] = True

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        return (self.insertion_steps(),)


@protocol
class RelevanceGain(_AreaUnderCurve):
    id: ClassVar[str] = "srg"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = (
        "symmetric relevance gain: the area of insertion minus that of deletion"
    )
    higher_is_better: ClassVar[bool] = True
    random_score: ClassVar[float | None] = 0.0
    citation: ClassVar[str] = (
        "Blücher, Vielhaben, Strodthoff: "
        "Decoupling Pixel Flipping and Occlusion Strategy. TMLR 2024"
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (-1.0, 1.0)} if self.score in BOUNDED else {})

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        return self.deletion_steps(), self.insertion_steps()

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        deletion = self.curve(model, batch, maps, self.deletion_steps())
        insertion = self.curve(model, batch, maps, self.insertion_steps())
        curves = {f"deletion {name}": curve for name, curve in deletion.items()}
        curves |= {f"insertion {name}": curve for name, curve in insertion.items()}
        return scores_with_reasons(auc(insertion["score"]) - auc(deletion["score"]), curves)


class _MeanOfCurve(Curve):
    """A curve whose mean is the score; a better map scores higher in either order.

    If the least relevant pixels are removed first, the score that is left counts; if the most
    relevant are, the score that is lost.
    """

    higher_is_better: ClassVar[bool] = True
    ends: ClassVar[bool] = False

    order: Side

    def curve_score(self, clean: Tensor, curve: Tensor) -> Tensor:  # (B,), (B, S) -> (B,)
        left = curve.double().mean(1)
        return left if self.order == "least" else clean.double() - left


@protocol
class IncrementalDeletion(_MeanOfCurve):
    id: ClassVar[str] = "ids"
    summary: ClassVar[str] = (
        "mean score of the target while pixels are removed, least relevant first; "
        "updated: with a new map before each step"
    )
    citation: ClassVar[str] = (
        "Samek et al.: Evaluating the Visualization of What a Deep Neural Network Has Learned. "
        "TNNLS 2017; as in Hesse et al., NeurIPS 2024"
    )

    score: CurveScore = Field(
        default="softmax", description="the score of the target along the curve"
    )
    order: Side = Field(
        default="least", description="whether the least or the most relevant go first"
    )
    steps: AtLeastTwo = Field(default=32, description="steps of the curve")
    updated: bool = Field(default=False, description="compute a new map before each step")

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        if self.updated:
            return ()
        return (RemovalSteps(self.baseline, self.order, self.inner_fractions()),)

    def passes(self) -> Mapping[Hashable, int]:
        return {self.canonical: self.steps - 1} if self.updated else super().passes()

    def explanations(self) -> Mapping[Hashable, int]:
        # The first step uses the map of the clean image.
        return {self.canonical: max(0, self.steps - 2)} if self.updated else {}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        clean = self.scores(model, batch.clean[:, None], batch.target)
        if self.updated:
            assert batch.explain is not None
            rest = updated_curve(
                model,
                batch.x,
                batch.target,
                batch.explain,
                self.inner_fractions(),
                self.order,
                self.baseline,
                self.score,
                batch.ids,
                batch.rng.seed,
                first=maps,
                prepared=Baseline.parse(self.baseline).prepared_by(batch.prepared_baseline),
            )
        else:
            outputs = self.outputs(model, batch, maps, self.removal_steps()[0])
            rest = self.scores(model, outputs.logits, batch.target)
        curve = torch.cat([clean, rest], 1)
        return scores_with_reasons(self.curve_score(clean[:, 0], curve), {"score": curve})


@protocol
class Road(_MeanOfCurve, _ExplainsPrediction):
    id: ClassVar[str] = "road"
    summary: ClassVar[str] = (
        "remove and debias: how often the prediction changes while pixels are replaced by a linear "
        "imputation, most relevant first"
    )
    citation: ClassVar[str] = (
        "Rong et al.: A Consistent and Efficient Evaluation Strategy for Attribution Methods. "
        "ICML 2022"
    )

    baseline: BaselineName = Field(default="linear", description="what replaces removed pixels")
    score: CurveScore = Field(
        default="correct", description="the score of the target along the curve"
    )
    order: Side = Field(
        default="most", description="whether the most or the least relevant go first"
    )
    steps: AtLeastTwo = Field(
        default=10, description="steps of the curve; 10: at 10, 20, … 90 % of the pixels"
    )

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        return (RemovalSteps(self.baseline, self.order, self.inner_fractions()),)

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        outputs = self.outputs(model, batch, maps, self.removal_steps()[0])
        curve = self.scores(model, outputs.logits, batch.target)
        clean = self.scores(model, batch.clean[:, None], batch.target)[:, 0]
        return scores_with_reasons(self.curve_score(clean, curve), {"score": curve})
