"""Networks compared: with each other, and with their fine-tuned copies."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections.base import section
from heatproof.report.sections.models import (
    accuracy,
    across,
    best,
    channels,
    fine_tuning,
    of_kind,
    similarity,
)
from heatproof.report.sections.models.accuracy import Table
from heatproof.report.sections.models.across import Comparison
from heatproof.report.sections.models.best import BestMethods
from heatproof.report.sections.models.channels import Copy
from heatproof.report.sections.models.fine_tuning import FineTuning
from heatproof.report.sections.models.of_kind import OfKind
from heatproof.report.sections.models.similarity import Similarity
from heatproof.report.site import Site
from heatproof.runs.run import PLAIN_VIEW

QUESTIONS = {  # (several models, a fine-tuned copy beside its original)
    (True, True): "Which model is easier to explain, and what did fine-tuning change?",
    (True, False): "Which model is easier to explain?",
    (False, True): "What did fine-tuning change?",
    (False, False): "How good is the fine-tuned network?",
}


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    question: str  # in place of the section's
    many: bool
    fine_tuned: bool
    pairs: bool
    accuracy: list[Table]
    across: list[Comparison]
    of_kind: OfKind | None
    copies: list[Comparison]
    fine_tuning: list[FineTuning]
    best: BestMethods | None
    similarity: Similarity | None
    channels: list[Copy]


@section(
    "models",
    short="Models",
    question="Which model is easier to explain, and what did fine-tuning change?",
    order=70,
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Compare the networks of a run; None for a single network, which has no counterpart."""
    views = [run.networks(model) for model in run.models]
    many = len(views) > 1
    has_fine_tuned = any(view.is_fine_tuned for of_model in views for view in of_model)
    pairs = any(PLAIN_VIEW in of_model and len(of_model) > 1 for of_model in views)
    if not len(run.rows) or not (many or has_fine_tuned):
        return None
    return Content(
        question=QUESTIONS[many, pairs],
        many=many,
        fine_tuned=has_fine_tuned,
        pairs=pairs,
        accuracy=accuracy.content(run),
        across=across.models(run, site),
        of_kind=of_kind.content(run),
        copies=across.copies(run, site),
        fine_tuning=fine_tuning.content(run, site),
        best=best.content(run, site),
        similarity=similarity.content(run, site),
        channels=channels.content(run, site),
    )
