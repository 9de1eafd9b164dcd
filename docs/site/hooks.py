"""What MkDocs cannot do by itself: pages made from the code, notebooks, files outside docs/.

Pages are generated whenever the site is built, so they cannot be out of date.
"""

from __future__ import annotations

import html as entities
import posixpath
import re
from pathlib import Path
from typing import Any

import notebooks
import reference
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HIDDEN = {"figures-head.md"}  # pages that are parts of others
# files of the repository that are pages of the site, by their path in it
OUTSIDE = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "examples/plugin/README.md": "project/plugin.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# of the converter: a letter that most fonts do not have; and the operator
SET_MINUS = "<mi>&#x029F5;</mi>", "<mo>&#x02216;</mo>"
REPORT = re.compile(r"<!-- report: ([\w-]+) -->")


def on_config(config: Any) -> Any:
    """Put pages that the navigation does not name under "More" of the guide."""
    named = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    more = sorted(pages - named - HIDDEN)
    (guide,) = (entry["Guide"] for entry in config["nav"] if "Guide" in entry)
    if more:
        guide.append({"More": more})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures that are not in docs/, or not as the code has them now."""
    for path, content in [*reference.pages().items(), *notebooks.pages(ROOT).items()]:
        if written := files.get_file_from_path(path):
            files.remove(written)
        files.append(File.generated(config, path, content=content))
    for source, path in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, path, content=move_links(text, source, path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Resolve links to files of the repository, and link the reports that `make gallery` built."""
    path = page.file.src_uri
    if path not in OUTSIDE.values():
        markdown = move_links(markdown, f"docs/{path}", path)
    return REPORT.sub(report_link, markdown)


def report_link(match: re.Match[str]) -> str:
    """Return a link to a finished report, which is a folder of docs/gallery; nothing without it."""
    target = f"gallery/{match[1]}/index.html"
    return f"[Open this report]({target})" if (DOCS / target).exists() else ""


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show formulas; remove the second colon before code, and backslashes before bars in tables.

    The colon is reStructuredText. GitHub needs the backslashes, which Python-Markdown shows.
    """
    html = FORMULA.sub(mathml, html)
    html = html.replace("::</p>", ":</p>")
    return CELL.sub(lambda match: match[0].replace("\\|", "|"), html)


def mathml(match: re.Match[str]) -> str:
    """Convert a formula to MathML, which browsers show without a script or a font."""
    tex = entities.unescape(match[2]).strip()
    found = convert(tex, display="block" if match[1] == "div" else "inline")
    return found.replace(*SET_MINUS)


def on_post_build(config: Any) -> None:
    """Remove the page that only a server shows, and whose links need its address."""
    (Path(config["site_dir"]) / "404.html").unlink()


def move_links(text: str, source: str, page: str) -> str:
    """Change links of a file so that they hold where it stands in the site.

    A link to a file that is not part of the site becomes the path of that file.

    Args:
        text: Markdown.
        source: The path of the file in the repository, which links are relative to.
        page: The path of the page in the site.
    """

    def moved(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[2].partition("#")
        absolute = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = OUTSIDE.get(absolute)
        if absolute.startswith("examples/notebooks"):
            name = posixpath.basename(absolute).removesuffix(".ipynb")
            found = f"notebooks/{name if name[0].isdigit() else notebooks.FIRST}.md"
        if found is None and absolute.startswith("docs/"):
            found = absolute.removeprefix("docs/")
        if found is None:
            return f"{match[1]} (`{absolute}`)" if match[1] != absolute else f"`{absolute}`"
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"[{match[1]}]({relative}{hash_sign}{anchor})"

    return LINK.sub(moved, text)
