"""Rows of a run as tables of scores: one line per sample, one column per method.

The texts in rows are categories (`Store.rows`), so that tables of millions of rows are filled by
their codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class ScoreTable:
    """The scores of methods on samples.

    Attributes:
        samples: Ids of the N samples, sorted.
        methods: The M methods, in the order of the rows.
        values: Scores ``(N, M)``; nan where a method has none.
        clusters: What samples are drawn together, ``(N,)``: the grid that a sample belongs to, else
            the sample itself.
    """

    samples: np.ndarray
    methods: list[str]
    values: np.ndarray
    clusters: np.ndarray

    @property
    def frame(self) -> pd.DataFrame:
        """The scores with samples down and methods across."""
        samples = pd.Index(self.samples, name="sample")
        return pd.DataFrame(self.values, samples, pd.Index(self.methods, name="method"))

    @property
    def means(self) -> np.ndarray:  # (M,)
        """The mean score of each method; nan for a method without a score."""
        return pd.DataFrame(self.values).mean().to_numpy()


def score_table(rows: pd.DataFrame, methods: list[str] | None = None) -> ScoreTable:
    """Arrange the rows of one model and setting.

    Args:
        rows: Rows with the columns ``sample``, ``method``, ``value`` and, where samples are not
            independent, ``cluster``. A sample has at most one row per method.
        methods: The columns of the table; by default the methods that the rows have.

    Raises:
        ValueError: If a sample has several rows of a method.
    """
    codes, samples = _sorted_codes(rows["sample"])
    methods = [str(name) for name in rows["method"].unique()] if methods is None else methods
    columns = positions(rows["method"], methods)
    chosen = columns >= 0
    cells = codes[chosen] * len(methods) + columns[chosen]
    values = np.full(len(samples) * len(methods), np.nan)
    values[cells] = rows["value"].to_numpy()[chosen]
    if len(cells) and np.bincount(cells).max() > 1:
        raise ValueError("a sample has several rows of the same method and setting")
    clusters = samples
    if "cluster" in rows:
        cluster_codes, cluster_names = pd.factorize(rows["cluster"])
        of_sample = np.zeros(len(samples), dtype=np.intp)
        of_sample[codes] = cluster_codes
        clusters = np.asarray(cluster_names, dtype=object)[of_sample]
    return ScoreTable(samples, methods, values.reshape(len(samples), len(methods)), clusters)


def groups(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield the rows of each combination of texts, in the order in which they first occur.

    The same as ``rows.groupby(by, sort=False, observed=True)``, in a small part of its memory if
    the columns are categories.
    """
    columns = [rows[name] for name in by]
    if not all(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
        for key, group in rows.groupby(list(by), sort=False, observed=True):
            yield tuple(map(str, key)), group
        return
    combined: np.ndarray = np.zeros(len(rows), np.int64)
    for column in columns:
        combined *= len(column.cat.categories)
        combined += column.cat.codes.to_numpy()
    for code in pd.unique(combined):
        chosen = np.flatnonzero(combined == code)
        yield tuple(str(column.iloc[chosen[0]]) for column in columns), rows.iloc[chosen]


def positions(column: pd.Series, texts: Sequence[str]) -> np.ndarray:  # (N,)
    """Return the position of each row's text among some texts; -1 for one that is not there."""
    codes, present = pd.factorize(column)
    position = {text: i for i, text in enumerate(texts)}
    return np.array([position.get(text, -1) for text in present], dtype=np.intp)[codes]


def _sorted_codes(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's text among the sorted ones, and these texts."""
    codes, texts = pd.factorize(column)
    texts = np.asarray(texts, dtype=object)
    order = np.argsort(texts, kind="stable")
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(len(order))
    return ranks[codes], texts[order]
