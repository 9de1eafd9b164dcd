"""Soundness and completeness (Li et al. 2024): protocols that evaluate the values of a map.

``soundness`` inserts pixels, most relevant first. A step that hardly raises the accuracy over the
data set shows that the inserted pixels are not predictive. ``completeness`` removes all pixels
above a fraction of the map's maximum: what is left of the image should not help the model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from heatproof.baselines import BaselineName
from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Kind, Scores, Shared, protocol
from heatproof.protocols.removal import (
    BOUNDED,
    AtLeastTwo,
    Curve,
    CurveScore,
    PixelRemoval,
    RemovalSteps,
    cached,
    scores_with_reasons,
)
from heatproof.tensor.soundness import (
    Compat,
    drawn_soundness,
    first_reached,
    included_mass,
    relative,
    soundness,
)

CITATION = (
    "Li, Zhang, Kawaguchi, Khakzar, Bischl, Rezaei: "
    "A Dual-Perspective Approach to Evaluating Feature Attribution Methods. TMLR 2024"
)
NOTHING_POSITIVE = "nothing in the map is positive"
Fraction = Annotated[float, Field(gt=0, lt=1)]


@protocol
class Completeness(Curve):
    id: ClassVar[str] = "completeness"
    kind: ClassVar[Kind] = "values"
    summary: ClassVar[str] = (
        "the accuracy lost without the pixels above a fraction of the map's maximum, "
        "averaged over fractions"
    )
    higher_is_better: ClassVar[bool] = True
    citation: ClassVar[str] = CITATION
    ends: ClassVar[bool] = False

    baseline: BaselineName = Field(default="linear", description="what replaces removed pixels")
    score: CurveScore = Field(default="correct", description="the score of the target that is lost")
    steps: AtLeastTwo = Field(
        default=10, description="10: thresholds at 0.9, 0.8, … 0.1 of the map's maximum"
    )
    absolute: bool = Field(
        default=False, description="thresholds are absolute values, for maps scaled to [0, 1]"
    )
    compat: Compat | None = Field(
        default=None,
        description="soco: a map without positive values scores 0 and is not undefined",
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (-1.0, 1.0)} if self.score in BOUNDED else {})

    def passes(self) -> Mapping[Hashable, int]:
        return {self._images: self.steps - 1}

    @property
    def _images(self) -> Hashable:
        return "without values above", self.baseline, self.steps, self.absolute

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps; the curve is the drop without the pixels above 0.9, …, 0.1 of the maximum."""

        def logits_without() -> Tensor:
            values = maps.clamp(0, 1) if self.absolute else relative(maps)
            thresholds = reversed(self.inner_fractions())
            above = torch.stack([(values > t).flatten(1).sum(1) for t in thresholds], 1)
            ranks = self._ranks(batch, maps)
            return self._outputs_without(model, batch, ranks, above, "most").logits

        left = self.scores(
            model, cached(batch.map_cache, self._images, logits_without), batch.target
        )
        drop = self.scores(model, batch.clean[:, None], batch.target) - left
        scores = scores_with_reasons(drop.double().mean(1), {"drop": drop})
        return scores if self.compat else _undefined_without_mass(scores, maps)


