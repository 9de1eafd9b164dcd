"""Metrics of the values of a map, not only of their order (Li et al. 2024).

Soundness over accuracy and completeness over thresholds; metrics of the order beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from heatproof.analysis import soundness, wording
from heatproof.analysis.distinctness import is_changed
from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.metric_curves import Metric, MetricCurves, SoundnessCurves, metric_curves
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.report.sections import distinctness
from heatproof.report.sections.base import section
from heatproof.report.sections.common import MethodEstimates, estimate_or_none, select
from heatproof.report.site import Figure, Site
from heatproof.runs.run import MOST_SAMPLES_READ

FEW_RESAMPLES = 500  # of bands in runs of very many samples
VALUE_METRICS = ("soundness", "completeness")
LEVELS = soundness.LEVELS[1::2]  # of the table
UNIT_AXIS = Axis(-0.02, 1.04, (0.0, 0.25, 0.5, 0.75, 1.0))


class LevelRow(NamedTuple):
    """Soundness of a method at several levels; nan where a level is not reached."""

    method: str
    family: str
    estimates: list[Estimate]
    highest: float
    n: int
    undecided: list[tuple[int, int]]  # undecided steps and all steps up to each level


class LevelTable(NamedTuple):
    """Soundness at levels of the accuracy, or of another score."""

    label: str
    rows: list[LevelRow]
    score: str
    eps: float

    @property
    def most_undecided(self) -> tuple[int, int] | None:
        """The largest number of undecided steps up to a level, and all steps up to it."""
        counts = [count for row in self.rows for count in row.undecided if count[0]]
        return max(counts, default=None)


class ThresholdRow(NamedTuple):
    """Completeness of a method at several thresholds."""

    method: str
    family: str
    estimates: list[Estimate]
    mean: Estimate
    n: int


class ThresholdTable(NamedTuple):
    """Completeness at thresholds."""

    label: str
    rows: list[ThresholdRow]
    thresholds: list[float]
    absolute: bool


class LeftOut(NamedTuple):
    """Samples that the curves of a method leave out."""

    setting: str
    method: str
    samples: int
    reason: str


class TooFewSamples(NamedTuple):
    """A setting with too few samples to resolve the threshold of soundness."""

    setting: str
    samples: int
    eps: float
    needed: int


@dataclass(frozen=True)
class Model:
    """All metrics of a model."""

    model: str
    samples: int
    of: int  # samples of the run, of which the first are shown
    by_value: dict[str, Figure]  # by label of the setting
    by_order: dict[str, Figure]
    best: list[str]  # the best by each metric of values, in words
    columns: list[tuple[str, bool]]  # label of the setting, and whether higher is better
    scores: list[MethodEstimates]
    levels: list[LevelTable]
    thresholds: list[ThresholdTable]
    left_out: list[LeftOut]
    too_few: list[TooFewSamples]
    distinct: distinctness.Content | None
    crisp: bool


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    models: list[Model]
    levels: tuple[float, ...]


@section(
    "soundness",
    short="Values",
    question="Are the values of the maps meaningful, and not only their order?",
    order=60,
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the metrics of values; None if the run has none."""
    if not any(key[0] in VALUE_METRICS for key in run.protocols):
        return None
    levels = soundness.table(run, resamples=_resamples(run), most=MOST_SAMPLES_READ)
    models = [_model(run, site, model, levels) for model in run.models]
    with_values = [model for model in models if model is not None]
    return Content(with_values, LEVELS) if with_values else None


def _resamples(run: RunStatistics) -> int:
    """Return the number of draws of bands: fewer where there are more samples than are shown."""
    return RESAMPLES if run.counts.images + run.counts.maps <= MOST_SAMPLES_READ else FEW_RESAMPLES


