"""Localization on grids of images (Rao et al. 2024): how much of a map's positive part lies in the cell whose class it explains?

In `gridpg` the network sees the grid as one image, in `difull` it cannot see beyond the judged cell, in `dipart` only its head cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from heatproof.data.base import Data
from heatproof.data.grids import Grids, make_grids
from heatproof.errors import HeatproofError
from heatproof.models import views
from heatproof.models.model import Model
from heatproof.protocols.base import EvalBatch, Protocol, Scores, Shared, View, ViewKey, protocol
from heatproof.tensor.localization import cell_sums, share_of

KEPT = 64  # grids whose images stay in memory: those of a block, which every judged cell asks for again


class Localization(Protocol):
    """What the three settings have in common. One sample is a grid and a judged cell, whose class is the target."""

    version: ClassVar[int] = 1
    higher_is_better: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    random_score: ClassVar[float] = 0.25
    target: ClassVar[Literal["label", "prediction"]] = "label"
    citation: ClassVar[str] = (
        "Rao, Böhle, Schiele: Better Understanding Differences in Attribution Methods via Systematic Evaluations. TPAMI 2024"
    )
    constant_maps: ClassVar[bool] = True
    repeated: ClassVar[bool]  # the last cell shows the first one's class again
    most: ClassVar[int]  # grids, where nothing else is said: the paper's number

    grid: Annotated[int, Field(ge=2)] = 2  # cells along a side
    confidence: Annotated[float, Field(ge=0, le=1)] = (
        0.99  # the least softmax of the label, for an image to be put into a grid
    )
    grids: Annotated[int, Field(ge=1)] | None = (
        None  # None: as many as the images give, at most `most`
    )
    seed: Annotated[int, Field(ge=0)] = 0  # of which images meet
    pool: Literal["common"] | None = (
        None  # common: of images that all models of the run are sure of; None: each model its own
    )

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"random_score": 1 / self.grid**2}

    def looks(self, model: Model) -> dict[int, Model]:
        """The view of each judged cell."""
        raise NotImplementedError

    def check(self, model: Model) -> None:
        super().check(model)
        needed = self.grid**2 - self.repeated
        if model.n_classes < needed:
            raise HeatproofError(
                f"{self.id}: a grid of {self.grid}×{self.grid} shows {needed} classes, but {model.name} has {model.n_classes}; "
                "choose a smaller grid"
            )
        self.looks(model)

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        others = (
            [(other, own) for other, own in among if other is not model]
            if self.pool == "common"
            else []
        )
        cells, pool = make_grids(
            [(model, data), *others],
            self.grid,
            repeated=self.repeated,
            confidence=self.confidence,
            count=self.grids,
            most=self.most,
            seed=self.seed,
        )
        load = lru_cache(KEPT * self.grid**2)(data.load)
        return [
            View(
                ViewKey("grid", f"{self.id} ({self.setting})", cell),
                view,
                Grids(data, cells, self.grid, cell, pool, load),
            )
            for cell, view in self.looks(model).items()
        ]

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Maps have the size of the grid image; what is negative there is left out, and an empty map scores 0.

        `cells`: the positive sum in each cell, (B, grid²).
        """
        sums = cell_sums(maps, self.grid)
        assert batch.view.cell is not None, "grids are evaluated in one of their cells"
        return Scores(share_of(sums, batch.view.cell), [""] * len(sums), {"cells": sums})


@protocol
class GridPointing(Localization):
    id: ClassVar[str] = "gridpg"
    summary: ClassVar[str] = (
        "the share of the positive attribution in a cell, for its class, where the network sees the grid as one image"
    )
    repeated: ClassVar[bool] = False
    most: ClassVar[int] = 500

    def looks(self, model: Model) -> dict[int, Model]:
        whole = views.gridpg(model, self.grid)
        return dict.fromkeys(range(self.grid**2), whole)


@protocol
class FullyDisconnected(Localization):
    id: ClassVar[str] = "difull"
    summary: ClassVar[str] = (
        "the share of the positive attribution in a cell that is all the network can see of the grid"
    )
    repeated: ClassVar[bool] = True
    most: ClassVar[int] = 1000

    def looks(self, model: Model) -> dict[int, Model]:
        return {cell: views.difull(model, self.grid, cell) for cell in (0, self.grid**2 - 1)}


@protocol
class PartlyDisconnected(Localization):
    id: ClassVar[str] = "dipart"
    summary: ClassVar[str] = (
        "the share of the positive attribution in a cell whose features are all that the network's head can see"
    )
    repeated: ClassVar[bool] = True
    most: ClassVar[int] = 1000

    def looks(self, model: Model) -> dict[int, Model]:
        return {cell: views.dipart(model, self.grid, cell) for cell in (0, self.grid**2 - 1)}
