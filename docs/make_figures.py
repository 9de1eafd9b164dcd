"""Write docs/figures.md: every figure of the papers, and the studies that make it.

python docs/make_figures.py docs/figures.md
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

from heatproof.errors import HeatproofError
from heatproof.plan.assumed_cost import assumed_plan
from heatproof.plan.cost import plan_passes
from heatproof.plan.spec import load_spec
from heatproof.plan.speed import in_forwards
from heatproof.plan.studies import Figure, figures
from heatproof.report.sections import SECTIONS

PAPERS = {
    "hesse2024": "Hesse et al.: Benchmarking the attribution quality of vision models",
    "rao2024": "Rao et al.: Better understanding differences in attribution methods",
    "li2024": "Li et al.: soundness and completeness",
    "picard2024": "Picard et al.: Back to the baseline",
}
IMAGES = {"imagenet": 50_000, "cifar10": 10_000, "cifar100": 10_000, "funnybirds": 500}  # to test
HEAD = Path(__file__).parent / "figures-head.md"


COSTS = r"([\d,]+) forward and ([\d,]+) backward passes(?:, and ([\d,]+) from)?"


def embedded_cost(name: str) -> str:
    found = re.search(COSTS, " ".join((load_spec(name).about or "").split()))
    if not found:
        return "–"
    return f"{found[1]} + {found[2]}" + (f"; later {found[3]}" if found[3] else "")


@cache
def full_cost(name: str) -> str:
    """Return the passes of a study at the paper's scale; empty if its network is not known."""
    try:
        plan = assumed_plan(load_spec(name), IMAGES[name.split("/")[1]])
    except HeatproofError:
        return ""
    models = {task.subject: task.model for task in plan.tasks}
    passes = plan_passes(plan)
    later = {
        subject: {kind: count for kind, count in of_view.items() if " from " in kind}
        for subject, of_view in passes.items()
    }
    forwards = sum(of_view["forward"] for of_view in passes.values())
    backwards = sum(of_view["backward"] for of_view in passes.values())
    text = f", {millions(forwards)} + {millions(backwards)}"
    count = sum(sum(of_view.values()) for of_view in later.values())
    if count:
        cost = sum(in_forwards(models[subject], of_view) for subject, of_view in later.items())
        text += f"; later {millions(count)}, which cost {millions(round(cost))}"
    return text


def millions(count: int) -> str:
    """Return a number to three digits: 908 M, 4.96 M, 27,100."""
    if count < 1e5:
        return f"{float(f'{count:.3g}'):,.0f}"
    return f"{float(f'{count / 1e6:.3g}'):,g} M"


def row(figure: Figure) -> str:
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
        full = f"`{name}`{full_cost(name)}"
    made = f"`{embedded}`, {embedded_cost(embedded)}"
    return f"| {title} | {made} | {section} | {full} | {figure.note} |"


def main() -> None:
    out = Path(sys.argv[1])
    text = HEAD.read_text(encoding="utf-8")
    for paper, title in PAPERS.items():
        text += f"\n## {title}\n\n"
        text += "| figure | study on embedded data, forward + backward passes | in the report "
        text += "| at the paper's scale, passes | note |\n| --- | --- | --- | --- | --- |\n"
        of_paper = [figure for (name, _), figure in figures().items() if name == paper]
        text += "".join(row(figure) + "\n" for figure in of_paper)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
