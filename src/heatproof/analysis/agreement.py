"""How far protocols agree about the order of methods: a matrix of rank correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate, rank
from heatproof.analysis.ranks import Agreement, Key, Standings, agreement

By = Literal["protocol", "setting"]
COLUMNS = ["model", "layer", "a", "b", "correlation", "low", "high", "methods"]


@dataclass(frozen=True)
class AgreementMatrix:
    """Rank correlations of K rankings of the same methods, for one model.

    A section of a report shows ``labels`` on both sides and ``cell(i, j)`` in between; ``overall``
    has the mean correlation, the least one, and Kendall's W.

    Attributes:
        model: Name of the model.
        layer: The layer that the methods are at, if methods are ranked within layers.
        labels: What each ranking is by: a protocol, or a setting.
        overall: The agreement of all K rankings, with the methods that all of them contain.
    """

    model: str
    layer: str
    labels: tuple[str, ...]
    overall: Agreement

    @property
    def methods(self) -> list[str]:
        """The methods that all rankings contain."""
        return self.overall.methods

    def cell(self, i: int, j: int) -> Estimate:
        """Return the correlation of two rankings with its 95 % interval; 1 for one with itself."""
        if i == j:
            return Estimate(1.0, 1.0, 1.0)
        return self.overall.pairs[min(i, j), max(i, j)]

    @property
    def values(self) -> np.ndarray:  # (K, K)
        """The correlations as a symmetric matrix."""
        count = range(len(self.labels))
        return np.array([[self.cell(i, j).value for j in count] for i in count])

    def lines(self) -> list[tuple[object, ...]]:
        """Return one line per pair of rankings, with the columns of `agreement_frame`."""
        return [
            (
                self.model,
                self.layer,
                self.labels[i],
                self.labels[j],
                *self.cell(i, j),
                len(self.methods),
            )
            for i in range(len(self.labels))
            for j in range(i + 1, len(self.labels))
        ]


def agreement_matrix(
    standing: Standings,
    by: By = "protocol",
    leave_out: Sequence[str] = (),
    labels: Mapping[Key, str] | None = None,
) -> AgreementMatrix | None:
    """Correlate the rankings of a model under different protocols or settings.

    Args:
        standing: The ranks of a model, or of one layer of it (``Standings.by_layer``).
        by: ``protocol`` for one ranking per protocol, by the mean rank over its settings;
            ``setting`` for one per setting.
        leave_out: Methods to ignore, such as controls, whose last places would make any two
            protocols agree.
        labels: Names of the settings.

    Returns:
        The matrix, or None for fewer than two rankings or three common methods.
    """
    groups: dict[str, list[int]] = {}
    for s, key in enumerate(standing.settings):
        name = (
            key[0] if by == "protocol" else (labels or {}).get(key, " · ".join(filter(None, key)))
        )
        groups.setdefault(name, []).append(s)
    rankings = []
    for members in groups.values():
        under = standing.under(members)
        ranks = rank(under.mean_ranks, higher_is_better=False)
        drawn = rank(under.drawn_mean_ranks, higher_is_better=False)
        rankings.append((under.methods, ranks, drawn))
    overall = agreement(rankings, leave_out)
    if overall is None:
        return None
    return AgreementMatrix(standing.model, standing.layer, tuple(groups), overall)


def agreement_frame(matrices: Sequence[AgreementMatrix]) -> pd.DataFrame:
    """Return one line per model, layer and pair of rankings.

    Returns:
        ``model``, ``layer``, ``a`` and ``b`` (what the rankings are by), Spearman's ``correlation``
        with its 95 % interval ``low`` to ``high``, and the number of ``methods``.
    """
    return pd.DataFrame([line for m in matrices for line in m.lines()], columns=COLUMNS)
