"""Images that are optimized by their spectrum, and crops of them (MaCo, Fel et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.models.model import Model
from heatproof.tensor.spectra import (
    decorrelated,
    pair_conjugates,
    power_law_magnitude,
    recorrelated,
    resample_crops,
    standardised,
)

GREY = 0.5
CROP_SIDE_SPREAD = 0.05
CROP_CENTRE_SPREAD = 0.15
NOISE_SIZE = 0.04  # standard deviation of normal and width of uniform noise, for images in [0, 1]


class Renderer(NamedTuple):
    """How a spectrum becomes an image, and which crops of it a network sees; see `featurevis`."""

    contrast: Literal["rgb", "decorrelated"]
    deviation: float
    phase_start: Literal["circle", "normal"]
    gain_start: float
    crop_sides: Literal["shrinking", "uniform"]
    min_side: float
    max_side: float
    crops: int
    whole: float
    scale: float | None
    paired: bool
    inside: bool

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Renderer:
        """Return the renderer of a call, whose arguments that are None are those of ``compat``."""
        known = RENDERERS[arguments["compat"]]
        chosen = {name: arguments.get(name) for name in cls._fields}
        return known._replace(**{k: value for k, value in chosen.items() if value is not None})

    def size(self, model: Model) -> tuple[int, int]:
        """Return the height and width of the image, both even."""
        if self.scale is None:
            return XPLIQUE_SIDE, XPLIQUE_SIDE
        return 2 * round(self.scale * model.height / 2), 2 * round(self.scale * model.width / 2)

    def render(self, spectrum: Spectrum, leaves: list[Tensor]) -> Tensor:  # (C, H, W) in (0, 1)
        """Compute the image of a spectrum."""
        pixels = torch.fft.irfft2(spectrum.coefficients(*leaves), s=spectrum.size)
        if self.contrast == "decorrelated":
            return recorrelated(self.deviation * standardised(pixels)).sigmoid()
        return (self.deviation * standardised(recorrelated(pixels))).sigmoid()

    def draw_crops(
        self, np_rng: np.random.Generator, progress: float
    ) -> tuple[Tensor, Tensor]:  # (n, 2), (n,)
        """Draw centres and sides of crops, as fractions; the first are the whole image.

        Args:
            np_rng: The source of random numbers.
            progress: From 0 at the first step to 1 at the last.
        """
        if self.crop_sides == "uniform":
            drawn = torch.from_numpy(np_rng.random(self.crops, dtype=np.float32))
            sides = self.min_side + (self.max_side - self.min_side) * drawn
        else:
            mean = self.max_side + (self.min_side - self.max_side) * progress
            sides = normal(np_rng, (self.crops,)).mul(CROP_SIDE_SPREAD).add(mean)
            sides = sides.clamp(self.min_side, 1)
        centres = normal(np_rng, (self.crops, 2)).mul(CROP_CENTRE_SPREAD).add(0.5)
        whole = round(self.whole * self.crops)
        sides[:whole], centres[:whole] = 1, 0.5
        if self.inside:
            half = sides[:, None] / 2
            centres = torch.maximum(torch.minimum(centres, 1 - half), half)
        return centres, sides

    def crop(
        self, image: Tensor, np_rng: np.random.Generator, progress: float, size: tuple[int, int]
    ) -> Tensor:  # (C, H, W) -> (n, C, *size)
        """Cut crops from an image at random; mid-grey is beyond it."""
        centres, sides = self.draw_crops(np_rng, progress)
        if self.inside:
            return resample_crops(image, centres, sides, size)
        return resample_crops(image - GREY, centres, sides, size, pointwise=True) + GREY


XPLIQUE_SIDE = 512
OWN_RENDERER = Renderer(
    contrast="rgb",
    deviation=1,
    phase_start="circle",
    gain_start=1,
    crop_sides="shrinking",
    min_side=0.05,
    max_side=0.5,
    crops=16,
    whole=0.5,
    scale=2,
    paired=True,
    inside=True,
)
RENDERERS: dict[str | None, Renderer] = {
    None: OWN_RENDERER,
    "xplique": OWN_RENDERER._replace(
        contrast="decorrelated",
        phase_start="normal",
        crops=32,
        whole=0,
        scale=None,
        paired=False,
        inside=False,
    ),
}


class Spectrum(NamedTuple):
    """Parameters to optimise, and the complex half spectrum that they define."""

    start: list[Tensor]
    coefficients: Callable[..., Tensor]  # (*parameters) -> (C, H, W // 2 + 1)
    size: tuple[int, int]  # height and width of the image


def maco(
    magnitude: Tensor,
    np_rng: np.random.Generator,
    learn_magnitude: bool,
    size: tuple[int, int],
    renderer: Renderer,
) -> Spectrum:
    """Return a spectrum with free phases, and fixed magnitudes or a free factor for each."""
    initial_phase = torch.zeros(())
    if renderer.phase_start == "circle":
        turns = torch.from_numpy(np_rng.random(magnitude.shape, dtype=np.float32))
        initial_phase = turns * 2 * torch.pi
    phase = normal(np_rng, magnitude.shape)

    def coefficients(phase: Tensor, *gain: Tensor) -> Tensor:
        phase = initial_phase.to(phase) + standardised(phase)
        if renderer.paired:
            phase = pair_conjugates(phase)
        radius = magnitude.to(phase) * (gain[0] if gain else 1)
        return torch.complex(radius * phase.cos(), radius * phase.sin())

    gain = torch.full_like(phase, renderer.gain_start)
    return Spectrum([phase, gain] if learn_magnitude else [phase], coefficients, size)


def fourier(
    channels: int, decay: float, np_rng: np.random.Generator, size: tuple[int, int]
) -> Spectrum:
    """Return a spectrum of free complex coefficients, which are weighted by 1 / f^decay."""
    weights = power_law_magnitude(size, decay).expand(channels, -1, -1)
    start = [normal(np_rng, weights.shape) for _ in range(2)]
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


def noise(np_rng: np.random.Generator, shape: torch.Size) -> Tensor:
    """Draw the sum of normal and uniform noise that is added to crops."""
    return NOISE_SIZE * (
        normal(np_rng, shape) + torch.from_numpy(np_rng.random(shape, dtype=np.float32)) - 0.5
    )


def normal(np_rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers."""
    return torch.from_numpy(np_rng.standard_normal(shape, dtype=np.float32))
