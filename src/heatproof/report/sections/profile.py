"""Every kind of evidence about every method, without a score over all of them."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.profile import Conflict, KindEvidence, by_kind, conflicts, kind_of
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.protocols.base import KINDS, Kind
from heatproof.report.sections.base import section
from heatproof.report.site import Site

LEAST_KINDS = 3  # fewer are compared on the page of the ranking

# What it may tell if two kinds contradict each other, in the order of KINDS.
TELLS: dict[tuple[Kind, Kind], str] = {
    ("faithfulness", "in-domain"): "Part of the drops under deletion may come from images that "
    "look like nothing the network knows. In-domain drops do not, but are those of the fine-tuned "
    "network.",
    ("faithfulness", "localization"): "The network may use what lies outside the object or cell, "
    "or a map may show the object and not what decides.",
    ("faithfulness", "values"): "The order of the values may hold where their size does not, or "
    "the other way round: use a map for what it is ahead in.",
    ("faithfulness", "sanity"): "The first of a pair may mark what matters to any network, such as "
    "edges, or features that random weights keep.",
    ("faithfulness", "robustness"): "Fine maps can follow the network closely and change with it, "
    "and coarse ones be stable: average over noise, or accept the resolution.",
    ("in-domain", "localization"): "What decides may not be all on the object, or the object may "
    "be marked beyond what decides.",
    ("in-domain", "values"): "The order of the values may hold where their size does not, or the "
    "other way round; and the two are about different weights.",
    ("in-domain", "sanity"): "The first of a pair may mark what matters to any network.",
    ("in-domain", "robustness"): "Fine maps can follow the network closely and change with it.",
    ("localization", "values"): "A map may lie on the object with values that do not tell its "
    "pixels apart, or tell apart pixels that also lie elsewhere.",
    ("localization", "sanity"): "The first of a pair may find objects whatever the network has "
    "learned, as an edge detector would.",
    ("localization", "robustness"): "Maps that are coarse, or ignore the network, can lie on the "
    "object and be stable; but so can good ones.",
    ("values", "sanity"): "Values can be predictive because they mark what any network uses.",
    ("values", "robustness"): "Values that are right may change quickly.",
    ("sanity", "robustness"): "Maps that ignore the network are stable: stability is no merit by "
    "itself.",
}


@dataclass(frozen=True)
class Cell:
    """Mean rank of a method under a kind, and whether it may be the best."""

    rank: Estimate
    may_be_best: bool


@dataclass(frozen=True)
class Row:
    """A method: a cell for each kind, None where it is not ranked, and what describes its maps."""

    method: str
    is_control: bool
    cells: list[Cell | None]
    descriptions: list[float | None]


@dataclass(frozen=True)
class Clash:
    """A conflict and what it tells."""

    conflict: Conflict
    text: str


@dataclass(frozen=True)
class Profile:
    """The profile of a model's methods, at one layer or at all."""

    title: str
    kinds: list[KindEvidence]
    described: list[str]
    rows: list[Row]
    clashes: list[Clash]
    controls: list[tuple[Kind, str]]  # controls that may be the best under a kind
    not_counted: list[str]


@dataclass(frozen=True)
class Content:
    """What the template shows."""

    profiles: list[Profile]
    meanings: dict[Kind, str]


@section(
    "profile",
    short="Profile",
    question="What does each kind of evidence say?",
    order=12,
)
def content(run: RunStatistics, site: Site) -> Content | None:
    """Return the profiles of all models; None if there are fewer than three kinds of evidence."""
    found = [(evidence, by_kind(evidence)) for evidence in run.evidence]
    profiles = [_profile(run, e, kinds) for e, kinds in found if len(kinds) >= LEAST_KINDS]
    return Content(profiles, dict(KINDS)) if profiles else None


def _profile(run: RunStatistics, evidence: Evidence, kinds: list[KindEvidence]) -> Profile:
    standing = evidence.standing
    described = [s for s, key in enumerate(standing.settings) if kind_of(key[0]) == "description"]
    rows = []
    for method in standing.methods:
        cells = [_cell(kind.evidence, method) for kind in kinds]
        means = [standing.score(s, method).value for s in described]
        values = [None if value != value else value for value in means]
        rows.append(Row(method, method in evidence.controls, cells, values))
    clashes = [Clash(c, TELLS.get(c.kinds, "")) for c in conflicts(kinds)]
    controls = []
    for kind in kinds:
        best = [m for m in kind.evidence.ranked if kind.evidence.place(m) == 1]
        controls += [(kind.kind, m) for m in best if m in evidence.controls]
    title = f"{standing.model}, {standing.layer}" if standing.layer else standing.model
    names = [
        run.setting_labels.get(standing.settings[s], standing.settings[s][0]) for s in described
    ]
    return Profile(title, kinds, names, rows, clashes, controls, _not_counted(run, standing.model))


def _cell(evidence: Evidence, method: str) -> Cell | None:
    if method not in evidence.ranked:
        return None
    return Cell(evidence.mean_rank(method), method in evidence.possible_winners)


def _not_counted(run: RunStatistics, model: str) -> list[str]:
    """Say what protocols have left out by their definition."""
    texts = []
    seen = set()
    for key, facts in run.protocols.items():
        copies = facts.settings.get("copies"), facts.settings.get("radius")
        if facts.id != "sensitivity" or copies in seen:
            continue
        seen.add(copies)
        kept = run.kept(model, run.view_of(model, key)).shared(facts, "kept")
        if kept is not None:
            changed = int((kept == 0).sum())
            texts.append(
                f"noise of ±{facts.settings['radius']:g} changes the prediction of {changed} of "
                f"{kept.numel()} noisy copies, which do not count"
            )
    return texts
