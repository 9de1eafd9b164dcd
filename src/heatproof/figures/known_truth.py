"""Soundness and completeness of maps whose ground truth is known (Li et al. 2024, Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from heatproof.analysis.truth import FILLS, KINDS, LEVELS, THRESHOLDS, Fill, trials
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.figures.svg import draw, standalone
from heatproof.files import atomic_write

FAMILIES = dict(zip(KINDS, ("cam", "gradient", "perturbation"), strict=True))
UNIT = Axis(-0.02, 1.04, (0.0, 0.25, 0.5, 0.75, 1.0))
METRICS = {  # what the horizontal axis is, and its values
    "completeness": ("without features above this fraction", THRESHOLDS),
    "soundness": ("accuracy", LEVELS),
}
QUANTILES = [0.025, 0.975]


def write_known_truth(
    out: Path,
    count: int,
    points: int = 1000,
    features: int = 200,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Run the trials, and write a figure of each metric and a table of all numbers.

    Args:
        out: The directory for ``known-truth-*.svg`` and ``known-truth.csv``.
        count: Number of trials, for each way in which missing features are replaced.
        points: Number of points.
        features: Number of features of a point.
        seed: Seed of points and trials.
        progress: Called with 1 after every trial.

    Returns:
        One row per metric, replacement, kind of map and position on the horizontal axis, with the
        mean, the variance and the range of 95 % of the trials.
    """
    out.mkdir(parents=True, exist_ok=True)
    tables = []
    for fill in FILLS:
        values = trials(count, points, features, fill, seed, progress)._asdict()
        for metric, (axis, positions) in METRICS.items():
            table = pd.concat(
                [_table(metric, fill, kind, values[metric][kind], positions) for kind in KINDS]
            )
            traces = [_trace(kind, rows) for kind, rows in table.groupby("map", sort=False)]
            title = f"{metric} of the ground truth and of changed maps, over {count:,} trials"
            figure = standalone(draw(CurveChart(title, traces, UNIT, (axis, metric))))
            atomic_write(out / f"known-truth-{metric}-{fill}.svg", figure.encode())
            tables.append(table)
    numbers = pd.concat(tables, ignore_index=True)
    atomic_write(out / "known-truth.csv", numbers.to_csv(index=False).encode())
    return numbers


def _table(
    metric: str, fill: Fill, kind: str, values: np.ndarray, positions: tuple[float, ...]
) -> pd.DataFrame:
    """Return the mean, the variance and the range of 95 % of the trials, ``(T, positions)``."""
    low, high = np.nanquantile(values, QUANTILES, axis=0)
    table = {"mean": np.nanmean(values, 0), "variance": np.nanvar(values, 0)}
    table |= {"low": low, "high": high}
    named = {"metric": metric, "missing": fill, "map": kind, "at": positions}
    return pd.DataFrame({**named, **table}).sort_values("at")


def _trace(kind: str, rows: pd.DataFrame) -> Trace:
    mean, at, low, high = (tuple(rows[column]) for column in ("mean", "at", "low", "high"))
    return Trace(kind, FAMILIES[kind], mean, at, low, high)
