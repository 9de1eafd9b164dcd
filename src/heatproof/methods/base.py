"""The registry of methods and transforms, and expressions such as `ig(steps=20)@middle|abs`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError, unknown
from heatproof.expressions import Call, call_label, options, parse_call, split
from heatproof.methods.adapters import attribution, is_map_file, maps_of
from heatproof.models.body import Body
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

Cost = Callable[[Mapping[str, Any]], tuple[int, int]]
Function = Callable[..., Tensor]
Applies = Callable[[Model], str]  # why it does not apply to a model; "" where it does
Prepare = Callable[
    [Model, Iterator[Tensor]], dict[str, Tensor]
]  # from the network from its layer on, and images of the reference
EVERY = "all"  # the layers of a model from its input to `final`
_GIVEN = (
    *("model", "x", "target", "rng", "batch", "image", "silhouette"),
    *("prepared", "baseline_prepared"),
)


class Noise(BaseModel):
    """The method on n noisy copies of its input: the mean of its maps, of their squares, or their variance, before channels are reduced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(default=4, ge=1)
    std: float = Field(default=1.0, ge=0)
    kind: Literal["mean", "sq", "var"] = "mean"
    relative: bool = False  # std is a share of each input's range, not a number of the input space

    @classmethod
    def parameters(cls) -> dict[str, inspect.Parameter]:
        return {
            name: inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=f.default,
                annotation=Annotated[f.annotation, f],
            )
            for name, f in cls.model_fields.items()
        }


@dataclass(frozen=True)
class MethodEntry:
    """What the registry knows of a method. cost: (forwards, backwards) an image, alone, from its arguments."""

    id: str
    function: Function
    family: str
    paper: str = ""
    signed: bool = True
    layer: str = "input"
    reduce: str = "sum"
    needs: frozenset[str] = frozenset()  # words of NEEDS
    cost: Cost | None = None  # None: its author does not say
    version: int = 1
    source: str | None = None  # hash of a user's code; None for what ships with the package
    applies: Applies | None = None  # None: to every model
    prepare: Prepare | None = (
        None  # what it needs to know of the model beforehand, given to it as `prepared`
    )
    noise: Noise | None = None  # an entry of its own for a method with noise
    of: str = ""  # the entry that it adds noise to
    layers: str = "any"  # where it is defined: any, or input

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        reduce = inspect.Parameter("reduce", inspect.Parameter.KEYWORD_ONLY, default=self.reduce)
        return options(self.function, *_GIVEN) | {"reduce": reduce} | self._noise_parameters()

    def takes(self, name: str) -> bool:
        """Whether its function has a parameter of that name, such as ``batch``."""
        return name in inspect.signature(self.function).parameters

    def _noise_parameters(self) -> dict[str, inspect.Parameter]:
        """How many and how strong may be said of an entry with noise; its kind is what it is."""
        if self.noise is None:
            return {}
        own = self.noise.model_dump(exclude={"kind"})
        return {
            name: p.replace(default=own[name])
            for name, p in Noise.parameters().items()
            if name in own
        }

    @property
    def summary(self) -> str:
        told = (inspect.getdoc(self.function) or "").partition("\n")[0]
        return (
            f"{KINDS[self.noise.kind]} {self.of} over noisy inputs. {told}" if self.noise else told
        )


@dataclass(frozen=True)
class TransformEntry:
    """What the registry knows about a transform; see `transform`."""

    id: str
    function: Function  # (maps (B, h, w), …[, rng]) -> (B, h, w)
    removes_sign: bool = False
    source: str | None = None  # hash of a user's code; None for what ships with the package

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return options(self.function, "maps", "rng")

    def apply(self, maps: Tensor, arguments: Mapping[str, Any], rng: Rng) -> Tensor:
        given = {"rng": rng} if "rng" in inspect.signature(self.function).parameters else {}
        return self.function(maps, **arguments, **given)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


