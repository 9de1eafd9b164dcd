"""The registry of report sections: functions from a run to what their templates show."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.registry import Registry
from heatproof.report.site import Site
from heatproof.userfile import is_builtin

TEMPLATES = Path(__file__).parent.parent / "templates"

# Returns what the template shows, an object or a dictionary; None leaves the section out.
ContentFunction = Callable[[RunStatistics, Site], object]
AnyContentFunction = TypeVar("AnyContentFunction", bound=ContentFunction)


@dataclass(frozen=True)
class Section:
    """A section in the registry; see `section`."""

    id: str
    short: str
    question: str
    content: ContentFunction
    order: float
    template: Path
    page: str


def section(
    id: str,
    *,
    short: str,
    question: str,
    order: float = 115,
    template: str = "",
    page: str = "",
) -> Callable[[AnyContentFunction], AnyContentFunction]:
    """Register a section of the report.

    The function is ``(run, site) -> object`` and returns what its template shows, a dataclass or a
    dictionary, or None if it has nothing to say about the run, which leaves the section out.
    ``run`` has the scores and what was kept of the run; ``site.figure(svg)`` and
    ``site.picture(image)`` add files.

    Example::

        @hp.section("notes", short="Notes", question="What should a reader know?")
        def notes(run, site):
            return {"text": f"{len(run.rows)} scores were computed."}

    with ``notes.html.j2`` beside the file: ``<p>{{ s.text }}</p>``.

    Args:
        id: The anchor of the section in its page.
        short: Its name in lists of sections.
        question: Its heading, the question that it answers.
        order: Its position; heatproof's own sections are at 10, 20, … 120, and the last one,
            on provenance, is at 120. A page stands where its first section does.
        template: The Jinja template, a path relative to the file of the function; by default
            ``{id}.html.j2``. The values are in ``s``.
        page: The page that it belongs to, by its name in the navigation, such as ``Ranking``; by
            default a page of its own, whose name is ``short``.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        HeatproofError: If there is already a section of that name, or no such template.
    """

    def register(content: AnyContentFunction) -> AnyContentFunction:
        folder = TEMPLATES
        if not is_builtin(content):
            folder = Path(inspect.getsourcefile(content) or "").absolute().parent
        path = folder / (template or f"{id}.html.j2")
        if not path.is_file():
            raise HeatproofError(f'section "{id}": there is no template {path}')
        SECTIONS.add(Section(id, short, question, content, order, path, page or short), content)
        return content

    return register


def _entry_of(thing: Any, name: str) -> Section:
    raise HeatproofError(
        f"a section is a function that is decorated with hp.section; got {thing!r}"
    )


SECTIONS: Registry[Section] = Registry("section", _entry_of)


def ordered_sections() -> list[Section]:
    """Return all sections in the order of the report."""
    return sorted(SECTIONS, key=lambda section: section.order)
