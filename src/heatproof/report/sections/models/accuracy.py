"""How often each network is right, with and without a patch, before and after fine-tuning."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis.accuracy import change, readings, share
from heatproof.analysis.intervals import Estimate
from heatproof.bench.layout import ProtocolFacts
from heatproof.protocols import ViewKey
from heatproof.report.run_data import PLAIN_VIEW, Kept, Run

READINGS = {  # in the order of the columns
    "intact": "intact image",
    "random": "one patch deleted, on average",
    "worst": "worst patch deleted",
    "whichever": "whichever patch is deleted",
}


class Deletion(NamedTuple):
    patches: int
    baseline: str


def content(run: Run) -> dict[str, Any]:
    """A table for every way of deleting; one with intact images alone, where nothing was deleted patch by patch."""
    found: dict[Deletion | None, dict[str, dict[ViewKey, pd.DataFrame]]] = {}
    for model in run.models:
        for view, keys in run.networks(model).items():
            kept = run.kept(model, view)
            for key in keys:
                deletion, frame = _answers(kept, run.protocols[key])
                if len(frame):
                    found.setdefault(deletion, {}).setdefault(model, {}).setdefault(view, frame)
    some: list[Deletion | None] = [d for d in found if d]
    return {"tables": [_table(run, d, found[d]) for d in _in_order(run, some or list(found))]}


def _table(
    run: Run, deletion: Deletion | None, models: dict[str, dict[ViewKey, pd.DataFrame]]
) -> dict[str, Any]:
    columns = READINGS if deletion else {"intact": READINGS["intact"]}
    told = [
        {"name": run.short_names[model], "rows": _model(views, columns)}
        for model, views in models.items()
    ]
    return {"deletion": deletion, "columns": columns, "models": told}


def _in_order(run: Run, deletions: list[Deletion | None]) -> list[Deletion | None]:
    """As in the rest of the section: those of fine-tuned networks first."""
    wanted = [_deletion(run.protocols[key]) for key in run.preferred]
    return sorted(deletions, key=wanted.index)


def _deletion(protocol: ProtocolFacts) -> Deletion | None:
    patches = protocol.settings.get("patches")
    return Deletion(patches, protocol.baseline) if patches else None


def _answers(kept: Kept, protocol: ProtocolFacts) -> tuple[Deletion | None, pd.DataFrame]:
    """Labelled samples down, readings across."""
    labelled = np.array([label is not None for label in kept.labels], dtype=bool)
    labels = np.array([label for label in kept.labels if label is not None], dtype=int)
    ids = [sample for sample, known in zip(kept.ids, labelled, strict=True) if known]
    if not ids:
        return None, pd.DataFrame()
    correct = np.stack([logits.numpy() for logits in kept.logits])[labelled].argmax(1) == labels
    right, chance = (kept.shared(protocol, name) for name in ("correct", "log_prob"))
    deletion = _deletion(protocol)
    if right is None or chance is None or deletion is None:
        return None, pd.DataFrame({"intact": correct.astype(float)}, index=ids)
    return deletion, pd.DataFrame(
        readings(correct, right.numpy()[labelled], chance.numpy()[labelled]), index=ids
    )


def _model(views: dict[ViewKey, pd.DataFrame], columns: dict[str, str]) -> list[dict[str, Any]]:
    """Before, after, and the paired change."""
    rows = [
        _row(
            "fine-tuned" if view.is_fine_tuned else "as it is",
            frame,
            [share(frame[c].to_numpy()) for c in columns],
        )
        for view, frame in views.items()
    ]
    if PLAIN_VIEW in views and len(views) > 1:
        fine_tuned = next(frame for view, frame in views.items() if view.is_fine_tuned)
        before, after = views[PLAIN_VIEW].align(fine_tuned, join="inner", axis=0)
        if len(before):
            rows.append(
                {
                    **_row(
                        "change",
                        before,
                        [change(before[c].to_numpy(), after[c].to_numpy()) for c in columns],
                    ),
                    "change": True,
                }
            )
    return rows


def _row(what: str, frame: pd.DataFrame, cells: list[Estimate]) -> dict[str, Any]:
    return {"what": what, "n": len(frame), "cells": cells, "change": False}
