"""Maps for the overview: three samples by the methods that a reader wants to see side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import CRISP_BELOW_PIXELS, RunStatistics
from heatproof.figures import pictures
from heatproof.report.sections.common import select, size_of
from heatproof.report.site import Site
from heatproof.runs.run import Kept
from heatproof.tensor.rank import spearman

POPULAR = ("gradcam", "ig", "saliency", "ixg", "rise", "lime", "vit-gradcam", "rollout")
SIDE = 28  # px: maps are reduced to this size before they are compared
MOST_COMPARED = 12  # methods whose agreement is measured, the best first
MOST_SAMPLES = 64  # that examples are chosen from


@dataclass(frozen=True)
class Column:
    """A method, and why it is shown."""

    method: str
    roles: list[str]
    family: str
    summary: str


@dataclass(frozen=True)
class Picture:
    """A map with its score."""

    file: str
    score: float | None


@dataclass(frozen=True)
class Row:
    """A sample, and the maps of all columns; None where a method has none."""

    sample: str
    why: str
    label: str
    photo: str
    maps: list[Picture | None]


@dataclass(frozen=True)
class ExampleMaps:
    """Photos with maps of a model."""

    columns: list[Column]
    rows: list[Row]
    setting: str
    meaning: str  # of its scores
    crisp: bool
    compared: int  # methods whose agreement was measured


def example_maps(run: RunStatistics, site: Site, evidence: Evidence) -> ExampleMaps | None:
    """Return maps of the methods that matter, on three samples; None if no maps were kept."""
    key = _setting(run, evidence)
    kept = run.kept(evidence.model, run.view_of(evidence.model, key))
    samples = list(kept.with_images)[:MOST_SAMPLES]
    columns = _columns(run, evidence, kept)
    if not samples or not columns:
        return None
    compared = [m for m in evidence.real if kept.has_maps(m)][:MOST_COMPARED]
    scores = select(run.rows, evidence.model, key)
    scores = scores[scores["method"].isin([column.method for column in columns])]
    values = {
        (str(sample), str(method)): float(value)
        for sample, method, value in zip(
            scores["sample"], scores["method"], scores["value"], strict=True
        )
        if value == value
    }
    rows = []
    for sample, why in choose(samples, agreement(kept, samples, compared)):
        image = kept.image(sample)
        maps = [_picture(site, kept, sample, c.method, values) for c in columns]
        label = run.class_name(evidence.model, kept.confidence(kept.ids.index(sample))[0])
        rows.append(Row(sample, why, label, site.picture(pictures.photo(image)), maps))
    crisp = max(size_of(kept.image(samples[0]))) < CRISP_BELOW_PIXELS
    label = run.setting_labels[key]
    setting = label if label.startswith(key[0]) else f"{key[0]} ({label})"
    protocol = run.protocols[key]
    better = "higher" if protocol.higher_is_better else "lower"
    meaning = f"{protocol.summary}; {better} is better"
    return ExampleMaps(columns, rows, setting, meaning, crisp, len(compared))


def _setting(run: RunStatistics, evidence: Evidence) -> Key:
    """Return the first setting that counts, on a fine-tuned network if there is one."""
    keys = [(s.key[1], s.key[2], s.key[3]) for s in evidence.used]
    return next(key for key in run.preferred if key in keys)


def shown_methods(run: RunStatistics, evidence: Evidence, kept: Kept) -> dict[str, list[str]]:
    """Return the methods that a reader wants to see first, and why, as far as there are maps.

    They are the leader, the cheapest that may be as good, a popular one and the best control.
    """
    roles: dict[str, list[str]] = {}

    def add(method: str, role: str) -> None:
        if method and kept.has_maps(method):
            roles.setdefault(method, []).append(role)

    add(evidence.leader, "ranks first")
    add(evidence.cheapest, "cheapest that may be as good")
    bases = {run.methods[m].layerless_base: m for m in reversed(evidence.real)}
    popular = [bases[name] for name in POPULAR if name in bases]
    if popular and popular[0] not in roles:
        add(popular[0], "often used")
    add(next(iter(evidence.ranked_controls), ""), "best control")
    others = [m for m in evidence.real if m not in roles and kept.has_maps(m)]
    if len(roles) < 4 and others:
        add(others[0], "next in rank")
    return dict(sorted(roles.items(), key=lambda item: item[0] in evidence.controls))


def _columns(run: RunStatistics, evidence: Evidence, kept: Kept) -> list[Column]:
    return [
        Column(method, reasons, run.family(method), run.methods[method].summary)
        for method, reasons in shown_methods(run, evidence, kept).items()
    ]


def agreement(kept: Kept, samples: Sequence[str], methods: Sequence[str]) -> dict[str, float]:
    """Return how far the maps of methods agree on each sample, which all of them have a map of.

    It is the mean rank correlation between the maps of all pairs of methods, reduced to 28 × 28.
    """
    found = {}
    for sample in samples:
        maps = [_reduced(kept.map(sample, method)) for method in methods]
        finite = [m for m in maps if m is not None]
        if len(finite) < max(2, len(methods)):
            continue
        first, second = torch.triu_indices(len(finite), len(finite), 1)
        flat = torch.stack(finite)
        found[sample] = float(spearman(flat[first], flat[second]).nanmean())
    return found


def _reduced(values: Tensor | None) -> Tensor | None:
    if values is None or not bool(torch.isfinite(values).all()):
        return None
    height, width = (min(side, SIDE) for side in values.shape)
    pooled = torch.nn.functional.adaptive_avg_pool2d(values.double()[None], (height, width))[0]
    return pictures.resized(pooled, (SIDE, SIDE)).flatten().double()


def choose(samples: Sequence[str], agreement: dict[str, float]) -> list[tuple[str, str]]:
    """Choose the samples of median, largest and smallest agreement, with what they are."""
    ordered = sorted(agreement, key=lambda sample: agreement[sample])
    if len(ordered) < 3:
        return [(sample, "") for sample in samples[:3]]
    middle, last = ordered[(len(ordered) - 1) // 2], ordered[-1]
    return [
        (middle, "typical"),
        (last, "maps agree"),
        (ordered[0], "maps differ"),
    ]


def _picture(
    site: Site,
    kept: Kept,
    sample: str,
    method: str,
    values: dict[tuple[str, str], float],
) -> Picture | None:
    stored = kept.map(sample, method)
    if stored is None or not bool(torch.isfinite(stored).all()):
        return None
    size = size_of(kept.image(sample))
    drawn = pictures.heatmap(stored, size, pictures.is_signed(stored))
    return Picture(site.picture(drawn), values.get((sample, method)))
