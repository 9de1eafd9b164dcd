"""Views of a grid of n×n images (Rao et al. 2024).

Each view is a ``Model`` with the network's weights (not copies) and its layers up to the head.

- ``gridpg`` sees the grid as one image. A head that averages over all positions does so; a fully
  connected one slides over the features, and its logits are averaged.
- ``difull`` sees every grid cell by itself, and returns the logits of one of them.
- ``dipart`` has features of the whole grid, and its head sees those of one grid cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from heatproof.errors import NotApplicable
from heatproof.models.cutting import Body, Steps
from heatproof.models.guards import eval_mode
from heatproof.models.model import Model
from heatproof.models.vit import is_vit


def gridpg(model: Model, grid: int) -> Model:
    """Return the view that sees the grid as one image.

    Args:
        model: The network, for single images.
        grid: The number of grid cells along a side.

    Raises:
        NotApplicable: If the network cannot run on grids.
    """
    split = _split(model, grid)
    if split.pools and split.runs:
        return model.with_view(f"gridpg {grid}×{grid}", grid, model.body)
    # A pool of fixed size looks at one grid cell after the other.
    step = (split.height, split.width) if split.pools else (1, 1)
    head = _sliding(model.body, split, step)
    return model.with_view(f"gridpg {grid}×{grid}", grid, Connected(model.body, split.cut, head))


def difull(model: Model, grid: int, cell: int, rewritten: bool = False) -> Model:
    """Return the view that sees every grid cell by itself, and returns the logits of one.

    Activations show all grid cells side by side.

    Args:
        model: The network, for single images.
        grid: The number of grid cells along a side.
        cell: The grid cell that logits are for, row by row.
        rewritten: Whether to write the same function in other layers; see ``Rewritten``.

    Raises:
        NotApplicable: If the network cannot be cut before its head, or has no linear layer there.
    """
    cut = _cut(model)
    name = f"difull {grid}×{grid}, cell {cell}"
    if not rewritten:
        return model.with_view(name, grid, Disconnected(model.body, cut, grid, cell))
    layers = range(cut, len(model.body.layers))
    linear = [i for i in layers if isinstance(model.body.module_after(i), nn.Linear)]
    if not linear:
        raise NotApplicable(
            f"{model.name} has no linear layer after {model.body.layers[cut]}; difull can rewrite "
            "those that have one"
        )
    body = Rewritten(model.body, cut, grid, cell, linear[0])
    return model.with_view(f"{name}, rewritten", grid, body)


def dipart(model: Model, grid: int, cell: int) -> Model:
    """Return the view that has features of the whole grid, but sees one grid cell of them.

    Args:
        model: The network, for single images.
        grid: The number of grid cells along a side.
        cell: The grid cell that logits are for, row by row.

    Raises:
        NotApplicable: If the network cannot run on grids.
    """
    split = _split(model, grid)

    def head_of(cell: int) -> Head:
        top = split.down * (cell // grid)
        left = split.along * (cell % grid)

        def head(h: Tensor, watch: Collection[int]) -> tuple[Tensor, dict[int, Tensor]]:
            return model.body.run(
                h[..., top : top + split.height, left : left + split.width], split.cut, watch=watch
            )

        return head

    return model.with_view(
        f"dipart {grid}×{grid}, cell {cell}",
        grid,
        Connected(model.body, split.cut, head_of(cell), cell, head_of),
    )


def visible_cell(model: Model) -> int | None:
    """Return the only grid cell that the model sees, or None if it sees the whole image."""
    return model.body.cell if isinstance(model.body, Connected | Disconnected) else None


def shares_features(model: Model) -> bool:
    """Return whether the cells of a grid can share passes: the model sees features of all."""
    if isinstance(model.body, Disconnected):
        return False
    return visible_cell(model) is None or not model.passes.uses_backend


def logits_of_cells(model: Model, x: Tensor, cells: Sequence[int | None]) -> list[Tensor]:
    """Compute the logits of some grid cells without gradients, from passes that they share.

    Args:
        model: A view of a grid, or any model if the cells are the one that it sees.
        x: Images or activations of shape ``(B, C, h, w)``.
        cells: The grid cells; None where the head sees all of them.

    Returns:
        Logits ``(B, K)`` of each cell.
    """
    body = model.body
    if len(set(cells)) == 1:
        return [model.logits(x)] * len(cells)
    assert isinstance(body, Connected) and body.head_of is not None
    heads = [body.head_of(cell) for cell in cells if cell is not None]
    return model.passes.heads(x, body.cut, heads)


def seen_sides(model: Model, height: int, width: int) -> tuple[slice, slice]:
    """Return which rows and columns of an image or activation the logits can depend on."""
    body = model.body
    if not isinstance(body, Disconnected):
        return slice(0, height), slice(0, width)
    row, column = divmod(body.cell, body.grid)
    down, along = height // body.grid, width // body.grid
    return slice(row * down, (row + 1) * down), slice(column * along, (column + 1) * along)


# (features, layers to watch) -> logits, the watched layers' activations
Head = Callable[[Tensor, Collection[int]], tuple[Tensor, dict[int, Tensor]]]


class Connected:
    """A body with features of the whole grid, and another head after them."""

    cell: int | None  # the grid cell that the head sees; None: all of them

    def __init__(
        self,
        inner: Body,
        cut: int,
        head: Head,
        cell: int | None = None,
        head_of: Callable[[int], Head] | None = None,
    ):
        self.inner = inner
        self.cut = cut
        self.head = head
        self.cell = cell
        self.head_of = head_of  # the heads that see other grid cells
        self.layers, self.aliases = _feature_layers(inner, cut)

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        h, seen = self.inner.run(h, start, self.cut if stop is None else stop, watch)
        if stop is not None:
            return h, seen
        logits, in_head = self.head(h, _head_layers(watch, self.cut))
        return logits, seen | in_head

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        if steps is None:
            return None
        return [*steps[: self.cut - start], ("head", lambda h: self.head(h, ())[0])]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer) if layer < self.cut else None


class Disconnected:
    """A body that runs every grid cell by itself, and returns the logits of one of them.

    If only logits are needed, the other grid cells do not run; they never take gradients. The one
    that logits are for runs apart from the others, so that its numbers do not depend on whether
    they run.
    """

    sees_all: ClassVar[bool] = False  # whether logits are computed from the features of all cells

    def __init__(self, inner: Body, cut: int, grid: int, cell: int):
        self.inner = inner
        self.cut = cut
        self.grid = grid
        self.cell = cell
        self.layers, self.aliases = _feature_layers(inner, cut)

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen = {start: h} if start in watch else {}
        end = self.cut if stop is None else stop
        layers = {layer for layer in watch if start < layer <= end}
        if stop is not None and end > start:
            layers.add(end)
        for layer in sorted(layers):
            h = self._side_by_side(h, start, layer)
            start = layer
            if layer in watch:
                seen[layer] = h
        if stop is not None:
            return h, seen
        logits, in_head = self.logits(h, start, _head_layers(watch, self.cut))
        return logits, seen | in_head

    def logits(
        self, h: Tensor, start: int, watch: Collection[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run from the images or features of the grid to the logits of the evaluated cell."""
        return self.inner.run(self.crop(h), start, watch=watch)

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        return None if steps is None else [("crop", self.crop), *steps]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer) if layer < self.cut else None

    def crop(self, h: Tensor, cell: int | None = None) -> Tensor:
        """Crop one grid cell of images or features, by default the one that logits are for."""
        row, column = divmod(self.cell if cell is None else cell, self.grid)
        height = h.shape[-2] // self.grid
        width = h.shape[-1] // self.grid
        left = -column * width
        above = -row * height
        right = (1 - self.grid) * width - left
        below = (1 - self.grid) * height - above
        return pad(h, (left, right, above, below))  # a copy that lies in memory as h does

    def _side_by_side(self, h: Tensor, start: int, stop: int) -> Tensor:
        """Run all grid cells from one layer to another, and put them side by side."""
        others = [cell for cell in range(self.grid**2) if cell != self.cell]
        evaluated = self.inner.run(self.crop(h), start, stop)[0]
        with torch.set_grad_enabled(self.sees_all and torch.is_grad_enabled()):
            crops = torch.cat([self.crop(h, cell) for cell in others])
            rest = self.inner.run(crops, start, stop)[0]
        by_cell = dict(zip(others, rest.chunk(len(others)), strict=True)) | {self.cell: evaluated}
        in_order = [by_cell[cell] for cell in range(self.grid**2)]
        rows = [
            torch.cat(in_order[first : first + self.grid], -1)
            for first in range(0, self.grid**2, self.grid)
        ]
        return torch.cat(rows, -2)


