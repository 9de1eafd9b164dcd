"""The code in docs/bring-your-own/models.md and the example with CLIP are executed."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import tiny_networks as tiny
import torch
from torch import nn

import heatproof as hp

ROOT = Path(__file__).parent.parent


class Segmenter(nn.Module):
    """A network that returns a dictionary."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return {"mask": x, "scores": self.net(x)}


@pytest.mark.filterwarnings("ignore")
def test_the_code_in_the_page_on_models_runs(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    transformers = tiny.import_transformers()
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "bring-your-own" / "models.md").read_text()
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    names = {
        "net": net.eval(),
        "segmenter": Segmenter(net),
        "vit": tiny.build("transformers:ViT"),
        "swin": tiny.build("transformers:Swin"),
        "processor": transformers.ViTImageProcessor(size={"height": 32, "width": 32}),
        "images": torch.rand(4, 3, 64, 64),
        "labels": [0, 1, 2, 3],
        "photos": torch.rand(2, 3, 32, 32),
    }
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        assert len(block.splitlines()) <= 5
        exec(compile(block, "models.md", "exec"), names)
    assert names["maps"].shape == (2, 32, 32)
    assert names["maps"].max() > 0
    assert set(names["result"].scores["status"]) <= {"ok", "undefined"}
    assert names["model"].layers == ("input", "swin.layernorm", "embedding")


def test_links_of_the_page_exist():
    page = ROOT / "docs" / "bring-your-own" / "models.md"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def tiny_clip(transformers, folder):
    """Build an untrained CLIP with a vocabulary of a few words."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={**sizes, "num_hidden_layers": 2, "vocab_size": 64, "eos_token_id": 1},
        vision_config={**sizes, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    words = [
        "<|startoftext|>",
        "<|endoftext|>",
        *(f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz"),
    ]
    words += list("abcdefghijklmnopqrstuvwxyz")
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt")
    )
    torch.manual_seed(0)
    return transformers.CLIPModel(config).eval(), tokenizer


def import_example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_clip_with_class_names_is_a_classifier(tmp_path):
    pytest.importorskip("transformers")
    transformers = tiny.import_transformers()
    example = import_example("clip_zero_shot")
    clip, tokenizer = tiny_clip(transformers, tmp_path)
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    classes = ["dog", "cat", "bird"]
    model = example.zero_shot(clip, processor, tokenizer, classes)
    assert model.classes == tuple(classes)
    assert (model.size, model.n_classes) == (32, 3)
    x = torch.randn(2, 3, 32, 32)
    text = tokenizer([f"a photo of a {c}" for c in classes], padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = clip(pixel_values=x, **text).logits_per_image
    torch.testing.assert_close(model.logits(x), theirs, rtol=1e-4, atol=1e-5)
    result = hp.evaluate(
        model,
        (torch.rand(4, 3, 32, 32), [0, 1, 2, 0]),
        ["ixg", "gradcam", "attnlrp"],
        ["sds(patches=4)"],
    )
    assert set(result.scores["status"]) == {"ok"}


@pytest.mark.parametrize("registers", [0, 4])
def test_dino_with_class_means_is_a_classifier(registers):
    pytest.importorskip("transformers")
    transformers = tiny.import_transformers()
    example = import_example("dino_class_means")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    sizes |= {"image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    if registers:
        config = transformers.Dinov2WithRegistersConfig(num_register_tokens=registers, **sizes)
        dino = transformers.Dinov2WithRegistersModel(config).eval()
    else:
        dino = transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).eval()
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    pictures = torch.randint(256, (6, 32, 32, 3), dtype=torch.uint8).numpy()
    model = example.by_class_means(
        dino, processor, [(picture, i % 2) for i, picture in enumerate(pictures)], ["cat", "dog"]
    )
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        shown = [processor(p, return_tensors="pt")["pixel_values"] for p in pictures]
        known = dino(pixel_values=torch.cat(shown)).last_hidden_state[:, 0]
        known = known / known.norm(dim=1, keepdim=True)
        queries = dino(pixel_values=x).last_hidden_state[:, 0]
    expected = 20 * torch.stack(
        [torch.cosine_similarity(queries, known[k::2].mean(0)[None]) for k in range(2)], 1
    )
    torch.testing.assert_close(model.logits(x), expected, rtol=1e-4, atol=1e-5)
    result = hp.evaluate(
        model,
        (torch.rand(4, 3, 32, 32), [0, 1, 1, 0]),
        ["ixg", "gradcam", "attnlrp"],
        ["sds(patches=4)"],
    )
    assert set(result.scores["status"]) == {"ok"}
