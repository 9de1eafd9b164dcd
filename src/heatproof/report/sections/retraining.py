"""Networks taught on changed images (Li et al. 2024): how often each is right on what, and whether maps find what tells the class."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from heatproof.analysis.accuracy import share
from heatproof.analysis.intervals import Estimate
from heatproof.bench.spec import PLAIN
from heatproof.report import charts, pictures
from heatproof.report.run_data import Kept, Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

MASS = "attr-mass"


@section(
    "retraining",
    short="Changed images",
    question="What does a network learn from changed images, and do maps find it?",
    order=50,
)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    """Nothing, where every model was taught on images as they are."""
    told = dict(zip(run.models, run.provenance.spec.get("models", []), strict=False))
    changes = {
        model: (one.get("trained_on"), one.get("evaluated_on") or one.get("trained_on"))
        for model, one in told.items()
        if isinstance(one, dict)
    }
    changes = {model: both for model, both in changes.items() if any(both)}
    if not changes:
        return None
    kept = {model: run.kept(model) for model in changes}
    rows = [
        {
            "model": model,
            "trained_on": taught or "as it came",
            "shown": shown or PLAIN,
            **_right(kept[model]),
        }
        for model, (taught, shown) in changes.items()
    ]
    return {
        "rows": rows,
        "mass": _mass(run, list(changes)),
        "pictures": _pictures(run, site, kept),
        "crisp": _crisp(run, list(changes)),
    }


def _right(kept: Kept) -> dict[str, Any]:
    right = [
        int(logits.argmax()) == label
        for logits, label in zip(kept.logits, kept.labels, strict=True)
        if label is not None
    ]
    return {"n": len(right), "accuracy": share(np.array(right, dtype=float)) if right else None}


def _mass(run: Run, models: list[str]) -> dict[str, Any] | None:
    """Attr%, methods down and models across, where some pixels tell the class."""
    rows = run.summary[
        (run.summary["protocol"] == MASS)
        & run.summary["model"].isin(models)
        & (run.summary["n"] > 0)
    ]
    if not len(rows):
        return None
    across = [model for model in models if model in set(rows["model"])]
    cells = {
        (r["model"], r["method"]): Estimate(r["mean"], r["low"], r["high"])
        for r in rows.to_dict("records")
    }
    methods = [
        {
            "name": method,
            "family": run.family(method),
            "cells": [cells.get((model, method)) for model in across],
        }
        for method in dict.fromkeys(rows["method"])
    ]
    return {"models": [run.short_names[model] for model in across], "methods": methods}


def _pictures(run: Run, site: Site, kept: dict[str, Kept]) -> dict[str, Any]:
    """The first sample of every model that has some pixels that tell its class, else the first one, with all its maps."""
    methods = [m for m in run.methods if any(k.has_maps(m) for k in kept.values())]
    scores = run.rows[run.rows["protocol"] == MASS].set_index(["model", "sample", "method"])[
        "value"
    ]
    rows = []
    for model, own in kept.items():
        scored = [
            s
            for s in own.shown
            if all(np.isfinite(scores.get((model, s, m), np.nan)) for m in methods)
        ]
        sample = next(iter(scored or own.shown), None)
        image = own.image(sample) if sample is not None else None
        if sample is None or image is None:
            continue
        tiles = []
        for method in methods:
            values = own.map(sample, method)
            usable = values is not None and bool(torch.isfinite(values).all())
            score = scores.get((model, sample, method), np.nan)
            tiles.append(
                {
                    "method": method,
                    "file": site.picture(
                        pictures.heatmap(
                            values, (image.shape[1], image.shape[2]), pictures.is_signed(values)
                        )
                    )
                    if usable and values is not None
                    else None,
                    "score": charts.number(score, 2) if np.isfinite(score) else "",
                }
            )
        label = run.class_name(model, own.labels[own.ids.index(sample)])
        rows.append(
            {
                "model": run.short_names[model],
                "photo": site.picture(pictures.photo(image)),
                "label": label,
                "tiles": tiles,
            }
        )
    return {"methods": [{"name": m, "family": run.family(m)} for m in methods], "rows": rows}


def _crisp(run: Run, models: list[str]) -> bool:
    return all(run.is_crisp(model) for model in models)
