"""The code in the page on data is executed."""

import re
from pathlib import Path

import pytest
from PIL import Image

from heatproof.cli import main
from heatproof.data.catalog import DATA

PAGE = (Path(__file__).parent.parent / "docs" / "bring-your-own" / "data.md").read_text()


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (annotations,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    Path("objects.json").write_text(annotations)
    Path("photos").mkdir()
    Image.new("RGB", (48, 40), "grey").save("photos/first.png")
    names: dict[str, object] = {}
    shared, *blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(shared, "data.md", "exec"), names)
    for block in blocks:
        assert len([line for line in block.splitlines() if line.strip()]) <= 5
        names.pop("result", None)
        exec(compile(block, "data.md", "exec"), names)
        assert set(names["result"].scores["status"]) == {"ok"}, names["result"].left_out


def test_the_page_names_every_source_of_files():
    named = re.findall(r"^\| `([a-z-]+):", PAGE, re.MULTILINE)
    assert {"folder", "tiles", "csv", "parquet", "webdataset", "numpy", "hf-dataset"} == set(named)
    assert all(name in DATA for name in named)


def test_the_command_of_the_page_exists():
    (line,) = re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL)
    options = {option for p in main.commands[line.split()[1]].params for option in p.opts}
    assert set(re.findall(r" (--[a-z-]+)", line)) <= options
