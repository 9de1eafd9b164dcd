"""Panels of the protocols that compare or describe maps and remove nothing."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from panels import BLUE, GREY, ORANGE, Bird, Panel, curve, heat, label, picture, scatter
from torch import Tensor

import heatproof as hp
from heatproof.models.random_weights import random_networks
from heatproof.protocols.randomization import other_classes
from heatproof.protocols.regions import top_fraction
from heatproof.tensor.descriptors import entropy, gini, level_entropy
from heatproof.tensor.localization import mass_fraction
from heatproof.tensor.map_similarity import map_similarity
from heatproof.tensor.noise import Rng

COPIES, RADIUS = 10, 0.02  # the defaults of `sensitivity`
SHOWN = 2000  # points of a scatter


def randomization(bird: Bird) -> list[Panel]:
    """Two methods while one group of layers after the other becomes random."""
    networks = random_networks(bird.model, "cascading", "top-down", 5, 0)
    lines: dict[str, tuple[Any, Any]] = {}
    panels: list[Panel] = []
    for method, name in (
        ("guided-backprop", "Guided Backpropagation"),
        ("ixg", "Input × Gradient"),
    ):
        own = bird.explain(method)
        others = [bird.explain(method, model) for model in networks]
        found = [float(map_similarity(own, other).nan_to_num(0)) for other in others]
        mean = f"{sum(found) / len(found):.2f}".replace("-", "−")
        lines[f"{method}: {mean}"] = (range(1, 6), found)
        panels += [heat(own[0], name), heat(others[-1][0], "all layers random")]
    axes = ("groups of layers that are random", "rank correlation")
    return [*panels, curve(lines, "score = mean over networks", axes, fill=False)]


def emprt(bird: Bird) -> list[Panel]:
    """Histograms of a map's values before and after all weights are random."""
    (network,) = random_networks(bird.model, "all", "top-down", 1, 0)
    maps = {"trained": bird.explain("ixg"), "random": bird.explain("ixg", network)}
    nats = {name: float(level_entropy(values)) for name, values in maps.items()}

    def histogram(ax: Axes) -> None:
        for (name, values), color in zip(maps.items(), (BLUE, ORANGE), strict=True):
            scaled = values.flatten() - values.min()
            legend = f"{name}: {nats[name]:.2f}"
            ax.hist(scaled / scaled.max(), 100, color=color, alpha=0.5, log=True, label=legend)
        ax.legend(fontsize=7, frameon=False)
        score = nats["random"] / nats["trained"] - 1
        label(ax, f"score = {score:.2f}".replace("-", "−"), ("smallest to largest value", "pixels"))

    titles = ("map (Input × Gradient)", "all weights random")
    shown = zip(maps.values(), titles, strict=True)
    return [*(heat(values[0], title) for values, title in shown), histogram]


def random_logit(bird: Bird) -> list[Panel]:
    """The map of the label and that of another class, pixel by pixel."""
    other = other_classes(bird.target, bird.model.n_classes, [bird.sample.id], 0)
    maps = hp.explain(bird.model, bird.x, other, "ixg", ids=[bird.sample.id])
    own = bird.explain("ixg")
    score = f"score = ρ = {float(map_similarity(own, maps)):.2f}".replace("-", "−")
    step = own.numel() // SHOWN
    ranks = [values.flatten().argsort().argsort()[::step] / own.numel() for values in (own, maps)]
    names = [bird.model.classes[int(c)] for c in (bird.target, other)]
    axes = ("rank of a pixel, label", "rank, other class")
    return [
        heat(own[0], f"for {names[0]}, the label"),
        heat(maps[0], f"for {names[1]}"),
        scatter(*ranks, score, axes, size=2),
    ]


def sensitivity(bird: Bird) -> list[Panel]:
    """The change of the map for each noisy copy that keeps the prediction."""
    rng = Rng(0, [bird.sample.id], bird.x.device)
    own = bird.explain("ixg")
    predicted = bird.model.logits(bird.x).argmax(1)
    changes, maps, copies = [], [], []
    for i in range(COPIES):
        uniform = rng.uniform(f"sensitivity {i}", bird.x.shape[1:]).to(bird.x)
        x = bird.x + RADIUS / bird.model.std * (2 * uniform - 1)
        if bird.model.logits(x).argmax(1) != predicted:
            continue
        maps.append(hp.explain(bird.model, x, bird.target, "ixg", ids=[bird.sample.id]))
        copies.append(x)
        changes.append(float((maps[-1] - own).norm() / own.norm()))
    largest = max(range(len(changes)), key=changes.__getitem__)

    def bars(ax: Axes) -> None:
        ax.bar(range(1, len(changes) + 1), changes, color=BLUE)
        ax.bar([largest + 1], [changes[largest]], color=ORANGE)
        label(ax, f"score = largest = {changes[largest]:.2f}", ("noisy copy", "change of the map"))

    return [
        picture(bird.model.denormalize(copies[largest])[0], f"with noise up to {RADIUS}"),
        heat(own[0], "map (Input × Gradient)"),
        heat(maps[largest][0], "map with noise"),
        bars,
    ]


