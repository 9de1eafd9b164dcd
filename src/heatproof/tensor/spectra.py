"""Images by their spectrum: colours made independent, magnitudes of other images, and a look at any part of the result."""

from __future__ import annotations

import torch
from torch import Tensor

# TrainBatch are independent colours as (red, green, blue), scaled by how much of each there is in ImageNet: Lucid's matrix, also in MaCo's code.
COLOURS = (
    (0.56282854, 0.58447580, 0.58447580),
    (0.19482528, 0.0, -0.19482528),
    (0.04329450, -0.10823626, 0.06494176),
)
EPSILON = 1e-8  # added to a variance, so that what is constant stays so


def recorrelated(independent: Tensor) -> Tensor:  # (..., 3, H, W) -> same
    """Independent colours as red, green and blue."""
    return _mixed(torch.tensor(COLOURS, dtype=torch.float64).T, independent)


def decorrelated(colours: Tensor) -> Tensor:  # (..., 3, H, W) -> same
    """Red, green and blue as independent colours; `recorrelated` takes it back."""
    return _mixed(torch.tensor(COLOURS, dtype=torch.float64).T.inverse(), colours)


def _mixed(matrix: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("ij,...jhw->...ihw", matrix.to(x), x)


def standardised(x: Tensor) -> Tensor:
    """Mean zero and variance one, over everything; zeros where all is equal."""
    x = x - x.mean()
    return x * (x.square().mean() + EPSILON).rsqrt()


def stretched(
    magnitude: Tensor, size: int
) -> Tensor:  # (C, H, H // 2 + 1) -> (C, size, size // 2 + 1)
    """The magnitudes of a larger image that is alike pixel by pixel: those of a square image, linear in cycles per pixel."""
    bins, half = magnitude.shape[1:]
    rows = _between(torch.fft.fftfreq(size, dtype=torch.float64) * bins, bins)
    columns = _between(
        (torch.fft.rfftfreq(size, dtype=torch.float64) * bins).clamp(max=half - 1), half
    )
    return rows.to(magnitude) @ magnitude @ columns.T.to(magnitude)


def _between(places: Tensor, bins: int) -> Tensor:  # (n,) -> (n, bins)
    """Linear interpolation between bins, the last of which is followed by the first."""
    below = places.floor()
    share = (places - below)[:, None]
    first, second = (
        torch.nn.functional.one_hot((below.long() + step) % bins, bins).double() for step in (0, 1)
    )
    return (1 - share) * first + share * second


def paired(phase: Tensor) -> Tensor:  # (C, S, S // 2 + 1), S even -> same
    """Phases that a real image can have: opposite where two coefficients of the half spectrum are conjugates of each other.

    Without this half the magnitude of such pairs would get lost on the way to the image. The four that are their own conjugates are left.
    """
    size = phase.shape[-2]
    edges = phase[..., [0, -1]]
    own = (torch.arange(size, device=phase.device) <= size // 2)[:, None]
    edges = torch.where(own, edges, -edges.flip(-2).roll(1, -2))
    return torch.cat([edges[..., :1], phase[..., 1:-1], edges[..., 1:]], -1)


def falling(size: int, decay: float) -> Tensor:  # (size, size // 2 + 1)
    """The magnitude 1 / f^decay, flat below one cycle per image."""
    frequency = torch.hypot(torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None])
    return frequency.clamp(min=1 / size) ** -decay


def look(
    image: Tensor, centre: Tensor, side: Tensor, size: int
) -> Tensor:  # (C, H, W), (n, 2), (n,) -> (n, C, size, size)
    """Squares of an image at `size` px: bilinear, over as many pixels as fall into one; centre (down, right) and side as shares."""
    rows, columns = (
        _seen(centre[:, axis], side, size, image.shape[1 + axis]).to(image) for axis in (0, 1)
    )
    return rows[:, None] @ image @ columns[:, None].mT


def _seen(
    centre: Tensor, side: Tensor, size: int, pixels: int
) -> Tensor:  # (n, size, pixels), rows sum to one
    steps = (torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5
    places = (centre.double()[:, None] + side.double()[:, None] * steps) * pixels - 0.5
    reach = (side.double() * pixels / size).clamp(min=1)[:, None, None]
    weights = (1 - (places[..., None] - torch.arange(pixels)).abs() / reach).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)
