"""What ``heatproof compare`` does with runs: prints, a page, JSON, and whether a score is worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from heatproof.cli.results import print_gate, print_run_comparison
from heatproof.cli.terminal import print_plain
from heatproof.errors import HeatproofError
from heatproof.results.compare import compare
from heatproof.results.comparison_page import ComparedRun, comparison_page
from heatproof.results.leaderboard import run_names
from heatproof.results.result import JSON_SCHEMA, Result
from heatproof.results.tables import write_json


def compare_runs(
    run: Path,
    others: Sequence[Path],
    limits: Sequence[str],
    json_file: Path | None,
    html_file: Path | None,
) -> tuple[bool, bool]:
    """Compare runs with a first one, and print or write what differs.

    Args:
        run: A run directory.
        others: Those that are compared with it.
        limits: Methods and by how much they may be worse, such as ``gradcam:0.02``.
        json_file: A file for everything as JSON.
        html_file: A file for a page.

    Returns:
        Whether a score is worse than allowed or lost, and whether this is undecided for one.
    """
    allowed = [parse_limit(text) for text in limits]
    first = Result.load(run)
    names = run_names([run, *others])
    compared = []
    for name, other in zip(names[1:], others, strict=True):
        comparison = compare(first, other)
        gate = comparison.gate(allowed) if allowed else None
        compared.append(ComparedRun(name, comparison, gate))
    if json_file is not None and len(compared) == 1:
        compared[0].comparison.to_json(json_file)
    elif json_file is not None:
        contents = [{"run": c.name, **c.comparison.content()} for c in compared]
        write_json({"schema": JSON_SCHEMA, "run": names[0], "comparisons": contents}, json_file)
    if html_file is not None:
        html_file.write_text(comparison_page(names[0], compared), encoding="utf-8")
    outcomes: set[str] = set()
    for one in compared:
        if len(compared) > 1:
            print_plain(f"{one.name} compared with {names[0]}")
        print_run_comparison(one.comparison)
        if one.gate is not None:
            outcomes |= print_gate(one.gate)
    if html_file is not None:
        print_plain(f"page: {html_file}")
    return bool(outcomes & {"worse", "lost"}), "undecided" in outcomes


def parse_limit(text: str) -> tuple[str, float]:
    """Read a method and by how much it may be worse."""
    method, _, amount = text.rpartition(":")
    try:
        tolerance = float(amount)
    except ValueError:
        tolerance = -1.0
    if not method or not 0 <= tolerance < math.inf:
        raise HeatproofError(
            f'--fail-if-worse "{text}" does not name a method and an amount, such as '
            "gradcam:0.02 or all:0.05"
        )
    return method, tolerance
