"""Expressions such as `ig(steps=20)@middle|abs`: a method with arguments, layer and transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError, format_error, unknown
from heatproof.expressions import Call, call_label, options, parse_call, split
from heatproof.methods.adapters import Adapted, is_plain
from heatproof.methods.base import (
    METHODS,
    PER_CALL,
    REDUCTIONS,
    TRANSFORMS,
    MethodEntry,
    TransformEntry,
    entry_of,
)
from heatproof.methods.by_name import LibraryMethod, ReasonFor, library_method
from heatproof.methods.groups import GROUPS
from heatproof.methods.library_tables import LIBRARIES, library_of
from heatproof.methods.noise import Noise
from heatproof.methods.saved_maps import (
    is_folder,
    is_map_file,
    method_from_folder,
    method_from_maps,
)
from heatproof.models.model import Model
from heatproof.tensor.noise import Rng
from heatproof.userfile import PREFIX, from_file

SEED = "seed"  # in an expression: ig-u|seed(1) has other noise than ig-u
ALL_LAYERS = "all"  # in an expression: each layer of a model from its input to `final`


Sees = Callable[[int, int], tuple[slice, slice]]


def _everything(height: int, width: int) -> tuple[slice, slice]:
    return slice(0, height), slice(0, width)


class _CostArguments(dict[str, Any]):
    """The arguments of a method and the size of its layer, which is found only if it is read."""

    def __init__(self, arguments: Mapping[str, Any], shape: Callable[[], Sequence[int]]):
        super().__init__(arguments)
        self._shape = shape

    def __missing__(self, name: str) -> int:
        """Return ``channels``, ``height`` or ``side``, the width, of one image's activation."""
        channels, *sides = self._shape()
        height, width = sides if len(sides) == 2 else (1, 1)
        return {"channels": channels, "height": height, "side": width}[name]


@dataclass(frozen=True)
class Named:
    """A method with a name and keyword arguments; see `named`."""

    name: str
    method: Any
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


