"""The studies that ship with the package, and the figures of the papers that they make."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from heatproof.errors import HeatproofError, unknown

STUDIES = Path(__file__).parent.parent / "studies"
INDEX = STUDIES / "figures.yaml"
PUBLISHED = STUDIES / "published.yaml"  # tables whose numbers ship


class Figure(BaseModel):
    """A figure or table of a paper, and how it is made.

    Attributes:
        paper: The paper, such as ``hesse2024``.
        name: The figure or table, such as ``fig2a``.
        study: The study on embedded data; empty if there is none.
        full: The study with the paper's models, data and counts; empty if there is none.
        section: The section of the report where it stands.
        note: How the study differs from the paper.
        without: Why there is no study.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    name: str
    study: str = ""
    full: str = ""
    section: str = ""
    note: str = ""
    without: str = ""


@cache
def figures() -> dict[tuple[str, str], Figure]:
    """Return every figure and table of the papers, by paper and name."""
    content = yaml.safe_load(INDEX.read_text(encoding="utf-8"))
    return {
        (paper, name): Figure(paper=paper, name=name, **entry)
        for paper, entries in content.items()
        for name, entry in entries.items()
    }


def study_names() -> list[str]:
    """Return the names of the studies that ship with the package."""
    specs = (path for path in STUDIES.rglob("*.yaml") if path not in (INDEX, PUBLISHED))
    return sorted(path.relative_to(STUDIES).with_suffix("").as_posix() for path in specs)


def study_file(name: str) -> Path:
    """Return the spec of a study, or of the study that makes a figure of a paper.

    Args:
        name: A study such as ``hesse2024/ranking``; or a figure, such as ``hesse2024/table6`` on
            embedded data and ``hesse2024/imagenet/table6`` at the paper's scale.

    Raises:
        HeatproofError: If there is no such study or figure, or no study for the figure.
    """
    if name in study_names():
        return STUDIES / f"{name}.yaml"
    paper, _, rest = name.partition("/")
    *scale, figure = rest.split("/")
    entry = figures().get((paper, figure))
    if entry is None or len(scale) > 1:
        drawn = [f"{paper}/{known}" for source, known in figures() if source == paper]
        raise unknown("study or spec file", name, [*study_names(), *drawn])
    if entry.without:
        raise HeatproofError(f"{paper} {figure} has no study: {entry.without}")
    if not scale:
        return STUDIES / paper / f"{entry.study}.yaml"
    if entry.full.partition("/")[0] != scale[0]:
        full = f"{paper}/{entry.full}" if entry.full else f"missing: {entry.note}"
        raise HeatproofError(f"the study of {paper} {figure} at the paper's scale is {full}")
    return STUDIES / paper / f"{entry.full}.yaml"
