"""Noisy linear imputation (ROAD, Rong et al. 2022).

Removed pixels become weighted means of their neighbours.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng, sample_ids


def linear_impute(
    x: Tensor, removed: Tensor, noise: float = 0.01, rng: Rng | None = None
) -> Tensor:
    """Replace removed pixels by weighted means of their neighbours plus Gaussian noise.

    Args:
        x: Images ``(B, C, H, W)``.
        removed: Boolean masks ``(B, H, W)`` of the pixels to replace.
        noise: Standard deviation of the noise, in the units of ``x``.
        rng: Source of the noise, with one id per row; by default rows are numbered. Rows with the
            same id get the same noise.

    Returns:
        Images of the shape of ``x``; pixels that were not removed are unchanged. If all pixels of
        an image are removed, each channel becomes its mean over the image.

    Raises:
        HeatproofError: If ``noise`` is negative or not finite, or ``rng`` has another number of
            ids than ``x`` has rows.
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise HeatproofError(f"noise must be a finite standard deviation ≥ 0; got {noise}")
    from heatproof.tensor.stencil import impute  # loads a compiler

    rng = rng or Rng(0, sample_ids(None, len(x)), x.device)
    if len(rng.ids) != len(x):
        raise HeatproofError(
            f"rng has {len(rng.ids)} ids for {len(x)} images; give one id per image"
        )
    filled, _ = impute(x, removed)
    if noise == 0 or not len(x):
        return filled
    drawn = [_drawn(rng.seed, sample, tuple(x.shape[1:])) for sample in rng.ids]
    return torch.where(removed[:, None], filled + noise * torch.stack(drawn).to(x), filled)


@lru_cache(maxsize=16)  # the steps of a sample follow each other
def _drawn(seed: int, sample: str, shape: tuple[int, ...]) -> Tensor:  # shape
    return Rng(seed, [sample]).normal("baseline linear", shape)[0]


@baseline("linear", group="imputed", version=3, imputes=True, stochastic=True)
def linear(
    x: Tensor,
    removed: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01,
) -> Tensor:
    """Weighted means of the neighbours, solved jointly for all removed pixels, plus noise (ROAD).

    ``noise`` is a standard deviation in the model's input units.
    """
    return linear_impute(x, removed, noise, rng)
