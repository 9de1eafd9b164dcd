"""Write docs/reference: the generated pages that can be read without the site, as on GitHub.

The site has them as they are when it is built, and those of the Python interface besides.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))
import reference


def main(docs: Path) -> None:
    for name, text in reference.pages().items():
        if "\n::: " not in text:  # which the site replaces by docstrings
            path = docs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text.rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
