"""A report that is served while its run goes on."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forked import Forked

import heatproof as hp
from heatproof.report import serve as serve_module
from heatproof.report.serve import LiveReport, ReportServer, serve


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, golden_model) -> Path:
    """A run of two tasks."""
    images = torch.rand(70, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [i % 10 for i in range(70)])
    out = tmp_path_factory.mktemp("run") / "tiny"
    hp.evaluate(golden_model("resnet"), data, ["ixg", "random"], ["sds"], out=out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def server(finished: Path, tmp_path: Path) -> Iterator[ReportServer]:
    report = LiveReport(finished, tmp_path)
    report.refresh()
    with ReportServer(report, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: ReportServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_only_files_of_the_report_are_served(server: ReportServer):
    response, body = ask(server, "/")
    assert response.status == 200 and b"heatproof-live" in body
    assert server.server_address[0] == "127.0.0.1"
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert ask(server, "/style.css")[0].headers["Content-Type"].startswith("text/css")
    for path in (
        "/../../../../etc/passwd",
        "/..%2f..%2fplan.json",
        "//etc/passwd",
        "/plan.json",
        "/.lock",
        "/C:\\windows",
        "/pictures/../../x",
    ):
        assert ask(server, path)[0].status == 404, path


def test_only_get_and_head_are_answered(server: ReportServer):
    response, body = ask(server, "/", "HEAD")
    assert response.status == 200 and body == b""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        response, _ = ask(server, "/", method)
        assert response.status == 405 and response.headers["Allow"] == "GET, HEAD"


def test_a_page_under_another_name_cannot_read_the_report(server: ReportServer):
    assert ask(server, "/", host="evil.example")[0].status == 403
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0].status == 200


def test_the_report_is_built_again_when_a_task_has_finished(run: Path, tmp_path: Path):
    last = sorted((run / "tasks").iterdir())[-1]
    manifest = last.read_bytes()
    last.unlink()
    report = LiveReport(run, tmp_path / "work")
    assert report.refresh()
    assert json.loads(report.read("status.json") or b"") == {
        "version": 1,
        "text": "1 of 2 tasks finished",
    }
    assert b"1 of 2 tasks are missing" in b" ".join((report.read("index.html") or b"").split())
    assert not report.refresh()
    last.write_bytes(manifest)
    assert report.refresh()
    assert json.loads(report.read("status.json") or b"") == {"version": 2, "text": ""}
    assert b"tasks are missing" not in (report.read("index.html") or b"")


def test_a_run_that_cannot_be_read_for_a_moment_keeps_its_report(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(serve_module, "SECONDS", 0.05)
    stop = threading.Event()
    told: list[str] = []

    def started(url: str) -> None:
        (run / "plan.json").write_text("{")

    def rebuilt(text: str) -> None:
        told.append(text)
        stop.set()

    serve(run, 0, stop, started, rebuilt)
    assert "could not be built again" in told[0]


def test_a_port_that_is_in_use_is_an_error(server: ReportServer, tmp_path: Path):
    with pytest.raises(hp.HeatproofError, match="--port 0"):
        ReportServer(LiveReport(tmp_path, tmp_path), server.server_port)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(os.name == "nt", reason="a process cannot be sent Ctrl-C alone")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_when_it_is_told_to_and_leaves_nothing(
    finished: Path, tmp_path: Path, stop: signal.Signals
):
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "TMPDIR": str(work)}
    command = ["-m", "heatproof", "serve", finished, "--port", "0"]
    process = Forked(command, tmp_path / "log", environment)
    process.wait_for("http://127.0.0.1:")
    process.send_signal(stop)
    assert process.wait(60) == 0
    assert process.text.endswith("\nstopped\n")
    assert not list(work.glob("heatproof-*"))


def test_a_connection_that_is_reset_is_not_reported(server: ReportServer, capfd):
    """A browser that is closed resets its connections; other faults are still shown."""
    for fault in (ConnectionResetError(), BrokenPipeError(), TimeoutError()):
        try:
            raise fault
        except OSError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""
    try:
        raise KeyError("a fault")
    except KeyError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert "KeyError" in capfd.readouterr().err
