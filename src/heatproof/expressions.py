"""The grammar that YAML, the command line and Python share.

A call is ``name(arguments)``; a method may be followed by a layer and by transforms:
``name(arguments)@layer|transform(arguments)|…``.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError

from heatproof.errors import HeatproofError, format_invalid
from heatproof.text import clip

LONGEST_EXPRESSION = 4096
_CALL = re.compile(
    r"\s*(?P<name>file:[^()|@]*[^()|@\s]|[A-Za-z0-9_][A-Za-z0-9_.:/+\-]*)"
    r"\s*(?:\((?P<args>.*)\))?\s*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Call:
    """A name with arguments, such as ``ig(steps=20)`` or ``uniform(-1, 1)``."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = [_show(value) for value in self.args]
        arguments += [f"{name}={_show(value)}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name

    def bind(self, parameters: Mapping[str, inspect.Parameter], kind: str) -> dict[str, Any]:
        """Return all arguments by name, with defaults filled in, checked against annotations.

        Args:
            parameters: The parameters of the function that is called.
            kind: The kind of thing it is, such as ``method``, for messages.

        Raises:
            HeatproofError: If an argument does not fit; the message lists the parameters.
        """
        signature = inspect.Signature(
            [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in parameters.values()]
        )
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            takes = ", ".join(map(_show_parameter, parameters.values())) or "no arguments"
            raise HeatproofError(f"{kind} {self}: {error}; {self.name} takes: {takes}") from None
        bound.apply_defaults()
        return {
            name: self._validate(name, value, parameters[name], kind)
            for name, value in bound.arguments.items()
        }

    def _validate(self, name: str, value: Any, parameter: inspect.Parameter, kind: str) -> Any:
        """Validate an argument by the annotation of its parameter, if it has one."""
        if parameter.annotation is parameter.empty or isinstance(parameter.annotation, str):
            return value
        try:
            return TypeAdapter(parameter.annotation).validate_python(value)
        except ValidationError as error:
            details = {**error.errors()[0], "loc": (name,)}
            raise HeatproofError(f"{kind} {self}, {format_invalid(details)}") from None


def parse_call(text: str) -> Call:
    """Parse a call such as ``ig(steps=20)``.

    Raises:
        HeatproofError: If the text is not a name with optional arguments.
    """
    check_length(text)
    match = _CALL.fullmatch(text)
    if not match:
        several = len(split(text, ",")) > 1
        cure = (
            "repeat the option, or write a list, for several: each has one name"
            if several
            else "expected a name with optional arguments, such as ig(steps=20)"
        )
        raise HeatproofError(f'cannot read "{text}"; {cure}')
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for item in split(match["args"] or "", ","):
        key, equals, value = item.partition("=")
        key = key.strip()
        if equals and key in kwargs:
            raise HeatproofError(f'cannot read "{text}": {key} is given twice')
        if equals and key.isidentifier():
            kwargs[key] = _parse_value(value)
        elif kwargs:
            raise HeatproofError(
                f'cannot read "{text}": the unnamed argument {item.strip()} follows a named one'
            )
        else:
            args.append(_parse_value(item))
    return Call(match["name"], tuple(args), kwargs)


def check_length(text: str) -> None:
    """Check that a text is not too long for an expression.

    Raises:
        HeatproofError: If it is.
    """
    if len(text) > LONGEST_EXPRESSION:
        raise HeatproofError(
            f'cannot read "{text[:40]}…": it has {len(text)} letters; an expression has at most '
            f"{LONGEST_EXPRESSION}"
        )


def split(text: str, separator: str) -> list[str]:
    """Split a text at the separators outside brackets.

    Raises:
        HeatproofError: If brackets do not match, or a piece is empty, or the text is too long.
    """
    check_length(text)
    pieces: list[str] = []
    depth = 0
    start = 0
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            break
        if character == separator and not depth:
            pieces.append(text[start:i])
            start = i + 1
    if depth:
        raise HeatproofError(f'cannot read "{clip(text)}": the brackets do not match')
    pieces.append(text[start:])
    if any(not piece.strip() for piece in pieces) and text.strip():
        raise HeatproofError(
            f'cannot read "{clip(text)}": there is nothing on one side of "{separator}"'
        )
    return [piece for piece in pieces if piece.strip()]


def call_label(
    call: Call, arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> str:
    """Return the shortest equivalent text: only arguments that differ from their defaults.

    Args:
        call: The call as it was written.
        arguments: All its arguments by name, as `Call.bind` returns them.
        parameters: The parameters of the function, which have the defaults.
    """
    changed = {
        name: value
        for name, value in arguments.items()
        if name not in parameters or value != parameters[name].default
    }
    return str(Call(call.name, (), changed))


def options(function: Callable[..., Any], *supplied: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a registered function that a user may set.

    Args:
        function: The registered function.
        *supplied: Names of the parameters that the library passes, which are left out.
    """
    parameters = _resolved.get(function) if isinstance(function, FunctionType) else None
    if parameters is None:
        parameters = _resolve(function)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in parameters.items() if n not in supplied and p.kind not in variable}


# By function: reading a signature and its annotations takes longer than parsing an expression.
_resolved: WeakKeyDictionary[FunctionType, dict[str, inspect.Parameter]] = WeakKeyDictionary()


def _resolve(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function, with annotations that are types, not texts."""
    try:
        hints = get_type_hints(function, include_extras=True)
        resolved = True
    except (NameError, TypeError):  # annotations in user code that cannot be resolved
        hints = {}
        resolved = False
    parameters = {
        name: parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    if resolved and isinstance(function, FunctionType):
        _resolved[function] = parameters
    return parameters


def _parse_value(text: str) -> Any:
    """Return a number, list or other literal, or the text itself if it is none."""
    text = text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # such as "1or 2": it is a text
            value = ast.literal_eval(text)
    # TypeError: a list as a key; MemoryError, RecursionError: too deep for the parser
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    if isinstance(value, int) and abs(value) >= 2**63:
        raise HeatproofError(f"{clip(text, 40)} is a number of more than 63 bits")
    return value


def _show_parameter(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={_show(parameter.default)}"


def _show(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else repr(value)
