"""The registry of methods and transforms: what is known of each, and how one is added."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from pydantic import Field
from torch import Tensor

from heatproof.errors import HeatproofError, NotApplicable
from heatproof.expressions import options
from heatproof.methods.adapters import adapt
from heatproof.methods.noise import Noise
from heatproof.methods.other_libraries import name_of, signature_of
from heatproof.models.cutting import Body
from heatproof.models.model import Model
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng
from heatproof.userfile import is_builtin, source_hash

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # (B, C, h, w) -> (B, h, w)
    "sum": lambda a: a.sum(1),
    "abs_sum": lambda a: a.sum(1).abs(),
    "sum_abs": lambda a: a.abs().sum(1),
    "mean": lambda a: a.mean(1),
    "max_abs": lambda a: a.abs().amax(1),
}

Cost = Callable[[Mapping[str, Any]], tuple[int, int]]  # arguments -> forwards, backwards per image
Function = Callable[..., Tensor]
Resolution = Literal["layer", "image"]  # at which a transform acts
Applies = Callable[[Model], str]  # why it does not apply to a model; "" where it does
# (the network from its layer on, batches of reference images) -> `prepared` of the method
Prepare = Callable[[Model, Iterator[Tensor]], dict[str, Tensor]]
# Parameters that the library passes to methods; all others are options.
_PASSED = frozenset(
    (
        "model",
        "x",
        "target",
        "rng",
        "batch",
        "image",
        "silhouette",
        "notes",
        "checkpoint",
        "prepared",
        "baseline_prepared",
    )
)


PER_CALL = "images_per_call"  # an option of every method of a user's own
_IMAGES_PER_CALL = inspect.Parameter(
    PER_CALL,
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[int, Field(ge=1)] | None,
)


@dataclass(frozen=True)
class MethodEntry:
    """A registered method.

    Attributes:
        id: The name in expressions.
        function: The method itself.
        family: The family that it is listed under.
        paper: Authors and year.
        signed: Whether maps can be negative.
        layer: The layer that it explains by default.
        reduce: How channels are reduced by default, one of ``REDUCTIONS``.
        needs: What it needs, words of ``NEEDS``.
        cost: Forward and backward passes per image, from its arguments; None: unknown.
        version: Raised when results change.
        source: Hash of a user's code; None for what ships with the package.
        applies: Returns why it does not apply to a model; None: it applies to every model.
        prepare: Computes its argument ``prepared`` from reference images.
        noise: The noise of an entry that adds noise to another.
        base: The id of the entry that it adds noise to.
        layers: Where it is defined: ``any`` or ``input``.
        shares_passes: Whether its passes serve all evaluated cells of a grid.
        stochastic: Whether its maps depend on the seed, also without noise or a random baseline.
    """

    id: str
    function: Function
    family: str
    paper: str = ""
    signed: bool = True
    layer: str = "input"
    reduce: str = "sum"
    needs: frozenset[str] = frozenset()
    cost: Cost | None = None
    version: int = 1
    source: str | None = None
    applies: Applies | None = None
    prepare: Prepare | None = None
    noise: Noise | None = None
    base: str = ""
    layers: str = "any"
    shares_passes: bool = False
    stochastic: bool = False

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that an expression can set."""
        reduce = inspect.Parameter("reduce", inspect.Parameter.KEYWORD_ONLY, default=self.reduce)
        given = list(inspect.signature(self.function).parameters)[:3]  # whatever they are called
        own = options(self.function, *_PASSED, *given)
        per_call = {} if self.source is None else {PER_CALL: _IMAGES_PER_CALL}
        return per_call | own | {"reduce": reduce} | self._noise_parameters()

    def takes(self, name: str) -> bool:
        """Return whether its function has a parameter of that name, such as ``batch``."""
        return name in inspect.signature(self.function).parameters

    def _noise_parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters of the noise; its kind belongs to the entry."""
        if self.noise is None:
            return {}
        defaults = self.noise.model_dump(exclude={"kind"})
        return {
            name: p.replace(default=defaults[name])
            for name, p in Noise.parameters().items()
            if name in defaults
        }

    @property
    def summary(self) -> str:
        """The first line of the function's docstring, for listings."""
        first_line = (inspect.getdoc(self.function) or "").partition("\n")[0]
        if self.noise is None:
            return first_line
        return f"{KINDS[self.noise.kind]} {self.base} over noisy inputs. {first_line}"


