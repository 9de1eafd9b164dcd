"""The numbers of a run that papers have printed as well, by what they are of."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

import numpy as np
import pandas as pd

from heatproof.analysis import paired_differences
from heatproof.analysis.accuracy import proportion, readings
from heatproof.analysis.distinctness import Trio, least, trios
from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_weights
from heatproof.analysis.metric_curves import metric_curves
from heatproof.analysis.published_tables import Entry
from heatproof.analysis.ranks import CONTROL, Key, Standings, agreement
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.methods import Expression
from heatproof.runs.format import LOGITS, ProtocolFacts, TaskFacts, TensorKey
from heatproof.runs.run import Kept
from heatproof.tensor.filters import scaled_odd

CORRELATION = "correlation with "
AGREEMENT = "agreement over baselines"
LEAST_DISTANCE = "least distance"
BASELINE_COORDINATES = {  # of a baseline, and the curves that they are the means of
    "distance": "ood-raw",
    "half of the mean sigmoid": "mean-sigmoid",
}
FEWEST_FOR_RANKS = 4  # methods, and baselines
KERNEL_OF_MAPS = re.compile(r"smooth\((\d+), of=(\d+)\)")  # of maps of another size


class RunNumbers:
    """The quantities that papers print, of a run."""

    def __init__(self, run: RunStatistics):
        self.run = run
        self.same_as = run.same_as
        self._kept: dict[str, Kept] = {}
        self.store = run.store
        self.plan = run.plan
        self.rows = run.rows
        self.models = run.models

    @cached_property
    def standings(self) -> dict[str, Standings]:
        """The standings of each model."""
        return {standing.model: standing for standing in self.run.standings}

    @cached_property
    def controls(self) -> list[str]:
        return [m for m, facts in self.plan.methods.items() if facts.family == CONTROL]

    @cached_property
    def trios(self) -> list[Trio]:
        """The maps that exist unchanged, with attribution removed and introduced."""
        return trios(self.plan.methods)

    def method(self, text: str, model: str) -> str | None:
        """Return the label of a method with exactly these settings.

        A kernel for maps of another size is also found by its size in pixels of the model's maps.
        """
        wanted = {Expression.parse(text).canonical}
        kernel = KERNEL_OF_MAPS.search(text)
        if kernel:
            size, of = map(int, kernel.groups())
            scaled = scaled_odd(size, self._grid_height(model) / of)
            wanted.add(Expression.parse(text.replace(kernel[0], f"smooth({scaled})")).canonical)
        labels = (m for m, facts in self.plan.methods.items() if facts.canonical in wanted)
        return next(labels, None)

    def _grid_height(self, model: str) -> int:
        """Return the height in pixels of what a model is shown, a grid if there is one."""
        facts = self.run.provenance.models
        return max(f.height_and_width[0] for f in facts if f.model == model)

    def kept(self, model: str) -> Kept:
        """Return the stored tensors of a model."""
        if model not in self._kept:
            self._kept[model] = self.run.kept(model)
        return self._kept[model]

    def score(self, model: str, key: Key, method: str) -> Estimate | None:
        """Return the mean score of a method."""
        standing = self.standings.get(model)
        if standing is None or key not in standing.settings or method not in standing.methods:
            return None
        found = standing.score(standing.settings.index(key), method)
        return found if np.isfinite(found.value) else None

    def scores(self, model: str, key: Key) -> pd.DataFrame:
        """Return the scores of a model: samples down, methods across."""
        return paired_differences.table(self.rows, model, key)

    def tasks(self, model: str, protocol: ProtocolFacts) -> list[TaskFacts]:
        """Return the tasks in which a protocol evaluates a model."""
        return [
            t for t in self.plan.tasks if t.model == model and protocol.canonical in t.protocols
        ]


def _score(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    return run.score(model, protocol.key, method)


def _half_scale(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    found = run.score(model, protocol.key, method)
    return None if found is None else Estimate(*((end + 1) / 2 for end in found))


def _correlation_with(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the rank correlation of a method's scores with another's, over the samples."""
    other = run.method(entry.quantity.removeprefix(CORRELATION), model)
    table = run.scores(model, protocol.key)
    if other not in table or method not in table:
        return None
    pair = table[[method, other]].dropna()
    if len(pair) < FEWEST_FOR_RANKS:
        return None
    clusters = dict(zip(run.rows["sample"], run.rows["cluster"], strict=True))
    together = [clusters[sample] for sample in pair.index]
    ranks = pair.rank().to_numpy()
    drawn = np.array(
        [
            weighted_correlation(ranks, weights)
            for chunk in bootstrap_weights(len(pair), RESAMPLES, clusters=together)
            for weights in chunk
        ]
    )
    return Estimate.of(weighted_correlation(ranks, np.ones(len(pair))), drawn)


