"""Completion of the arguments of commands by a shell."""

from __future__ import annotations

from glob import escape, glob
from pathlib import Path

import click
from click.shell_completion import CompletionItem


def complete_spec(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer YAML files, directories, and the studies and figures that ship."""
    from heatproof.plan.studies import figures, study_names

    paths = map(Path, glob(escape(incomplete) + "*"))
    files = [str(path) for path in paths if path.suffix in (".yaml", ".yml")]
    folders = [f"{path}/" for path in map(Path, glob(escape(incomplete) + "*/"))]
    made = [f"{figure.paper}/{figure.name}" for figure in figures().values() if figure.study]
    studies = [name for name in [*study_names(), *made] if name.startswith(incomplete)]
    return [CompletionItem(name) for name in [*sorted(files), *sorted(folders), *studies]]
