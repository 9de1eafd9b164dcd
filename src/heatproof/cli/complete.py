"""Completion of the arguments of commands by a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offering(names: Callable[[], Iterable[str]]) -> Completer:
    """Return what offers the names that begin as the word does."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def _listed(kind: str) -> Completer:
    def names() -> Iterator[str]:
        from heatproof.listing import listing

        return (str(entry["id"]) for entry in listing(kind))

    return _offering(names)


def complete_method(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer methods and groups of them; behind a stroke, as in ``ig|``, transforms."""
    from heatproof.methods import METHODS, TRANSFORMS
    from heatproof.methods.groups import GROUPS

    before, stroke, word = incomplete.rpartition("|")
    entries = TRANSFORMS if stroke else METHODS
    names = sorted(entry.id for entry in entries)
    names += [] if stroke else [f"group:{group}" for group in GROUPS]
    return [CompletionItem(before + stroke + n) for n in names if n.startswith(word)]


def _figures() -> Iterable[str]:
    from heatproof.results.plots import DESCRIPTIONS

    return DESCRIPTIONS


def _tables() -> Iterable[str]:
    from heatproof.results.export import TABLES

    return TABLES


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer directories, and what papers have published."""
    from heatproof.analysis.published_tables import PREFIX, published_tables

    folders = [f"{path}/" for path in map(Path, glob(escape(incomplete) + "*/"))]
    names = [f"{PREFIX}{name}" for name in published_tables()]
    return [CompletionItem(n) for n in [*sorted(folders), *names] if n.startswith(incomplete)]


def complete_protocol(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer protocols; behind ``baseline=``, as in ``sds(baseline=``, baselines."""
    before, setting, word = incomplete.rpartition("baseline=")
    items = _listed("baselines" if setting else "protocols")(context, parameter, word)
    return [CompletionItem(before + setting + item.value) for item in items]


complete_model = _listed("models")
complete_data = _listed("data")
complete_figure = _offering(_figures)
complete_table = _offering(_tables)
