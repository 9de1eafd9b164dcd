"""Images parametrised by their spectrum, in decorrelated colours, and crops of them."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows are decorrelated colours as (red, green, blue), scaled by their standard deviation in
# ImageNet: Lucid's matrix, also used by MaCo's code.
COLOURS = (
    (0.56282854, 0.58447580, 0.58447580),
    (0.19482528, 0.0, -0.19482528),
    (0.04329450, -0.10823626, 0.06494176),
)
VARIANCE_EPSILON = 1e-8  # so that constants stay constant


def recorrelated(decorrelated_colours: Tensor) -> Tensor:  # (..., C, H, W) -> same
    """Convert decorrelated colours to red, green and blue; other channels stay as they are."""
    return _mixed(torch.tensor(COLOURS, dtype=torch.float64).T, decorrelated_colours)


def decorrelated(colours: Tensor) -> Tensor:  # (..., C, H, W) -> same
    """Convert red, green and blue to decorrelated colours; the inverse of `recorrelated`."""
    return _mixed(torch.tensor(COLOURS, dtype=torch.float64).T.inverse(), colours)


def _mixed(matrix: Tensor, x: Tensor) -> Tensor:
    if x.shape[-3] != len(matrix):
        return x
    return torch.einsum("ij,...jhw->...ihw", matrix.to(x), x)


def standardised(x: Tensor) -> Tensor:
    """Shift and scale a tensor to mean 0 and variance 1; a constant tensor becomes 0."""
    x = x - x.mean()
    return x * (x.square().mean() + VARIANCE_EPSILON).rsqrt()


def resize_magnitude(
    magnitude: Tensor, width: int, size: tuple[int, int]
) -> Tensor:  # (C, H, width // 2 + 1) -> (C, size[0], size[1] // 2 + 1)
    """Interpolate the magnitudes of an image of some width to another size, in cycles per pixel."""
    bins, half = magnitude.shape[1:]
    rows = _between(torch.fft.fftfreq(size[0], dtype=torch.float64) * bins, bins)
    columns = _between(
        (torch.fft.rfftfreq(size[1], dtype=torch.float64) * width).clamp(max=half - 1), half
    )
    return rows.to(magnitude) @ magnitude @ columns.T.to(magnitude)


def _between(positions: Tensor, bins: int) -> Tensor:  # (n,) -> (n, bins)
    """Return the matrix of linear interpolation between bins, which wrap around."""
    below = positions.floor()
    fraction = (positions - below)[:, None]
    first, second = (
        torch.nn.functional.one_hot((below.long() + step) % bins, bins).double() for step in (0, 1)
    )
    return (1 - fraction) * first + fraction * second


def pair_conjugates(phase: Tensor) -> Tensor:  # (C, H, W // 2 + 1), H and W even -> same
    """Make phases those of a real image.

    Coefficients of the half spectrum that are conjugates of each other get opposite phases;
    otherwise half of their magnitude would be lost in the image. The four coefficients that are
    their own conjugates are left unchanged.
    """
    size = phase.shape[-2]
    edges = phase[..., [0, -1]]
    upper = (torch.arange(size, device=phase.device) <= size // 2)[:, None]
    edges = torch.where(upper, edges, -edges.flip(-2).roll(1, -2))
    return torch.cat([edges[..., :1], phase[..., 1:-1], edges[..., 1:]], -1)


def power_law_magnitude(size: tuple[int, int], decay: float) -> Tensor:  # (H, W // 2 + 1)
    """Return the magnitudes 1 / f^decay, constant below one cycle per image of (H, W) pixels."""
    height, width = size
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    return frequency.clamp(min=1 / max(size)) ** -decay


def resample_crops(
    image: Tensor, centre: Tensor, side: Tensor, size: tuple[int, int], *, pointwise: bool = False
) -> Tensor:
    """Resample crops of an image, of its shape, bilinearly.

    Args:
        image: ``(C, H, W)``.
        centre: Centres of the crops (down, right) as fractions of the image, ``(n, 2)``.
        side: Sides of the crops as fractions of the image, ``(n,)``.
        size: Height and width of the result in pixels.
        pointwise: Whether the crop's corners are pixels, as in TensorFlow's ``crop_and_resize``:
            without antialiasing, and zero beyond the image. By default crops are antialiased, and
            the image's border continues beyond it.

    Returns:
        Crops ``(n, C, *size)``.
    """
    matrix = _pointwise_crop_matrix if pointwise else _crop_matrix
    rows = matrix(centre[:, 0], side, size[0], image.shape[1]).to(image)
    columns = matrix(centre[:, 1], side, size[1], image.shape[2]).to(image)
    return rows[:, None] @ image @ columns[:, None].mT


def _crop_matrix(
    centre: Tensor, side: Tensor, size: int, pixels: int
) -> Tensor:  # (n, size, pixels), rows sum to one
    steps = (torch.arange(size, dtype=torch.float64) + 0.5) / size - 0.5
    positions = (centre.double()[:, None] + side.double()[:, None] * steps) * pixels - 0.5
    reach = (side.double() * pixels / size).clamp(min=1)[:, None, None]
    weights = (1 - (positions[..., None] - torch.arange(pixels)).abs() / reach).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


def _pointwise_crop_matrix(
    centre: Tensor, side: Tensor, size: int, pixels: int
) -> Tensor:  # (n, size, pixels), rows sum to one within the image and to zero beyond it
    steps = torch.linspace(-0.5, 0.5, size, dtype=torch.float64)
    positions = (centre.double()[:, None] + side.double()[:, None] * steps) * (pixels - 1)
    weights = (1 - (positions[..., None] - torch.arange(pixels)).abs()).clamp(min=0)
    within = (positions >= 0) & (positions <= pixels - 1)
    return weights * within[..., None]
