"""The command line.

It parses and prints; everything else is in the library, which commands import only when they need
it. ``group.py`` has the group of commands, and every module imported here registers some of them.
"""

from __future__ import annotations

from heatproof.cli import compare as _compare  # noqa: F401
from heatproof.cli import explain as _explain  # noqa: F401
from heatproof.cli import figure as _figure  # noqa: F401
from heatproof.cli import finetune as _finetune  # noqa: F401
from heatproof.cli import lists as _lists  # noqa: F401
from heatproof.cli import report as _report  # noqa: F401
from heatproof.cli import run as _run  # noqa: F401
from heatproof.cli import setup as _setup  # noqa: F401
from heatproof.cli import simulate as _simulate  # noqa: F401
from heatproof.cli import train as _train  # noqa: F401
from heatproof.cli.group import keep_memory as keep_memory
from heatproof.cli.group import main as main
