"""Baselines that put the image's own pixels, or the parts of its spectrum, in another order. Channels stay together."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from heatproof.baselines.base import baseline
from heatproof.baselines.fills import Cells, cell_middles, enlarged
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.tensor.resample import nearest

Compat = Literal["xplique"] | None


@baseline("permutation", group="local")
def permutation(x: Tensor, *, model: Model | None, rng: Rng, compat: Compat = None) -> Tensor:
    """The pixels of each image in random order; `compat=xplique`: in the same order for all images."""
    return permuted(x, _drawn(rng, "permutation", x.shape[2:].numel(), compat).argsort(stable=True))


@baseline("local-permutation", group="local")
def local_permutation(
    x: Tensor, *, model: Model | None, rng: Rng, cells: Cells = 8, compat: Compat = None
) -> Tensor:
    """Pixels in random order within each cell of an 8×8 grid; `compat=xplique`: one value a cell, and the cells in one random order."""
    if compat == "xplique":
        order = _drawn(rng, "local-permutation", cells**2, compat).argsort(stable=True)
        return enlarged(permuted(cell_middles(x, cells), order), *x.shape[2:])
    rows, columns = (nearest(side, min(cells, side)) for side in x.shape[2:])
    return permuted(
        x,
        order_within(
            (rows[:, None] * cells + columns).flatten(),
            _drawn(rng, "local-permutation", x.shape[2:].numel()),
        ),
    )


@baseline("scramble-magnitude", group="spectral")
def scramble_magnitude(
    x: Tensor, *, model: Model | None, rng: Rng, compat: Compat = None
) -> Tensor:
    """The image with the magnitudes of its spectrum in random order; `compat=xplique`: over width and channels, in one order, positive."""
    return scrambled(x, "magnitude", _spectral_order(x, rng, "scramble-magnitude", compat), compat)


@baseline("scramble-phase", group="spectral")
def scramble_phase(x: Tensor, *, model: Model | None, rng: Rng, compat: Compat = None) -> Tensor:
    """The image with the phases of its spectrum in random order; `compat=xplique`: over width and channels, in one order, positive."""
    return scrambled(x, "phase", _spectral_order(x, rng, "scramble-phase", compat), compat)


def permuted(x: Tensor, order: Tensor) -> Tensor:  # (B, C, H, W), (B, H·W) or (H·W,) -> like x
    """Place j takes what is at place order[j]."""
    return (
        x.flatten(2)
        .gather(2, order.expand(len(x), -1)[:, None].expand(-1, x.shape[1], -1))
        .reshape(x.shape)
    )


def order_within(group: Tensor, draw: Tensor) -> Tensor:  # (P,), (B, P) in [0, 1) -> (B, P)
    """Random orders in which every place takes something of its own group."""
    group = group.to(draw.device)
    shuffled = (group + draw.double()).argsort(stable=True)
    return torch.empty_like(shuffled).index_copy_(1, group.argsort(stable=True), shuffled)


def mirrored_order(draw: Tensor) -> Tensor:  # (B, H, W) in [0, 1) -> (B, H·W)
    """Random orders of the frequencies in which mirrored ones, k and −k, stay mirrored, so that the image stays real.

    Those that are their own mirrors, the mean and the Nyquist frequencies of even sides, only change places with each other.
    """
    height, width = draw.shape[1:]
    place = torch.arange(height * width, device=draw.device)
    mirror = place.reshape(height, width).flip(0, 1).roll((1, 1), (0, 1)).flatten()
    alone, first = place[place == mirror], place[place < mirror]
    second, draw = mirror[first], draw.flatten(1)
    taken = first[draw[:, first].argsort(stable=True)]
    taken = torch.where(draw[:, second] < 0.5, taken, mirror[taken])
    order = torch.empty_like(draw, dtype=torch.long)
    order[:, alone] = alone[draw[:, alone].argsort(stable=True)]
    order[:, first], order[:, second] = taken, mirror[taken]
    return order


def scrambled(
    x: Tensor, what: Literal["magnitude", "phase"], order: Tensor, compat: Compat = None
) -> Tensor:
    """Magnitudes or phases of the spectrum in that order (B, H·W) or (H·W,), and back to an image."""
    axes = (3, 1) if compat == "xplique" else (2, 3)
    spectrum = torch.fft.fft2(x.double(), dim=axes)
    magnitude, phase = spectrum.abs(), spectrum.angle()
    if what == "magnitude":
        magnitude = permuted(magnitude, order)
    else:
        phase = permuted(phase, order)
    image = torch.fft.ifft2(torch.polar(magnitude, phase), dim=axes)
    return (image.abs() if compat == "xplique" else image.real).to(x)


def _spectral_order(x: Tensor, rng: Rng, name: str, compat: Compat) -> Tensor:
    draw = _drawn(rng, name, x.shape[2:].numel(), compat)
    return (
        draw.argsort(stable=True)
        if compat == "xplique"
        else mirrored_order(draw.reshape(-1, *x.shape[2:]))
    )


def _drawn(
    rng: Rng, name: str, places: int, compat: Compat = None
) -> Tensor:  # (B, places), or (places,)
    return (
        rng.once(f"baseline {name}", (places,))
        if compat == "xplique"
        else rng.uniform(f"baseline {name}", (places,))
    )
