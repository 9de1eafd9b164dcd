"""Networks side by side under one setting: the score of each method, and paired differences on the same samples."""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key


def table(rows: pd.DataFrame, model: str, key: Key) -> pd.DataFrame:
    """Samples down, methods across; nan where there is no score."""
    part = rows[rows["model"] == model]
    for column, value in zip(("protocol", "setting", "baseline"), key, strict=True):
        part = part[part[column] == value]
    return part.pivot(index="sample", columns="method", values="value").reindex(
        columns=list(dict.fromkeys(part["method"]))
    )


def gap(of: pd.Series, to: pd.Series) -> tuple[Estimate, int]:
    """`of` minus `to` over the samples that both have, and their number."""
    both = pd.concat([of, to], axis=1, join="inner").to_numpy(float)
    differences = both[np.isfinite(both).all(1)]
    return Estimate.mean(differences[:, 0] - differences[:, 1]), len(differences)
