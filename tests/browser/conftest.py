"""Tabs of a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visitor import Visitor


@pytest.fixture
def visit(browser) -> Iterator:
    visitors: list[Visitor] = []

    def start(base: Path | str, **options: Any) -> Visitor:
        base = base.as_uri() if isinstance(base, Path) else base
        visitors.append(Visitor(browser, base, **options))
        return visitors[-1]

    yield start
    for visitor in visitors:
        assert visitor.problems == []
        visitor.context.close()
