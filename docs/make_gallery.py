"""Draw docs/img/methods.png: two birds, explained by every method on a network it applies to."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.report.panel import panel

NETWORKS = ("resnet", "vit", "bagnet", "bcos")
METHODS_PER_ROW = 11


def main(out: Path) -> None:
    models = [hp.load_model(f"paperbirds/{network}") for network in NETWORKS]
    data = hp.load_data("paperbirds:test", models[0], limit=2)
    samples = [data.load(i) for i in range(2)]
    images = torch.stack([sample.image for sample in samples])
    silhouettes = [s.silhouette for s in samples if s.silhouette is not None]
    maps = {}
    for entry in METHODS:
        model = next(m for m in models if not (entry.applies and entry.applies(m)))
        extra: dict[str, object] = {"silhouette": torch.stack(silhouettes)}
        if entry.prepare:
            extra["reference"] = hp.load_data("paperbirds:train", model, limit=256)
        x = model.normalize(images)
        maps[entry.id] = hp.explain(model, x, torch.tensor(data.labels), entry.id, **extra)
    pixels = list((images * 255).round().byte())
    names = list(maps)
    rows = []
    for start in range(0, len(names), METHODS_PER_ROW):
        row = {name: maps[name] for name in names[start : start + METHODS_PER_ROW]}
        rows.append(panel(pixels, ["", ""], row))
    page = Image.new("RGB", (max(r.width for r in rows), sum(r.height for r in rows)), "white")
    top = 0
    for picture in rows:
        page.paste(picture, (0, top))
        top += picture.height
    page.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
