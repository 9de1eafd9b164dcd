"""The accuracy of each network, with and without a patch, before and after fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis.accuracy import change, proportion, readings
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.protocols import ViewKey
from heatproof.runs.format import ProtocolFacts
from heatproof.runs.run import PLAIN_VIEW, Kept

READINGS = {  # in the order of the columns
    "intact": "intact image",
    "random": "one patch deleted, on average",
    "worst": "worst patch deleted",
    "whichever": "any patch deleted",
}
Predictions = dict[str, dict[ViewKey, pd.DataFrame]]  # model -> view -> samples by readings


class Deletion(NamedTuple):
    """How patches are deleted."""

    patches: int
    baseline: str


@dataclass(frozen=True)
class Row:
    """The accuracy of one network, or the change of it."""

    label: str
    n: int
    estimates: list[Estimate]
    change: bool = False


@dataclass(frozen=True)
class Table:
    """All models under one way of deleting patches; None if nothing is deleted."""

    deletion: Deletion | None
    columns: dict[str, str]
    models: dict[str, list[Row]]  # before and after fine-tuning
    part: str  # which samples these are; empty if they are all


def content(run: RunStatistics) -> list[Table]:
    """Return a table for each way of deleting, or one of intact images if nothing was deleted."""
    predictions: dict[Deletion | None, Predictions] = {}
    part = ""
    for model in run.models:
        for view, keys in run.networks(model).items():
            kept = run.kept(model, view)
            part = part or kept.part
            for key in keys:
                deletion, frame = _predictions(kept, run.protocols[key])
                if len(frame):
                    of_model = predictions.setdefault(deletion, {}).setdefault(model, {})
                    of_model.setdefault(view, frame)
    if len(predictions) > 1:
        predictions.pop(None, None)  # tables of deletions contain the intact images as well
    order = [_deletion(run.protocols[key]) for key in run.preferred]
    return [_table(run, d, predictions[d], part) for d in sorted(predictions, key=order.index)]


def _table(run: RunStatistics, deletion: Deletion | None, models: Predictions, part: str) -> Table:
    columns = READINGS if deletion else {"intact": READINGS["intact"]}
    return Table(
        deletion,
        columns,
        {run.short_names[model]: _rows(views, columns) for model, views in models.items()},
        part,
    )


def _deletion(protocol: ProtocolFacts) -> Deletion | None:
    patches = protocol.settings.get("patches")
    return Deletion(patches, protocol.baseline) if patches else None


def _predictions(kept: Kept, protocol: ProtocolFacts) -> tuple[Deletion | None, pd.DataFrame]:
    """Return which predictions are correct: labelled samples down, readings across."""
    labelled = np.array([label is not None for label in kept.labels], dtype=bool)
    ids = [sample for sample, has_label in zip(kept.ids, labelled, strict=True) if has_label]
    if not ids:
        return None, pd.DataFrame()
    intact = np.array([right for right in kept.correct if right is not None], dtype=bool)
    correct = kept.shared(protocol, "correct")
    log_prob = kept.shared(protocol, "log_prob")
    deletion = _deletion(protocol)
    if correct is None or log_prob is None or deletion is None:
        return None, pd.DataFrame({"intact": intact.astype(float)}, index=ids)
    columns = readings(intact, correct.numpy()[labelled], log_prob.numpy()[labelled])
    return deletion, pd.DataFrame(columns, index=ids)


def _rows(views: dict[ViewKey, pd.DataFrame], columns: dict[str, str]) -> list[Row]:
    """Return the accuracy before and after fine-tuning, and the paired change."""
    rows = []
    for view, frame in views.items():
        label = "fine-tuned" if view.is_fine_tuned else "original"
        rows.append(Row(label, len(frame), [proportion(frame[c].to_numpy()) for c in columns]))
    if PLAIN_VIEW in views and len(views) > 1:
        fine_tuned = next(frame for view, frame in views.items() if view.is_fine_tuned)
        before, after = views[PLAIN_VIEW].align(fine_tuned, join="inner", axis=0)
        if len(before):
            changes = [change(before[c].to_numpy(), after[c].to_numpy()) for c in columns]
            rows.append(Row("change", len(before), changes, change=True))
    return rows
