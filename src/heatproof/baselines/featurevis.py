"""The model-dependent baseline: an image whose embedding is nearly zero (Picard et al. 2024).

The phases of its spectrum are optimised, its magnitudes are those of reference images (MaCo, Fel et
al. 2023). The implementation follows Xplique's code, with these differences:

- Some of the crops are the whole image, because the whole image replaces removed pixels. With
  smaller crops alone its embedding stays far from zero.
- Magnitudes are averaged over the reference images, relative to mid-grey and in decorrelated
  colours.
- Phases start anywhere on the circle, since phases near zero add up to a bright spot in the
  corners. They are paired, so that magnitudes are kept.
- Contrast is set in red, green and blue instead of decorrelated colours, whose contrast may differ
  from ImageNet's.
- Crops lie within the image, and resampling skips no pixel.
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
from heatproof.tensor.information import prediction_entropy
from heatproof.tensor.noise import Rng, generator
from heatproof.tensor.spectra import (
    decorrelated,
    pair_conjugates,
    power_law_magnitude,
    recorrelated,
    resample_crops,
    resize_magnitude,
    standardised,
)

Count = Annotated[int, Field(ge=1)]

GREY = 0.5
NADAM_RATE = 1.0
FIRST_CROP_SIDE = 0.5  # mean at the first step, as a fraction of the image
LAST_CROP_SIDE = 0.05
CROP_SIDE_SPREAD = 0.05
MIN_CROP_SIDE = 0.05
CROP_CENTRE_SPREAD = 0.15
CONVERGED_NORM = 0.1  # of an image's embedding, relative to that at the start
NOISE_SIZE = 0.04  # standard deviation of normal and width of uniform noise, for images in [0, 1]

OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {  # (n, D) -> (n,), to be minimised
    "l2": lambda embedding: embedding.square().sum(1),
    "l1": lambda embedding: embedding.abs().mean(1),
    "inverse": lambda embedding: -(1 / (embedding.square() + 0.1)).mean(1),
}


def optimise_image(
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
    """Optimise the image; see `featurevis` for the arguments.

    Returns:
        ``image`` in the model's input space, with its ``logits``; ``norm`` of its embedding and
        ``start``, the norm before the first step; ``entropy`` of its prediction in nats; ``trace``,
        the mean objective of each step; ``still``, the number of steps without a gradient; and
        ``converged``, whether the norm has fallen below a tenth of what it was.
    """
    if parametrisation == "fourier" and learn_magnitude:
        raise HeatproofError(
            "featurevis: learn_magnitude goes with parametrisation=maco; fourier has no fixed "
            "magnitudes"
        )
    np_rng = generator("featurevis", seed)
    channels, *sides = model.image_shape
    height, width = (2 * round(scale * side / 2) for side in sides)
    if parametrisation == "fourier":
        magnitude = power_law_magnitude((height, width), decay)
        spectrum = fourier(magnitude.expand(channels, -1, -1), np_rng, (height, width))
    else:
        magnitude = resize_magnitude(magnitudes(model, batches), model.width, (height, width))
        spectrum = maco(magnitude, np_rng, learn_magnitude, (height, width))
    leaves = [leaf.to(model.device).requires_grad_() for leaf in spectrum.start]
    optimiser = torch.optim.NAdam(leaves, lr=NADAM_RATE)
    start = model.forward(_whole_image(render(spectrum, leaves), model))[1].norm()
    trace = []
    still = 0
    for side in np.linspace(FIRST_CROP_SIDE, LAST_CROP_SIDE, steps):
        with torch.enable_grad():
            rendered = render(spectrum, leaves)
            centres, crop_sides = draw_crops(np_rng, crops, round(whole * crops), side)
            cropped = resample_crops(rendered, centres, crop_sides, (model.height, model.width))
            noisy = model.normalize(cropped + noise(np_rng, cropped.shape).to(cropped))
        values, gradient = objective_gradient(model, noisy.detach(), OBJECTIVES[objective])
        if not gradient.isfinite().all():
            raise HeatproofError(
                f"featurevis: the gradient of {model.name}'s embedding is not finite"
            )
        still += not gradient.any()
        optimiser.zero_grad()
        torch.autograd.backward([noisy], [gradient / crops])
        optimiser.step()
        trace.append(values.mean())
    image = _whole_image(render(spectrum, leaves), model)
    logits, embedding = model.forward(image)
    converged = embedding.norm() <= CONVERGED_NORM * start
    if still == steps:
        warnings.warn(
            f"featurevis: the embedding of {model.name} has no gradient, so the image was not "
            f"optimised; the norm of its embedding is {start:.3g}",
            stacklevel=2,
        )
    elif not converged:
        warnings.warn(
            f"featurevis: the embedding of {model.name} is not near zero after {steps} steps: its "
            f"norm was {start:.3g} and is {embedding.norm():.3g}, more than a tenth of it; more "
            "steps may help, unless a normalization layer keeps the embedding from zero",
            stacklevel=2,
        )
    return {
        "image": image[0],
        "norm": embedding.norm(),
        "start": start,
        "entropy": prediction_entropy(logits[0], model.head),
        "logits": logits[0],
        "trace": torch.stack(trace),
        "still": torch.tensor(still),
        "converged": converged,
    }


@baseline(
    "featurevis",
    group="model",
    prepare=optimise_image,
    cost=lambda arguments: (2, arguments["steps"] * arguments["crops"]),
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
    """An image whose embedding is nearly zero, with the spectrum of the reference images.

    Args:
        objective: What is minimised: ``l2`` (squared norm), ``l1`` (mean of absolute values) or
            ``inverse`` (mean of −1/(a² + 0.1)).
        parametrisation: ``maco``, or ``fourier``, whose spectrum is free and starts as 1/f^decay.
        learn_magnitude: Give every magnitude of ``maco`` a free factor.
        steps: Steps of the optimiser.
        crops: Crops per step.
        whole: Fraction of the crops that are the whole image; 0 is MaCo, and ``crops=1, whole=1``
            is cheapest.
        scale: Size of the optimised image relative to the model's.
        decay: Exponent of the initial spectrum of ``fourier``.
        seed: Seed of the optimisation.
    """
    return prepared["image"].to(x)


class Spectrum(NamedTuple):
    """Parameters to optimise, and the complex half spectrum that they define."""

    start: list[Tensor]
    coefficients: Callable[..., Tensor]  # (*parameters) -> (C, H, W // 2 + 1)
    size: tuple[int, int]  # height and width of the image


def maco(
    magnitude: Tensor, np_rng: np.random.Generator, learn_magnitude: bool, size: tuple[int, int]
) -> Spectrum:
    """Return a spectrum with free phases, and fixed magnitudes or a free factor for each."""
    initial_phase = (
        torch.from_numpy(np_rng.random(magnitude.shape, dtype=np.float32)) * 2 * torch.pi
    )
    phase = _normal(np_rng, magnitude.shape)

    def coefficients(phase: Tensor, *gain: Tensor) -> Tensor:
        phase = pair_conjugates(initial_phase.to(phase) + standardised(phase))
        radius = magnitude.to(phase) * (gain[0] if gain else 1)
        return torch.complex(radius * phase.cos(), radius * phase.sin())

    start = [phase, torch.ones_like(phase)] if learn_magnitude else [phase]
    return Spectrum(start, coefficients, size)


def fourier(weights: Tensor, np_rng: np.random.Generator, size: tuple[int, int]) -> Spectrum:
    """Return a spectrum of free, weighted complex coefficients."""
    start = [_normal(np_rng, weights.shape) for _ in range(2)]
    return Spectrum(
        start, lambda real, imaginary: weights.to(real) * torch.complex(real, imaginary), size
    )


def magnitudes(model: Model, batches: Iterator[Tensor]) -> Tensor:  # (C, H, W // 2 + 1)
    """Compute the mean magnitude of every frequency, in decorrelated colours."""
    count = 0
    total = torch.zeros(())
    for x in batches:
        spectrum = torch.fft.rfft2(decorrelated(model.denormalize(x).float() - GREY))
        total = total + spectrum.abs().cpu().double().sum(0)
        count += len(x)
    return (total / count).float()


def render(spectrum: Spectrum, leaves: list[Tensor]) -> Tensor:  # (C, H, W) in (0, 1)
    """Compute the image of a spectrum."""
    coefficients = spectrum.coefficients(*leaves)
    return standardised(recorrelated(torch.fft.irfft2(coefficients, s=spectrum.size))).sigmoid()


def draw_crops(
    np_rng: np.random.Generator, count: int, whole: int, side: float
) -> tuple[Tensor, Tensor]:  # (n, 2), (n,)
    """Draw centres and sides of crops within the image; the first are the whole image."""
    sides = _normal(np_rng, (count,)).mul(CROP_SIDE_SPREAD).add(side).clamp(MIN_CROP_SIDE, 1)
    sides[:whole] = 1
    centres = _normal(np_rng, (count, 2)).mul(CROP_CENTRE_SPREAD).add(0.5)
    half = sides[:, None] / 2
    return torch.maximum(torch.minimum(centres, 1 - half), half), sides


def noise(np_rng: np.random.Generator, shape: torch.Size) -> Tensor:
    """Draw the sum of normal and uniform noise that is added to crops."""
    return NOISE_SIZE * (
        _normal(np_rng, shape) + torch.from_numpy(np_rng.random(shape, dtype=np.float32)) - 0.5
    )


def objective_gradient(
    model: Model, x: Tensor, objective: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:  # (n, C, H, W) -> (n,), as x
    """Compute the objective of each image's embedding, and its gradient."""
    values = []
    gradients = []
    with model.passes.batches_of(min(len(x), model.batch_size)), model.passes.frozen_eval():
        for part, _ in model.passes.grad_batches(x, x.new_zeros(len(x)), "backward"):
            value = objective(model.passes.embed(part))
            gradients.append(torch.autograd.grad(value.sum(), part)[0])
            values.append(value.detach())
    return torch.cat(values)[: len(x)], torch.cat(gradients)[: len(x)]


def _whole_image(
    image: Tensor, model: Model
) -> Tensor:  # (C, h, w) -> (1, C, H, W) in the model's input space
    return model.normalize(
        resample_crops(
            image.detach(),
            torch.full((1, 2), 0.5),
            torch.ones(1),
            (model.height, model.width),
        )
    )


def _normal(np_rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np_rng.standard_normal(shape, dtype=np.float32))
