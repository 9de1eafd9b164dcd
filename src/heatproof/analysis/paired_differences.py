"""Paired differences: of models under one setting, of two methods, and of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import (
    GROUP,
    MOST_CLUSTERS,
    AggregateDraws,
    Estimate,
    clusters_of,
)
from heatproof.analysis.ranks import Key
from heatproof.analysis.significance import clustered_t_test, drawn_p_value, holm
from heatproof.analysis.tables import score_table


def table(rows: pd.DataFrame, model: str, key: Key) -> pd.DataFrame:
    """Tabulate the scores of a model under one setting.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        model: Name of the model.
        key: (protocol, setting, baseline).

    Returns:
        One row per sample and one column per method; nan if a score is missing.
    """
    chosen = np.ones(len(rows), dtype=bool)
    for column, value in zip(GROUP, (model, *key), strict=True):
        chosen &= (rows[column] == value).to_numpy()
    names = [name for name in ("sample", "cluster", "method", "value") if name in rows]
    return score_table(rows[names].iloc[np.flatnonzero(chosen)]).frame


def gap(
    first: pd.Series, second: pd.Series, clusters: Mapping[str, str] | None = None
) -> tuple[Estimate, int]:
    """Estimate the paired difference of two columns of scores.

    Args:
        first: Scores by sample.
        second: Scores by sample.
        clusters: The cluster of each sample; by default samples are independent.

    Returns:
        The mean of ``first`` minus ``second`` over the samples that both have, and their number.
    """
    if not first.index.equals(second.index):
        first, second = first.align(second, join="inner")
    difference = first.to_numpy(float) - second.to_numpy(float)
    finite = np.isfinite(difference)
    both = first.index[finite]
    labels = None
    if clusters or len(both) <= MOST_CLUSTERS:  # more are put together at random
        labels = [(clusters or {}).get(sample, sample) for sample in both]
    return Estimate.mean(difference[finite], labels), len(both)


def gaps(
    first: pd.DataFrame, second: pd.DataFrame, clusters: Mapping[str, str] | None = None
) -> list[tuple[Estimate, int]]:
    """Estimate the paired differences of the columns of two tables, as `gap` does one by one.

    Args:
        first: Scores, samples down.
        second: Scores with as many columns.
        clusters: The cluster of each sample; by default samples are independent.

    Returns:
        The mean of each column of ``first`` minus that of ``second`` over the samples that both
        have, and their number.
    """
    if not first.index.equals(second.index):
        both = first.index.intersection(second.index, sort=False)
        first = first.loc[both]
        second = second.loc[both]
    differences = first.to_numpy(float) - second.to_numpy(float)
    counts = np.isfinite(differences).sum(0).tolist()
    labels = None
    if clusters or len(differences) <= MOST_CLUSTERS:  # more are put together at random
        labels = [(clusters or {}).get(sample, sample) for sample in first.index]
    return list(zip(Estimate.means(differences, labels), counts, strict=True))


def method_differences(
    rows: pd.DataFrame, a: str, b: str, aggregate_draws: AggregateDraws | None = None
) -> pd.DataFrame:
    """Estimate the paired difference of two methods under every setting.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        a: A method.
        b: The method that is subtracted.
        aggregate_draws: Draws of protocols that aggregate over all samples (see
            `intervals.bootstrap_aggregates`).

    Returns:
        One line per model, protocol, setting and baseline: ``difference``, ``low`` and ``high``
        (95 % interval), and ``n``, the samples that both methods have a score for.
    """
    lines = []
    for key, group in rows.groupby(GROUP, sort=False):
        scores = table(group, key[0], key[1:])
        scores = scores.reindex(columns=list(dict.fromkeys([a, b])))
        clusters = dict(zip(scores.index, clusters_of(group, scores.index), strict=True))
        drawn = [(aggregate_draws or {}).get((*key, method)) for method in (a, b)]
        found, n = _difference(scores[a], scores[b], clusters, drawn[0], drawn[1])
        lines.append((*key, *found, n))
    return pd.DataFrame(lines, columns=[*GROUP, "difference", "low", "high", "n"])


def run_differences(
    a: pd.DataFrame,
    b: pd.DataFrame,
    a_draws: AggregateDraws,
    b_draws: AggregateDraws,
) -> pd.DataFrame:
    """Estimate the paired differences of two runs over the samples that both have.

    Where scores are aggregated over all samples, they depend on which samples there are: without
    the same samples in both runs, there is no difference, and ``n`` is 0.

    Args:
        a: The scores of a run.
        b: The scores of the run that the first is subtracted from.
        a_draws: Draws of protocols that aggregate over all samples, of the first run.
        b_draws: The same of the second run.

    Returns:
        One line per model, protocol, setting, baseline and method that both runs have: the means of
        both over the common samples, ``difference`` (the second minus the first), ``low`` and
        ``high`` (95 % interval), ``p`` of a paired t-test, by Holm's procedure adjusted for all
        methods of a model and setting, and ``n``.
    """
    keys = [*GROUP, "method"]
    groups_b = dict(iter(b.groupby(keys, sort=False)))
    lines = []
    for key, of_a in a.groupby(keys, sort=False):
        if key not in groups_b:
            continue
        of_b = groups_b[key]
        first, second = (part.set_index("sample")["value"] for part in (of_a, of_b))
        clusters = dict(zip(of_a["sample"], clusters_of(of_a, of_a["sample"]), strict=True))
        drawn = b_draws.get(key), a_draws.get(key)
        aggregated = drawn[0] is not None or drawn[1] is not None
        if aggregated and set(first.dropna().index) != set(second.dropna().index):
            lines.append((*key, *[np.nan] * 6, 0))
            continue
        found, n = _difference(second, first, clusters, drawn[0], drawn[1])
        common = pd.concat([first, second], axis=1, join="inner").dropna()
        together = [clusters[sample] for sample in common.index]
        differences = common.to_numpy(float) @ np.array([-1.0, 1.0])
        p = _p_value(found.value, differences, together, drawn)
        lines.append((*key, *common.mean(), *found, p, n))
    columns = [*keys, "a", "b", "difference", "low", "high", "p", "n"]
    frame = pd.DataFrame(lines, columns=columns)
    for _, of_setting in frame.groupby(GROUP, sort=False):
        frame.loc[of_setting.index, "p"] = holm(of_setting["p"].to_numpy(float))
    return frame


def _p_value(
    value: float,
    differences: np.ndarray,
    clusters: Sequence[str],
    drawn: tuple[np.ndarray | None, np.ndarray | None],
) -> float:
    """Return the p-value of paired differences; from draws where scores are aggregated."""
    if drawn[0] is None or drawn[1] is None:
        return clustered_t_test(differences, clusters)[2]
    return drawn_p_value(value, drawn[0] - drawn[1], len(set(clusters)))


def _difference(
    first: pd.Series,
    second: pd.Series,
    clusters: Mapping[str, str],
    first_draws: np.ndarray | None,
    second_draws: np.ndarray | None,
) -> tuple[Estimate, int]:
    """Return the paired difference, from the draws of aggregated scores where there are any."""
    found, n = gap(first, second, clusters)
    if first_draws is None or second_draws is None:
        return found, n
    value = float(first.mean() - second.mean())
    return Estimate.of(value, first_draws - second_draws), n
