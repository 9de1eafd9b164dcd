"""Case 7: the vision transformer gives the reference's logits and attention."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import heatproof as hp
from heatproof.models.vit import vit

DATA = Path(__file__).parent / "data"


def our_name(key: str) -> str:
    """timm's names in ours: blocks count from 1, and the tokens are a stage."""
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", key)
    if block:
        return f"block{int(block[1]) + 1}.{block[2]}"
    return f"tokens.{key.removeprefix('patch_embed.')}" if key.startswith(("patch_embed", "cls_token", "pos_embed")) else key


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    made = vit(10, size=32, patch=8, dim=48, depth=3, heads=3)
    made.load_state_dict({our_name(key): value for key, value in load_file(DATA / "model_vit.safetensors").items()})
    return made.eval()


def test_logits_and_attention(golden, net):
    case, seen = golden("case07_vit"), []
    for number in (1, 2, 3):
        net.get_submodule(f"block{number}.attn.softmax").register_forward_hook(lambda _, __, out: seen.append(out))
    model = hp.Model(net, size=32, name="vit")
    seen.clear()
    logits = model.logits(torch.from_numpy(case["images"]))
    np.testing.assert_allclose(logits, case["logits_new"], rtol=0, atol=1e-5 * np.abs(case["logits_new"]).max())
    attention: Tensor = torch.stack(seen, 1)
    np.testing.assert_allclose(attention, case["attention_new"], rtol=0, atol=1e-5)
