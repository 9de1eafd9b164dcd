"""Extremal perturbations (Fong et al. 2019): the mask of a given area that keeps the score highest.

All outside the smooth mask is blurred. The network's gradient comes from ``model.gradient``; from
there to the mask's few parameters the chain rule is written out, so that memory stays that of a few
masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.methods.perturbation import Count, Fraction, perturbation
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import ScoreName

BLUR_LEVELS = 8
LEARNING_RATE = 0.01
MOMENTUM = 0.9
AREA_WEIGHT = 300.0
AREA_WEIGHT_GROWTH = 1.0035  # per step
SOFT_MAXIMUM_COLDNESS = 20.0
LATE_FRACTION = 0.9  # of the steps, after which a converged mask hardly changes
AREA_TOLERANCE = 0.2  # by which the area of a converged mask may differ, relative to its target
CHANGE_TOLERANCE = 0.1  # how much a converged mask may change late, relative to its target area
MASK_TOLERANCE = 1e-6  # values of masks are in [0, 1]


def _passes(arguments: Mapping[str, Any]) -> tuple[int, int]:
    return 0, (arguments["steps"] - 1) * len(arguments["areas"])


@perturbation("extremal", paper="Fong et al. 2019", signed=False, cost=_passes, version=2)
def extremal(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    notes: MapNotes,
    checkpoint: Checkpoint,
    steps: Count = 800,
    areas: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.1,),
    step: Count | None = None,
    sigma: Count | None = None,
    blur: Annotated[float, Field(gt=0)] | None = None,
    jitter: bool = True,
    score: ScoreName = "logit",
) -> Tensor:
    """The smooth mask of a given area that keeps the score highest where all else is blurred.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: Not used.
        notes: Where masks that have not converged are noted: their area is not within a fifth of
            its target, or they changed by more than a tenth of it in the last tenth of the steps.
        checkpoint: Keeps the state of the optimisation.
        steps: The number of successive masks; the last is the map.
        areas: The fractions of the map that masks take; the map is the mean over the areas.
        step: The spacing of the mask's bumps; by default 7 px at 224 px, in proportion elsewhere.
        sigma: The reach of the bumps; by default 21 px at 224 px.
        blur: The widest blur; by default 20 px at 224 px.
        jitter: Whether every other step looks at the mirror image.
        score: What to explain of the target: ``logit``, ``softmax`` or ``logprob``.
    """
    scale = min(x.shape[2:]) / 224
    step = step or max(1, round(7 * scale))
    bumps = Bumps((x.shape[2], x.shape[3]), step, sigma or max(step, round(21 * scale)))
    model = model.with_batch_size(-(-model.batch_size // 2))  # a pyramid is kept for every mask
    total = x.new_zeros(x[:, 0].shape)
    for number, (sample, area) in enumerate(model.passes.chunks(len(x), len(areas))):
        pyramid = blurred(x[sample], blur or 20 * scale)
        fractions = torch.tensor(areas, dtype=torch.float64)[area]
        state = _SavedState(checkpoint, f"masks {number}")
        found = optimised(
            model, pyramid, target[sample], fractions, bumps, steps, jitter, score, state
        )
        total.index_add_(0, sample.to(x.device), found.masks)
        note_unconverged(notes, sample, fractions, found, steps)
    return total / len(areas)


class State(NamedTuple):
    """The state of an optimisation before one of its steps."""

    turn: int
    pressure: Tensor  # (n, rows, columns): the masks' parameters
    velocity: Tensor  # of the same shape
    late: Tensor  # the parameters late in the optimisation; zeros before


class _SavedState(NamedTuple):
    """Store for the state of one optimisation."""

    checkpoint: Checkpoint
    name: str

    def load(self, first: State) -> State:
        """Return the state that was saved, or the first one."""
        saved = self.checkpoint.load(self.name)
        if saved is None:
            return first
        tensors = (saved[name].to(first.pressure) for name in ("pressure", "velocity", "late"))
        return State(int(saved["turn"]), *tensors)

    def save(self, state: State) -> None:
        tensors = state._asdict() | {"turn": torch.tensor(state.turn)}
        self.checkpoint.save(self.name, tensors)


class Optimised(NamedTuple):
    """Masks, and how far they have converged."""

    masks: Tensor  # (n, H, W)
    area: Tensor  # (n,): the mean over the mask with its margin, which the target is for
    change: Tensor  # (n,): mean absolute change of the mask in the last tenth of the steps


def note_unconverged(
    notes: MapNotes, sample: Tensor, areas: Tensor, found: Optimised, steps: int
) -> None:
    """Note on masks whose area is not that wanted, or that were still changing.

    Args:
        notes: Where to add the notes.
        sample: The row of each mask, ``(n,)``.
        areas: The area that each mask should have, ``(n,)``.
        found: The masks.
        steps: How many steps they were optimised for.
    """
    columns = (sample, areas, found.area, found.change)
    for row, area, reached, change in zip(*(c.tolist() for c in columns), strict=True):
        if abs(reached - area) > AREA_TOLERANCE * area:
            outcome = f"the mask covers {reached:.2f} of its area instead of {area:.2f}"
        elif change > CHANGE_TOLERANCE * area:
            outcome = f"{change:.3f} of the mask changed in the last tenth of the steps"
        else:
            continue
        notes.add(row, f"not converged: {outcome} after {steps} steps")


def optimised(
    model: Model,
    pyramid: Tensor,
    target: Tensor,
    areas: Tensor,
    bumps: Bumps,
    steps: int,
    jitter: bool,
    score: str,
    saved: _SavedState,
) -> Optimised:
    """Optimise masks by gradient descent with momentum, each by itself.

    Args:
        model: The model.
        pyramid: Blurred inputs, ``(n, levels, C, H, W)``.
        target: Class indices of shape ``(n,)``.
        areas: The fraction of the map that each mask takes, ``(n,)``.
        bumps: The smooth masks.
        steps: The number of successive masks.
        jitter: Whether every other step looks at the mirror image.
        score: The name of the score.
        saved: Where the state is kept, and continued from.

    Returns:
        The masks, the areas that they have reached, and how much they still changed.
    """
    ones = pyramid.new_ones(len(pyramid), *bumps.grid)
    start = State(0, ones, torch.zeros_like(ones), torch.zeros_like(ones))
    first, pressure, velocity, late = saved.load(start)
    area_weight = AREA_WEIGHT
    for _ in range(first):
        area_weight *= AREA_WEIGHT_GROWTH
    for turn in range(first, steps - 1):
        masks, whole = bumps.masks(pressure)
        if turn == int(LATE_FRACTION * (steps - 1)):
            late = pressure
        points, slope = at_level(pyramid, bumps.inner(masks))
        mirrored = (3,) if jitter and turn % 2 == 0 else ()
        gradient = model.gradient(points.flip(mirrored), target, score=score).gradient
        goal = largest(masks, areas)
        uphill = 2 * area_weight / masks[0].numel() * (masks - goal)
        bumps.inner(uphill).sub_((gradient.flip(mirrored) * slope).sum(1))
        change = bumps.vjp(pressure, masks, whole, uphill)
        velocity = change if turn == 0 else MOMENTUM * velocity + (1 - MOMENTUM) * change
        pressure = (pressure - LEARNING_RATE * velocity).clamp(0, 1)
        area_weight *= AREA_WEIGHT_GROWTH
        saved.save(State(turn + 1, pressure, velocity, late))
    masks = bumps.masks(pressure)[0]
    change = (masks - bumps.masks(late)[0]).abs().mean((1, 2))
    return Optimised(bumps.inner(masks), masks.mean((1, 2)), change)


def blurred(x: Tensor, widest: float) -> Tensor:  # (n, C, H, W) -> (n, levels, C, H, W)
    """Blur images, from the widest blur to none; zeros surround the image."""
    sigmas = [widest * (1 - level / (BLUR_LEVELS - 1)) for level in range(BLUR_LEVELS - 1)]
    return torch.stack(
        [*(separable(x, gaussian(2 * math.ceil(4 * s) + 1, s), "constant") for s in sigmas), x], 1
    )


def at_level(pyramid: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:  # -> (n, C, H, W) twice
    """Return images blurred by each position's level, and their derivative by the mask's value."""
    level = masks[:, None, None] * (BLUR_LEVELS - 1)
    below = level.floor()
    index = below.long().expand(-1, -1, *pyramid.shape[2:])
    low, high = (
        pyramid.gather(1, i)[:, 0] for i in (index, (index + 1).clamp(max=BLUR_LEVELS - 1))
    )
    return low.lerp(high, (level - below)[:, 0]), (high - low) * (BLUR_LEVELS - 1)


def largest(masks: Tensor, areas: Tensor) -> Tensor:  # (n, h, w), (n,) -> same as masks
    """Return one in the given fraction of positions, where the mask is largest; zero elsewhere.

    Equal positions at the border share what is left, so that rounding does not choose among them:
    the first masks, of equal bumps, are full of them.
    """
    flat = masks.flatten(1)
    below = [int(flat.shape[1] * (1 - area)) for area in areas.tolist()]
    border = torch.stack(
        [row.kthvalue(count + 1).values for row, count in zip(flat, below, strict=True)]
    )[:, None]
    above = flat > border + MASK_TOLERANCE
    level = (flat - border).abs() <= MASK_TOLERANCE
    left = flat.shape[1] - torch.tensor(below, device=flat.device) - above.sum(1)
    goal = torch.where(level, (left / level.sum(1)).to(flat)[:, None], above.to(flat))
    return goal.reshape(masks.shape)


@dataclass(frozen=True)
class Bumps:
    """Smooth masks: the soft maximum of bumps on a grid, each as high as its pressure.

    Masks have a margin around the map. Positions are numbered (inside a step, which step), so that
    a bump's part in all of them is an outer product of its profile and its pressure.

    Attributes:
        size: Height and width of the map.
        step: The distance between bumps.
        sigma: The reach of the bumps, and the width of the margin.
    """

    size: tuple[int, int]
    step: int
    sigma: int

    @property
    def grid(self) -> tuple[int, int]:
        """The number of bumps down and along."""
        height, width = (-(-side // self.step) for side in self.size)
        return height, width

    @property
    def around(self) -> int:
        """The number of bumps to each side that reach a position."""
        return 1 + -(-self.sigma // self.step)

    @property
    def padding(self) -> int:
        """The number of bumps around the grid that the margin needs."""
        return 1 + -(-2 * self.sigma // self.step)

    @property
    def blocks(self) -> tuple[int, int]:
        """The number of steps down and along, with the margin."""
        height, width = (side + 2 * (self.padding - self.around) for side in self.grid)
        return height, width

    @cached_property
    def profiles(self) -> Tensor:
        """Profiles (bumps², step²) of the bumps that reach a position, by where in a step it is."""
        reach = torch.arange(2 * self.around + 1) - self.padding
        away = torch.arange(self.step) - self.sigma - self.step * reach[:, None]
        squares = away[:, None, :, None] ** 2 + away[None, :, None, :] ** 2
        distance = squares.float().sqrt().reshape(len(reach) ** 2, -1)
        return torch.exp(-2 * (distance / self.sigma - 0.5).clamp(min=0) ** 2)

    def masks(self, pressure: Tensor) -> tuple[Tensor, Tensor]:
        """Compute masks ``(n, h, w)`` of pressures ``(n, g, g)``, and what ``vjp`` needs again."""
        masks, whole = (
            torch.stack(part) for part in zip(*map(self._pooled, pressure), strict=True)
        )
        return self._arranged(masks), whole

    # One mask at a time, in the same memory for every bump: in the cache it takes half the time.

    def _pooled(self, pressure: Tensor) -> tuple[Tensor, Tensor]:  # (g, g) -> (step², blocks) twice
        """Compute Σ v e^{20 v} / Σ e^{20 v} over the bumps, and the denominator."""
        reaching = self._reaching(pressure)
        profiles = SOFT_MAXIMUM_COLDNESS * self.profiles.to(pressure)[:, :, None]
        total = pressure.new_zeros(profiles.shape[1], reaching.shape[1])
        whole = torch.zeros_like(total)
        height = torch.empty_like(total)
        weight = torch.empty_like(total)
        for profile, bump in zip(profiles, reaching, strict=True):
            torch.mul(profile, bump, out=height)
            torch.exp(height, out=weight)
            total.addcmul_(height, weight)
            whole += weight
        return total / (SOFT_MAXIMUM_COLDNESS * whole), whole

    def vjp(self, pressure: Tensor, masks: Tensor, whole: Tensor, uphill: Tensor) -> Tensor:
        """Compute the gradient with respect to the pressure from that with respect to the masks.

        Args:
            pressure: The pressures, ``(n, g, g)``.
            masks: What ``masks`` made of them, ``(n, h, w)``.
            whole: The second result of ``masks``.
            uphill: The gradient with respect to the masks, ``(n, h, w)``.

        Returns:
            The gradient, ``(n, g, g)``.
        """
        slots = self._slots(masks)
        arriving = self._slots(uphill) / whole
        rows = zip(pressure, slots, arriving, strict=True)
        return torch.stack([self._vjp_of_one(*row) for row in rows])

    def _vjp_of_one(
        self, pressure: Tensor, masks: Tensor, arriving: Tensor
    ) -> Tensor:  # (g, g), (step², blocks) twice -> (g, g)
        reaching = self._reaching(pressure)
        profiles = self.profiles.to(pressure)
        parts = torch.empty_like(reaching)
        base = (1 - SOFT_MAXIMUM_COLDNESS * masks) * arriving
        height = torch.empty_like(base)
        slope = torch.empty_like(base)
        for profile, bump, part in zip(profiles, reaching, parts, strict=True):
            torch.mul(SOFT_MAXIMUM_COLDNESS * profile[:, None], bump, out=height)
            torch.addcmul(base, height, arriving, out=slope).mul_(height.exp_())
            torch.mv(slope.T, profile, out=part)
        size = (self.grid[0] + 2 * self.padding, self.grid[1] + 2 * self.padding)
        back = F.fold(parts, size, 2 * self.around + 1)[0]
        return back[self.padding : -self.padding, self.padding : -self.padding]

    def _reaching(self, pressure: Tensor) -> Tensor:  # (g, g) -> (bumps², blocks)
        return F.unfold(F.pad(pressure[None], (self.padding,) * 4), 2 * self.around + 1)

    def _arranged(self, slots: Tensor) -> Tensor:  # (n, step², blocks) -> (n, h, w)
        grid = slots.reshape(len(slots), self.step, self.step, *self.blocks).permute(0, 3, 1, 4, 2)
        height, width = (self.step * side for side in self.blocks)
        return grid.reshape(len(slots), height, width)[
            :, : height - self.step + 1, : width - self.step + 1
        ]

    def _slots(self, masks: Tensor) -> Tensor:  # (n, h, w) -> (n, step², blocks)
        """Number positions as bumps do; zero where there is no position."""
        full = F.pad(masks, (0, self.step - 1, 0, self.step - 1))
        height, width = self.blocks
        blocks = full.reshape(len(masks), height, self.step, width, self.step)
        return blocks.permute(0, 2, 4, 1, 3).flatten(3).flatten(1, 2)

    def inner(self, masks: Tensor) -> Tensor:
        """Return a view of the masks without the margin."""
        rows = slice(self.sigma, self.sigma + self.size[0])
        columns = slice(self.sigma, self.sigma + self.size[1])
        return masks[:, rows, columns]