@dataclass(frozen=True)
class TransformEntry:
    """A registered transform; see `transform` for the fields."""

    id: str
    function: Function  # (maps (B, h, w), …[, rng]) -> (B, h, w)
    removes_sign: bool = False
    source: str | None = None  # hash of a user's code; None for what ships with the package
    at: Resolution = "layer"
    version: int = 1

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that an expression can set."""
        return options(self.function, "maps", "rng")

    @property
    def revision(self) -> int | str | None:
        """A suffix for keys: a user's source, or the version if it is not the first."""
        if self.source is not None:
            return self.source
        return self.version if self.version > 1 else None

    @property
    def is_stochastic(self) -> bool:
        """Whether the function takes ``rng``."""
        return "rng" in inspect.signature(self.function).parameters

    def apply(self, maps: Tensor, arguments: Mapping[str, Any], rng: Rng) -> Tensor:
        """Transform maps ``(B, h, w)``; the function is passed ``rng`` if it takes it."""
        if self.is_stochastic:
            return self.function(maps, **arguments, rng=rng)
        return self.function(maps, **arguments)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring, for listings."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


NEEDS = {
    "gradient": "the score's gradient, which methods of a batch share",
    "image": "the image beside the layer's features",
    "channels": "a pass per channel",
    "silhouette": "data with silhouettes of the object",
    "reference": "images that are not explained",
    "relus": "a network with ReLUs",
    "rules": "a network of operations that it has rules for",
    "ViT": "a plain vision transformer",
    "BagNet": "a BagNet",
    "B-cos": "a B-cos network",
}
KINDS = {"mean": "The mean of", "sq": "The mean square of", "var": "The variance of"}