def named(name: str, method: Any, /, **options: Any) -> Named:
    """Give a method a name in results, and keyword arguments for each call.

    Example::

        occ = hp.named("occ", Occlusion(net), sliding_window_shapes=(3, 8, 8))
        hp.evaluate(net, data, ["ixg", occ, hp.named("my ig", "ig", steps=20)])

    Args:
        name: The name, which may be any text that no method of the library has.
        method: An expression, a function, or an object of another library.
        **options: Arguments of the method, such as those of Captum's ``attribute``. For a method of
            your own, ``images_per_call`` says how many images it is given at a time.

    Returns:
        A method for ``evaluate`` and ``explain``. The pair ``(name, method)`` does the same.

    Raises:
        HeatproofError: If the name is not a text, is empty, or is that of another method.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise HeatproofError(
            f'the name of a method is a line of text: hp.named("my method", method); got {name!r}'
        )
    if isinstance(method, Named):
        return Named(name, method.method, {**method.options, **options})
    if name in METHODS and METHODS.registered(method) is not METHODS[name]:
        raise HeatproofError(
            f'the name "{name}" is that of a method of the library; choose another one'
        )
    return Named(name, method, options)


def as_named(pair: tuple[Any, ...]) -> Named:
    """Return a pair (name, method) as a named method.

    Raises:
        HeatproofError: If it is not such a pair.
    """
    if len(pair) != 2 or not isinstance(pair[0], str):
        raise HeatproofError(f"a method in brackets is a pair (name, method); got {pair!r}")
    return named(*pair)


@dataclass(frozen=True)
class Expression:
    """A method with its arguments, layer and transforms.

    Attributes:
        entry: The registered method.
        arguments: All arguments, defaults included.
        layer: The layer to explain.
        transforms: Transforms with their arguments.
        signed: Whether maps can be negative.
        label: The shortest text that means the same.
        canonical: The text with every default, the version and the transforms.
        map_key: The same without transforms: what is stored.
        noise: The noise, if there is any.
        noise_key: The key of the noisy maps that it is computed from; expressions that differ only
            in kind or reduction share them.
        seed: What is added to the seed of the run for the noise of the method.
        calls: Method and transforms as they were written.
        name: The label that the user gave it; empty if there is none.
    """

    entry: MethodEntry
    arguments: dict[str, Any] = field(hash=False)
    layer: str
    transforms: tuple[tuple[TransformEntry, dict[str, Any]], ...] = field(hash=False)
    signed: bool
    label: str
    canonical: str
    map_key: str
    noise: Noise | None = None
    noise_key: str = ""
    seed: int = 0
    calls: tuple[Call, ...] = field(default=(), hash=False)
    name: str = ""

    @property
    def cost(self) -> tuple[int, int] | None:
        """Forward and backward passes per image of 224 px, by itself; None if unknown.

        For a method that goes through channels, they are those of each channel.
        """
        cost = self.cost_at(lambda: (1, 224, 224))
        if cost is None or "channels" not in self.entry.needs:
            return cost
        of_two = self.cost_at(lambda: (2, 224, 224))
        assert of_two is not None
        return of_two[0] - cost[0], of_two[1] - cost[1]

    def cost_at(
        self, shape: Callable[[], Sequence[int]], sees: Sees = _everything
    ) -> tuple[int, int] | None:
        """Return the same for an activation.

        Args:
            shape: Returns the shape of one image's activation, (channels, height, width). It may
                take a pass, so it is called only if the cost depends on it.
            sees: Returns which rows and columns of an activation, given its height and width, the
                logits can depend on.
        """
        if self.entry.cost is None:
            return None
        given = {**self.arguments, "at_input": self.layer == "input", "sees": sees}
        forwards, backwards = self.entry.cost(_CostArguments(given, shape))
        copies = self.noise.n if self.noise else 1
        return copies * forwards, copies * backwards

    @property
    def needs_reference(self) -> bool:
        """Whether the method or its baseline needs reference images."""
        if self.entry.prepare is not None:
            return True
        baseline = baseline_of(self.arguments)
        return baseline is not None and baseline.entry.prepare is not None

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The source hashes of the method, its baseline and its transforms; None if they ship."""
        transforms = (entry.source for entry, _ in self.transforms)
        return (self.entry.source, _baseline_source(self.arguments), *transforms)

    @property
    def is_stochastic(self) -> bool:
        """Whether its maps depend on the seed, as far as is known; code of others may."""
        baseline = baseline_of(self.arguments)
        of_others = self.entry.source is not None and not is_map_file(self.entry.id)
        return bool(
            self.noise
            or self.entry.stochastic
            or of_others
            or (baseline and (baseline.entry.stochastic or baseline.entry.source is not None))
            or any(transform.is_stochastic for transform, _ in self.transforms)
        )

    @property
    def shares_gradient(self) -> bool:
        """Whether one gradient at its layer is all it needs, so that a backward can be shared."""
        one = self.entry.takes("batch") and self.cost == (0, 1) and self.noise is None
        return one and "rules" not in self.entry.needs

    @property
    def layers_key(self) -> str:
        """The key of a backward of its own that serves several layers; empty if there is none.

        Expressions that differ only in layer, reduction and transforms share it.
        """
        if "rules" not in self.entry.needs or self.noise is not None:
            return ""
        arguments = {k: v for k, v in sorted(self.arguments.items()) if k != "reduce"}
        return str(Call(self.entry.id, (), arguments))

    @property
    def images_per_call(self) -> int | None:
        """Number of images that a user's method is given at a time; None: a whole batch."""
        return self.arguments.get(PER_CALL)

    def at(self, layer: str) -> Expression:
        """Return the expression at another layer; a name is followed by the layer."""
        head, *tail = self.calls
        expression = self._build(self.entry, head, layer, tail)
        if not self.name or layer == self.layer:
            return expression.called(self.name)
        return expression.called(f"{self.name}@{layer}")

    def called(self, name: str) -> Expression:
        """Return the expression with another label; an empty name leaves it as it is.

        Scores are stored with their label, so that the name is a part of what identifies them.
        """
        if not name:
            return self
        return replace(self, name=name, label=name, canonical=f"{self.canonical} as {name}")

    def with_transforms(self, count: int) -> Expression:
        """Return the expression with only the first of its transforms."""
        head, *tail = self.calls
        noise = len(tail) - len(self.transforms)
        return self._build(self.entry, head, self.layer, tail[: noise + count])

    def reseeded(self, seed: int) -> Expression:
        """Return the expression with noise of its own: that of a run with a seed so much higher."""
        head, *tail = self.calls
        modifiers = len(tail) - len(self.transforms)
        tail.insert(modifiers, Call(SEED, (seed,)))
        return self._build(self.entry, head, self.layer, tail).called(
            f"{self.name}|{SEED}({seed})" if self.name else ""
        )

    @property
    def first_seed(self) -> Expression:
        """The same with the noise of the run's seed."""
        head, *tail = self.calls
        tail = [call for call in tail if call.name != SEED]
        name = self.name.removesuffix(f"|{SEED}({self.seed})")
        return self._build(self.entry, head, self.layer, tail).called(name)

    @classmethod
    def parse(cls, text: Any) -> Expression:
        """Parse an expression such as ``ig(steps=20)@middle|abs``, or wrap a function or object.

        Args:
            text: An expression; a function or an object of another library; what ``named``
                returns, or a pair (name, method), which is the same.

        Raises:
            HeatproofError: If the text is not an expression, or names something unknown.
        """
        method = as_named(text) if isinstance(text, tuple) else text
        if isinstance(method, Expression):
            return method
        if isinstance(method, str):
            return cls._parse_text(method, {})
        if isinstance(method, Named) and isinstance(method.method, str):
            return cls._parse_text(method.method, method.options).called(method.name)
        entry, options = _resolve(method)
        return cls._build(entry, Call(entry.id, (), options), entry.layer, [])

    @classmethod
    def _parse_text(cls, text: str, options: Mapping[str, Any]) -> Expression:
        """Parse an expression, with further arguments of its method."""
        if not text.strip():
            raise HeatproofError("the method expression is empty; write for example ixg|abs")
        head, *tail = split(text, "|")
        call_text, at, layer = _partition_layer(head)
        call = parse_call(call_text)
        call = Call(call.name, call.args, {**call.kwargs, **options})
        if call.name in TRANSFORMS and call.name not in METHODS:
            raise HeatproofError(
                f'"{text}": {call.name} is a transform, not a method; '
                f"write for example ixg|{call.name}"
            )
        if is_map_file(call.name):
            entry = _stored_maps(call.name)
        else:
            entry, own = _resolve(call.name)
            call = Call(call.name, call.args, {**own, **call.kwargs})
        return cls._build(
            entry, call, layer.strip() if at else entry.layer, [parse_call(t) for t in tail]
        )

    @classmethod
    def _build(cls, entry: MethodEntry, call: Call, layer: str, tail: list[Call]) -> Expression:
        call = Call(entry.id, call.args, call.kwargs)
        calls = (call, *tail)
        arguments = call.bind(entry.parameters, "method")
        if isinstance(entry.function, LibraryMethod):
            own = {n: v for n, v in arguments.items() if n in entry.function.settings}
            entry = replace(entry, applies=ReasonFor(entry.function, own))
        if arguments.get(PER_CALL, 1) is None:
            del arguments[PER_CALL]
        if not isinstance(arguments["reduce"], str) or arguments["reduce"] not in REDUCTIONS:
            raise unknown("reduction", arguments["reduce"], REDUCTIONS)
        label = call_label(call, arguments, entry.parameters) + (
            "" if layer == entry.layer else f"@{layer}"
        )
        full_call = str(Call(entry.id, (), dict(sorted(arguments.items()))))
        noise, labels, tail = _noise(entry, arguments, tail)
        seed, tail = _seed(tail)
        of_seed = f"|{SEED} {seed}" if seed else ""
        labels += [str(Call(SEED, (seed,)))] if seed else []
        revision = f" v{entry.version}{_source_suffix(entry.source, _baseline_revision(arguments))}"
        arguments = {
            k: v for k, v in arguments.items() if entry.noise is None or k not in Noise.model_fields
        }
        map_key = f"{full_call}@{layer}{revision}" + (f"|noise {noise}" if noise else "") + of_seed
        transforms = []
        signed = entry.signed and (noise is None or noise.kind == "mean")
        canonical = [map_key]
        for step in tail:
            if step.name == "noise":
                raise HeatproofError(
                    f"noise stands directly after the method: {entry.id}|noise(n=20, std=0.15)|…"
                )
            if step.name == SEED:
                raise HeatproofError(
                    f"{SEED} stands once, after the method and its noise: {entry.id}|{SEED}(1)|…"
                )
            transform = TRANSFORMS.resolve(step.name)
            bound = step.bind(transform.parameters, "transform")
            _try(transform, bound, step)
            transforms.append((transform, bound))
            signed = signed and not transform.removes_sign
            given = tuple(value for value in bound.values() if value is not None)
            labels.append(str(Call(transform.id, given)))
            canonical.append(f"{Call(transform.id, (), bound)}{_source_suffix(transform.revision)}")
        noise_key = ""
        if noise:
            without_reduce = {k: v for k, v in sorted(arguments.items()) if k != "reduce"}
            base = METHODS[entry.base] if entry.base else entry
            sources = _source_suffix(base.source, _baseline_source(arguments))
            noisy_call = f"{Call(base.id, (), without_reduce)}@{layer} v{base.version}{sources}"
            noise_key = f"{noisy_call} {noise.model_dump(exclude={'kind'})}{of_seed}"
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
            noise_key,
            seed,
            calls,
        )


