"""The group of commands ``heatproof``: its errors, its help and its exit codes."""

from __future__ import annotations

import ctypes
import inspect
import sys
import warnings
from contextlib import suppress
from typing import Any, NoReturn

import click

from heatproof.cli.output import echo, replace_unencodable
from heatproof.errors import HeatproofError, unknown
from heatproof.text import clip, printable

USAGE_ERROR = 2  # exit codes
METHOD_FAILED = 3
WORSE = 4
UNDECIDED = 5  # of compare
UNFINISHED = 5  # of run
INTERRUPTED = 130


class Group(click.Group):
    """A group of commands that prints errors meant for users without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        replace_unencodable()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeatproofError as error:
            _exit_with_error(str(error))
        except OSError as error:
            message = str(error.strerror or error)
            if error.filename:
                message += f": {clip(str(error.filename))}"
            _exit_with_error(message)
        except KeyboardInterrupt:  # while modules are imported, or in a command without a run
            echo("interrupted", err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(printable(str(unknown("command", args[0], self.commands))))
        return super().resolve_command(ctx, args)


def _exit_with_error(message: str) -> NoReturn:
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    echo(message, err=True)
    sys.exit(USAGE_ERROR)


class Command(click.Command):
    """A command whose help keeps the line breaks of its docstring."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [
            name
            for option in self.params
            if isinstance(option, click.Option) and option.multiple
            for name in option.opts
            if name in args
        ]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not given or "extra argument" not in error.message:
                raise
            repeated = f"{given[0]} A {given[0]} B"
            ctx.fail(f"{error.message}. An option takes one value; repeat it for more: {repeated}")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n")
        for line in inspect.cleandoc(self.help or "").splitlines():
            formatter.write(f"  {line}\n" if line else "\n")


command = {"cls": Command, "context_settings": {"help_option_names": ["-h", "--help"]}}


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heatproof", prog_name="heatproof")
def main() -> None:
    """Measure which attribution heatmaps you can trust.

    \b
    Examples:
      heatproof run quickstart                try it: a run with a report, about half a minute
      heatproof run spec.yaml -o runs/mine    evaluate your models, images and methods
      heatproof list methods                  list all methods
    """
    keep_memory()
    printed = set[str]()

    def show_once(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            echo(f"note: {message}", err=True)

    warnings.showwarning = show_once


def keep_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the system.

    By default it returns the memory of every large tensor and gets cleared pages for the next one,
    which takes a tenth of the time of gradient passes. The peak does not change.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not glibc
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                ctypes.CDLL("libc.so.6").mallopt(option, 2**31 - 1)
