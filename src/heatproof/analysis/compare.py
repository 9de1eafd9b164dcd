"""Comparing models under one setting: scores of each method, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key


def table(rows: pd.DataFrame, model: str, key: Key) -> pd.DataFrame:
    """Tabulate the scores of a model under one setting.

    Args:
        rows: The scores of a run, one row per sample, protocol and method.
        model: Name of the model.
        key: (protocol, setting, baseline).

    Returns:
        One row per sample and one column per method; nan if a score is missing.
    """
    part = rows[rows["model"] == model]
    for column, value in zip(("protocol", "setting", "baseline"), key, strict=True):
        part = part[part[column] == value]
    return part.pivot(index="sample", columns="method", values="value").reindex(
        columns=list(dict.fromkeys(part["method"]))
    )


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
    both = pd.concat([first, second], axis=1, join="inner")
    both = both[np.isfinite(both.to_numpy(float)).all(1)]
    labels = [(clusters or {}).get(sample, sample) for sample in both.index]
    values = both.to_numpy(float)
    return Estimate.mean(values[:, 0] - values[:, 1], labels), len(both)
