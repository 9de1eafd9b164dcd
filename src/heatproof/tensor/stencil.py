"""Removed pixels as weighted means of their neighbours (1/6 beside, 1/12 across the corner): linear systems, solved for a batch at once.

Conjugate gradients, preconditioned by a multigrid cycle. The stencil is [1 2 1]⊗[1 2 1] but for its centre, and beyond the border there is
nothing; times twelve, the equation of a removed pixel is own·u − S u = 0, where S is the stencil with its centre, along rows and then
along columns, and `own` is S of ones.

A plane is kept flat, with a zero after each row, so that a neighbour is a shift and a shift is a slice: much faster than a convolution.
All arithmetic is elementwise, exact, or sums rows of one image, so a sample's bytes do not depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from heatproof.errors import HeatproofError
from heatproof.tensor.batching import rows

TOLERANCE = 1e-7  # of the range of a channel: its largest correction times the share that a cycle leaves; in the end 1e-5 at most is left
MOST_CYCLES = 100  # three to seven are usual
SMALLEST = 8  # px: a grid of this side is solved by its inverse
AT_ONCE = 2**20  # numbers worked on together on a CPU, to stay in its caches


class Grid(NamedTuple):
    height: int
    width: int

    @property
    def pitch(self) -> int:
        return self.width + 1

    @property
    def size(self) -> int:
        return self.height * self.pitch

    @property
    def coarser(self) -> Grid:
        """Every other pixel of every other row, and one beyond an even side: each pixel of this grid is there, or between two that are."""
        return Grid(self.height // 2 + 1, self.width // 2 + 1)

    def room(self, like: Tensor) -> Tensor:
        """As many planes of zeros, with a margin for the neighbours of the outermost pixels."""
        return like.new_zeros(*like.shape[:2], self.size + 2 * self.pitch + 2)

    def inside(self, room: Tensor) -> Tensor:  # (B, C, size), a view
        return room[..., self.pitch + 1 : self.pitch + 1 + self.size]

    def lines(self, planes: Tensor) -> Tensor:  # (B, C, H, pitch), a view
        return planes.view(len(planes), -1, self.height, self.pitch)

    def image(self, planes: Tensor) -> Tensor:  # (B, C, H, W), a view
        return self.lines(planes)[..., : self.width]


@dataclass(frozen=True)
class Level:
    """The equations A(u) = own·u − free·spread(u) on one grid, A symmetric; Jacobi's step is u → rest·u + relax·(right + spread(u))."""

    grid: Grid
    free: Tensor  # (B, 1, size): 1 where there is something to solve for
    own: Tensor  # (B, 1, size)
    relax: Tensor  # (B, 1, size)
    rest: Tensor  # (B, 1, size): free − relax·own
    weights: (
        Tensor | None
    )  # (B, 9, size) of the neighbours, row by row; None is the stencil of the pixels

    def spread(self, room: Tensor) -> Tensor:  # -> (B, C, size)
        """What comes from the neighbours."""
        pitch, size = self.grid.pitch, self.grid.size
        if self.weights is None:
            for step in (1, pitch):
                room = (room[..., : -2 * step] + room[..., 2 * step :]).add_(
                    room[..., step:-step], alpha=2
                )
            return room
        out = self.weights[:, :1] * room[..., :size]
        for place in (1, 2, 3, 5, 6, 7, 8):
            begin = place // 3 * pitch + place % 3
            out.addcmul_(self.weights[:, place : place + 1], room[..., begin : begin + size])
        return out

    def matrix(self) -> Tensor:  # (B, 9, size)
        """−A, row by row: own weight and those of the neighbours, in double precision but for the pixels, whose are whole numbers."""
        if self.weights is not None:
            return self.weights.double()
        pitch, size = self.grid.pitch, self.grid.size
        room = pad(self.free, (pitch + 1,) * 2)
        begins = [row * pitch + column for row in range(3) for column in range(3)]
        planes = torch.cat([room[..., begin : begin + size] for begin in begins], 1)
        planes *= self.free * planes.new_tensor([1, 2, 1, 2, 4, 2, 1, 2, 1])[:, None]
        planes[:, 4:5] -= self.own
        return planes

    def pull(self, room: Tensor) -> Tensor:  # -> (B, C, size)
        """−A(u): towards what the neighbours say."""
        return (
            self.spread(room).mul_(self.free).addcmul_(self.own, self.grid.inside(room), value=-1)
        )

    def take(self, kept: Tensor) -> Level:
        weights = None if self.weights is None else self.weights[kept]
        return Level(
            self.grid, self.free[kept], self.own[kept], self.relax[kept], self.rest[kept], weights
        )