def concentration(bird: Bird, name: str) -> list[Panel]:
    """Two maps, and how their absolute values spread over pixels."""
    panels: list[Panel] = []
    lines: dict[str, tuple[Any, Any]] = {}
    for maps, method in ((bird.ig, "Integrated Gradients"), (bird.gradcam, "Grad-CAM")):
        if name == "sparseness":
            score = float(gini(maps))
            fractions = (maps.abs() / maps.abs().sum()).flatten().double().sort().values
            pixels = torch.arange(1, len(fractions) + 1) / len(fractions)
            lines[method] = (pixels, fractions.cumsum(0))
            panels.append(heat(maps[0].abs(), f"|{method}|: {score:.2f}"))
        else:
            score = float(entropy(maps).exp()) / maps.numel()
            panels += [heat(maps[0].abs(), f"|{method}|: {score:.2f}"), effective(maps, score)]
    return [*panels, lorenz(lines)] if lines else panels


def lorenz(lines: dict[str, tuple[Any, Any]]) -> Panel:
    """Show the fraction of the absolute values that the smallest pixels have."""
    axes = ("fraction of pixels, smallest first", "fraction of |a|")
    curves = curve(lines, "score = 2 × area to the dotted line", axes, fill=False)

    def panel(ax: Axes) -> None:
        curves(ax)
        ax.plot([0, 1], [0, 1], color=GREY, lw=0.7, ls=":")

    return panel


def effective(maps: Tensor, fraction: float) -> Panel:
    """Show the effective number of pixels, as the largest values of a map."""
    values = maps.abs().flatten()
    count = round(fraction * len(values))
    kept = torch.zeros_like(values)
    kept[values.topk(count).indices] = 1
    return heat(kept.reshape(maps.shape[1:]), f"as many pixels: {count:,}".replace(",", " "))


def on_object(bird: Bird, name: str) -> list[Panel]:
    """Two maps and the silhouette, and what of each map is on it."""
    assert bird.sample.silhouette is not None
    inside = bird.sample.silhouette
    panels: list[Panel] = [picture(inside.float().expand(3, -1, -1), "object")]
    for maps, method in ((bird.ig, "Integrated Gradients"), (bird.gradcam, "Grad-CAM")):
        if name == "mass":
            score = float(mass_fraction(maps.clamp(min=0), inside[None]))
            panels.append(outlined(heat(maps[0].clamp(min=0), f"{method}: {score:.2f}"), inside))
        elif name == "pointing":
            score = float(top_fraction(maps, inside[None], torch.tensor([1])))
            panels.append(
                marked(outlined(heat(maps[0], f"{method}: {score:.0f}"), inside), maps[0])
            )
        else:
            count = inside.sum()
            score = float(top_fraction(maps, inside[None], count[None]))
            chosen = torch.zeros(maps.numel())
            chosen[maps.flatten().topk(int(count)).indices] = 1
            chosen = chosen.reshape(inside.shape) * torch.where(inside, 1.0, -1.0)
            panels += [
                heat(maps[0], method),
                outlined(heat(chosen, f"largest: {score:.2f}"), inside),
            ]
    return panels


def outlined(panel: Panel, inside: Tensor) -> Panel:
    def drawn(ax: Axes) -> None:
        panel(ax)
        ax.contour(inside.float().numpy(), [0.5], colors=[GREY], linewidths=0.7)

    return drawn


def marked(panel: Panel, values: Tensor) -> Panel:
    """Mark the largest value of a map ``(H, W)``."""
    row, column = divmod(int(values.argmax()), values.shape[1])

    def drawn(ax: Axes) -> None:
        panel(ax)
        ax.plot([column], [row], marker="o", ms=9, mfc="none", mec="black", mew=1.5)

    return drawn
