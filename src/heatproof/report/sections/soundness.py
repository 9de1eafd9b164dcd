"""A map's values, not only their order (Li et al. 2024): soundness over accuracy, completeness over thresholds; by order beside them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from heatproof.analysis import soundness
from heatproof.analysis.distinctness import CHANGED
from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means, bootstrap_weights
from heatproof.analysis.ranks import Key
from heatproof.bench.store import PendingCurves
from heatproof.protocols.soundness import Soundness
from heatproof.report.charts import Axis
from heatproof.report.lines import Trace, traces
from heatproof.report.run_data import Kept, Run
from heatproof.report.sections import distinctness
from heatproof.report.sections.base import section
from heatproof.report.site import Site

KEPT = {
    "completeness": "drop",
    "road": "score",
    "deletion": "score",
    "insertion": "score",
    "ids": "score",
}  # what a metric is drawn by
LEVELS = soundness.LEVELS[1::2]  # of the table
WHOLE = Axis(-0.02, 1.04, (0.0, 0.25, 0.5, 0.75, 1.0))


class EvalBatch(NamedTuple):
    """What a metric measured of the maps of one method along its steps."""

    places: np.ndarray  # (S,)
    values: np.ndarray  # (N, S)
    rows: list[int]  # (N,) of the model's samples; those without a score are left out

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        return np.stack([self.places, self.values.mean(0)], 1)

    def drawn(self, samples: int, resamples: int) -> np.ndarray:  # (R, S, 2)
        """The mean over samples drawn again."""
        weights = np.concatenate([w[:, self.rows] for w in bootstrap_weights(samples, resamples)])
        means = weights @ self.values / weights.sum(1, keepdims=True)
        return np.stack([np.broadcast_to(self.places, means.shape), means], 2)

    def trace(self, label: str, family: str, dash: int) -> Trace:
        draws = (
            bootstrap_means(self.values, RESAMPLES)
            if len(self.values) > 1
            else np.full((1, len(self.places)), np.nan)
        )
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        values, places, low, high = map(tuple, (self.values.mean(0), self.places, low, high))
        return Trace(label, family, values, places, low, high, dash)


class Stepped(NamedTuple):
    """What soundness measured of the maps of one method."""

    part: PendingCurves
    rows: list[int]

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        return soundness.points(self._protocol, *self._curves).xy

    @property
    def highest(self) -> float:
        """Accuracy, or mean score, on the way."""
        return float(np.nanmax(self.xy[:, 0]))

    def drawn(self, samples: int, resamples: int) -> np.ndarray:  # (R, S, 2)
        weights = (torch.from_numpy(w[:, self.rows]) for w in bootstrap_weights(samples, resamples))
        score, mass = map(torch.from_numpy, self._curves)
        return torch.cat(
            [self._protocol.drawn_points(score, mass, some) for some in weights]
        ).numpy()

    @property
    def _protocol(self) -> Soundness:
        assert isinstance(self.part.protocol, Soundness)
        return self.part.protocol

    @property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        return self.part.curves["score"].numpy(), self.part.curves["mass"].numpy()


Metric = dict[str, EvalBatch] | dict[str, Stepped]  # method -> what was measured of it


@section(
    "soundness",
    short="Values",
    question="Are the values right, and not only their order?",
    order=80,
)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    if not any(key[0] in ("soundness", "completeness") for key in run.protocols):
        return None
    levels = soundness.table(run.store)
    models = [found for model in run.models if (found := _model(run, site, model, levels))]
    return {"models": models, "levels": LEVELS} if models else None


def _model(run: Run, site: Site, model: str, levels: pd.DataFrame) -> dict[str, Any] | None:
    kept = run.kept(model)
    metrics = {key: found for key in run.protocols if (found := _metric(run, kept, model, key))}
    values = [key for key in metrics if key[0] in ("soundness", "completeness")]
    if not values:
        return None
    order = [key for key in metrics if key not in values]
    figures = [_figure(run, site, model, key, metrics[key], levels) for key in (*values, *order)]
    changed = distinctness.content(
        run, site, model, kept, metrics, {key: axes(run, key) for key in metrics}
    )
    return {
        "model": model,
        "samples": len(kept.ids),
        "by_value": figures[: len(values)],
        "by_order": figures[len(values) :],
        "columns": [
            (run.setting_labels[key], run.protocols[key].higher_is_better) for key in metrics
        ],
        "scores": _scores(run, model, list(metrics)),
        "levels": [
            _levels(run, model, key, metrics[key], levels)
            for key in values
            if key[0] == "soundness"
        ],
        "thresholds": [
            _thresholds(run, key, metrics[key]) for key in values if key[0] == "completeness"
        ],
        "warnings": _warnings(run, model, values, metrics),
        "distinct": changed,
        "crisp": run.is_crisp(model),
    }


def _metric(run: Run, kept: Kept, model: str, key: Key) -> Metric:
    """What a setting measured, method by method, where it is measured in accuracy or judges values."""
    places = {sample: i for i, sample in enumerate(kept.ids)}
    if key[0] == "soundness":
        parts = [
            p
            for p in run.store.pending_curves()
            if (p.model, p.protocol.id, p.protocol.setting, p.protocol.baseline_name)
            == (model, *key)
        ]
        return {
            p.method: Stepped(p, [places[s] for s in p.samples])
            for p in parts
            if p.samples and _some_mass(p)
        }
    settings = run.protocols[key].settings
    if key[0] not in KEPT or (settings["score"] != "correct" and key[0] != "completeness"):
        return {}
    found: dict[str, EvalBatch] = {}
    for method, rows in _scored(run, model, key).groupby("method", sort=False):
        curve = kept.curves(run.protocols[key], str(method), KEPT[key[0]])
        own = [places[s] for s in rows["sample"] if s in places]
        if curve is not None and own:
            values = curve[own].double().numpy()
            values = (
                values[:, ::-1] if key[0] == "completeness" else values
            )  # it begins with the highest threshold
            found[str(method)] = EvalBatch(_places(settings["steps"], curve.shape[1]), values, own)
    return found


def _some_mass(part: PendingCurves) -> bool:
    return bool((part.curves["mass"].sum(1) > 0).any())


def _scored(run: Run, model: str, key: Key) -> pd.DataFrame:
    return _of(run, model, key).query("status == 'ok'")


def _of(run: Run, model: str, key: Key) -> pd.DataFrame:
    rows = run.rows
    return rows[
        np.logical_and.reduce(
            [
                rows[c] == v
                for c, v in zip(
                    ("model", "protocol", "setting", "baseline"), (model, *key), strict=True
                )
            ]
        )
    ]


def _places(steps: int, count: int) -> np.ndarray:
    """From 0 to 1, with the ends where a curve has them."""
    begin = {steps - 1: 1, steps: 0, steps + 1: 0}[count]
    return np.arange(begin, begin + count) / steps


def _figure(
    run: Run, site: Site, model: str, key: Key, metric: Metric, levels: pd.DataFrame
) -> dict[str, Any]:
    """A line and its band for every method, without changed maps; those of one family differ in their dashes."""
    seen: Counter[str] = Counter()
    lines = []
    for method, judged in metric.items():
        if CHANGED.fullmatch(method):
            continue
        family = run.family(method)
        lines.append(
            _at_levels(_own(levels, model, key, method), method, family, seen[family])
            if isinstance(judged, Stepped)
            else judged.trace(method, family, seen[family])
        )
        seen[family] += 1
    across, up = axes(run, key)
    ends = [v for line in lines for v in (*line.values, *line.low, *line.high)]
    inside = all(-0.02 <= v <= 1.02 for v in ends if math.isfinite(v))
    known = any(line.known for line in lines)
    title = f"{model}, {run.setting_labels[key]}: {up} of each method, with 95 % intervals; across, {across}"
    figure = (
        site.figure(
            traces(lines, WHOLE if inside else Axis.around(ends, most=5), (across, up), title)
        )
        if known
        else None
    )
    return {"label": run.setting_labels[key], "figure": figure}


def axes(run: Run, key: Key) -> tuple[str, str]:
    """What a metric's curve goes along, and what it shows."""
    score = run.protocols[key].settings["score"]
    watched = "accuracy" if score == "correct" else f"mean {score}"
    if key[0] == "soundness":
        return watched, "soundness"
    if key[0] == "completeness":
        of = "" if run.protocols[key].settings["absolute"] else " of the maximum"
        return f"without all above this share{of}", f"{watched} lost"
    first = "put in" if key[0] == "insertion" else "removed"
    side = "least" if run.protocols[key].settings.get("order") == "least" else "most"
    return f"of the pixels {first}, {side} relevant first", watched


