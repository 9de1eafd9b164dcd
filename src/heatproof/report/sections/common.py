"""What several sections need: rows of one setting, heat maps as files, and descriptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import pictures
from heatproof.figures.numbers import interval, number
from heatproof.protocols import PROTOCOLS
from heatproof.report.site import Site


@dataclass(frozen=True)
class MethodEstimates:
    """A row of a table: a method and its estimates; None where there is no score."""

    method: str
    family: str
    estimates: list[Estimate | None]


def select(
    frame: pd.DataFrame,
    model: str | None = None,
    key: Key | None = None,
    method: str | None = None,
) -> pd.DataFrame:
    """Return the rows of a model, a setting and a method; None selects all.

    Args:
        frame: Scores or their summary.
        model: Name of the model.
        key: (protocol, setting, baseline).
        method: Label of the method.
    """
    conditions = {"model": model, "method": method}
    if key is not None:
        conditions |= dict(zip(("protocol", "setting", "baseline"), key, strict=True))
    masks = [frame[column] == value for column, value in conditions.items() if value is not None]
    return frame[np.logical_and.reduce(masks)] if masks else frame


def panel_title(run: RunStatistics, model: str, key: Key, layer: str = "") -> str:
    """Return the title of a setting among the panels of a figure."""
    parts = [run.setting_labels[key]]
    if len(run.models) > 1:
        parts.insert(0, run.short_names[model])
    return " · ".join([*parts, f"layer {layer}"] if layer else parts)


def size_of(image: Tensor) -> tuple[int, int]:
    """Return (height, width) of an image ``(C, H, W)``."""
    return image.shape[1], image.shape[2]


def map_picture(site: Site, values: Tensor | None, size: tuple[int, int]) -> str | None:
    """Save a map as a picture, in diverging colours if it has negative values.

    Args:
        site: The site that the picture becomes part of.
        values: The map, of shape ``(h, w)``.
        size: Height and width of the picture.

    Returns:
        The name of the file; None if there is no map or it is not finite.
    """
    if values is None or not bool(torch.isfinite(values).all()):
        return None
    return site.picture(pictures.heatmap(values, size, pictures.is_signed(values)))


def describe_mean(mean: float, low: float, high: float) -> str:
    """Describe a mean and its interval for a tooltip."""
    return f"mean {number(mean)} · 95 % interval {interval(mean, low, high)}"


def estimate_or_none(mean: float, low: float, high: float) -> Estimate | None:
    """Return an estimate; None if the mean is not finite."""
    return Estimate(mean, low, high) if math.isfinite(mean) else None


def mean_scores(rows: pd.DataFrame, methods: Sequence[str]) -> pd.Series:
    """Return the mean score of each sample over some methods, best first.

    The mean is over the settings of the first protocol, since scores of two cannot be mixed.
    """
    part = rows[rows["method"].isin(list(methods)) & np.isfinite(rows["value"])]
    if not len(part):
        return pd.Series(dtype=float)
    protocol = part["protocol"].iloc[0]
    means = part[part["protocol"] == protocol].groupby("sample", sort=False)["value"].mean()
    return means.sort_values(ascending=not PROTOCOLS[protocol].cls.higher_is_better, kind="stable")
