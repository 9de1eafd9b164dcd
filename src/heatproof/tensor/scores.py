"""Scores of the target class: what methods explain and protocols measure.

What a score means depends on the head of the model: whether its logits share one softmax, or each
of them has a sigmoid of its own (see `heatproof.models.heads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heatproof.errors import NotApplicable, unknown

Score = Callable[[Tensor, Tensor], Tensor]  # logits (B, K), target (B,) -> (B,)
ScoreName = Literal["logit", "softmax", "logprob"]  # those that can be explained
HeadName = Literal["softmax", "sigmoid", "binary", "regression"]
HEADS: tuple[HeadName, ...] = get_args(HeadName)


def _pick(values: Tensor, target: Tensor) -> Tensor:
    return values.gather(-1, target[:, None])[:, 0]


SCORES: dict[str, Score] = {
    "logit": _pick,
    "softmax": lambda logits, target: _pick(logits.softmax(-1), target),
    "logprob": lambda logits, target: _pick(logits.log_softmax(-1), target),
    "sigmoid": lambda logits, target: torch.sigmoid(_pick(logits, target)),
    "correct": lambda logits, target: (logits.argmax(-1) == target).to(logits.dtype),
}
_SIGMOIDS: dict[str, Score] = SCORES | {  # a sigmoid for each logit, in place of one softmax
    "softmax": SCORES["sigmoid"],
    "logprob": lambda logits, target: logsigmoid(_pick(logits, target)),
}
BY_HEAD: Mapping[HeadName, Mapping[str, Score]] = {
    "softmax": SCORES,
    "binary": _SIGMOIDS,
    "sigmoid": _SIGMOIDS
    | {"correct": lambda logits, target: (_pick(logits, target) > 0).to(logits.dtype)},
    "regression": {"logit": _pick},
}


def no_score(score: str) -> str:
    """Return why a regression head does not have a score."""
    return (
        f"a regression head is one number without classes or probabilities, so it has no {score}; "
        "write score=logit, which is that number"
    )


def score_function(score: str | Score, head: HeadName = "softmax") -> Score:
    """Return a score by name; a function is returned as it is.

    Args:
        score: ``logit``, ``softmax`` (the target's probability), ``logprob`` (its logarithm),
            ``sigmoid`` (of the target's logit), ``correct``, or a function.
        head: The head of the model.

    Raises:
        HeatproofError: If there is no score of that name.
    """
    if callable(score):
        return score
    if score not in SCORES:
        raise unknown("score", score, SCORES)
    if score not in BY_HEAD[head]:
        raise NotApplicable(no_score(score))
    return BY_HEAD[head][score]


def class_probabilities(logits: Tensor, head: HeadName = "softmax") -> Tensor:  # (…, K) -> same
    """Compute the probability of each class: a softmax, or a sigmoid of each logit.

    A regression head has no probabilities, which are nan.
    """
    if head == "regression":
        return torch.full_like(logits, torch.nan)
    return logits.softmax(-1) if head == "softmax" else logits.sigmoid()


def is_correct(logits: Tensor, labels: Tensor, head: HeadName = "softmax") -> Tensor:
    """Return which labels are predicted, ``(B,)`` of bool.

    For the heads ``softmax`` and ``binary`` that is the class of the highest logit; for ``sigmoid``
    each class with a probability above one half is predicted.

    Args:
        logits: ``(B, K)``.
        labels: Class indices ``(B,)``.
        head: The head of the model.
    """
    return score_function("correct", head)(logits, labels).bool()
