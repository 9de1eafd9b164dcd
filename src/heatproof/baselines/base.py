"""A baseline takes pixels out of an image. Most paint a whole image once per sample, from which the removed pixels are taken.

Some impute: what they put in depends on which pixels are left. Some need to know the data or the model beforehand: they prepare.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.expressions import call_label, options, parse_call
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng

# (x (B, C, H, W) in the model's input space[, removed (B, H, W)], *, model, rng, …) -> image, broadcastable to x
Fill = Callable[..., Tensor]
Prepare = Callable[
    ..., Mapping[str, Tensor]
]  # (model, batches of reference images in its input space, …) -> tensors
Cost = Callable[
    [Mapping[str, Any]], tuple[int, int]
]  # its arguments -> forwards and backwards of its preparation
Remove = Callable[[Tensor, Tensor], Tensor]  # samples (n,), removed (n, H, W) bool -> (n, C, H, W)


@dataclass(frozen=True)
class BaselineEntry:
    id: str
    function: Fill
    summary: str
    version: int = 1
    prepare: Prepare | None = None
    imputes: bool = False
    group: str = "other"  # colour, noise, local, spectral, imputed, model
    cost: Cost | None = None
    blind: bool = False

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return options(self.function, "x", "removed", "model", "rng", "prepared")


BASELINES: Registry[BaselineEntry] = Registry("baseline")


def baseline(
    id: str,
    *,
    group: str = "other",
    version: int = 1,
    prepare: Prepare | None = None,
    cost: Cost | None = None,
    imputes: bool = False,
    blind: bool = False,
) -> Callable[[Fill], Fill]:
    """Register a function `(x, *, model, rng, …) -> image`, which paints what removed pixels become.

    prepare: `(model, batches, …) -> tensors` from reference images, once; the function takes them as `prepared`. It may have arguments of
        the baseline's own, by their names. `cost`: the passes it takes, where it takes any.
    imputes: the function is `(x, removed, *, model, rng, …) -> image`, once for every set of removed pixels; `rng` has the samples' ids,
        row by row, and the rows of one sample come in the order of their sets, which are nested.
    blind: it looks neither at the image nor at a pixel's place, so that a part of an image may be painted alone.
    """

    def register(function: Fill) -> Fill:
        BASELINES.add(
            BaselineEntry(
                id,
                function,
                inspect.getdoc(function) or "",
                version,
                prepare,
                imputes,
                group,
                cost,
                blind,
            )
        )
        return function

    return register


@dataclass(frozen=True)
class Baseline:
    """A baseline with its arguments, such as `blur` or `uniform(-1, 1)`."""

    entry: BaselineEntry
    arguments: dict[str, Any] = field(hash=False)
    label: str

    @classmethod
    def parse(cls, text: str) -> Baseline:
        call = parse_call(text)
        entry = BASELINES[call.name]
        arguments = call.bind(entry.parameters, "baseline")
        return cls(entry, arguments, call_label(call, arguments, entry.parameters))

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """What it needs to know of the model and the data beforehand."""
        assert self.entry.prepare is not None
        taken = inspect.signature(self.entry.prepare).parameters
        return self.entry.prepare(
            model, batches, **{k: v for k, v in self.arguments.items() if k in taken}
        )

    def preparation(self) -> tuple[int, int]:
        """Forwards and backwards that it takes beforehand, whatever the number of samples."""
        return self.entry.cost(self.arguments) if self.entry.cost else (0, 0)

    def prepared_by(self, lookup: PreparedBaselines) -> Mapping[str, Tensor] | None:
        """Look up what the baseline has prepared; None for one that prepares nothing."""
        return lookup(self) if self.entry.prepare else None

    def fill(
        self,
        x: Tensor,
        model: Model | None,
        rng: Rng,
        removed: Tensor | None = None,
        prepared: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute what removed pixels become; the values elsewhere have no meaning.

        Args:
            x: Images in the model's input space, ``(B, C, H, W)``.
            model: The model, for baselines that depend on it.
            rng: The samples' noise.
            removed: The removed pixels, ``(B, H, W)`` of bool; None removes all of them.
            prepared: What ``prepare`` returned, for a baseline that has one.

        Returns:
            Images of the shape of x.

        Raises:
            HeatproofError: If the baseline needs what it has prepared and was not given it.
        """
        arguments = self._all_arguments(model, prepared)
        if not self.entry.imputes:
            return self.entry.function(x, model=model, rng=rng, **arguments).expand_as(x)
        if removed is None:
            removed = torch.ones_like(x[:, 0], dtype=torch.bool)
        return self.entry.function(x, removed, model=model, rng=rng, **arguments).expand_as(x)

    def remover(
        self,
        x: Tensor,
        model: Model | None,
        rng: Rng,
        prepared: Mapping[str, Tensor] | None = None,
    ) -> Remove:
        """Make a function that removes pixels from these samples.

        A baseline that paints does so once, here; one that imputes does so at every call.

        Args:
            x: Images in the model's input space, ``(B, C, H, W)``.
            model: The model, for baselines that depend on it.
            rng: The samples' noise.
            prepared: What ``prepare`` returned, for a baseline that has one.

        Returns:
            A function from samples ``(n,)`` and their removed pixels ``(n, H, W)`` to images
            ``(n, C, H, W)``.

        Raises:
            HeatproofError: If the baseline needs what it has prepared and was not given it.
        """
        arguments = self._all_arguments(model, prepared)
        if self.entry.imputes:

            def impute(samples: Tensor, removed: Tensor) -> Tensor:
                rows = Rng(rng.seed, [rng.ids[i] for i in samples.tolist()], rng.device)
                return self.entry.function(x[samples], removed, model=model, rng=rows, **arguments)

            return impute
        painted = self.entry.function(x, model=model, rng=rng, **arguments)
        each = painted.ndim == x.ndim and len(painted) == len(x)

        def remove(samples: Tensor, removed: Tensor) -> Tensor:
            return torch.where(removed[:, None], painted[samples] if each else painted, x[samples])

        return remove

    def _all_arguments(
        self, model: Model | None, prepared: Mapping[str, Tensor] | None
    ) -> dict[str, Any]:
        """Return the arguments, with what was prepared where the baseline takes it."""
        if not self.entry.prepare:
            return self.arguments
        if prepared is not None:
            return {"prepared": prepared, **self.arguments}
        if model is None:
            raise HeatproofError(
                f"baseline {self.label} knows the model or the data beforehand; pass an hp.Model"
            )
        return {"prepared": no_reference(self), **self.arguments}


PreparedBaselines = Callable[[Baseline], Mapping[str, Tensor]]  # what a baseline has prepared


def no_reference(baseline: Baseline) -> Mapping[str, Tensor]:
    """Refuse a baseline that prepares: there are no reference images.

    Raises:
        HeatproofError: Always.
    """
    raise HeatproofError(
        f"baseline {baseline.label} needs reference images: give some with reference=…"
    )


BaselineName = Annotated[
    str, AfterValidator(lambda text: Baseline.parse(text).label)
]  # as an argument of a method or a protocol
