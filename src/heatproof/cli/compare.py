"""The commands that set runs side by side: ``compare`` and ``leaderboard``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from heatproof.cli.complete import complete_run
from heatproof.cli.group import UNDECIDED, WORSE, command, main
from heatproof.cli.location import RunLocation
from heatproof.cli.output import echo
from heatproof.errors import HeatproofError
from heatproof.text import counted, printable


@main.command("compare", **command)
@click.argument("run", type=RunLocation())
@click.argument("others", nargs=-1, required=True, shell_complete=complete_run)
@click.option(
    "--fail-if-worse",
    "limits",
    metavar="METHOD:AMOUNT",
    multiple=True,
    help="End with code 4 if a method (or any of all) scores worse in another run by more than "
    "this amount, with confidence for all lines together, or has no score there on more than a "
    "tenth of the images.",
)
@click.option(
    "--undecided",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    help="With fail, end with code 5 if --fail-if-worse cannot be decided with these images.",
)
@click.option(
    "--as",
    "same_as",
    metavar="[MODEL=]PAPER:NETWORK",
    multiple=True,
    help="Say that a model of the run is a network of a paper, such as hesse2024:resnet50; the run "
    "records it. MODEL= takes it back.",
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
    undecided: str,
    same_as: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Set a run beside other runs, or beside the published numbers of a paper.

    Runs are compared over the samples that both have, in pairs: the other minus
    the first, with intervals and tests of one family, and what changed in spec,
    versions and weights.

    Beside a publication, there is a verdict where protocol, method, network and
    data are the paper's: --as says so of a network that has another name here,
    which stands beside every verdict that rests on it.

    Examples:
      heatproof compare runs/before runs/after --html compare.html
      heatproof compare runs/main runs/branch --fail-if-worse gradcam:0.02
      heatproof compare runs/main runs/branch --fail-if-worse all:0.05
      heatproof compare runs/main runs/branch --fail-if-worse all:0 --undecided fail
      heatproof compare runs/mine published:hesse2024/table6 --as hesse2024:resnet50
      heatproof compare runs/li2024/distinctness published:li2024/table1
    """
    from heatproof.analysis.published_tables import PREFIX, published_table
    from heatproof.cli.comparison_output import compare_runs
    from heatproof.cli.results import print_comparison
    from heatproof.results import Result
    from heatproof.results.published import compare_published, published_json, record_same_as
    from heatproof.runs.addresses import is_address, to_read

    published = [other for other in others if other.startswith(PREFIX)]
    if published and (limits or html_file):
        raise HeatproofError("--fail-if-worse and --html are for runs")
    if json_file and 0 < len(published) < len(others):
        raise HeatproofError("--json takes runs or published tables, not both")
    if same_as and not published:
        raise HeatproofError(f"--as is for a published table, such as {PREFIX}hesse2024/table6")
    others = tuple(str(to_read(o)) if is_address(o) else o for o in others)
    missing = [o for o in others if o not in published and not Path(o).is_dir()]
    if missing:
        raise HeatproofError(
            f'"{missing[0]}" is neither a run directory nor a published table, which is named like '
            f"{PREFIX}hesse2024/table6"
        )
    if published:
        tables = [published_table(name).name for name in published]
        result = Result.load(run)
        record_same_as(result, same_as, "--as")
        found = [compare_published(result, name) for name in tables]
        if json_file is not None:
            published_json(found, json_file)
        for comparison in found:
            print_comparison(comparison, result)
    runs = [Path(other) for other in others if other not in published]
    if runs:
        is_worse, is_undecided = compare_runs(run, runs, limits, json_file, html_file)
        if is_worse:
            sys.exit(WORSE)
        if is_undecided and undecided == "fail":
            sys.exit(UNDECIDED)


@main.command("leaderboard", **command)
@click.argument("runs", nargs=-1, required=True, type=RunLocation(files=True))
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as JSON."
)
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write as CSV."
)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a page."
)
@click.option(
    "--submit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the scores of one run to a file NAME.heatproof.json that others can rank.",
)
@click.option("--by", help="Who submits it.")
@click.option("--report", default="", help="Where its report is on the web.")
@click.option(
    "--check", is_flag=True, help="Only check that RUNS, which are such files, are valid."
)
def leaderboard_(
    runs: tuple[Path, ...],
    json_file: Path | None,
    csv_file: Path | None,
    html_file: Path | None,
    submit: Path | None,
    by: str | None,
    report: str,
    check: bool,
) -> None:
    """Rank the methods of several runs, models and people.

    RUNS are run directories, files that people have submitted, or directories
    that contain some. Scores are in one table only if they are of the same
    version of a protocol, with the same settings, on the same samples. Entries
    that share a letter cannot be told apart.

    Examples:
      heatproof leaderboard runs --html board.html
      heatproof leaderboard runs/mine runs/theirs --csv board.csv
      heatproof leaderboard runs/mine --submit ann.heatproof.json --by "Ann, TU"
      heatproof leaderboard --check ann.heatproof.json
    """
    from heatproof.api import leaderboard
    from heatproof.cli.results import print_leaderboard
    from heatproof.results.leaderboard import SUBMISSION
    from heatproof.results.leaderboard_page import leaderboard_page
    from heatproof.results.submission import read_submission, write_submission
    from heatproof.text import without_formulas

    if check:
        for path in runs:
            if path.is_dir():
                raise HeatproofError(f"{path} is a directory; --check takes files of --submit")
            found = read_submission(path)
            echo(f"{path} is valid: {counted(len(found.scores), 'table')} by {printable(found.by)}")
        return
    if submit is not None:
        if len(runs) != 1 or not by:
            raise HeatproofError('--submit takes one run, and --by: --by "Ann, TU Darmstadt"')
        if not submit.name.endswith(SUBMISSION):
            raise HeatproofError(f"{submit} must end in {SUBMISSION}, by which it is found")
        echo(str(write_submission(runs[0], submit, by=by, report=report)))
        return
    board = leaderboard(runs)
    if json_file is not None:
        board.to_json(json_file)
    if csv_file is not None:
        without_formulas(board.to_frame()).to_csv(csv_file, index=False)
    if html_file is not None:
        html_file.write_text(leaderboard_page(board, html_file), encoding="utf-8")
    print_leaderboard(board)
