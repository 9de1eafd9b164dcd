"""Paired differences: of models under one setting, of two methods, and of two runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from heatproof.analysis.families import LEVEL, Family, draw_family, flip_family
from heatproof.analysis.intervals import (
    GROUP,
    MOST_CLUSTERS,
    AggregateDraws,
    Estimate,
    clusters_of,
    numbered,
    rare_ends,
)
from heatproof.analysis.rank_intervals import RELATIVE_TIE
from heatproof.analysis.ranks import Key
from heatproof.analysis.settings import MOST_MISSING, Limits
from heatproof.analysis.tables import score_table

FEWEST_DIFFERENT_VALUES = 3  # of a score, for equal scores of two runs to be no chance


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


def family_of_gaps(
    first: pd.DataFrame, second: pd.DataFrame, clusters: Mapping[str, str] | None = None
) -> Family:
    """Test the paired differences of the columns of two tables as one family.

    Args:
        first: Scores, samples down.
        second: Scores with as many columns.
        clusters: The cluster of each sample; by default samples are independent.

    Returns:
        The columns of ``first`` minus those of ``second``, over the samples that both have.
    """
    both = first.index.intersection(second.index, sort=False)
    differences = first.loc[both].to_numpy(float) - second.loc[both].to_numpy(float)
    labels = np.array([(clusters or {}).get(sample, sample) for sample in both], dtype=object)
    return family_of_columns(differences, labels)


def family_of_columns(
    differences: np.ndarray, clusters: np.ndarray, shift: np.ndarray | float = 0.0
) -> Family:
    """Test columns of differences as one family.

    Args:
        differences: Differences ``(N, K)``; not finite where there is none.
        clusters: The cluster of each row, ``(N,)``.
        shift: The true differences to test for, ``(K,)`` or one for all.
    """
    number, members, _ = numbered(len(differences), clusters)
    finite = np.isfinite(differences)
    shifted = np.where(finite, differences - shift, 0)
    totals = [np.bincount(members, column, number) for column in shifted.T]
    present = [np.bincount(members, column, number) > 0 for column in finite.T]
    if not totals:
        return Family(*(np.empty(0) for _ in range(5)))
    counts = np.stack(present, 1).sum(0)
    scale = float(np.abs(differences[finite]).max(initial=0.0))
    return flip_family(np.stack(totals, 1), finite.sum(0), counts, shift, RELATIVE_TIE * scale)


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


def run_differences(
    a: pd.DataFrame,
    b: pd.DataFrame,
    a_draws: AggregateDraws,
    b_draws: AggregateDraws,
    signs: Mapping[str, int] | None = None,
    allowed: Mapping[str, float] | None = None,
    limits: Mapping[Key, Limits] | None = None,
    identical: bool = False,
) -> pd.DataFrame:
    """Estimate the paired differences of two runs over the samples that both have.

    All lines are one family: p-values are adjusted for all of them, and their intervals hold
    together. Where scores are aggregated over all samples, they depend on which samples there are:
    without the same samples in both runs, there is no difference, and ``n`` is 0.

    Scores that are the same on most images, such as those of 0 and 1, may be so by chance: what
    changes them may be rare. So they are kept only if that could not move their mean by more than
    is allowed. Scores that are the same on every image and have many values, or are of runs with
    the same records, are the same.

    A method may have no score in the second run on images where it has one in the first. If these
    are more than a tenth, the line is ``lost``; if fewer, it is kept only if it would be with the
    worst score on them.

    Args:
        a: The scores of a run.
        b: The scores of the run that the first is subtracted from.
        a_draws: Draws of protocols that aggregate over all samples, of the first run.
        b_draws: The same of the second run.
        signs: 1 for protocols whose higher scores are better, -1 for others; by default 1.
        allowed: By how much the scores of methods may be worse, for the column ``outcome``; methods
            without an entry are left out. By default all are compared, and none may be worse.
        limits: Lowest and highest possible scores of settings; by default those that were seen.
        identical: Whether nothing that is on record of the two runs differs.

    Returns:
        One line per model, protocol, setting, baseline and method that both runs have: the means of
        both over the common samples, ``difference`` (the second minus the first), ``low`` and
        ``high`` (intervals that hold together), ``p`` adjusted for all lines, ``n``, ``outcome``
        (``worse`` than allowed, ``kept``, ``same``, ``lost`` or ``undecided``), ``needed``, how
        many images would decide it in four of five data sets if the difference is the true one, and
        ``lost``, the samples with a score in the first run that have none in the second.
    """
    keys = [*GROUP, "method"]
    groups_b = dict(iter(b.groupby(keys, sort=False)))
    lines: list[tuple[object, ...]] = []
    columns: dict[int, pd.Series] = {}
    at_worst: dict[int, pd.Series] = {}  # differences on lost samples
    drawn: dict[int, np.ndarray] = {}
    clusters: dict[str, str] = {}
    for key, of_a in a.groupby(keys, sort=False):
        if key not in groups_b or (allowed is not None and key[-1] not in allowed):
            continue
        first, second = (part.set_index("sample")["value"] for part in (of_a, groups_b[key]))
        clusters |= dict(zip(of_a["sample"], clusters_of(of_a, of_a["sample"]), strict=True))
        common = pd.concat([first, second], axis=1, join="inner").dropna()
        means: tuple[float, float, int] = (np.nan, np.nan, 0)
        own = a_draws.get(key), b_draws.get(key)
        if own[0] is not None and own[1] is not None:
            if set(first.dropna().index) == set(second.dropna().index):
                drawn[len(lines)] = own[1] - own[0]
                means = (*common.mean(), len(common))
        elif len(common):
            columns[len(lines)] = common.iloc[:, 1] - common.iloc[:, 0]
            means = (*common.mean(), len(common))
        lost = first[second.index[second.isna()].intersection(first.dropna().index)]
        ends = (limits or {}).get(key[1:4])
        if len(lost):
            worst = _worst(ends, pd.concat([first, second]), (signs or {}).get(key[1], 1))
            at_worst[len(lines)] = worst - lost
        few = common.nunique().max() < FEWEST_DIFFERENT_VALUES and not identical
        lines.append((*key, *means, few, _most_apart(common, ends), len(lost)))
    frame = pd.DataFrame(lines, columns=[*keys, "a", "b", "n", "few", "apart", "lost"])
    sign = np.array([(signs or {}).get(name, 1) for name in frame["protocol"]], dtype=float)
    tolerances = np.array([(allowed or {}).get(method, 0.0) for method in frame["method"]])
    tested = _tested(columns, drawn, frame, clusters, sign, tolerances)
    _allow_for_lost(tested, columns, at_worst, frame, clusters, sign, tolerances)
    order = [*keys, "a", "b", "difference", "low", "high", "p", "n", "outcome", "needed", "lost"]
    return pd.concat([frame, tested], axis=1)[order]


def _tested(
    columns: Mapping[int, pd.Series],
    drawn: Mapping[int, np.ndarray],
    frame: pd.DataFrame,
    clusters: Mapping[str, str],
    sign: np.ndarray,
    allowed: np.ndarray,
) -> pd.DataFrame:
    """Test the lines of a comparison; those of means by flips, aggregated ones by draws.

    The two kinds are families of their own, each at half the level.
    """
    names = ["difference", "low", "high", "p", "outcome", "needed"]
    found = pd.DataFrame(index=frame.index, columns=names, dtype=float)
    found["outcome"] = "undecided"
    both = 2 if columns and drawn else 1
    families: list[tuple[list[int], Family, Family]] = []
    if columns:
        table = pd.concat(columns, axis=1)
        values = table.to_numpy(float)
        labels = np.array([clusters[str(sample)] for sample in table.index], dtype=object)
        limit = -(sign * allowed)[list(columns)]
        at_limit = family_of_columns(values, labels, limit)
        families.append((list(columns), family_of_columns(values, labels), at_limit))
    if drawn:
        gaps = (frame["b"] - frame["a"]).to_numpy()[list(drawn)]
        draws = np.stack(list(drawn.values()), 1)
        counts = int(frame["n"].to_numpy()[list(drawn)].min())
        limit = -(sign * allowed)[list(drawn)]
        plain = draw_family(gaps, draws, counts, 0.0)
        families.append((list(drawn), plain, draw_family(gaps - limit, draws - limit, counts, 0.0)))
    for lines, family, at_limit in families:
        low, high = family.intervals
        exact = ~(family.errors > 0) & (family.gaps == 0)
        same = exact & ~frame["few"].to_numpy(bool)[lines]
        found.loc[lines, "difference"] = family.gaps
        found.loc[lines, "low"] = np.where(same, family.gaps, low)
        found.loc[lines, "high"] = np.where(same, family.gaps, high)
        found.loc[lines, "p"] = np.minimum(family.p * both, 1)
        beyond = -sign[lines] * family.gaps - allowed[lines]  # by how much it is worse than allowed
        decided = np.nan_to_num(at_limit.p * both, nan=1.0) <= LEVEL
        outcome = np.where(decided, np.where(beyond > 0, "worse", "kept"), "undecided")
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = family.detectable(family.errors) / np.abs(beyond)
        needed = np.ceil(family.counts * ratio**2)
        found.loc[lines, "outcome"] = np.where(same, "same", outcome)
        found.loc[lines, "needed"] = np.where(np.isfinite(needed), needed, np.inf)
    for line, differences in columns.items():
        if found.at[line, "outcome"] != "same":
            labels = np.array([clusters[str(sample)] for sample in differences.index], dtype=object)
            means = differences.groupby(labels).mean().to_numpy()
            _allow_for_rare(found, line, means, frame.at[line, "apart"], sign, allowed, both)
    return found


def _worst(limits: Limits, scores: pd.Series, sign: int) -> float:
    """Return the worst score, by the limits or else of those that were seen."""
    low, high = limits or (scores.min(), scores.max())
    return float(low if sign > 0 else high)


def _allow_for_lost(
    found: pd.DataFrame,
    columns: Mapping[int, pd.Series],
    at_worst: Mapping[int, pd.Series],
    frame: pd.DataFrame,
    clusters: Mapping[str, str],
    sign: np.ndarray,
    allowed: np.ndarray,
) -> None:
    """Withdraw that lines are kept where this rests on samples that have lost their score.

    Args:
        found: The lines, which are changed.
        columns: Differences on samples with a score in both runs, by line.
        at_worst: Differences on lost samples if these had the worst score, by line.
        frame: The lines with their means and numbers of samples.
        clusters: The cluster of each sample.
        sign: 1 where higher scores are better, -1 elsewhere.
        allowed: By how much the scores may be worse.
    """
    if not at_worst:
        return
    filled = {line: pd.concat([columns[line], at_worst.get(line)]) for line in columns}
    stands = {}
    if filled:
        table = pd.concat(filled, axis=1)
        labels = np.array([clusters[str(sample)] for sample in table.index], dtype=object)
        limit = -(sign * allowed)[list(filled)]
        family = family_of_columns(table.to_numpy(float), labels, limit)
        beyond = -sign[list(filled)] * family.gaps - allowed[list(filled)]
        stands = dict(zip(filled, family.significant & (beyond <= 0), strict=True))
    for line, differences in at_worst.items():
        lost = len(differences)
        if lost > MOST_MISSING * (lost + frame.at[line, "n"]):
            found.at[line, "outcome"] = "lost"
        elif found.at[line, "outcome"] in ("kept", "same") and not stands.get(line, False):
            found.at[line, "outcome"] = "undecided"
            found.at[line, "needed"] = math.inf


def _most_apart(scores: pd.DataFrame, limits: Limits) -> float:
    """Return how far two scores can be apart, by the limits or else by what was seen."""
    low, high = limits or (scores.min().min(), scores.max().max())
    return float(high - low)


def _allow_for_rare(
    found: pd.DataFrame,
    line: int,
    differences: np.ndarray,
    apart: float,
    sign: np.ndarray,
    allowed: np.ndarray,
    families: int,
) -> None:
    """Withdraw what is claimed of a line with mostly the same differences, if it may not hold.

    Args:
        found: The lines, which are changed.
        line: Which of them.
        differences: The mean difference of each cluster.
        apart: How far two scores can be apart.
        sign: 1 where higher scores are better, -1 elsewhere.
        allowed: By how much the scores may be worse.
        families: Number of families, which share the level.
    """
    level = LEVEL / (families * len(found))
    if not apart > 0:
        apart = 1.0
    low, high = rare_ends(differences, (-apart, apart), 1 - level)
    if not math.isfinite(low):
        return
    if not found.at[line, "p"] <= LEVEL:
        found.loc[line, ["low", "high"]] = (
            np.nanmin([found.at[line, "low"], low]),
            np.nanmax([found.at[line, "high"], high]),
        )
    worst = -low if sign[line] > 0 else high
    if worst < allowed[line] or found.at[line, "outcome"] == "worse":
        return
    found.at[line, "outcome"] = "undecided"
    gap = -sign[line] * float(differences.mean())
    room = (allowed[line] - gap) / apart
    enough = math.log(level) / math.log1p(-room) if 0 < room < 1 else math.inf
    found.at[line, "needed"] = max(found.at[line, "needed"], np.ceil(enough))
