"""Baselines that replace removed pixels with a single colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng

HIGHEST_LEVEL = 65535  # of a 16-bit image; every 8-bit value maps onto one of them


@baseline("zero", group="colour", blind=True)
def zero(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """Zero in the model's input space: for most CNNs the mean colour, for others grey or black."""
    return x.new_zeros(())


@baseline("black", group="colour", blind=True)
def black(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """Black, converted to the model's input space."""
    if model is None:
        raise HeatproofError(
            "baseline black is the lower bound of the model's input range; pass an hp.Model"
        )
    return model.input_range[0]


def value_range(
    name: str, x: Tensor, model: Model | None, low: float | None, high: float | None
) -> tuple[Tensor, Tensor]:
    """Return the given bounds, or the model's input range per channel if none are given."""
    if low is not None and high is not None:
        return x.new_tensor(low), x.new_tensor(high)
    if low is not None or high is not None:
        raise HeatproofError(f"{name} takes both bounds or none, for example {name}(-1, 1)")
    if model is None:
        raise HeatproofError(
            f"baseline {name} without bounds uses the model's input range; pass an hp.Model, "
            f"or give the bounds: {name}(-1, 1)"
        )
    return model.input_range


@baseline("random-color", group="colour", blind=True, stochastic=True)
def random_color(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    low: float | None = None,
    high: float | None = None,
    compat: Literal["xplique"] | None = None,
) -> Tensor:
    """A random colour per image, uniform over the model's input range.

    ``compat=xplique`` draws one colour from U(-1, 1) for all images.
    """
    shape = (x.shape[1], 1, 1)
    if compat == "xplique":
        return 2 * rng.once("baseline random-color", shape).to(x) - 1
    bottom, top = value_range("random-color", x, model, low, high)
    return bottom + (top - bottom) * rng.uniform("baseline random-color", shape).to(x)


@baseline("image-mean", group="colour")
def image_mean(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """The mean colour of each image (``mean`` in the notebooks of Picard et al. 2024)."""
    return x.flatten(2).double().mean(2)[..., None, None].to(x)


@baseline("image-median", group="colour")
def image_median(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """The median of each image per channel (``median`` in the notebooks of Picard et al. 2024)."""
    pixels = x.shape[2] * x.shape[3]
    values = x.flatten(2).sort(2).values
    return ((values[..., (pixels - 1) // 2] + values[..., pixels // 2]) / 2)[..., None, None]


def reference_mean(model: Model, batches: Iterator[Tensor]) -> dict[str, Tensor]:
    """Compute the mean colour of the reference images as a running sum in double precision."""
    pixels = 0
    total = torch.zeros(())
    for x in batches:
        pixels += x[:, 0].numel()
        total = total.to(x.device) + x.double().sum((0, 2, 3))
    return {"colour": (total / pixels).float().reshape(-1, 1, 1)}


def reference_median(model: Model, batches: Iterator[Tensor]) -> dict[str, Tensor]:
    """Compute the median of the reference images per channel from a histogram of 16-bit levels.

    The result is exact for 8-bit and 16-bit images. For other images it is within half a level,
    that is, 8e-6 of the range.
    """
    counts = torch.zeros(len(model.mean), HIGHEST_LEVEL + 1, dtype=torch.long)
    for x in batches:
        levels = (
            (model.denormalize(x).double() * HIGHEST_LEVEL)
            .round()
            .clamp(0, HIGHEST_LEVEL)
            .long()
            .cpu()
        )
        counts += torch.stack(
            [
                channel.flatten().bincount(minlength=HIGHEST_LEVEL + 1)
                for channel in levels.unbind(1)
            ]
        )
    below = counts.cumsum(1)
    pixels = below[:, -1:]
    middle = torch.cat(
        [torch.searchsorted(below, (pixels + 1) // 2), torch.searchsorted(below, pixels // 2 + 1)],
        1,
    )
    return {
        "colour": model.normalize(
            (middle.double().mean(1) / HIGHEST_LEVEL).reshape(-1, 1, 1)
        ).float()
    }


@baseline("mean", group="colour", blind=True, prepare=reference_mean)
def mean(x: Tensor, *, model: Model | None, rng: Rng, prepared: Mapping[str, Tensor]) -> Tensor:
    """The mean colour of the reference images."""
    return prepared["colour"].to(x)


@baseline("median", group="colour", blind=True, prepare=reference_median)
def median(x: Tensor, *, model: Model | None, rng: Rng, prepared: Mapping[str, Tensor]) -> Tensor:
    """The median of the reference images per channel."""
    return prepared["colour"].to(x)
