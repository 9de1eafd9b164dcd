"""Which method is the best on each model, how sure this is, and what to be careful about."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatproof.analysis import wording
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.doubts import (
    FEWEST_IMAGES_AND_GRIDS,
    Doubts,
    doubts,
    fewest_counted,
    inaccurate,
    lost,
    recommendation,
    scarce,
    used_indices,
    used_keys,
)
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import LAYER_ALIASES, Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.methods.notes import kind_of
from heatproof.report.sections.base import section
from heatproof.report.sections.example_maps import ExampleMaps, example_maps
from heatproof.report.sections.verdict_details import (
    BriefRanking,
    LeaderCost,
    brief_ranking,
    by_protocol,
    leader_cost,
)
from heatproof.report.site import Site
from heatproof.runs.format import ProtocolFacts

MOST_CARDS = 3  # models that are shown one below the other
MOST_WARNINGS = 4  # of a kind
MOST_LAYERS = 4  # whose winners are named; the ranking has all


@dataclass(frozen=True)
class Verdict:
    """The result for one model, or for one layer of a model; texts come from `wording`."""

    evidence: Evidence
    model: str
    layer: str  # empty if all methods are ranked together
    leader: str
    badge: str
    recommendation: str
    maps: ExampleMaps | None  # None if no maps were kept
    ranked: int  # methods and controls that have a rank
    rank: Estimate
    scores: list[tuple[str, Estimate]]  # setting, mean
    score: Estimate | None  # mean over the settings; None if they are of several protocols
    certainty: str
    against: list[str]
    control: str
    correct: int
    labelled: int
    doubts: Doubts
    protocols: list[str]  # empty if there is one protocol
    cost: LeaderCost | None
    brief: BriefRanking

    @property
    def clear(self) -> bool:
        """Whether the leader wins, on enough data of a model that works."""
        return bool(self.evidence.winner) and not self.doubts

    @property
    def where(self) -> str:
        """The model, and the layer if methods are ranked within layers."""
        return wording.where(self.evidence)


@dataclass(frozen=True)
class NotedMaps:
    """Maps that methods have noted the same kind of thing about."""

    kind: str
    count: int
    methods: list[str]


@dataclass(frozen=True)
class Inapplicable:
    """A setting that applies to no method on some models, and why."""

    setting: str
    models: list[str]
    reason: str


@dataclass(frozen=True)
class Warnings:
    """What a reader must know before trusting the numbers; what is empty or 0 is not mentioned."""

    unfinished: int  # tasks
    empty: bool  # there are no scores
    controls: bool  # one ranks above a method
    not_ranked: list[str]  # methods and why, in words; at most `MOST_WARNINGS`
    more_not_ranked: int
    inapplicable: list[Inapplicable]
    lost: list[str]  # how many scores failed or are missing, in words
    few: SampleCounts | None  # of the smallest setting, if these are few
    few_text: str
    inaccurate: list[str]  # models and why, in words; at most `MOST_WARNINGS`
    more_inaccurate: int
    skipped: int  # images
    noted: list[NotedMaps]
    probabilities: list[str]  # what to do about models whose outputs are not logits
    unlikely_inputs: list[str]  # what to do about images that hardly fit the normalization

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class Content:
    """The content of the template."""

    verdicts: list[Verdict]
    lead: list[str]  # sentences
    as_tabs: bool  # whether there are too many verdicts for one page
    explained: str
    not_conclusive: str
    unused: str  # settings that do not count, in words
    warnings: Warnings
    unranked_models: list[str]
    settings: int  # that count in the mean ranks
    counted_protocols: int  # that these are of
    protocols: list[ProtocolFacts]
    models: int  # with a verdict
    layers: list[str]  # within which methods are ranked
    more_layers: bool  # whether there are others, which have no verdict
    only_controls: bool


@section(
    "headline",
    short="Answer",
    question="Which method is the best, and how sure is this?",
    order=10,
    page="Overview",
)
def content(run: RunStatistics, site: Site) -> Content:
    """Return the verdict for each model and the warnings about the run."""
    verdicts = []
    more_layers = False
    for standing in run.standings:
        chosen = _chosen_layers(run, standing)
        more_layers |= len(chosen) < len(standing.by_layer)
        verdicts += [v for s in chosen if (v := verdict(run, site, run.evidence_of(s)))]
    ranked = {v.model for v in verdicts}
    evidences = [v.evidence for v in verdicts]
    unused = list(dict.fromkeys(key for evidence in evidences for key in evidence.unused))
    used = {key for evidence in evidences for key in used_keys(evidence)}
    return Content(
        verdicts=verdicts,
        lead=_lead(run, verdicts),
        as_tabs=len(verdicts) > MOST_CARDS,
        explained=wording.EXPLAINED,
        not_conclusive=wording.NOT_CONCLUSIVE,
        unused=wording.unused_settings(unused, run.setting_labels),
        warnings=warnings(run, verdicts),
        unranked_models=[s.model for s in run.standings if s.model not in ranked],
        settings=len(used),
        counted_protocols=len({protocol for protocol, _, _ in used}),
        protocols=list({p.id: p for p in run.protocols.values()}.values()),
        models=len(ranked),
        layers=list(dict.fromkeys(v.layer for v in verdicts if v.layer)),
        more_layers=more_layers,
        only_controls=all(map(run.is_control, run.methods)),
    )


def _lead(run: RunStatistics, verdicts: list[Verdict]) -> list[str]:
    """Return a recommendation for each model, and what models without doubts have in common."""
    evidences = [v.evidence for v in verdicts]
    if len(verdicts) > MOST_CARDS:
        return wording.across_many(evidences, [v.doubts.first for v in verdicts])
    doubted = [bool(v.doubts) for v in verdicts]
    together = len(verdicts) > 1 and not any(doubted)
    more = [wording.across(evidences, doubted)] if together else []
    return [v.recommendation for v in verdicts] + more


def _chosen_layers(run: RunStatistics, standing: Standings) -> list[Standings]:
    """Return the standings at some layers, those that compare methods if there are any.

    If these are many, the layers with an alias are chosen, or the first, middle and last.
    """
    at_layers = standing.by_layer
    comparing = [s for s in at_layers if len(s.methods) - len(run.controls(s.methods)) > 1]
    at_layers = comparing or at_layers
    if len(at_layers) <= MOST_LAYERS:
        return at_layers
    named = [s for s in at_layers if s.layer in LAYER_ALIASES]
    return named or [at_layers[0], at_layers[len(at_layers) // 2], at_layers[-1]]


def verdict(run: RunStatistics, site: Site, evidence: Evidence) -> Verdict | None:
    """Return the result for a model; None if no method is ranked under the settings that apply."""
    leader = evidence.leader
    if not leader:
        return None
    standing = evidence.standing
    labels = run.setting_labels
    correct, labelled = run.accuracy[standing.model]
    against = doubts(run, evidence)
    return Verdict(
        evidence=evidence,
        model=standing.model,
        layer=standing.layer,
        leader=leader,
        badge=wording.badge(evidence, bool(against)),
        recommendation=recommendation(run, evidence),
        maps=example_maps(run, site, evidence),
        ranked=len(evidence.ranked),
        rank=evidence.mean_rank(leader),
        scores=[
            (labels[key], score)
            for i, key in enumerate(standing.settings)
            if math.isfinite((score := standing.score(i, leader)).value)
        ],
        score=standing.under(used_indices(evidence)).mean_score(leader),
        certainty=wording.certainty(evidence, str(fewest_counted(run, evidence))),
        against=wording.against(evidence, labels, len(evidence.used)),
        control=wording.control(evidence),
        correct=correct,
        labelled=labelled,
        doubts=against,
        protocols=by_protocol(evidence),
        cost=leader_cost(run, evidence),
        brief=brief_ranking(run, evidence),
    )


def warnings(run: RunStatistics, verdicts: list[Verdict]) -> Warnings:
    """Return what a reader must know before trusting the numbers; the template words it."""
    skipped = run.rows[run.rows["status"] == "skipped"]
    few = scarce(run)
    wrong = inaccurate(run)
    return Warnings(
        unfinished=len(run.unfinished),
        empty=not len(run.rows),
        controls=any(v.control and v.evidence.ranked_controls for v in verdicts),
        not_ranked=run.not_ranked[:MOST_WARNINGS],
        more_not_ranked=len(run.not_ranked[MOST_WARNINGS:]),
        inapplicable=_inapplicable(run),
        lost=lost(run),
        few=few,
        few_text=wording.few(few, FEWEST_IMAGES_AND_GRIDS) if few else "",
        inaccurate=wrong[:MOST_WARNINGS],
        more_inaccurate=len(wrong[MOST_WARNINGS:]),
        skipped=skipped["sample"].nunique(),
        noted=_noted(run),
        probabilities=list(
            dict.fromkeys(m.output_advice for m in run.provenance.models if m.output_advice)
        ),
        unlikely_inputs=run.input_advice,
    )


def _inapplicable(run: RunStatistics) -> list[Inapplicable]:
    """Return the settings under which nothing was scored on a model, as they do not apply to it."""
    found: dict[tuple[str, str], list[str]] = {}
    columns = ["model", "protocol", "setting", "baseline"]
    for (model, *key), part in run.rows.groupby(columns, sort=False, observed=True):
        if (part["status"] == "n/a").all():
            label = run.setting_labels[tuple(key)]
            why = str(part["message"].iloc[0]).removeprefix(f"{key[0]}: ")
            found.setdefault((label, why), []).append(str(model))
    return [Inapplicable(label, models, why) for (label, why), models in found.items()]


def _noted(run: RunStatistics) -> list[NotedMaps]:
    """Return the notes on scored maps by kind; a map counts once, however many scores it has."""
    rows = run.rows[(run.rows["status"] == "ok") & (run.rows["note"] != "")]
    noted = []
    for kind, part in rows.groupby(rows["note"].map(kind_of), sort=False):
        count = len(part[["model", "method", "sample", "target"]].drop_duplicates())
        noted.append(NotedMaps(str(kind), count, list(dict.fromkeys(part["method"]))))
    return noted
