"""Linear imputation: removed pixels as weighted means of their neighbours.

Direct neighbours have the weight 1/6 and diagonal ones 1/12; pixels beyond the border do not count.
This gives one linear system per image. It is solved by conjugate gradients, preconditioned by a
cycle through coarser and coarser grids, of which each has half the pixels per side.

The loops over pixels are compiled by numba, and images are solved side by side in threads. No sum
depends on the number of threads, the instructions of the processor, or the rest of a batch.

Arrays have a margin of one pixel, which is zero, so pixels at the border need no special case.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.tensor.compiled import compiled

# Relative to the range of a channel: the largest correction times the fraction of the error that a
# cycle leaves. The final error is below 1e-5.
TOLERANCE = 3e-7
EXACT_RESIDUALS_BELOW = 1e-3  # corrections, relative to the range
MAX_CYCLES = 100  # four to ten are usual
COARSEST_SIDE = 4

TWO = np.float32(2)
HALF = np.float32(0.5)


class Level(NamedTuple):
    """The equations of the unknown pixels of one grid: ``diagonal``·u − neighbours(u) = rhs.

    The matrix is symmetric, so each weight between two pixels is stored once, at the pixel above
    the other or to the left of it. On the finest grid weights are 2 and 1, and are not stored.
    """

    weights: np.ndarray  # (4, h, w): to the right, below, below right, below left
    free: np.ndarray  # (h, w): 1 for unknown pixels, else 0
    diagonal: np.ndarray  # (h, w): zero for known pixels
    damped: np.ndarray  # (h, w): the diagonal, where necessary larger, so that sweeps converge
    relax: np.ndarray  # (h, w): 1 / damped; zero for known pixels


@compiled
def sum_others(weights: np.ndarray, u: np.ndarray, i: int, out: np.ndarray) -> None:
    """Sum the neighbours beside and below each pixel of a row, with their weights."""
    row, below = u[i], u[i + 1]
    if weights.shape[0] == 0:
        for j in range(out.size):
            out[j] = below[j] + below[j + 2] + TWO * (below[j + 1] + row[j] + row[j + 2])
        return
    beside, straight, right, left = weights[0, i], weights[1, i], weights[2, i], weights[3, i]
    for j in range(out.size):
        out[j] = (
            beside[j + 1] * row[j + 2]
            + beside[j] * row[j]
            + straight[j + 1] * below[j + 1]
            + right[j + 1] * below[j + 2]
            + left[j + 1] * below[j]
        )


@compiled
def add_above(weights: np.ndarray, u: np.ndarray, i: int, out: np.ndarray) -> None:
    """Add the neighbours above each pixel of a row, with their weights."""
    above = u[i - 1]
    if weights.shape[0] == 0:
        for j in range(out.size):
            out[j] += above[j] + above[j + 2] + TWO * above[j + 1]
        return
    straight, left, right = weights[1, i - 1], weights[2, i - 1], weights[3, i - 1]
    for j in range(out.size):
        out[j] += straight[j + 1] * above[j + 1] + left[j] * above[j] + right[j + 2] * above[j + 2]


@compiled
def descend(level: Level, u: np.ndarray, rhs: np.ndarray, rest: np.ndarray) -> None:
    """Sweep downwards from zero, and compute what is left of the right-hand side."""
    height, width = u.shape[1] - 2, u.shape[2] - 2
    total = np.empty(width, np.float32)
    for c in range(u.shape[0]):
        for i in range(1, height + 1):
            row, right, relax = u[c, i, 1:], rhs[c, i, 1:], level.relax[i, 1:]
            for j in range(width):
                total[j] = right[j]
            add_above(level.weights, u[c], i, total)
            for j in range(width):
                row[j] = relax[j] * total[j]
        for i in range(1, height + 1):
            # The sweep has balanced each pixel with those above it, up to the damping.
            sum_others(level.weights, u[c], i, total)
            row, left, free = u[c, i, 1:], rest[c, i, 1:], level.free[i, 1:]
            damped, diagonal = level.damped[i, 1:], level.diagonal[i, 1:]
            for j in range(width):
                left[j] = free[j] * total[j] + (damped[j] - diagonal[j]) * row[j]


@compiled
def sweep(level: Level, u: np.ndarray, rhs: np.ndarray, upwards: bool) -> None:
    """Correct row by row, where each row sees the new values of the one before.

    A sweep upwards is the transpose of one downwards, so that a cycle with both is symmetric.
    """
    height, width = u.shape[1] - 2, u.shape[2] - 2
    total = np.empty(width, np.float32)
    for c in range(u.shape[0]):
        for k in range(1, height + 1):
            i = height + 1 - k if upwards else k
            sum_others(level.weights, u[c], i, total)
            add_above(level.weights, u[c], i, total)
            row, right = u[c, i, 1:], rhs[c, i, 1:]
            relax, diagonal = level.relax[i, 1:], level.diagonal[i, 1:]
            for j in range(width):
                row[j] += relax[j] * (right[j] + total[j] - diagonal[j] * row[j])


@compiled
def multiply(level: Level, u: np.ndarray, out: np.ndarray) -> None:
    """Multiply by the matrix."""
    height, width = u.shape[1] - 2, u.shape[2] - 2
    for c in range(u.shape[0]):
        for i in range(1, height + 1):
            row, total = u[c, i, 1:], out[c, i, 1 : width + 1]
            sum_others(level.weights, u[c], i, total)
            add_above(level.weights, u[c], i, total)
            free, diagonal = level.free[i, 1:], level.diagonal[i, 1:]
            for j in range(width):
                total[j] = diagonal[j] * row[j] - free[j] * total[j]


@compiled
def restrict(fine: np.ndarray, coarse: np.ndarray) -> None:
    """Sum planes to the coarser grid: the transpose of `interpolate`.

    The coarser grid has every other pixel of every other row, plus one beyond an even side.
    """
    height, width = fine.shape[1] - 2, fine.shape[2] - 2
    total = np.zeros(2 * coarse.shape[2], np.float32)  # of three rows, between zeros
    inner = total[1 : width + 1]
    for c in range(fine.shape[0]):
        for i in range(coarse.shape[1] - 2):
            above, below = fine[c, 2 * i, 1:], fine[c, min(2 * i + 2, height + 1), 1:]
            row = fine[c, min(2 * i + 1, height + 1), 1:]
            for j in range(width):
                inner[j] = row[j] + HALF * (above[j] + below[j])
            out = coarse[c, i + 1, 1:-1]
            for j in range(out.size):
                out[j] = total[2 * j + 1] + HALF * (total[2 * j] + total[2 * j + 2])


@compiled
def interpolate(level: Level, u: np.ndarray, coarse: np.ndarray) -> None:
    """Add the correction of the coarser grid, bilinear between its pixels, to unknown pixels."""
    height, width = u.shape[1] - 2, u.shape[2] - 2
    above = np.zeros(2 * coarse.shape[2], np.float32)
    below = np.zeros(2 * coarse.shape[2], np.float32)
    for c in range(u.shape[0]):
        for i in range(coarse.shape[1] - 2):
            line = coarse[c, i + 1, 1:]
            for j in range(line.size - 1):
                below[2 * j] = line[j]
                below[2 * j + 1] = HALF * (line[j] + line[j + 1])
            if i > 0:
                row, free = u[c, 2 * i, 1:], level.free[2 * i, 1:]
                for j in range(width):
                    row[j] += free[j] * (HALF * (above[j] + below[j]))
            if 2 * i < height:
                row, free = u[c, 2 * i + 1, 1:], level.free[2 * i + 1, 1:]
                for j in range(width):
                    row[j] += free[j] * below[j]
            above, below = below, above


@compiled
def settle(level: Level, u: np.ndarray, rhs: np.ndarray) -> None:
    """Solve the coarsest grid nearly, by sweeps."""
    u[:] = 0
    for _ in range(8):
        sweep(level, u, rhs, False)
        sweep(level, u, rhs, True)


@compiled
def follow(
    correction: np.ndarray, rest: np.ndarray, along: np.ndarray, energy: np.ndarray
) -> np.ndarray:
    """Choose the next direction, conjugate to those before; return the largest corrections."""
    height, width = along.shape[1] - 2, along.shape[2] - 2
    sizes = np.zeros(len(along))
    for c in range(len(along)):
        size = np.zeros(width, np.float32)
        total = np.zeros(width, np.float32)
        for i in range(1, height + 1):
            change, left = correction[c, i, 1:], rest[c, i, 1:]
            for j in range(width):
                size[j] = max(size[j], abs(change[j]))
                total[j] += change[j] * left[j]
        product = np.float64(0)
        for j in range(width):
            sizes[c] = max(sizes[c], size[j])
            product += total[j]
        ratio = np.float32(product / energy[c] if energy[c] > 0 else 0)
        energy[c] = product
        for i in range(1, height + 1):
            change, row = correction[c, i, 1:], along[c, i, 1:]
            for j in range(width):
                row[j] = change[j] + ratio * row[j]
    return sizes


@compiled
def step(
    level: Level,
    u: np.ndarray,
    rest: np.ndarray,
    along: np.ndarray,
    energy: np.ndarray,
    change: np.ndarray,
) -> None:
    """Go along the direction to where the error is smallest; ``change`` is overwritten."""
    height, width = u.shape[1] - 2, u.shape[2] - 2
    multiply(level, along, change)
    for c in range(u.shape[0]):
        total = np.zeros(width, np.float32)
        for i in range(1, height + 1):
            product, row = change[c, i, 1:], along[c, i, 1:]
            for j in range(width):
                total[j] += product[j] * row[j]
        curvature = np.float64(0)
        for j in range(width):
            curvature += total[j]
        length = np.float32(energy[c] / curvature if curvature > 0 else 0)
        for i in range(1, height + 1):
            product, row = change[c, i, 1:], along[c, i, 1:]
            filled, left = u[c, i, 1:], rest[c, i, 1:]
            for j in range(width):
                filled[j] += length * row[j]
            for j in range(width):
                left[j] -= length * product[j]


@compiled
def exact_residual(level: Level, u: np.ndarray, out: np.ndarray) -> None:
    """Compute the residual of the finest grid in double precision.

    In single precision, the residual of values near one is noise of 1e-7 per pixel, which a large
    hole accumulates to 3e-5.
    """
    height, width = u.shape[1] - 2, u.shape[2] - 2
    for c in range(u.shape[0]):
        for i in range(1, height + 1):
            above, row, below = u[c, i - 1], u[c, i], u[c, i + 1]
            diagonal, free, left = level.diagonal[i, 1:], level.free[i, 1:], out[c, i, 1:]
            for j in range(width):
                corners = (np.float64(above[j]) + above[j + 2]) + (
                    np.float64(below[j]) + below[j + 2]
                )
                sides = (np.float64(above[j + 1]) + below[j + 1]) + (
                    np.float64(row[j]) + row[j + 2]
                )
                left[j] = free[j] * (corners + 2 * sides - np.float64(diagonal[j]) * row[j + 1])


@compiled
def copy_known(
    image: np.ndarray, removed: np.ndarray, first: np.ndarray, u: np.ndarray
) -> np.ndarray:
    """Copy the known pixels of an image to u, relative to the first one; return their range."""
    extent = np.zeros(len(image))
    for c in range(len(image)):
        lowest = highest = first[c]
        for i in range(removed.shape[0]):
            for j in range(removed.shape[1]):
                if not removed[i, j]:
                    value = image[c, i, j]
                    lowest = min(lowest, value)
                    highest = max(highest, value)
                    u[c, i + 1, j + 1] = value - first[c]
        extent[c] = highest - lowest
    return extent


@compiled
def copy_filled(u: np.ndarray, removed: np.ndarray, first: np.ndarray, image: np.ndarray) -> None:
    """Copy the removed pixels of u, which are relative to the first known one, to the image."""
    for c in range(len(image)):
        for i in range(removed.shape[0]):
            for j in range(removed.shape[1]):
                if removed[i, j]:
                    image[c, i, j] = u[c, i + 1, j + 1] + first[c]


@compiled
def finest_level(removed: np.ndarray) -> Level:
    """Return the equations of the pixels themselves, times twelve."""
    height, width = removed.shape
    shape = (height + 2, width + 2)
    free = np.zeros(shape, np.float32)
    diagonal = np.zeros(shape, np.float32)
    relax = np.zeros(shape, np.float32)
    for i in range(height):
        rows = 4 - (i == 0) - (i == height - 1)
        for j in range(width):
            if removed[i, j]:
                columns = 4 - (j == 0) - (j == width - 1)
                free[i + 1, j + 1] = 1
                diagonal[i + 1, j + 1] = rows * columns - 4
                relax[i + 1, j + 1] = 1 / max(rows * columns - 4, 1)
    return Level(np.zeros((0, 0, 0), np.float32), free, diagonal, diagonal, relax)


@compiled
def level_of(products: np.ndarray) -> Level:
    """Read a matrix from its products with every ninth pixel.

    Args:
        products: ``(9, h, w)``, the matrix times all pixels ``i``, ``j`` of equal ``i % 3`` and
            ``j % 3``, none of which have a common neighbour.
    """
    _, height, width = products.shape
    weights = np.zeros((4, height, width), np.float32)
    free = np.zeros((height, width), np.float32)
    diagonal = np.zeros((height, width), np.float32)
    damped = np.zeros((height, width), np.float32)
    relax = np.zeros((height, width), np.float32)
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            own = products[i % 3 * 3 + j % 3, i, j]
            if own <= 0:
                continue
            total = np.float32(0)
            for k in range(9):
                total += abs(products[k, i, j])
            free[i, j] = 1
            diagonal[i, j] = own
            damped[i, j] = max(own, HALF * total)  # by Gershgorin, a sweep never overshoots
            relax[i, j] = 1 / damped[i, j]
            right, left, below = (j + 1) % 3, (j - 1) % 3, (i + 1) % 3 * 3
            weights[0, i, j] = -products[i % 3 * 3 + right, i, j]
            weights[1, i, j] = -products[below + j % 3, i, j]
            weights[2, i, j] = -products[below + right, i, j]
            weights[3, i, j] = -products[below + left, i, j]
    return Level(weights, free, diagonal, damped, relax)


def coarser_level(level: Level) -> Level:
    """Return the equations of corrections that are bilinear between the pixels of a coarser grid.

    Corrections are zero for known pixels.
    """
    height, width = level.diagonal.shape
    units = np.zeros((9, (height - 2) // 2 + 3, (width - 2) // 2 + 3), np.float32)
    for row in range(3):
        for column in range(3):
            units[3 * row + column, row::3, column::3] = 1
    units[:, [0, -1]] = 0
    units[:, :, [0, -1]] = 0
    fine = np.zeros((9, height, width), np.float32)
    interpolate(level, fine, units)
    products = np.zeros_like(fine)
    multiply(level, fine, products)
    restrict(products, units)
    return level_of(units)


class Multigrid:
    """The equations of one image on a hierarchy of grids."""

    def __init__(self, removed: np.ndarray, channels: int) -> None:
        """Set up the equations of all grids for a mask (H, W) of removed pixels."""
        self.levels = [finest_level(removed)]
        while max(self.levels[-1].diagonal.shape) - 2 > COARSEST_SIDE:
            self.levels.append(coarser_level(self.levels[-1]))
        shapes = [(channels, *level.diagonal.shape) for level in self.levels]
        self.right, self.corrections, self.rest = (
            [np.zeros(shape, np.float32) for shape in shapes] for _ in range(3)
        )

    def cycle(self) -> np.ndarray:  # (C, h, w)
        """Approximate the solution for ``right[0]``: sweep, correct on the coarser grid, sweep."""
        *finer, last = zip(self.levels, self.corrections, self.right, strict=True)
        for depth, (level, u, rhs) in enumerate(finer):
            descend(level, u, rhs, self.rest[depth])
            restrict(self.rest[depth], self.right[depth + 1])
        settle(*last)
        coarse = last[1]
        for level, u, rhs in reversed(finer):
            interpolate(level, u, coarse)
            sweep(level, u, rhs, True)
            coarse = u
        return coarse

    def solve(self, u: np.ndarray, tolerance: np.ndarray) -> int:
        """Change the unknown pixels of u in place, by conjugate gradients; return the cycles."""
        level, rest = self.levels[0], self.right[0]
        along = np.zeros_like(u)
        energy = np.zeros(len(u))
        last_size = np.full(len(u), 1e-30)
        exact_residual(level, u, rest)
        exact = False
        for cycle in range(1, MAX_CYCLES + 1):
            correction = self.cycle()
            size = follow(correction, rest, along, energy)
            step(level, u, rest, along, energy, self.rest[0])
            left = size * np.minimum(size / last_size, 1)
            last_size = np.maximum(size, 1e-30)
            if (left <= tolerance).all():
                return cycle
            if not exact and (left <= tolerance * (EXACT_RESIDUALS_BELOW / TOLERANCE)).all():
                exact_residual(level, u, rest)
                exact = True
        raise HeatproofError(
            f"linear imputation did not converge within {MAX_CYCLES} cycles; check the values"
        )


@torch.no_grad()
def impute(x: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Fill in removed pixels by linear imputation.

    If all pixels of an image are removed, each channel becomes its mean over the image.

    Args:
        x: Images ``(B, C, H, W)``.
        removed: Pixels to fill in, ``(B, H, W)`` of bool.

    Returns:
        The filled images ``(B, C, H, W)``, and the number of cycles per image ``(B,)``.

    Raises:
        HeatproofError: If shapes or types are wrong, values are not finite, or the solver does
            not converge.
    """
    _check(x, removed)
    filled = x.detach().clone() if x.dtype in (torch.float32, torch.float64) else x.float()
    empty = removed.flatten(1).all(1)
    filled[empty] = filled[empty].mean((2, 3), keepdim=True).expand_as(filled[empty])
    partial = torch.nonzero(removed.flatten(1).any(1) & ~empty)[:, 0]
    cycles = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if len(partial):
        images = filled[partial].cpu().contiguous().numpy()
        masks = removed[partial].cpu().contiguous().numpy()
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            counts = list(threads.map(_fill, images, masks))
        filled[partial] = torch.from_numpy(images).to(filled)
        cycles[partial] = torch.tensor(counts, device=x.device)
    return filled.to(x.dtype), cycles