def weighted_correlation(values: np.ndarray, weights: np.ndarray) -> float:  # (N, 2), (N,)
    centred = values - np.average(values, axis=0, weights=weights)
    covariance = (weights[:, None] * centred).T @ centred
    spread = np.sqrt(covariance[0, 0] * covariance[1, 1])
    return float(covariance[0, 1] / spread) if spread > 0 else np.nan


def _agreement_over_baselines(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    standing = run.standings.get(model)
    if standing is None:
        return None
    chosen = [s for s, key in enumerate(standing.settings) if key[:2] == protocol.key[:2]]
    if len(chosen) < FEWEST_FOR_RANKS:
        return None
    rankings = [(standing.methods, standing.ranks[s], standing.drawn_ranks[s]) for s in chosen]
    agreed = agreement(rankings, run.controls)
    if agreed is None or len(agreed.methods) < FEWEST_FOR_RANKS:
        return None
    return agreed.mean


def _accuracy(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    correct: list[bool] = []
    for task in run.tasks(model, protocol):
        stored = run.store.tensors(task.name, (LOGITS,))
        if LOGITS in stored.tensors and task.view.cell is None:
            predictions = stored.tensors[LOGITS].argmax(1).tolist()
            labels = stored.samples.labels
            pairs = zip(predictions, labels, strict=True)
            correct += [p == label for p, label in pairs if label is not None]
    return proportion(np.array(correct, dtype=float)) if correct else None


def _worst_patch_accuracy(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the accuracy without the patch whose deletion leaves the lowest probability."""
    keys = [TensorKey.shared(protocol.canonical, name) for name in ("correct", "log_prob")]
    values: list[np.ndarray] = []
    for task in run.tasks(model, protocol):
        stored = run.store.tensors(task.name, keys)
        labelled = [label is not None for label in stored.samples.labels]
        if all(key in stored.tensors for key in keys) and any(labelled):
            correct, log_prob = (stored.tensors[key].numpy()[labelled] for key in keys)
            read = readings(np.ones(len(correct)), correct, log_prob)
            values.append(read["worst"])
    return proportion(np.concatenate(values)) if values else None


def _least_distance(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the mean distance of the two nearest curves of changed maps; it has no interval."""
    curves = metric_curves(run.run, model, protocol)
    compared = [trio for trio in run.trios if all(name in curves for name in trio.names)]
    if not compared:
        return None
    return Estimate(float(np.mean([least(trio, curves) for trio in compared])), np.nan, np.nan)


def _coordinate(
    run: RunNumbers, model: str, protocol: ProtocolFacts, method: str, entry: Entry
) -> Estimate | None:
    """Return the mean over steps and samples of a distance, or of the information left."""
    curves = run.kept(model).curves(protocol, method, BASELINE_COORDINATES[entry.quantity])
    if curves is None:
        return None
    scale = 0.5 if entry.quantity.startswith("half") else 1.0
    return Estimate.mean(scale * curves.double().mean(1).numpy())


Quantity = Callable[[RunNumbers, str, ProtocolFacts, str, Entry], Estimate | None]
QUANTITIES: dict[str, Quantity] = {  # by how the name of a quantity begins
    "score": _score,
    "half-scale score": _half_scale,
    CORRELATION: _correlation_with,
    AGREEMENT: _agreement_over_baselines,
    "accuracy": _accuracy,
    "worst-patch accuracy": _worst_patch_accuracy,
    LEAST_DISTANCE: _least_distance,
    **dict.fromkeys(BASELINE_COORDINATES, _coordinate),
}
