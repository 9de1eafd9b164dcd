"""Draw docs/img/contrast.png: the map of a difference of two classes that look alike.

Of the first birds of the test split, it shows the one whose two highest logits are the closest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from panels import MODEL, draw, heat, picture

import heatproof as hp

IMAGES = 200
METHOD = "ixg-sg"


def main(docs: Path) -> None:
    model = hp.load_model(MODEL, backend="eager")
    data = hp.load_data("paperbirds:test", model, limit=IMAGES)
    images = torch.stack([data.load(i).image for i in range(IMAGES)])
    logits = model.logits(model.normalize(images))
    highest = logits.topk(2, 1)
    closest = int(highest.values.diff(dim=1).abs().argmin())
    a, b = highest.indices[closest].tolist()
    other = next(i for i, label in enumerate(data.labels) if label == b)
    x = model.normalize(images[closest : closest + 1])
    ids = [data.ids[closest]]
    names = [model.classes[k] for k in (a, b)]
    targets = {"logit A": a, "logit B": b, "A − B": "prediction - runner-up"}
    panels = [picture(images[closest], f"A: {names[0]}"), picture(images[other], f"B: {names[1]}")]
    for title, target in targets.items():
        panels.append(heat(hp.explain(model, x, target, METHOD, ids=ids)[0], title))
    draw(panels, docs / "img/contrast.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