NEEDS = {
    "gradient": "the score's gradient, which methods of a batch share",
    "image": "the image beside the layer's features",
    "channels": "a pass for each channel",
    "silhouette": "data with silhouettes of the object",
    "reference": "images that are not explained",
    "relus": "a network with ReLUs",
    "rules": "a network of operations that it has rules for",
    "ViT": "a plain vision transformer",
    "BagNet": "a BagNet",
    "B-cos": "a B-cos network",
}
KINDS = {"mean": "The mean of", "sq": "The mean square of", "var": "The variance of"}
GROUPS: dict[str, str] = {
    "idsds-23": "ixg ixg-sg ig ig-u ig-sg ixg|abs ixg-sg|abs ig|abs ig-u|abs ig-sg|abs ig-sq saliency rise rise-u "
    "gradcam gradcam++ sg-cam++ xgradcam layercam rollout chefer bcos bagnet",
    "controls": "random constant edges center object",
}


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
) -> Callable[[Function], Function]:
    """Register a function as an attribution method.

    The function is ``(model, x, target, *, rng, …) -> maps``. It explains ``model`` at its input
    ``x`` of shape ``(B, C, H, W)``, for the classes ``target`` of shape ``(B,)``, and returns maps
    of shape ``(B, C, h, w)`` or ``(B, h, w)``, of the size of ``x`` or smaller. With ``@layer`` in
    an expression, ``model`` is the network from that layer on and ``x`` the activation there.
    Further keyword arguments are the method's own, with defaults; random numbers come from ``rng``.

    Example::

        @hp.method("ixg-power", family="gradient", needs=("gradient",))
        def ixg_power(model, x, target, *, rng, power: int = 2):
            \"\"\"Input times a power of the gradient.\"\"\"
            return x * model.gradient(x, target).gradient ** power

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
            _price(cost, needs, is_builtin(function)),
            version,
            source_hash(function),
            applies,
            prepare,
            layers=layers,
        )
        METHODS.add(entry, function)
        return function

    return register


def noisy(id: str, of: str, *, paper: str, reduce: str | None = None, **noise: Any) -> None:
    """An entry for `of|noise(…)`, which its parameters then belong to."""
    base, told = METHODS[of], Noise(**noise)
    reduce = reduce or base.reduce
    signed = told.kind == "mean" and "abs" not in reduce
    entry = replace(base, id=id, paper=paper, reduce=reduce, noise=told, of=of, signed=signed)
    METHODS.add(entry, entry)


def _price(cost: Cost | tuple[int, int] | None, needs: tuple[str, ...], own: bool) -> Cost | None:
    if callable(cost):
        return cost
    if cost is None and not own:
        return None
    fixed = cost or ((0, 1) if "gradient" in needs else (0, 0))
    return lambda arguments: fixed


def remembered(applies: Applies) -> Applies:
    """A look at the network that costs a pass, taken once for each layer."""
    known: WeakKeyDictionary[Body, dict[str, str]] = WeakKeyDictionary()

    @wraps(applies)
    def reason(model: Model) -> str:
        layers = known.setdefault(model.body, {})
        if model.start_layer not in layers:
            layers[model.start_layer] = applies(model)
        return layers[model.start_layer]

    return reason


def transform(id: str, *, removes_sign: bool = False) -> Callable[[Function], Function]:
    """Register a function that changes maps, for use after a method: ``ixg|sharpen(2)``.

    The function is ``(maps, …) -> maps`` on maps of shape ``(B, h, w)`` at the layer's own
    resolution. It is passed ``rng`` if it has such a parameter.

    Example::

        @hp.transform("sharpen")
        def sharpen(maps, power: float = 2):
            \"\"\"A power of each value, with its sign.\"\"\"
            return maps.sign() * maps.abs() ** power

    Args:
        id: The name in expressions.
        removes_sign: Whether negative values lose their meaning.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a transform of that name.
    """

    def register(function: Function) -> Function:
        entry = TransformEntry(id, function, removes_sign, source_hash(function))
        TRANSFORMS.add(entry, function)
        return function

    return register


@dataclass(frozen=True)
class Expression:
    """A method with everything said about it. `label` is the shortest text that means the same, `canonical` says all."""

    entry: MethodEntry
    arguments: dict[str, Any] = field(hash=False)
    layer: str
    transforms: tuple[tuple[TransformEntry, dict[str, Any]], ...] = field(hash=False)
    signed: bool
    label: str
    canonical: str  # with every default, the version, and the transforms
    map_key: str  # the same without transforms: what is stored
    noise: Noise | None = None
    drawn: str = ""  # the noisy maps it is made of, which expressions that differ only in kind or reduction share
    calls: tuple[Call, ...] = field(
        default=(), hash=False
    )  # method and transforms as they were written

    @property
    def cost(self) -> tuple[int, int] | None:
        """(forwards, backwards) an image of 224 px, alone (a channel, where it goes through them); None where its author does not say."""
        return self._cost(1, 224)

    def cost_on(self, model: Model) -> tuple[int, int] | None:
        channels, *sides = model.shape(self.layer)
        return self._cost(channels, sides[-1] if sides else 1)

    def _cost(self, channels: int, side: int) -> tuple[int, int] | None:
        if self.entry.cost is None:
            return None
        forwards, backwards = self.entry.cost(
            {**self.arguments, "channels": channels, "side": side}
        )
        copies = self.noise.n if self.noise else 1
        return copies * forwards, copies * backwards

    @property
    def needs_reference(self) -> bool:
        """Whether it needs images that are not explained, for itself or for its baseline."""
        removal = self.arguments.get("baseline")
        return self.entry.prepare is not None or (
            isinstance(removal, str) and Baseline.parse(removal).entry.prepare is not None
        )

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The source hashes of the method, its baseline and its transforms; None if they ship."""
        transforms = (entry.source for entry, _ in self.transforms)
        return (self.entry.source, _baseline_source(self.arguments), *transforms)

    @property
    def shares_gradient(self) -> bool:
        """Whether one gradient at its layer is all it needs, so that one backward serves others too."""
        return self.entry.takes("batch") and self.cost == (0, 1) and self.noise is None

    def at(self, layer: str) -> Expression:
        """The same at another layer."""
        head, *tail = self.calls
        return self._build(self.entry, head, layer, tail)

    @classmethod
    def parse(cls, text: str | Function) -> Expression:
        if callable(text) or hasattr(text, "attribute"):
            entry = METHODS.resolve(text)
            return cls._build(entry, Call(entry.id), entry.layer, [])
        if not isinstance(text, str):
            raise HeatproofError(
                f"a method is an expression such as ixg|abs, or a function; got {type(text).__name__}"
            )
        if not text.strip():
            raise HeatproofError("an empty method expression; write for example ixg|abs")
        head, *tail = split(text, "|")
        call_text, at, layer = _partition_layer(head)
        call = parse_call(call_text)
        if call.name in TRANSFORMS and call.name not in METHODS:
            raise HeatproofError(
                f'"{text}": {call.name} is a transform, not a method; write for example ixg|{call.name}'
            )
        entry = _stored_maps(call.name) if is_map_file(call.name) else METHODS.resolve(call.name)
        return cls._build(
            entry, call, layer.strip() if at else entry.layer, [parse_call(t) for t in tail]
        )

    @classmethod
    def _build(cls, entry: MethodEntry, call: Call, layer: str, tail: list[Call]) -> Expression:
        call = Call(entry.id, call.args, call.kwargs)
        calls = (call, *tail)
        arguments = call.bind(entry.parameters, "method")
        if arguments["reduce"] not in REDUCTIONS:
            raise unknown("reduction", arguments["reduce"], REDUCTIONS)
        label = call_label(call, arguments, entry.parameters) + (
            "" if layer == entry.layer else f"@{layer}"
        )
        spelled = str(Call(entry.id, (), dict(sorted(arguments.items()))))
        noise, labels, tail = _noise(entry, arguments, tail)
        code = f" v{entry.version}{_own_code(entry.source, _baseline_source(arguments))}"
        arguments = {
            k: v for k, v in arguments.items() if entry.noise is None or k not in Noise.model_fields
        }
        map_key = f"{spelled}@{layer}{code}" + (f"|noise {noise}" if noise else "")
        transforms, signed, canonical = (
            [],
            entry.signed and (noise is None or noise.kind == "mean"),
            [map_key],
        )
        for piece in tail:
            if piece.name == "noise":
                raise HeatproofError(
                    f"noise stands directly after the method: {entry.id}|noise(n=4, std=0.3)|…"
                )
            found = TRANSFORMS.resolve(piece.name)
            bound = piece.bind(found.parameters, "transform")
            found.apply(
                torch.zeros(1, 2, 2), bound, Rng(0, [""])
            )  # a bad argument is told now, not after the first batch
            transforms.append((found, bound))
            signed = signed and not found.removes_sign
            labels.append(str(Call(found.id, tuple(bound.values()))))
            canonical.append(f"{Call(found.id, (), bound)}{_own_code(found.source)}")
        drawn = ""
        if noise:
            own = {k: v for k, v in sorted(arguments.items()) if k != "reduce"}
            drawn = f"{Call(entry.of or entry.id, (), own)}@{layer}{code} {noise.model_dump(exclude={'kind'})}"
        return cls(
            entry,
            arguments,
            layer,
            tuple(transforms),
            signed,
            "|".join([label, *labels]),
            "|".join(canonical),
            map_key,
            noise,
            drawn,
            calls,
        )


