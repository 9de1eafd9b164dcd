"""Networks compared: with each other, and as they are with their fine-tuned weights."""

from __future__ import annotations

from typing import Any

from heatproof.report.run_data import PLAIN_VIEW, Run
from heatproof.report.sections.base import section
from heatproof.report.sections.models import accuracy, across, best, channels, similarity
from heatproof.report.site import Site

QUESTIONS = {  # (several models, a fine-tuned copy beside its original)
    (True, True): "Which model is easier to explain, and what did fine-tuning change?",
    (True, False): "Which model is easier to explain?",
    (False, True): "What did fine-tuning change?",
    (False, False): "How good is the fine-tuned network?",
}


@section(
    "models",
    short="Models",
    question="Which model is easier to explain, and what did fine-tuning change?",
    order=40,
)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    """None for one model as it is: there is nothing to compare it with."""
    weights = [run.networks(model) for model in run.models]
    many, fine_tuned = (
        len(weights) > 1,
        any(view.is_fine_tuned for views in weights for view in views),
    )
    pairs = any(PLAIN_VIEW in views and len(views) > 1 for views in weights)
    if not len(run.rows) or not (many or fine_tuned):
        return None
    return {
        "question": QUESTIONS[many, pairs],
        "many": many,
        "fine_tuned": fine_tuned,
        "pairs": pairs,
        "accuracy": accuracy.content(run),
        "across": across.models(run, site),
        "copies": across.copies(run, site),
        "best": best.content(run, site),
        "similarity": similarity.content(run, site),
        "channels": channels.content(run, site),
    }
