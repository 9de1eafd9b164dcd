"""Case 8: BagNet heat maps and B-cos contribution maps."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import heatproof as hp
from heatproof.methods.intrinsic import features
from heatproof.models.bagnet import bagnet
from heatproof.models.bcos import BcosConv, BcosHead, Encode, bcos

DATA = Path(__file__).parent / "data"
UNUSED = ("running_mean", "num_batches_tracked")  # a norm about zero has no mean


def sequence():
    """Build a network as the official package does.

    It has other exponents, the larger of two filters, and a temperature.
    """
    layers = {
        "encode": Encode(),
        "0": BcosConv(6, 16),
        "1": nn.AvgPool2d(2),
        "2": BcosConv(16, 24, stride=2, b=1.5),
        "3": BcosConv(24, 24, max_out=2),
        "4": BcosHead(24, 10, logit_bias=-2, temperature=2e-4),
    }
    return nn.Sequential(OrderedDict(layers))


NETS = {
    "bagnet": lambda: bagnet(10, stem=16, planes=(8, 12, 12, 16), kernels=(3, 3, 1, 1)),
    "bcos": lambda: bcos(10, widths=(12, 24, 48), strides=(1, 2, 2), stem=1),
    "bcosseq": sequence,
}


@pytest.fixture(scope="module")
def model():
    def load(name):
        net, state = NETS[name](), load_file(DATA / f"model_{name}.safetensors")
        known = {
            k.replace(".linear", ""): v
            for k, v in state.items()
            if name == "bagnet" or not k.endswith(UNUSED)
        }
        net.load_state_dict(known)
        space = {} if name == "bagnet" else {"mean": (0, 0, 0), "std": (1, 1, 1)}
        return hp.Model(net.eval(), size=32, name=name, **space)

    return load


def close(ours, stored, share=1e-5):
    np.testing.assert_allclose(
        ours.detach().numpy(), stored, rtol=0, atol=share * np.abs(stored).max()
    )


def test_bagnet(golden, model, deviation):
    case, net = golden("case08_bagnet"), model("bagnet")
    x, target = torch.from_numpy(case["images"]), torch.from_numpy(case["labels"])
    assert (net.module.field, net.module.stride) == (9, 4)
    close(net.logits(x), case["logits"])
    dense = net.module.fc(features(net, x).permute(0, 2, 3, 1))
    close(dense, case["dense_logits"])
    close(dense.mean((1, 2)), case["logits"])
    maps = hp.explain(net, x, target, "bagnet")
    deviation("bagnet", "the IDSDS code", maps, case["heatmap"])
    close(maps, case["heatmap"])
    close(maps[:, 4:28:4, 4:28:4], case["dense_logits"][np.arange(6), :, :, case["labels"]])


@pytest.mark.parametrize(
    ("name", "prefix", "bias"), [("bcos", "", np.log(1 / 9)), ("bcosseq", "seq__", -2.0)]
)
def test_bcos(golden, model, deviation, name, prefix, bias):
    case, net = golden("case08_bcos"), model(name)
    x, target = torch.from_numpy(case["images_01"]), torch.from_numpy(case["labels"])
    close(net.logits(x), case[f"{prefix}logits"])
    maps = hp.explain(net, x, target, "bcos")
    deviation("bcos", "the IDSDS code", maps, case[f"{prefix}contribution_map"])
    close(maps, case[f"{prefix}contribution_map"])
    close(maps.sum((1, 2)) + bias, case[f"{prefix}logits"][np.arange(6), case["labels"]])
