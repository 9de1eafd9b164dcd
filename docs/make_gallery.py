"""Draws docs/img/methods.png: one bird, explained by every method on a network it applies to."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image

import heatproof as hp
from heatproof.methods import METHODS
from heatproof.report.panel import panel

NETS = ("resnet", "vit", "bagnet", "bcos")
ROW = 11  # methods


def main(out: Path) -> None:
    models = [hp.load_model(f"paperbirds/{net}") for net in NETS]
    data = hp.load_data("paperbirds:test", models[0], limit=2)
    images = torch.stack([data.load(i).image for i in range(2)])
    silhouette = torch.stack([s for i in range(2) if (s := data.load(i).silhouette) is not None])
    maps = {}
    for entry in METHODS:
        model = next(m for m in models if not (entry.applies and entry.applies(m)))
        given = {"silhouette": silhouette} | (
            {"reference": reference(model)} if entry.prepare else {}
        )
        maps[entry.id] = hp.explain(
            model, model.normalize(images), torch.tensor(data.labels), entry.id, **given
        )
    names = list(maps)
    rows = [
        {name: maps[name] for name in names[start : start + ROW]}
        for start in range(0, len(names), ROW)
    ]
    parts = [panel(list((images * 255).round().byte()), ["", ""], row) for row in rows]
    page = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    for number, part in enumerate(parts):
        page.paste(part, (0, sum(p.height for p in parts[:number])))
    page.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(out, optimize=True)


def reference(model: hp.Model) -> object:
    return hp.load_data("paperbirds:train", model, limit=256)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
