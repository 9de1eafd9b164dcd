"""A baseline says what removed pixels become.

Most paint a whole image once per sample, from which the removed pixels are taken. Some impute: what
they put in depends on the pixels that are left. Some prepare: they compute tensors from the model
and reference images, once per run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from torch import Tensor

from heatproof.baselines.fill_cache import complete
from heatproof.errors import HeatproofError
from heatproof.expressions import Call, call_label, options, parse_call
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng
from heatproof.userfile import source_hash

Fill = Callable[..., Tensor]  # (x[, removed], *, model, rng, …) -> images; see `baseline`
Prepare = Callable[..., Mapping[str, Tensor]]  # (model, batches of reference images, …) -> tensors
Cost = Callable[[Mapping[str, Any]], tuple[int, int]]  # arguments -> passes of the preparation
Remove = Callable[[Tensor, Tensor], Tensor]  # samples (n,), removed (n, H, W) bool -> (n, C, H, W)


@dataclass(frozen=True)
class BaselineEntry:
    """A registered baseline; see `baseline` for the fields."""

    id: str
    function: Fill
    summary: str
    version: int = 1
    prepare: Prepare | None = None
    imputes: bool = False
    group: str = "other"  # colour, noise, local, spectral, imputed, model
    cost: Cost | None = None
    blind: bool = False
    source: str | None = None  # hash of a user's code; None for what ships with heatproof
    cached: bool = False
    stochastic: bool = False

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return options(self.function, "x", "removed", "model", "rng", "prepared")

    @property
    def revision(self) -> int | str:
        """The version, followed by the hash of a user's code: a part of result keys."""
        return self.version if self.source is None else f"{self.version}+{self.source}"


def baseline(
    id: str,
    *,
    group: str = "other",
    version: int = 1,
    prepare: Prepare | None = None,
    cost: Cost | None = None,
    imputes: bool = False,
    blind: bool = False,
    cached: bool = False,
    stochastic: bool = False,
) -> Callable[[Fill], Fill]:
    """Register a function that says what removed pixels become.

    The function is ``(x, *, model, rng, …) -> image``. It takes images ``x`` of shape
    ``(B, C, H, W)`` in the model's input space and returns images that broadcast to it. Further
    keyword arguments are the baseline's own, with defaults.

    Example::

        @hp.baseline("checkerboard")
        def checkerboard(x, *, model, rng, side: int = 4):
            \"\"\"Squares of black and white.\"\"\"
            rows, columns = (torch.arange(n) // side for n in x.shape[-2:])
            low, high = model.input_range
            return torch.where((rows[:, None] + columns) % 2 > 0, high, low)[None]

    Args:
        id: The name in specs and expressions.
        group: The kind of baseline, used as a colour in reports: ``colour``, ``noise``, ``local``,
            ``spectral``, ``imputed``, ``model`` or ``other``.
        version: Raise it when the results change, so that stored ones are not reused.
        prepare: A function ``(model, batches, …) -> tensors`` of reference images, called once per
            run. The baseline receives the tensors as ``prepared``. It may take the baseline's own
            arguments, by name or as ``**arguments``.
        cost: The forward and backward passes that ``prepare`` takes, as a function of the
            baseline's arguments.
        imputes: The function is ``(x, removed, *, model, rng, …) -> image`` with ``removed`` of
            shape ``(B, H, W)``, and is called for every set of removed pixels. The ids of ``rng``
            are those of the rows; the rows of one sample come in the order of their nested sets.
        blind: The baseline depends neither on the image nor on a pixel's position, so that a part
            of an image can be painted on its own.
        cached: For generative models, which impute and take longer than a network: results are
            kept in the cache directory by image, removed pixels, seed, code and arguments. The
            function is given one image at a time, and pixels that are not removed stay as they
            are. It may depend on nothing else, such as the weights of the network.
        stochastic: Whether what it fills in depends on the seed of ``rng``; baselines of your own
            count as stochastic.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a baseline of that name, or one is cached that does not
            impute.
    """
    if cached and (not imputes or prepare):
        raise HeatproofError(
            f'baseline "{id}": cached=True is for functions (x, removed, *, model, rng) with '
            "imputes=True and without prepare"
        )

    def register(function: Fill) -> Fill:
        entry = BaselineEntry(
            id,
            function,
            inspect.getdoc(function) or "",
            version,
            prepare,
            imputes,
            group,
            cost,
            blind,
            source_hash(function),
            cached,
            stochastic,
        )
        BASELINES.add(entry, function)
        return function

    return register


def _entry_of(function: Any, name: str) -> BaselineEntry:
    """Register a plain function as a baseline under its own name."""
    if not callable(function) or isinstance(function, type):
        raise HeatproofError(
            f"a baseline is a name or a function (x, *, model, rng) -> image; got {function!r}"
        )
    name = name or getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind(None, model=None, rng=None)
    except TypeError as error:
        raise HeatproofError(
            f"{name} must be callable as {name}(x, model=…, rng=…): {error}"
        ) from None
    baseline(name)(function)
    return BASELINES[name]