def _own(levels: pd.DataFrame, model: str, key: Key, method: str) -> pd.DataFrame:
    return levels[
        (levels["model"] == model)
        & (levels["setting"] == key[1])
        & (levels["baseline"] == key[2])
        & (levels["method"] == method)
    ]


def _at_levels(own: pd.DataFrame, method: str, family: str, dash: int) -> Trace:
    values, places, low, high = (
        tuple(own[column]) for column in ("soundness", "level", "low", "high")
    )
    return Trace(method, family, values, places, low, high, dash)


def _scores(run: Run, model: str, keys: list[Key]) -> list[dict[str, Any]]:
    """The mean of every metric beside each other."""
    own = run.summary[run.summary["model"] == model].set_index(
        ["protocol", "setting", "baseline", "method"]
    )
    return [
        {"method": m, "family": run.family(m), "cells": [_cell(own, (*key, m)) for key in keys]}
        for m in dict.fromkeys(own.index.get_level_values("method"))
    ]


def _cell(own: pd.DataFrame, at: tuple[str, ...]) -> Estimate | None:
    if at not in own.index or not math.isfinite(own.loc[at, "mean"]):
        return None
    return Estimate(*(float(own.loc[at, column]) for column in ("mean", "low", "high")))


def _levels(run: Run, model: str, key: Key, metric: Metric, levels: pd.DataFrame) -> dict[str, Any]:
    rows = []
    for method, judged in metric.items():
        assert isinstance(judged, Stepped)
        own = _own(levels, model, key, method).set_index("level")
        found = [
            Estimate(*(float(own.loc[level, column]) for column in ("soundness", "low", "high")))
            for level in LEVELS
        ]
        rows.append(
            {
                "method": method,
                "family": run.family(method),
                "at": found,
                "highest": judged.highest,
                "n": int(own["n"].iloc[0]),
            }
        )
    return {
        "label": run.setting_labels[key],
        "rows": rows,
        "watched": axes(run, key)[0],
        "eps": run.protocols[key].settings["eps"],
    }


