"""A grid of n×n images as a network can look at it (Rao et al. 2024). Each view is a `Model` with the layers of the network up to its head.

`gridpg` sees the grid as one image. A head that takes the mean over all places does so; a fully connected one slides over the features, and
its logits are averaged. `difull` sees every cell for itself, and answers for one of them. `dipart` has features of the whole grid, and its
head sees those of one cell. Weights are those of the network, not copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from heatproof.errors import NotApplicable
from heatproof.models.body import Body, Steps
from heatproof.models.guards import eval_mode
from heatproof.models.model import Model
from heatproof.models.vit import is_vit


def gridpg(model: Model, grid: int) -> Model:
    """One answer for the whole grid."""
    split = _split(model, grid)
    pools = _pools(model, split.cut)
    if pools and _runs(model, split.cut, grid):
        return model.viewed(f"gridpg {grid}×{grid}", grid, model.body)
    step = (
        (split.height, split.width) if pools else (1, 1)
    )  # a pool of fixed size looks at one cell after the other
    head = _sliding(model.body, split, step)
    return model.viewed(f"gridpg {grid}×{grid}", grid, Connected(model.body, split.cut, head))


def difull(model: Model, grid: int, cell: int) -> Model:
    """The answer for one cell, from which all others are cut off; activations show all cells side by side."""
    return model.viewed(
        f"difull {grid}×{grid}, cell {cell}",
        grid,
        Disconnected(model.body, _cut(model), grid, cell),
    )


def dipart(model: Model, grid: int, cell: int) -> Model:
    """The answer for one cell: its features have seen what lies around it, its head sees nothing else."""
    split = _split(model, grid)
    top, left = split.down * (cell // grid), split.along * (cell % grid)

    def head(h: Tensor, watch: Collection[int]) -> tuple[Tensor, dict[int, Tensor]]:
        return model.body.run(
            h[..., top : top + split.height, left : left + split.width], split.cut, watch=watch
        )

    return model.viewed(
        f"dipart {grid}×{grid}, cell {cell}", grid, Connected(model.body, split.cut, head, cell)
    )


def visible_cell(model: Model) -> int | None:
    """Return the grid cell that the model's answer depends on, or None if it sees the whole image."""
    return model.body.cell if isinstance(model.body, Connected | Disconnected) else None


Head = Callable[
    [Tensor, Collection[int]], tuple[Tensor, dict[int, Tensor]]
]  # (features, layers to watch) -> logits, what was seen


class Connected:
    """Features of the whole grid, and a head that looks at them in a way of its own."""

    cell: int | None  # the grid cell that the head sees; None where it sees all of them

    def __init__(self, inner: Body, cut: int, head: Head, cell: int | None = None):
        self.inner, self.cut, self.head, self.cell = inner, cut, head, cell
        self.layers, self.aliases = _shown(inner, cut)

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        h, seen = self.inner.run(h, start, self.cut if stop is None else stop, watch)
        if stop is not None:
            return h, seen
        logits, behind = self.head(h, _behind(watch, self.cut))
        return logits, seen | behind

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        return (
            None
            if steps is None
            else [*steps[: self.cut - start], ("head", lambda h: self.head(h, ())[0])]
        )

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer) if layer < self.cut else None


class Disconnected:
    """Every cell for itself. Only the judged one runs where nothing but the answer is asked for; the others never take gradients.

    The judged cell runs apart from the others, so that its numbers are the same to the bit whatever else is asked for.
    """

    def __init__(self, inner: Body, cut: int, grid: int, cell: int):
        self.inner, self.cut, self.grid, self.cell = inner, cut, grid, cell
        self.layers, self.aliases = _shown(inner, cut)

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen = {start: h} if start in watch else {}
        end = self.cut if stop is None else stop
        for layer in sorted(
            {at for at in watch if start < at <= end}
            | ({end} if stop is not None and end > start else set())
        ):
            h, start = self._side_by_side(h, start, layer), layer
            if layer in watch:
                seen[layer] = h
        if stop is not None:
            return h, seen
        logits, behind = self.inner.run(self.crop(h), start, watch=_behind(watch, self.cut))
        return logits, seen | behind

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        return None if steps is None else [("crop", self.crop), *steps]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer) if layer < self.cut else None

    def crop(self, h: Tensor, cell: int | None = None) -> Tensor:
        """One cell of the image or of features, by default the judged one."""
        row, column = divmod(self.cell if cell is None else cell, self.grid)
        height, width = h.shape[-2] // self.grid, h.shape[-1] // self.grid
        left, above = -column * width, -row * height
        right, below = (1 - self.grid) * width - left, (1 - self.grid) * height - above
        return pad(h, (left, right, above, below))  # a copy that lies in memory as h does

    def _side_by_side(self, h: Tensor, start: int, stop: int) -> Tensor:
        others = [cell for cell in range(self.grid**2) if cell != self.cell]
        judged = self.inner.run(self.crop(h), start, stop)[0]
        with torch.no_grad():
            rest = self.inner.run(torch.cat([self.crop(h, cell) for cell in others]), start, stop)[
                0
            ]
        cells = dict(zip(others, rest.chunk(len(others)), strict=True)) | {self.cell: judged}
        rows = [
            torch.cat([cells[row * self.grid + column] for column in range(self.grid)], -1)
            for row in range(self.grid)
        ]
        return torch.cat(rows, -2)


