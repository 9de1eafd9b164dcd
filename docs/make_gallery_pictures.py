"""Take the pictures of docs/gallery.md, in Chromium, from the reports that `make gallery` built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

SIZE = 1280, 960
WIDTH = 1000  # of the picture


def main(docs: Path, chromium: str = "chromium") -> None:
    for report in sorted(docs.glob("gallery/*/index.html")):
        path = docs / f"img/gallery/{report.parent.name}.png"
        path.parent.mkdir(exist_ok=True)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--window-size={SIZE[0]},{SIZE[1]}", "--virtual-time-budget=4000"]
        target = f"--screenshot={path.resolve()}"
        subprocess.run([chromium, *options, target, report.resolve().as_uri()], check=True)
        with Image.open(path) as taken:
            page = taken.convert("RGB").resize((WIDTH, WIDTH * SIZE[1] // SIZE[0]))
        page.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
