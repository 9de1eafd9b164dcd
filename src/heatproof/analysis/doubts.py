"""Reasons not to recommend the method that ranks first, and what to know before any number is used.

Python, the command line and the report show the same sentences, which `wording` has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatproof.analysis import wording
from heatproof.analysis.accuracy import wilson
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.profile import kind_of
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.analysis.settings import Key

FEWEST_IMAGES_AND_GRIDS = 10  # with fewer, about, the coverage of intervals was not measured
FEW_IMAGES_AND_GRIDS = 50  # with fewer, tests find large differences alone
LOW_ACCURACY = 0.5
RANDOM_CONTROL = "random"  # the control whose maps are noise


@dataclass(frozen=True)
class Doubts:
    """Reasons why a lead is no win; those that are empty or None do not apply.

    Attributes:
        guessing: That the model is not shown to classify better than guessing, in words.
        few: The images and grids of the setting with the fewest, if these are too few.
        control: A control that the leader is not shown to be better than.
        random: The same of a random map, in words.
    """

    guessing: str
    few: SampleCounts | None
    control: str
    random: str

    def __bool__(self) -> bool:
        return bool(self.first)

    @property
    def first(self) -> str:
        """The name of the first reason that applies; empty if none does."""
        return next((name for name in wording.DOUBTS if getattr(self, name)), "")

    @property
    def few_text(self) -> str:
        """That there are too few images, in words."""
        return wording.few(self.few, FEWEST_IMAGES_AND_GRIDS) if self.few else ""

    @property
    def control_text(self) -> str:
        """That the leader is not shown to be better than a control, in words."""
        return wording.not_above_control(self.control) if self.control else ""


def doubts(run: RunStatistics, evidence: Evidence) -> Doubts:
    """Return why a leader cannot be recommended.

    Args:
        run: The run.
        evidence: What is known about the methods of one of its models; it must have a leader.
    """
    fewest = fewest_counted(run, evidence)
    return Doubts(
        guessing=guessing(run, evidence.model),
        few=fewest if fewest.independent < FEWEST_IMAGES_AND_GRIDS else None,
        control=_control(evidence),
        random=_random(run, evidence),
    )


def guessing(run: RunStatistics, model: str) -> str:
    """Say that a model is not shown to classify better than guessing; empty if it is."""
    correct, labelled = run.accuracy[model]
    facts = run.facts(model)
    if not labelled or facts is None:
        return ""
    chance = 1 / facts.classes
    if wilson(correct / labelled, labelled)[0] > chance:
        return ""
    return wording.not_above_guessing(correct, labelled, chance)


def recommendation(run: RunStatistics, evidence: Evidence) -> str:
    """Say which method to use on a model, or why none can be recommended."""
    title = run.titles.__getitem__
    if not evidence.leader:
        return wording.recommendation(evidence, title)
    against = doubts(run, evidence)
    return wording.recommendation(
        evidence,
        title,
        guessing=bool(against.guessing),
        few=against.few is not None,
        control=against.control,
        random=bool(against.random),
    )


def inaccurate(run: RunStatistics) -> list[str]:
    """Say which models are wrong on most images, or not shown to be better than guessing."""
    found = []
    for model, (correct, labelled) in run.accuracy.items():
        text = guessing(run, model)
        if not text and labelled and correct / labelled < LOW_ACCURACY:
            text = wording.low_accuracy(correct, labelled)
        found += [f"{run.titles[model]} {text}"] if text else []
    return found


def scarce(run: RunStatistics) -> SampleCounts | None:
    """Return the counts of the setting with the fewest images and grids, if these are few."""
    found = [fewest_counted(run, evidence) for evidence in run.evidence if evidence.leader]
    found = found or list(run.counts_of.values())
    fewest = min(found, key=lambda c: c.independent, default=None)
    few = fewest is not None and 0 < fewest.independent < FEW_IMAGES_AND_GRIDS
    return fewest if few else None


def lost(run: RunStatistics) -> list[str]:
    """Say how many scores failed, and how many are missing for want of a saved map."""
    found = []
    for status in ("failed", "missing"):
        of = run.rows.loc[run.rows["status"] == status, "method"]
        methods = list(of.unique())
        found += [wording.lost(status, len(of), len(run.rows), methods)] if methods else []
    return found


def fewest_counted(run: RunStatistics, evidence: Evidence) -> SampleCounts:
    """Return the counts of the setting with the fewest images and grids, of those that count."""
    counts = [run.counts_of[evidence.model, key] for key in used_keys(evidence)]
    return min(counts, key=lambda c: c.independent)


def used_indices(evidence: Evidence) -> list[int]:
    """Return the settings that count in the mean rank, by their indices."""
    return [i for i, weight in enumerate(evidence.standing.weights) if weight]


def used_keys(evidence: Evidence) -> list[Key]:
    """Return the settings that count in the mean rank."""
    return [evidence.standing.settings[i] for i in used_indices(evidence)]


def _control(evidence: Evidence) -> str:
    """Return a control that the leader is not shown to be better than; empty if there is none."""
    controls = evidence.ranked_controls
    for control in (m for m in controls if m.startswith(RANDOM_CONTROL) or m == controls[0]):
        if evidence.surely_better(evidence.leader, control):
            continue
        if len(evidence.used) == 1 or _level_with(evidence, control):
            return control
    return ""


def _level_with(evidence: Evidence, control: str) -> bool:
    """Return whether the leader is not ahead of a control under some setting."""
    for scores in evidence.used:
        pairs = scores.pairs
        i, j = (pairs.methods.index(m) for m in (evidence.leader, control))
        if not pairs.ahead[i, j]:
            return True
    return False


def _random(run: RunStatistics, evidence: Evidence) -> str:
    """Say where the leader is not shown to be better than a random map; empty if nowhere."""
    standing = evidence.standing
    found = []
    for i, key in enumerate(standing.settings):
        of_random = run.protocols[key].random_score
        score = standing.score(i, evidence.leader)
        if kind_of(key[0]) == "robustness":  # a map that never changes is perfect there
            continue
        if of_random is None or not math.isfinite(score.value):
            continue
        higher = run.protocols[key].higher_is_better
        if not (score.low > of_random if higher else score.high < of_random):
            text = wording.estimate(score)
            found.append(f"under {run.setting_labels[key]} ({text}; random {of_random:g})")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return wording.not_above_random(", ".join(found[:3]) + more) if found else ""
