"""Write docs/figures.md: every figure and table of the papers, and how to make it.

    python docs/make_figures.py docs/figures.md [docs/costs.json]

Costs of studies on embedded data are stated in the studies. Those at the papers' scale are counted
on a few random images with untrained networks and multiplied; they are read from the JSON file
where it has them, and added to it where it does not.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch

import heatproof as hp
from heatproof.bench.cost import plan_cost
from heatproof.bench.plan import make_plan
from heatproof.bench.spec import Spec, load_spec, parse_protocols
from heatproof.bench.studies import Figure, figures
from heatproof.models.model import Model
from heatproof.protocols import Protocol
from heatproof.protocols.grids import Localization
from heatproof.report.sections import SECTIONS

PAPERS = {
    "hesse2024": "Hesse et al.: Benchmarking the attribution quality of vision models",
    "rao2024": "Rao et al.: Better understanding differences in attribution methods",
    "li2024": "Li et al.: soundness and completeness",
    "picard2024": "Picard et al.: Back to the baseline",
}
SAMPLES = {"folder:imagenet/val": 50_000, "cifar10": 10_000, "cifar100": 10_000, "funnybirds": 500}
PER_CLASS = 1000  # classes of ImageNet
FEW = 4  # images that passes are counted on
HEAD = Path(__file__).parent / "figures-head.md"


def sample_count(spec: Spec) -> int:
    """Return how many images a study at a paper's scale evaluates."""
    if spec.data.per_class:
        return PER_CLASS * spec.data.per_class
    if spec.data.limit:
        return spec.data.limit
    return next(n for name, n in SAMPLES.items() if spec.data.name.startswith(name))


def untrained(name: str) -> Model:
    model = hp.load_model(name, "random")
    model.fine_tuned_weights = {"any": None}
    return model


def full_cost(name: str) -> tuple[int, int]:
    """Count the passes of a study at a paper's scale."""
    spec = load_spec(name)
    forwards = 0
    backwards = 0
    for entry in spec.models:
        model = untrained(entry.name or entry.train or "")
        on_grids: list[Protocol] = []
        on_images: list[Protocol] = []
        for protocol in spec.parsed_protocols():
            if isinstance(protocol, Localization):
                on_grids.append(protocol)
            elif protocol.fine_tuning:  # the passes are those of sds, with other weights
                settings = {"name": "sds", **protocol.model_dump(exclude_none=True)}
                on_images += parse_protocols([settings])
            else:
                on_images.append(protocol)
        jobs = [(on_images, sample_count(spec), FEW, FEW)] if on_images else []
        for protocol in on_grids:
            one = protocol.model_copy(update={"grids": 1, "confidence": 0.0})
            jobs.append(([one], protocol.grids or protocol.most, 1, protocol.grid**2))
        for protocols, count, per, images in jobs:
            pixels = torch.rand(images, 3, model.size, model.size)
            data = hp.TensorData(pixels, list(range(images)))
            plan = make_plan([model], [data], spec.expressions(), protocols, batch_size=1)
            for cost in plan_cost(plan).values():
                forwards += cost.forwards * count // per
                backwards += cost.backwards * count // per
    return forwards, backwards


def embedded_cost(name: str) -> str:
    found = re.search(r"([\d,]+) forward and ([\d,]+) backward", load_spec(name).about or "")
    return f"{found[1]} + {found[2]}" if found else "–"


def rounded(n: int) -> str:
    for unit, word in ((10**9, "bn"), (10**6, "M"), (10**3, "k")):
        if n >= unit:
            return f"{n / unit:.3g} {word}"
    return str(n)


def row(figure: Figure, costs: dict[str, list[int]]) -> str:
    title = figure.name
    for short, long in (("fig", "Fig. "), ("table", "Table "), ("prop", "Prop. ")):
        title = title.replace(short, long)
    if figure.without:
        return f"| {title} | – | | | {figure.without} |"
    embedded = f"{figure.paper}/{figure.study}"
    section = SECTIONS[figure.section].short
    full = "–"
    if figure.full:
        name = f"{figure.paper}/{figure.full}"
        full = f"`{name}`"
        if name in costs:
            full += f", {rounded(costs[name][0])} + {rounded(costs[name][1])}"
    made = f"`{embedded}`, {embedded_cost(embedded)}"
    return f"| {title} | {made} | {section} | {full} | {figure.note} |"


def main() -> None:
    out = Path(sys.argv[1])
    stored = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    costs = json.loads(stored.read_text()) if stored and stored.is_file() else {}
    wanted = sorted({f"{f.paper}/{f.full}" for f in figures().values() if f.full})
    for name in wanted:
        if stored and name not in costs:
            costs[name] = full_cost(name)
            stored.write_text(json.dumps(costs, indent=1) + "\n")
            print(name, costs[name], flush=True)
    text = HEAD.read_text(encoding="utf-8")
    for paper, title in PAPERS.items():
        text += f"\n## {title}\n\n"
        text += "| figure | study on embedded data, forward + backward passes | in the report "
        text += "| at the paper's scale | note |\n| --- | --- | --- | --- | --- |\n"
        of_paper = [figure for (name, _), figure in figures().items() if name == paper]
        text += "".join(row(figure, costs) + "\n" for figure in of_paper)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