def _try(transform: TransformEntry, arguments: Mapping[str, Any], call: Call) -> None:
    """Apply a transform to a small map: a bad argument raises now, not after the first batch.

    Raises:
        HeatproofError: If it does not take the arguments.
    """
    try:
        transform.apply(torch.zeros(1, 2, 2), arguments, Rng(0, [""]))
    except HeatproofError:
        raise
    except Exception as error:
        raise HeatproofError(f"transform {call}: {format_error(error)}") from error


def _noise(
    entry: MethodEntry, arguments: Mapping[str, Any], tail: list[Call]
) -> tuple[Noise | None, list[str], list[Call]]:
    """Split off the noise: the entry's, or that which stands directly after the method.

    Returns:
        The noise, its label as a list of one or none, and the calls that are left.
    """
    if entry.noise:
        update = {k: v for k, v in arguments.items() if k in Noise.model_fields}
        return entry.noise.model_copy(update=update), [], tail
    if not tail or tail[0].name != "noise":
        return None, [], tail
    parameters = Noise.parameters()
    bound = tail[0].bind(parameters, "modifier")
    return Noise(**bound), [call_label(tail[0], bound, parameters)], tail[1:]


def _seed(tail: list[Call]) -> tuple[int, list[Call]]:
    """Split off ``seed(1)``, which stands before all transforms; 0 if there is none."""
    if not tail or tail[0].name != SEED:
        return 0, tail
    bound = tail[0].bind(options(_seed_parameters), "modifier")
    return bound["seed"], tail[1:]


