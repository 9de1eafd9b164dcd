"""Errors that are meant for the person at the keyboard: the command line prints them without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HeatproofError(ValueError):
    """Something the user can put right; the message says what was found and what to do."""


class NotApplicable(HeatproofError):
    """A method or protocol that is not defined for this model or data: planned as n/a, shown, no failure."""


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> HeatproofError:
    """«unknown method "gradcm"; did you mean gradcam, gradcam++?» or, with nothing close, all there are."""
    names = sorted(set(known))
    close = get_close_matches(str(name), names, n=3, cutoff=0.6)
    help_ = f"did you mean {', '.join(close)}?" if close else f"there are: {', '.join(names)}"
    return HeatproofError(f'unknown {kind} "{name}"; {help_}{" " + hint if hint else ""}')
