"""Code in the page on heads, targets, channels and sizes is executed."""

import re
from pathlib import Path

import torch
import yaml

import heatproof as hp
from heatproof.plan.spec import make_spec

PAGE = Path(__file__).parent.parent.parent / "docs" / "bring-your-own" / "heads.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_code_of_the_page_runs(capsys):
    names: dict = {}
    seen = []
    for block in blocks("python"):
        assert len(block.splitlines()) <= 5
        exec(compile(block, str(PAGE), "exec"), names)
        if "model" in names:
            seen.append((names["model"].head, names["model"].image_shape))
    assert "binary 2\n" in capsys.readouterr().out
    assert seen == [
        ("binary", (3, 32, 32)),
        ("sigmoid", (3, 32, 32)),
        ("softmax", (3, 64, 64)),
        ("softmax", (1, 32, 32)),
        ("softmax", (3, 96, 160)),
    ]
    assert set(names["result"].scores["status"]) <= {"ok", "undefined"}
    assert names["maps"].shape == (2, 96, 160)


def test_the_specs_of_the_page_are_valid():
    heads, targets = (make_spec(yaml.safe_load(spec)) for spec in blocks("yaml"))
    assert heads.models[0].head == "sigmoid"
    assert [entry.target for entry in targets.models] == ["label", "prediction - runner-up"]


def test_an_image_with_several_labels_is_given_once_for_each():
    call = re.search(r"`(hp\.TensorData\(images\[\[.*?\))`", PAGE.read_text(encoding="utf-8"))
    assert call is not None
    data = eval(call[1], {"hp": hp, "images": torch.rand(2, 3, 8, 8)})
    assert data.labels == [2, 4, 0]
    assert data.ids == ["a as 2", "a as 4", "b as 0"]
