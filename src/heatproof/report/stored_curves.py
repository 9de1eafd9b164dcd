"""Which curves of a run the report draws: the score of the target along the steps of a protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heatproof.analysis.intervals import RESAMPLES, Estimate, bootstrap_means
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.runs.format import ModelView, ProtocolFacts, TensorKey
from heatproof.runs.run import MOST_SAMPLES_READ


class StoredCurve(NamedTuple):
    """A curve that a protocol stores for every sample and method.

    Attributes:
        name: Its name in the store.
        part: What distinguishes it from other curves of the protocol; empty if it is the only one.
        across: Title of the horizontal axis.
        up: Title of the vertical axis.
    """

    name: str
    part: str
    across: str
    up: str

    @property
    def reverse(self) -> bool:
        """Whether it is stored from the highest threshold down."""
        return self.name == "drop"

    def positions(self, protocol: ProtocolFacts, count: int) -> list[float]:
        """Return where its values lie, from 0 to 1; some curves have no ends."""
        steps = protocol.settings.get("steps")
        if not isinstance(steps, int) or count not in (steps - 1, steps, steps + 1):
            return [k / max(1, count - 1) for k in range(count)]
        first = 1 if count == steps - 1 else 0
        return [(first + k) / steps for k in range(count)]


REMOVED = "of the pixels removed, {order} relevant first"
INSERTED = "of the pixels inserted, most relevant first"
CURVES = {
    "deletion": (StoredCurve("score", "", REMOVED, "{score}"),),
    "insertion": (StoredCurve("score", "", INSERTED, "{score}"),),
    "srg": (
        StoredCurve("deletion score", "deletion", REMOVED, "{score}"),
        StoredCurve("insertion score", "insertion", INSERTED, "{score}"),
    ),
    "ids": (StoredCurve("score", "", REMOVED, "{score}"),),
    "road": (StoredCurve("score", "", REMOVED, "{score}"),),
    "completeness": (
        StoredCurve(
            "drop", "", "of the map's maximum: pixels above are removed", "loss of {score}"
        ),
    ),
}
SCORES = {
    "correct": "accuracy",
    "softmax": "probability of the target",
    "logit": "logit of the target",
}


def curves_of(run: RunStatistics, settings: Sequence[Key]) -> list[tuple[Key, StoredCurve]]:
    """Return the curves of some settings, with the titles of their axes."""
    found = []
    for key in settings:
        facts = run.protocols[key].settings
        words = {
            "order": "least" if facts.get("order") == "least" else "most",
            "score": SCORES.get(str(facts.get("score")), "score of the target"),
        }
        for curve in CURVES.get(key[0], ()):
            across = curve.across.format(**words)
            found.append((key, curve._replace(across=across, up=curve.up.format(**words))))
    return found


def curve_title(run: RunStatistics, key: Key, curve: StoredCurve) -> str:
    """Return the title of a curve: its setting, and its part if there are several."""
    label = run.setting_labels[key]
    return f"{label}: {curve.part}" if curve.part else label


class MeanCurve(NamedTuple):
    """A curve of a method, averaged over the samples that have it, with its 95 % band."""

    values: np.ndarray  # (S,)
    low: list[float]
    high: list[float]
    samples: int

    @classmethod
    def of(cls, curves: np.ndarray) -> MeanCurve:  # (N, S)
        """Average curves."""
        mean = curves.sum(0) / len(curves)
        draws = bootstrap_means(curves, RESAMPLES)
        ends = [Estimate.of(m, d) for m, d in zip(mean, draws.T, strict=True)]
        return cls(mean, [end.low for end in ends], [end.high for end in ends], len(curves))


def mean_curves(
    run: RunStatistics,
    model: str,
    curves: Sequence[tuple[Key, StoredCurve]],
    methods: Sequence[str],
) -> dict[tuple[Key, StoredCurve], dict[str, MeanCurve]]:
    """Average curves over the first `MOST_SAMPLES_READ` samples of a model.

    Every file is read once, for all curves that are in it.

    Args:
        run: The run.
        model: Name of the model.
        curves: The curves.
        methods: The methods.

    Returns:
        By curve, the mean of each method that has it.
    """
    means: dict[tuple[Key, StoredCurve], dict[str, MeanCurve]] = {}
    by_view: dict[ModelView, list[tuple[Key, StoredCurve]]] = {}
    for key, curve in curves:
        subject = ModelView(model, run.view_of(model, key))
        by_view.setdefault(subject, []).append((key, curve))
    for subject, of_view in by_view.items():
        wanted = {
            TensorKey.curve(run.protocols[key].canonical, method, curve.name): (key, curve, method)
            for key, curve in of_view
            for method in methods
        }
        found: dict[TensorKey, list[np.ndarray]] = {}
        for task in run.store.first_tasks(run.tasks_of(subject), MOST_SAMPLES_READ):
            stored = run.store.tensors(task.name, wanted).tensors
            for name in wanted.keys() & stored.keys():
                values = stored[name].double().numpy()
                found.setdefault(name, []).append(values[np.isfinite(values).all(1)])
        for name, (key, curve, method) in wanted.items():
            of_name = np.concatenate(found.get(name, [np.empty((0, 1))]))
            if len(of_name):
                values = of_name[:, ::-1] if curve.reverse else of_name
                means.setdefault((key, curve), {})[method] = MeanCurve.of(values)
    return means
