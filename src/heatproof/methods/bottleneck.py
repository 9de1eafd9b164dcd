"""Information bottleneck attribution (Schulz et al. 2020).

Which features can be replaced by noise without changing the prediction?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heatproof.errors import NotApplicable
from heatproof.methods.base import method
from heatproof.methods.checkpoint import Checkpoint
from heatproof.methods.notes import MapNotes
from heatproof.models.model import Model
from heatproof.tensor.filters import gaussian, separable
from heatproof.tensor.noise import Rng

SMALLEST = 0.01  # standard deviation
LATE_FALL = 0.02  # of the objective in its last tenth, relative to its whole fall, once converged
ACTIVE = 0.01  # the fraction of reference images in which a feature must be non-zero to count
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
    return {"mean": mean.float(), "std": std.float(), "active": (active >= ACTIVE).float()}


@method(
    "iba",
    family="perturbation",
    paper="Schulz et al. 2020",
    signed=False,
    layer="middle",
    needs=("reference",),
    cost=lambda arguments: (0, arguments["steps"] * arguments["copies"]),
    prepare=statistics,
    version=2,
)
def iba(
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rng: Rng,
    prepared: Mapping[str, Tensor],
    notes: MapNotes | None = None,
    checkpoint: Checkpoint | None = None,
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
    kernel = gaussian(5, 1.0)
    if min(x.shape[2:]) <= len(kernel) // 2:
        raise NotApplicable(
            f"iba smooths features with a kernel of {len(kernel)}, too wide for the {x.shape[2]}×"
            f"{x.shape[3]} of {model.start_layer}; name an earlier layer"
        )
    mean = prepared["mean"].to(x)
    active = prepared["active"].to(x)
    std = prepared["std"].to(x).clamp(min=SMALLEST)
    alpha = torch.full_like(x, 5.0).requires_grad_()
    optimiser = torch.optim.Adam([alpha], lr=lr)
    capacity = torch.zeros_like(x)
    objectives: list[Tensor] = []
    if checkpoint is not None:
        objectives += _restored(checkpoint, alpha, optimiser)
    for step in range(len(objectives), steps):
        with torch.enable_grad():
            keep = separable(alpha.sigmoid(), kernel, "reflect")
            capacity = _bits((x - mean) / std, keep) * active
            cost = beta * capacity.flatten(1).mean(1)
        drawn = rng.normal(f"iba {step}", (copies, *x.shape[1:])).to(x)  # (B, copies, C, h, w)
        noise = mean + std * drawn
        slope, entropy = _slope(model, x, target, keep.detach(), noise, active)
        objectives.append(cost.detach() + entropy)
        optimiser.zero_grad()
        torch.autograd.backward([cost.sum(), keep], [torch.ones_like(cost[0]), slope])
        optimiser.step()
        if checkpoint is not None and step < steps - 1:
            _save(checkpoint, alpha, optimiser, objectives)
    if notes is not None:
        note_unconverged(notes, torch.stack(objectives))
    return capacity.detach().sum(1) / log(2)


def _save(
    checkpoint: Checkpoint, alpha: Tensor, optimiser: torch.optim.Adam, objectives: list[Tensor]
) -> None:
    """Save copies of what the next step needs; Adam changes its tensors in place."""
    of_adam = {name: values.clone() for name, values in optimiser.state[alpha].items()}
    state = {"alpha": alpha.detach().clone(), "objectives": torch.stack(objectives)}
    checkpoint.save("bottleneck", state | of_adam)


def _restored(checkpoint: Checkpoint, alpha: Tensor, optimiser: torch.optim.Adam) -> list[Tensor]:
    """Continue from what was saved: return the objectives of the steps that are done."""
    saved = checkpoint.load("bottleneck")
    if saved is None:
        return []
    of_adam = {name: saved[name].clone() for name in saved if name not in ("alpha", "objectives")}
    for name, values in of_adam.items():
        optimiser.state[alpha][name] = values if name == "step" else values.to(alpha)
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


def _bits(z: Tensor, keep: Tensor) -> Tensor:
    """Compute the KL divergence from pure noise, in nats; z is the standardized feature."""
    left = (1 - keep) ** 2
    return 0.5 * ((keep * z) ** 2 + left - left.clamp(min=1e-12).log() - 1)


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
