"""Write docs/figures.md: every figure of the papers, and the studies that make it.

python docs/make_figures.py docs/figures.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from heatproof.bench.spec import load_spec
from heatproof.bench.studies import Figure, figures
from heatproof.report.sections import SECTIONS

PAPERS = {
    "hesse2024": "Hesse et al.: Benchmarking the attribution quality of vision models",
    "rao2024": "Rao et al.: Better understanding differences in attribution methods",
    "li2024": "Li et al.: soundness and completeness",
    "picard2024": "Picard et al.: Back to the baseline",
}
HEAD = Path(__file__).parent / "figures-head.md"


def embedded_cost(name: str) -> str:
    found = re.search(r"([\d,]+) forward and ([\d,]+) backward", load_spec(name).about or "")
    return f"{found[1]} + {found[2]}" if found else "–"


def row(figure: Figure) -> str:
    title = figure.name
    for short, long in (("fig", "Fig. "), ("table", "Table "), ("prop", "Prop. ")):
        title = title.replace(short, long)
    if figure.without:
        return f"| {title} | – | | | {figure.without} |"
    embedded = f"{figure.paper}/{figure.study}"
    section = SECTIONS[figure.section].short
    full = f"`{figure.paper}/{figure.full}`" if figure.full else "–"
    made = f"`{embedded}`, {embedded_cost(embedded)}"
    return f"| {title} | {made} | {section} | {full} | {figure.note} |"


def main() -> None:
    out = Path(sys.argv[1])
    text = HEAD.read_text(encoding="utf-8")
    for paper, title in PAPERS.items():
        text += f"\n## {title}\n\n"
        text += "| figure | study on embedded data, forward + backward passes | in the report "
        text += "| at the paper's scale | note |\n| --- | --- | --- | --- | --- |\n"
        of_paper = [figure for (name, _), figure in figures().items() if name == paper]
        text += "".join(row(figure) + "\n" for figure in of_paper)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
