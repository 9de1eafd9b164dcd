"""Errors meant for the user: the command line prints their message without a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from heatproof.text import clip, printable, show


class HeatproofError(ValueError):
    """An error the user can fix; the message says what was found and what to do.

    Its text is safe to print: names from strangers can contain commands for a terminal.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class NotApplicable(HeatproofError):
    """A method or protocol that is not defined for a model or data set.

    It is planned and reported as n/a, and does not count as a failure.
    """


def format_error(error: BaseException) -> str:
    """Return the error and where it was raised in one line: ``ValueError: no luck (mine.py:4)``."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def format_invalid(details: Mapping[str, Any]) -> str:
    """Return one error of a pydantic ``ValidationError`` as a message.

    Args:
        details: One item of ``ValidationError.errors()``.

    Returns:
        A text such as ``patches: found 'x'; input should be a valid integer``.
    """
    key = clip(".".join(map(str, details["loc"])))
    if details["type"] == "missing":
        return f"{key} is missing"
    if details["type"] == "too_short":
        return f"{key} is empty; name at least one"
    reason = details["msg"].removeprefix("Value error, ")
    message = f"found {show(details['input'])}; {reason[:1].lower()}{reason[1:]}"
    return f"{key}: {message}" if key else message


def join_limited(names: Iterable[str], most: int = 5) -> str:
    """Join names with commas and cut a long list: ``a, b, c, d, e and 7 more``."""
    names = list(names)
    text = ", ".join(map(clip, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text


MOST_NAMES = 60
# What other libraries call things, by their letters and digits alone.
LONG_NAMES = {
    "integratedgradients": "ig",
    "inputxgradient": "ixg",
    "inputtimesgradient": "ixg",
    "gradienttimesinput": "ixg",
    "gradient": "saliency",
    "vanillagradient": "saliency",
    "layerwiserelevancepropagation": "lrp-composite",
    "lrp": "lrp-composite",
    "shap": "kernelshap",
    "deepliftshap": "deepshap",
    "attentionrollout": "rollout",
}


def unknown(kind: str, name: object, existing: Iterable[str], hint: str = "") -> HeatproofError:
    """Return the error for a name that does not exist, with the closest ones that do.

    Args:
        kind: The kind of thing that was looked up, such as ``method``.
        name: The name that was not found.
        existing: The names that exist. All are listed if none is close, up to ``MOST_NAMES``.
        hint: A sentence to add at the end.
    """
    names = sorted(set(existing))
    name = clip(str(name))  # finding close matches takes the square of its length
    # Grad-CAM is gradcam: names are also compared by their letters and digits alone
    by_letters = {_letters(n) or n: n for n in reversed(names)}
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if not close:
        close = [by_letters[n] for n in get_close_matches(_letters(name), by_letters, 3, 0.6)]
    if LONG_NAMES.get(_letters(name)) in names:
        close = [LONG_NAMES[_letters(name)]]
    if close:
        suggestion = f"did you mean {', '.join(close)}?"
    else:
        suggestion = f"there are: {join_limited(names, MOST_NAMES)}"
    return HeatproofError(f'unknown {kind} "{name}"; {suggestion} {hint}'.rstrip())


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


class StorageError(HeatproofError):
    """A file cannot be written: the disk is full, or the directory read-only or gone."""
