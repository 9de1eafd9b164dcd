"""Whether protocols agree about the order of methods: a matrix of rank correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from heatproof.analysis import wording
from heatproof.analysis.agreement import AgreementMatrix
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures.charts import AgreementChart
from heatproof.report.sections.base import section
from heatproof.report.site import Figure, Site

AGREE = 0.5  # two protocols agree if the whole interval of their correlation is above
MOST_LABELS = 12  # protocols in a matrix


@dataclass(frozen=True)
class Pair:
    """Two protocols, and the correlation of their rankings."""

    a: str
    b: str
    correlation: Estimate


@dataclass(frozen=True)
class Matrix:
    """The protocols of a model, or of one layer of it."""

    layer: str
    under: str  # the settings that all protocols have
    methods: list[str]
    figure: Figure | None
    agreeing: list[Pair] = field(default_factory=list)
    contradicting: list[Pair] = field(default_factory=list)
    unclear: list[Pair] = field(default_factory=list)
    undefined: list[Pair] = field(default_factory=list)  # all methods tie by one of the protocols

    @property
    def pairs(self) -> list[Pair]:
        """All pairs."""
        return [*self.agreeing, *self.contradicting, *self.unclear, *self.undefined]

    @property
    def answer(self) -> str:
        """Whether the protocols agree, in words."""
        known = len(self.pairs) - len(self.undefined)
        return wording.protocols_agree(len(self.agreeing), len(self.contradicting), known)


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    by_model: dict[str, list[Matrix]]
    kinds: dict[str, str]  # of pairs, in words
    explained: str
    controls: list[str]


@section(
    "agreement",
    short="Agreement of protocols",
    question="Do the protocols agree?",
    order=29,
    page="Stability",
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the rank correlations of protocols, if there are two and three methods."""
    by_model: dict[str, list[Matrix]] = {}
    for found in run.agreement_matrices():
        by_model.setdefault(found.model, []).append(_matrix(site, found))
    if not by_model:
        return None
    controls = run.controls(list(run.methods))
    explained = wording.agreement_explained(AGREE)
    return Content(by_model, wording.AGREEMENT_KINDS, explained, controls)


def _matrix(site: Site, found: AgreementMatrix) -> Matrix:
    labels = found.labels
    pairs = [
        Pair(labels[i], labels[j], found.cell(i, j))
        for i in range(len(labels))
        for j in range(i + 1, len(labels))
    ]
    defined = [pair for pair in pairs if math.isfinite(pair.correlation.value)]
    agreeing = [pair for pair in defined if pair.correlation.low > AGREE]
    contradicting = [pair for pair in defined if round(pair.correlation.high, 2) < 0]
    unclear = [pair for pair in defined if pair not in agreeing and pair not in contradicting]
    return Matrix(
        layer=found.layer,
        under=found.under,
        methods=found.methods,
        figure=_figure(site, found, labels),
        agreeing=sorted(agreeing, key=lambda pair: -pair.correlation.value),
        contradicting=sorted(contradicting, key=lambda pair: pair.correlation.value),
        unclear=unclear,
        undefined=[pair for pair in pairs if pair not in defined],
    )


def _figure(site: Site, found: AgreementMatrix, labels: Sequence[str]) -> Figure | None:
    if len(labels) > MOST_LABELS:
        return None
    where = f"{found.model} at layer {found.layer}" if found.layer else found.model
    title = f"{where}: Spearman correlation of the rankings by two protocols, with 95 % intervals"
    return site.figure(
        AgreementChart(title, labels, found.overall.pairs, model=found.model, panel=where)
    )
