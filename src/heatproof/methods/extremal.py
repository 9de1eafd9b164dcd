"""Extremal perturbations (Fong et al. 2019): the smooth mask of a given area that keeps the score highest where all else is blurred.

The network's gradient comes from `model.gradient`; from there to the mask's few parameters the chain rule is written out, so that memory
stays that of a few masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.methods.perturbation import Count, Share, perturbation
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

LEVELS = 8  # of blur
RATE, MOMENTUM = 0.01, 0.9
FIRM, FIRMER = 300.0, 1.0035  # weight of the area, and its growth a step
COLDNESS = 20.0  # of the soft maximum
EQUAL = 1e-6  # masks are in [0, 1]


def _passes(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return 0, (arguments["steps"] - 1) * len(arguments["areas"])


@perturbation("extremal", paper="Fong et al. 2019", signed=False, cost=_passes)
def extremal(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    steps: Count = 800,
    areas: Annotated[tuple[Share, ...], Field(min_length=1)] = (0.1,),
    step: Count | None = None,
    sigma: Count | None = None,
    blur: Annotated[float, Field(gt=0)] | None = None,
    jitter: bool = True,
    score: ScoreName = "logit",
) -> Tensor:
    """The smooth mask of a given area that keeps the score highest where all else is blurred; the mean over several areas.

    steps: masks on the way; the last is the map. step, sigma, blur: spacing and reach of the mask's bumps, and the widest blur; 7, 21 and
    20 px at 224 px, in proportion elsewhere. jitter: every other step looks at the image's mirror image.
    """
    scale = min(x.shape[2:]) / 224
    step = step or max(1, round(7 * scale))
    bumps = Bumps((x.shape[2], x.shape[3]), step, sigma or max(step, round(21 * scale)))
    model = model.with_batch_size(-(-model.batch_size // 2))  # a pyramid is kept for every mask
    found = x.new_zeros(x[:, 0].shape)
    for sample, area in model.passes.chunks(len(x), len(areas)):
        pyramid = blurred(x[sample], blur or 20 * scale)
        shares = torch.tensor(areas, dtype=torch.float64)[area]
        found.index_add_(
            0,
            sample.to(x.device),
            optimised(model, pyramid, target[sample], shares, bumps, steps, jitter, score),
        )
    return found / len(areas)


def optimised(
    model: Model,
    pyramid: Tensor,
    target: Tensor,
    areas: Tensor,
    bumps: Bumps,
    steps: int,
    jitter: bool,
    score: str,
) -> Tensor:  # (n, levels, C, H, W), (n,), (n,) -> (n, H, W)
    """Gradient descent with momentum, each mask by itself."""
    pressure = pyramid.new_ones(len(pyramid), *bumps.grid)
    pace, firm = torch.zeros_like(pressure), FIRM
    for turn in range(steps - 1):
        masks, whole = bumps.masks(pressure)
        points, slope = at_level(pyramid, bumps.inner(masks))
        mirrored = (3,) if jitter and turn % 2 == 0 else ()
        gradient = model.gradient(points.flip(mirrored), target, score=score).gradient.flip(
            mirrored
        )
        wanted = largest(masks, areas)
        uphill = 2 * firm / masks[0].numel() * (masks - wanted)
        bumps.inner(uphill).sub_((gradient * slope).sum(1))
        change = bumps.pull(pressure, masks, whole, uphill)
        pace = change if turn == 0 else MOMENTUM * pace + (1 - MOMENTUM) * change
        pressure = (pressure - RATE * pace).clamp(0, 1)
        firm *= FIRMER
    return bumps.inner(bumps.masks(pressure)[0])


def blurred(x: Tensor, widest: float) -> Tensor:  # (n, C, H, W) -> (n, levels, C, H, W)
    """From the widest blur to none; zeros lie around the image."""
    sigmas = [widest * (1 - level / (LEVELS - 1)) for level in range(LEVELS - 1)]
    return torch.stack(
        [*(separable(x, gaussian(2 * math.ceil(4 * s) + 1, s), "constant") for s in sigmas), x], 1
    )


def at_level(pyramid: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, C, H, W) twice
    """The image at each place's level of blur, and its derivative with respect to the mask."""
    level = masks[:, None, None] * (LEVELS - 1)
    below = level.floor()
    index = below.long().expand(-1, -1, *pyramid.shape[2:])
    low, high = (pyramid.gather(1, i)[:, 0] for i in (index, (index + 1).clamp(max=LEVELS - 1)))
    return low.lerp(high, (level - below)[:, 0]), (high - low) * (LEVELS - 1)


def largest(masks: Tensor, areas: Tensor) -> Tensor:  # (n, h, w), (n,) -> same as masks
    """One in the given share of places, those where the mask is largest; zero elsewhere. Equal places at the border share what is left,
    so that rounding does not choose: the first masks, of equal bumps, are full of them."""
    flat = masks.flatten(1)
    below = [int(flat.shape[1] * (1 - area)) for area in areas.tolist()]
    border = torch.stack(
        [row.kthvalue(count + 1).values for row, count in zip(flat, below, strict=True)]
    )[:, None]
    above, level = flat > border + EQUAL, (flat - border).abs() <= EQUAL
    left = flat.shape[1] - torch.tensor(below, device=flat.device) - above.sum(1)
    return torch.where(level, (left / level.sum(1)).to(flat)[:, None], above.to(flat)).reshape(
        masks.shape
    )


