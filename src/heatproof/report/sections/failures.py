"""What has no score and why, and the samples on which the best methods do worst."""

from __future__ import annotations

from typing import Any

import pandas as pd

from heatproof.report import pictures
from heatproof.report.run_data import Run, mean_scores
from heatproof.report.sections.base import section
from heatproof.report.site import Site

KINDS = {
    "failed": "the method or the protocol broke; the others went on",
    "undefined": "there is a map, but the score is not defined for it; left out of the mean",
    "skipped": "the image could not be used",
    "n/a": "the method is not made for this model or data; no failure",
}
NAMES = 12
TOP, WORST = 3, 6


@section("failures", short="Failures", question="Where does it fail?", order=110)
def content(run: Run, site: Site) -> dict[str, Any]:
    return {
        "kinds": [
            {"status": s, "meaning": m, "groups": _groups(run.rows[run.rows["status"] == s])}
            for s, m in KINDS.items()
        ],
        "worst": [w for s in run.standings if (w := _worst(run, site, s.model, s.order))],
        "total": len(run.rows),
        "protocol": _protocol(run),
    }


def _groups(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The same message is one group, whatever it happened to."""
    found = []
    for message, group in rows.groupby("message", sort=False, dropna=False):
        samples = list(dict.fromkeys(group["sample"]))
        found.append(
            {
                "message": str(message),
                "count": len(group),
                "methods": list(dict.fromkeys(group["method"])),
                "models": list(dict.fromkeys(group["model"])),
                "settings": group[["protocol", "setting", "baseline"]].drop_duplicates().shape[0],
                "samples": samples[:NAMES],
                "more": max(0, len(samples) - NAMES),
                "of_samples": len(samples),
            }
        )
    return sorted(found, key=lambda g: -g["count"])


def _protocol(run: Run) -> str:
    """The first: scores of two do not mix."""
    return next(iter(run.protocols))[0] if run.protocols else ""


def _worst(run: Run, site: Site, model: str, order: list[str]) -> dict[str, Any] | None:
    """Mean score over the settings of the first protocol, for the best methods that are no controls; the images are those it judged."""
    best = [m for m in order if not run.is_control(m)][:TOP]
    rows = run.rows[(run.rows["model"] == model) & (run.rows["protocol"] == _protocol(run))]
    kept = run.kept(
        model,
        next(
            (
                view
                for view, keys in run.views(model).items()
                if any(k[0] == _protocol(run) for k in keys)
            ),
            None,
        ),
    )
    methods = []
    for method in best:
        scores = mean_scores(rows, [method])[::-1]
        samples = []
        for sample, value in scores.head(WORST).items():
            image = kept.image(str(sample)) if sample in kept.shown else None
            samples.append(
                {
                    "id": sample,
                    "value": float(value),
                    "photo": site.picture(pictures.photo(image)) if image is not None else None,
                }
            )
        methods.append({"name": method, "family": run.family(method), "samples": samples})
    return (
        {"model": model, "methods": methods, "unseen": len(kept.ids) - len(kept.shown)}
        if methods
        else None
    )
