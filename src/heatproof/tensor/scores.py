"""Scores of the target class: what methods explain and protocols measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from heatproof.errors import unknown

Score = Callable[[Tensor, Tensor], Tensor]  # logits (B, K), target (B,) -> (B,)
ScoreName = Literal["logit", "softmax", "logprob"]  # those that can be explained


def _pick(values: Tensor, target: Tensor) -> Tensor:
    return values.gather(-1, target[:, None])[:, 0]


SCORES: dict[str, Score] = {
    "logit": _pick,
    "softmax": lambda logits, target: _pick(logits.softmax(-1), target),
    "logprob": lambda logits, target: _pick(logits.log_softmax(-1), target),
    "sigmoid": lambda logits, target: torch.sigmoid(_pick(logits, target)),
    "correct": lambda logits, target: (logits.argmax(-1) == target).to(logits.dtype),
}


def score_function(score: str | Score) -> Score:
    """Return a score by name; a function is returned as it is.

    Raises:
        HeatproofError: If there is no score of that name.
    """
    if callable(score):
        return score
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    return SCORES[score]
