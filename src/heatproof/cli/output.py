"""Output of commands: plain lines that no terminal obeys and every stream can encode."""

from __future__ import annotations

import io
import sys

import click

from heatproof.text import ENCODE_ERRORS, printable


def echo(text: object, err: bool = False, nl: bool = True) -> None:
    """Print text as it is, but for characters that a terminal would obey.

    Args:
        text: What to print.
        err: Whether it goes to the standard error.
        nl: Whether a line feed follows.
    """
    # Without a file, click writes UTF-8 to a stream for ASCII.
    click.echo(printable(str(text)), file=sys.stderr if err else sys.stdout, nl=nl)


def replace_unencodable() -> None:
    """Let the standard streams replace what they cannot encode, such as – where only ASCII is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ENCODE_ERRORS)
