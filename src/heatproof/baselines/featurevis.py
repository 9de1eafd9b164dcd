"""The image that says nothing to the model: phases optimised until the embedding is nearly zero, magnitudes those of other images.

MaCo (Fel et al. 2023) after Xplique's code, with these differences:
- Some of the crops are the whole image, which is what takes the place of removed pixels: crops alone leave its embedding far from zero.
- Magnitudes are the reference's, about mid-grey and in independent colours before they are averaged.
- Phases start anywhere on the circle: near zero they add up to a bright spot in the corners. They are paired, so that magnitudes are kept.
- Contrast is set in red, green and blue, not in independent colours, of which there may be more or less than in ImageNet.
- Crops lie within the image, and no pixel falls between those that are seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng, generator
from heatproof.tensor.spectra import (
    decorrelated,
    falling,
    look,
    paired,
    recorrelated,
    standardised,
    stretched,
)

Count = Annotated[int, Field(ge=1)]

GREY = 0.5
RATE = 1.0  # of NAdam
SIDE, LAST_SIDE, SIDE_SPREAD, SMALLEST = (
    0.5,
    0.05,
    0.05,
    0.05,
)  # of the crops, as shares of the image
CENTRE_SPREAD = 0.15
NOISE = 0.04  # standard deviation, and width of further, uniform noise, for images in [0, 1]: 0.08 in [−1, 1]

OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {  # (n, D) -> (n,), to be made small
    "l2": lambda embedding: embedding.square().sum(1),
    "l1": lambda embedding: embedding.abs().mean(1),
    "inverse": lambda embedding: -(1 / (embedding.square() + 0.1)).mean(1),
}


def blankest(
    model: Model,
    batches: Iterator[Tensor],
    *,
    objective: str,
    parametrisation: str,
    learn_magnitude: bool,
    steps: int,
    crops: int,
    whole: float,
    scale: float,
    decay: float,
    seed: int,
) -> dict[str, Tensor]:
    """The image in the model's input space, and what became of it.

    norm, start: of the embedding of the image and of that before the first step. entropy: of the prediction, in nats. logits.
    trace: the objective's mean over the crops, step by step. still: how many steps had no gradient.
    """
    if len(model.mean) != 3:
        raise HeatproofError(
            f"featurevis is for models of colour images; {model.name} takes {len(model.mean)} channels"
        )
    if parametrisation == "fourier" and learn_magnitude:
        raise HeatproofError(
            "featurevis: parametrisation=fourier has no magnitudes to keep to; leave out learn_magnitude"
        )
    numbers, size = generator("featurevis", seed), 2 * round(scale * model.size / 2)
    if parametrisation == "fourier":
        spectrum = fourier(falling(size, decay).expand(3, -1, -1), numbers)
    else:
        spectrum = maco(stretched(magnitudes(model, batches), size), numbers, learn_magnitude)
    leaves = [leaf.to(model.device).requires_grad_() for leaf in spectrum.start]
    optimiser = torch.optim.NAdam(leaves, lr=RATE)
    start = model.forward(_shown(painted(spectrum, leaves), model))[1].norm()
    trace, still = [], 0
    for side in np.linspace(SIDE, LAST_SIDE, steps):
        with torch.enable_grad():
            seen = look(
                painted(spectrum, leaves),
                *boxes(numbers, crops, round(whole * crops), side),
                model.size,
            )
            noisy = model.normalize(seen + noise(numbers, seen.shape).to(seen))
        values, slope = downhill(model, noisy.detach(), OBJECTIVES[objective])
        if not slope.isfinite().all():
            raise HeatproofError(
                f"featurevis: the gradient of {model.name}'s embedding is not finite"
            )
        still += not slope.any()
        optimiser.zero_grad()
        torch.autograd.backward([noisy], [slope / crops])
        optimiser.step()
        trace.append(values.mean())
    image = _shown(painted(spectrum, leaves), model)
    logits, embedding = model.forward(image)
    guess = logits[0].log_softmax(0)
    if still == steps:
        said = f"featurevis: {model.name}'s embedding has no gradient; the image is that at the start, of norm {start:.3g}"
        warnings.warn(said, stacklevel=2)
    return {
        "image": image[0],
        "norm": embedding.norm(),
        "start": start,
        "entropy": -(guess.exp() * guess).sum(),
        "logits": logits[0],
        "trace": torch.stack(trace),
        "still": torch.tensor(still),
    }


@baseline(
    "featurevis",
    group="model",
    prepare=blankest,
    cost=lambda told: (2, told["steps"] * told["crops"]),
)
def featurevis(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    prepared: Mapping[str, Tensor],
    objective: Literal["l2", "l1", "inverse"] = "l2",
    parametrisation: Literal["maco", "fourier"] = "maco",
    learn_magnitude: bool = False,
    steps: Count = 256,
    crops: Count = 16,
    whole: Annotated[float, Field(ge=0, le=1)] = 0.5,
    scale: Annotated[float, Field(ge=1, le=16)] = 2.0,
    decay: Annotated[float, Field(ge=0)] = 1.8,
    seed: int = 0,
) -> Tensor:
    """An image of which the model's embedding is nearly zero, with the spectrum of the reference images.

    objective: l2 (squared), l1, or inverse (the mean of −1/(a² + 0.1)). parametrisation: maco, or fourier, whose spectrum is free and
    starts as 1/f^decay. learn_magnitude: maco with a free factor for every magnitude. crops: in a step; whole: the share of them that is
    the whole image (0 is MaCo's own; crops=1, whole=1 is cheapest). scale: the side of the optimised image in that of the model's.
    """
    return prepared["image"].to(x)


class Spectrum(NamedTuple):
    """Parameters to optimise, and the complex half spectrum that they stand for."""

    start: list[Tensor]
    coefficients: Callable[..., Tensor]  # (*parameters) -> (C, S, S // 2 + 1)


def maco(magnitude: Tensor, numbers: np.random.Generator, learn_magnitude: bool) -> Spectrum:
    """Free phases, of a spread of one about where they start; the magnitude is kept, or has a free factor in every place."""
    anywhere = torch.from_numpy(numbers.random(magnitude.shape, dtype=np.float32)) * 2 * torch.pi
    phase = _normal(numbers, magnitude.shape)

    def coefficients(phase: Tensor, *gain: Tensor) -> Tensor:
        phase = paired(anywhere.to(phase) + standardised(phase))
        radius = magnitude.to(phase) * (gain[0] if gain else 1)
        return torch.complex(radius * phase.cos(), radius * phase.sin())

    return Spectrum([phase, torch.ones_like(phase)] if learn_magnitude else [phase], coefficients)


def fourier(weights: Tensor, numbers: np.random.Generator) -> Spectrum:
    """Free complex coefficients, weighted."""
    start = [_normal(numbers, weights.shape) for _ in range(2)]
    return Spectrum(
        start, lambda real, imaginary: weights.to(real) * torch.complex(real, imaginary)
    )


def magnitudes(model: Model, batches: Iterator[Tensor]) -> Tensor:  # (C, H, W // 2 + 1)
    """The mean magnitude of every frequency over the reference, in independent colours."""
    count, total = 0, torch.zeros(())
    for x in batches:
        found = (
            torch.fft.rfft2(decorrelated(model.denormalize(x).float() - GREY))
            .abs()
            .cpu()
            .double()
            .sum(0)
        )
        count, total = count + len(x), total + found
    return (total / count).float()


def painted(spectrum: Spectrum, leaves: list[Tensor]) -> Tensor:  # (C, S, S) in (0, 1)
    coefficients = spectrum.coefficients(*leaves)
    size = coefficients.shape[-2]
    return standardised(recorrelated(torch.fft.irfft2(coefficients, s=(size, size)))).sigmoid()


def boxes(
    numbers: np.random.Generator, count: int, whole: int, side: float
) -> tuple[Tensor, Tensor]:  # (n, 2), (n,)
    """Centres and sides of squares that lie within the image; the first are the whole image."""
    sides = _normal(numbers, (count,)).mul(SIDE_SPREAD).add(side).clamp(SMALLEST, 1)
    sides[:whole] = 1
    centres = _normal(numbers, (count, 2)).mul(CENTRE_SPREAD).add(0.5)
    half = sides[:, None] / 2
    return torch.maximum(torch.minimum(centres, 1 - half), half), sides


def noise(numbers: np.random.Generator, shape: torch.Size) -> Tensor:
    return NOISE * (
        _normal(numbers, shape) + torch.from_numpy(numbers.random(shape, dtype=np.float32)) - 0.5
    )


def downhill(
    model: Model, x: Tensor, objective: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:  # (n, C, H, W) -> (n,), as x
    """The objective of each image's embedding, and its gradient."""
    values, slopes = [], []
    with model.passes.batches_of(min(len(x), model.batch_size)), model.passes.frozen_eval():
        for part, _ in model.passes.grad_batches(x, x.new_zeros(len(x)), "backward"):
            found = objective(model.passes.embed(part))
            slopes.append(torch.autograd.grad(found.sum(), part)[0])
            values.append(found.detach())
    return torch.cat(values)[: len(x)], torch.cat(slopes)[: len(x)]


def _shown(
    image: Tensor, model: Model
) -> Tensor:  # (C, S, S) -> (1, C, H, W) in the model's input space
    return model.normalize(look(image.detach(), torch.full((1, 2), 0.5), torch.ones(1), model.size))


def _normal(numbers: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(numbers.standard_normal(shape, dtype=np.float32))
