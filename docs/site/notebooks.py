"""Pages made from the executed notebooks: prose, code and the outputs that are stored in them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

FOLDER = "examples/notebooks"
FIRST = "1-which-method-for-my-model"
TAGS = re.compile(r"<style.*?</style>|<script.*?</script>", re.DOTALL)


def pages(root: Path) -> dict[str, str | bytes]:
    """Return the pages and pictures of all notebooks by their paths in the site.

    Args:
        root: The root of the repository.
    """
    files: dict[str, str | bytes] = {}
    for path in sorted((root / FOLDER).glob("*.ipynb")):
        files |= page(path.stem, json.loads(path.read_text(encoding="utf-8")))
    return files


def page(name: str, notebook: dict[str, Any]) -> dict[str, str | bytes]:
    """Return the page of a notebook, and its pictures."""
    parts: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture is None:
                parts.append(shown(output))
                continue
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[f"notebooks/{file}"] = base64.b64decode("".join(picture))
            parts.append(f"![Output]({file})")
    origin = f"*This is the notebook `{FOLDER}/{name}.ipynb`, with the outputs of its last run.*"
    parts.insert(1, origin)
    return {f"notebooks/{name}.md": "\n\n".join(parts), **pictures}


def shown(output: dict[str, Any]) -> str:
    """Return an output as HTML if it is a table, or else as text."""
    data = output.get("data", {})
    if "text/html" in data:
        html = TAGS.sub("", "".join(data["text/html"]))
        lines = [line.strip() for line in html.splitlines() if line.strip()]
        return '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    text = "".join(data.get("text/plain", output.get("text", "")))
    return f"```text\n{text.rstrip()}\n```"
