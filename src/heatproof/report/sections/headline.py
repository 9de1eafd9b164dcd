"""Which method wins on each model, how confident this is, and what to be careful about."""

from __future__ import annotations

from dataclasses import dataclass

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Standings
from heatproof.bench.layout import ProtocolFacts
from heatproof.methods.notes import kind_of
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

FEW_SAMPLES = 50
LOW_ACCURACY = 0.5


@dataclass(frozen=True)
class ControlVerdict:
    """The best control of a model."""

    name: str
    rank: Estimate
    beaten: list[str]  # methods that rank below it
    clearly: list[str]  # those of them that rank significantly below it


@dataclass(frozen=True)
class Verdict:
    """The result for one model."""

    model: str
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

    @property
    def clear(self) -> bool:
        """Whether the winner ranks significantly above all other methods."""
        return not self.ties and self.compared > 1

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
    controls: list[tuple[ControlVerdict, list[str]]]  # that rank above methods, and the models
    disagreements: list[Verdict]  # whose winner is significantly worse under some settings
    failed: int  # scores
    failed_methods: list[str]
    few_samples: bool  # too few for reliable intervals
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
    warnings: Warnings
    unranked_models: list[str]
    settings: int
    samples: int
    protocols: list[ProtocolFacts]


@section(
    "headline",
    short="Answer",
    question="Which method wins, and how confident is this?",
    order=10,
)
def content(run: Run, site: Site) -> Content:
    """Return the verdict for each model and the warnings about the run."""
    verdicts = [v for s in run.standings if (v := verdict(run, s))]
    ranked = {v.model for v in verdicts}
    return Content(
        verdicts=verdicts,
        winners=list(dict.fromkeys(v.winner for v in verdicts)),
        warnings=warnings(run, verdicts),
        unranked_models=[s.model for s in run.standings if s.model not in ranked],
        settings=len(run.protocols),
        samples=len(run.samples),
        protocols=list({p.id: p for p in run.protocols.values()}.values()),
    )


def verdict(run: Run, standing: Standings) -> Verdict | None:
    """Return the result for one model; None if no method has a score under every setting."""
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
    correct, labelled = run.accuracy[standing.model]
    return Verdict(
        model=standing.model,
        winner=winner,
        rank=standing.mean_rank(winner),
        first=standing.first_fraction(winner, real),
        scores=scores,
        score=standing.mean_score(winner),
        second=second,
        rank_gap=standing.rank_gap(winner, second) if second else None,
        score_gap=standing.score_gap(winner, second) if second else None,
        ties=[m for m in others if not standing.rank_gap(winner, m).low > 0],
        compared=len(real),
        control=_best_control(run, standing, real),
        elsewhere=elsewhere,
        correct=correct,
        labelled=labelled,
    )


def _best_control(run: Run, standing: Standings, real: list[str]) -> ControlVerdict | None:
    controls = run.controls(standing.order)
    if not controls:
        return None
    best = controls[0]
    beaten = [m for m in real if standing.order.index(m) > standing.order.index(best)]
    clearly = [m for m in beaten if standing.rank_gap(best, m).low > 0]
    return ControlVerdict(best, standing.mean_rank(best), beaten, clearly)


def warnings(run: Run, verdicts: list[Verdict]) -> Warnings:
    """Return what a reader must know before trusting the numbers; the template words it."""
    failed = run.rows[run.rows["status"] == "failed"]
    skipped = run.rows[run.rows["status"] == "skipped"]
    summary = run.summary
    missing = run.rows[run.rows["status"] == "missing"]
    lost = summary["undefined"] + summary["failed"] + summary["missing"]
    short = summary[(summary["n"] > 0) & (lost > 0)]
    return Warnings(
        unfinished=len(run.unfinished),
        empty=not len(run.rows),
        controls=_controls_that_beat_methods(verdicts),
        disagreements=[v for v in verdicts if v.elsewhere],
        failed=len(failed),
        failed_methods=list(dict.fromkeys(failed["method"])),
        few_samples=len(run.rows) > 0 and len(run.samples) < FEW_SAMPLES,
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


def _noted(run: Run) -> list[NotedMaps]:
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
    """Return each control that beats methods, with the models on which these are the same."""
    same: dict[tuple[object, ...], tuple[ControlVerdict, list[str]]] = {}
    for v in verdicts:
        if v.control and v.control.beaten:
            key = (v.control.name, tuple(v.control.beaten), tuple(v.control.clearly))
            _, models = same.setdefault(key, (v.control, []))
            models.append(v.model)
    return list(same.values())
