"""Soundness and completeness (Li et al. 2024): a map's values judged, not only their order.

`soundness` puts pixels in, most relevant first; a step that hardly raises the accuracy over the data set shows that what it put in is not
predictive. `completeness` takes out all pixels above a share of the map's maximum: what a complete map leaves is of no use to the model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from heatproof.baselines import BaselineName
from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Scores, Shared, protocol
from heatproof.protocols.curves import (
    BOUNDED,
    Curve,
    Removal,
    Some,
    Watched,
    Work,
    measured,
    once,
    without,
)
from heatproof.tensor.soundness import (
    Compat,
    drawn_points,
    drawn_soundness,
    first_reached,
    included_mass,
    relative,
    soundness,
)

CITATION = "Li, Zhang, Kawaguchi, Khakzar, Bischl, Rezaei: A Dual-Perspective Approach to Evaluating Feature Attribution Methods. TMLR 2024"
NOTHING = "nothing in the map is positive"
Share = Annotated[float, Field(gt=0, lt=1)]


@protocol
class Completeness(Curve):
    id: ClassVar[str] = "completeness"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "how much accuracy is lost without the pixels above a share of the map's maximum; the mean over shares"
    )
    higher_is_better: ClassVar[bool] = True
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = CITATION
    ends: ClassVar[bool] = False

    baseline: BaselineName = "linear"
    score: Watched = "correct"
    steps: Some = 10  # 10: above 0.9, 0.8, … 0.1 of the maximum
    absolute: bool = False  # above 0.9, 0.8, … themselves, where maps are made to lie in [0, 1]
    compat: Compat | None = (
        None  # soco: a map of which nothing is positive is complete to degree 0, rather than left out
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"range": (-1.0, 1.0)} if self.score in BOUNDED else {})

    def passes(self) -> Mapping[Hashable, int]:
        return {self._images: self.steps - 1}

    @property
    def _images(self) -> Hashable:
        return "without values above", self.baseline, self.steps, self.absolute

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """The curve has the drop of the score without the pixels above 0.9, …, 0.1 of the maximum."""

        def look() -> Tensor:
            values = maps.clamp(0, 1) if self.absolute else relative(maps)
            above = torch.stack(
                [(values > share).flatten(1).sum(1) for share in reversed(self._inner())], 1
            )
            ranks = self._ranks(batch, maps)
            return without(
                model.forward, self._remover(model, batch), ranks, above, "most", model.batch_size
            ).logits

        left = self.scores(once(batch.map_cache, self._images, look), batch.target)
        drop = self.scores(batch.clean[:, None], batch.target) - left
        found = measured(drop.double().mean(1), {"drop": drop})
        return found if self.compat else _left_out(found, maps)


@protocol
class Soundness(Removal):
    id: ClassVar[str] = "soundness"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = (
        "share of the attribution that raises the accuracy, when pixels are put in, most relevant first, until it reaches a level"
    )
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = CITATION
    aggregates: ClassVar[tuple[str, ...]] = ("score", "mass")

    baseline: BaselineName = "linear"
    score: Watched = "correct"  # correct: one decision a step for all samples, by the accuracy; else each sample's score decides for it
    level: float = 0.5  # of the accuracy, or the mean score, at which soundness is told
    eps: Annotated[float, Field(gt=0)] = (
        0.01  # a smaller gain shows that what was put in is not predictive
    )
    first: Share = 0.98  # of the pixels that are missing at the first step
    last: Share | None = None  # at the last one; None: 0.01 (compat=soco: 0.03)
    step: Share = 0.01
    gate: float | None = (
        None  # nothing is decided up to this accuracy; None: at once (compat=soco: from 0.04 on)
    )
    compat: Compat | None = None  # soco: as its code, see F.soundness

    @model_validator(mode="after")
    def _in_order(self) -> Soundness:
        if len(self.missing) < 2:
            raise ValueError(
                f"first={self.first} leads to {self.missing[-1]} in steps of {self.step}; at least two steps are needed"
            )
        return self

    @property
    def missing(self) -> tuple[float, ...]:
        """The share of the pixels that is missing at each step."""
        last = self.last if self.last is not None else 0.03 if self.compat else 0.01
        count = math.floor((self.first - last) / self.step + 1e-9) + 1
        return tuple(round(self.first - k * self.step, 9) for k in range(max(1, count)))

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"range": self.range}

    def work(self) -> tuple[Work, ...]:
        return (Work(self.baseline, "least", self.missing[::-1], positive=True),)

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """What `conclude` needs of a sample: its score at every step, and what the step puts in of the map's mass."""
        (work,) = self.work()
        score = self.scores(self.seen(model, batch, maps, work).logits, batch.target).flip(1)
        ranks = self._ranks(batch, maps, positive=True)
        mass = included_mass(relative(maps), ranks, work.bounds(ranks[0].numel())[::-1])
        found = measured(score.double().sum(1), {"score": score, "mass": mass})
        found = found._replace(value=torch.full_like(found.value, torch.nan))
        return found if self.compat else _left_out(found, maps)

    def aggregate(self, curves: Mapping[str, Tensor]) -> Scores:
        """A sample's value is its q at the first step at which the data set reaches the level, so that their mean is soundness@level."""
        score, mass = curves["score"].double(), curves["mass"].double()
        level = score.mean(0)
        if self.score == "correct" and len(score) * self.eps < 1:
            warnings.warn(
                f"soundness: {len(score)} samples cannot tell a gain of eps={self.eps} in accuracy; take {math.ceil(1 / self.eps)} or more",
                stacklevel=2,
            )
        at = int(first_reached(level, self.level))
        if at < 0:
            why = f"the {'accuracy' if self.score == 'correct' else 'score'} is {level.max():.3g} at most and never reaches {self.level:g}"
            return Scores(
                torch.full((len(score),), torch.nan, dtype=torch.float64), [why] * len(score)
            )
        return measured(self.quality(score, mass)[:, at], {})

    def bootstrap(self, curves: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        return self.at_levels((self.level,), curves["score"], curves["mass"], weights)[:, 0]

    def at_levels(
        self, levels: Sequence[float], score: Tensor, mass: Tensor, weights: Tensor
    ) -> Tensor:  # weights (R, N) -> (R, L)
        """The mean q at the first step that reaches each level, for every draw of samples."""
        return drawn_soundness(
            score,
            mass,
            weights,
            levels,
            self.eps,
            self.compat,
            self.gate,
            each=self.score != "correct",
        )

    def drawn_points(
        self, score: Tensor, mass: Tensor, weights: Tensor
    ) -> Tensor:  # weights (R, N) -> (R, S, 2)
        """(accuracy, mean q) after every step, for every draw of samples."""
        return drawn_points(
            score, mass, weights, self.eps, self.compat, self.gate, each=self.score != "correct"
        )

    def quality(self, score: Tensor, mass: Tensor) -> Tensor:  # (N, S), (N, S) -> (N, S) float64
        """q after every step."""
        decides = score.double().mean(0) if self.score == "correct" else score
        return soundness(decides, mass, self.eps, self.compat, gate=self.gate)


def _left_out(found: Scores, maps: Tensor) -> Scores:
    """Without a positive value there is nothing to judge."""
    some = (maps > 0).flatten(1).any(1)
    why = [
        w or ("" if positive else NOTHING)
        for w, positive in zip(found.reasons, some.tolist(), strict=True)
    ]
    return found._replace(value=found.value.masked_fill(~some, torch.nan), reasons=why)
