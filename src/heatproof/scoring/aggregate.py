"""Values of protocols that depend on all samples together, computed from their stored curves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from heatproof.protocols import Protocol
from heatproof.protocols.base import Scores

LOST = "its curves are not kept, since others of its task failed"
DAMAGED = "its curves are damaged; run the spec again to compute them anew"


class PendingCurves(NamedTuple):
    """Curves of one model and method, from which a protocol computes values for all samples."""

    protocol: Protocol
    model: str
    method: str
    samples: list[str]  # (N,)
    rows: pd.Index  # (N,) of the frame
    lost: pd.Index  # rows of samples whose curves are not stored
    curves: dict[str, Tensor]  # (N, S) each
    damaged: bool = False  # whether curves are lost because a file is damaged


def aggregate(pending: PendingCurves) -> Scores | None:
    """Compute the values of samples from the curves of all; None if there are none."""
    return pending.protocol.aggregate(pending.curves) if pending.samples else None


def fill_values(
    frame: pd.DataFrame, aggregated: Iterable[tuple[PendingCurves, Scores | None]]
) -> None:
    """Fill aggregated values into rows, and say where there are none.

    Args:
        frame: The rows; texts are categories.
        aggregated: What `aggregate` returns for each model and method.
    """
    values: np.ndarray | None = None
    for pending, scores in aggregated:
        if values is None:
            values = frame["value"].to_numpy(copy=True)
        set_undefined(frame, pending.lost, DAMAGED if pending.damaged else LOST)
        if scores is None:
            continue
        values[pending.rows] = scores.value.numpy()
        reasons = np.array(scores.reasons)
        for reason in dict.fromkeys(filter(None, scores.reasons)):
            set_undefined(frame, pending.rows[reasons == reason], reason)
    if values is not None:
        frame["value"] = values


def set_undefined(frame: pd.DataFrame, rows: pd.Index, reason: str) -> None:
    """Make scores undefined for a reason."""
    if not len(rows):
        return
    for column, text in (("status", "undefined"), ("message", reason)):
        if text not in frame[column].cat.categories:
            texts = frame[column].cat
            frame[column] = texts.set_categories(sorted([*texts.categories, text]))
        frame.loc[rows, column] = text
