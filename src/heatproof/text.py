"""Text from strangers: safe to print, to show in a report, and to open in a spreadsheet."""

from __future__ import annotations

import codecs
import re
import reprlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

LONGEST_QUOTE = 200
# What text must not contain: control characters, which command a terminal and are not allowed in
# XML; marks that change the direction of writing, which make text read as something else; and
# surrogates and noncharacters, which cannot be stored as UTF-8 or shown.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_IN_FILE = re.compile(r"file:(?:.*[/\\])?([^/\\:]+\.py:\w+)")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ASCII = str.maketrans(
    {"–": "-", "−": "-", "…": "...", "·": "-", "×": "x", "≥": ">=", "≤": "<=", "→": "->", "±": "+-"}
)


def printable(text: str) -> str:
    r"""Return text in which unsafe characters are written as escapes, such as ``\x1b``.

    Letters of all scripts, line feeds and tabs stay.
    """
    return _UNSAFE.sub(lambda match: _escape(match[0]), text.replace("\r\n", "\n"))


def unsafe_character(text: str) -> str:
    """Return the first unsafe character of a text as an escape; empty if there is none."""
    match = _UNSAFE.search(text)
    return _escape(match[0]) if match else ""


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clip(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Return the beginning of a long text, and how long it is."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters)"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things, such as ``1 image`` or ``2 images``.

    Args:
        count: How many there are.
        noun: The name of one of them.
        plural: The name of several; by default the noun with an s.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def short_titles(names: Iterable[str]) -> dict[str, str]:
    """Return shorter titles for code in files and for very long names, for display only.

    Args:
        names: Names, such as ``file:/home/me/nets/net.py:build``.

    Returns:
        By name, the file and what is in it, such as ``net.py:build``. Other names, and those that
        would have the same title as another, are left out.
    """
    names = list(dict.fromkeys(names))
    titles = {name: match[1] for name in names if (match := _IN_FILE.fullmatch(name))}
    for name in names:
        if len(name) > LONGEST_QUOTE:
            titles.setdefault(name, f"{name[:60]}…{name[-20:]}")
    shown = [titles.get(name, name) for name in names]
    return {name: title for name, title in titles.items() if shown.count(title) == 1}


def with_short_titles(text: str, names: Iterable[str]) -> str:
    """Return a text in which names of code in files are shortened (see `short_titles`)."""
    for name, title in short_titles(names).items():
        text = text.replace(name, title)
    return text


def show(value: Any) -> str:
    """Return the ``repr`` of a value for a message, of bounded length however large it is."""
    if isinstance(value, str):
        return clip(repr(value[: LONGEST_QUOTE + 1])) if len(value) > LONGEST_QUOTE else repr(value)
    return clip(_SHORT_REPR.repr(value), 2 * LONGEST_QUOTE)


def _short_repr() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxlevel = 6
    short.maxdict = short.maxlist = short.maxtuple = short.maxset = 12
    short.maxstring = short.maxother = LONGEST_QUOTE
    return short


_SHORT_REPR = _short_repr()


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose texts a spreadsheet does not take for formulas.

    Texts that begin with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return get an apostrophe
    in front. Numbers are not changed.
    """
    changed = frame.copy(deep=False)
    for column in frame.columns:
        values = frame[column]
        if values.dtype.kind in "biufc":
            continue
        if values.dtype.name == "category":
            escaped = {text: f"'{text}" for text in values.cat.categories if _is_formula(text)}
            changed[column] = values.cat.rename_categories(escaped)
            continue
        starts = values.map(_is_formula)
        if starts.any():
            changed[column] = values.where(~starts.astype(bool), "'" + values.astype(str))
    return changed


def _is_formula(value: object) -> bool:
    return isinstance(value, str) and value.startswith(_FORMULA)


def to_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace what an output stream cannot encode: an error handler for ``codecs``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


ENCODE_ERRORS = "heatproof-ascii"  # the name of that error handler
codecs.register_error(ENCODE_ERRORS, to_ascii)
