"""Draw docs/img/protocols/*.png, and update the tables of docs/protocols: `make protocols`.

Every picture shows one protocol on the first bird of the test split, computed by the functions that
score maps. The tables hold the facts of the registry and the scores of some methods and controls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from map_pictures import (
    concentration,
    emprt,
    on_object,
    random_logit,
    randomization,
    sensitivity,
)
from matplotlib.axes import Axes
from panels import (
    BLUE,
    GREY,
    MODEL,
    ORANGE,
    Bird,
    Panel,
    curve,
    draw,
    heat,
    label,
    picture,
    scatter,
)
from tables import replace_rows
from torch import Tensor

import heatproof as hp
import heatproof.functional as F
from heatproof.baselines import Baseline
from heatproof.models.model import Model
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.base import EvalBatch, make_protocol
from heatproof.protocols.parts import part_sums
from heatproof.tensor.curves import ranks_of, tie_order
from heatproof.tensor.localization import cell_sums, mass_fraction
from heatproof.tensor.noise import Rng
from heatproof.tensor.patches import patch_masks
from heatproof.tensor.soundness import false_steps, included_mass, relative

sys.path.insert(0, str(Path(__file__).parent / "site"))
import reference

COMPARED = ("ixg", "gradcam", "random", "constant", "edges", "center", "object")
IMAGES = 128  # of pictures that show an accuracy, and for grids
SCORED = 64  # images of the tables
SETTINGS = {"soundness": {"step": 0.04, "eps": 0.04}}  # of the tables: as in li2024/benchmark
GRIDS = ("gridpg", "difull", "dipart")


def sds(bird: Bird, model: Model | None = None) -> list[Panel]:
    """Patches, one deletion, the drops and their correlation with the map."""
    network = model or bird.model
    x = network.normalize(bird.sample.image[None])
    maps = hp.explain(network, x, bird.target, "ig", ids=[bird.sample.id])
    drops = F.patch_drops(network, x, bird.target)[0]
    sums = F.patch_sums(maps, 16)[0].float()
    rho = float(F.spearman(sums[None].double(), drops[None].double()))
    largest = int(drops.argmax())
    removed = patch_masks(16, *x.shape[2:])[largest]
    drop_map = drops.reshape(4, 4)
    return [
        heat(maps[0], "map, with its sum per patch", 4, sums),
        picture(bird.without(removed, "zero"), f"without patch {largest + 1}"),
        heat(drop_map, "drop of the logit", 4, drops),
        scatter(sums, drops, f"score = ρ = {rho:.2f}", ("sum of the map", "drop")),
    ]


def idsds(bird: Bird) -> list[Panel]:
    """The same bird under the original and the fine-tuned network."""
    (view,) = make_protocol("idsds", {}).views(bird.model, bird.data)
    panels = []
    for name, network in (("original", bird.model), ("fine-tuned", view.model)):
        x = network.normalize(bird.sample.image[None])
        drops = F.patch_drops(network, x, bird.target)[0]
        panels += [heat(drops.reshape(4, 4), f"{name}: drops", 4, drops), sds(bird, network)[-1]]
    panels[1], panels[3] = titled(panels[1], "sds: "), titled(panels[3], "idsds: ")
    return panels


def f_fidelity(bird: Bird, name: str) -> list[Panel]:
    """One random deletion, and how often the answer is lost for every size of the explanation."""
    protocol = make_protocol(name, {})
    (view,) = protocol.views(bird.model, bird.data)
    own = bird.explain("ixg", view.model)
    rng = Rng(0, [bird.sample.id], bird.x.device)
    batch = EvalBatch([bird.sample.id], bird.x, bird.target, view.model.logits(bird.x), rng)
    scored = protocol.score_maps(view.model, batch, {}, own)
    sizes = torch.arange(1, protocol.sizes + 1) / protocol.sizes
    marked = bird.part_of_order(own, 0.2, protocol.side)
    removed = marked & (rng.uniform("picture", marked.shape)[0] < protocol.alpha)
    lost = {"": (sizes * 100, scored.curves["lost"][0])}
    return [
        heat(own[0], "map (Input × Gradient)"),
        picture(bird.without(removed, "zero"), "half of the marked 20 % deleted"),
        curve(lost, f"score = mean = {float(scored.value[0]):.2f}", ("size in %", "lost answers")),
    ]


def titled(panel: Panel, prefix: str) -> Panel:
    def prefixed(ax: Axes) -> None:
        panel(ax)
        ax.set_title(prefix + ax.get_title())

    return prefixed


def parts(bird: Bird) -> list[Panel]:
    data: Any = bird.data
    views = data.parts(0)
    dilate = 2 * round((5 * bird.model.height / 256 - 1) / 2) + 1
    sums = part_sums(bird.ig, views.masks[None], dilate)[0]
    images = views.without.float() / 255
    logits = bird.model.logits(bird.model.normalize(images))[:, bird.target[0]]
    drops = (bird.model.logits(bird.x)[0, bird.target[0]] - logits).double()
    rho = float(F.spearman(sums[None], drops[None]))
    largest = int(drops.argmax())
    names = list(data.part_names)
    mask = views.masks[largest].any(0)
    return [
        heat(bird.ig[0] * mask, f"map on the {names[largest]}"),
        picture(images[largest], f"without the {names[largest]}"),
        scatter(sums, drops, f"score = ρ = {rho:.2f}", ("sum of the map", "drop"), names),
    ]


def localization(bird: Bird, name: str) -> list[Panel]:
    """The first grid, and Integrated Gradients and Grad-CAM for its first cell."""
    protocol: Any = make_protocol(name, {"grids": 8})
    view = protocol.views(bird.model, bird.data)[0]
    sample = view.data.load(0)
    x = view.model.normalize(sample.image[None])
    panels = [picture(sample.image, f"explained: {view.model.classes[sample.label]}, top left")]
    for method, title in (("ig", "Integrated Gradients"), ("gradcam", "Grad-CAM")):
        maps = hp.explain(view.model, x, torch.tensor([sample.label]), method)
        sums = cell_sums(maps, 2)
        share = sums[0] / sums.sum().clamp(min=1e-12)
        score = float(F.localization(maps, 0, 2))
        panels.append(heat(maps[0].clamp(min=0), f"{title}: {score:.2f}", 2, share))
    return panels


def removal(bird: Bird, side: str, baseline: str, fractions: tuple[float, ...]) -> list[Panel]:
    """Show the bird without fractions of its pixels."""
    return [
        picture(
            bird.without(bird.part_of_order(bird.gradcam, fraction, side), baseline),
            f"without {fraction:.0%}".replace("%", " %"),
        )
        for fraction in fractions
    ]


def inserted(bird: Bird, fractions: tuple[float, ...]) -> list[Panel]:
    """Show only fractions of the bird's pixels."""
    return [
        picture(
            bird.without(bird.part_of_order(bird.gradcam, 1 - fraction, "least"), "zero"),
            f"{fraction:.0%} inserted".replace("%", " %"),
        )
        for fraction in fractions
    ]


