"""All methods under every setting: means and intervals as figures, and one table to filter."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from heatproof.analysis import wording
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key, Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.significance import PairedTests
from heatproof.figures import svg
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Mark, RankingChart
from heatproof.figures.numbers import interval
from heatproof.figures.palette import FAMILIES
from heatproof.report.sections.base import section
from heatproof.report.sections.common import describe_mean, panel_title, select
from heatproof.report.sections.verdict_details import rank_axis
from heatproof.report.site import Figure, Site
from heatproof.runs.format import ProtocolFacts
from heatproof.text import with_short_titles, without_formulas

ROOM = {1: 480.0, 2: 330.0}  # px for the marks, by the number of panels side by side
GZIP_ABOVE = 15_000  # rows: an uncompressed file would have some 2 MB
MOST_ROWS = 1_000_000  # more are only in the run directory, so that a report stays small


class OverallRow(NamedTuple):
    """A method over all settings; its position is None if a score is missing."""

    method: str
    position: int | None
    rank: Estimate
    interval: Markup  # the mean rank, drawn
    means: list[float]  # per setting


class Choices(NamedTuple):
    """The filters of the page; numbers stand for names, which may be long."""

    models: list[str]
    layers: list[str]
    protocols: list[str]
    baselines: list[str]
    families: list[str]


@dataclass(frozen=True)
class Panel:
    """A setting."""

    label: str
    figure: Figure
    rows: list[dict[str, Any]]  # lines of the summary, best first, with a drawn interval
    protocol: ProtocolFacts
    counts: SampleCounts
    best_two: str  # what it takes to tell the best two methods apart; empty without a test


@dataclass(frozen=True)
class Ranking:
    """All settings of a model, for the methods at one layer or for all."""

    layer: str  # empty if all methods are ranked together
    panels: list[Panel]
    overall: list[OverallRow]
    last: int  # the lowest rank that a method can have


@dataclass(frozen=True)
class Model:
    """The rankings of a model."""

    name: str
    rankings: list[Ranking]


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]
    families: list[tuple[str, str]]
    scores_file: str
    summary_file: str
    many_settings: bool
    protocols: list[ProtocolFacts]
    choices: Choices
    letters_explained: str


@section(
    "ranking",
    short="Ranking",
    question="How do all methods score?",
    order=20,
)
def content(run: RunStatistics, site: Site) -> Content:
    """Return the figures and tables of all models, and save the scores as CSV files."""
    summary_file = site.write(
        "summary.csv", without_formulas(run.summary_frame).to_csv(index=False)
    )
    axes = {name: _axis(run, name) for name in dict.fromkeys(key[0] for key in run.protocols)}
    return Content(
        models=[
            Model(s.model, [_ranking(run, site, at_layer, axes) for at_layer in s.by_layer])
            for s in run.standings
        ],
        families=_families(run),
        scores_file=_save_scores(run, site),
        summary_file=summary_file,
        many_settings=len(run.protocols) > 1,
        protocols=list({p.id: p for p in run.protocols.values()}.values()),
        choices=_choices(run),
        letters_explained=wording.LETTERS_EXPLAINED,
    )


def _choices(run: RunStatistics) -> Choices:
    settings = [key for standing in run.standings for key in standing.settings]
    layers = [s.layer for standing in run.standings for s in standing.by_layer if s.layer]
    return Choices(
        models=[standing.model for standing in run.standings],
        layers=list(dict.fromkeys(layers)),
        protocols=list(dict.fromkeys(key[0] for key in settings)),
        baselines=list(dict.fromkeys(key[2] for key in settings if key[2])),
        families=[family for family, _ in _families(run)],
    )


def _save_scores(run: RunStatistics, site: Site) -> str:
    """Save all rows; returns the name of the file, which is empty if there are too many."""
    if len(run.rows) > MOST_ROWS:
        return ""
    text = without_formulas(run.rows).to_csv(index=False)
    if len(run.rows) <= GZIP_ABOVE:
        return site.write("scores.csv", text)
    packed = gzip.compress(text.encode(errors="backslashreplace"), mtime=0)
    return site.write("scores.csv.gz", packed)


def _families(run: RunStatistics) -> list[tuple[str, str]]:
    """Return the families of this run and their descriptions."""
    present = {run.family(m) for m in run.summary_frame["method"]}
    if present - set(FAMILIES):
        present.add("other")
    return [(name, family.description) for name, family in FAMILIES.items() if name in present]


def _axis(run: RunStatistics, protocol: str) -> Axis:
    """Return one axis for all models and settings of a protocol, so that panels are comparable."""
    part = run.summary_frame[run.summary_frame["protocol"] == protocol]
    random = [
        p.random_score
        for p in run.protocols.values()
        if p.id == protocol and p.random_score is not None
    ]
    return Axis.around([*part["mean"], *part["low"], *part["high"], *random])


def _ranking(run: RunStatistics, site: Site, standing: Standings, axes: dict[str, Axis]) -> Ranking:
    summary = run.summary_of(standing)
    panels = [
        _panel(run, site, standing, summary, key, axes[key[0]], scores.pairs)
        for key, scores in zip(standing.settings, standing.scores, strict=True)
    ]
    evidence = run.evidence_of(standing)
    last = int(rank_axis(evidence).high)
    return Ranking(standing.layer, panels, _overall(run, evidence), last)


def _panel(
    run: RunStatistics,
    site: Site,
    standing: Standings,
    summary: pd.DataFrame,
    key: Key,
    axis: Axis,
    pairs: PairedTests,
) -> Panel:
    name, setting, baseline = key
    where = with_short_titles(standing.model, run.models)
    where = f"{where} at layer {standing.layer}" if standing.layer else where
    title = (
        f"{where}, {name} ({setting}), baseline {baseline}: "
        "mean score and 95 % interval of each method"
    )
    rows = []
    marks = []
    protocol = run.protocols[key]
    counts = run.counts_of[standing.model, key]
    summary = select(summary, standing.model, key)
    ordered = summary.sort_values("rank", kind="stable", na_position="last")
    for record in ordered.to_dict("records"):
        line = {str(column): value for column, value in record.items()}
        line |= _ties(pairs, line["method"])
        line["drawn"] = _drawn(run, line, axis, protocol.random_score)
        rows.append(line)
        marks.append(
            Mark(
                line["method"],
                run.family(line["method"]),
                line["mean"],
                line["low"],
                line["high"],
                line["rank"],
                _tip(run, line, counts.unit),
                _unscored(line),
            )
        )
    room = ROOM.get(len(standing.settings), 196)
    better = "higher" if protocol.higher_is_better else "lower"
    chart = RankingChart(
        title,
        marks,
        axis,
        protocol.random_score,
        across=f"mean score and 95 % interval ({better} is better)",
        room=room,
        model=standing.model,
        protocol=name,
        panel=panel_title(run, standing.model, key, standing.layer),
    )
    figure = site.figure(chart)
    unit = "grids" if counts.maps else "images"
    return Panel(
        run.setting_labels[key], figure, rows, protocol, counts, _best_two(run, pairs, unit)
    )


def _drawn(
    run: RunStatistics, line: dict[str, Any], axis: Axis, random: float | None
) -> Markup | None:
    """Draw the mean of a line and its interval; None without a score."""
    if not math.isfinite(line["mean"]):
        return None
    family = run.family(line["method"])
    return svg.inline_interval(family, line["mean"], line["low"], line["high"], axis, random)


def _ties(pairs: PairedTests, method: str) -> dict[str, Any]:
    """Return the letters of a method, and how often it is the best in bootstrap draws."""
    if method not in pairs.methods:
        return {"ties": "", "first": math.nan}
    i = pairs.methods.index(method)
    return {"ties": pairs.letters[i], "first": float(pairs.first[i])}


def _best_two(run: RunStatistics, pairs: PairedTests, unit: str) -> str:
    """Compare the best two methods that are not controls; empty if there is no test of them."""
    real = [i for i, method in enumerate(pairs.methods) if not run.is_control(method)]
    if len(real) < 2 or not math.isfinite(pairs.adjusted[real[0], real[1]]):
        return ""
    apart = "that depend on the model" if run.controls(list(run.methods)) else ""
    return wording.best_two(pairs, real[0], real[1], unit, apart)


def _unscored(line: dict[str, Any]) -> str:
    statuses = ("undefined", "failed", "missing", "n/a", "skipped")
    counts = [f"{line[s]} {s}" for s in statuses if line[s]]
    return "no score: " + ", ".join(counts) if counts else "no score"


def _tip(run: RunStatistics, line: dict[str, Any], unit: str) -> str:
    paper = run.methods[line["method"]].paper
    name = line["method"] + (f"  ({paper})" if paper else "")
    if not math.isfinite(line["mean"]):
        return f"{name}\n{_unscored(line)}"
    ranked = "not ranked"
    if math.isfinite(line["rank"]):
        ends = interval(line["rank"], line["rank_low"], line["rank_high"], 0)
        ranked = f"rank {line['rank']:.0f} · interval {ends}"
    noted = f" · {line['noted']} with a note" if line["noted"] else ""
    return (
        f"{name}\n{describe_mean(line['mean'], line['low'], line['high'])}\n"
        f"{ranked} · {line['n']} {unit}{noted}"
    )


def _overall(run: RunStatistics, evidence: Evidence) -> list[OverallRow]:
    """Return the mean ranks over the settings; methods that are not ranked come last."""
    standing = evidence.standing
    unranked = [m for m in standing.methods if m not in evidence.ranked]
    axis = rank_axis(evidence)
    rows = []
    for method in [*evidence.ranked, *unranked]:
        column = standing.methods.index(method)
        position = evidence.place(method) if method in evidence.ranked else None
        means = [float(v) for v in standing.means[:, column]]
        rank = evidence.mean_rank(method)
        interval = Markup("")
        if position is not None:
            interval = svg.inline_interval(run.family(method), *rank, axis)
        rows.append(OverallRow(method, position, rank, interval, means))
    return rows
