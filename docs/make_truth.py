"""Draws docs/img/known-truth-*.svg: soundness and completeness of maps whose truth is known, over random trials."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from heatproof.analysis.truth import KINDS, LEVELS, THRESHOLDS, trials
from heatproof.report.charts import Axis, standalone
from heatproof.report.lines import Trace, traces

FAMILIES = dict(zip(KINDS, ("cam", "gradient", "perturbation"), strict=True))
WHOLE = Axis(-0.02, 1.04, (0.0, 0.25, 0.5, 0.75, 1.0))


def main(out: Path, count: int) -> None:
    for fill in ("mean", "draw"):
        found = trials(count, fill=fill)
        print(f"missing features: {fill}")
        for name, curves, places, across in (
            ("completeness", found.completeness, THRESHOLDS, "without all above this share"),
            ("soundness", found.soundness, LEVELS, "accuracy"),
        ):
            lines = []
            for kind, family in FAMILIES.items():
                low, high = np.nanquantile(curves[kind], [0.025, 0.975], axis=0)
                mean = np.nanmean(curves[kind], axis=0)
                order = np.argsort(places)
                lines.append(
                    Trace(
                        kind,
                        family,
                        *(tuple(np.asarray(v)[order]) for v in (mean, places, low, high)),
                    )
                )
                print(
                    f"  {name:12} {kind:10}",
                    *(
                        f"{p:g}: {m:.3f} ({a:.3f}–{b:.3f})"
                        for p, m, a, b in zip(places, mean, low, high, strict=True)
                    ),
                )
            title = f"{name} of the truth and of changed maps, over {count} trials"
            figure = traces(lines, WHOLE, (across, name), title)
            (out / f"known-truth-{name}-{fill}.svg").write_text(
                standalone(figure), encoding="utf-8"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
