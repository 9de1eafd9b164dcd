"""Every model of docs/bring-your-own works with all data and all methods there."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.models.vision import import_timm, import_torchvision

PAGE = Path(__file__).parents[2] / "docs/bring-your-own/README.md"
TITLES = ("Models", "Data", "Methods")
PARTS = {
    title: re.findall(
        r"```python\n(.*?)```", PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0], re.S
    )
    for title in TITLES
}
EVALUATION = 'result = hp.evaluate(model, data, methods, ["sds(patches=4)"], batch_size=4)\n'


class MyDataset(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        return Image.fromarray(pixels), i


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the examples take for granted: imports, a network, a folder of images."""
    import_torchvision()
    import captum.attr
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("combinations")
    for i in range(3):
        folder = root / "images" / str(i)
        folder.mkdir(parents=True)
        MyDataset()[i][0].save(folder / "photo.png")
    features = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = ViTConfig(image_size=32, patch_size=8, num_hidden_layers=2, num_labels=3, **sizes)
    return {
        "root": root,
        "np": np,
        "torch": torch,
        "hp": hp,
        "timm": import_timm(),
        "captum": captum,
        "net": nn.Sequential(*features, nn.Linear(32, 3)).eval(),
        "config": config,
        "ViTForImageClassification": ViTForImageClassification,
        "MyDataset": MyDataset,
    }


def test_there_are_thirty_combinations():
    counts = [len(PARTS[title]) for title in TITLES]
    assert counts == [5, 3, 2]


def combinations():
    """Yield all combinations; half of them, in which every pair occurs, are not for `make soak`."""
    for model, data, method in itertools.product(*map(range, (5, 3, 2))):
        parts = PARTS["Models"][model], PARTS["Data"][data], PARTS["Methods"][method]
        marks = [pytest.mark.soak] if (model + data + method) % 2 else []
        yield pytest.param("".join(parts), id=f"{model}-{data}-{method}", marks=marks)


@pytest.mark.parametrize("lines", list(combinations()))
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_combination_runs_in_five_lines(lines, names, monkeypatch):
    monkeypatch.chdir(names["root"])
    code = lines + EVALUATION
    assert code.count("\n") <= 5
    own = dict(names)
    exec(compile(code, "combination", "exec"), own)
    scores = own["result"].scores
    assert set(scores["status"]) == {"ok"}, own["result"].left_out
    assert scores["sample"].nunique() == 3