def _thresholds(run: Run, key: Key, metric: Metric) -> dict[str, Any]:
    rows, places = [], np.empty(0)
    for method, judged in metric.items():
        assert isinstance(judged, EvalBatch)
        places = judged.places[::-1]
        each = [Estimate.mean(column) for column in judged.values.T[::-1]]
        mean = Estimate.mean(judged.values.mean(1))
        rows.append(
            {
                "method": method,
                "family": run.family(method),
                "at": each,
                "mean": mean,
                "n": len(judged.values),
            }
        )
    return {
        "label": run.setting_labels[key],
        "rows": rows,
        "places": places.tolist(),
        "absolute": run.protocols[key].settings["absolute"],
    }


def _warnings(
    run: Run, model: str, keys: list[Key], metrics: dict[Key, Metric]
) -> list[dict[str, Any]]:
    """Maps that were left out, and runs that are too small to decide."""
    found: list[dict[str, Any]] = []
    for key in keys:
        label = run.setting_labels[key]
        out = _of(run, model, key).query(
            "status != 'ok' and not message.str.contains('never reaches')"
        )
        counts = Counter(zip(out["method"], out["message"], strict=True))
        found += [
            {"setting": label, "method": m, "count": n, "why": why}
            for (m, why), n in counts.items()
        ]
        settings = run.protocols[key].settings
        most = max(len(judged.rows) for judged in metrics[key].values())
        if key[0] == "soundness" and settings["score"] == "correct" and most * settings["eps"] < 1:
            found.append(
                {
                    "setting": label,
                    "method": "",
                    "count": most,
                    "eps": settings["eps"],
                    "need": math.ceil(1 / settings["eps"]),
                }
            )
    return found