def curves(bird: Bird, name: str) -> list[Panel]:
    """Deletion, insertion or both with the default settings."""
    steps = np.linspace(0, 1, 11)
    scores = {
        side: F.removal_curve(
            bird.model, bird.x, bird.target, bird.gradcam, steps, side, ids=[bird.sample.id]
        )
        for side in ("most", "least")
    }
    found = {"deletion": scores["most"], "insertion": scores["least"].flip(1)}
    areas = {which: float(F.auc(values)) for which, values in found.items()}
    lines = {which: (steps, values[0]) for which, values in found.items()}
    if name == "srg":
        title = f"{areas['insertion']:.1f} − {areas['deletion']:.1f} = "
        title += f"{areas['insertion'] - areas['deletion']:.1f}"
        shown = {"insertion": lines["insertion"], "deletion": lines["deletion"]}
        axis = "fraction inserted or deleted"
    else:
        title = f"score = area = {areas[name]:.1f}"
        shown = {name: lines[name]}
        axis = f"fraction {name.replace('ion', 'ed')}"
    pictures = {
        "deletion": removal(bird, "most", "zero", (0.1, 0.3)),
        "insertion": inserted(bird, (0.1, 0.3)),
    }
    pictures["srg"] = [pictures["deletion"][1], pictures["insertion"][1]]
    return [
        heat(bird.gradcam[0], "map (Grad-CAM)"),
        *pictures[name],
        curve(shown, title, (axis, "logit")),
    ]


