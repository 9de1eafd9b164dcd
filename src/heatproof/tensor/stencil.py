"""Linear imputation: removed pixels as weighted means of their neighbours.

Direct neighbours have the weight 1/6 and diagonal ones 1/12. This gives one linear system per
image; a batch of them is solved at once by conjugate gradients with a multigrid preconditioner.

Without its centre the stencil is [1 2 1]⊗[1 2 1], and pixels beyond the border do not count. Times
twelve, the equation of a removed pixel is diagonal·u − S u = 0, where S is the stencil with its
centre, applied along rows and then along columns, and ``diagonal`` is S of ones.

A plane is stored flat with a zero after each row, so that a neighbour is a shift and a shift is a
slice, which is much faster than a convolution. All arithmetic is elementwise, exact, or sums rows
of one image, so a sample's bytes do not depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from heatproof.errors import HeatproofError
from heatproof.tensor.batching import rows

# Relative to the range of a channel: the largest correction times the fraction of the error that a
# cycle leaves. The final error is at most 1e-5.
TOLERANCE = 1e-7
MAX_CYCLES = 100  # three to seven are usual
SMALLEST = 8  # px: grids up to this side are solved by their inverse matrix
CHUNK = 2**20  # numbers processed together on a CPU, so that they fit in its caches


class Grid(NamedTuple):
    """The size of a plane, and the layout of flat planes."""

    height: int
    width: int

    @property
    def pitch(self) -> int:
        """Length of a stored row."""
        return self.width + 1

    @property
    def size(self) -> int:
        """Length of a flat plane."""
        return self.height * self.pitch

    @property
    def coarser(self) -> Grid:
        """The grid of every other pixel of every other row, plus one beyond an even side.

        Each pixel of this grid is on the coarser grid or between two pixels that are.
        """
        return Grid(self.height // 2 + 1, self.width // 2 + 1)

    def padded_zeros(self, like: Tensor) -> Tensor:
        """Allocate planes of zeros with a margin for the neighbours of the outermost pixels."""
        return like.new_zeros(*like.shape[:2], self.size + 2 * self.pitch + 2)

    def inside(self, padded: Tensor) -> Tensor:  # (B, C, size), a view
        """Return the planes without their margin."""
        return padded[..., self.pitch + 1 : self.pitch + 1 + self.size]

    def lines(self, planes: Tensor) -> Tensor:  # (B, C, H, pitch), a view
        """Return the planes row by row, with the zero after each row."""
        return planes.view(len(planes), -1, self.height, self.pitch)

    def image(self, planes: Tensor) -> Tensor:  # (B, C, H, W), a view
        """Return the planes as images."""
        return self.lines(planes)[..., : self.width]


@dataclass(frozen=True)
class Level:
    """The equations A(u) = diagonal·u − free·spread(u) on one grid, where A is symmetric.

    A damped Jacobi step for A(u) = rhs is u → rest·u + relax·(rhs + spread(u)).
    """

    grid: Grid
    free: Tensor  # (B, 1, size): 1 for unknown pixels, else 0
    diagonal: Tensor  # (B, 1, size)
    relax: Tensor  # (B, 1, size)
    rest: Tensor  # (B, 1, size): free − relax·diagonal
    # (B, 9, size): weights of the neighbours, row by row; None for the stencil of the finest grid
    weights: Tensor | None

    def spread(self, padded: Tensor) -> Tensor:  # -> (B, C, size)
        """Sum the neighbours with their weights."""
        pitch, size = self.grid.pitch, self.grid.size
        if self.weights is None:
            for step in (1, pitch):
                padded = (padded[..., : -2 * step] + padded[..., 2 * step :]).add_(
                    padded[..., step:-step], alpha=2
                )
            return padded
        out = self.weights[:, :1] * padded[..., :size]
        for neighbour in (1, 2, 3, 5, 6, 7, 8):
            begin = neighbour // 3 * pitch + neighbour % 3
            weight = self.weights[:, neighbour : neighbour + 1]
            out.addcmul_(weight, padded[..., begin : begin + size])
        return out

    def matrix(self) -> Tensor:  # (B, 9, size)
        """Return −A: the weights of each pixel and its neighbours, row by row.

        They are in double precision, except on the finest grid, where they are whole numbers.
        """
        if self.weights is not None:
            return self.weights.double()
        pitch, size = self.grid.pitch, self.grid.size
        padded = pad(self.free, (pitch + 1,) * 2)
        begins = [row * pitch + column for row in range(3) for column in range(3)]
        planes = torch.cat([padded[..., begin : begin + size] for begin in begins], 1)
        planes *= self.free * planes.new_tensor([1, 2, 1, 2, 4, 2, 1, 2, 1])[:, None]
        planes[:, 4:5] -= self.diagonal
        return planes

    def pull(self, padded: Tensor) -> Tensor:  # -> (B, C, size)
        """Compute −A(u), which moves pixels towards the mean of their neighbours."""
        return (
            self.spread(padded)
            .mul_(self.free)
            .addcmul_(self.diagonal, self.grid.inside(padded), value=-1)
        )

    def take(self, kept: Tensor) -> Level:
        """Return the equations of some of the images."""
        weights = None if self.weights is None else self.weights[kept]
        return Level(
            self.grid,
            self.free[kept],
            self.diagonal[kept],
            self.relax[kept],
            self.rest[kept],
            weights,
        )


@dataclass(frozen=True)
class Multigrid:
    """The equations on a hierarchy of grids."""

    levels: tuple[Level, ...]  # from fine to coarse
    inverse: Tensor  # (B, 1, size, size) of the last level

    def cycle(self, rhs: Tensor, depth: int = 0) -> Tensor:  # (B, C, size) -> same
        """Approximate the solution: smooth, solve for the error on the coarser grid, smooth."""
        if depth == len(self.levels) - 1:
            return (self.inverse * rhs[:, :, None]).sum(-1)
        level = self.levels[depth]
        padded = level.grid.padded_zeros(rhs)
        solution = level.grid.inside(padded)
        torch.mul(level.relax, rhs, out=solution)
        residual = level.spread(padded).mul_(level.free).addcmul_(level.rest, rhs)
        correction = self.cycle(restrict(residual, level.grid), depth + 1)
        solution.addcmul_(level.free, prolong(correction, level.grid))
        spread = level.spread(padded).add_(rhs)
        return solution.mul_(level.rest).addcmul_(level.relax, spread)

    def guess(self, rhs: Tensor, depth: int = 0) -> Tensor:  # (B, C, size) -> same
        """Approximate the solution from coarse to fine, with one cycle per grid.

        This is a better start than a cycle alone.
        """
        if depth == len(self.levels) - 1:
            return self.cycle(rhs, depth)
        level = self.levels[depth]
        padded = level.grid.padded_zeros(rhs)
        solution = level.grid.inside(padded)
        coarse = self.guess(restrict(rhs, level.grid), depth + 1)
        torch.mul(level.free, prolong(coarse, level.grid), out=solution)
        return solution.add_(self.cycle(level.pull(padded).add_(rhs), depth))

    def take(self, kept: Tensor) -> Multigrid:
        """Return the equations of some of the images."""
        return Multigrid(tuple(level.take(kept) for level in self.levels), self.inverse[kept])


def prolong(planes: Tensor, fine: Grid) -> Tensor:
    """Interpolate planes of the coarser grid bilinearly to this one."""
    coarse = fine.coarser
    image = coarse.image(planes)
    wide = planes.new_empty(*image.shape[:3], fine.width)
    wide[..., ::2] = image[..., : (fine.width + 1) // 2]
    torch.lerp(image[..., :-1], image[..., 1:], 0.5, out=wide[..., 1::2])
    out = planes.new_empty(*image.shape[:2], fine.height, fine.pitch)
    out[..., -1] = 0
    whole = out[..., :-1]
    whole[:, :, ::2] = wide[:, :, : (fine.height + 1) // 2]
    torch.lerp(wide[:, :, :-1], wide[:, :, 1:], 0.5, out=whole[:, :, 1::2])
    return out.flatten(2)


def restrict(planes: Tensor, fine: Grid) -> Tensor:
    """Restrict planes of this grid to the coarser one: the transpose of `prolong`."""
    coarse = fine.coarser
    image = fine.image(planes)
    even, odd = image[:, :, ::2], image[:, :, 1::2]
    wide = image.new_zeros(*image.shape[:2], coarse.height, fine.width)
    wide[:, :, : even.shape[2]] = even
    wide[:, :, :-1].add_(odd, alpha=0.5)
    wide[:, :, 1:].add_(odd, alpha=0.5)
    even, odd = wide[..., ::2], wide[..., 1::2]
    out = planes.new_zeros(*image.shape[:2], coarse.height, coarse.pitch)
    out[..., : even.shape[3]] = even
    out[..., : odd.shape[3]].add_(odd, alpha=0.5)
    out[..., 1 : odd.shape[3] + 1].add_(odd, alpha=0.5)
    return out.flatten(2)


def finest_level(removed: Tensor, dtype: torch.dtype) -> Level:
    """Return the equations of the pixels themselves."""
    grid = Grid(*removed.shape[1:])
    free = pad(removed[:, None].to(dtype), (0, 1)).flatten(2)
    ones = grid.padded_zeros(free[:1])
    grid.image(grid.inside(ones)).fill_(1)
    diagonal = free * Level(grid, free, free, free, free, None).spread(ones)
    relax = free / (diagonal - 4).clamp(min=1)
    return Level(grid, free, diagonal, relax, free - relax * diagonal, None)


def coarsen(planes: Tensor, neighbours: int, pixels: int) -> Tensor:
    """Sum weights between pixels to weights between coarse pixels, along rows or along columns.

    A coarse pixel is one pixel and half of the two beside it. The weight between two of them is the
    sum over all pairs of their pixels. Sums along rows and then along columns are faster than a
    convolution.

    Args:
        planes: The weights of each pixel and its neighbours.
        neighbours: The dimension of the neighbours: before, itself, after.
        pixels: The dimension of the pixels, which becomes half as long.
    """
    length = planes.shape[pixels]
    size = length // 2 + 1
    shape = list(planes.shape)
    shape[pixels] = size + 1
    own = planes.new_zeros(shape)
    beside = planes.new_zeros(shape)  # the pixels between, after one that does not exist
    index = [slice(None)] * planes.ndim
    index[pixels] = slice(0, None, 2)
    own.narrow(pixels, 0, (length + 1) // 2).copy_(planes[tuple(index)])
    index[pixels] = slice(1, None, 2)
    beside.narrow(pixels, 1, length // 2).copy_(planes[tuple(index)])
    own_before, own_self, own_after = own.narrow(pixels, 0, size).unbind(neighbours)
    left_before, left_self, left_after = beside.narrow(pixels, 0, size).unbind(neighbours)
    right_before, right_self, right_after = beside.narrow(pixels, 1, size).unbind(neighbours)
    before = (own_before + left_before).mul_(0.5).add_(left_self, alpha=0.25)
    after = (own_after + right_after).mul_(0.5).add_(right_self, alpha=0.25)
    itself = (own_before + own_after).add_(right_before).add_(left_after).mul_(0.5).add_(own_self)
    itself.add_(left_self, alpha=0.25).add_(right_self, alpha=0.25)
    return torch.stack([before, itself, after], neighbours)


def coarser_level(level: Level) -> Level:
    """Return the equations on the coarser grid.

    Corrections are bilinear between the coarse pixels, and zero for known pixels. The sums are of
    few numbers with few bits, so in double precision they are exact in any order of summation.
    """
    grid, coarse = level.grid, level.grid.coarser
    planes = level.matrix().view(len(level.free), 3, 3, grid.height, grid.pitch)
    weights = coarsen(coarsen(planes[..., : grid.width], 2, 4), 1, 3).flatten(1, 2)
    weights = pad(weights.to(level.free), (0, 1)).flatten(2)
    diagonal = -weights[:, 4:5]
    free = (diagonal > 0).to(diagonal)
    bound = 0.55 * weights.abs().sum(1, keepdim=True)  # by Gershgorin, the step never overshoots
    relax = free / torch.maximum(diagonal, bound).clamp(min=1e-30)
    return Level(coarse, free, diagonal, relax, free - relax * diagonal, weights)


def multigrid(removed: Tensor, dtype: torch.dtype) -> Multigrid:
    """Set up the equations of all grids for masks of removed pixels (B, H, W)."""
    levels = [finest_level(removed, dtype)]
    while max(levels[-1].grid) > SMALLEST:
        levels.append(coarser_level(levels[-1]))
    last = levels[-1]
    unit = torch.eye(last.grid.size, dtype=dtype, device=removed.device)
    matrix = -last.pull(pad(last.free * unit, (last.grid.pitch + 1,) * 2)).double()
    # Two corrections can be equal on the unknown pixels, which would make the matrix singular.
    matrix.diagonal(dim1=1, dim2=2).mul_(1 + 1e-5).add_(1 - last.free[:, 0])
    inverse = torch.linalg.inv(matrix).to(dtype) * last.free * last.free.mT
    return Multigrid(tuple(levels), inverse[:, None])


def dot(a: Tensor, b: Tensor, grid: Grid) -> Tensor:  # (B, C, size), (B, C, size) -> (B, C, 1)
    """Sum products row by row, in an order that does not depend on the rest of the batch."""
    return grid.lines(a * b).sum(-1).sum(-1, keepdim=True)


@torch.no_grad()
def impute(x: Tensor, removed: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Fill in removed pixels by linear imputation.

    If all pixels of an image are removed, each channel becomes its mean over the image.

    Args:
        x: Images ``(B, C, H, W)``.
        removed: Pixels to fill in, ``(B, H, W)`` of bool.
        start: Initial guess ``(B, C, H, W)``, such as the result for a similar mask. It seldom
            saves a cycle, since the default guess is as good.

    Returns:
        The filled images ``(B, C, H, W)``, and the number of cycles per image ``(B,)``.

    Raises:
        HeatproofError: If shapes or types are wrong, values are not finite, or the solver does
            not converge.
    """
    _check(x, removed, start)
    filled = x.detach().clone() if x.dtype in (torch.float32, torch.float64) else x.float()
    empty = removed.flatten(1).all(1)
    cycles = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    filled[empty] = filled[empty].mean((2, 3), keepdim=True).expand_as(filled[empty])
    partial = torch.nonzero(removed.flatten(1).any(1) & ~empty)[:, 0]
    images_per_chunk = CHUNK // max(1, x[:1].numel()) if x.device.type == "cpu" else len(x)
    for part in rows(partial, max(1, images_per_chunk)):
        if len(part):
            guess = None if start is None else start[part]
            filled[part], cycles[part] = _solve(filled[part], removed[part], guess)
    return filled.to(x.dtype), cycles


