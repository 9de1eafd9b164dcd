"""The code in the page on methods of other libraries is executed."""

import re
from pathlib import Path
from typing import Any

import pytest

from heatproof.models.vision import import_torchvision

PAGE = Path(__file__).parent.parent / "docs" / "bring-your-own" / "methods.md"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_in_the_page_runs(tmp_path, monkeypatch, capsys):
    import_torchvision()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    evaluated: list[set[str]] = []
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        names.pop("result", None)
        exec(compile(block, PAGE.name, "exec"), names)
        if "result" in names:
            assert set(names["result"].scores["status"]) == {"ok"}, names["result"].left_out
            evaluated.append(set(names["result"].scores["method"]))
    named = {"grad-cam:HiResCAM", "torchcam:LayerCAM(target_layer=0)", "zennit:EpsilonPlusFlat"}
    assert evaluated == [
        {"gradcam", "captum:GradientShap(baselines=blur, n_samples=20)", *named},
        {"ixg", "Saliency", "LayerGradCam", "captum occlusion"},
        {"gradcam", "GradCAM", "EigenCAM"},
        {"LayerCAM"},
        {"Gradient", "lrp"},
        {"quantus saliency"},
        {"my ig", "plain", "absolute"},
        {"file:maps"},
    ]
    assert names["maps"].shape == (4, 32, 32)
    assert "my ig" in capsys.readouterr().out


def test_every_link_in_the_page_exists():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
