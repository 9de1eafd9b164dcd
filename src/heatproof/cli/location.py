"""Runs as arguments of commands: directories, or addresses such as ``s3://bucket/run``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class RunLocation(click.Path):
    """A run directory that exists, or an address, whose copy is brought up to date.

    Args:
        fresh: Whether all files at an address are fetched again.
        files: Whether a file is taken as well.
    """

    def __init__(self, fresh: bool = False, files: bool = False):
        super().__init__(path_type=Path, exists=True, file_okay=files)
        self._fresh = fresh

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the directory."""
        if isinstance(value, str) and ":" in value:
            from heatproof.runs.addresses import is_address, to_read

            if is_address(value):
                return to_read(value, self._fresh)
        return Path(os.fsdecode(super().convert(value, param, ctx)))