def _fill(image: np.ndarray, removed: np.ndarray) -> int:
    """Fill in an image that has both removed and known pixels, in place; return the cycles.

    The grid is connected, so every removed region touches a known pixel.
    """
    u = np.zeros((len(image), *(side + 2 for side in removed.shape)), np.float32)
    first = image.reshape(len(image), -1)[:, removed.argmin()].copy()
    extent = copy_known(image, removed, first, u)
    cycles = Multigrid(removed, len(image)).solve(u, TOLERANCE * extent)
    copy_filled(u, removed, first, image)
    return cycles


def _check(x: Tensor, removed: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise HeatproofError(
            "images to impute must be floats of shape (B, C, H, W); "
            f"got {x.dtype} of {tuple(x.shape)}"
        )
    expected = (len(x), *x.shape[2:])
    if removed.dtype != torch.bool or removed.shape != expected:
        raise HeatproofError(
            f"removed must be a bool mask of shape {expected} for these images; "
            f"got {removed.dtype} of {tuple(removed.shape)}"
        )
    if not x.numel():
        return
    finite = x.flatten(1).abs().amax(1).isfinite()
    if not finite.all():
        wrong = (~finite).nonzero()[:10, 0].tolist()
        raise HeatproofError(f"images to impute must be finite; rows {wrong} are not")
