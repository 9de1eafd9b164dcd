"""What commands print reaches every terminal and commands none."""

import os
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner
from rich.table import Table

from heatproof.cli import main
from heatproof.cli.terminal import SafeConsole

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eabc\r"


def test_a_console_prints_no_commands_but_its_own(capsys):
    console = SafeConsole(force_terminal=True, width=200)
    table = Table(title=f"title {HOSTILE}")
    table.add_column(f"column {HOSTILE}")
    table.add_row(f"cell {HOSTILE}")
    console.print(table)
    console.print(f"plain {HOSTILE}", markup=False, highlight=False, style="red")
    out = capsys.readouterr().out
    assert "\x1b[31m" in out  # the red of the console
    assert not any(mark in out for mark in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\r"))
    assert out.count("\\x1b[2J\\u202eabc") == 4


def test_names_are_no_emoji(capsys):
    console = SafeConsole(width=200)
    table = Table(title="net.py:two: title")
    table.add_row("net.py:two: cell")
    console.print(table)
    console.print("! net.py:two: caveat", markup=False)
    assert capsys.readouterr().out.count("net.py:two: ") == 3


@pytest.mark.parametrize("name", [HOSTILE, "=cmd()", "x" * 10_000, "a\nb"])
def test_errors_print_no_commands(tmp_path, name):
    path = tmp_path / "spec.yaml"
    spec = {"models": [name], "data": "paperbirds:test", "methods": ["ixg"], "protocols": ["sds"]}
    path.write_text(yaml.safe_dump(spec))
    for args in (["validate", str(path)], ["validate", name], ["study", name], [name]):
        result = CliRunner().invoke(main, args, color=True)
        assert result.exit_code == 2
        text = result.output.replace("\x1b[31m\x1b[1merror: \x1b[0m", "")
        assert not any(mark in text for mark in "\x1b\x07\u202e\r")
        assert len(text) < 3000


def test_output_that_knows_only_ascii(tmp_path):
    spec = {
        "models": [{"name": "paperbirds/resnet", "as": "Grün 漢"}],
        "data": {"name": "paperbirds:test", "limit": 2},
        "methods": ["ixg"],
        "protocols": ["sds"],
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec, allow_unicode=True), encoding="utf-8")
    commands = {
        ("run", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "run"), "--no-report"): 0,
        ("study", "quickstart"): 0,
        ("list", "methods", "--json"): 0,
        ("list", "methods"): 0,
        ("validate", "né\udcff"): 2,
    }
    for args, code in commands.items():
        result = CliRunner(charset="ascii").invoke(main, args)
        assert result.exit_code == code, result.exception
        result.output_bytes.decode("ascii")


def test_a_process_in_an_ascii_locale_prints_its_error():
    variables = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "heatproof", "validate", "né"]
    result = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert result.returncode == 2, result.stderr
    assert b"Traceback" not in result.stderr
    assert b"unknown study" in result.stderr