@dataclass(frozen=True)
class Bumps:
    """Smooth masks: the soft maximum of bumps on a grid, each as high as its pressure. Masks have a margin around the map.

    Places are numbered (inside a step, which step), so that a bump's part in all of them is an outer product of its profile and pressure.
    """

    size: tuple[int, int]  # of the map
    step: int  # between bumps
    sigma: int  # their reach, and the margin

    @property
    def grid(self) -> tuple[int, int]:
        height, width = (-(-side // self.step) for side in self.size)
        return height, width

    @property
    def around(self) -> int:
        """A place is reached by `around` bumps to each side."""
        return 1 + -(-self.sigma // self.step)

    @property
    def padding(self) -> int:
        return 1 + -(-2 * self.sigma // self.step)

    @property
    def blocks(self) -> tuple[int, int]:
        height, width = (side + 2 * (self.padding - self.around) for side in self.grid)
        return height, width

    @cached_property
    def profiles(
        self,
    ) -> (
        Tensor
    ):  # (bumps², step²): of the bumps that reach a place, by where in a step the place is
        reach = torch.arange(2 * self.around + 1) - self.padding
        away = torch.arange(self.step) - self.sigma - self.step * reach[:, None]
        distance = (
            (away[:, None, :, None] ** 2 + away[None, :, None, :] ** 2)
            .float()
            .sqrt()
            .reshape(len(reach) ** 2, -1)
        )
        return torch.exp(-2 * (distance / self.sigma - 0.5).clamp(min=0) ** 2)

    def masks(
        self, pressure: Tensor
    ) -> tuple[Tensor, Tensor]:  # (n, g, g) -> (n, h, w), and what `pull` needs again
        masks, whole = (
            torch.stack(part) for part in zip(*map(self._pooled, pressure), strict=True)
        )
        return self._arranged(masks), whole

    # One mask at a time, in the same memory for every bump: what fits into a core's cache is half the time.

    def _pooled(self, pressure: Tensor) -> tuple[Tensor, Tensor]:  # (g, g) -> (step², blocks) twice
        """Σ v e^{20 v} / Σ e^{20 v} over the bumps, and the denominator."""
        reaching, profiles = (
            self._reaching(pressure),
            COLDNESS * self.profiles.to(pressure)[:, :, None],
        )
        total = pressure.new_zeros(profiles.shape[1], reaching.shape[1])
        whole, height, weight = (
            torch.zeros_like(total),
            torch.empty_like(total),
            torch.empty_like(total),
        )
        for profile, bump in zip(profiles, reaching, strict=True):
            torch.mul(profile, bump, out=height)
            torch.exp(height, out=weight)
            total.addcmul_(height, weight)
            whole += weight
        return total / (COLDNESS * whole), whole

    def pull(self, pressure: Tensor, masks: Tensor, whole: Tensor, uphill: Tensor) -> Tensor:
        """The derivative with respect to pressure, from that with respect to masks."""
        slots, given = self._slots(masks), self._slots(uphill) / whole
        return torch.stack(
            [self._pulled(*each) for each in zip(pressure, slots, given, strict=True)]
        )

    def _pulled(
        self, pressure: Tensor, masks: Tensor, given: Tensor
    ) -> Tensor:  # (g, g), (step², blocks) twice -> (g, g)
        reaching, profiles = self._reaching(pressure), self.profiles.to(pressure)
        pulls, base = torch.empty_like(reaching), (1 - COLDNESS * masks) * given
        height, slope = torch.empty_like(base), torch.empty_like(base)
        for profile, bump, pull in zip(profiles, reaching, pulls, strict=True):
            torch.mul(COLDNESS * profile[:, None], bump, out=height)
            torch.addcmul(base, height, given, out=slope).mul_(height.exp_())
            torch.mv(slope.T, profile, out=pull)
        size = (self.grid[0] + 2 * self.padding, self.grid[1] + 2 * self.padding)
        back = F.fold(pulls, size, 2 * self.around + 1)[0]
        return back[self.padding : -self.padding, self.padding : -self.padding]

    def _reaching(self, pressure: Tensor) -> Tensor:  # (g, g) -> (bumps², blocks)
        return F.unfold(F.pad(pressure[None], (self.padding,) * 4), 2 * self.around + 1)

    def _arranged(self, slots: Tensor) -> Tensor:  # (n, step², blocks) -> (n, h, w)
        grid = slots.reshape(len(slots), self.step, self.step, *self.blocks).permute(0, 3, 1, 4, 2)
        height, width = (self.step * side for side in self.blocks)
        return grid.reshape(len(slots), height, width)[
            :, : height - self.step + 1, : width - self.step + 1
        ]

    def _slots(
        self, masks: Tensor
    ) -> Tensor:  # (n, h, w) -> (n, step², blocks); zero where there is no place
        full = F.pad(masks, (0, self.step - 1, 0, self.step - 1))
        height, width = self.blocks
        return (
            full.reshape(len(masks), height, self.step, width, self.step)
            .permute(0, 2, 4, 1, 3)
            .flatten(3)
            .flatten(1, 2)
        )

    def inner(self, masks: Tensor) -> Tensor:
        """Without the margin; a view."""
        return masks[
            :, self.sigma : self.sigma + self.size[0], self.sigma : self.sigma + self.size[1]
        ]
