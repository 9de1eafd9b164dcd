"""Write the cost table of docs/full-scale.md: what the papers' studies take at full scale.

python docs/make_scaling.py docs/full-scale.md              all studies; takes a while
python docs/make_scaling.py docs/full-scale.md STUDY …      these; other lines stay as they are
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from heatproof.errors import HeatproofError
from heatproof.plan.assumed_cost import assumed_plan
from heatproof.plan.cost import plan_passes
from heatproof.plan.spec import load_spec
from heatproof.plan.speed import in_forwards
from heatproof.plan.studies import figures

SPEED = 1000  # forward passes per second that are assumed
BYTES_PER_ROW = 10  # in Parquet files; 8 were measured in the run of quickstart
IMAGES = {"imagenet": 50_000, "cifar10": 10_000, "cifar100": 10_000, "funnybirds": 500}
HEAD = (
    "| study | models | tasks | forward passes, millions | backward passes, millions | "
    "GPU hours | rows, GB |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)
TABLE = re.compile("<!-- costs -->.*<!-- end of costs -->", re.DOTALL)
LINE = re.compile(r"^(\| `(\w+/[\w/-]+)` \|.*)$", re.MULTILINE)


def row(name: str, images: int) -> str | None:
    """Return the line of a study; None if its network is a file of the user's own."""
    try:
        plan = assumed_plan(load_spec(name), images)
    except HeatproofError:
        return None
    models_of = {task.subject: task.model for task in plan.tasks}
    passes = plan_passes(plan)
    forwards = sum(of_view["forward"] for of_view in passes.values())
    backwards = sum(of_view["backward"] for of_view in passes.values())
    whole = sum(in_forwards(models_of[subject], of_view) for subject, of_view in passes.items())
    hours = whole / SPEED / 3600
    rows = sum(len(task.indices) * len(task.records) for task in plan.tasks)
    models = len({task.model_name for task in plan.tasks})
    return (
        f"| `{name}` | {models} | {len(plan.tasks):,} | {forwards / 1e6:,.1f} | "
        f"{backwards / 1e6:,.1f} | {hours:,.1f} | {rows * BYTES_PER_ROW / 1e9:.2f} |"
    )


def main() -> None:
    page = Path(sys.argv[1])
    with_full = [figure for figure in figures().values() if figure.full]
    studies = list(dict.fromkeys(f"{figure.paper}/{figure.full}" for figure in with_full))
    text = page.read_text(encoding="utf-8")
    lines = {name: line for line, name in LINE.findall(text)}
    for name in sys.argv[2:] or studies:
        line = row(name, IMAGES[name.split("/")[1]])
        print(line or f"{name} has a network of the user's own", flush=True)
        if line:
            lines[name] = line
        ordered = [lines[study] for study in studies if study in lines]
        table = "\n".join(["<!-- costs -->", *HEAD, *ordered, "<!-- end of costs -->"])
        page.write_text(TABLE.sub(table, text), encoding="utf-8")


if __name__ == "__main__":
    main()
