"""The commands that write parts of a run for a paper: ``figure`` and ``table``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from heatproof.cli.complete import complete_figure, complete_table
from heatproof.cli.group import command, main
from heatproof.cli.location import RunLocation
from heatproof.cli.output import echo


@main.command("figure", **command)
@click.argument("run", type=RunLocation())
@click.argument("name", required=False, shell_complete=complete_figure)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="[default: NAME.pdf]"
)
@click.option("--list", "list_all", is_flag=True, help="List the figures of the run.")
@click.option("--model", help="A model; by default all.")
@click.option("--protocol", help="A protocol; by default all.")
@click.option("--sample", help="The sample of maps; by default the first that has any.")
@click.option(
    "--style",
    type=click.Choice(["column", "page", "slide"]),
    help="One column of a paper with two, the width of a page, or a slide.",
)
@click.option("--width", type=float, help="Inches; by default those of the style.")
@click.option("--height", type=float, help="Inches; by default what the panels need.")
def figure_(
    run: Path,
    name: str | None,
    out: Path | None,
    list_all: bool,
    model: str | None,
    protocol: str | None,
    sample: str | None,
    style: str | None,
    width: float | None,
    height: float | None,
) -> None:
    """Draw a figure of a run for a paper: PDF, SVG or PNG, by the name of the file.

    The numbers of the figure are written beside it, as CSV. This needs
    pip install "heatproof[plot]".

    Examples:
      heatproof figure runs/quickstart --list
      heatproof figure runs/quickstart ranking -o ranking.pdf
      heatproof figure runs/quickstart ranking --style column -o ranking.pdf
      heatproof figure runs/quickstart curves --protocol deletion -o deletion.svg
      heatproof figure runs/quickstart maps --sample test_0003 -o maps.png
    """
    from heatproof.cli.results import print_figures
    from heatproof.results.export import list_figures, write_figure

    if list_all or name is None:
        print_figures(list_figures(run))
        return
    options: dict[str, Any] = {"model": model, "protocol": protocol, "sample": sample}
    options |= {"style": style, "width": width, "height": height}
    chosen = {key: value for key, value in options.items() if value is not None}
    for path in write_figure(run, name, out or Path(f"{name}.pdf"), chosen):
        echo(str(path))


@main.command("table", **command)
@click.argument("run", type=RunLocation())
@click.argument("name", required=False, shell_complete=complete_table)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file that ends in .tex, .md or .csv; by default the table is printed.",
)
@click.option("--model", help="A model; by default all.")
@click.option("--protocol", help="A protocol; by default all.")
@click.option(
    "--columns",
    help="Columns, with commas between them; of ranking, what stands behind each mean: interval, "
    "rank, letters, n.",
)
@click.option(
    "--digits", type=click.IntRange(0, 12), default=3, show_default=True, help="After the point."
)
@click.option("--transpose", is_flag=True, help="Methods across and settings down (ranking).")
def table_(
    run: Path,
    name: str | None,
    out: Path | None,
    model: str | None,
    protocol: str | None,
    columns: str | None,
    digits: int,
    transpose: bool,
) -> None:
    """Write a table of a run for a paper: LaTeX (booktabs), Markdown or CSV.

    Without NAME, the tables are listed.

    Examples:
      heatproof table runs/quickstart ranking -o ranking.tex
      heatproof table runs/quickstart ranking --columns letters,n --digits 2 --transpose
      heatproof table runs/quickstart pairs --protocol sds -o pairs.csv
      heatproof table runs/quickstart agreement
    """
    from heatproof.cli.results import print_figures
    from heatproof.results.export import TABLES, TableOptions, write_table

    if name is None:
        print_figures([(name, table.about, "") for name, table in TABLES.items()])
        return
    options = {"model": model, "protocol": protocol}
    chosen = {key: value for key, value in options.items() if value is not None}
    names = [part.strip() for part in (columns or "").split(",") if part.strip()]
    text = write_table(run, name, out, TableOptions(chosen, names, digits, transpose))
    echo(str(out) if out else text.rstrip())
