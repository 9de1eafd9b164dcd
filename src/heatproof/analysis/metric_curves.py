"""The curves that protocols store: what each metric measured on the maps of a method, by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heatproof.analysis import soundness
from heatproof.analysis.paired_differences import table
from heatproof.protocols.soundness import Soundness
from heatproof.runs.format import ProtocolFacts, TensorKey
from heatproof.runs.run import Run
from heatproof.scoring.aggregate import PendingCurves

CURVE_OF_METRIC = {  # the curve that a metric is drawn by
    "completeness": "drop",
    "road": "score",
    "deletion": "score",
    "insertion": "score",
    "ids": "score",
}


class MetricCurves(NamedTuple):
    """Measurements of a metric on the maps of one method along its steps."""

    positions: np.ndarray  # (S,)
    values: np.ndarray  # (N, S)
    samples: list[str]  # (N,) that have a score

    @property
    def measured(self) -> tuple[np.ndarray, ...]:
        """The values of each sample."""
        return (self.values,)

    def curve_of(self, measured: Sequence[np.ndarray]) -> np.ndarray:  # (S, 2)
        """Compute the mean curve of some samples."""
        return np.stack([self.positions, measured[0].mean(0)], 1)

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """The mean curve."""
        return self.curve_of(self.measured)


class SoundnessCurves(NamedTuple):
    """Measurements of soundness on the maps of one method."""

    part: PendingCurves

    @property
    def samples(self) -> list[str]:
        """Return the samples that have curves."""
        return self.part.samples

    @property
    def measured(self) -> tuple[np.ndarray, ...]:
        """Scores and masses of each sample."""
        return self.part.curves["score"].numpy(), self.part.curves["mass"].numpy()

    def curve_of(self, measured: Sequence[np.ndarray]) -> np.ndarray:  # (S, 2)
        """Compute soundness over accuracy, or over the mean score, with the samples' decisions."""
        score, mass = measured
        return soundness.points(self._protocol, score, mass).xy

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """Soundness over accuracy, or over the mean score."""
        return self.curve_of(self.measured)

    @property
    def highest(self) -> float:
        """Return the highest accuracy, or mean score, that is reached."""
        return float(np.nanmax(self.xy[:, 0]))

    @property
    def _protocol(self) -> Soundness:
        assert isinstance(self.part.protocol, Soundness)
        return self.part.protocol


Metric = dict[str, MetricCurves] | dict[str, SoundnessCurves]  # by method


def metric_curves(
    run: Run,
    model: str,
    facts: ProtocolFacts,
    most: int | None = None,
) -> Metric:
    """Read the curves of a protocol, for every method that has them.

    Args:
        run: The run.
        model: Name of the model.
        facts: The protocol with its settings.
        most: How many samples are read at most; by default all.

    Returns:
        The curves by method; none if the protocol stores no curve that it could be drawn by.
    """
    if facts.id == "soundness":
        return {
            part.method: SoundnessCurves(part)
            for part in run.all_curves.each(model, facts.key, most)
            if part.samples and _has_mass(part)
        }
    if facts.id not in CURVE_OF_METRIC:
        return {}
    scores = table(run.rows, model, facts.key)
    keys = {
        method: TensorKey.curve(facts.canonical, method, CURVE_OF_METRIC[facts.id])
        for method in scores
    }
    stored: dict[str, dict[str, np.ndarray]] = {method: {} for method in scores}
    tasks = [
        task for task in run.tasks if task.model == model and facts.canonical in task.protocols
    ]
    read: set[str] = set()
    for task in tasks if most is None else run.store.first_tasks(tasks, most):
        kept = run.store.tensors(task.name, keys.values())
        read.update(kept.samples.ids)
        for method, key in keys.items():
            if key in kept.tensors:
                curves = kept.tensors[key].double().numpy()
                stored[method] |= dict(zip(kept.samples.ids, curves, strict=True))
    if most is not None:
        scores = scores[scores.index.isin(read)]
    order = [str(sample) for sample in run.rows["sample"].unique()]
    found: dict[str, MetricCurves] = {}
    for method, curve_of in stored.items():
        chosen = set(scores[method].dropna().index)
        samples = [sample for sample in order if sample in chosen]
        if samples and all(sample in curve_of for sample in samples):
            values = np.stack([curve_of[sample] for sample in samples])
            positions = curve_positions(facts, values.shape[1])
            assert positions is not None
            order_of_steps = np.argsort(positions)
            found[method] = MetricCurves(
                positions[order_of_steps], values[:, order_of_steps], samples
            )
    return found


def _has_mass(part: PendingCurves) -> bool:
    return bool((part.curves["mass"].sum(1) > 0).any())


def curve_positions(facts: ProtocolFacts, count: int) -> np.ndarray | None:
    """Return the positions of a curve's steps, from 0 to 1; None if its protocol has none.

    Args:
        facts: The protocol with its settings.
        count: Number of steps.
    """
    if facts.id not in (*CURVE_OF_METRIC, "srg"):
        return None
    steps = facts.settings["steps"]
    begin = {steps - 1: 1, steps: 0, steps + 1: 0}[count]  # with the ends if a curve has them
    positions = np.arange(begin, begin + count) / steps
    return positions[::-1] if facts.id == "completeness" else positions  # highest threshold first
