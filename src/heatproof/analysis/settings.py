"""The scores of every model and setting with their bootstrap draws, which all statistics share.

A summary, ranks over settings and tests of all pairs of methods begin with the same tables and
draws. `scored_settings` makes them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import (
    GROUP,
    RESAMPLES,
    AggregateDraws,
    Estimate,
    RankedLayers,
    bootstrap_means,
    range_of,
)
from heatproof.analysis.rank_intervals import rank, rank_bounds, ranked_together
from heatproof.analysis.tables import ScoreTable, groups, positions, score_table
from heatproof.protocols import PROTOCOLS

STATUSES = ["ok", "undefined", "failed", "missing", "n/a", "skipped"]


@dataclass(frozen=True)
class SettingScores:
    """The scores of M methods under one setting, with R bootstrap draws.

    Attributes:
        key: Model, protocol, setting and baseline.
        table: The scores.
        draws: Draws of the means, ``(R, M)``.
        aggregated: Methods whose score is not a mean over samples.
        statuses: Number of rows of each method by status, and last its scores whose map has a note,
            ``(M, 7)``.
        layers: The layer that each method explains.
        ranked_layers: The layer within which each method is ranked; empty for one that is ranked
            with those of every layer.
    """

    key: tuple[str, ...]
    table: ScoreTable
    draws: np.ndarray
    aggregated: frozenset[str]
    statuses: np.ndarray
    layers: tuple[str, ...]
    ranked_layers: tuple[str, ...]

    @property
    def methods(self) -> list[str]:
        """The M methods, in the order of the rows."""
        return self.table.methods

    @property
    def higher_is_better(self) -> bool:
        """The direction of the scores."""
        return PROTOCOLS[self.key[1]].cls.higher_is_better

    @property
    def together(self) -> np.ndarray | None:  # (M, M)
        """Which methods are ranked against each other; None if all are."""
        return ranked_together(self.ranked_layers)

    @cached_property
    def rank_ends(self) -> np.ndarray:  # (2, M)
        """Lower and upper ends of the 95 % intervals of the ranks; nan without an interval."""
        means = self.table.means
        return np.stack(rank_bounds(means, self.draws, self.higher_is_better, self.together))

    def of(self, methods: Sequence[str]) -> SettingScores:
        """Return the scores of some of the methods, all of which are ranked together."""
        chosen = [i for i, method in enumerate(self.methods) if method in set(methods)]
        table = self.table
        return replace(
            self,
            table=replace(
                table,
                methods=[table.methods[i] for i in chosen],
                values=table.values[:, chosen],
            ),
            draws=self.draws[:, chosen],
            statuses=self.statuses[chosen],
            layers=tuple(self.layers[i] for i in chosen),
            ranked_layers=("",) * len(chosen),
        )


def scored_settings(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
) -> list[SettingScores]:
    """Arrange the scores of a run by setting, and draw their means.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        resamples: Number of bootstrap draws.
        seed: Seed of the bootstrap.
        aggregate_draws: Draws of protocols that aggregate over all samples (see
            `halves.bootstrap_aggregates`).
        layers: The layer within which each method is ranked (see `ranks.ranked_layers`).

    Returns:
        One entry per model, protocol, setting and baseline, in the order of the rows.
    """
    settings = []
    names = [*GROUP, "method", "layer", "sample", "cluster", "value", "status", "note"]
    used = rows[[name for name in names if name in rows]]
    for key, group in groups(used, GROUP):
        table = score_table(group)
        draws = bootstrap_means(table.values, resamples, seed, table.clusters, range_of(key[1]))
        aggregated = [m for m in table.methods if (*key, m) in (aggregate_draws or {})]
        for method in aggregated:
            draws[:, table.methods.index(method)] = (aggregate_draws or {})[*key, method]
        settings.append(
            SettingScores(
                key,
                table,
                draws,
                frozenset(aggregated),
                _status_counts(group, table.methods),
                _layers_of(group, table.methods),
                tuple((layers or {}).get((key[0], method), "") for method in table.methods),
            )
        )
    return settings


def _status_counts(rows: pd.DataFrame, methods: Sequence[str]) -> np.ndarray:  # (M, 7)
    """Count the rows of each method by status, and last its scores whose map has a note."""
    size = (len(methods), len(STATUSES))
    if "status" not in rows:
        return np.zeros((size[0], size[1] + 1), dtype=np.intp)
    method_of = positions(rows["method"], methods)
    status_of = positions(rows["status"], STATUSES)
    counts = np.bincount(method_of * size[1] + status_of, minlength=size[0] * size[1])
    noted = np.zeros(size[0], dtype=np.intp)
    if "note" in rows:
        is_noted = (rows["status"] == "ok") & (rows["note"] != "")
        noted = np.bincount(method_of[is_noted.to_numpy()], minlength=size[0])
    return np.column_stack([counts.reshape(size), noted])


def _layers_of(rows: pd.DataFrame, methods: Sequence[str]) -> tuple[str, ...]:
    """Return the layer of each method."""
    if "layer" not in rows:
        return ("",) * len(methods)
    layer_of = rows.drop_duplicates("method").set_index("method")["layer"]
    return tuple(str(layer_of[method]) for method in methods)


def summarize(
    rows: pd.DataFrame,
    resamples: int = RESAMPLES,
    seed: int = 0,
    aggregate_draws: AggregateDraws | None = None,
    layers: RankedLayers | None = None,
) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    The arguments are those of `scored_settings`, and the result is that of `summary`.
    """
    return summary(scored_settings(rows, resamples, seed, aggregate_draws, layers))


def summary(settings: Sequence[SettingScores]) -> pd.DataFrame:
    """Summarize scores, one line per model, protocol, setting, baseline and method.

    Returns:
        Mean with its 95 % interval, rank with its interval, the number of scores, and the numbers
        of undefined, failed, missing, not applicable and skipped samples, and of scores whose map
        has a note (``noted``).
    """
    lines = []
    for scores in settings:
        means = scores.table.means
        ranks = rank(means, scores.higher_is_better, scores.together)
        best, worst = scores.rank_ends
        for i, method in enumerate(scores.methods):
            estimate = Estimate.of(means[i], scores.draws[:, i])
            ranked = (ranks[i], best[i], worst[i])
            counts = scores.statuses[i].tolist()
            lines.append((*scores.key, method, scores.layers[i], *estimate, *ranked, *counts))
    statistics = ["mean", "low", "high", "rank", "rank_low", "rank_high"]
    columns = [*GROUP, "method", "layer", *statistics, "n", *STATUSES[1:], "noted"]
    return pd.DataFrame(lines, columns=columns)
