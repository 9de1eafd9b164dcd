"""The commands that show what ships: ``list`` and ``study``."""

from __future__ import annotations

from pathlib import Path

import click

from heatproof.cli.complete import complete_spec
from heatproof.cli.group import command, main
from heatproof.cli.output import echo
from heatproof.errors import HeatproofError


@main.command("list", **command)
@click.argument(
    "kind",
    type=click.Choice(
        [
            "methods",
            "transforms",
            "protocols",
            "baselines",
            "models",
            "data",
            "sections",
            "studies",
        ]
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as a JSON list.")
@click.option(
    "--from",
    "library",
    metavar="LIBRARY",
    help="List the methods of captum, grad-cam, torchcam or zennit.",
)
def list_(kind: str, as_json: bool, library: str | None) -> None:
    """List everything of one kind that a spec can name.

    Examples:
      heatproof list methods
      heatproof list methods --from captum
      heatproof list protocols --json
    """
    import json

    from heatproof.cli.list_tables import print_library, print_listing
    from heatproof.cli.listing_cache import listing_of

    if library is not None and kind != "methods":
        raise HeatproofError("--from is for methods: heatproof list methods --from captum")
    if library is not None:
        from heatproof.listing import library_listing

        entries = library_listing(library)
        if not as_json:
            print_library(library, entries)
    else:
        entries = listing_of(kind)
        if not as_json:
            print_listing(kind, entries)
    if as_json:
        echo(json.dumps(entries, indent=1))


@main.command(**command)
@click.argument("name", shell_complete=complete_spec)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the spec to this file, to be edited.",
)
def study(name: str, copy: Path | None) -> None:
    """Print the spec of an included study, or of a figure or table of a paper.

    Examples:
      heatproof study quickstart
      heatproof study hesse2024/table6 --copy mine.yaml
    """
    from heatproof.plan.spec import spec_path

    text = spec_path(name).read_text(encoding="utf-8")
    if copy is None:
        echo(text, nl=False)
        return
    if copy.exists():
        raise HeatproofError(f"{copy} exists; choose another file, or remove it first")
    copy.write_text(text, encoding="utf-8")
    echo(f"{copy}: run it with heatproof run {copy}")
