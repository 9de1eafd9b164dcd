"""Noisy linear imputation (Rong et al. 2022, ROAD): removed pixels become weighted means of their neighbours."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng, sample_ids
from heatproof.tensor.stencil import impute


def linear_impute(
    x: Tensor, removed: Tensor, noise: float = 0.01, rng: Rng | None = None
) -> Tensor:  # (B, C, H, W), (B, H, W) bool -> like x
    """Removed pixels as weighted means of their neighbours, plus N(0, noise²); the rest as it is. Without `rng`, rows are numbered.

    The noise is one image a sample: rows of the same id have the same. Where all pixels are removed, a channel becomes its mean over
    the image.
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise HeatproofError(f"noise is a standard deviation, zero or more; found {noise}")
    rng = rng or Rng(0, sample_ids(None, len(x)), x.device)
    if len(rng.ids) != len(x):
        raise HeatproofError(
            f"rng has {len(rng.ids)} ids for {len(x)} images; it needs one for each"
        )
    filled, _ = impute(x, removed)
    if noise == 0 or not len(x):
        return filled
    ids = list(dict.fromkeys(rng.ids))
    drawn = Rng(rng.seed, ids, rng.device).normal("baseline linear", x.shape[1:]).to(x)
    return torch.where(
        removed[:, None], filled + noise * drawn[[ids.index(sample) for sample in rng.ids]], filled
    )


@baseline("linear", group="imputed", version=2, imputes=True)
def linear(
    x: Tensor,
    removed: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01,
) -> Tensor:
    """Weighted mean of the neighbours, solved for all removed pixels together, with a little noise in the model's input units (ROAD)."""
    return linear_impute(x, removed, noise, rng)