@dataclass(frozen=True)
class Multigrid:
    levels: tuple[Level, ...]  # each grid half as fine as the one before
    inverse: Tensor  # (B, 1, size, size) of the last level

    def cycle(self, right: Tensor, depth: int = 0) -> Tensor:  # (B, C, size) -> same
        """Nearly the solution: smooth, solve what is left on the coarser grid, smooth."""
        if depth == len(self.levels) - 1:
            return (self.inverse * right[:, :, None]).sum(-1)
        level = self.levels[depth]
        room = level.grid.room(right)
        found = level.grid.inside(room)
        torch.mul(level.relax, right, out=found)
        left = level.spread(room).mul_(level.free).addcmul_(level.rest, right)
        found.addcmul_(
            level.free, widen(self.cycle(narrow(left, level.grid), depth + 1), level.grid)
        )
        spread = level.spread(room).add_(right)
        return found.mul_(level.rest).addcmul_(level.relax, spread)

    def guess(self, right: Tensor, depth: int = 0) -> Tensor:  # (B, C, size) -> same
        """From coarse to fine, with a cycle on each grid: a better start than a cycle alone."""
        if depth == len(self.levels) - 1:
            return self.cycle(right, depth)
        level = self.levels[depth]
        room = level.grid.room(right)
        found = level.grid.inside(room)
        torch.mul(
            level.free,
            widen(self.guess(narrow(right, level.grid), depth + 1), level.grid),
            out=found,
        )
        return found.add_(self.cycle(level.pull(room).add_(right), depth))

    def take(self, kept: Tensor) -> Multigrid:
        return Multigrid(tuple(level.take(kept) for level in self.levels), self.inverse[kept])


def widen(planes: Tensor, fine: Grid) -> Tensor:
    """From the coarser grid to this one: bilinear."""
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


def narrow(planes: Tensor, fine: Grid) -> Tensor:
    """From this grid to the coarser one: `widen`, transposed."""
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


def finest(removed: Tensor, dtype: torch.dtype) -> Level:
    """The pixels themselves."""
    grid = Grid(*removed.shape[1:])
    free = pad(removed[:, None].to(dtype), (0, 1)).flatten(2)
    ones = grid.room(free[:1])
    grid.image(grid.inside(ones)).fill_(1)
    own = free * Level(grid, free, free, free, free, None).spread(ones)
    relax = free / (own - 4).clamp(min=1)
    return Level(grid, free, own, relax, free - relax * own, None)


@cache
def hats(dtype: torch.dtype, device: torch.device) -> Tensor:  # (9, 9, 3, 3)
    """What the weight between two neighbours adds to the weights of a coarse pixel and its neighbours, by where the first lies."""
    along = torch.arange(-1, 2, dtype=dtype, device=device)
    here = 1 - along.abs() / 2
    there = (1 - (along + along[:, None] - 2 * along[:, None, None]).abs() / 2).clamp(min=0)
    side = here * there  # (3 coarse neighbours, 3 neighbours, 3 places)
    return torch.einsum("edp,fcq->efdcpq", side, side).reshape(9, 9, 3, 3)


def coarsened(level: Level) -> Level:
    """The same equations for corrections that are bilinear between every other pixel, and zero where nothing is free.

    Sums of few numbers of few bits: in double precision they are exact, in whatever order a convolution adds.
    """
    grid, coarse = level.grid, level.grid.coarser
    planes = pad(level.matrix().view(len(level.free), 9, grid.height, grid.pitch), (0, 0, 0, 1))
    weights = conv2d(planes, hats(planes.dtype, planes.device), stride=2, padding=1)
    weights = pad(weights.to(level.free), (0, 1)).flatten(2)
    own = -weights[:, 4:5]
    free = (own > 0).to(own)
    relax = free / torch.maximum(own, 0.55 * weights.abs().sum(1, keepdim=True)).clamp(
        min=1e-30
    )  # by Gershgorin the step never overshoots
    return Level(coarse, free, own, relax, free - relax * own, weights)


def multigrid(removed: Tensor, dtype: torch.dtype) -> Multigrid:
    levels = [finest(removed, dtype)]
    while max(levels[-1].grid) > SMALLEST:
        levels.append(coarsened(levels[-1]))
    last = levels[-1]
    unit = torch.eye(last.grid.size, dtype=dtype, device=removed.device)
    matrix = -last.pull(pad(last.free * unit, (last.grid.pitch + 1,) * 2)).double()
    matrix.diagonal(dim1=1, dim2=2).mul_(1 + 1e-5).add_(
        1 - last.free[:, 0]
    )  # two corrections may be the same one on free pixels
    inverse = torch.linalg.inv(matrix).to(dtype) * last.free * last.free.mT
    return Multigrid(tuple(levels), inverse[:, None])


def dot(a: Tensor, b: Tensor, grid: Grid) -> Tensor:  # (B, C, size), (B, C, size) -> (B, C, 1)
    """Row by row: the order of summation is that of the image, whatever else is in the batch."""
    return grid.lines(a * b).sum(-1).sum(-1, keepdim=True)