@protocol
class Soundness(PixelRemoval):
    id: ClassVar[str] = "soundness"
    kind: ClassVar[Kind] = "values"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = (
        "the fraction of the attribution that raises the accuracy when pixels are inserted, "
        "most relevant first, until the accuracy reaches a level"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    citation: ClassVar[str] = CITATION
    aggregates: ClassVar[tuple[str, ...]] = ("score", "mass")

    baseline: BaselineName = Field(default="linear", description="what replaces missing pixels")
    score: CurveScore = Field(
        default="correct",
        description="correct: the accuracy decides each step for all samples; otherwise each "
        "sample's score does",
    )
    level: float = Field(
        default=0.5, description="accuracy (or mean score) at which soundness is reported"
    )
    eps: float = Field(
        default=0.01, gt=0, description="a smaller gain marks pixels as not predictive"
    )
    first: Fraction = Field(
        default=0.98, description="fraction of missing pixels at the first step"
    )
    last: Fraction | None = Field(
        default=None,
        description="the same at the last step; by default 0.01, with compat=soco 0.03",
    )
    step: Fraction = Field(default=0.01, description="fraction of the pixels that a step inserts")
    gate: float | None = Field(
        default=None,
        description="no decision up to this accuracy (or mean score); by default none, with "
        "compat=soco 0.04",
    )
    compat: Compat | None = Field(default=None, description="soco: as in the published code")

    @model_validator(mode="after")
    def _in_order(self) -> Soundness:
        if len(self.missing) < 2:
            raise ValueError(
                f"first={self.first} reaches {self.missing[-1]} in steps of {self.step}; "
                "at least two steps are needed"
            )
        return self

    @property
    def missing(self) -> tuple[float, ...]:
        """Fraction of the pixels that is missing at each step."""
        last = self.last
        if last is None:
            last = 0.03 if self.compat else 0.01
        count = math.floor((self.first - last) / self.step + 1e-9) + 1
        return tuple(round(self.first - k * self.step, 9) for k in range(max(1, count)))

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"range": self.range}

    def removal_steps(self) -> tuple[RemovalSteps, ...]:
        return (RemovalSteps(self.baseline, "least", self.missing[::-1], positive=True),)

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Store what `aggregate` needs: each sample's score and inserted mass at every step."""
        (steps,) = self.removal_steps()
        score = self.scores(
            model, self.outputs(model, batch, maps, steps).logits, batch.target
        ).flip(1)
        ranks = self._ranks(batch, maps, positive=True)
        mass = included_mass(relative(maps), ranks, steps.bounds(ranks[0].numel())[::-1])
        scores = scores_with_reasons(score.double().sum(1), {"score": score, "mass": mass})
        scores = scores._replace(value=torch.full_like(scores.value, torch.nan))
        return scores if self.compat else _undefined_without_mass(scores, maps)

    def aggregate(self, curves: Mapping[str, Tensor]) -> Scores:
        """Compute soundness from the curves of all samples.

        The value of a sample is its q at the first step at which the data set reaches the level, so
        that the mean over samples is soundness@level.
        """
        score = curves["score"]
        mass = curves["mass"]
        if self.score == "correct":  # sums of zeros and ones are exact
            level = score.mean(0, dtype=torch.float64)
        else:
            level = score.double().mean(0)
        if self.score == "correct" and len(score) * self.eps < 1:
            warnings.warn(
                f"soundness: {len(score)} samples cannot resolve a gain of eps={self.eps} "
                f"in accuracy; use {math.ceil(1 / self.eps)} or more",
                stacklevel=2,
            )
        step = int(first_reached(level, self.level))  # later ones do not matter
        if step < 0:
            measure = "accuracy" if self.score == "correct" else "score"
            reason = f"the {measure} is {level.max():.3g} at most and never reaches {self.level:g}"
            undefined = torch.full((len(score),), torch.nan, dtype=torch.float64)
            return Scores(undefined, [reason] * len(score))
        if self.score == "correct":
            q = soundness(
                level[: step + 1], mass[:, : step + 1], self.eps, self.compat, gate=self.gate
            )
        else:
            q = self.quality(score, mass)
        return scores_with_reasons(q[:, step], {})

    def bootstrap(self, curves: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        return self.at_levels((self.level,), curves["score"], curves["mass"], weights)[:, 0]

    def bootstrap_blocks(
        self, curves: Mapping[str, Tensor], weights: Tensor, blocks: Tensor
    ) -> Tensor:
        score, mass = (curves[name] for name in self.aggregates)
        return self.at_levels((self.level,), score, mass, weights, blocks)[:, 0]

    def at_levels(
        self,
        levels: Sequence[float],
        score: Tensor,
        mass: Tensor,
        weights: Tensor,
        blocks: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean q at the first step that reaches each level, for draws of the samples.

        The accuracy of a draw decides which of its steps are false.

        Args:
            levels: Accuracies (or mean scores) of length ``L``.
            score: Scores per sample and step ``(N, S)``.
            mass: Inserted fractions of each map's mass ``(N, S)``.
            weights: How often each sample is drawn ``(R, N)``, or each block ``(R, G)``.
            blocks: The block of each sample ``(N,)``, if blocks are drawn.

        Returns:
            Soundness at each level ``(R, L)``; nan for levels that are not reached.
        """
        return drawn_soundness(
            score,
            mass,
            weights,
            levels,
            self.eps,
            self.compat,
            self.gate,
            per_sample=self.score != "correct",
            blocks=blocks,
        )

    def quality(self, score: Tensor, mass: Tensor) -> Tensor:  # (N, S), (N, S) -> (N, S) float64
        """Compute q after every step."""
        decides = score.double().mean(0) if self.score == "correct" else score
        return soundness(decides, mass, self.eps, self.compat, gate=self.gate)


def _undefined_without_mass(scores: Scores, maps: Tensor) -> Scores:
    """Mark maps without a positive value as undefined."""
    positive = (maps > 0).flatten(1).any(1)
    reasons = [
        reason or ("" if p else NOTHING_POSITIVE)
        for reason, p in zip(scores.reasons, positive.tolist(), strict=True)
    ]
    return scores._replace(value=scores.value.masked_fill(~positive, torch.nan), reasons=reasons)
