"""Completion in shells, the schema for editors, and the version."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import heatproof
from heatproof.cli import main
from heatproof.cli.complete import complete_spec
from heatproof.cli.setup import SHELLS


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["run", "quickstart", "--methods", "gradc"], ["gradcam", "gradcam++"]),
        (["run", "quickstart", "--add-methods", "ig|smoo"], ["ig|smooth"]),
        (["plan", "quickstart", "--methods", "group:rao"], ["group:rao2024"]),
        (["run", "quickstart", "--protocols", "difu"], ["difull"]),
        (["run", "quickstart", "--protocols", "sds(baseline=blu"], ["sds(baseline=blur"]),
        (["run", "quickstart", "--model", "paperbirds/res"], ["paperbirds/resnet"]),
        (["validate", "quickstart", "--data", "paperb"], ["paperbirds"]),
        (["figure", ".", "rank"], ["ranking"]),
        (["table", ".", "cos"], ["costs"]),
        (["compare", ".", "published:hesse2024/table6"], ["published:hesse2024/table6"]),
        (["explain", "x.png", "--method", "layerc"], ["layercam"]),
    ],
)
def test_names_are_completed(words, offered):
    context = ShellComplete(main, {}, "heatproof", "_HEATPROOF_COMPLETE")
    found = [item.value for item in context.get_completions(words[:-1], words[-1])]
    assert found[: len(offered)] == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell_calls_heatproof_for_completions(shell):
    script = printed("completion", shell)
    assert f"_HEATPROOF_COMPLETE={shell}_complete" in script
    assert "_heatproof_completion" in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_have_no_syntax_error(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    process = subprocess.run(
        [shell, "-n"], input=printed("completion", shell), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("heatproof leader", "plain,leaderboard"),
        ("heatproof list prot", "plain,protocols"),
        ("heatproof run quick", "plain,quickstart"),
        ("heatproof study hesse2024/table", "plain,hesse2024/table6"),
        ("heatproof run --walltim", "plain,--walltime"),
    ],
)
def test_bash_is_offered_what_fits(words, offered):
    environment = os.environ | {
        "_HEATPROOF_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-m", "heatproof"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert offered in process.stdout.splitlines()


def test_specs_in_the_working_directory_are_offered_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.yaml").touch()
    (tmp_path / "quick.txt").touch()
    (tmp_path / "quicker").mkdir()
    items = [item.value for item in complete_spec(None, None, "quick")]
    assert items == ["quick.yaml", "quicker/", "quickstart"]


def test_the_schema_is_printed_or_written(tmp_path):
    content = json.loads(printed("schema"))
    path = tmp_path / "heatproof.schema.json"
    assert printed("schema", "-o", str(path)).strip() == str(path)
    assert json.loads(path.read_text(encoding="utf-8")) == content


def test_the_version_is_that_of_the_installed_package():
    expected = version("heatproof")
    assert heatproof.__version__ == expected
    assert printed("--version").split()[-1] == expected
    assert re.match(r"\d+\.\d+", expected)


def test_the_module_is_the_command():
    process = subprocess.run(
        [sys.executable, "-m", "heatproof", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout == printed("--version")
