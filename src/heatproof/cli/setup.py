"""Commands that set up a shell or an editor: ``completion`` and ``schema``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from heatproof.cli.group import command, main
from heatproof.cli.output import echo

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HEATPROOF_COMPLETE"  # by which the script asks for completions


@main.command(**command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and studies in a shell.

    Examples:
      eval "$(heatproof completion bash)"                             in ~/.bashrc
      eval "$(heatproof completion zsh)"                              in ~/.zshrc
      heatproof completion fish > ~/.config/fish/completions/heatproof.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # one of SHELLS
    echo(script(main, {}, "heatproof", VARIABLE).source())


@main.command(**command)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write.  [default: print it]",
)
def schema(out: Path | None) -> None:
    """Write the JSON Schema of specs, with which editors complete and check them.

    The first line of a spec names it, relative to the spec:
      # yaml-language-server: $schema=heatproof.schema.json

    Example:
      heatproof schema -o heatproof.schema.json
    """
    from heatproof.plan.schema import spec_schema

    text = json.dumps(spec_schema(), indent=1, ensure_ascii=False)
    if out is None:
        echo(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    echo(str(out))
