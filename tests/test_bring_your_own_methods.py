"""The code in the page on methods of other libraries is executed."""

import re
from pathlib import Path

import pytest

from heatproof.models.vision import import_torchvision

PAGE = Path(__file__).parent.parent / "docs" / "bring-your-own" / "methods.md"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_in_the_page_runs(tmp_path, monkeypatch, capsys):
    import_torchvision()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert names["maps"].shape == (8, 32, 32)
    expected = [
        "Saliency",
        "LayerGradCam",
        "EigenCAM",
        "LayerCAM",
        "Gradient",
        "lrp",
        "saliency",
        "file:maps",
    ]
    for name in [*expected, "captum occlusion", "my ig", "absolute"]:
        assert name in printed
    assert len(blocks) == 9


def test_every_link_in_the_page_exists():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
