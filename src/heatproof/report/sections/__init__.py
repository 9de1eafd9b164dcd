"""The sections of the report, in the order of its questions. A section is a function from the run to what its template shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from heatproof.report.run_data import Run
from heatproof.report.sections import (
    curves,
    example,
    failures,
    gallery,
    grids,
    headline,
    models,
    provenance,
    ranking,
    retraining,
    soundness,
    stability,
)
from heatproof.report.site import Site


class Section(NamedTuple):
    id: str  # also the name of its template
    short: str  # in the navigation
    question: str
    content: Callable[
        [Run, Site], dict[str, Any] | None
    ]  # none: it has nothing to say of this run, and is left out


SECTIONS = [
    Section("headline", "Answer", "Which method wins, and how sure is that?", headline.content),
    Section("example", "Example", "How is a score made?", example.content),
    Section(
        "ranking", "Ranking", "How do all methods score, and what do they cost?", ranking.content
    ),
    Section(
        "models",
        "Models",
        "Which model is easier to explain, and what did fine-tuning change?",
        models.content,
    ),
    Section(
        "retraining",
        "Changed images",
        "What does a network learn from changed images, and do maps find it?",
        retraining.content,
    ),
    Section(
        "stability",
        "Stability",
        "Does the ranking survive another baseline or another model?",
        stability.content,
    ),
    Section("curves", "Curves", "What happens while pixels are removed?", curves.content),
    Section(
        "soundness", "Values", "Are the values right, and not only their order?", soundness.content
    ),
    Section("grids", "Grids", "Does the map point at the right cell?", grids.content),
    Section(
        "gallery",
        "Gallery",
        "What do the maps look like, and what are they judged against?",
        gallery.content,
    ),
    Section("failures", "Failures", "Where does it fail?", failures.content),
    Section(
        "provenance",
        "How it was made",
        "How was this made, and how do I repeat it?",
        provenance.content,
    ),
]
