"""Baselines that shuffle the pixels of the image or the components of its spectrum.

All channels of an image are shuffled in the same order.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.baselines.colours import value_range
from heatproof.baselines.fills import Cells, cell_centers, enlarged
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import nearest

Compat = Literal["xplique"] | None
CLIPPING_ROUNDS = 20  # the error shrinks by the fraction of clipped values in each


@baseline("permutation", group="local", stochastic=True)
def permutation(x: Tensor, *, model: Model | None, rng: Rng, compat: Compat = None) -> Tensor:
    """The pixels of each image in random order.

    ``compat=xplique`` uses the same order for all images.
    """
    return permuted(x, _draw(rng, "permutation", x.shape[2:].numel(), compat).argsort(stable=True))


@baseline("local-permutation", group="local", stochastic=True)
def local_permutation(
    x: Tensor, *, model: Model | None, rng: Rng, cells: Cells = 8, compat: Compat = None
) -> Tensor:
    """The pixels of each cell of an 8×8 grid in random order.

    ``compat=xplique`` shuffles one value per grid cell, in the same order for all images.
    """
    if compat == "xplique":
        order = _draw(rng, "local-permutation", cells**2, compat).argsort(stable=True)
        return enlarged(permuted(cell_centers(x, cells), order), *x.shape[2:])
    rows, columns = (nearest(side, min(cells, side)) for side in x.shape[2:])
    cell_of_pixel = (rows[:, None] * cells + columns).flatten()
    draw = _draw(rng, "local-permutation", x.shape[2:].numel())
    return permuted(x, order_within(cell_of_pixel, draw))


@baseline("scramble-magnitude", group="spectral", version=2, stochastic=True)
def scramble_magnitude(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    low: float | None = None,
    high: float | None = None,
    compat: Compat = None,
) -> Tensor:
    """The image with the magnitudes of its spectrum in random order.

    The mean colour stays the same. Values are clipped to the model's input range, or to ``low``
    and ``high``. ``compat=xplique`` transforms over width and channels, uses one order for all
    images and frequencies, and returns absolute values without clipping.
    """
    return _scrambled_in_range(x, "magnitude", model, rng, low, high, compat)


@baseline("scramble-phase", group="spectral", version=2, stochastic=True)
def scramble_phase(
    x: Tensor,
    *,
    model: Model | None,
    rng: Rng,
    low: float | None = None,
    high: float | None = None,
    compat: Compat = None,
) -> Tensor:
    """The image with the phases of its spectrum in random order.

    The mean colour stays the same. Values are clipped to the model's input range, or to ``low``
    and ``high``. ``compat=xplique`` transforms over width and channels, uses one order for all
    images and frequencies, and returns absolute values without clipping.
    """
    return _scrambled_in_range(x, "phase", model, rng, low, high, compat)


def _scrambled_in_range(
    x: Tensor,
    part: Literal["magnitude", "phase"],
    model: Model | None,
    rng: Rng,
    low: float | None,
    high: float | None,
    compat: Compat,
) -> Tensor:
    name = f"scramble-{part}"
    image = scrambled(x, part, _spectral_order(x, rng, name, compat), compat)
    if compat == "xplique":
        return image
    return clipped_around_mean(image, *value_range(name, x, model, low, high))


def permuted(x: Tensor, order: Tensor) -> Tensor:  # (B, C, H, W), (B, H·W) or (H·W,) -> like x
    """Move the pixel at index ``order[j]`` to index ``j``."""
    index = order.expand(len(x), -1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, index).reshape(x.shape)


def order_within(group: Tensor, draw: Tensor) -> Tensor:  # (P,), (B, P) in [0, 1) -> (B, P)
    """Return random orders that move pixels only within their group."""
    group = group.to(draw.device)
    shuffled = (group + draw.double()).argsort(stable=True)
    return torch.empty_like(shuffled).index_copy_(1, group.argsort(stable=True), shuffled)


def mirrored_order(draw: Tensor) -> Tensor:  # (B, H, W) in [0, 1) -> (B, H·W)
    """Return random orders of the frequencies that keep the image real.

    The mean stays in its place, and mirrored frequencies, k and −k, stay mirrored. The other
    frequencies that are their own mirror (Nyquist frequencies of even sides) are only exchanged
    with each other.
    """
    height, width = draw.shape[1:]
    frequency = torch.arange(height * width, device=draw.device)
    mirror = frequency.reshape(height, width).flip(0, 1).roll((1, 1), (0, 1)).flatten()
    nyquist = frequency[(frequency == mirror) & (frequency > 0)]
    first = frequency[frequency < mirror]
    second = mirror[first]
    draw = draw.flatten(1)
    source = first[draw[:, first].argsort(stable=True)]
    source = torch.where(draw[:, second] < 0.5, source, mirror[source])
    order = torch.zeros_like(draw, dtype=torch.long)
    order[:, nyquist] = nyquist[draw[:, nyquist].argsort(stable=True)]
    order[:, first] = source
    order[:, second] = mirror[source]
    return order


def scrambled(
    x: Tensor, component: Literal["magnitude", "phase"], order: Tensor, compat: Compat = None
) -> Tensor:
    """Reorder the magnitudes or phases of the spectrum and transform back to an image.

    Args:
        x: Images ``(B, C, H, W)``.
        component: Which part of the spectrum is reordered.
        order: Indices ``(B, H·W)``, or ``(H·W,)`` for one order for all images.
        compat: ``"xplique"`` follows Xplique's axes and absolute values.

    Returns:
        Images of the shape of ``x``.
    """
    axes = (3, 1) if compat == "xplique" else (2, 3)
    spectrum = torch.fft.fft2(x.double(), dim=axes)
    magnitude = spectrum.abs()
    phase = spectrum.angle()
    if component == "magnitude":
        magnitude = permuted(magnitude, order)
    else:
        phase = permuted(phase, order)
    image = torch.fft.ifft2(torch.polar(magnitude, phase), dim=axes)
    return (image.abs() if compat == "xplique" else image.real).to(x)


def clipped_around_mean(x: Tensor, low: Tensor, high: Tensor) -> Tensor:  # (B, C, H, W) -> same
    """Clip images to a range without changing the mean of any channel.

    The result is the nearest such image by squared distance: the image plus a constant per channel,
    clipped. It is unchanged if it is already within the range.
    """
    if ((x >= low) & (x <= high)).all():
        return x
    image = x.double()
    mean = image.mean((2, 3), keepdim=True)
    low, high = low.to(image), high.to(image)
    shift = torch.zeros_like(mean)
    for _ in range(CLIPPING_ROUNDS):
        clipped = (image + shift).clamp(low, high)
        shift = shift + mean - clipped.mean((2, 3), keepdim=True)
    return clipped.to(x)


def _spectral_order(x: Tensor, rng: Rng, name: str, compat: Compat) -> Tensor:
    draw = _draw(rng, name, x.shape[2:].numel(), compat)
    if compat == "xplique":
        return draw.argsort(stable=True)
    return mirrored_order(draw.reshape(-1, *x.shape[2:]))


def _draw(rng: Rng, name: str, count: int, compat: Compat = None) -> Tensor:
    """Draw ``(B, count)`` uniform numbers, or ``(count,)`` for all images with ``compat``."""
    if compat == "xplique":
        return rng.once(f"baseline {name}", (count,))
    return rng.uniform(f"baseline {name}", (count,))
