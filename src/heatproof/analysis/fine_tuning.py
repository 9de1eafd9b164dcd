"""Are networks equally far fine-tuned?

IDSDS depends on how far a network was fine-tuned: the longer, and the higher the learning rate, the
less a missing patch matters to it. Scores of networks compare only if their settings are the same
and the scores have settled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from heatproof.analysis.accuracy import Z, wilson
from heatproof.analysis.intervals import Estimate
from heatproof.runs.format import EpochFacts, FineTuningFacts

SETTINGS = {
    "lr": "learning rate",
    "epochs": "epochs",
    "images": "training images",
    "batch_size": "batch size",
    "step": "epochs until the learning rate falls",
    "loss": "loss",
    "data": "training data",
}


@dataclass(frozen=True)
class Movement:
    """A measurement that had not settled when fine-tuning ended."""

    measure: str  # probe IDSDS, or worst-patch accuracy
    before: float
    after: float
    since: int  # the epoch of ``before``
    until: int


@dataclass(frozen=True)
class Warnings:
    """Reasons why scores of fine-tuned networks may not compare.

    Attributes:
        settings: Settings that differ: name -> network -> value.
        moving: What had not settled, by network.
        disjoint: The networks with the lowest and the highest worst-patch accuracy, if their
            intervals do not overlap.
        unrecorded: Networks whose weights do not say how they were fine-tuned.
    """

    settings: dict[str, dict[str, str]]
    moving: dict[str, list[Movement]]
    disjoint: tuple[str, str] | None
    unrecorded: list[str]

    def __bool__(self) -> bool:
        return bool(self.settings or self.moving or self.disjoint or self.unrecorded)


def fine_tuning_warnings(networks: Mapping[str, FineTuningFacts | None]) -> Warnings:
    """Compare how far networks were fine-tuned for the same patches and baseline.

    Args:
        networks: What is on record about each network's fine-tuning; None if nothing is.

    Returns:
        What differs between the networks, or had not settled.
    """
    recorded = {name: facts for name, facts in networks.items() if facts is not None}
    settings = {}
    for key, title in SETTINGS.items():
        values = {name: f"{getattr(facts, key)}" for name, facts in recorded.items()}
        if len(set(values.values())) > 1:
            settings[title] = values
    moving = {name: movements(facts) for name, facts in recorded.items()}
    return Warnings(
        settings=settings,
        moving={name: found for name, found in moving.items() if found},
        disjoint=_disjoint(recorded),
        unrecorded=[name for name, facts in networks.items() if facts is None],
    )


def movements(facts: FineTuningFacts) -> list[Movement]:
    """Return what changed by more than its sampling error over the last third of the epochs.

    The sampling error is that of the difference of two independent means, at 95 %. The images are
    the same in both epochs, so it is too large rather than too small.
    """
    history = facts.history
    if len(history) < 2:
        return []
    last = history[-1]
    first = history[-1 - max(1, round((len(history) - 1) / 3))]
    found = []
    if last.idsds is not None and first.idsds is not None:
        error = math.hypot(last.idsds_error or math.inf, first.idsds_error or math.inf)
        if abs(last.idsds - first.idsds) > Z * error:
            found.append(Movement("probe IDSDS", first.idsds, last.idsds, first.epoch, last.epoch))
    error = math.hypot(*(_standard_error(e.worst_all, facts.tested) for e in (first, last)))
    if abs(last.worst_all - first.worst_all) > Z * error:
        found.append(
            Movement(
                "worst-patch accuracy", first.worst_all, last.worst_all, first.epoch, last.epoch
            )
        )
    return found


def worst_patch(facts: FineTuningFacts, epoch: EpochFacts) -> Estimate:
    """Estimate the fraction of images that stay correct whichever patch is deleted."""
    return Estimate(epoch.worst_all, *wilson(epoch.worst_all, facts.tested))


def _disjoint(recorded: Mapping[str, FineTuningFacts]) -> tuple[str, str] | None:
    estimates = {
        name: worst_patch(facts, facts.kept_epoch)
        for name, facts in recorded.items()
        if facts.history
    }
    if len(estimates) < 2:
        return None
    lowest = min(estimates, key=lambda name: estimates[name].value)
    highest = max(estimates, key=lambda name: estimates[name].value)
    if estimates[lowest].high >= estimates[highest].low:
        return None
    return lowest, highest


def _standard_error(p: float, n: int) -> float:
    """Return the standard error of a proportion, which is not zero at 0 or 1 (Agresti-Coull)."""
    centre = (p * n + 2) / (n + 4)
    return math.sqrt(centre * (1 - centre) / (n + 4))