def ids(bird: Bird) -> list[Panel]:
    steps = np.arange(32) / 32
    left = F.removal_curve(
        bird.model, bird.x, bird.target, bird.gradcam, steps, "least", score="softmax"
    )[0]
    return [
        heat(bird.gradcam[0], "map (Grad-CAM)"),
        *removal(bird, "least", "zero", (0.5, 0.8)),
        curve(
            {"": (steps, left)},
            f"score = mean = {float(left.double().mean()):.2f}",
            ("fraction removed", "probability"),
        ),
    ]


def population(bird: Bird, method: str) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Return all images, their classes, their maps and their ids."""
    samples = [bird.data.load(i) for i in range(len(bird.data.ids))]
    x = bird.model.normalize(torch.stack([sample.image for sample in samples]))
    target = torch.tensor([sample.label for sample in samples])
    names = [sample.id for sample in samples]
    return x, target, hp.explain(bird.model, x, target, method, ids=names), names


def road(bird: Bird) -> list[Panel]:
    """The first images together: a single one changes its prediction or does not."""
    x, _, maps, names = population(bird, "gradcam")
    predicted = bird.model.logits(x).argmax(1)
    steps = np.arange(1, 10) / 10
    kept = F.removal_curve(
        bird.model, x, predicted, maps, steps, "most", "linear", "correct", names
    )
    changed = 1 - kept.double().mean(0)
    return [
        heat(bird.gradcam[0], "map (Grad-CAM)"),
        *removal(bird, "most", "linear", (0.1, 0.4)),
        curve(
            {"": (steps, changed)},
            f"mean over {len(x)} birds = {float(changed.mean()):.2f}",
            ("fraction removed", "predictions changed"),
        ),
    ]


def completeness(bird: Bird) -> list[Panel]:
    values = relative(bird.gradcam)[0]
    x, target, maps, names = population(bird, "gradcam")
    clean = (bird.model.logits(x).argmax(1) == target).double().mean()
    thresholds = np.arange(9, 0, -1) / 10
    ranks = F.removal_order(maps, names, 0)
    drops = []
    for threshold in thresholds:
        above = (relative(maps) > threshold).flatten(1).sum(1)
        rng = Rng(0, names, x.device)
        remove = Baseline.parse("linear").remover(x, bird.model, rng, None)
        removed = ranks < above[:, None, None]
        left = bird.model.logits(remove(torch.arange(len(x)), removed)).argmax(1) == target
        drops.append(float(clean - left.double().mean()))
    return [
        heat(bird.gradcam[0], "map (Grad-CAM)"),
        *(
            picture(bird.without(values > level, "linear"), f"without values above {level}")
            for level in (0.7, 0.3)
        ),
        curve(
            {"": (thresholds, drops)},
            f"mean over {len(x)} birds = {np.mean(drops):.2f}",
            ("removed above", "accuracy lost"),
        ),
    ]


def soundness(bird: Bird) -> list[Panel]:
    x, target, maps, names = population(bird, "gradcam")
    missing = [round(0.98 - 0.01 * k, 9) for k in range(98)]
    order = maps.clamp(min=0)
    score = F.removal_curve(
        bird.model, x, target, order, missing, "least", "linear", "correct", names
    )
    accuracy = score.double().mean(0)
    pixels = maps[0].numel()
    ranks = ranks_of(order, tie_order(names, 0, pixels, maps.device))
    mass = included_mass(relative(maps), ranks, [pixels - int(pixels * m + 1e-6) for m in missing])
    q = F.soundness(accuracy, mass).nanmean(0)
    false = false_steps(accuracy)
    step = int((accuracy >= 0.5).double().argmax())
    inserted = 1 - np.array(missing)

    def accuracies(ax: Axes) -> None:
        ax.plot(inserted, accuracy, color=BLUE, lw=1)
        ax.scatter(inserted[false], accuracy[false], s=9, color=ORANGE, label="false steps")
        ax.axhline(0.5, color=GREY, lw=0.7, ls=":")
        ax.legend(fontsize=7, frameon=False)
        label(ax, "a step must gain ε = 0.01", ("fraction inserted", "accuracy"))

    def fractions(ax: Axes) -> None:
        ax.plot(accuracy[: step + 1], q[: step + 1], color=BLUE, marker=".", ms=4, lw=1)
        ax.scatter([accuracy[step]], [q[step]], color=ORANGE, zorder=3)
        ax.set_ylim(0, 1.05)
        label(ax, f"q at accuracy 0.5 = {float(q[step]):.2f}", ("accuracy", "q, mean over birds"))

    first = bird.without(bird.part_of_order(bird.gradcam.clamp(min=0), 0.9, "least"), "linear")
    return [heat(bird.gradcam[0], "map (Grad-CAM)"), picture(first, "10 % inserted"), accuracies,
            fractions]  # fmt: skip


def attr_mass(bird: Bird) -> list[Panel]:
    assert bird.sample.silhouette is not None
    inside = bird.sample.silhouette
    panels: list[Panel] = [picture(inside.float().expand(3, -1, -1), "pixels that are counted")]
    for maps, name in ((bird.ig, "Integrated Gradients"), (bird.gradcam, "Grad-CAM")):
        score = float(mass_fraction(maps, inside[None]))
        panels.append(heat(maps[0].abs(), f"|{name}|: {score:.2f}"))
    return panels


PICTURES: dict[str, Callable[[Bird], list[Panel]]] = {
    "sds": sds,
    "idsds": idsds,
    "parts": parts,
    **{n: lambda bird, n=n: localization(bird, n) for n in GRIDS},
    **{n: lambda bird, n=n: curves(bird, n) for n in ("deletion", "insertion", "srg")},
    **{n: lambda bird, n=n: f_fidelity(bird, n) for n in ("f-fidelity", "f-fidelity-minus")},
    "ids": ids,
    "road": road,
    "soundness": soundness,
    "completeness": completeness,
    "attr-mass": attr_mass,
    "randomization": randomization,
    "emprt": emprt,
    "random-logit": random_logit,
    "sensitivity": sensitivity,
    **{n: lambda bird, n=n: concentration(bird, n) for n in ("sparseness", "complexity")},
    **{n: lambda bird, n=n: on_object(bird, n) for n in ("pointing", "mass", "rank-accuracy")},
}


def scores_row(name: str) -> str:
    """Evaluate some methods and controls under a protocol; a dash where there is no score."""
    result = hp.evaluate(
        MODEL,
        "paperbirds:test",
        COMPARED,
        [{"name": name, **SETTINGS.get(name, {})}],
        limit=IMAGES if name in GRIDS else SCORED,
        backend="eager",
    )
    means = {row.method: row.mean for row in result.summary().itertuples()}
    return f"| {' | '.join(number(means.get(method, np.nan)) for method in COMPARED)} |"


def number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−")


def main(docs: Path, *names: str) -> None:
    """Draw the pictures of protocols, by default of all, and update their tables."""
    bird = Bird(IMAGES)
    names = names or tuple(entry.id for entry in PROTOCOLS)
    for name in names:
        panels = PICTURES[name](bird)
        if name not in GRIDS:
            panels.insert(0, picture(bird.sample.image, "image"))
        draw(panels, docs / f"img/protocols/{name}.png")
        page = docs / f"protocols/{name}.md"
        replace_rows(page, reference.protocol_facts(name).splitlines()[-1:])
        replace_rows(page, [scores_row(name)], table=1)
        print(page, flush=True)
    costs = reference.protocol_table("protocols/{}.md").splitlines()[2:]
    replace_rows(docs / "which-protocol.md", costs, table=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
