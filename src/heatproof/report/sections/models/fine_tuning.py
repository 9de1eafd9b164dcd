"""How far each network was fine-tuned: settings, and what was measured after every epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatproof.analysis.accuracy import Z
from heatproof.analysis.fine_tuning import Warnings, fine_tuning_warnings, worst_patch
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.plan.open_models import FINE_TUNING_LABELS
from heatproof.protocols import ViewKey
from heatproof.report.site import Figure, Site
from heatproof.runs.format import EpochFacts, FineTuningFacts

FAMILY = "other"  # of the lines: they are networks, not methods


@dataclass(frozen=True)
class Row:
    """A fine-tuned network; the estimates are None if its weights do not say them."""

    name: str
    facts: FineTuningFacts | None
    worst: tuple[Estimate, Estimate] | None  # before and after
    idsds: tuple[Estimate, Estimate] | None


@dataclass(frozen=True)
class Chart:
    """The measurements of some networks over the epochs."""

    title: str
    worst: Figure
    idsds: Figure | None


@dataclass(frozen=True)
class FineTuning:
    """All networks that were fine-tuned for the same patches and baseline."""

    title: str
    rows: list[Row]
    charts: list[Chart]
    warnings: Warnings
    probes: list[str]


def content(run: RunStatistics, site: Site) -> list[FineTuning]:
    """Return one entry per number of patches and baseline."""
    views: dict[ViewKey, dict[str, FineTuningFacts | None]] = {}
    for model in run.models:
        for view in run.networks(model):
            facts = run.facts(model, view)
            if view.is_fine_tuned and facts is not None:
                views.setdefault(view, {})[run.short_names[model]] = facts.fine_tuning
    return [_content(site, view, networks) for view, networks in views.items()]


def _content(
    site: Site, view: ViewKey, networks: Mapping[str, FineTuningFacts | None]
) -> FineTuning:
    recorded = {name: facts for name, facts in networks.items() if facts and facts.history}
    groups = _groups(recorded)
    if all(len(group) == 1 for group in groups.values()) and recorded:
        groups = {"all networks" if len(recorded) > 1 else next(iter(recorded)): recorded}
    return FineTuning(
        title=view.description,
        rows=[_row(name, facts) for name, facts in networks.items()],
        charts=[_chart(site, title, group) for title, group in groups.items()],
        warnings=fine_tuning_warnings(networks),
        probes=sorted({m for facts in recorded.values() for m in facts.history[-1].probes}),
    )


def _groups(recorded: Mapping[str, FineTuningFacts]) -> dict[str, dict[str, FineTuningFacts]]:
    """Return the networks that were fine-tuned from the same weights, by what they are called."""
    bases: dict[str, dict[str, FineTuningFacts]] = {}
    for name, facts in recorded.items():
        bases.setdefault(facts.base, {})[name] = facts
    groups = {}
    for group in bases.values():
        groups[_common_words(list(group)) or next(iter(group))] = group
    return groups


def _common_words(names: Sequence[str]) -> str:
    """Return the words that all names begin with, without the name of the setting that varies."""
    common = []
    for words in zip(*(name.split() for name in names), strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    title = " ".join(common)
    for label in FINE_TUNING_LABELS.values():
        title = title.removesuffix(label).strip()
    return title


def _row(name: str, facts: FineTuningFacts | None) -> Row:
    if facts is None or not facts.history:
        return Row(name, facts, None, None)
    before = facts.history[0]
    after = facts.kept_epoch
    idsds = None
    if before.idsds is not None and after.idsds is not None:
        idsds = (probe_idsds(before), probe_idsds(after))
    return Row(name, facts, (worst_patch(facts, before), worst_patch(facts, after)), idsds)


def probe_idsds(epoch: EpochFacts) -> Estimate:
    """Estimate the mean IDSDS of the probe methods after an epoch."""
    value = math.nan if epoch.idsds is None else epoch.idsds
    error = math.nan if epoch.idsds_error is None else epoch.idsds_error
    return Estimate(value, value - Z * error, value + Z * error)


def _chart(site: Site, title: str, group: Mapping[str, FineTuningFacts]) -> Chart:
    worst = {
        name: [worst_patch(facts, epoch) for epoch in facts.history]
        for name, facts in group.items()
    }
    idsds = {name: [probe_idsds(epoch) for epoch in facts.history] for name, facts in group.items()}
    measured = any(math.isfinite(e.value) for estimates in idsds.values() for e in estimates)
    return Chart(
        title,
        _figure(site, worst, "worst-patch accuracy", title),
        _figure(site, idsds, "mean IDSDS of the probe methods", title) if measured else None,
    )


def _figure(site: Site, lines: Mapping[str, list[Estimate]], label: str, title: str) -> Figure:
    epochs = max(len(estimates) for estimates in lines.values()) - 1
    step = max(1, math.ceil(epochs / 8))
    across = Axis(0.0, float(epochs), tuple(float(e) for e in range(0, epochs + 1, step)))
    values = [v for estimates in lines.values() for e in estimates for v in e]
    drawn = []
    for dash, (name, estimates) in enumerate(lines.items()):
        numbers = range(len(estimates))
        drawn.append(
            Trace(
                name,
                FAMILY,
                values=tuple(e.value for e in estimates),
                positions=tuple(k / max(epochs, 1) for k in numbers),
                low=tuple(e.low for e in estimates) if len(lines) == 1 else (),
                high=tuple(e.high for e in estimates) if len(lines) == 1 else (),
                dash=dash,
                steps=tuple(f"epoch {k}" for k in numbers),
            )
        )
    titles = ("epoch of fine-tuning", label)
    heading = f"{label} over the epochs of fine-tuning, {title}"
    return site.figure(
        CurveChart(heading, drawn, Axis.around(values), titles, across=across, unit="")
    )
