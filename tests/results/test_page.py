"""The code of docs/bring-your-own/results.md runs, in the order of the page."""

import re
from pathlib import Path

import pytest
from PIL import Image

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-own" / "results.md"


@pytest.mark.usefixtures("timed")
def test_the_code_of_the_page_on_results_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        statements = [line for line in block.splitlines() if line and "import" not in line]
        assert len(statements) <= 5
        exec(compile(block, PAGE.name, "exec"), names)
    assert "gradcam" in capsys.readouterr().out
    assert set(names["merged"].summary()["method"]) == {"ixg", "gradcam", "random", "saliency"}
    assert names["heatmap"].ndim == 2 and len(names["every"]) == 8
    assert len(names["scores"]) == 4
    for name in ("curves", "stability", "maps", "cost"):
        Image.open(f"{name}.png").verify()
    assert Path("ranking.pdf").read_bytes().startswith(b"%PDF")
