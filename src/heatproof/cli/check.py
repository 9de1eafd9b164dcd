"""``heatproof check``: verify every file of a run."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from heatproof.cli.terminal import console, make_table, print_plain
from heatproof.runs.integrity import Checked, check
from heatproof.runs.store import Store
from heatproof.text import counted


def check_run(directory: Path, repair: bool) -> bool:
    """Verify a run, print what was found, and return whether everything is as it was written."""
    store = Store(directory)
    if repair:
        with store.locked():
            checked = check(store, repair=True)
    else:
        checked = check(store)
    _print(checked, store, repair)
    return not checked.findings


def _print(checked: Checked, store: Store, repair: bool) -> None:
    if checked.findings:
        table = make_table({"file": "left", "problem": "left"})
        for finding in checked.findings:
            name = str(finding.path.relative_to(store.root))
            table.add_row(escape(name), escape(finding.problem))
        console.print(table)
    print_plain(f"{counted(checked.files, 'file')}, {counted(checked.tasks, 'finished task')}")
    if checked.rebuilt:
        print_plain(f"{len(checked.rebuilt)} manifests were rebuilt from the files of their tasks")
    if not checked.findings:
        print_plain("every file is as it was written")
    elif repair:
        print_plain(
            f"damaged files are in {store.name}/damaged; run the spec again into the same "
            "directory to make them anew"
        )
    else:
        print_plain(
            "run the spec again into the same directory to set these files aside and make them "
            f"anew, or only set them aside: heatproof check --repair {store.name}"
        )
