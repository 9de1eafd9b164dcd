"""What else a run says of grids (Rao et al. 2024): localization over depth and under smoothing, an image in every setting, pools, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key
from heatproof.expressions import parse_call, split
from heatproof.report import charts, pictures
from heatproof.report.charts import Axis
from heatproof.report.lines import Trace, traces
from heatproof.report.run_data import CONTROL, Kept, Run
from heatproof.report.site import Figure, Site

ALONE = "alone"
MOST_IMAGES = 1  # that are shown in every setting
DEPTH = ("relative depth of the layer", "mean localization")


class Place(NamedTuple):
    """A method at a layer."""

    label: str
    method: str  # without its layer
    layer: str
    family: str
    depth: int  # from the input on


def over_depth(
    site: Site,
    title: str,
    places: Sequence[Place],
    layers: Sequence[str],
    scores: pd.DataFrame,
    random: float,
) -> Figure | None:
    """Figs 9, 26: the mean at every layer with its 95 % band, of methods that have a score at all of them."""
    lines = []
    for method, family in dict.fromkeys((p.method, p.family) for p in places):
        at = {p.layer: p.label for p in places if p.method == method and p.label in scores}
        if len(layers) > 2 and all(layer in at for layer in layers):
            means = [Estimate.mean(scores[at[layer]].to_numpy(float)) for layer in layers]
            if all(np.isfinite(m.value) for m in means):
                values, low, high = zip(*means, strict=True)
                lines.append(Trace(method, family, values, low=low, high=high))
    return (
        site.figure(
            traces(lines, Axis(0.0, 1.02, (0.0, 0.25, 0.5, 0.75, 1.0)), DEPTH, title, random)
        )
        if lines
        else None
    )


def smoothed(places: Sequence[Place], scores: pd.DataFrame) -> dict[str, Any] | None:
    """Tables 1, 2: for every width of the kernel the mean, and Spearman's ρ with Grad-CAM at the last layer over the samples."""
    beside = next(
        (
            p.label
            for p in reversed(places)
            if p.method == "gradcam" and p.layer in ("final", "cam")
        ),
        None,
    )
    rows: dict[tuple[str, str, str], dict[int, Any]] = {}
    for p in (p for p in places if p.label in scores and p.label != beside):
        base, *transforms = split(p.method, "|")
        calls = [parse_call(t) for t in transforms]
        if len(calls) > 1 or any(c.name != "smooth" for c in calls):
            continue
        width = int(calls[0].args[0]) if calls else 0
        rho = (
            scores[[p.label, beside]].corr(method="spearman").iloc[0, 1]
            if beside in scores
            else np.nan
        )
        rows.setdefault((base, p.layer, p.family), {})[width] = (
            Estimate.mean(scores[p.label].to_numpy(float)),
            float(rho),
        )
    rows = {row: found for row, found in rows.items() if len(found) > 1}
    if not rows:
        return None
    widths = sorted({width for found in rows.values() for width in found})
    own = Estimate.mean(scores[beside].to_numpy(float)) if beside in scores else None
    table = [
        {"method": m, "layer": at, "family": f, "cells": [found.get(w) for w in widths]}
        for (m, at, f), found in rows.items()
    ]
    return {"widths": widths, "rows": table, "beside": beside if own else None, "own": own}


def in_every_setting(
    run: Run, site: Site, model: str, keys: Sequence[Key], places: Sequence[Place]
) -> list[dict[str, Any]]:
    """Figs 3, 25: images that were judged in most settings, with the maps of all methods; alone, where the run has that too."""
    seen: dict[str, dict[str, tuple[Kept, str, int | None]]] = {}
    for view, judged in run.views(model).items():
        kept = run.kept(model, view)
        title = next(
            (run.setting_labels[key] for key in keys if key in judged),
            ALONE if view.is_plain else None,
        )
        for sample in kept.shown if title else []:
            grid = kept.grids.get(sample)
            cell = grid.cell if grid else None
            image = grid.images[grid.cell] if grid else sample
            seen.setdefault(image, {}).setdefault(str(title), (kept, sample, cell))
    titles = [
        t
        for t in (ALONE, *(run.setting_labels[key] for key in keys))
        if any(t in found for found in seen.values())
    ]
    grids = {image: found for image, found in seen.items() if set(found) - {ALONE}}
    side = {run.setting_labels[key]: int(run.protocols[key].settings["grid"]) for key in keys}
    chosen = sorted(grids, key=lambda image: -len(grids[image]))[:MOST_IMAGES]
    return [
        _image(site, image, [(t, grids[image].get(t)) for t in titles], side, places)
        for image in chosen
    ]


def _image(
    site: Site,
    name: str,
    settings: Sequence[tuple[str, tuple[Kept, str, int | None] | None]],
    side: Mapping[str, int],
    places: Sequence[Place],
) -> dict[str, Any]:
    def shown(
        of: tuple[Kept, str, int | None] | None, title: str, label: str | None
    ) -> dict[str, Any] | None:
        if of is None:
            return None
        kept, sample, cell = of
        photo = kept.image(sample)
        assert photo is not None
        frame = "" if cell is None else charts.judged_frame(side[title], cell)
        if label is None:
            return {"file": site.picture(pictures.photo(photo)), "frame": frame}
        values = kept.map(sample, label)
        if values is None or not bool(values.isfinite().all()):
            return None
        return {
            "file": site.picture(
                pictures.heatmap(
                    values, (photo.shape[1], photo.shape[2]), pictures.is_signed(values)
                )
            ),
            "frame": frame,
        }

    rows = [
        {
            "method": p.method,
            "layer": p.layer,
            "family": p.family,
            "cells": [shown(of, title, p.label) for title, of in settings],
        }
        for p in places
        if p.family != CONTROL
    ]
    return {
        "name": name,
        "titles": [title for title, _ in settings],
        "photos": [shown(of, title, None) for title, of in settings],
        "rows": [row for row in rows if any(row["cells"])],
    }


def pools(run: Run, model: str) -> list[dict[str, Any]]:
    """How many images of each class the model is sure of; protocols that draw from the same pool once."""
    found: dict[str, dict[str, Any]] = {}
    for view in run.plan.views:
        pool = view.pool
        if view.model == model and pool:
            named = {run.class_name(model, label): count for label, count in pool.items()}
            own = {
                "classes": named,
                "images": sum(pool.values()),
                "least": min(pool.values()),
                "most": max(pool.values()),
            }
            found.setdefault(repr(sorted(pool.items())), own)
    return list(found.values())


def costs(run: Run, model: str, keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Supplement F: what each setting took, from what the run recorded; a backward includes its forward."""
    rows = []
    for key in keys:
        whole = dict.fromkeys(("forward", "backward"), 0)
        later = dict.fromkeys(("forward", "backward"), 0)  # passes that begin at a later layer
        seconds = 0.0
        images = 0
        for task in run.tasks:
            evaluated = task.model == model and run.protocols[key].canonical in task.protocols
            timings = run.store.timings(task.name) if evaluated else None
            if timings is None:
                continue
            for count in timings.passes:
                (later if count.start else whole)[count.kind] += count.images
            seconds += sum(timing.seconds for timing in timings.seconds)
            images += timings.images
        if images:
            rows.append(
                {
                    "label": run.setting_labels[key],
                    "maps": images,
                    "whole": whole,
                    "later": later,
                    "seconds": seconds,
                }
            )
    return rows
