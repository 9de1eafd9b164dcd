"""A browser tab that notices problems of a page."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed")
AXE = Path(axe.__file__).with_name("axe.min.js")
SERIOUS = """axe.run({resultTypes: ['violations'], preload: false}).then((found) => found.violations
    .filter((v) => ['serious', 'critical'].includes(v.impact))
    .map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`))"""


class Visitor:
    """A tab that must not log a problem or request anything that is not part of the report."""

    def __init__(self, browser: Any, base: str, **options: Any):
        self.base = base
        self.problems: list[str] = []
        size = {"width": 1300, "height": 900}
        options = {"viewport": size, "reduced_motion": "reduce"} | options
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", lambda r: self.problems.append(f"failed: {r.url[:200]}"))
        self.page.on("request", self._requested)

    def _logged(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.problems.append(f"requested {request.url}")

    def open(self, name: str = "index.html") -> Any:
        self.page.goto(f"{self.base}/{name}")
        if name.startswith("explorer.html"):
            self.ready()
        return self.page

    def ready(self) -> None:
        self.page.wait_for_selector("#explorer-app[data-ready]")


def serious_findings(page: Any) -> list[str]:
    """Return what axe calls serious or critical on a page."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(SERIOUS)
