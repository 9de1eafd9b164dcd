"""The text of a report that has several pages."""

from pathlib import Path


def report_text(page: Path) -> str:
    """Return all pages of a report, the first one first.

    Args:
        page: Its first page.
    """
    others = sorted(path for path in page.parent.glob("*.html") if path != page)
    return "\n".join(path.read_text(encoding="utf-8") for path in [page, *others])