def _check(x: Tensor, removed: Tensor, start: Tensor | None) -> None:
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
    if start is not None and start.shape != x.shape:
        raise HeatproofError(
            f"start must have the shape of the images, {tuple(x.shape)}; got {tuple(start.shape)}"
        )
    _check_finite("images", x)
    if start is not None:
        _check_finite("start", start)


def _check_finite(name: str, values: Tensor) -> None:
    if not values.numel():
        return
    finite = values.flatten(1).abs().amax(1).isfinite()
    if not finite.all():
        wrong = (~finite).nonzero()[:10, 0].tolist()
        raise HeatproofError(f"{name} to impute must be finite; rows {wrong} are not")


def _solve(x: Tensor, removed: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Solve for images that have both removed and known pixels.

    The grid is connected, so every removed region touches a known pixel.
    """
    grid = Grid(*x.shape[2:])
    known = ~removed[:, None]
    hierarchy = multigrid(removed, x.dtype)
    fine = hierarchy.levels[0]
    # Values are relative to the first known pixel of each image.
    first_known = known.flatten(1).int().argmax(1)
    level = x.flatten(2)[torch.arange(len(x)), :, first_known][:, :, None, None]
    base = grid.padded_zeros(x)
    planes = grid.image(grid.inside(base))
    if start is None:
        torch.mul(x - level, known, out=planes)
    else:
        torch.where(known, x - level, start.to(x) - level, out=planes)
    grid.inside(base).add_(hierarchy.guess(fine.pull(base)))
    tolerance = TOLERANCE * (planes.amax((2, 3)) - planes.amin((2, 3)))
    # In single precision, the residual of values near one is noise of 1e-7 per pixel, which a large
    # hole accumulates to 3e-5.
    exact = replace(fine, diagonal=fine.diagonal.double(), free=fine.free.double())
    rhs = exact.pull(base.double()).to(x.dtype)
    correction, cycles = _conjugate_gradients(hierarchy, rhs, tolerance)
    return torch.where(known, x, planes + grid.image(correction) + level), cycles


def _conjugate_gradients(
    hierarchy: Multigrid, rhs: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve A(u) = rhs; a sample leaves the batch when its correction is small enough."""
    grid = hierarchy.levels[0].grid
    batch = len(rhs)
    solved = torch.empty_like(rhs)
    cycles = torch.zeros(batch, dtype=torch.int64, device=rhs.device)
    active = torch.arange(batch, device=rhs.device)
    solution = torch.zeros_like(rhs)
    along = grid.padded_zeros(rhs)
    last_product = rhs.new_zeros(*rhs.shape[:2], 1)
    last_size = torch.full_like(tolerance, 1e-30)
    for cycle in range(1, MAX_CYCLES + 1):
        correction = hierarchy.cycle(rhs)
        size = correction.abs().amax(2)
        done = (size * (size / last_size).clamp(max=1) <= tolerance).all(1)
        if done.any():
            solved[active[done]] = solution[done] + correction[done]
            cycles[active[done]] = cycle
            if done.all():
                return solved, cycles
            rest = ~done
            hierarchy = hierarchy.take(rest)
            active = active[rest]
            tolerance = tolerance[rest]
            size = size[rest]
            rhs = rhs[rest]
            solution = solution[rest]
            along = along[rest]
            last_product = last_product[rest]
            correction = correction[rest]
        direction = grid.inside(along)
        product = dot(rhs, correction, grid)
        ratio = torch.where(last_product > 0, product / last_product, 0)
        torch.addcmul(correction, direction, ratio, out=direction)
        change = hierarchy.levels[0].pull(along)
        energy = -dot(direction, change, grid)
        step = torch.where(energy > 0, product / energy, 0)
        solution.addcmul_(step, direction)
        rhs.addcmul_(step, change)
        last_product = product
        last_size = size.clamp(min=1e-30)
    raise HeatproofError(
        f"linear imputation did not converge for {len(active)} of {batch} images within "
        f"{MAX_CYCLES} cycles; check their values"
    )
