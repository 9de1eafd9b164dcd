"""Modified maps: how far apart the curves of each metric are (Li et al. 2024, Table 1, Fig. 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from heatproof.analysis import wording
from heatproof.analysis.distinctness import Curve, Distances, Trio, distances, trios
from heatproof.analysis.published_tables import published_table
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures
from heatproof.figures.axes import Axis
from heatproof.figures.charts import ChangedMapChart, Trace
from heatproof.report.sections.common import size_of
from heatproof.report.site import Figure, Site
from heatproof.runs.run import Kept
from heatproof.tensor.soundness import relative

KINDS = {"original": "cam", "removed": "gradient", "introduced": "perturbation"}  # and a colour
SAMPLES = 3


@dataclass(frozen=True)
class Panel:
    """A sample with its maps."""

    sample: str
    photo: str
    rows: dict[str, list[str | None]]  # method -> its map, and each modification


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    distances: dict[str, Distances]  # by label of the setting
    answers: list[str]  # which metrics distinguish the maps, in words
    trios: list[tuple[Trio, dict[str, Figure]]]  # with its curves, by label of the setting
    panels: list[Panel]
    schemes: list[str]
    kinds: list[tuple[str, str]]
    published: str  # what the paper reports


def content(
    run: RunStatistics,
    site: Site,
    model: str,
    kept: Kept,
    metrics: Mapping[Key, Mapping[str, Curve]],
    titles: Mapping[Key, tuple[str, str]],
) -> Content | None:
    """Compare the curves of modified maps.

    Args:
        run: The run.
        site: The site that the figures become part of.
        model: Name of the model.
        kept: Its stored tensors.
        metrics: The curve of each method, for each setting.
        titles: Titles of the horizontal and vertical axis, for each setting.

    Returns:
        The comparison of the maps that all metrics evaluated; None if there are none.
    """
    compared = [
        trio
        for trio in trios(run.methods)
        if all(name in metric for metric in metrics.values() for name in trio.names)
    ]
    if not compared:
        return None
    names = dict.fromkeys(name for trio in compared for name in trio.names)
    labels = run.setting_labels
    by_label = {labels[key]: {name: m[name] for name in names} for key, m in metrics.items()}
    found = distances(compared, by_label)
    figures = []
    for trio in compared:
        by_setting = {
            labels[key]: site.figure(_chart(model, key, labels[key], metric, titles[key], trio))
            for key, metric in metrics.items()
        }
        figures.append((trio, by_setting))
    return Content(
        distances=found,
        answers=[
            wording.distinguishes(label, sum(d.distinct for d in of_metric.each), len(compared))
            for label, of_metric in found.items()
        ],
        trios=figures,
        panels=_panels(site, kept, compared),
        schemes=list(dict.fromkeys(trio.scheme for trio in compared)),
        kinds=list(KINDS.items()),
        published=_published(),
    )


def _published() -> str:
    """Return the means that Li et al. report, with what they were measured on."""
    table = published_table("li2024/table1")
    values = ", ".join(f"{e.row} {e.value:.3f} ± {e.spread:.3f}" for e in table.entries)
    return f"Li et al., Table 1 ({table.data}), report the means {values}."


def _chart(
    model: str,
    key: Key,
    label: str,
    metric: Mapping[str, Curve],
    titles: tuple[str, str],
    trio: Trio,
) -> ChangedMapChart:
    points = [metric[name].curve_of(metric[name].measured) for name in trio.names]
    lines = [
        Trace(kind, family, tuple(xy[:, 1]), tuple(xy[:, 0]))
        for (kind, family), xy in zip(KINDS.items(), points, strict=True)
    ]
    up = Axis.around([v for xy in points for v in xy[:, 1]], most=5)
    title = (
        f"{trio.base}, {trio.scheme}, {label}: {titles[1]} over {titles[0]}, for the original map "
        "and with attribution removed and introduced"
    )
    panel = f"{trio.base}, {trio.scheme}, {label}"
    return ChangedMapChart(title, lines, up, titles, model=model, protocol=key[0], panel=panel)


def _panels(site: Site, kept: Kept, compared: list[Trio]) -> list[Panel]:
    """Return the first images with all maps, on a scale from 0 to 1."""
    panels = []
    for sample in list(kept.with_images)[:SAMPLES]:
        image = kept.image(sample)
        rows = {}
        for base in dict.fromkeys(trio.base for trio in compared):
            of_base = [trio for trio in compared if trio.base == base]
            original = kept.unscaled_map(sample, of_base[0].original)
            if original is not None:
                original = relative(original[None])[0]
            maps = [original]
            for trio in of_base:
                maps.append(kept.unscaled_map(sample, trio.removed))
                maps.append(kept.unscaled_map(sample, trio.introduced))
            rows[base] = [_map(site, values, size_of(image)) for values in maps]
        panels.append(Panel(sample, site.picture(pictures.photo(image)), rows))
    return panels


def _map(site: Site, values: torch.Tensor | None, size: tuple[int, int]) -> str | None:
    if values is None:
        return None
    return site.picture(pictures.heatmap(torch.nan_to_num(values), size, False, 1.0))
