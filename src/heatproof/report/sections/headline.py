"""Which method wins on each model, how sure that is, what the best control does, and what to be careful with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Standings
from heatproof.report.run_data import Run
from heatproof.report.sections.base import section
from heatproof.report.site import Site

FEW_SAMPLES = 50
LOW_ACCURACY = 0.5


@dataclass(frozen=True)
class ControlVerdict:
    name: str
    rank: Estimate
    beaten: list[str]  # methods that rank below it
    clearly: list[str]  # of these, those told apart


@dataclass(frozen=True)
class Verdict:
    """What can be said of one model."""

    model: str
    winner: str
    rank: Estimate
    first: float  # share of draws
    scores: list[tuple[str, Estimate]]  # setting, mean
    score: Estimate | None  # their mean, unless those of several protocols would be mixed
    second: str
    rank_gap: Estimate | None
    score_gap: Estimate | None
    ties: list[str]  # methods that cannot be told apart from the winner
    compared: int
    control: ControlVerdict | None
    elsewhere: list[
        tuple[str, str]
    ]  # settings under which another method is better beyond chance, and the best there
    correct: int
    labelled: int

    @property
    def clear(self) -> bool:
        return not self.ties and self.compared > 1

    @property
    def control_wins(self) -> bool:
        return self.control is not None and self.winner in self.control.beaten


@section("headline", short="Answer", question="Which method wins, and how sure is that?", order=10)
def content(run: Run, site: Site) -> dict[str, Any]:
    verdicts = [v for s in run.standings if (v := verdict(run, s))]
    return {
        "verdicts": verdicts,
        "winners": list(dict.fromkeys(v.winner for v in verdicts)),
        "warnings": warnings(run, verdicts),
        "unranked_models": [
            s.model for s in run.standings if s.model not in {v.model for v in verdicts}
        ],
        "settings": len(run.protocols),
        "samples": len(run.samples),
        "protocols": list({p.id: p for p in run.protocols.values()}.values()),
    }


def verdict(run: Run, standing: Standings) -> Verdict | None:
    """Of the methods that are no controls; none where nothing has a score under every setting."""
    real = [m for m in standing.order if not run.is_control(m)]
    if not real:
        return None
    winner, *others = real
    second = others[0] if others else ""
    controls = run.controls(standing.order)
    control = None
    if controls:
        beaten = [m for m in real if standing.order.index(m) > standing.order.index(controls[0])]
        clearly = [m for m in beaten if standing.rank_gap(controls[0], m).low > 0]
        control = ControlVerdict(controls[0], standing.mean_rank(controls[0]), beaten, clearly)
    return Verdict(
        standing.model,
        winner,
        standing.mean_rank(winner),
        standing.first_share(winner, real),
        [
            (run.setting_labels[key], standing.score(i, winner))
            for i, key in enumerate(standing.settings)
        ],
        standing.mean_score(winner),
        second,
        standing.rank_gap(winner, second) if second else None,
        standing.score_gap(winner, second) if second else None,
        [m for m in others if not standing.rank_gap(winner, m).low > 0],
        len(real),
        control,
        [
            (run.setting_labels[key], ahead[0])
            for i, key in enumerate(standing.settings)
            if (ahead := standing.ahead_in(i, winner, real))
        ],
        *run.accuracy[standing.model],
    )


def warnings(run: Run, verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """What a reader must know before trusting the numbers; each as a kind and its facts, worded by the template."""
    found: list[dict[str, Any]] = []
    if run.unfinished:
        found.append({"kind": "unfinished", "missing": len(run.unfinished), "of": len(run.tasks)})
    if not len(run.rows):
        return [*found, {"kind": "empty"}]
    beating: dict[tuple[str, ...], dict[str, Any]] = {}
    for v in verdicts:
        if v.control and v.control.beaten:
            same = (v.control.name, *v.control.beaten, "", *v.control.clearly)
            beating.setdefault(same, {"kind": "control", "control": v.control, "models": []})[
                "models"
            ].append(v.model)
    found += beating.values()
    found += [{"kind": "elsewhere", "verdict": v} for v in verdicts if v.elsewhere]
    failed = run.rows[run.rows["status"] == "failed"]
    if len(failed):
        found.append(
            {
                "kind": "failed",
                "count": len(failed),
                "of": len(run.rows),
                "methods": list(dict.fromkeys(failed["method"])),
            }
        )
    if len(run.samples) < FEW_SAMPLES:
        found.append({"kind": "few", "samples": len(run.samples)})
    for model, (correct, labelled) in run.accuracy.items():
        if labelled and correct / labelled < LOW_ACCURACY:
            found.append(
                {"kind": "accuracy", "model": model, "correct": correct, "labelled": labelled}
            )
    skipped = run.rows.loc[run.rows["status"] == "skipped", "sample"].nunique()
    if skipped:
        found.append({"kind": "skipped", "samples": skipped})
    short = run.summary[
        (run.summary["n"] > 0) & (run.summary["undefined"] + run.summary["failed"] > 0)
    ]
    if len(short):
        found.append({"kind": "uneven", "methods": list(dict.fromkeys(short["method"]))})
    return found