def method(
    id: str,
    *,
    family: str,
    paper: str = "",
    signed: bool = True,
    layer: str = "input",
    reduce: str = "sum",
    needs: tuple[str, ...] = (),
    cost: Cost | tuple[int, int] | None = None,
    version: int = 1,
    applies: Applies | None = None,
    prepare: Prepare | None = None,
    layers: Literal["any", "input"] = "any",
    shares_passes: bool = False,
    stochastic: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as an attribution method.

    The function is ``(model, x, target, *, rng, …) -> maps``. It explains ``model`` at its input
    ``x`` of shape ``(B, C, H, W)``, for the classes ``target`` of shape ``(B,)``, and returns maps
    of shape ``(B, C, h, w)`` or ``(B, h, w)``, of the size of ``x`` or smaller. With ``@layer`` in
    an expression, ``model`` is the network from that layer on and ``x`` the activation there.
    Random numbers come from ``rng``. Keyword arguments of these names are passed to the function:
    ``batch`` (a ``LayerBatch``: gradients that methods share), ``image`` (the images themselves),
    ``silhouette``, ``notes`` (a ``MapNotes``: what a reader must know about single maps),
    ``checkpoint`` (a ``Checkpoint``: the state of an optimization that takes minutes),
    ``prepared`` (what ``prepare`` returned) and ``baseline_prepared`` (what the baseline named by
    its option ``baseline`` has prepared, or None). All others are the method's own options, with
    defaults.

    Example::

        @hp.method("ixg-power", family="gradient", needs=("gradient",))
        def ixg_power(model, x, target, *, rng, batch, power: int = 2):
            \"\"\"Input times a power of the gradient.\"\"\"
            return x * batch.gradient() ** power

    Args:
        id: The name in specs and expressions.
        family: The family it is shown with in reports, such as ``gradient``, ``cam`` or ``yours``.
        paper: The paper that introduces it.
        signed: Whether negative values mean evidence against the class.
        layer: The layer that it explains by default.
        reduce: How channels are reduced to one map, a key of ``REDUCTIONS``.
        needs: What it needs, as keys of ``NEEDS``.
        cost: Forward and backward passes per image, or a function of the arguments.
        version: Raise it when the results change, so that stored ones are not reused.
        applies: A function of the model that returns why the method is not defined for it, or "".
        prepare: A function ``(model, batches) -> tensors`` of reference images, called once per
            run; the method receives the tensors as ``prepared``.
        layers: Where the method is defined: ``any`` layer, or the ``input`` only.
        shares_passes: Whether all its passes serve every evaluated cell of a grid, by
            ``variant_scores``.
        stochastic: Whether maps depend on the seed of ``rng``, so that ``seeds: 2`` of a spec
            computes them twice; methods of your own count as stochastic.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a method of that name.
    """

    def register(function: Function) -> Function:
        entry = MethodEntry(
            id,
            function,
            family,
            paper,
            signed,
            layer,
            reduce,
            frozenset(needs),
            _cost_function(cost, needs, is_builtin(function)),
            version,
            source_hash(function),
            applies,
            prepare,
            layers=layers,
            shares_passes=shares_passes,
            stochastic=stochastic,
        )
        METHODS.add(entry, function)
        return function

    return register


def noisy(id: str, base: str, *, paper: str, version: int = 1, **settings: Any) -> None:
    """Register ``base|noise(…)`` as a method, with the noise's fields among its parameters."""
    plain = METHODS[base]
    noise = Noise(**settings)
    signed = plain.signed and noise.kind == "mean"
    version += plain.version - 1  # it is raised with that of the base, too
    entry = replace(
        plain, id=id, paper=paper, version=version, noise=noise, base=base, signed=signed
    )
    METHODS.add(entry, entry)


def _cost_function(
    cost: Cost | tuple[int, int] | None, needs: tuple[str, ...], builtin: bool
) -> Cost | None:
    if callable(cost):
        return cost
    if cost is None and not builtin:
        return None
    fixed = cost or ((0, 1) if "gradient" in needs else (0, 0))
    return lambda arguments: fixed


def reason_not_applicable(check: Callable[[Model], None]) -> Applies:
    """Turn a check of all that follows a layer into one that returns why it does not apply.

    It may cost a pass, with the network as in ``Passes.frozen_eval``: it is made once for a network
    and layer, and not for a layer if the method applies at the input.
    """
    cache: WeakKeyDictionary[Body, dict[int, str]] = WeakKeyDictionary()

    @wraps(check)
    def reason(model: Model) -> str:
        reasons = cache.setdefault(model.body, {})
        if reasons.get(0) == "":
            return ""
        if model.start not in reasons:
            try:
                with model.passes.frozen_eval():
                    check(model)
                reasons[model.start] = ""
            except NotApplicable as error:
                reasons[model.start] = str(error)
        return reasons[model.start]

    return reason


def transform(
    id: str, *, removes_sign: bool = False, at: Resolution = "layer", version: int = 1
) -> Callable[[Function], Function]:
    """Register a function that changes maps, for use after a method: ``ixg|sharpen(2)``.

    The function is ``(maps, …) -> maps`` on maps of shape ``(B, h, w)``. It is passed ``rng`` if it
    has such a parameter.

    Example::

        @hp.transform("sharpen")
        def sharpen(maps, power: float = 2):
            \"\"\"A power of each value, with its sign.\"\"\"
            return maps.sign() * maps.abs() ** power

    Args:
        id: The name in expressions.
        removes_sign: Whether negative values lose their meaning.
        at: The resolution that it needs: that of the maps at their ``layer``, or that of the
            ``image``, to which maps are then resized before it. Transforms after one at ``image``
            act on maps of that size as well.
        version: Raise it when the results change, so that stored ones are not reused.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a transform of that name.
    """

    def register(function: Function) -> Function:
        entry = TransformEntry(id, function, removes_sign, source_hash(function), at, version)
        TRANSFORMS.add(entry, function)
        return function

    return register


def entry_of(function: Any, name: str, options: Mapping[str, Any] | None = None) -> MethodEntry:
    """Return the entry for a plain function, or for an object of another library."""
    if isinstance(function, type):
        raise HeatproofError(
            f"{function.__name__} is a class; "
            f"a method is an object of it, such as {function.__name__}(network)"
        )
    name = name or name_of(function)
    if name in METHODS:
        raise HeatproofError(
            f'your method is called "{name}" like a method of the library; give it another: '
            'hp.named("another name", method)'
        )
    adapted = adapt(function, options or {}, name)
    if adapted is not None:
        return MethodEntry(
            name,
            adapted,
            "yours",
            source=adapted.source,
            applies=adapted.applies,
            layers="input",
        )
    try:
        signature = signature_of(function)
        offered = [key for key in ("batch", "image", "notes") if key in signature.parameters]
        signature.bind(None, None, None, rng=None, **dict.fromkeys(offered), **(options or {}))
    except TypeError as error:
        raise HeatproofError(
            f"{name} must be callable as {name}(model, x, target, rng=…): {error}"
        ) from None
    return MethodEntry(name, function, "yours", source=source_hash(function))


def _transform_of(function: Any, name: str) -> TransformEntry:
    """Return the entry for a plain function, used as a transform."""
    if not callable(function) or isinstance(function, type):
        raise HeatproofError(f"a transform is a function (maps) -> maps; got {function!r}")
    name = name or getattr(function, "__name__", type(function).__name__)
    if name in TRANSFORMS:
        raise HeatproofError(
            f'your function is called "{name}" like a transform of the library; give it another '
            "name"
        )
    return TransformEntry(name, function, source=source_hash(function))


METHODS: Registry[MethodEntry] = Registry("method", entry_of)
TRANSFORMS: Registry[TransformEntry] = Registry("transform", _transform_of)
