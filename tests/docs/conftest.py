"""The generator of the documentation site, for tests of its pages."""

import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "docs/site"


@pytest.fixture(scope="session")
def site():
    """Return the module with the hooks of the site."""
    sys.path.insert(0, str(SITE))
    try:
        import hooks

        yield hooks
    finally:
        sys.path.remove(str(SITE))


@pytest.fixture(scope="session")
def reference(site):
    """Return the module that generates pages from the registries."""
    return site.reference