def _seed_parameters(seed: Annotated[int, Field(ge=1, le=10**6)]) -> None:
    """Have the parameters of ``|seed(1)``."""


def _source_suffix(*sources: int | str | None) -> str:
    """Return the hashes of a user's code as a suffix of a key; empty for built-in code."""
    return "".join(f"+{source}" for source in sources if source is not None)


def baseline_of(arguments: Mapping[str, Any]) -> Baseline | None:
    """Return the baseline that a method's arguments name, if they name one.

    Methods of Captum call it ``baselines``, and it may be a number.
    """
    name = arguments.get("baseline", arguments.get("baselines"))
    return Baseline.parse(name) if isinstance(name, str) else None


def _baseline_source(arguments: Mapping[str, Any]) -> str | None:
    baseline = baseline_of(arguments)
    return baseline.entry.source if baseline else None


def _baseline_revision(arguments: Mapping[str, Any]) -> int | str | None:
    """Return the revision of a method's baseline; None if there is none or it is the first."""
    baseline = baseline_of(arguments)
    revision = baseline.entry.revision if baseline else 1
    return None if revision == 1 else revision


def _stored_maps(name: str) -> MethodEntry:
    """Return the method that reads ``file:maps.npz`` or ``file:folder``, maps by sample id."""
    path = Path(name.removeprefix(PREFIX))
    read = method_from_folder if is_folder(name) else method_from_maps
    function, content_hash = read(path)
    return MethodEntry(name, function, "yours", cost=lambda arguments: (0, 0), source=content_hash)


def _of_library(name: str) -> MethodEntry:
    """Return the method that a name such as ``captum:Saliency`` stands for."""
    method = library_method(name)
    library = method.library
    return MethodEntry(name, method, library.name, source=library.revision, layers="input")


