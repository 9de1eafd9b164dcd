"""Errors that are meant for the person at the keyboard: the command line prints them without a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class HeatproofError(ValueError):
    """Something the user can put right; the message says what was found and what to do."""


class NotApplicable(HeatproofError):
    """A method or protocol that is not defined for this model or data: planned as n/a, shown, no failure."""


def format_error(error: BaseException) -> str:
    """«ValueError: no luck (mine.py:4)»: what happened and where, in a line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def join_limited(names: Iterable[str], most: int = 5) -> str:
    """«a, b, c, d, e and 7 more»."""
    told = list(names)
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


MOST_NAMES = 60


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> HeatproofError:
    """«unknown method "gradcm"; did you mean gradcam, gradcam++?» or, with nothing close, all there are (of very many, some)."""
    names = sorted(set(known))
    by_sound = {
        "".join(filter(str.isalnum, n.lower())) or n: n for n in reversed(names)
    }  # Grad-CAM is gradcam
    heard = "".join(filter(str.isalnum, str(name).lower()))
    close = get_close_matches(str(name), names, n=3, cutoff=0.6) or [
        by_sound[n] for n in get_close_matches(heard, by_sound, 3, 0.6)
    ]
    help_ = (
        f"did you mean {', '.join(close)}?"
        if close
        else f"there are: {join_limited(names, MOST_NAMES)}"
    )
    return HeatproofError(f'unknown {kind} "{name}"; {help_}{" " + hint if hint else ""}')
