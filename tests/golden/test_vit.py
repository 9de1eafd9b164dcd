"""Case 7: logits, attention, gradients, relevances and maps of the vision transformer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import heatproof as hp
from heatproof.methods import Explainer, Expression
from heatproof.methods.transformers import attention_evidence, attention_gradients
from heatproof.models.batch import ModelBatch
from heatproof.models.convert import renamed
from heatproof.models.hooks import record_calls
from heatproof.models.vit import vit
from heatproof.tensor.noise import Rng

DATA = Path(__file__).parent / "data"
FINAL_EPS = {
    "new": 1e-6,
    "lrp": 1e-5,
}  # the reference has two networks: one for rollout and Grad-CAM, one for relevance


@pytest.fixture(scope="module")
def model():
    def load(which: str, dtype: torch.dtype = torch.float32) -> hp.Model:
        net = vit(10, size=32, patch=8, dim=48, depth=3, heads=3)
        net.load_state_dict(renamed(load_file(DATA / "model_vit.safetensors")))
        net.get_submodule("norm").eps = FINAL_EPS[which]
        return hp.Model(net.eval().to(dtype), size=32, name="vit")

    return load


@pytest.fixture(scope="module")
def case(golden) -> dict[str, np.ndarray]:
    return golden("case07_vit")


@pytest.fixture(scope="module")
def inputs(case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case["images"]), torch.from_numpy(case["labels"])


def close(ours, stored, rounding=1e-5):
    np.testing.assert_allclose(ours, stored, rtol=1e-4, atol=rounding * np.abs(stored).max())


# Relevance divides by sums near zero. With weights and images moved by half a unit in the last
# place of single precision, relevances of the attention move by up to 7e-5 of the largest, and
# maps from all blocks by 1.6e-5 (twelve draws). The stored ones, in single precision, are off by
# as much; the bounds are three times that, and ours are in double precision.
RELEVANCE = 2e-4
FROM_ALL_BLOCKS = 5e-5


def attentions(model):
    return [model.module.get_submodule(f"block{number}.attn.softmax") for number in (1, 2, 3)]


@pytest.mark.parametrize("which", FINAL_EPS)
def test_logits(case, inputs, model, which):
    np.testing.assert_allclose(
        model(which).logits(inputs[0]),
        case[f"logits_{which}"],
        rtol=0,
        atol=1e-5 * np.abs(case["logits_new"]).max(),
    )


def test_attention_and_its_gradient(case, inputs, model):
    net, (x, target) = model("new"), inputs
    with record_calls(attentions(net), keep=lambda call: call.output) as seen:
        gradients = attention_gradients(net(x), target, list(seen.values()))
    close(torch.stack(list(seen.values()), 1).detach(), case["attention_new"])
    close(gradients[-1], case["lastblock_attn_grad_new"])


def test_gradient_and_relevance_of_every_attention(case, inputs, model):
    x, target = inputs
    evidence = attention_evidence(model("lrp", torch.float64), x.double(), target, start=0)
    gradients, relevances = (torch.stack(blocks, 1) for blocks in evidence)
    close(gradients, case["attn_grad_lrp"])
    close(relevances, case["attn_relevance_lrp"], RELEVANCE)


def test_relevance_in_single_precision(inputs, model):
    """Rounding moves relevances by 1.7e-5 of their sum in twelve draws (see above).

    Errors of a size e are as frequent as 1/e where denominators are near zero; the bound is sixty
    times that.
    """
    x, target = inputs
    _, single = attention_evidence(model("lrp"), x, target, start=0)
    _, double = attention_evidence(model("lrp", torch.float64), x.double(), target, start=0)
    for ours, exact in zip(single, double, strict=True):
        assert (ours - exact).abs().sum() < 1e-3 * exact.abs().sum()


@pytest.mark.parametrize(
    ("which", "method", "stored"),
    [
        ("new", "rollout", "rollout_s1"),
        ("new", "rollout(start=0)", "rollout_s0"),
        ("new", "vit-gradcam", "vit_gradcam"),
        ("lrp", "chefer", "chefer_s1"),
        ("lrp", "chefer(start=0)", "chefer_s0"),
    ],
)
def test_maps(case, inputs, model, deviation, which, method, stored):
    x, target = inputs
    from_all_blocks = method == "chefer(start=0)"
    dtype = torch.float64 if from_all_blocks else torch.float32
    explainer = Explainer(ModelBatch(model(which, dtype), x.to(dtype), target), Rng(0, "012345"))
    maps = explainer.native(Expression.parse(method))
    patches = maps[:, ::8, ::8]
    deviation(method, "the IDSDS code", patches, case[stored])
    close(patches, case[stored], FROM_ALL_BLOCKS if from_all_blocks else 1e-5)
    assert torch.equal(maps, patches.repeat_interleave(8, 1).repeat_interleave(8, 2))
    if f"{stored}_up32" in case:
        close(maps, case[f"{stored}_up32"])
