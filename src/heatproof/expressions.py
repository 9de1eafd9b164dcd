"""The one grammar of YAML, command line and Python: `name(args)`, and for methods `name(args)@layer|transform(args)|…`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from heatproof.errors import HeatproofError

_CALL = re.compile(
    r"\s*(?P<name>[A-Za-z0-9_][A-Za-z0-9_.:/+\-]*)\s*(?:\((?P<args>.*)\))?\s*", re.DOTALL
)


@dataclass(frozen=True)
class Call:
    """A name with arguments, such as `ig(steps=20)` or `uniform(-1, 1)`."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def bind(self, parameters: Mapping[str, inspect.Parameter], kind: str) -> dict[str, Any]:
        """All arguments by name with the defaults filled in; an argument that does not fit is an error that lists what does."""
        signature = inspect.Signature(
            [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in parameters.values()]
        )
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            takes = (
                ", ".join(
                    n if p.default is p.empty else f"{n}={_show(p.default)}"
                    for n, p in parameters.items()
                )
                or "no arguments"
            )
            raise HeatproofError(f"{kind} {self}: {error}; {self.name} takes: {takes}") from None
        bound.apply_defaults()
        return {
            name: self._checked(name, value, parameters[name], kind)
            for name, value in bound.arguments.items()
        }

    def _checked(self, name: str, value: Any, parameter: inspect.Parameter, kind: str) -> Any:
        """By the parameter's annotation: what a function says it takes is what it gets."""
        if parameter.annotation is parameter.empty or isinstance(parameter.annotation, str):
            return value
        try:
            return TypeAdapter(parameter.annotation).validate_python(value)
        except ValidationError as error:
            wrong = error.errors()[0]
            said = wrong["msg"].removeprefix("Value error, ")
            raise HeatproofError(
                f"{kind} {self}, {name}: found {_show(value)}; {said[0].lower()}{said[1:]}"
            ) from None


def parse_call(text: str) -> Call:
    match = _CALL.fullmatch(text)
    if not match:
        raise HeatproofError(
            f'cannot read "{text}"; expected a name with optional arguments, such as ig(steps=20)'
        )
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for item in split(match["args"] or "", ","):
        key, equals, value = item.partition("=")
        if equals and key.strip() in kwargs:
            raise HeatproofError(f'cannot read "{text}": {key.strip()} is given twice')
        if equals and key.strip().isidentifier():
            kwargs[key.strip()] = _value(value)
        elif kwargs:
            raise HeatproofError(
                f'cannot read "{text}": the unnamed argument {item.strip()} stands after a named one'
            )
        else:
            args.append(_value(item))
    return Call(match["name"], tuple(args), kwargs)


def split(text: str, separator: str) -> list[str]:
    """Split at separators that stand outside brackets; no empty pieces at the ends."""
    pieces, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            break
        if character == separator and not depth:
            pieces.append(text[start:i])
            start = i + 1
    if depth:
        raise HeatproofError(f'cannot read "{text}": the brackets do not match')
    pieces.append(text[start:])
    if any(not p.strip() for p in pieces) and text.strip():
        raise HeatproofError(f'cannot read "{text}": there is nothing on one side of "{separator}"')
    return [p for p in pieces if p.strip()]


def call_label(
    call: Call, arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> str:
    """The shortest text that means the same: only arguments that differ from their defaults."""
    told = {k: v for k, v in arguments.items() if k not in parameters or v != parameters[k].default}
    return str(Call(call.name, (), told))


def options(function: Callable[..., Any], *given: str) -> dict[str, inspect.Parameter]:
    """The parameters of a registered function that a user may set: all but those the library gives."""
    found = inspect.signature(function).parameters.items()
    try:
        hints = get_type_hints(function, include_extras=True)
    except (
        NameError,
        TypeError,
    ):  # annotations of the user's own that cannot be looked up are not checked
        hints = {}
    own = {
        k: p for k, p in found if k not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    return {k: p.replace(annotation=hints.get(k, p.annotation)) for k, p in own.items()}


def _value(text: str) -> Any:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _show(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else repr(value)