def _model(run: RunStatistics, site: Site, model: str, levels: pd.DataFrame) -> Model | None:
    kept = run.kept(model)
    measured = {key: _metric(run, model, key) for key in run.protocols}
    metrics = {key: metric for key, metric in measured.items() if metric}
    values = [key for key in metrics if key[0] in VALUE_METRICS]
    if not values:
        return None

    def figures(keys: list[Key]) -> dict[str, Figure]:
        drawn = {key: _figure(run, site, model, key, metrics[key], levels) for key in keys}
        return {run.setting_labels[key]: figure for key, figure in drawn.items() if figure}

    scores = _scores(run, model, list(metrics))
    return Model(
        model=model,
        samples=len(kept.ids),
        of=kept.total,
        by_value=figures(values),
        by_order=figures([key for key in metrics if key not in values]),
        distinct=distinctness.content(
            run, site, model, kept, metrics, {key: axes(run, key) for key in metrics}
        ),
        columns=[(run.setting_labels[key], run.protocols[key].higher_is_better) for key in metrics],
        scores=scores,
        best=[text for key in values if (text := _best(run, model, key))],
        levels=[
            _levels(run, model, key, metrics[key], levels)
            for key in values
            if key[0] == "soundness"
        ],
        thresholds=[
            _thresholds(run, key, metrics[key]) for key in values if key[0] == "completeness"
        ],
        left_out=[w for key in values for w in _left_out(run, model, key, metrics[key])],
        too_few=[w for key in values for w in _too_few(run, key, metrics[key])],
        crisp=run.is_crisp(model),
    )


def _best(run: RunStatistics, model: str, key: Key) -> str:
    """Say which method is the best by a metric of values, modified maps aside."""
    standing = next(s for s in run.standings if s.model == model)
    if key not in standing.settings:
        return ""
    own = [m for m in standing.methods if not is_changed(run.methods[m])]
    alone = standing.only(own).under([standing.settings.index(key)])
    evidence = run.evidence_of(alone)
    if not evidence.leader:
        return ""
    score = evidence.standing.score(0, evidence.leader)
    return wording.by_protocol(evidence, run.setting_labels[key], score)


def _metric(run: RunStatistics, model: str, key: Key) -> Metric:
    """Return the curves of each method, if a setting has curves of accuracy or of values."""
    protocol = run.protocols[key]
    if key[0] not in VALUE_METRICS and protocol.settings.get("score") != "correct":
        return {}
    return metric_curves(run, model, protocol, MOST_SAMPLES_READ)


def _figure(
    run: RunStatistics, site: Site, model: str, key: Key, metric: Metric, levels: pd.DataFrame
) -> Figure | None:
    """Draw all methods except modified maps; None if no value is finite.

    Methods of one family have different dashes.
    """
    label = run.setting_labels[key]
    seen: Counter[str] = Counter()
    lines = []
    drawn = {m: curves for m, curves in metric.items() if not is_changed(run.methods[m])}
    means = _mean_curves({m: c for m, c in drawn.items() if isinstance(c, MetricCurves)})
    for method, curves in drawn.items():
        family = run.family(method)
        if isinstance(curves, SoundnessCurves):
            of_method = _levels_of(levels, model, key, method)
            lines.append(_trace_of_levels(of_method, method, family, seen[family]))
        else:
            lines.append(_trace(curves, means[method], method, family, seen[family]))
        seen[family] += 1
    if not any(line.finite for line in lines):
        return None
    across, up = axes(run, key)
    values = [v for line in lines for v in (*line.values, *line.low, *line.high)]
    in_unit = all(-0.02 <= v <= 1.02 for v in values if math.isfinite(v))
    axis = UNIT_AXIS if in_unit else Axis.around(values, most=5)
    title = f"{model}, {label}: {up} of each method, with 95 % intervals; across, {across}"
    chart = CurveChart(
        title, lines, axis, (across, up), model=model, protocol=key[0], panel=f"{model}, {label}"
    )
    return site.figure(chart)


def axes(run: RunStatistics, key: Key) -> tuple[str, str]:
    """Return the titles of the horizontal and the vertical axis of a metric."""
    settings = run.protocols[key].settings
    score = _score_name(run, key)
    if key[0] == "soundness":
        return score, "soundness"
    if key[0] == "completeness":
        relative = "" if settings["absolute"] else ", relative to the maximum"
        return f"threshold{relative}", f"{score} lost"
    change = "inserted" if key[0] == "insertion" else "removed"
    side = "least" if settings.get("order") == "least" else "most"
    return f"of the pixels {change}, {side} relevant first", score


def _score_name(run: RunStatistics, key: Key) -> str:
    score = run.protocols[key].settings["score"]
    return "accuracy" if score == "correct" else f"mean {score}"


def _mean_curves(metric: dict[str, MetricCurves]) -> dict[str, list[Estimate]]:
    """Estimate the mean curve of each method; those on as many samples are drawn at once."""
    found: dict[str, list[Estimate]] = {}
    by_size: dict[int, list[str]] = {}
    for method, curves in metric.items():
        by_size.setdefault(len(curves.values), []).append(method)
    for methods in by_size.values():
        draws = bootstrap_means(np.hstack([metric[m].values for m in methods]), RESAMPLES)
        begin = 0
        for method in methods:
            means = metric[method].values.mean(0)
            columns = draws.T[begin : begin + len(means)]
            found[method] = [Estimate.of(m, c) for m, c in zip(means, columns, strict=True)]
            begin += len(means)
    return found


