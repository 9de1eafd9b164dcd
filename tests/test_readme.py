"""Code in the README and in the documentation is executed."""

import re
from pathlib import Path

import yaml
from forked import Forked

from heatproof.plan.spec import make_spec

ROOT = Path(__file__).parent.parent


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_python_code_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["page"].is_file()
    assert "gradcam" in capsys.readouterr().out


def test_the_code_in_the_page_on_runs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python", "docs/runs.md"):
        exec(compile(block, "docs/runs.md", "exec"), names)
    printed = capsys.readouterr()
    assert printed.out == f"{8 * 3 * 2}\n"
    assert "run: 100 %, task 1/1" in printed.err


def test_the_spec_in_the_readme_is_valid():
    (spec,) = blocks("yaml")
    assert make_spec(yaml.safe_load(spec)).expressions()


INPAINTER = """
import heatproof as hp


def network(weights):
    return lambda image, removed: image * (1 - removed)
"""
INPAINTED = """
protocol = "sds(patches=4, baseline=inpaint)"
result = hp.evaluate("paperbirds/vgg", "paperbirds:test", ["ixg"], [protocol], limit=2)
print("inpainted:", result.summary()["n"].item())
"""


def test_the_code_in_the_page_on_extensions_runs(tmp_path):
    """Run it in a separate process, so that its registrations do not affect other tests."""
    page = "docs/extending.md"
    definitions, inpainting, saved, evaluation = blocks("python", page)
    (template,) = blocks("html", page)
    (spec,) = blocks("yaml", page)
    script = """
import heatproof as hp
result = hp.run("spec.yaml", "run")
assert set(result.scores["status"]) == {"ok"}, result.left_out
pages = result.report().parent.glob("*.html")
assert any('<section id="notes"' in page.read_text() for page in pages)
"""
    files = {
        "mine.py": definitions,
        "notes.html.j2": template,
        "spec.yaml": spec,
        "run.py": script,
        "inpaint.py": f"{INPAINTER}\n\n{inpainting}\n{INPAINTED}",
        "saved.py": saved,
        "evaluate.py": evaluation,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    outputs = {
        "run.py": "",
        "inpaint.py": "inpainted: 2",
        "saved.py": "file:maps.npz",
        "evaluate.py": "center-mass",
    }
    for name, printed in outputs.items():
        process = Forked([name], tmp_path / f"{name}.log", folder=tmp_path)
        assert process.wait() == 0, process.text
        assert printed in process.text


def test_the_readme_is_a_screen_and_a_half():
    """Sixty lines are a screen; a picture and tables are beside them."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_architecture_page_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in (ROOT / "src" / "heatproof").iterdir():
        if (package / "__init__.py").exists():
            assert f"{package.name}/" in page
