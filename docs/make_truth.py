"""Draw docs/img/known-truth-*.svg: `make truth`.

The figures show soundness and completeness of maps whose ground truth is known, over random trials.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from heatproof.analysis.truth import KINDS, LEVELS, THRESHOLDS, trials
from heatproof.figures.axes import Axis
from heatproof.figures.charts import CurveChart, Trace
from heatproof.figures.svg import draw, standalone

FAMILIES = dict(zip(KINDS, ("cam", "gradient", "perturbation"), strict=True))
UNIT = Axis(-0.02, 1.04, (0.0, 0.25, 0.5, 0.75, 1.0))


def main(out: Path, count: int) -> None:
    for fill in ("mean", "draw"):
        print(f"missing features: {fill}")
        metrics = trials(count, fill=fill)
        for name, curves, levels, axis in (
            (
                "completeness",
                metrics.completeness,
                THRESHOLDS,
                "without features above this fraction",
            ),
            ("soundness", metrics.soundness, LEVELS, "accuracy"),
        ):
            title = f"{name} of the ground truth and of changed maps, over {count} trials"
            lines = [trace(name, kind, curves[kind], levels) for kind in KINDS]
            figure = standalone(draw(CurveChart(title, lines, UNIT, (axis, name))))
            (out / f"known-truth-{name}-{fill}.svg").write_text(figure, encoding="utf-8")


def trace(metric: str, kind: str, curves: np.ndarray, levels: tuple[float, ...]) -> Trace:
    """Print and return the mean curve of one kind of map, with the range of 95 % of the trials."""
    mean = np.nanmean(curves, axis=0)
    low, high = np.nanquantile(curves, [0.025, 0.975], axis=0)
    points = zip(levels, mean, low, high, strict=True)
    print(
        f"  {metric:12} {kind:10}", *(f"{p:g}: {m:.3f} ({a:.3f}–{b:.3f})" for p, m, a, b in points)
    )
    order = np.argsort(levels)
    sorted_values = (tuple(np.asarray(v)[order]) for v in (mean, levels, low, high))
    return Trace(kind, FAMILIES[kind], *sorted_values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