def _resolve(method: Any) -> tuple[MethodEntry, Mapping[str, Any]]:
    """Return the entry for a name, a function or an object, and its options, if it is `Named`."""
    if isinstance(method, str) and method.startswith(PREFIX):
        name = method.rpartition(":")[2]
        thing = from_file(method)
        method = as_named(thing) if isinstance(thing, tuple) else thing
        if isinstance(method, str) or isinstance(getattr(method, "method", None), str):
            raise HeatproofError(f"{name} is an expression; write it into the spec itself")
        known = isinstance(method, Named) or METHODS.registered(method) is not None
        if not known and not hasattr(method, "__name__"):
            method = Named(name, method)  # an object: its class says less than its name
    if library_of(method):
        return _of_library(method), {}
    if isinstance(method, str) and ":" in method and method not in METHODS:
        raise unknown("library of methods", method.partition(":")[0], LIBRARIES)
    if not isinstance(method, Named):
        return METHODS.resolve(method), {}
    entry = METHODS.registered(method.method)
    if entry is not None:
        return replace(entry, id=method.name), method.options
    own = {key: value for key, value in method.options.items() if key != PER_CALL}
    entry = entry_of(method.method, method.name, own)
    if isinstance(entry.function, Adapted):  # it has its options
        return entry, {key: value for key, value in method.options.items() if key == PER_CALL}
    if not is_plain(method.options):
        entry = replace(entry, source="")  # they cannot be recognised in another run
    return entry, method.options


def _partition_layer(head: str) -> tuple[str, str, str]:
    """Split at the ``@`` that stands outside brackets."""
    depth = 0
    for i, character in enumerate(head):
        depth += (character == "(") - (character == ")")
        if character == "@" and not depth:
            return head[:i], "@", head[i + 1 :]
    return head, "", ""


def expand_layers(expressions: Sequence[Expression], model: Model) -> list[Expression]:
    """Replace expressions at ``all`` by one per layer of the model, without repetitions."""
    by_label: dict[str, Expression] = {}
    for expression in expressions:
        layers = model.all_layers if expression.layer == ALL_LAYERS else [expression.layer]
        for layer in layers:
            at_layer = expression.at(layer)
            by_label[at_layer.label] = at_layer
    return list(by_label.values())


def with_seeds(expressions: Sequence[Expression], seeds: int) -> list[Expression]:
    """Return expressions, and those whose maps depend on the seed with so many seeds in all."""
    found: dict[str, Expression] = {}
    for expression in expressions:
        found.setdefault(expression.label, expression)
        if expression.is_stochastic and not expression.seed:
            for other in map(expression.reseeded, range(1, seeds)):
                found.setdefault(other.label, other)
    return list(found.values())


def parse_methods(texts: Sequence[Any]) -> list[Expression]:
    """Parse methods in order, with groups expanded and without repetitions.

    Args:
        texts: Expressions, ``group:…`` or ``group:…@layer``, functions, objects of other
            libraries, and what ``named`` returns.

    Returns:
        The expressions; a label occurs once.

    Raises:
        HeatproofError: If some of them cannot be parsed, with a line for each, or two have the
            same name.
    """
    by_label: dict[str, Expression] = {}
    problems: list[str] = []
    for text in texts:
        try:
            expressions = _expanded(text)
        except HeatproofError as error:
            problems.append(str(error))
            continue
        for expression in expressions:
            by_label.setdefault(expression.label, expression)
            if by_label[expression.label].entry.function is not expression.entry.function:
                raise HeatproofError(
                    f"two methods are called {expression.label}; give one another name: "
                    'hp.named("another name", method)'
                )
    if problems:
        raise HeatproofError("\n".join(problems))
    return list(by_label.values())


def _expanded(text: Any) -> list[Expression]:
    """Return the expressions of a group, at another layer if it names one, or the one of a text."""
    if not (isinstance(text, str) and text.startswith("group:")):
        return [Expression.parse(text)]
    group, at, layer = text.removeprefix("group:").partition("@")
    everything = tuple(entry.id for entry in METHODS if entry.source is None)
    groups = {**GROUPS, "all": everything}
    if group not in groups:
        raise unknown("group of methods", group, groups)
    expressions = [Expression.parse(member) for member in groups[group]]
    return [expression.at(layer) for expression in expressions] if at else expressions
