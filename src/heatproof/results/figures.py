"""A figure of a run as a file for a paper, with its numbers beside it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.results.plots import DATA_OF
from heatproof.results.result import Result
from heatproof.text import without_formulas

# without the time of writing, so that the same run gives the same bytes
FORMATS: dict[str, dict[str, Any]] = {
    ".pdf": {"metadata": {"CreationDate": None}},
    ".svg": {"metadata": {"Date": None}},
    ".png": {"dpi": 200},
}


def write_figure(run: str | Path, name: str, out: Path, options: Mapping[str, str]) -> list[Path]:
    """Draw a figure of a run.

    Args:
        run: A run directory.
        name: A figure of ``result.plot``.
        out: The file; its ending chooses the format.
        options: Options of the figure, such as ``protocol``.

    Returns:
        The files that were written: the figure, and its numbers as CSV where it has any.

    Raises:
        HeatproofError: If the format or an option is unknown, or the run has no such figure.
    """
    if out.suffix.lower() not in FORMATS:
        raise HeatproofError(
            f"{out} does not end in {', '.join(FORMATS)}, which choose the format of the figure"
        )
    result = Result.load(run)
    draw = getattr(result.plot, name)
    allowed = inspect.signature(draw).parameters
    for option in options:
        if option not in allowed:
            raise HeatproofError(f"the figure {name} has no option --{option}; leave it out")
    chosen = dict(options)
    if "sample" in allowed and "sample" not in chosen:
        chosen["sample"] = _first_sample(result, options)
    figure = draw(**chosen)
    figure.savefig(out, **FORMATS[out.suffix.lower()])
    written = [out]
    if name in DATA_OF:
        table = out.with_suffix(".csv")
        without_formulas(result.plot.data(name, **chosen)).to_csv(table, index=False)
        written.append(table)
    return written


def _first_sample(result: Result, options: Mapping[str, str]) -> str:
    """Return the first sample whose maps are kept."""
    for method in dict.fromkeys(result.scores["method"]):
        for sample, _ in result.maps(method, **options):
            return sample
    raise HeatproofError("the run has kept no maps; run it with keep_maps: 16")
