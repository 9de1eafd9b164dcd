"""The pages of a report: which sections are on which page, and what a page may load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

import heatproof
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.figures import svg
from heatproof.figures.palette import FAMILIES, family_class
from heatproof.figures.paper_names import paper_names
from heatproof.report.deferred import defer
from heatproof.report.sections import SECTIONS, Section, ordered_sections
from heatproof.report.site import SingleFile, Site
from heatproof.report.templating import environment

ASSETS = Path(__file__).parent / "assets"
OVERVIEW = "Overview"
MOST_FIRST_BYTES = 800_000  # of the first page, which is not compressed on disk
STATUS = "status.json"  # what a live report asks for
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 4">'
    '<path fill="#fde6ad" d="M0 0h4v4H0z"/>'
    '<path fill="#ec6a31" d="M1 1h2v2H1z"/><path fill="#b51d2b" d="M1 1h1v1H1z"/>'
    '<path fill="#a6cde4" d="M3 0h1v1H3z"/><path fill="#2f79b9" d="M0 3h1v1H0z"/></svg>\n'
)


@dataclass
class Page:
    """A page of the report.

    Attributes:
        title: Its name in the navigation.
        file: The file that holds it.
        sections: Its sections, and what each of them shows.
    """

    title: str
    file: str
    sections: list[tuple[Section, object]] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The name of the page within a report in one file."""
        return f"page-{self.file.removesuffix('.html')}"


@dataclass(frozen=True)
class NavigationLink:
    """An entry of the navigation."""

    title: str
    href: str
    current: bool


def collect_pages(run: RunStatistics, site: Site) -> list[Page]:
    """Compute all sections of a report; returns the pages that have any, in order.

    Args:
        run: The run.
        site: The site, which figures and pictures are written to.
    """
    pages: dict[str, Page] = {}
    site.names = paper_names(run.provenance.spec)
    for section in ordered_sections():
        content = section.content(run, site)
        if content is not None:
            file = file_name(section.page)
            page = pages.setdefault(file, Page(section.page, file))
            page.sections.append((section, content))
    return list(pages.values())


def lead_first(pages: list[Page], lead: str | None) -> list[Page]:
    """Return pages with the section that a spec leads with at the top of the first one.

    A page whose only section was moved stays in the list, without any.
    """
    leading = [entry for page in pages for entry in page.sections if entry[0].id == lead]
    first, *others = (
        Page(page.title, page.file, [entry for entry in page.sections if entry not in leading])
        for page in pages
    )
    first.sections = leading + first.sections
    return [first, *others]


def file_name(title: str) -> str:
    """Return the file of a page."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "more"
    return "index.html" if title == OVERVIEW else f"{slug}.html"


def write_pages(run: RunStatistics, site: Site, live: bool = False) -> None:
    """Write all pages of a report, and the style and the scripts that they share.

    Args:
        run: The run.
        site: The site.
        live: Whether the pages ask a server if there is a newer version.
    """
    home = collect_pages(run, site)
    site.write("style.css", style())
    site.write("icon.svg", ICON)
    site.write("site.js", site_script())
    site.write("explorer.js", _asset("explorer.js"))
    lead = run.provenance.spec.get("lead")
    named = lead_first(home, lead)
    templates = environment([*run.models, *run.methods])
    first = _render(run, templates, named, named[0], live)
    if len(first) > MOST_FIRST_BYTES and named[0].sections[0][0].id == lead:
        # A first page that is slow to open answers nothing: it begins with a link instead.
        named = home
        first = _render(run, templates, named, named[0], live, lead)
    site.write(named[0].file, defer(first, "index", site))
    for page in named[1:]:
        if page.sections:
            name = page.file.removesuffix(".html")
            content = _render(run, templates, named, page, live)
            site.write(page.file, defer(content, name, site))


def _render(
    run: RunStatistics,
    templates: Environment,
    named: list[Page],
    page: Page,
    live: bool,
    lead: str = "",
) -> str:
    """Return a page as HTML; ``lead`` is a section that its first line leads to."""
    pages = [p for p in named if p.sections]
    where = {section.id: p.file for p in pages for section, _ in p.sections}
    navigation = [NavigationLink(p.title, _link_to(p, named[0]), p is page) for p in named]
    return templates.get_template("page.html.j2").render(
        run=run,
        page=page,
        pages=pages,
        navigation=navigation,
        href=_links(where, page.file),
        policy=policy(live),
        live=live,
        single=False,
        shown=set(where),
        lead=SECTIONS[lead] if lead else None,
        version=heatproof.__version__,
    )


def _link_to(page: Page, first: Page) -> str:
    """Return the link to a page; the lead section stands on the first page."""
    return page.file if page.sections else f"{first.file}#{first.sections[0][0].id}"


def _links(where: dict[str, str], here: str) -> Callable[[str], str]:
    """Return a function from a section to the link to it, from a page."""

    def href(section: str) -> str:
        file = where.get(section, here)
        return f"#{section}" if file == here else f"{file}#{section}"

    return href


def write_single_page(run: RunStatistics, site: SingleFile) -> str:
    """Return a report in one file."""
    named = lead_first(collect_pages(run, site), run.provenance.spec.get("lead"))
    pages = [page for page in named if page.sections]
    css = Markup(style())
    script = Markup(site_script() + _asset("explorer.js"))
    return (
        environment([*run.models, *run.methods])
        .get_template("single.html.j2")
        .render(
            run=run,
            pages=pages,
            navigation=[NavigationLink(p.title, f"#{p.anchor}", p is pages[0]) for p in pages],
            href=lambda section: f"#{section}",
            blocks=site.blocks,
            single=True,
            live=False,
            lead=None,
            shown={section.id for page in pages for section, _ in page.sections},
            style=css,
            script=script,
            policy=single_policy(css, script),
            version=heatproof.__version__,
        )
    )


def policy(live: bool = False) -> str:
    """Return what a page of the site may load: what stands beside it, from disk or a server.

    ``data:`` is for figures that a reader saves as PNG.
    """
    own = "'self' file:"
    connect = " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; img-src {own} data:; style-src {own}; script-src {own};{connect} "
        "base-uri 'none'; form-action 'none'"
    )


def single_policy(css: str, script: str) -> str:
    """Return what a report in one file may load: its own style, script and pictures."""
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{_digest(css)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def style() -> str:
    """Return the style sheet of the report, with the colours of families."""
    css = _asset("style.css")
    light = {name: family.light for name, family in FAMILIES.items()}
    dark = {name: family.dark for name, family in FAMILIES.items()}
    css = css.replace("/*light families*/", _variables(light))
    css = css.replace("/*dark families*/", _variables(dark))
    return css + svg.STYLE


def site_script() -> str:
    """Return the script of all pages, which knows the style of figures that it saves."""
    return _asset("site.js").replace('"chart style"', json.dumps(svg.print_style()))


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{family_class(name)}:{colour};" for name, colour in colours.items())


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
