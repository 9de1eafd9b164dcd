"""Networks compared: with each other, and as they are with their fine-tuned weights."""

from __future__ import annotations

from typing import Any

from heatproof.report.gather import Run
from heatproof.report.sections.models import accuracy, across
from heatproof.report.site import Site


def content(run: Run, site: Site) -> dict[str, Any] | None:
    if not len(run.rows) or (len(run.models) < 2 and not any(run.views(run.models[0]))):
        return None
    return {
        "many": len(run.models) > 1,
        "tuned": any(view for model in run.models for view in run.views(model)),
        "accuracy": accuracy.content(run),
        "across": across.content(run, site),
    }
