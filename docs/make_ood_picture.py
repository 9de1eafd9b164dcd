"""Draw docs/img/out-of-domain.png and update the table of docs/out-of-domain.md.

    python docs/make_ood_picture.py docs

The picture shows the first bird of the test split, of which pixels are deleted; the table has the
fraction of images along a deletion that are out of domain. Both come from runs with ``ood: true``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes
from panels import BLUE, GREY, MODEL, ORANGE, Bird, Panel, draw, label, picture
from tables import replace_rows

import heatproof as hp
import heatproof.functional as F
from heatproof.data.catalog import default_reference

METHODS = ("ixg", "gradcam", "random", "edges", "center", "object")
BASELINES = ("zero", "black", "blur", "linear", "uniform")
DRAWN = {"zero": ORANGE, "linear": BLUE}
IMAGES = 64


def reference_distance(bird: Bird) -> float:
    """Return the distance that 95 % of reference images have at most to their nearest other."""
    data = default_reference(bird.data, bird.model, 0)
    images = torch.stack([data.load(i).image for i in range(len(data.ids))])
    bank = bird.model.forward(bird.model.normalize(images))[1]
    return float(F.knn_distance(bank, bank, k=2).quantile(0.95))


def distances(bird: Bird, far: float) -> Panel:
    """Draw the distance of the bird along a deletion by Grad-CAM."""
    protocols = [{"name": "deletion", "ood": True, "baseline": list(DRAWN)}]
    result = hp.evaluate(
        bird.model, "paperbirds:test", ["gradcam"], protocols, limit=1, backend="eager"
    )
    curves = result.curves()
    of_bird = curves[curves["curve"] == "ood"]

    def panel(ax: Axes) -> None:
        for baseline, color in DRAWN.items():
            line = of_bird[of_bird["baseline"] == baseline]
            ax.plot(line["position"], line["mean"], color=color, marker=".", ms=4, lw=1.2,
                    label=baseline)  # fmt: skip
        ax.axhline(far, color=GREY, lw=0.7, ls=":")
        ax.legend(fontsize=7, frameon=False)
        label(ax, "above the line: out of domain", ("fraction deleted", "distance"))

    return panel


def rows(far: float) -> list[str]:
    """Return the fraction of images that are out of domain, for methods and baselines."""
    protocols = [{"name": "deletion", "ood": True, "baseline": list(BASELINES)}]
    result = hp.evaluate(
        MODEL, "paperbirds:test", METHODS, protocols, limit=IMAGES, backend="eager"
    )
    curves = result.curves(samples=True)
    curves = curves[curves["curve"] == "ood"]
    beyond = (curves["value"] > far).groupby([curves["baseline"], curves["method"]]).mean()
    table = pd.DataFrame(beyond.unstack())
    return [
        f"| `{name}` | {' | '.join(f'{table.loc[name, m]:.2f}' for m in METHODS)} |"
        for name in BASELINES
    ]


def main(docs: Path) -> None:
    bird = Bird(1)
    far = reference_distance(bird)
    half = bird.part_of_order(bird.gradcam, 0.5)
    shown = [picture(bird.without(half, name), f"half deleted, {name}") for name in DRAWN]
    panels = [picture(bird.sample.image, "image"), *shown, distances(bird, far)]
    draw(panels, docs / "img/out-of-domain.png")
    replace_rows(docs / "out-of-domain.md", rows(far))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
