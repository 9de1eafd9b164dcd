"""Some samples with the maps of all methods, the score of each, and the true drops they are judged against."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from heatproof.analysis.ranks import Key
from heatproof.bench.layout import ModelView, ProtocolFacts
from heatproof.protocols import ViewKey
from heatproof.report import charts, pictures
from heatproof.report.palette import FAMILIES
from heatproof.report.run_data import (
    CRISP_BELOW,
    Kept,
    Run,
    confidence,
    mean_scores,
)
from heatproof.report.sections.base import section
from heatproof.report.site import Site
from heatproof.tensor.patches import patch_sums

FIRST, BEST, WORST = 6, 3, 3
ENDS = ("best for most methods", "worst for most methods")
BYTES = 3_000_000  # for all maps


@section(
    "gallery",
    short="Gallery",
    question="What do the maps look like, and what are they judged against?",
    order=100,
)
def content(run: Run, site: Site) -> dict[str, Any]:
    return {
        "models": [m for s in run.standings if (m := _model(run, site, s.model, s.order))],
        "bars": {
            "signed": site.picture(pictures.scale_bar(True)),
            "unsigned": site.picture(pictures.scale_bar(False)),
        },
        "settings": [
            {"label": run.setting_labels[key], "judge": p} for key, p in run.protocols.items()
        ],
        "families": list(FAMILIES),
    }


def _model(run: Run, site: Site, model: str, order: list[str]) -> dict[str, Any] | None:
    """The same samples in every view, so that choosing a setting shows what changes."""
    rows = run.rows[run.rows["model"] == model]
    methods = [*order, *(m for m in dict.fromkeys(rows["method"]) if m not in order)]
    size = run.image_size(model) or 64
    room = BYTES // int(
        sum(len(_apart(run.views(m))) for m in run.models) * (len(methods) + 1) * 0.25 * size**2
    )
    real = [m for m in order if not run.is_control(m)] or order
    best_first, count = (
        [str(s) for s in mean_scores(rows, real).index],
        max(3, min(FIRST + BEST + WORST, room)),
    )
    views = [
        v
        for view in _apart(run.views(model))
        if (v := _view(run, site, model, view, methods, best_first, count))
    ]
    return {"name": model, "views": views, "crisp": size < CRISP_BELOW} if views else None


def _apart(views: Iterable[ViewKey]) -> list[ViewKey]:
    """Of grids that are judged cell by cell, the first."""
    first: dict[ViewKey, ViewKey] = {}
    for view in views:
        first.setdefault(replace(view, cell=None), view)
    return list(first.values())


def _view(
    run: Run,
    site: Site,
    model: str,
    view: ViewKey,
    methods: list[str],
    best_first: list[str],
    count: int,
) -> dict[str, Any] | None:
    kept = run.kept(model, view)
    settings = {i: key for i, key in enumerate(run.protocols) if key in run.views(model)[view]}
    protocols = list(dict.fromkeys(key[0] for key in run.protocols))
    by = f" under {protocols[0]}" if len(protocols) > 1 else ""
    chosen = {
        s: why + (by if why in ENDS else "")
        for s, why in choose(list(kept.shown), best_first, count).items()
    }
    if not chosen:
        return None
    signed = {
        m: any(pictures.is_signed(v) for s in kept.shown if (v := kept.map(s, m)) is not None)
        for m in methods
    }
    rows = run.rows[(run.rows["model"] == model) & run.rows["sample"].isin(list(chosen))]
    scores = {
        (r["sample"], r["method"], (r["protocol"], r["setting"], r["baseline"])): r
        for r in rows.to_dict("records")
    }
    return {
        "title": ModelView(model, view).title,
        "fine_tuned": view.is_fine_tuned,
        "settings": list(settings),
        "samples": [
            _sample(run, site, model, kept, s, why, methods, signed, scores, settings)
            for s, why in chosen.items()
        ],
        "kept": len(kept.shown),
        "of": len(kept.ids),
    }


def choose(samples: list[str], best_first: list[str], count: int) -> dict[str, str]:
    """Which to show, and why: the best and the worst of all, and before them the first of the others."""
    known = set(samples)
    ranked = [s for s in best_first if s in known]
    ends = min(BEST, count // 3, len(ranked) // 3)
    extremes = dict.fromkeys(ranked[:ends], ENDS[0]) | dict.fromkeys(ranked[::-1][:ends], ENDS[1])
    others = [s for s in samples if s not in extremes]
    return dict.fromkeys(others[: count - len(extremes)], "one of the first") | extremes


def _sample(
    run: Run,
    site: Site,
    model: str,
    kept: Kept,
    sample: str,
    why: str,
    methods: list[str],
    signed: dict[str, bool],
    scores: dict[Any, Any],
    settings: dict[int, Key],
) -> dict[str, Any]:
    image = kept.image(sample)
    assert image is not None
    height, width = image.shape[1:]
    row = kept.ids.index(sample)
    predicted, sure = confidence(kept.logits[row])
    drops = {i: d for i, key in settings.items() if (d := _drops(kept, sample, run.protocols[key]))}
    counts = sorted({len(d["values"]) for d in drops.values()})
    tiles = []
    for method in methods:
        values = kept.map(sample, method)
        usable = values is not None and bool(torch.isfinite(values).all())
        tiles.append(
            {
                "method": method,
                "family": run.family(method),
                "signed": signed[method],
                "file": site.picture(pictures.heatmap(values, (height, width), signed[method]))
                if usable and values is not None
                else None,
                "sums": json.dumps(
                    {
                        p: _rounded(
                            patch_sums(pictures.resized(values, (height, width))[None], p)[0]
                        )
                        for p in counts
                    }
                )
                if usable and values is not None
                else "",
                "scores": {
                    i: _score(scores.get((sample, method, key))) for i, key in settings.items()
                },
            }
        )
    return {
        "id": sample,
        "why": why,
        "photo": site.picture(pictures.photo(image)),
        "width": width,
        "height": height,
        "label": run.class_name(model, kept.labels[row]),
        "predicted": run.class_name(model, predicted),
        "sure": sure,
        "right": kept.labels[row] == predicted if kept.labels[row] is not None else None,
        "drops": drops,
        "tiles": tiles,
    }


def _drops(kept: Kept, sample: str, protocol: ProtocolFacts) -> dict[str, Any] | None:
    """Of protocols that delete one patch at a time."""
    drops = kept.shared_row(sample, protocol, "drops")
    if drops is None or math.isqrt(len(drops)) ** 2 != len(drops):
        return None
    values = [float(v) for v in drops]
    scale = max(abs(v) for v in values)
    title = f"How far the score of the target drops when one patch is replaced by the baseline {protocol.baseline}"
    return {
        "values": values,
        "json": json.dumps(_rounded(drops)),
        "svg": charts.patches(values, scale, title),
    }


def _rounded(values: torch.Tensor) -> list[float]:
    return [
        float(np.format_float_positional(v, precision=5, fractional=False, trim="-"))
        for v in values.double().numpy()
    ]


def _score(row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {"text": "not judged", "value": None, "message": ""}
    scored = row["status"] == "ok"
    return {
        "text": charts.number(row["value"], 2) if scored else row["status"],
        "value": row["value"] if scored else None,
        "message": row["message"],
    }
