"""The commands for the directory of one run: ``report``, ``serve`` and ``check``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from heatproof.cli.group import METHOD_FAILED, command, main
from heatproof.cli.location import RunLocation
from heatproof.cli.output import echo


@main.command(**command)
@click.argument("directory", type=RunLocation())
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the report.  [default: DIRECTORY/report]",
)
@click.option(
    "--single-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to one HTML file instead, with its pictures inside.",
)
def report(directory: Path, out: Path | None, single_file: Path | None) -> None:
    """Build the report of a run again.

    Examples:
      heatproof report runs/quickstart
      heatproof report runs/quickstart --single-file quickstart.html
    """
    from heatproof.api import Result
    from heatproof.platform import keep_freed_memory
    from heatproof.report import build_single_file

    keep_freed_memory()
    if single_file is None:
        echo(Result.load(directory).report(out))
    elif out is None:
        echo(build_single_file(Result.load(directory), single_file))
    else:
        raise click.UsageError("--out is for a directory; give either --out or --single-file")


@main.command(**command)
@click.argument("directory", type=RunLocation())
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def serve(directory: Path, port: int, open_browser: bool) -> None:
    """Serve the report of a run on this machine, also while the run goes on.

    The report is built again whenever a task has finished; pages say so, or
    reload. Only this machine can open it. --port 0 takes any port that is free.

    Example:
      heatproof serve runs/quickstart
    """
    from heatproof.cli.serve import serve_run

    serve_run(directory, port, open_browser)


@main.command(**command)
@click.argument("directory", type=RunLocation(fresh=True))
@click.option("--repair", is_flag=True, help="Set damaged files aside; the next run makes them.")
def check(directory: Path, repair: bool) -> None:
    """Verify that every file of a run is as it was written.

    Files that are damaged, missing or foreign are listed; the exit code is 3 if
    there are any. With --repair, they are moved to DIRECTORY/damaged, and
    manifests that are lost are rebuilt.

    Examples:
      heatproof check runs/quickstart
      heatproof check runs/quickstart --repair
    """
    from heatproof.cli.check import check_run

    if not check_run(directory, repair):
        sys.exit(METHOD_FAILED)
