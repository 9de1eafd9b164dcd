"""An example of a package that extends heatproof with a method, a baseline, a protocol and data."""

from __future__ import annotations

import torch
from torch import Tensor

import heatproof as hp


@hp.method("gradient-norm", family="gradient", signed=False, needs=("gradient",), cost=(0, 1))
def gradient_norm(model: hp.Model, x: Tensor, target: Tensor, *, rng: object) -> Tensor:
    """Norm of the gradient over channels."""
    return model.gradient(x, target).gradient.norm(dim=1)


@hp.baseline("checkerboard")
def checkerboard(x: Tensor, *, model: hp.Model, rng: object, side: int = 8) -> Tensor:
    """Squares of black and white."""
    rows, columns = (torch.arange(n, device=x.device) // side for n in x.shape[-2:])
    black, white = model.input_range
    return torch.where((rows[:, None] + columns) % 2 == 0, black, white)[None]


@hp.protocol
class CenterMass(hp.Protocol):
    """Fraction of the attribution in the middle of the image."""

    id = "center-mass"
    higher_is_better = True
    range = (0.0, 1.0)

    border: int = 16

    def score_maps(
        self, model: hp.Model, batch: hp.EvalBatch, shared: object, maps: Tensor
    ) -> hp.Scores:
        """Return one score per map; maps of zeros have none."""
        mass = maps.abs().double()
        inner = mass[:, self.border : -self.border, self.border : -self.border].sum((1, 2))
        total = mass.sum((1, 2))
        reasons = ["" if positive else "the map is zero" for positive in (total > 0).tolist()]
        return hp.Scores(inner / total, reasons)


@hp.dataset("dots")
def dots(*, model: hp.Model | None, limit: int | None, seed: int) -> hp.TensorData:
    """A white dot on noise; the label is the quarter of the image that it is in."""
    size = model.size if model else 64
    count = limit or 64
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 * torch.rand(count, 3, size, size, generator=generator)
    for i in range(count):
        top, left = (size // 2 * part + size // 8 for part in divmod(i % 4, 2))
        images[i, :, top : top + size // 4, left : left + size // 4] = 1
    return hp.TensorData(images, [i % 4 for i in range(count)], name="dots")
