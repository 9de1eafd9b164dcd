"""Localization on grids of images (Rao et al. 2024).

The score is the fraction of a map's positive attribution in the grid cell whose class it explains.
In ``gridpg`` the network sees the grid as one image. In ``difull`` it cannot see beyond the
evaluated grid cell. In ``dipart`` only its head cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from torch import Tensor

from heatproof.data.base import Data
from heatproof.data.grids import Grids, make_grids
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.models import views
from heatproof.models.model import Model
from heatproof.models.targets import Explains
from heatproof.models.variants import Ahead, Place
from heatproof.protocols.base import (
    EvalBatch,
    Kind,
    Protocol,
    Scores,
    Shared,
    View,
    ViewKey,
    protocol,
)
from heatproof.tensor.localization import cell_fraction, cell_sums

CACHED_GRIDS = 64  # whose images stay in memory: a block of them is loaded for every grid cell


class Localization(Protocol):
    """Base class of the three settings. A sample is a grid and one of its cells, the target's."""

    kind: ClassVar[Kind] = "localization"
    explains: ClassVar[Explains] = "label"
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    random_score: ClassVar[float] = 0.25
    citation: ClassVar[str] = (
        "Rao, Böhle, Schiele: Better Understanding Differences in Attribution Methods via "
        "Systematic Evaluations. TPAMI 2024"
    )
    constant_maps: ClassVar[bool] = True
    repeated: ClassVar[bool]  # whether the last grid cell shows the class of the first again
    most: ClassVar[int]  # the default number of grids, the paper's

    grid: int = Field(default=2, ge=2, description="grid cells per side")
    confidence: float = Field(
        default=0.99, ge=0, le=1, description="least softmax of the label of an image in a grid"
    )
    grids: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="number of grids; by default as many as possible, up to the paper's",
    )
    seed: int = Field(default=0, ge=0, description="seed for combining images into grids")
    pool: Literal["common"] | None = Field(
        default=None, description="common: only images on which all models are confident"
    )
    missing: Literal["skip"] | None = Field(
        default=None,
        description="skip: without enough images for a grid it is not applicable; by default an "
        "error",
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"random_score": 1 / self.grid**2}

    def cell_models(self, model: Model) -> dict[int, Model]:
        """Return the model as it sees the grid, for each evaluated grid cell."""
        raise NotImplementedError

    def check(self, model: Model) -> None:
        super().check(model)
        needed = self.grid**2 - self.repeated
        if model.n_classes < needed:
            shown = (
                f"{self.id}: a grid of {self.grid}×{self.grid} shows {needed} classes, but "
                f"{model.name} has {model.n_classes}"
            )
            if self.grid == 2:  # the smallest
                raise NotApplicable(shown)
            raise HeatproofError(f"{shown}; choose a smaller grid")
        self.cell_models(model)

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        confident = [(model, data)]
        if self.pool == "common":
            confident += [(other, its_data) for other, its_data in among if other is not model]
        try:
            cells, pool = make_grids(
                confident,
                self.grid,
                repeated=self.repeated,
                confidence=self.confidence,
                count=self.grids,
                most=self.most,
                seed=self.seed,
            )
        except HeatproofError as error:
            if self.missing is None:
                raise
            raise NotApplicable(f"{self.id}: {error}") from None
        load = lru_cache(CACHED_GRIDS * self.grid**2)(data.load)
        models = self.cell_models(model)
        data_of = {cell: Grids(data, cells, self.grid, cell, pool, load) for cell in models}
        _share_passes(models, data_of)
        return [
            View(ViewKey("grid", f"{self.id} ({self.setting})", cell), models[cell], grids)
            for cell, grids in data_of.items()
        ]

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score maps of the size of the grid image; a map without positive values scores 0.

        The curve ``cells`` has the positive sum in each grid cell, ``(B, grid²)``.
        """
        sums = cell_sums(maps, self.grid)
        assert batch.view.cell is not None, "grids are evaluated in one of their cells"
        return Scores(cell_fraction(sums, batch.view.cell), [""] * len(sums), {"cells": sums})


def _share_passes(models: Mapping[int, Model], data: Mapping[int, Grids]) -> None:
    """Let the views of all evaluated cells of a grid share passes, each with those after it."""
    cells = list(models)
    targets: dict[str, list[Place]] = {}
    for position, cell in enumerate(cells):
        later = [
            (views.visible_cell(models[after]), data[after].labels)
            for after in cells[position + 1 :]
        ]
        for row, sample in enumerate(data[cell].ids):
            targets[sample] = [(seen, int(labels[row] or 0)) for seen, labels in later]
    ahead = Ahead(targets)
    for model in models.values():
        model.ahead = ahead


@protocol
class GridPointing(Localization):
    id: ClassVar[str] = "gridpg"
    summary: ClassVar[str] = (
        "the fraction of the positive attribution in the grid cell of the explained class, "
        "where the network sees the grid as one image"
    )
    repeated: ClassVar[bool] = False
    most: ClassVar[int] = 500

    def cell_models(self, model: Model) -> dict[int, Model]:
        whole = views.gridpg(model, self.grid)
        return dict.fromkeys(range(self.grid**2), whole)


@protocol
class FullyDisconnected(Localization):
    id: ClassVar[str] = "difull"
    version: ClassVar[int] = 3
    summary: ClassVar[str] = (
        "the fraction of the positive attribution in the only grid cell that the network can see"
    )
    repeated: ClassVar[bool] = True
    most: ClassVar[int] = 1000
    rewritten: Annotated[bool | None, AfterValidator(lambda value: value or None)] = Field(
        default=None,
        description="true: the same function in layers that LRP's z⁺ rule does not see through",
    )

    def cell_models(self, model: Model) -> dict[int, Model]:
        evaluated = (0, self.grid**2 - 1)
        return {c: views.difull(model, self.grid, c, bool(self.rewritten)) for c in evaluated}


@protocol
class PartlyDisconnected(Localization):
    id: ClassVar[str] = "dipart"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = (
        "the fraction of the positive attribution in the only grid cell whose features "
        "the network's head can see"
    )
    repeated: ClassVar[bool] = True
    most: ClassVar[int] = 1000

    def cell_models(self, model: Model) -> dict[int, Model]:
        return {cell: views.dipart(model, self.grid, cell) for cell in (0, self.grid**2 - 1)}
