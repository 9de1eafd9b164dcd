"""Draw docs/img/methods.png and docs/img/methods/*.png: birds, explained by every method.

The tables of docs/method-names.md and docs/method-families are filled in from the registry.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import torch
from PIL import Image
from tables import replace_rows
from torch import Tensor

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.report.panel import panel

sys.path.insert(0, str(Path(__file__).parent / "site"))
import reference
from panels import draw, heat, picture

NETWORKS = ("resnet", "vit", "bagnet", "bcos")
METHODS_PER_ROW = 11
PANELS_PER_ROW = 7
TITLE = 24  # characters of a line


def main(docs: Path) -> None:
    models = [hp.load_model(f"paperbirds/{network}") for network in NETWORKS]
    data = hp.load_data("paperbirds:test", models[0], limit=2)
    samples = [data.load(i) for i in range(2)]
    images = torch.stack([sample.image for sample in samples])
    silhouettes = [s.silhouette for s in samples if s.silhouette is not None]
    maps: dict[str, Tensor] = {}
    for entry in METHODS:
        model = next(m for m in models if not (entry.applies and entry.applies(m)))
        extra: dict[str, object] = {"silhouette": torch.stack(silhouettes)}
        if entry.prepare:
            extra["reference"] = hp.load_data("paperbirds:train", model, limit=256)
        x = model.normalize(images)
        maps[entry.id] = hp.explain(model, x, torch.tensor(data.labels), entry.id, **extra)
    draw_all(images, maps, docs / "img/methods.png")
    for page in reference.METHOD_PAGES.values():
        path = docs / f"method-families/{page}.md"
        panels = [picture(images[0], "image")]
        for name, full in reference.full_names(path).items():
            panels.append(heat(maps[name][0], textwrap.fill(full.split(" (")[0], TITLE)))
        rows = -(-len(panels) // PANELS_PER_ROW)
        draw(panels, docs / f"img/methods/{page}.png", -(-len(panels) // rows))
        replace_rows(path, reference.family_rows(page))
    replace_rows(docs / "method-names.md", reference.rows_of_families(docs))


def draw_all(images: Tensor, maps: dict[str, Tensor], out: Path) -> None:
    """Draw all maps of two birds in one picture."""
    pixels = list((images * 255).round().byte())
    names = list(maps)
    rows = []
    for start in range(0, len(names), METHODS_PER_ROW):
        row = {name: maps[name] for name in names[start : start + METHODS_PER_ROW]}
        rows.append(panel(pixels, ["", ""], row))
    page = Image.new("RGB", (max(r.width for r in rows), sum(r.height for r in rows)), "white")
    top = 0
    for row_picture in rows:
        page.paste(row_picture, (0, top))
        top += row_picture.height
    page.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
