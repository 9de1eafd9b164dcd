"""The command `heatproof serve`."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path

from heatproof.cli.signals import Terminated, stopped_by_sigterm
from heatproof.cli.terminal import print_plain
from heatproof.report.serve import serve


def serve_run(directory: Path, port: int, open_browser: bool) -> None:
    """Serve the report of a run until Ctrl-C or SIGTERM, and print what happens."""

    def started(url: str) -> None:
        print_plain(f"{url}  (Ctrl-C ends it)")
        if open_browser:
            webbrowser.open(url)

    with suppress(Terminated), stopped_by_sigterm(None):  # so that nothing is left behind
        serve(directory, port, started=started, rebuilt=print_plain)
    print_plain("stopped")