def _shown(inner: Body, cut: int) -> tuple[list[str], dict[str, int]]:
    return inner.layers[: cut + 1], {name: at for name, at in inner.aliases.items() if at <= cut}


def _behind(watch: Collection[int], cut: int) -> list[int]:
    """Layers of the head, where nothing has a place any more: what is seen of them belongs to the answer."""
    return [at for at in watch if at > cut]


class _Split(NamedTuple):
    """Where the head begins, and what a cell's features are among those of the grid."""

    cut: int
    height: int
    width: int
    down: int  # from one cell's features to those of the next
    along: int


def _cut(model: Model) -> int:
    if is_vit(model.module):
        raise NotApplicable(
            f"{model.name} is a vision transformer: it takes images of one size, and every block mixes all places, so no head can be cut "
            "off that sees one cell alone; grids are for convolutional networks"
        )
    if "cam" not in model.landmarks:
        raise NotApplicable(
            f"{model.name} does not show where its features end and its head begins; name the last spatial layer before the last pooling "
            'or flattening, such as hp.Model(…, layers=["layer3", "layer4"], aliases={"cam": "layer4"})'
        )
    return model.body.layers.index(model.landmarks["cam"])


def _split(model: Model, grid: int) -> _Split:
    cut = _cut(model)
    height, width = _features(model, cut).shape[2:]
    try:
        whole = _features(model, cut, grid).shape[2:]
    except (
        Exception
    ) as error:  # whatever a network says of an image that is larger than it is used to
        raise NotApplicable(
            f"{model.name} cannot run up to {model.body.layers[cut]} on a grid of {grid * model.size} px: {error}. Name layers that it can "
            "be cut at: hp.Model(…, layers=[…])"
        ) from error
    steps = [side - own for side, own in zip(whole, (height, width), strict=True)]
    if any(
        step % (grid - 1) or step < (grid - 1) * own
        for step, own in zip(steps, (height, width), strict=True)
    ):
        raise NotApplicable(
            f"{model.name} has features of {height}×{width} for a cell of {model.size} px, but of {whole[0]}×{whole[1]} for a grid of "
            f"{grid}×{grid}: its stride does not divide the cell, so cells have no features of their own; choose another size for the model"
        )
    return _Split(cut, height, width, *(step // (grid - 1) for step in steps))


def _features(model: Model, cut: int, scale: int = 1) -> Tensor:
    """Of one image of noise."""
    side = scale * model.size
    image = torch.rand((1, len(model.mean), side, side), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), eval_mode(model.module):
        return model.body.run(model.normalize(image), 0, cut)[0]


def _pools(model: Model, cut: int) -> bool:
    """Whether the head does not care in which order the places are."""
    features = _features(model, cut)
    order = torch.randperm(features[0, 0].numel(), generator=torch.Generator().manual_seed(0)).to(
        features.device
    )
    with torch.no_grad(), eval_mode(model.module):
        plain = model.body.run(features, cut)[0]
        shuffled = model.body.run(features.flatten(2)[..., order].view_as(features), cut)[0]
    return torch.allclose(plain, shuffled, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


def _runs(model: Model, cut: int, grid: int) -> bool:
    try:
        with torch.no_grad(), eval_mode(model.module):
            return model.body.run(_features(model, cut, grid), cut)[0].shape == (1, model.n_classes)
    except (RuntimeError, ValueError):  # shapes that do not fit
        return False


def _sliding(inner: Body, split: _Split, step: tuple[int, int]) -> Head:
    def head(h: Tensor, watch: Collection[int]) -> tuple[Tensor, dict[int, Tensor]]:
        windows = (
            h.unfold(2, split.height, step[0])
            .unfold(3, split.width, step[1])
            .permute(0, 2, 3, 1, 4, 5)
        )
        logits, seen = inner.run(windows.flatten(0, 2), split.cut, watch=watch)
        return _mean(logits, len(h)), {at: _mean(there, len(h)) for at, there in seen.items()}

    return head


def _mean(places: Tensor, samples: int) -> Tensor:
    """Over the windows of each sample."""
    return places.view(samples, -1, *places.shape[1:]).mean(1)
