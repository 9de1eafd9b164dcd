"""Maps with attribution taken out and put in: how far apart the curves of every metric are (Li et al. 2024, Table 1, Figs 7, 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from heatproof.analysis.distinctness import RESAMPLES, Trio, distinct, trios
from heatproof.analysis.ranks import Key
from heatproof.report import pictures
from heatproof.report.charts import Axis
from heatproof.report.lines import Trace, traces
from heatproof.report.run_data import Kept, Run
from heatproof.report.site import Site
from heatproof.tensor.soundness import relative

KINDS = {"as it is": "cam", "removed": "gradient", "introduced": "perturbation"}  # and a colour
SAMPLES = 3


class Curve(Protocol):
    """What a metric measured of the maps of one method."""

    @property
    def xy(self) -> np.ndarray: ...  # (S, 2)

    def drawn(self, samples: int, resamples: int) -> np.ndarray: ...  # (R, S, 2)


def content(
    run: Run,
    site: Site,
    model: str,
    kept: Kept,
    metrics: Mapping[Key, Mapping[str, Curve]],
    titles: Mapping[Key, tuple[str, str]],
) -> dict[str, Any] | None:
    """Of the maps that all metrics have judged; none where a run has no such maps."""
    found = [
        t
        for t in trios(list(run.methods))
        if all(name in metric for metric in metrics.values() for name in t.names)
    ]
    if not found:
        return None
    columns = []
    for key, metric in metrics.items():
        curves = {
            name: metric[name].xy
            for name in dict.fromkeys(name for trio in found for name in trio.names)
        }
        drawn = {
            name: metric[name].drawn(len(kept.ids), RESAMPLES)
            for name in dict.fromkeys(trio.original for trio in found)
        }
        columns.append({"label": run.setting_labels[key], "found": distinct(found, curves, drawn)})
    return {
        "columns": columns,
        "trios": [
            {
                "base": t.base,
                "scheme": t.scheme,
                "figures": [_figure(run, site, k, m, titles[k], t) for k, m in metrics.items()],
            }
            for t in found
        ],
        "panels": _panels(site, kept, found),
        "schemes": list(dict.fromkeys(t.scheme for t in found)),
        "kinds": list(KINDS.items()),
    }


def _figure(
    run: Run, site: Site, key: Key, metric: Mapping[str, Curve], titles: tuple[str, str], trio: Trio
) -> dict[str, Any]:
    points = [metric[name].xy for name in trio.names]
    lines = [
        Trace(kind, family, tuple(xy[:, 1]), tuple(xy[:, 0]))
        for (kind, family), xy in zip(KINDS.items(), points, strict=True)
    ]
    up = Axis.around([v for xy in points for v in xy[:, 1]], most=5)
    title = f"{trio.base}, {trio.scheme}, {run.setting_labels[key]}: {titles[1]} over {titles[0]}, for the map as it is, less and more"
    return {
        "label": run.setting_labels[key],
        "figure": site.figure(traces(lines, up, titles, title)),
    }


def _panels(site: Site, kept: Kept, found: list[Trio]) -> list[dict[str, Any]]:
    """The first images with all maps of a method, from 0 to 1."""
    panels = []
    for sample in list(kept.shown)[:SAMPLES]:
        image = kept.image(sample)
        assert image is not None
        rows = []
        for base in dict.fromkeys(t.base for t in found):
            own = [t for t in found if t.base == base]
            names = [own[0].original, *(name for t in own for name in (t.removed, t.introduced))]
            maps = [
                _map(
                    site,
                    kept,
                    sample,
                    name,
                    (image.shape[1], image.shape[2]),
                    name == own[0].original,
                )
                for name in names
            ]
            rows.append({"base": base, "maps": maps})
        panels.append(
            {"sample": sample, "photo": site.picture(pictures.photo(image)), "rows": rows}
        )
    return panels


def _map(
    site: Site, kept: Kept, sample: str, name: str, size: tuple[int, int], original: bool
) -> str | None:
    values = kept.unscaled_map(sample, name)
    if values is None:
        return None
    values = relative(values[None])[0] if original else values
    return site.picture(pictures.heatmap(torch.nan_to_num(values), size, False, 1.0))