def _noise(
    entry: MethodEntry, arguments: Mapping[str, Any], tail: list[Call]
) -> tuple[Noise | None, list[str], list[Call]]:
    """The entry's own noise, or what stands directly after the method; how it is spelled, and what is left."""
    if entry.noise:
        return (
            entry.noise.model_copy(
                update={k: v for k, v in arguments.items() if k in Noise.model_fields}
            ),
            [],
            tail,
        )
    if not tail or tail[0].name != "noise":
        return None, [], tail
    parameters = Noise.parameters()
    bound = tail[0].bind(parameters, "modifier")
    return Noise(**bound), [call_label(tail[0], bound, parameters)], tail[1:]


def _own_code(*sources: str | None) -> str:
    """Return the hashes of a user's own code as a part of a key; empty for what ships."""
    return "".join(f"+{source}" for source in sources if source is not None)


def _baseline_source(arguments: Mapping[str, Any]) -> str | None:
    name = arguments.get("baseline")
    return Baseline.parse(name).entry.source if isinstance(name, str) else None


def _stored_maps(name: str) -> MethodEntry:
    """Return the method that reads ``file:maps.npz``, maps by sample id."""
    function, content = maps_of(Path(name.removeprefix("file:")))
    return MethodEntry(name, function, "yours", cost=lambda arguments: (0, 0), source=content)