def _trace(
    curves: MetricCurves, means: list[Estimate], label: str, family: str, dash: int
) -> Trace:
    """Return the mean curve with its band."""
    mean, low, high = zip(*means, strict=True)
    return Trace(label, family, mean, tuple(curves.positions), low, high, dash)


def _levels_of(levels: pd.DataFrame, model: str, key: Key, method: str) -> pd.DataFrame:
    _, setting, baseline = key
    return levels[
        (levels["model"] == model)
        & (levels["setting"] == setting)
        & (levels["baseline"] == baseline)
        & (levels["method"] == method)
    ]


def _trace_of_levels(levels: pd.DataFrame, method: str, family: str, dash: int) -> Trace:
    values, positions, low, high = (
        tuple(levels[column]) for column in ("soundness", "level", "low", "high")
    )
    return Trace(method, family, values, positions, low, high, dash)


def _scores(run: RunStatistics, model: str, keys: list[Key]) -> list[MethodEstimates]:
    """Return the mean of each metric for each method."""
    summary = run.summary_frame[run.summary_frame["model"] == model]
    estimates = {
        (r["protocol"], r["setting"], r["baseline"], r["method"]): estimate_or_none(
            float(r["mean"]), float(r["low"]), float(r["high"])
        )
        for r in summary.to_dict("records")
    }
    return [
        MethodEstimates(m, run.family(m), [estimates.get((*key, m)) for key in keys])
        for m in dict.fromkeys(summary["method"])
    ]


def _levels(
    run: RunStatistics, model: str, key: Key, metric: Metric, levels: pd.DataFrame
) -> LevelTable:
    rows = []
    for method, curves in metric.items():
        assert isinstance(curves, SoundnessCurves)
        of_method = _levels_of(levels, model, key, method).set_index("level")
        columns = of_method[["soundness", "low", "high"]]
        estimates = [Estimate(*map(float, columns.loc[level])) for level in LEVELS]
        n = int(of_method["n"].iloc[0])
        counts = of_method.loc[list(LEVELS), ["undecided", "steps"]].to_numpy().tolist()
        undecided = [(int(some), int(steps)) for some, steps in counts]
        family = run.family(method)
        rows.append(LevelRow(method, family, estimates, curves.highest, n, undecided))
    eps = run.protocols[key].settings["eps"]
    return LevelTable(run.setting_labels[key], rows, _score_name(run, key), eps)


def _thresholds(run: RunStatistics, key: Key, metric: Metric) -> ThresholdTable:
    rows = []
    thresholds: list[float] = []
    for method, curves in metric.items():
        assert isinstance(curves, MetricCurves)
        thresholds = curves.positions[::-1].tolist()
        rows.append(
            ThresholdRow(
                method,
                run.family(method),
                [Estimate.mean(column) for column in curves.values.T[::-1]],
                Estimate.mean(curves.values.mean(1)),
                len(curves.values),
            )
        )
    absolute = run.protocols[key].settings["absolute"]
    return ThresholdTable(run.setting_labels[key], rows, thresholds, absolute)


def _left_out(run: RunStatistics, model: str, key: Key, metric: Metric) -> list[LeftOut]:
    """Return the samples without a curve; one that never reaches the level has a curve."""
    rows = select(run.rows, model, key).query("status != 'ok'")
    drawn = {(method, sample) for method, curves in metric.items() for sample in curves.samples}
    counts = Counter(
        (method, message)
        for method, sample, message in zip(
            rows["method"], rows["sample"], rows["message"], strict=True
        )
        if (method, sample) not in drawn
    )
    label = run.setting_labels[key]
    return [LeftOut(label, method, n, message) for (method, message), n in counts.items()]


def _too_few(run: RunStatistics, key: Key, metric: Metric) -> list[TooFewSamples]:
    """Return a warning if a setting has too few samples to resolve its threshold."""
    settings = run.protocols[key].settings
    most = max(len(curves.samples) for curves in metric.values())
    if key[0] != "soundness" or settings["score"] != "correct" or most * settings["eps"] >= 1:
        return []
    needed = math.ceil(1 / settings["eps"])
    return [TooFewSamples(run.setting_labels[key], most, settings["eps"], needed)]
