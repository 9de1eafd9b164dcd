"""Which method wins on each model, how confident this is, and what to be careful about."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis.accuracy import wilson
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import ALIASES, Standings
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.methods.notes import kind_of
from heatproof.report.sections.base import section
from heatproof.report.sections.verdict_details import (
    BriefRanking,
    ProtocolVerdict,
    WinnerCost,
    brief_ranking,
    by_protocol,
    winner_cost,
)
from heatproof.report.site import Site
from heatproof.runs.format import ProtocolFacts

FEW_SAMPLES = 50  # images and grids
TOO_FEW_SAMPLES = 10  # below about this number the coverage of intervals was not measured
LOW_ACCURACY = 0.5
MOST_LAYERS = 4  # whose winners are named; the ranking has all
RANDOM = "random"  # the control whose maps are noise


@dataclass(frozen=True)
class ControlVerdict:
    """The best control of a model."""

    name: str
    rank: Estimate
    beaten: list[str]  # methods that rank below it
    clearly: list[str]  # those of them that rank significantly below it


@dataclass(frozen=True)
class Doubts:
    """Why a significant lead is no clear win; what is empty or None does not apply.

    Attributes:
        chance: The fraction that guessing classifies correctly, if the model may do no better.
        few: The images and grids of the setting with the fewest, if these are too few.
        control: A control that the winner does not rank significantly above.
        random: Settings under which the winner is not significantly better than a random map, with
            its score and that of a random map.
    """

    chance: float | None
    few: SampleCounts | None
    control: str
    random: list[tuple[str, Estimate, float]]

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class Verdict:
    """The result for one model, or for one layer of a model."""

    model: str
    layer: str  # empty if all methods are ranked together
    winner: str
    rank: Estimate
    first: float  # fraction of the bootstrap draws in which it ranks first
    scores: list[tuple[str, Estimate]]  # setting, mean
    score: Estimate | None  # mean over the settings; None if they are of several protocols
    second: str
    rank_gap: Estimate | None
    score_gap: Estimate | None
    ties: list[str]  # methods that do not rank significantly below the winner
    compared: int
    control: ControlVerdict | None
    elsewhere: list[tuple[str, str]]  # settings with a significantly better method, and the best
    correct: int
    labelled: int
    doubts: Doubts
    protocols: list[ProtocolVerdict]  # empty if there is one protocol
    cost: WinnerCost | None
    brief: BriefRanking

    @property
    def leads(self) -> bool:
        """Whether the winner ranks significantly above all other methods."""
        return not self.ties and self.compared > 1

    @property
    def clear(self) -> bool:
        """Whether it also is nowhere beaten, on enough data of a model that works."""
        return self.leads and not self.elsewhere and not self.doubts

    @property
    def where(self) -> str:
        """The model, and the layer if methods are ranked within layers."""
        return f"{self.model} at layer {self.layer}" if self.layer else self.model

    @property
    def control_wins(self) -> bool:
        """Whether the best control ranks above the winner."""
        return self.control is not None and self.winner in self.control.beaten


@dataclass(frozen=True)
class NotedMaps:
    """Maps that methods have noted the same kind of thing about."""

    kind: str
    count: int
    methods: list[str]


@dataclass(frozen=True)
class Warnings:
    """What a reader must know before trusting the numbers; what is empty or 0 is not mentioned."""

    unfinished: int  # tasks
    empty: bool  # there are no scores
    controls: list[tuple[ControlVerdict, list[str]]]  # that rank above methods, and where
    disagreements: list[Verdict]  # whose winner is significantly worse under some settings
    failed: int  # scores
    failed_methods: list[str]
    few_samples: SampleCounts | None  # of the smallest setting, if too few for reliable intervals
    inaccurate: list[tuple[str, int, int]]  # model, correct, labelled
    skipped: int  # images
    missing: int  # scores, for want of a saved map
    missing_methods: list[str]
    noted: list[NotedMaps]
    probabilities: list[str]  # what to do about models whose outputs are not logits
    uneven: list[str]  # methods with fewer scores than others

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class Content:
    """What the template shows."""

    verdicts: list[Verdict]
    winners: list[str]
    shared: list[str]  # methods that win, or tie with the winner, in every verdict
    warnings: Warnings
    unranked_models: list[str]
    settings: int
    protocols: list[ProtocolFacts]
    models: int  # with a verdict
    layers: list[str]  # within which methods are ranked
    more_layers: bool  # whether there are others, which have no verdict


@section(
    "headline",
    short="Answer",
    question="Which method wins, and how confident is this?",
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
        verdicts += [v for s in chosen if (v := verdict(run, s))]
    ranked = {v.model for v in verdicts}
    best = [[v.winner, *v.ties] for v in verdicts]
    return Content(
        verdicts=verdicts,
        winners=list(dict.fromkeys(v.winner for v in verdicts)),
        shared=[m for m in best[0] if all(m in tied for tied in best)] if best else [],
        warnings=warnings(run, verdicts),
        unranked_models=[s.model for s in run.standings if s.model not in ranked],
        settings=len(run.protocols),
        protocols=list({p.id: p for p in run.protocols.values()}.values()),
        models=len(ranked),
        layers=list(dict.fromkeys(v.layer for v in verdicts if v.layer)),
        more_layers=more_layers,
    )


def _chosen_layers(run: RunStatistics, standing: Standings) -> list[Standings]:
    """Return the standings at some layers, those that compare methods if there are any.

    If these are many, the layers with an alias are chosen, or the first, middle and last.
    """
    at_layers = standing.by_layer
    comparing = [s for s in at_layers if len(s.methods) - len(run.controls(s.methods)) > 1]
    at_layers = comparing or at_layers
    if len(at_layers) <= MOST_LAYERS:
        return at_layers
    named = [s for s in at_layers if s.layer in ALIASES]
    return named or [at_layers[0], at_layers[len(at_layers) // 2], at_layers[-1]]


def verdict(run: RunStatistics, standing: Standings) -> Verdict | None:
    """Return the result for standings; None if no method has a score under every setting."""
    real = [m for m in standing.order if not run.is_control(m)]
    if not real:
        return None
    winner, *others = real
    second = others[0] if others else ""
    scores = []
    elsewhere = []
    for i, key in enumerate(standing.settings):
        label = run.setting_labels[key]
        scores.append((label, standing.score(i, winner)))
        better = standing.significantly_better(i, winner, real)
        if better:
            elsewhere.append((label, better[0]))
    control = _best_control(run, standing, real)
    correct, labelled = run.accuracy[standing.model]
    ties = [m for m in others if not standing.rank_gap(winner, m).low > 0]
    return Verdict(
        model=standing.model,
        layer=standing.layer,
        winner=winner,
        rank=standing.mean_rank(winner),
        first=standing.first_fraction(winner, real),
        scores=scores,
        score=standing.mean_score(winner),
        second=second,
        rank_gap=standing.rank_gap(winner, second) if second else None,
        score_gap=standing.score_gap(winner, second) if second else None,
        ties=ties,
        compared=len(real),
        control=control,
        elsewhere=elsewhere,
        correct=correct,
        labelled=labelled,
        doubts=_doubts(run, standing, winner, control),
        protocols=by_protocol(run, standing),
        cost=winner_cost(run, standing.model, winner, ties),
        brief=brief_ranking(run, standing),
    )


def _doubts(
    run: RunStatistics, standing: Standings, winner: str, control: ControlVerdict | None
) -> Doubts:
    correct, labelled = run.accuracy[standing.model]
    facts = run.facts(standing.model)
    chance = None
    if labelled and facts and wilson(correct / labelled, labelled)[0] <= 1 / facts.classes:
        chance = 1 / facts.classes
    fewest = _fewest(run, standing.model)
    random_maps = [m for m in standing.order if run.is_control(m) and m.startswith(RANDOM)]
    not_below = [m for m in random_maps if not standing.rank_gap(winner, m).low > 0]
    if control and winner in control.beaten:
        not_below = [control.name]
    random = []
    for i, key in enumerate(standing.settings):
        of_random = run.protocols[key].random_score
        if of_random is None:
            continue
        score = standing.score(i, winner)
        higher = run.protocols[key].higher_is_better
        if not (score.low > of_random if higher else score.high < of_random):
            random.append((run.setting_labels[key], score, of_random))
    return Doubts(
        chance=chance,
        few=fewest if fewest.independent < TOO_FEW_SAMPLES else None,
        control=not_below[0] if not_below else "",
        random=random,
    )


def _fewest(run: RunStatistics, model: str | None = None) -> SampleCounts:
    """Return the counts of the setting with the fewest images and grids."""
    counts = [c for (name, _), c in run.counts_of.items() if model in (None, name)]
    return min(counts, key=lambda c: c.independent)


def _best_control(
    run: RunStatistics, standing: Standings, real: list[str]
) -> ControlVerdict | None:
    controls = run.controls(standing.order)
    if not controls:
        return None
    best = controls[0]
    beaten = [m for m in real if standing.order.index(m) > standing.order.index(best)]
    clearly = [m for m in beaten if standing.rank_gap(best, m).low > 0]
    return ControlVerdict(best, standing.mean_rank(best), beaten, clearly)


def warnings(run: RunStatistics, verdicts: list[Verdict]) -> Warnings:
    """Return what a reader must know before trusting the numbers; the template words it."""
    failed = run.rows[run.rows["status"] == "failed"]
    skipped = run.rows[run.rows["status"] == "skipped"]
    summary = run.summary_frame
    missing = run.rows[run.rows["status"] == "missing"]
    lost = summary["undefined"] + summary["failed"] + summary["missing"]
    short = summary[(summary["n"] > 0) & (lost > 0)]
    fewest = _fewest(run) if len(run.rows) else None
    return Warnings(
        unfinished=len(run.unfinished),
        empty=not len(run.rows),
        controls=_controls_that_beat_methods(verdicts),
        disagreements=[v for v in verdicts if v.elsewhere],
        failed=len(failed),
        failed_methods=list(dict.fromkeys(failed["method"])),
        few_samples=fewest if fewest and fewest.independent < FEW_SAMPLES else None,
        inaccurate=[
            (model, correct, labelled)
            for model, (correct, labelled) in run.accuracy.items()
            if labelled and correct / labelled < LOW_ACCURACY
        ],
        skipped=skipped["sample"].nunique(),
        missing=len(missing),
        missing_methods=list(dict.fromkeys(missing["method"])),
        noted=_noted(run),
        probabilities=list(
            dict.fromkeys(m.output_advice for m in run.provenance.models if m.output_advice)
        ),
        uneven=list(dict.fromkeys(short["method"])),
    )


def _noted(run: RunStatistics) -> list[NotedMaps]:
    """Return the notes on scored maps by kind; a map counts once, however many scores it has."""
    rows = run.rows[(run.rows["status"] == "ok") & (run.rows["note"] != "")]
    noted = []
    for kind, part in rows.groupby(rows["note"].map(kind_of), sort=False):
        count = len(part[["model", "method", "sample", "target"]].drop_duplicates())
        noted.append(NotedMaps(str(kind), count, list(dict.fromkeys(part["method"]))))
    return noted


def _controls_that_beat_methods(
    verdicts: list[Verdict],
) -> list[tuple[ControlVerdict, list[str]]]:
    """Return each control that beats methods, with where these are the same."""
    same: dict[tuple[object, ...], tuple[ControlVerdict, list[str]]] = {}
    for v in verdicts:
        if v.control and v.control.beaten:
            key = (v.control.name, tuple(v.control.beaten), tuple(v.control.clearly))
            _, models = same.setdefault(key, (v.control, []))
            models.append(v.where)
    return list(same.values())