def _entry_of(function: Any, name: str) -> MethodEntry:
    """Return the entry for a plain function, or for an object such as Captum's."""
    if isinstance(function, type):
        raise HeatproofError(
            f"{function.__name__} is a class; a method is an object of it, such as {function.__name__}(network)"
        )
    if hasattr(function, "attribute"):
        wrapped = attribution(function)
        return MethodEntry(wrapped.__name__, wrapped, "yours", source="")
    if not callable(function):
        raise HeatproofError(
            f"a method is a function (model, x, target, *, rng) -> maps; got {type(function).__name__}"
        )
    name = name or getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
        offered = [key for key in ("batch", "image") if key in signature.parameters]
        signature.bind(None, None, None, rng=None, **dict.fromkeys(offered))
    except TypeError as error:
        raise HeatproofError(
            f"{name} must be callable as {name}(model, x, target, rng=…): {error}"
        ) from None
    if name in METHODS:
        raise HeatproofError(
            f'your function is called "{name}" like a method of the library; give it another name'
        )
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


METHODS: Registry[MethodEntry] = Registry("method", _entry_of)
TRANSFORMS: Registry[TransformEntry] = Registry("transform", _transform_of)


def _partition_layer(head: str) -> tuple[str, str, str]:
    depth = 0
    for i, character in enumerate(head):
        depth += (character == "(") - (character == ")")
        if character == "@" and not depth:
            return head[:i], "@", head[i + 1 :]
    return head, "", ""


def at_their_layers(expressions: Sequence[Expression], model: Model) -> list[Expression]:
    """What stands at `all` at every layer that the model shows, each once."""
    found = [
        e.at(layer)
        for e in expressions
        for layer in (model.all_layers if e.layer == EVERY else [e.layer])
    ]
    return list({e.label: e for e in found}.values())


def parse_methods(texts: list[str | Function]) -> list[Expression]:
    """Expressions in order, groups expanded, each once."""
    found: dict[str, Expression] = {}
    for text in texts:
        names: list[str | Function] = [text]
        if isinstance(text, str) and text.startswith("group:"):
            group = text.removeprefix("group:")
            if group not in GROUPS and group != "all":
                raise unknown("group of methods", group, [*GROUPS, "all"])
            members = (
                GROUPS[group].split()
                if group in GROUPS
                else [e.id for e in METHODS if e.source is None]
            )
            names = [m for m in members if split(m, "|")[0] in METHODS]
        for name in names:
            expression = Expression.parse(name)
            found.setdefault(expression.label, expression)
            if found[expression.label].entry.function is not expression.entry.function:
                raise HeatproofError(
                    f"two methods are called {expression.label}; give one another name"
                )
    return list(found.values())