class Rewritten(Disconnected):
    """The same function in other layers (Rao et al. 2024, Supplement H).

    Before the first linear layer z = W f + b of the head, all features of the other grid cells are
    summed, once with each sign. The layer after it adds the two sums to each z: always zero.
    Methods that depend on the function alone cannot tell; a rule that leaves out negative
    contributions can, and moves relevance to cells that have no effect. Both layers are written as
    convolutions, so that LRP gives them the rule that the paper means, not that of the head.
    """

    sees_all: ClassVar[bool] = True

    def __init__(self, inner: Body, cut: int, grid: int, cell: int, linear: int):
        super().__init__(inner, cut, grid, cell)
        self.linear = linear

    def steps(self, start: int) -> Steps | None:
        return None  # the cells run side by side

    def logits(
        self, h: Tensor, start: int, watch: Collection[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        before = [layer for layer in watch if layer <= self.linear]
        after = [layer for layer in watch if layer > self.linear]
        own, seen = self.inner.run(self.crop(h), start, self.linear, before)
        others = [cell for cell in range(self.grid**2) if cell != self.cell]
        rest = torch.cat(
            [self.inner.run(self.crop(h, cell), start, self.linear)[0] for cell in others], 1
        )[:, :, None, None]
        layer = self.inner.module_after(self.linear)
        assert isinstance(layer, nn.Linear)
        z = conv2d(own[:, :, None, None], layer.weight[:, :, None, None], layer.bias)
        ones = rest.new_ones(1, rest.shape[1], 1, 1)
        sums = conv2d(rest, torch.cat([ones, -ones]))
        # The sums come first: they cancel before anything is rounded.
        outputs = len(layer.weight)
        add = torch.cat([z.new_ones(outputs, 2), torch.eye(outputs).to(z)], 1)
        z = conv2d(torch.cat([sums, z], 1), add[:, :, None, None]).flatten(1)
        if self.linear + 1 == len(self.inner.layers):  # it is the last
            return z, seen
        logits, in_head = self.inner.run(z, self.linear + 1, watch=after)
        return logits, seen | in_head


def _feature_layers(inner: Body, cut: int) -> tuple[list[str], dict[str, int]]:
    """Return the layers up to the head, and their aliases."""
    aliases = {name: index for name, index in inner.aliases.items() if index <= cut}
    return inner.layers[: cut + 1], aliases


def _head_layers(watch: Collection[int], cut: int) -> list[int]:
    """Return the watched layers of the head, which have no positions."""
    return [layer for layer in watch if layer > cut]


class _Split(NamedTuple):
    """Start of the head, and position of a grid cell's features among those of the grid."""

    cut: int
    height: int
    width: int
    down: int  # from one grid cell's features to those of the next
    along: int
    pools: bool  # whether the head does not depend on the order of positions
    runs: bool  # whether the head takes the features of the whole grid


# By the number of grid cells along a side. A check and the views of each grid cell ask for it.
_splits: WeakKeyDictionary[Model, dict[int, _Split]] = WeakKeyDictionary()


def _cut(model: Model) -> int:
    """Return the layer before the head."""
    if is_vit(model.module):
        raise NotApplicable(
            f"{model.name} is a vision transformer: it takes images of one size, and every block "
            "mixes all positions, so no head can be cut off that sees one grid cell alone; "
            "grids are for convolutional networks"
        )
    if "cam" not in model.landmarks:
        raise NotApplicable(
            f"{model.name} does not show where its features end and its head begins; name the last "
            "spatial layer before the last pooling or flattening, such as "
            'hp.Model(…, layers=["layer3", "layer4"], aliases={"cam": "layer4"})'
        )
    tokens = model.grid("cam")
    if tokens is not None:
        raise NotApplicable(
            f"{model.name} has {tokens.text} at {model.landmarks['cam']}: blocks mix positions, "
            "so no head can be cut off that sees one grid cell alone; grids are for convolutional "
            "networks"
        )
    return model.body.layers.index(model.landmarks["cam"])


def _split(model: Model, grid: int) -> _Split:
    """Find the head and the features of each grid cell, once for a model and a grid."""
    splits = _splits.setdefault(model, {})
    if grid not in splits:
        splits[grid] = _find_split(model, grid)
    return splits[grid]


def _find_split(model: Model, grid: int) -> _Split:
    cut = _cut(model)
    features = _features(model, cut)
    height, width = features.shape[2:]
    try:
        grid_features = _features(model, cut, grid)
    except Exception as error:  # a network can raise anything on images larger than it is used to
        raise NotApplicable(
            f"{model.name} cannot run up to {model.body.layers[cut]} on a grid of "
            f"{grid * model.height}×{grid * model.width} px: {error}. "
            "Name layers that it can be cut at: hp.Model(…, layers=[…])"
        ) from error
    whole = grid_features.shape[2:]
    steps = [whole[0] - height, whole[1] - width]
    if any(
        step % (grid - 1) or step < (grid - 1) * side
        for step, side in zip(steps, (height, width), strict=True)
    ):
        raise NotApplicable(
            f"{model.name} has features of {height}×{width} for a grid cell of "
            f"{model.height}×{model.width} px, "
            f"but of {whole[0]}×{whole[1]} for a grid of {grid}×{grid}: its stride does not divide "
            "the grid cell, so grid cells have no separate features; "
            "choose another size for the model"
        )
    down, along = (step // (grid - 1) for step in steps)
    pools = _pools(model, cut, features)
    return _Split(cut, height, width, down, along, pools, _runs(model, cut, grid_features))


def _features(model: Model, cut: int, scale: int = 1) -> Tensor:
    """Compute the features of one image of noise."""
    shape = (1, len(model.mean), scale * model.height, scale * model.width)
    image = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), eval_mode(model.module):
        return model.body.run(model.normalize(image), 0, cut)[0]


def _pools(model: Model, cut: int, features: Tensor) -> bool:
    """Return whether the head does not depend on the order of positions."""
    order = torch.randperm(features[0, 0].numel(), generator=torch.Generator().manual_seed(0)).to(
        features.device
    )
    with torch.no_grad(), eval_mode(model.module):
        plain = model.body.run(features, cut)[0]
        shuffled = model.body.run(features.flatten(2)[..., order].view_as(features), cut)[0]
    return torch.allclose(plain, shuffled, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


def _runs(model: Model, cut: int, features: Tensor) -> bool:
    """Return whether the head takes the features of the whole grid."""
    try:
        with torch.no_grad(), eval_mode(model.module):
            return model.body.run(features, cut)[0].shape == (1, model.n_classes)
    except (RuntimeError, ValueError):  # shapes that do not fit
        return False


def _sliding(inner: Body, split: _Split, step: tuple[int, int]) -> Head:
    """Return a head that slides over the features and averages its logits."""

    def head(h: Tensor, watch: Collection[int]) -> tuple[Tensor, dict[int, Tensor]]:
        windows = (
            h.unfold(2, split.height, step[0])
            .unfold(3, split.width, step[1])
            .permute(0, 2, 3, 1, 4, 5)
        )
        logits, seen = inner.run(windows.flatten(0, 2), split.cut, watch=watch)
        means = {at: _window_mean(activation, len(h)) for at, activation in seen.items()}
        return _window_mean(logits, len(h)), means

    return head


def _window_mean(values: Tensor, samples: int) -> Tensor:
    """Average over the windows of each sample."""
    return values.view(samples, -1, *values.shape[1:]).mean(1)