BASELINES: Registry[BaselineEntry] = Registry("baseline", _entry_of)


@dataclass(frozen=True)
class Baseline:
    """A baseline with its arguments, such as ``blur`` or ``uniform(-1, 1)``."""

    entry: BaselineEntry
    arguments: dict[str, Any] = field(hash=False)
    label: str

    @classmethod
    def parse(cls, spec: str | Fill) -> Baseline:
        """Return the baseline for a text such as ``uniform(-1, 1)``, or for a function.

        A text may also name a function in a file: ``file:mine.py:checkerboard(side=8)``.

        Raises:
            HeatproofError: If there is no such baseline, or its arguments do not fit.
        """
        call = parse_call(spec) if isinstance(spec, str) else Call("")
        entry = BASELINES.resolve(call.name or spec)
        call = Call(entry.id, call.args, call.kwargs)
        arguments = call.bind(entry.parameters, "baseline")
        return cls(entry, arguments, call_label(call, arguments, entry.parameters))

    @classmethod
    def find(cls, label: str) -> Baseline | None:
        """Return the baseline that a stored run names; None if it is not registered.

        Unlike `parse` this never loads a file.
        """
        try:
            return cls.parse(label) if parse_call(label).name in BASELINES else None
        except HeatproofError:
            return None

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """Compute what the baseline needs from a model and reference images.

        Args:
            model: The model.
            batches: Reference images in the model's input space, ``(B, C, H, W)`` each.

        Returns:
            Tensors by name, which `fill` and `remover` take as ``prepared``.
        """
        assert self.entry.prepare is not None
        parameters = inspect.signature(self.entry.prepare).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        arguments = {k: v for k, v in self.arguments.items() if takes_all or k in parameters}
        return self.entry.prepare(model, batches, **arguments)

    def preparation(self) -> tuple[int, int]:
        """Return the forward and backward passes of the preparation, for any number of samples."""
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
            HeatproofError: If ``prepared`` is missing and the baseline needs it.
        """
        arguments = self._all_arguments(model, prepared)
        if not self.entry.imputes:
            return self.entry.function(x, model=model, rng=rng, **arguments).expand_as(x)
        if removed is None:
            removed = torch.ones_like(x[:, 0], dtype=torch.bool)
        return self._impute(x, removed, model, rng, arguments).expand_as(x)

    def _impute(
        self,
        x: Tensor,
        removed: Tensor,
        model: Model | None,
        rng: Rng,
        arguments: Mapping[str, Any],
    ) -> Tensor:
        """Fill in removed pixels, from the cache if the baseline has one."""
        if not self.entry.cached:
            return self.entry.function(x, removed, model=model, rng=rng, **arguments)

        def compute(image: Tensor, mask: Tensor, own_rng: Rng) -> Tensor:
            return self.entry.function(image, mask, model=model, rng=own_rng, **arguments)

        space = [model.mean.tolist(), model.std.tolist()] if model is not None else []
        known = [self.entry.id, self.entry.revision, sorted(arguments.items())]
        recognized = self.entry.source != ""  # the code could be read
        return complete(x, removed, rng, compute, [*known, space] if recognized else None)

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
            HeatproofError: If ``prepared`` is missing and the baseline needs it.
        """
        arguments = self._all_arguments(model, prepared)
        if self.entry.imputes:

            def impute(samples: Tensor, removed: Tensor) -> Tensor:
                ids = [rng.ids[i] for i in samples.tolist()]
                row_rng = Rng(rng.seed, ids, rng.device)
                return self._impute(x[samples], removed, model, row_rng, arguments)

            return impute
        painted = self.entry.function(x, model=model, rng=rng, **arguments)
        per_sample = painted.ndim == x.ndim and len(painted) == len(x)

        def remove(samples: Tensor, removed: Tensor) -> Tensor:
            fill = painted[samples] if per_sample else painted
            return torch.where(removed[:, None], fill, x[samples])

        return remove

    def _all_arguments(
        self, model: Model | None, prepared: Mapping[str, Tensor] | None
    ) -> dict[str, Any]:
        """Return the arguments, with ``prepared`` for a baseline that prepares."""
        if not self.entry.prepare:
            return self.arguments
        if prepared is not None:
            return {"prepared": prepared, **self.arguments}
        if model is None:
            raise HeatproofError(
                f"baseline {self.label} needs a model and reference images; pass an hp.Model"
            )
        return {"prepared": no_reference(self), **self.arguments}


PreparedBaselines = Callable[[Baseline], Mapping[str, Tensor]]  # what a baseline has prepared


def no_reference(baseline: Baseline) -> Mapping[str, Tensor]:
    """Raise an error, as there are no reference images to prepare a baseline from.

    Raises:
        HeatproofError: Always.
    """
    raise HeatproofError(
        f"baseline {baseline.label} needs reference images: give some with reference=…"
    )


def _label_of(spec: Any) -> str:
    return Baseline.parse(spec).label


BaselineName = Annotated[str, BeforeValidator(_label_of)]  # as an argument of methods and protocols
