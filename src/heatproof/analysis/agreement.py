"""Agreement of protocols about the order of methods: a matrix of rank correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.rank_intervals import rank
from heatproof.analysis.ranks import Agreement, Key, Standings, agreement

By = Literal["protocol", "setting"]
Ranking = tuple[Sequence[str], np.ndarray, np.ndarray]  # methods, ranks (M,), drawn ranks (R, M)
Values = Mapping[str, str]  # of the settings of a protocol, with its baseline
BASELINE = "baseline"
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
        under: The settings that the protocols were restricted to, as ``zero and blur``; empty if
            nothing had to be left out.
    """

    model: str
    layer: str
    labels: tuple[str, ...]
    overall: Agreement
    under: str = ""

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


def ranking_under(standing: Standings, settings: Sequence[int]) -> Ranking:
    """Rank methods by their mean rank over some settings, and so in every draw.

    Args:
        standing: The ranks of a model.
        settings: Indices of the settings.

    Returns:
        The methods, their ranks ``(M,)`` and their ranks in each draw ``(R, M)``; equal mean ranks
        share the better rank.
    """
    under = standing.under(settings)
    ranks = rank(under.mean_ranks, higher_is_better=False)
    return under.methods, ranks, rank(under.drawn_mean_ranks, higher_is_better=False)


def shared_settings(settings: Sequence[tuple[str, Values]]) -> tuple[dict[str, list[int]], str]:
    """Choose the settings of each protocol under which protocols are compared.

    Protocols that were run with different baselines would differ because of these. So each is
    restricted to the values that all protocols with a setting of that name have, if there are any.

    Args:
        settings: Protocol, and values of its settings by name, for every setting of a model.

    Returns:
        Indices of the settings by protocol, and the values that some protocol was restricted to.
    """
    chosen: dict[str, list[int]] = {}
    for s, (protocol, _) in enumerate(settings):
        chosen.setdefault(protocol, []).append(s)
    restricted = []
    for name in dict.fromkeys(name for _, values in settings for name in values):
        having = {p: m for p, m in chosen.items() if all(name in settings[s][1] for s in m)}
        found = [{settings[s][1][name] for s in members} for members in having.values()]
        if len(found) < 2:
            continue
        common = set.intersection(*found)
        if not common or all(values == common for values in found):
            continue
        for protocol, members in having.items():
            chosen[protocol] = [s for s in members if settings[s][1][name] in common]
        restricted.append(" and ".join(setting_text(name, value) for value in sorted(common)))
    return chosen, ", ".join(restricted)


def setting_text(name: str, value: str) -> str:
    """Write the value of a setting; a baseline needs no name."""
    return value if name == BASELINE else f"{name}={value}"


def agreement_matrix(
    standing: Standings,
    by: By = "protocol",
    leave_out: Sequence[str] = (),
    labels: Mapping[Key, str] | None = None,
    settings: Mapping[Key, Values] | None = None,
) -> AgreementMatrix | None:
    """Correlate the rankings of a model under different protocols or settings.

    Args:
        standing: The ranks of a model, or of one layer of it (``Standings.by_layer``).
        by: ``protocol`` for one ranking per protocol, by the mean rank over its settings;
            ``setting`` for one per setting.
        leave_out: Methods to ignore, such as controls, whose last places would make any two
            protocols agree.
        labels: Names of the settings.
        settings: The values of each setting by name, so that protocols are compared under those
            that they share; by default under all.

    Returns:
        The matrix, or None for fewer than two rankings or three common methods.
    """
    under = ""
    groups: dict[str, list[int]] = {}
    if by == "protocol":
        values = [(key[0], (settings or {}).get(key, {})) for key in standing.settings]
        groups, under = shared_settings(values)
    else:
        for s, key in enumerate(standing.settings):
            name = (labels or {}).get(key, " · ".join(filter(None, key)))
            groups.setdefault(name, []).append(s)
    rankings = [ranking_under(standing, members) for members in groups.values()]
    overall = agreement(rankings, leave_out)
    if overall is None:
        return None
    return AgreementMatrix(standing.model, standing.layer, tuple(groups), overall, under)


def agreement_frame(matrices: Sequence[AgreementMatrix]) -> pd.DataFrame:
    """Return one line per model, layer and pair of rankings.

    Returns:
        ``model``, ``layer``, ``a`` and ``b`` (what the rankings are by), Spearman's ``correlation``
        with its 95 % interval ``low`` to ``high``, and the number of ``methods``.
    """
    return pd.DataFrame([line for m in matrices for line in m.lines()], columns=COLUMNS)
