"""A run beside the published numbers of the papers."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis import wording
from heatproof.analysis.published import all_comparisons
from heatproof.analysis.published_lines import Comparison
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.report.sections.base import section
from heatproof.report.site import Site


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    comparisons: list[Comparison]
    reasons: dict[str, list[str]]  # by table, why numbers are not comparable
    counts: dict[str, str]  # by table, how often each verdict occurs, in words
    said: dict[str, list[str]]  # by table, which models its user says are the paper's
    explained: str


@section(
    "papers",
    short="Papers",
    question="How far is this from the published numbers?",
    order=105,
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the published tables that the run has numbers of; None if none is comparable."""
    comparisons = all_comparisons(run)
    lines = [line for comparison in comparisons for line in comparison.lines]
    if all(line.verdict == wording.NOT_COMPARABLE for line in lines):
        return None
    reasons = {}
    counts = {}
    said = {}
    for comparison in comparisons:
        name = comparison.table.name
        parts = [part for line in comparison.lines for part in line.reason.split("; ") if part]
        reasons[name] = list(dict.fromkeys(parts))
        verdicts = [line.verdict for line in comparison.lines]
        counts[name] = wording.published_counts(verdicts)
        said[name] = [wording.said_network(s.model, s.network, s.by) for s in comparison.same_as]
    return Content(comparisons, reasons, counts, said, wording.PUBLISHED_EXPLAINED)
