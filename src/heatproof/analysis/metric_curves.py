"""The curves that protocols store: what each metric measured on the maps of a method, by step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatproof.analysis import soundness
from heatproof.analysis.distinctness import Pair, random_halves
from heatproof.analysis.paired_differences import table
from heatproof.protocols.soundness import Soundness
from heatproof.runs.format import ProtocolFacts, TensorKey
from heatproof.runs.run import Run
from heatproof.scoring.aggregate import PendingCurves

CURVES = {  # the curve that a metric is drawn by
    "completeness": "drop",
    "road": "score",
    "deletion": "score",
    "insertion": "score",
    "ids": "score",
}


class MetricCurves(NamedTuple):
    """What a metric measured on the maps of one method along its steps."""

    positions: np.ndarray  # (S,)
    values: np.ndarray  # (N, S)
    samples: list[str]  # (N,) that have a score

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """Return the mean curve."""
        return np.stack([self.positions, self.values.mean(0)], 1)

    def halves(self) -> list[Pair]:
        """Return pairs of mean curves on random halves of the samples."""
        means = (
            [np.stack([self.positions, self.values[rows].mean(0)], 1) for rows in pair]
            for pair in random_halves(len(self.values))
        )
        return [(a, b) for a, b in means]


class SoundnessCurves(NamedTuple):
    """What soundness measured on the maps of one method."""

    part: PendingCurves

    @property
    def samples(self) -> list[str]:
        """Return the samples that have curves."""
        return self.part.samples

    @property
    def xy(self) -> np.ndarray:  # (S, 2)
        """Return soundness over accuracy, or over the mean score."""
        return soundness.points(self._protocol, *self._curves).xy

    @property
    def highest(self) -> float:
        """Return the highest accuracy, or mean score, that is reached."""
        return float(np.nanmax(self.xy[:, 0]))

    def halves(self) -> list[Pair]:
        """Return pairs of curves on random halves of the samples, each with its own decisions."""
        score, mass = self._curves
        curves = (
            [soundness.points(self._protocol, score[rows], mass[rows]).xy for rows in pair]
            for pair in random_halves(len(score))
        )
        return [(a, b) for a, b in curves]

    @property
    def _protocol(self) -> Soundness:
        assert isinstance(self.part.protocol, Soundness)
        return self.part.protocol

    @property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        return self.part.curves["score"].numpy(), self.part.curves["mass"].numpy()


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
            for part in run.curves.each(model, facts.key, most)
            if part.samples and _has_mass(part)
        }
    if facts.id not in CURVES:
        return {}
    scores = table(run.rows, model, facts.key)
    keys = {method: TensorKey.curve(facts.canonical, method, CURVES[facts.id]) for method in scores}
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
            if facts.id == "completeness":  # it begins with the highest threshold
                values = values[:, ::-1]
            positions = _positions(facts.settings["steps"], values.shape[1])
            found[method] = MetricCurves(positions, values, samples)
    return found


def _has_mass(part: PendingCurves) -> bool:
    return bool((part.curves["mass"].sum(1) > 0).any())


def _positions(steps: int, count: int) -> np.ndarray:
    """Return positions from 0 to 1, with the ends if a curve has them."""
    begin = {steps - 1: 1, steps: 0, steps + 1: 0}[count]
    return np.arange(begin, begin + count) / steps
