"""Where maps of grids of images point (Rao et al. 2024): localization as box plots and cell by cell, and all maps of a method at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.compare import table
from heatproof.analysis.ranks import Key
from heatproof.errors import HeatproofError
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.grids import Localization
from heatproof.report import charts, pictures
from heatproof.report.charts import Axis, Box, BoxRow, Panel, Shares
from heatproof.report.run_data import CONTROL, Kept, Run
from heatproof.report.sections import grid_facts
from heatproof.report.sections.base import section
from heatproof.report.sections.grid_facts import Place
from heatproof.report.site import Figure, Site
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import EDGES, aggregate_maps, bin_slices, share_of

LAYERS = (
    "input",
    "middle",
    "final",
    "cam",
)  # the names of layers in the order of depth; others come after them
COARSER = (EDGES, (0, 10, 50, 90, 100), (0, 50, 100))  # bins, for fewer and fewer maps
MOST_MAPS = 200  # that are laid over each other; more would be a matter of gigabytes
MOST_PLACES = 24  # methods at layers in one figure of pairs
MOST_ROWS = 12  # of aggregated maps; beyond, each method is shown at its best layer
WHOLE = Axis(-0.02, 1.02, (0.0, 0.25, 0.5, 0.75, 1.0))


@section("grids", short="Grids", question="Does the map point at the right cell?", order=90)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    keys = [key for key in run.protocols if issubclass(PROTOCOLS[key[0]].cls, Localization)]
    own = {
        s.model: [
            k
            for k, means in zip(s.settings, s.means, strict=True)
            if k in keys and np.isfinite(means).any()
        ]
        for s in run.standings
    }
    found = [_model(run, site, model, judged) for model, judged in own.items() if judged]
    return {"models": found, "bar": site.picture(pictures.scale_bar(False))} if found else None


def _model(run: Run, site: Site, model: str, keys: list[Key]) -> dict[str, Any]:
    tables = {key: table(run.rows, model, key) for key in keys}
    facts = run.facts(model)
    layers = facts.all_layers if facts else []
    places = _places(
        run,
        list(dict.fromkeys(label for scores in tables.values() for label in scores.columns)),
        layers,
    )
    few, settings = _few(places), []
    for key in keys:
        shares, bins = _looked_at(run, site, model, key, places, tables[key])
        over = f"{model}, {run.setting_labels[key]}: mean localization of each method over the depth of the layer, with 95 % intervals"
        settings.append(
            {
                "label": run.setting_labels[key],
                "shares": shares,
                "cells": _cells(site, model, key, few, shares, run.protocols[key].settings["grid"])
                if shares
                else None,
                "aggregated": bins,
                "correlation": _correlation(site, model, key, few, tables[key]),
                "depth": grid_facts.over_depth(
                    site, over, places, layers, tables[key], run.protocols[key].random_score
                ),
                "smoothed": grid_facts.smoothed(places, tables[key]),
            }
        )
    return {
        "model": model,
        "boxes": _boxes(run, site, model, keys, tables, places),
        "maps": {run.setting_labels[key]: len(tables[key]) for key in keys},
        "settings": settings,
        "images": grid_facts.in_every_setting(run, site, model, keys, few),
        "pools": grid_facts.pools(run, model),
        "costs": grid_facts.costs(run, model, keys),
        "left_out": len(places) - len(few),
        "crisp": run.is_crisp(model),
    }


def _places(run: Run, labels: list[str], layers: list[str]) -> list[Place]:
    """Methods in the order of the run, each from its first layer to its last."""
    order = {layer: i for i, layer in enumerate(dict.fromkeys([*LAYERS[:1], *layers, *LAYERS[1:]]))}
    found = []
    for label in labels:
        layer = run.methods[label].layer if label in run.methods else ""
        bare = label.replace(f"@{layer}", "", 1) if layer else label
        found.append(Place(label, bare, layer, run.family(label), order.get(layer, len(order))))
    methods = list(dict.fromkeys(p.method for p in found))
    return sorted(found, key=lambda p: (methods.index(p.method), p.depth))


def _few(places: list[Place]) -> list[Place]:
    """What fits a figure of pairs or of pictures: where there are too many, each method at its first, middle and last layer."""
    if len(places) <= MOST_PLACES:
        return places
    own = {
        method: [p for p in places if p.method == method]
        for method in dict.fromkeys(p.method for p in places)
    }
    return [
        p for at in own.values() for k, p in enumerate(at) if k in (0, len(at) // 2, len(at) - 1)
    ]


def _boxes(
    run: Run,
    site: Site,
    model: str,
    keys: list[Key],
    tables: dict[Key, pd.DataFrame],
    places: list[Place],
) -> Figure:
    def box(key: Key, place: Place) -> Box | str:
        values = tables[key][place.label].dropna() if place.label in tables[key] else []
        return (
            Box.of(list(values), f"{place.label} at {place.layer}, {run.setting_labels[key]}")
            if len(values)
            else "no score"
        )

    panels = [
        Panel(run.setting_labels[key], WHOLE, run.protocols[key].random_score) for key in keys
    ]
    rows = [
        BoxRow(p.method, p.layer, p.label, p.family, tuple(box(key, p) for key in keys))
        for p in places
    ]
    return site.figure(
        charts.boxes(
            panels,
            rows,
            f"{model}: share of the positive attribution in the judged cell, for each method and layer",
        )
    )


def _looked_at(
    run: Run, site: Site, model: str, key: Key, places: list[Place], scores: pd.DataFrame
) -> tuple[dict[str, list[Shares]], dict[str, Any] | None]:
    """What the maps of one setting share out to the cells, and the maps of the first judged cell laid over each other."""
    protocol = run.protocols[key]
    side = protocol.settings["grid"]
    shares: dict[str, list[Shares]] = {}
    bins = None
    for view in (v for v, keys in run.views(model).items() if key in keys):
        kept = run.kept(model, view)
        if not kept.ids or view.cell is None:
            continue
        cell = view.cell
        sums = {
            p: found.double()
            for p in places
            if (found := kept.curves(protocol, p.label, "cells")) is not None
        }
        for place, each in sums.items():
            known = each[torch.isfinite(each).all(1) & (each.sum(1) > 0)]
            if len(known):
                mean = (known / known.sum(1, keepdim=True)).mean(0)
                shares.setdefault(place.label, []).append(Shares(tuple(mean.tolist()), cell))
        bins = bins or _aggregated(site, kept, _chosen(list(sums), scores), sums, cell, side)
    return shares, bins


def _cells(
    site: Site,
    model: str,
    key: Key,
    places: list[Place],
    shares: dict[str, list[Shares]],
    side: int,
) -> Figure:
    shown = [p for p in places if p.label in shares]
    rows = list(dict.fromkeys((p.method, p.family) for p in shown))
    layers = list(dict.fromkeys(p.layer for p in sorted(shown, key=lambda p: p.depth)))
    at = {(p.method, p.family, p.layer): shares[p.label] for p in shown}
    found = [[at.get((*row, layer), []) for layer in layers] for row in rows]
    title = f"{model}, {key[0]}: mean share of the positive attribution in every cell, for each judged cell"
    return site.figure(charts.shared_out(rows, layers, found, side, title))


def _chosen(places: list[Place], scores: pd.DataFrame) -> list[Place]:
    """All but controls; where that is too many, each method at the layer where it localises best."""
    real = [p for p in places if p.family != CONTROL]
    if len(real) <= MOST_ROWS:
        return real
    best = {p.method: p for p in sorted(real, key=lambda p: float(scores[p.label].mean()))}
    return [p for p in real if best[p.method] == p]


def _aggregated(
    site: Site, kept: Kept, places: list[Place], sums: dict[Place, Tensor], cell: int, side: int
) -> dict[str, Any] | None:
    """AggAtt of the samples whose maps were kept."""
    samples = list(kept.shown)[:MOST_MAPS]
    edges = next((edges for edges in COARSER if _fill(len(samples), edges)), None)
    if edges is None:
        return None
    rows = [row for p in places if (row := _binned(site, kept, samples, p, sums[p], cell, edges))]
    if not rows:
        return None
    return {
        "rows": rows,
        "titles": [f"{a}–{b} %" for a, b in pairwise(edges)],
        "maps": len(samples),
        "of": len(kept.ids),
        "every_layer": len(places) == sum(p.family != CONTROL for p in sums),
        "frame": charts.judged_frame(side, cell),
        "row": cell // side + 1,
        "column": cell % side + 1,
    }


def _fill(count: int, edges: tuple[float, ...]) -> bool:
    try:
        return bool(bin_slices(count, edges))
    except HeatproofError:
        return False


def _binned(
    site: Site,
    kept: Kept,
    samples: list[str],
    place: Place,
    sums: Tensor,
    cell: int,
    edges: tuple[float, ...],
) -> dict[str, Any] | None:
    found = dict(_maps(kept, samples, place.label))
    rows = {sample: kept.ids.index(sample) for sample in found}
    known = [sample for sample, row in rows.items() if torch.isfinite(sums[row]).all()]
    if not _fill(len(known), edges):
        return None
    own = sums[[rows[sample] for sample in known]]
    image = kept.image(known[0])
    assert image is not None
    size = (image.shape[1], image.shape[2])
    maps = torch.cat([resize(found[sample][None], *size) for sample in known])
    scores = share_of(own, cell)
    plain = aggregate_maps(maps, scores, own[:, cell], edges)
    signed = (
        aggregate_maps(maps, scores, own[:, cell], edges, signed=True)
        if pictures.is_signed(maps)
        else None
    )
    bins = []
    for i, part in enumerate(bin_slices(len(known), edges)):
        middle = int(plain.order[(part.start + part.stop - 1) // 2])
        photo = kept.image(known[middle])
        assert photo is not None
        bins.append(
            {
                "map": site.picture(pictures.heatmap(plain.bins[i], size, False, plain.scale)),
                "signed": site.picture(
                    pictures.heatmap(signed.bins[i], size, True, signed.scale, small=True)
                )
                if signed
                else None,
                "score": float(scores[plain.order[part]].mean()),
                "count": part.stop - part.start,
                "photo": site.picture(pictures.photo(photo, small=True)),
                "example": site.picture(
                    pictures.heatmap(maps[middle], size, signed is not None, small=True)
                ),
                "example_score": float(scores[middle]),
                "sample": known[middle],
            }
        )
    return {
        "method": place.method,
        "layer": place.layer,
        "label": place.label,
        "family": place.family,
        "bins": bins,
    }


def _maps(kept: Kept, samples: list[str], label: str) -> Iterator[tuple[str, Tensor]]:
    """At their layer's resolution, in their own size."""
    for sample in samples:
        values = kept.unscaled_map(sample, label)
        if values is not None:
            yield sample, values


def _correlation(
    site: Site, model: str, key: Key, places: list[Place], scores: pd.DataFrame
) -> dict[str, Any] | None:
    """Spearman's, over the samples that both have; nan where a method scores the same everywhere."""
    shown = [p for p in places if p.label in scores and scores[p.label].notna().sum() > 2]
    if len(shown) < 2:
        return None
    values = scores[[p.label for p in shown]].corr(method="spearman").to_numpy(np.float64)
    title = f"{model}, {key[0]}: Spearman correlation of the localization of two methods over the samples"
    figure = charts.matrix(
        [(f"{p.method} at {p.layer}", p.family) for p in shown], values.tolist(), title
    )
    return {"figure": site.figure(figure), "values": values, "labels": [p.label for p in shown]}
