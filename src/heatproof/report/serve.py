"""A report that is served while its run goes on: built again whenever a task has finished."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.report.build import build
from heatproof.report.pages import STATUS, policy
from heatproof.report.site import MIME_TYPES
from heatproof.runs.format import RunPaths
from heatproof.runs.store import Store
from heatproof.text import counted

HOST = "127.0.0.1"  # the report is for this machine alone
PORT = 8765
SECONDS = 2.0  # between two looks at the run
FETCH_SECONDS = 30.0  # between two looks at a run on another file system
HEADERS = {
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class LiveReport:
    """The latest report of a run, in a temporary directory.

    Args:
        directory: The run.
        work: Directory that reports are built in.
    """

    def __init__(self, directory: Path, work: Path):
        self.directory = directory
        self.version = 0
        self.text = ""
        self._files: dict[str, Path] = {}
        self._work = work
        self._seen: object = None
        self._fetched = time.monotonic()
        self._lock = threading.Lock()

    def refresh(self) -> bool:
        """Build the report again if the run has changed; return whether it was built.

        Raises:
            HeatproofError: If the directory holds no run that can be read.
        """
        if time.monotonic() - self._fetched >= FETCH_SECONDS:
            Store(self.directory).refresh()
            self._fetched = time.monotonic()
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        run = RunStatistics(Store(self.directory))
        version = self.version + 1
        page = build(run, self._work / str(version), live=True)
        files = {
            path.relative_to(page.parent).as_posix(): path
            for path in page.parent.rglob("*")
            if path.is_file()
        }
        total = len(run.tasks)
        done = total - len(run.unfinished)
        with self._lock:
            self._files = files
            self.version = version
            self.text = "" if done == total else f"{done} of {counted(total, 'task')} finished"
        # A page that was opened before may still ask for the files of the version before.
        shutil.rmtree(self._work / str(version - 2), ignore_errors=True)
        return True

    def read(self, name: str) -> bytes | None:
        """Return a file of the report; None if it has none of that name."""
        if name == STATUS:
            status = {"version": self.version, "text": self.text}
            return json.dumps(status).encode()
        with self._lock:
            path = self._files.get(name)
        return path.read_bytes() if path else None

    def _state(self) -> object:
        """Return what changes when a task has finished."""
        paths = RunPaths(self.directory)
        found = [paths.plan, paths.provenance, *paths.manifests()]
        return [(p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in found if p.is_file()]


class ReportServer(ThreadingHTTPServer):
    """Serves a report on this machine.

    Args:
        report: The report.
        port: The port; 0 chooses a free one.

    Raises:
        HeatproofError: If the port is in use.
    """

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int = PORT):
        self.report = report
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise HeatproofError(
                f"cannot serve on port {port}: {error.strerror or error}; choose another with "
                "--port, or --port 0 for any that is free"
            ) from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let whoever closes a connection early be; anything else is a fault."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The address of the report."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for files that are listed; a path is only ever looked up."""

    server: ReportServer
    server_version = "heatproof"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _refuse(self) -> None:
        self.close_connection = True  # the body of the request is not read
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", "text/plain", True)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse

    def _answer(self, with_body: bool) -> None:
        allowed = {f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        if self.headers.get("Host") not in allowed:  # a page of somebody else, under another name
            self._send(HTTPStatus.FORBIDDEN, b"unknown host\n", "text/plain", with_body)
            return
        name = urlsplit(self.path).path.removeprefix("/") or "index.html"
        content = self.server.report.read(name)
        if content is None:
            self._send(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain", with_body)
            return
        kind = MIME_TYPES.get(Path(name).suffix, "application/octet-stream")
        self._send(HTTPStatus.OK, content, kind, with_body)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, with_body: bool) -> None:
        self.send_response(status)
        if kind.startswith("text/") or kind.endswith("json"):
            kind += "; charset=utf-8"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for header, value in HEADERS.items():
            self.send_header(header, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal says what the run does."""


def serve(
    directory: Path,
    port: int = PORT,
    stop: threading.Event | None = None,
    started: Callable[[str], None] = lambda url: None,
    rebuilt: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve the report of a run until it is interrupted.

    Args:
        directory: The run.
        port: The port; 0 chooses a free one.
        stop: Ends the server when it is set.
        started: Called with the address once it can be opened.
        rebuilt: Called with a text whenever the report was built again, or could not be.

    Raises:
        HeatproofError: If the directory holds no run, or the port is in use.
    """
    stop = stop or threading.Event()
    with tempfile.TemporaryDirectory(prefix="heatproof-serve-") as work:
        report = LiveReport(directory, Path(work))
        report.refresh()
        with ReportServer(report, port) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                started(server.url)
                while not stop.wait(SECONDS):
                    _look_again(report, rebuilt)
            except KeyboardInterrupt:
                pass
            finally:
                server.shutdown()
                thread.join()


def _look_again(report: LiveReport, rebuilt: Callable[[str], None]) -> None:
    try:
        if report.refresh():
            rebuilt(report.text or "all tasks finished")
    except (HeatproofError, OSError) as error:  # a file is being replaced; the next look reads it
        rebuilt(f"the report could not be built again: {error}")