@torch.no_grad()
def impute(
    x: Tensor, removed: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # (B, C, H, W), (B, H, W) -> like x, (B,)
    """The image with its removed pixels filled in, and the number of cycles that it took.

    Where nothing is known, a channel becomes its mean over the image. `start` (B, C, H, W) is a guess to begin with, such as the result
    for a mask a little smaller or larger; the guess made from coarse to fine is as good, so it seldom saves a cycle.
    """
    check(x, removed, start)
    filled = x.detach().clone() if x.dtype in (torch.float32, torch.float64) else x.float()
    gone, cycles = (
        removed.flatten(1).all(1),
        torch.zeros(len(x), dtype=torch.int64, device=x.device),
    )
    filled[gone] = filled[gone].mean((2, 3), keepdim=True).expand_as(filled[gone])
    partly = torch.nonzero(removed.flatten(1).any(1) & ~gone)[:, 0]
    at_once = AT_ONCE // max(1, x[:1].numel()) if x.device.type == "cpu" else len(x)
    for part in rows(partly, max(1, at_once)):
        if len(part):
            filled[part], cycles[part] = _solve(
                filled[part], removed[part], None if start is None else start[part]
            )
    return filled.to(x.dtype), cycles


def check(x: Tensor, removed: Tensor, start: Tensor | None) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise HeatproofError(
            f"images to impute are floats (B, C, H, W); found {x.dtype} {tuple(x.shape)}"
        )
    if removed.dtype != torch.bool or removed.shape != (len(x), *x.shape[2:]):
        wanted = (len(x), *x.shape[2:])
        raise HeatproofError(
            f"removed pixels are a bool mask {wanted} for these images; found {removed.dtype} {tuple(removed.shape)}"
        )
    if start is not None and start.shape != x.shape:
        raise HeatproofError(
            f"start has the shape of the images, {tuple(x.shape)}; found {tuple(start.shape)}"
        )
    for name, values in (("images", x), ("start", x if start is None else start)):
        if x.numel() and not (fine := values.flatten(1).abs().amax(1).isfinite()).all():
            raise HeatproofError(
                f"{name} to impute must be finite; rows {(~fine).nonzero()[:10, 0].tolist()} are not"
            )


def _solve(x: Tensor, removed: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every image has removed pixels and known ones: the grid is connected, so a removed region always touches a known pixel."""
    grid, known = Grid(*x.shape[2:]), ~removed[:, None]
    hierarchy = multigrid(removed, x.dtype)
    fine = hierarchy.levels[0]
    level = x.flatten(2)[torch.arange(len(x)), :, known.flatten(1).int().argmax(1)][
        :, :, None, None
    ]  # of one known pixel, as zero
    base = grid.room(x)
    planes = grid.image(grid.inside(base))
    if start is None:
        torch.mul(x - level, known, out=planes)
    else:
        torch.where(known, x - level, start.to(x) - level, out=planes)
    grid.inside(base).add_(hierarchy.guess(fine.pull(base)))
    enough = TOLERANCE * (planes.amax((2, 3)) - planes.amin((2, 3)))
    # In single precision the residual of values near one is noise of 1e-7 a pixel, and a large hole sums it up to 3e-5.
    right = (
        replace(fine, own=fine.own.double(), free=fine.free.double())
        .pull(base.double())
        .to(x.dtype)
    )
    found, cycles = _conjugate_gradients(hierarchy, right, enough)
    return torch.where(known, x, planes + grid.image(found) + level), cycles


def _conjugate_gradients(
    hierarchy: Multigrid, right: Tensor, enough: Tensor
) -> tuple[Tensor, Tensor]:
    """A sample ends when its correction is small enough; it is then taken out of the batch."""
    grid, batch = hierarchy.levels[0].grid, len(right)
    found, cycles = (
        torch.empty_like(right),
        torch.zeros(batch, dtype=torch.int64, device=right.device),
    )
    going = torch.arange(batch, device=right.device)
    solution, along = torch.zeros_like(right), grid.room(right)
    before, larger = right.new_zeros(*right.shape[:2], 1), torch.full_like(enough, 1e-30)
    for cycle in range(1, MOST_CYCLES + 1):
        correction = hierarchy.cycle(right)
        size = correction.abs().amax(2)
        done = (size * (size / larger).clamp(max=1) <= enough).all(1)
        if done.any():
            found[going[done]], cycles[going[done]] = solution[done] + correction[done], cycle
            if done.all():
                return found, cycles
            hierarchy = hierarchy.take(~done)
            going, enough, size, right, solution, along, before, correction = (
                v[~done] for v in (going, enough, size, right, solution, along, before, correction)
            )
        direction = grid.inside(along)
        product = dot(right, correction, grid)
        torch.addcmul(
            correction, direction, torch.where(before > 0, product / before, 0), out=direction
        )
        change = hierarchy.levels[0].pull(along)
        energy = -dot(direction, change, grid)
        step = torch.where(energy > 0, product / energy, 0)
        solution.addcmul_(step, direction)
        right.addcmul_(step, change)
        before, larger = product, size.clamp(min=1e-30)
    raise HeatproofError(
        f"linear imputation: {len(going)} of {batch} images have not converged after {MOST_CYCLES} cycles; are they sensible?"
    )
