"""Information bottleneck attribution (Schulz et al. 2020).

Which features can be replaced by noise without changing the prediction?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method
from heatproof.methods.notes import MapNotes
from heatproof.methods.optimisation_state import Checkpoint
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng

MASK_KERNEL = gaussian(5, 1.0)
SMALLEST_STD = 0.01
LATE_FALL = 0.02  # of the objective in its last tenth, relative to its whole fall, once converged
ACTIVE_FRACTION = 0.01  # of the reference images, in which a feature must be non-zero to count
Count = Annotated[int, Field(ge=1)]


def statistics(model: Model, images: Iterator[Tensor]) -> dict[str, Tensor]:
    """Compute statistics of every feature over the reference images, in double precision.

    Args:
        model: The network from the method's layer on.
        images: Batches of reference images, ``(B, C, H, W)``.

    Returns:
        ``mean``, ``std`` and ``active`` (1 where a feature is active often enough, else 0), each of
        the shape ``(C, h, w)`` of the features.
    """
    count = 0
    sums = torch.zeros(())
    for x in images:
        h = model.root.activation(x, model.start_layer).double()
        count += len(h)
        sums = sums.to(h) + torch.stack([h.sum(0), (h**2).sum(0), (h != 0).sum(0)])
    mean, square, active = sums / count
    std = (square - mean**2).clamp(min=0).sqrt()
    return {"mean": mean.float(), "std": std.float(), "active": (active >= ACTIVE_FRACTION).float()}


def why_no_probability(model: Model) -> str:
    """Return why a bottleneck cannot keep what predicts a class; empty if it can."""
    if model.head != "regression":
        return ""
    return f"{model.name} has a regression head, and a bottleneck keeps the probability of a class"


@method(
    "iba",
    family="perturbation",
    paper="Schulz et al. 2020",
    signed=False,
    layer="middle",
    needs=("reference",),
    cost=lambda arguments: (0, arguments["steps"] * arguments["copies"]),
    applies=why_no_probability,
    prepare=statistics,
    version=2,
    stochastic=True,
)
def iba(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    prepared: Mapping[str, Tensor],
    notes: MapNotes,
    checkpoint: Checkpoint,
    beta: Annotated[float, Field(gt=0)] = 10.0,
    steps: Count = 10,
    copies: Count = 10,
    lr: Annotated[float, Field(gt=0)] = 1.0,
) -> Tensor:
    """Bits per position that reach the output when features are as noisy as the prediction allows.

    Args:
        model: The model to explain at its input.
        x: Its input, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise.
        prepared: What ``statistics`` returned.
        notes: Where maps are noted whose objective fell in the last tenth of the steps by more
            than a fiftieth of its whole fall.
        checkpoint: Keeps the state of the optimisation.
        beta: The weight of the information against the cross entropy.
        steps: Steps of Adam.
        copies: Noisy copies per step.
        lr: The learning rate.
    """
    if min(x.shape[2:]) <= len(MASK_KERNEL) // 2:
        raise NotApplicable(
            f"iba smooths features with a kernel of {len(MASK_KERNEL)}, too wide for the "
            f"{x.shape[2]}×{x.shape[3]} of {model.start_layer}; name an earlier layer"
        )
    noise = FeatureNoise.of(prepared, x)
    settings = Settings(beta, steps, copies, lr)
    found = optimised(model, x, target, rng, noise, settings, "iba", checkpoint)
    note_unconverged(notes, found.objectives)
    return found.capacity.sum(1) / log(2)


class FeatureNoise(NamedTuple):
    """Replacement of a feature: Gaussian noise of its mean and standard deviation."""

    mean: Tensor  # each broadcasts with (B, C, h, w)
    std: Tensor
    active: Tensor  # 0 for features that are left out

    @classmethod
    def of(cls, statistics: Mapping[str, Tensor], like: Tensor) -> FeatureNoise:
        """Return the noise that has the statistics of reference images."""
        mean, std, active = (statistics[name].to(like) for name in ("mean", "std", "active"))
        return cls(mean, std.clamp(min=SMALLEST_STD), active)


class Settings(NamedTuple):
    """Settings of the optimisation of a bottleneck."""

    beta: float
    steps: int
    copies: int
    lr: float


class Bottleneck(NamedTuple):
    """An optimised bottleneck."""

    keep: Tensor  # (B, C, h, w): how much of each feature passes, in [0, 1]
    capacity: Tensor  # (B, C, h, w), in nats, before the last step
    objectives: Tensor  # (steps, B)


def optimised(
    model: Model,
    x: Tensor,
    target: Tensor,
    rng: Rng,
    noise: FeatureNoise,
    settings: Settings,
    name: str,
    checkpoint: Checkpoint,
    prior: Tensor | float = 0.0,
) -> Bottleneck:
    """Find how much of every feature must pass for the prediction to stay.

    Args:
        model: The model from the features on.
        x: The features, ``(B, C, h, w)``.
        target: Class indices of shape ``(B,)``.
        rng: The samples' noise.
        noise: What replaces features.
        settings: How to optimise.
        name: What the noise is drawn for, and under which the state is kept.
        checkpoint: Keeps the state of the optimisation.
        prior: How much of each feature is expected to pass; information is counted beyond it.
    """
    beta, steps, copies, lr = settings
    alpha = torch.full_like(x, 5.0).requires_grad_()
    optimiser = torch.optim.Adam([alpha], lr=lr)
    capacity = torch.zeros_like(x)
    objectives = _restored(checkpoint, name, alpha, optimiser)
    for step in range(len(objectives), steps):
        with torch.enable_grad():
            keep = smoothed(alpha)
            capacity = information((x - noise.mean) / noise.std, keep, prior) * noise.active
            cost = beta * capacity.flatten(1).mean(1)
        drawn = rng.normal(f"{name} {step}", (copies, *x.shape[1:])).to(x)  # (B, copies, C, …)
        slope, entropy = _slope(
            model, x, target, keep.detach(), noise.mean + noise.std * drawn, noise.active
        )
        objectives.append(cost.detach() + entropy)
        optimiser.zero_grad()
        torch.autograd.backward([cost.sum(), keep], [torch.ones_like(cost[0]), slope])
        optimiser.step()
        if step < steps - 1:
            _save(checkpoint, name, alpha, optimiser, objectives)
    return Bottleneck(smoothed(alpha.detach()), capacity.detach(), torch.stack(objectives))


def smoothed(alpha: Tensor) -> Tensor:
    """Return how much passes, in [0, 1] and smooth over positions, from free parameters."""
    return separable(alpha.sigmoid(), MASK_KERNEL, "reflect")


def _save(
    checkpoint: Checkpoint,
    name: str,
    alpha: Tensor,
    optimiser: torch.optim.Adam,
    objectives: list[Tensor],
) -> None:
    """Save copies of what the next step needs; Adam changes its tensors in place."""
    of_adam = {name: values.clone() for name, values in optimiser.state[alpha].items()}
    state = {"alpha": alpha.detach().clone(), "objectives": torch.stack(objectives)}
    checkpoint.save(name, state | of_adam)


def _restored(
    checkpoint: Checkpoint, name: str, alpha: Tensor, optimiser: torch.optim.Adam
) -> list[Tensor]:
    """Continue from what was saved: return the objectives of the steps that are done."""
    saved = checkpoint.load(name)
    if saved is None:
        return []
    of_adam = {key: saved[key].clone() for key in saved if key not in ("alpha", "objectives")}
    for key, values in of_adam.items():
        optimiser.state[alpha][key] = values if key == "step" else values.to(alpha)
    with torch.no_grad():
        alpha.copy_(saved["alpha"])
    return list(saved["objectives"].to(alpha))


def note_unconverged(notes: MapNotes, objectives: Tensor) -> None:
    """Note on maps whose objective was still falling at the end.

    Args:
        notes: Where to add the notes.
        objectives: The objective of each map at every step, ``(steps, B)``.
    """
    steps = len(objectives)
    last = objectives[-1]
    late = objectives[max(0, steps - 1 - max(1, steps // 10))]
    columns = (objectives[0] - last, late - last, last)
    for row, (fall, late_fall, value) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if late_fall > LATE_FALL * fall or fall <= 0:
            notes.add(
                row,
                f"not converged: the objective fell by {fall:.3g} to {value:.3g} in {steps} steps, "
                f"by {late_fall:.3g} in the last tenth",
            )


def information(z: Tensor, keep: Tensor, prior: Tensor | float = 0.0) -> Tensor:
    """Compute the KL divergence of a noisy feature from what the prior expects, in nats.

    The feature is z with the noise N(0, 1): N(λz, (1 − λ)²); the prior, N(λmz, (1 − λm)²), keeps a
    part m of it. Nothing is left to tell where the prior keeps everything, m = 1; with m = 0 it is
    the divergence from pure noise.

    Args:
        z: Standardized features.
        keep: How much of each passes, λ.
        prior: How much the prior keeps, m.
    """
    spread = (1 - prior * keep).clamp(min=1e-6)
    left = ((1 - keep) / spread) ** 2
    shift = keep * (1 - prior) * z / spread
    return 0.5 * (shift**2 + left - left.clamp(min=1e-12).log() - 1)


def _slope(
    model: Model, x: Tensor, target: Tensor, keep: Tensor, noise: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:  # as x, (B,)
    """Compute the mean cross entropy over noisy copies, after its gradient by ``keep``."""
    total = torch.zeros_like(x)
    entropy = x.new_zeros(len(x))
    for sample, copy in model.passes.chunks(*noise.shape[:2]):
        drawn = noise[sample, copy]
        z = (keep[sample] * x[sample] + (1 - keep[sample]) * drawn) * active
        logits, _, gradient = model.gradient(z, target[sample], score="logprob")
        log_prob = model.score_function("logprob")(logits, target[sample])
        rows = sample.to(x.device)
        entropy.index_add_(0, rows, -log_prob / noise.shape[1])
        total.index_add_(0, rows, -gradient * active * (x[sample] - drawn) / noise.shape[1])
    return total, entropy
