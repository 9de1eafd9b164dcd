"""Specs from strangers are read within limits: on size, nesting, and what a value may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from heatproof.errors import HeatproofError
from heatproof.text import clip, show, unsafe_character

MAX_FILE_BYTES = 256 * 1024  # of a file
MAX_VALUES = 20_000  # keys and values, with aliases expanded
MAX_DEPTH = 20  # lists and mappings in one another
MAX_TEXT_CHARACTERS = 10_000  # characters of one value
MAX_NUMBER_CHARACTERS = 100  # characters of a number
MAX_NUMBER = 2**63  # numbers are smaller
INFINITE_KEYS = ("clip",)  # whose value may be infinite

_TAG = "tag:yaml.org,2002:"
_TYPES = [_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")]


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        HeatproofError: If it is too large, or not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise HeatproofError(
            f"{path} has more than {MAX_FILE_BYTES // 1024} kB, which no spec needs"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeatproofError(f"{path} is not readable as YAML: {error}") from None


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML into plain values: None, booleans, numbers, texts, lists and dictionaries.

    Dates are texts. Keys that are given twice, tags of other types, and documents that are large,
    deep or contain themselves once their aliases are expanded, are refused.

    Args:
        text: The YAML document.
        source: Where it comes from, for error messages.

    Raises:
        HeatproofError: If it cannot be read.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError: escapes in a text that stand for no character
        message = clip(str(error), 500)
        raise HeatproofError(f"{source} is not readable as YAML: {message}") from None


class _Loader(yaml.SafeLoader):
    """Composes nodes within the limits, before anything is made of them."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (an instance variable in the stubs)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TAG + "timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar[Any] = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in _TYPES
    }

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._measures: dict[yaml.Node, tuple[int, int]] = {}  # values in a node, and its depth

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._nested_too_deep(event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and node not in self._measures:
            raise ComposerError(None, None, f"{event.anchor} contains itself", event.start_mark)
        if node is not None and node not in self._measures:
            self._measures[node] = self._measure(node, event)
        return node

    def _measure(self, node: yaml.Node, event: Any) -> tuple[int, int]:
        """Return how many values a node has with its aliases expanded, and how deep they are."""
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node)
            parts = [part for pair in node.value for part in pair]
        measures = [self._measures[part] for part in parts]
        values = 1 + sum(measure[0] for measure in measures)
        depth = 1 + max((measure[1] for measure in measures), default=0)
        if values > MAX_VALUES:
            problem = f"it has more than {MAX_VALUES:,} values with its aliases expanded"
            raise ComposerError(None, None, problem, event.start_mark)
        if depth > MAX_DEPTH:
            raise self._nested_too_deep(event)
        return values, depth

    def _nested_too_deep(self, event: Any) -> ComposerError:
        problem = f"more than {MAX_DEPTH} lists and mappings are nested"
        return ComposerError(None, None, problem, event.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        is_number = node.tag in (_TAG + "int", _TAG + "float")
        if (
            is_number
            and isinstance(node, yaml.ScalarNode)
            and len(node.value) > MAX_NUMBER_CHARACTERS
        ):
            problem = f"a number of more than {MAX_NUMBER_CHARACTERS} characters"
            raise ConstructorError(None, None, problem, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, OverflowError):  # such as !!int x, !!bool 3
            kind = node.tag.removeprefix(_TAG)
            problem = f"{clip(str(node.value))!r} is not of the type {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from None


def _check_keys(node: yaml.MappingNode) -> None:
    """Reject keys that are given twice, of which YAML would take the last, and lists as keys."""
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConstructorError(None, None, "a key must be text", key.start_mark)
        if key.value in seen:
            problem = f"{clip(key.value)} is given twice"
            raise ConstructorError(None, None, problem, key.start_mark)
        seen.add(key.value)


def check_content(content: Mapping[str, Any]) -> None:
    """Check the values of a spec before it is validated, whether they come from YAML or Python.

    Raises:
        HeatproofError: If a key is not text, a text has characters that cannot be stored or shown,
            a number is not finite or too large, or there is too much of anything.
    """
    remaining: list[tuple[tuple[str, ...], Any]] = [((), content)]
    checked = 0
    while remaining:
        path, value = remaining.pop()
        checked += 1
        if checked > MAX_VALUES:
            raise HeatproofError(f"it has more than {MAX_VALUES:,} values; no spec needs so many")
        if len(path) > MAX_DEPTH:
            raise HeatproofError(
                f"{'.'.join(path[:3])}: more than {MAX_DEPTH} lists and mappings are nested"
            )
        problem = _problem(value, path[-1] if path else "")
        if problem:
            raise HeatproofError(": ".join(filter(None, [clip(".".join(path)), problem])))
        if isinstance(value, Mapping):
            remaining += [((*path, key), part) for key, part in value.items()]
        elif isinstance(value, list | tuple):
            remaining += [((*path, str(i)), part) for i, part in enumerate(value)]


def _problem(value: Any, key: str) -> str:
    """Return what is wrong with one value, apart from what is in it; empty if nothing is."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_key_problem, value)), "")
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int) and abs(value) >= MAX_NUMBER:
        return "found a number of more than 63 bits"
    if isinstance(value, float) and not math.isfinite(value):
        if value > 0 and key in INFINITE_KEYS:
            return ""
        return f"found {value}; a number must be finite"
    return ""


def _key_problem(key: Any) -> str:
    if not isinstance(key, str):
        return f"the key {show(key)} is not text; put it into quotes"
    return _text_problem(key)


def _text_problem(text: str) -> str:
    if len(text) > MAX_TEXT_CHARACTERS:
        return (
            f"found a text of {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are allowed"
        )
    if character := unsafe_character(text):
        return f"found {show(text)}; the character {character} cannot be shown"
    return ""
