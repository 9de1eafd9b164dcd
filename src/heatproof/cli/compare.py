"""The commands that set runs side by side: ``compare`` and ``leaderboard``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from heatproof.cli.group import WORSE, command, main
from heatproof.cli.location import RunLocation
from heatproof.errors import HeatproofError


@main.command("compare", **command)
@click.argument("run", type=RunLocation())
@click.argument("others", nargs=-1, required=True)
@click.option(
    "--fail-if-worse",
    "limits",
    metavar="METHOD:AMOUNT",
    multiple=True,
    help="End with code 4 if a method (or any of all) scores significantly worse in another run, "
    "by more than this amount.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as JSON."
)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a page."
)
def compare_(
    run: Path,
    others: tuple[str, ...],
    limits: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Set a run beside other runs, or beside the published numbers of a paper.

    Runs are compared over the samples that both have, in pairs: the other minus
    the first, with 95 % intervals and tests, and what changed in spec, versions
    and weights.

    A published number is reproduced if it lies in the run's 95 % interval, and
    differs if it does not. Where the model or the protocol's settings are not
    the paper's, there is no verdict.

    Examples:
      heatproof compare runs/before runs/after --html compare.html
      heatproof compare runs/main runs/branch --fail-if-worse gradcam:0.02
      heatproof compare runs/main runs/branch --fail-if-worse all:0.05
      heatproof compare runs/hesse2024/ranking published:hesse2024/table6
      heatproof compare runs/li2024/distinctness published:li2024/table1
    """
    from heatproof.analysis.published import PREFIX, compare_published, published_table
    from heatproof.analysis.run_statistics import RunStatistics
    from heatproof.cli.comparison_output import compare_runs
    from heatproof.cli.results import print_comparison
    from heatproof.runs.addresses import is_address, to_read
    from heatproof.runs.store import Store

    published = [other for other in others if other.startswith(PREFIX)]
    if published and (limits or json_file or html_file):
        raise HeatproofError("--fail-if-worse, --json and --html are for runs")
    others = tuple(str(to_read(o)) if is_address(o) else o for o in others)
    missing = [o for o in others if o not in published and not Path(o).is_dir()]
    if missing:
        raise HeatproofError(
            f'"{missing[0]}" is neither a run directory nor a published table, which is named like '
            f"{PREFIX}hesse2024/table6"
        )
    for name in published:
        opened = RunStatistics(Store(run))
        print_comparison(compare_published(opened, published_table(name)), opened)
    runs = [Path(other) for other in others if other not in published]
    if runs and compare_runs(run, runs, limits, json_file, html_file):
        sys.exit(WORSE)


@main.command("leaderboard", **command)
@click.argument("runs", nargs=-1, required=True, type=RunLocation())
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as JSON."
)
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as CSV."
)
def leaderboard_(runs: tuple[Path, ...], json_file: Path | None, csv_file: Path | None) -> None:
    """Rank the methods of several runs, models and people.

    RUNS are run directories, or directories that contain some. Scores are in
    one table only if they are of the same version of a protocol, with the same
    settings, on the same samples. Entries that share a letter do not differ
    significantly.

    Examples:
      heatproof leaderboard runs
      heatproof leaderboard runs/mine runs/theirs --csv board.csv
    """
    from heatproof.api import leaderboard
    from heatproof.cli.results import print_leaderboard
    from heatproof.text import without_formulas

    board = leaderboard(runs)
    if json_file is not None:
        board.to_json(json_file)
    if csv_file is not None:
        without_formulas(board.to_frame()).to_csv(csv_file, index=False)
    print_leaderboard(board)
