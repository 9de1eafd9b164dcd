"""The outcome of an evaluation for each sample: a score, or why it is undefined or missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from heatproof.methods.map_checks import ends, finite
from heatproof.methods.notes import MapNotes
from heatproof.protocols.base import Scores
from heatproof.scoring.evaluation import Evaluation

Status = Literal["ok", "undefined", "failed", "missing", "n/a", "skipped"]


@dataclass(frozen=True)
class Failure:
    """An error of a method or protocol that was caught, so that others can continue."""

    message: str


@dataclass(frozen=True)
class Outcomes:
    """Scores of some samples, in their order; ``values`` are nan where the status is not ok."""

    statuses: Sequence[Status]
    messages: Sequence[str]
    values: Sequence[float]
    notes: Sequence[str]
    curves: Mapping[str, Tensor] = field(default_factory=dict)  # (B, S) each

    @classmethod
    def without_scores(cls, status: Status, messages: Sequence[str]) -> Outcomes:
        """Return outcomes without scores, which have the same status."""
        count = len(messages)
        return cls([status] * count, messages, [math.nan] * count, [""] * count)


@dataclass(frozen=True)
class CheckedMaps:
    """Maps of a method after its transforms, and which of them can be scored.

    Attributes:
        maps: Maps ``(B, h, w)``, zero where they are not finite.
        finite: Which maps are finite.
        varied: Which maps do not have the same value everywhere.
        notes: Notes of the method, and why maps are missing.
    """

    maps: Tensor
    finite: list[bool]
    varied: list[bool]
    notes: MapNotes

    @classmethod
    def of(cls, maps: Tensor, native: Tensor, notes: MapNotes) -> CheckedMaps:
        """Check maps, given those that they were computed from."""
        low, high = ends(maps)
        is_finite = low.isfinite() & high.isfinite()
        if maps is not native:
            is_finite &= finite(native)
        varied = high > low
        if not is_finite.all():
            maps = torch.where(is_finite[:, None, None], maps, 0)
        return cls(maps, is_finite.tolist(), varied.tolist(), notes)

    def outcomes(
        self, evaluation: Evaluation, scores: Scores, rows: slice, logits: Tensor
    ) -> Outcomes:
        """Return the scores of some of the maps, except for maps that cannot be scored.

        Args:
            evaluation: The method and the protocol.
            scores: The scores of the maps.
            rows: Which of the maps they are.
            logits: Logits of their images, ``(B, K)``.
        """
        has_logits = logits.isfinite().all(1).tolist()
        values = scores.value.tolist()
        statuses: list[Status] = ["ok"] * len(values)
        messages = [""] * len(values)
        for i, reason in enumerate(scores.reasons):
            row = rows.start + i
            if self.notes.missing[row]:
                statuses[i] = "missing"
                messages[i] = self.notes.missing[row]
            elif not has_logits[i]:
                statuses[i] = "failed"
                messages[i] = "the logits of the network are not finite for this image"
            elif not self.finite[row]:
                statuses[i] = "failed"
                messages[i] = f"{evaluation.expression.label}: the map is not finite"
            elif not self.varied[row] and not evaluation.protocol.constant_maps:
                statuses[i] = "undefined"
                messages[i] = "the map is the same everywhere"
            elif reason:
                statuses[i] = "undefined"
                messages[i] = reason
            if statuses[i] != "ok":
                values[i] = math.nan
        lost = ~torch.tensor(self.finite[rows])[:, None]  # also the maps that are missing
        curves = {
            name: curve.float().cpu().masked_fill(lost, torch.nan)
            for name, curve in scores.curves.items()
        }
        return Outcomes(statuses, messages, values, self.notes.texts[rows], curves)
