"""The model-dependent baseline: an image whose embedding is nearly zero (Picard et al. 2024).

The phases of its spectrum are optimized, its magnitudes are those of reference images (MaCo, Fel et
al. 2023). By default the image is drawn differently from Xplique's code, which ``compat=xplique``
follows:

- Some of the crops are the whole image, because the whole image replaces removed pixels. With
  smaller crops alone its embedding stays far from zero.
- Phases start anywhere on the circle, since phases near zero add up to a bright spot in the
  corners. They are paired, so that magnitudes are kept.
- Contrast is set in red, green and blue instead of decorrelated colours, whose contrast may differ
  from ImageNet's.
- Crops lie within the image, and resampling skips no pixel.

Either way magnitudes are averaged over the reference images, relative to mid-grey and in
decorrelated colours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.baselines.maco import Renderer, fourier, maco, magnitudes, noise
from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.tensor.information import prediction_entropy
from heatproof.tensor.noise import Rng, generator
from heatproof.tensor.spectra import resample_crops, resize_magnitude

Count = Annotated[int, Field(ge=1)]
Compat = Literal["xplique"] | None
Side = Annotated[float, Field(gt=0, le=1)]

NADAM_RATE = 1.0
EPSILON = 1e-6  # a contrast that is not stretched
CONVERGED_NORM = 0.1  # of an image's embedding, relative to that at the start

OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {  # (n, D) -> (n,), to be minimized
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
    stretch: bool,
    steps: int,
    decay: float,
    seed: int,
    **rendering: Any,
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
    renderer = Renderer.of(rendering)
    size = renderer.size(model)
    if parametrisation == "fourier":
        spectrum = fourier(model.image_shape[0], decay, np_rng, size)
    else:
        magnitude = resize_magnitude(magnitudes(model, batches), model.width, size)
        spectrum = maco(magnitude, np_rng, learn_magnitude, size, renderer)
    leaves = [leaf.to(model.device).requires_grad_() for leaf in spectrum.start]
    optimiser = torch.optim.NAdam(leaves, lr=NADAM_RATE)
    rendered = renderer.render(spectrum, leaves)
    start = model.forward(_whole_image(rendered, model, stretch))[1].norm()
    trace = []
    still = 0
    for progress in np.linspace(0, 1, steps):
        with torch.enable_grad():
            rendered = renderer.render(spectrum, leaves)
            cropped = renderer.crop(rendered, np_rng, progress, (model.height, model.width))
            noisy = model.normalize(cropped + noise(np_rng, cropped.shape).to(cropped))
        values, gradient = objective_gradient(model, noisy.detach(), OBJECTIVES[objective])
        if not gradient.isfinite().all():
            raise HeatproofError(
                f"featurevis: the gradient of {model.name}'s embedding is not finite"
            )
        still += not gradient.any()
        optimiser.zero_grad()
        torch.autograd.backward([noisy], [gradient / len(noisy)])
        optimiser.step()
        trace.append(values.mean())
    image = _whole_image(renderer.render(spectrum, leaves), model, stretch)
    logits, embedding = model.forward(image)
    converged = embedding.norm() <= CONVERGED_NORM * start
    if still == steps:
        warnings.warn(
            f"featurevis: the embedding of {model.name} has no gradient, so the image was not "
            f"optimized; the norm of its embedding is {start:.3g}",
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
    cost=lambda arguments: (2, arguments["steps"] * Renderer.of(arguments).crops),
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
    contrast: Literal["rgb", "decorrelated"] | None = None,
    deviation: Annotated[float, Field(gt=0)] | None = None,
    phase_start: Literal["circle", "normal"] | None = None,
    gain_start: float | None = None,
    crop_sides: Literal["shrinking", "uniform"] | None = None,
    min_side: Side | None = None,
    max_side: Side | None = None,
    crops: Count | None = None,
    whole: Annotated[float, Field(ge=0, le=1)] | None = None,
    scale: Annotated[float, Field(ge=1, le=16)] | None = None,
    stretch: bool = False,
    steps: Count = 256,
    decay: Annotated[float, Field(ge=0)] = 1.8,
    seed: int = 0,
    compat: Compat = None,
) -> Tensor:
    """An image whose embedding is nearly zero, with the spectrum of the reference images.

    Args:
        objective: What is minimized: ``l2`` (squared norm), ``l1`` (mean of absolute values) or
            ``inverse`` (mean of −1/(a² + 0.1)).
        parametrisation: ``maco``, or ``fourier``, whose spectrum is free and starts as 1/f^decay.
        learn_magnitude: Give every magnitude of ``maco`` a free factor.
        contrast: Colours in which the contrast is fixed, before the sigmoid: ``rgb`` (default) or
            ``decorrelated``.
        deviation: Standard deviation of the pixels in these colours; 1 by default.
        phase_start: Where phases start: anywhere on the ``circle`` (default), or at ``normal``
            N(0, 1).
        gain_start: Where the free factors of ``learn_magnitude`` start; 1 by default.
        crop_sides: Sides of crops as fractions of the image: ``shrinking`` (default) around a mean
            that falls from max_side to min_side, or ``uniform`` between the two.
        min_side: Shortest side of a crop; 0.05 by default.
        max_side: Longest mean side of a crop; 0.5 by default.
        crops: Crops per step; 16 by default.
        whole: Fraction of the crops that are the whole image, 0.5 by default; 0 is MaCo, and
            ``crops=1, whole=1`` is cheapest.
        scale: Size of the optimized image relative to the model's; 2 by default.
        stretch: Stretch the values of the finished image from 0 to 1, as an image file may.
        steps: Steps of the optimizer.
        decay: Exponent of the initial spectrum of ``fourier``.
        seed: Seed of the optimization.
        compat: ``xplique`` draws the image as that library does: ``contrast=decorrelated,
            phase_start=normal, crops=32, whole=0``, 512 pixels wide, with phases that are not
            paired, and crops that are not antialiased and may reach beyond the image, where
            mid-grey is. What is given beside it has precedence.
    """
    return prepared["image"].to(x)


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
    image: Tensor, model: Model, stretch: bool
) -> Tensor:  # (C, h, w) -> (1, C, H, W) in the model's input space
    image = resample_crops(
        image.detach(), torch.full((1, 2), 0.5), torch.ones(1), (model.height, model.width)
    )
    if stretch:
        image = (image - image.min()) / (image.max() - image.min()).clamp(min=EPSILON)
    return model.normalize(image)
