"""Baselines of one colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng

LEVELS = 65535  # of 16-bit images; every level of an 8-bit image is one of them


@baseline("zero", group="colour", blind=True)
def zero(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """Zero in the model's input space: the mean colour for most CNNs, mid-grey or black for others."""
    return x.new_zeros(())


@baseline("black", group="colour", blind=True)
def black(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """Black, whatever it is in the model's input space."""
    if model is None:
        raise HeatproofError(
            "baseline black is the lower end of the model's input range; pass an hp.Model"
        )
    return model.input_range[0]


def ends(
    name: str, x: Tensor, model: Model | None, low: float | None, high: float | None
) -> tuple[Tensor, Tensor]:
    """Those that are given, or the model's input range per channel."""
    if low is not None and high is not None:
        return x.new_tensor(low), x.new_tensor(high)
    if low is not None or high is not None:
        raise HeatproofError(f"{name} takes both ends or none, such as {name}(-1, 1)")
    if model is None:
        raise HeatproofError(
            f"baseline {name} without ends is the model's input range; pass an hp.Model, or say {name}(-1, 1)"
        )
    return model.input_range


@baseline("random-color", group="colour", blind=True)
def random_color(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    low: float | None = None,
    high: float | None = None,
    compat: Literal["xplique"] | None = None,
) -> Tensor:
    """A random colour of the model's input range for each image; `compat=xplique`: one from U(-1, 1) for all of them."""
    shape = (x.shape[1], 1, 1)
    if compat == "xplique":
        return 2 * rng.once("baseline random-color", shape).to(x) - 1
    bottom, top = ends("random-color", x, model, low, high)
    return bottom + (top - bottom) * rng.uniform("baseline random-color", shape).to(x)


@baseline("image-mean", group="colour")
def image_mean(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """The mean colour of each image; the baseline paper's notebooks call it mean."""
    return x.flatten(2).double().mean(2)[..., None, None].to(x)


@baseline("image-median", group="colour")
def image_median(x: Tensor, *, model: Model | None, rng: Rng) -> Tensor:
    """The median of each image, channel by channel; the baseline paper's notebooks call it median."""
    places = x.shape[2] * x.shape[3]
    values = x.flatten(2).sort(2).values
    return ((values[..., (places - 1) // 2] + values[..., places // 2]) / 2)[..., None, None]


def reference_mean(model: Model, batches: Iterator[Tensor]) -> dict[str, Tensor]:
    """The mean colour over all pixels of the reference, as a running sum in double precision."""
    pixels, total = 0, torch.zeros(())
    for x in batches:
        pixels, total = pixels + x[:, 0].numel(), total.to(x.device) + x.double().sum((0, 2, 3))
    return {"colour": (total / pixels).float().reshape(-1, 1, 1)}


def reference_median(model: Model, batches: Iterator[Tensor]) -> dict[str, Tensor]:
    """The median over all pixels of the reference, channel by channel, from counts of 16-bit levels.

    Exact for images of 8 or 16 bits, which is what files hold; within half a level, 8e-6 of the range, for others.
    """
    counts = torch.zeros(len(model.mean), LEVELS + 1, dtype=torch.long)
    for x in batches:
        levels = (model.denormalize(x).double() * LEVELS).round().clamp(0, LEVELS).long().cpu()
        counts += torch.stack(
            [channel.flatten().bincount(minlength=LEVELS + 1) for channel in levels.unbind(1)]
        )
    below = counts.cumsum(1)
    pixels = below[:, -1:]
    middle = torch.cat(
        [torch.searchsorted(below, (pixels + 1) // 2), torch.searchsorted(below, pixels // 2 + 1)],
        1,
    )
    return {"colour": model.normalize((middle.double().mean(1) / LEVELS).reshape(-1, 1, 1)).float()}


@baseline("mean", group="colour", blind=True, prepare=reference_mean)
def mean(x: Tensor, *, model: Model | None, rng: Rng, prepared: Mapping[str, Tensor]) -> Tensor:
    """The mean colour of the reference images."""
    return prepared["colour"].to(x)


@baseline("median", group="colour", blind=True, prepare=reference_median)
def median(x: Tensor, *, model: Model | None, rng: Rng, prepared: Mapping[str, Tensor]) -> Tensor:
    """The median of the reference images, channel by channel."""
    return prepared["colour"].to(x)
