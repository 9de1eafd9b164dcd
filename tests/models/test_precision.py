"""A lower precision is refused where results differ, unless the spec accepts that."""

import json
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import spearmanr
from torch import nn

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.models.guards import float32_as, own_precision, restored_settings
from heatproof.plan import backend_choice
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 8},
    "methods": ["ixg", "random"],
    "protocols": ["sds"],
    "keep_maps": 0,
}
LOWER = {"precision": "bfloat16", "approximate": True}
REPORTED = re.compile(r"off by up to (\S+) of their range.* in float32 is (\S+)$")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))


def birds(model, count=8):
    data = hp.load_data("paperbirds:test", limit=count)
    return model.normalize(torch.stack([data.load(i).image for i in range(count)]))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_passes_are_those_of_autocast_and_gradients_stay(precision):
    model = hp.load_model("paperbirds/resnet", precision=precision, approximate=True)
    plain = hp.load_model("paperbirds/resnet")
    x = birds(model)
    dtype = getattr(torch, precision)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        expected = plain.module.eval()(x.contiguous(memory_format=torch.channels_last))
    assert expected.dtype == dtype
    found = model.logits(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=2 * torch.finfo(dtype).eps)
    assert not torch.equal(found, plain.logits(x))
    target = found.argmax(1)
    assert torch.equal(model.gradient(x, target).gradient, plain.gradient(x, target).gradient)
    assert torch.equal(model.activation(x, "final"), plain.activation(x, "final"))


def test_lower_precision_is_refused_where_results_differ():
    arguments = ("paperbirds/resnet", "paperbirds:test", "ixg")
    with pytest.raises(HeatproofError, match=r"cannot run in bfloat16.*approximate: true accepts"):
        hp.evaluate(*arguments, limit=8, precision="bfloat16")
    # its logits are near enough, but the patches are in another order
    with pytest.raises(HeatproofError, match=r"float16: its drops of patches have a rank corr"):
        hp.evaluate(*arguments, limit=8, precision="float16")


def test_what_agrees_is_not_refused_and_measured_too():
    """The mean colour of an image loses next to nothing in float16."""
    net = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    net[0].weight.data = torch.eye(3)[:, :, None, None]
    model = hp.Model(net, size=8, mean=[0.0] * 3, std=[1.0] * 3, name="colour")
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, [0, 1, 2, 3])
    result = hp.evaluate(model, data, "random", "sds(patches=4)", precision="float16")
    assert any("of colour are in float16: on 4 images of this run" in c for c in result.caveats)


def test_the_measured_error_is_in_caveats_provenance_and_report(tmp_path):
    result = hp.run({**SPEC, **LOWER}, tmp_path / "run")
    (text,) = (caveat for caveat in result.caveats if "bfloat16" in caveat)
    start = "passes without gradients of paperbirds/resnet are in bfloat16: "
    assert text.startswith(f"{start}on 8 images of this run its logits are off by up to ")
    error, correlation = map(float, REPORTED.search(text).groups())

    model = hp.load_model("paperbirds/resnet")
    x = birds(model)
    logits, drops = [], []
    for lower in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            found = model.module.eval()(x).float()
            target = found.argmax(1) if not lower else logits[0].argmax(1)
            of_patches = []
            for row in range(4):
                for column in range(4):
                    removed = x.clone()
                    removed[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 0
                    scores = model.module(removed).float()
                    of_patches.append((found - scores).gather(1, target[:, None])[:, 0])
        logits.append(found)
        drops.append(torch.stack(of_patches, 1).flatten().numpy())
    width = (logits[0].max() - logits[0].min()).item()
    assert error == pytest.approx((logits[1] - logits[0]).abs().max().item() / width, rel=0.15)
    assert correlation == pytest.approx(spearmanr(*drops).statistic, abs=0.01)

    (facts,) = result.provenance.models
    assert (facts.backend, start + facts.backend_reason) == ("bfloat16", text)
    assert facts.output_advice == text
    page = result.report(tmp_path / "report")
    assert text.removeprefix("p") in page.read_text(encoding="utf-8")


def test_scores_and_keys_are_those_of_the_lower_precision(tmp_path):
    lower, plain = (
        hp.run({**SPEC, **options}, tmp_path / str(i)) for i, options in enumerate((LOWER, {}))
    )
    assert len(lower.scores) == len(plain.scores) == 16
    assert not np.allclose(lower.scores["value"], plain.scores["value"])
    keys = [{key for task in run.plan.tasks for key in task.records} for run in (lower, plain)]
    assert keys[0] and not keys[0] & keys[1]


def test_a_run_keeps_its_precision(tmp_path, monkeypatch):
    before = hp.run({**SPEC, **LOWER}, tmp_path)
    longer = {**SPEC, **LOWER, "data": {**SPEC["data"], "limit": 12}}
    with monkeypatch.context() as patch:
        patch.setattr(backend_choice, "_measure", None)  # nothing is measured again
        after = hp.run(longer, tmp_path)
    assert {f.backend_reason for f in before.provenance.models} == {
        f.backend_reason for f in after.provenance.models
    }
    with pytest.raises(HeatproofError, match="differs in: precision"):
        hp.run(SPEC, tmp_path)
    arguments = ("paperbirds/resnet", "paperbirds:test", "ixg")
    hp.evaluate(*arguments, limit=8, out=tmp_path / "python", **LOWER)
    with pytest.raises(HeatproofError, match="differs in: precision"):
        hp.evaluate(*arguments, limit=8, out=tmp_path / "python")
    hp.run(SPEC, tmp_path / "plain")
    hp.run({**SPEC, "precision": "float32"}, tmp_path / "plain")  # the default by its name


def test_precision_on_the_command_line(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(SPEC))
    runner = CliRunner()
    arguments = ["run", str(spec), "-o", str(tmp_path / "run"), "--precision", "bfloat16"]
    refused = runner.invoke(main, arguments)
    assert refused.exit_code == 2 and "cannot run in bfloat16" in refused.output
    done = runner.invoke(main, [*arguments, "--approximate"])
    assert done.exit_code == 0
    assert "rank correlation of the drops" in " ".join(done.output.split())
    planned = runner.invoke(main, ["plan", str(spec), "--precision", "bfloat16", "--approximate"])
    assert "Backend: bfloat16 (on 8 images of this run" in " ".join(planned.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision: found 'half'"),
        ({"precision": "bfloat16", "backend": "fused"}, "fused computes in single precision"),
        ({"approximate": True}, "approximate goes with a lower precision"),
    ],
)
def test_what_does_not_go_together_is_named(options, message):
    with pytest.raises(HeatproofError, match=message):
        make_spec({**SPEC, **options})


def test_python_arguments_are_checked_too():
    arguments = ("paperbirds/resnet", "paperbirds:test", "ixg")
    with pytest.raises(HeatproofError, match='unknown precision "half"'):
        hp.evaluate(*arguments, precision="half")
    with pytest.raises(HeatproofError, match="the backend fused computes in single precision"):
        hp.evaluate(*arguments, precision="float16", backend="fused")
    model = hp.load_model("paperbirds/resnet", precision="bfloat16", approximate=True)
    assert model.with_precision("float32").backend == "auto"


def test_tf32_is_refused_where_there_is_none():
    with pytest.raises(HeatproofError, match="TF32 is a mode of NVIDIA graphics cards, and it is"):
        open_spec(make_spec({**SPEC, "precision": "tf32", "approximate": True}))


def test_numbers_that_do_not_fit_are_refused_also_where_differences_are_accepted():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        net[0].weight.mul_(1e4).abs_()
        net[3].weight.mul_(1e3).abs_()  # more than float16 holds
    model = hp.Model(net, size=16, name="large")
    model = model.with_precision("float16", approximate=True)
    with pytest.raises(HeatproofError, match=r"large cannot run in float16.*(nan|inf)"):
        model.logits(torch.ones(2, 3, 16, 16))


def test_weights_of_another_type_are_not_shortened():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    model = hp.Model(net, size=16, name="double").with_precision("bfloat16", approximate=True)
    with pytest.raises(HeatproofError, match="its weights are float64, and only float32 is"):
        model.logits(torch.ones(2, 3, 16, 16, dtype=torch.float64))


def modes() -> list[str]:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    found = [m.fp32_precision for m in (matmul, conv, torch.backends.mkldnn.matmul)]
    return ["ieee" if mode == "none" else mode for mode in found]


@pytest.fixture(params=["untouched", "older", "newer"])
def tf32_is_on(request):
    """Allow TF32 by either interface of PyTorch; the older one raises after the newer was used."""
    conv = torch.backends.cudnn.allow_tf32
    if request.param == "older":
        torch.set_float32_matmul_precision("medium")
    elif request.param == "newer":
        torch.backends.fp32_precision = "tf32"
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield request.param
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = conv


def test_every_pass_is_in_full_single_precision(tf32_is_on):
    before = modes()
    assert "tf32" in before  # PyTorch allows it in convolutions by default
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3)

        def forward(self, x):
            seen.append(modes())
            return self.conv(x).mean((2, 3)) if x.mean() < 2 else x  # cannot be traced

    model = hp.Model(Net(), size=16)
    seen.clear()
    x = torch.rand(2, 3, 16, 16)
    model.logits(x)
    model.gradient(x, torch.tensor([0, 1]))
    with own_precision():
        seen.append(modes())
    assert len(seen) >= 3 and {mode for found in seen for mode in found} == {"ieee"}
    assert modes() == before
    with float32_as(tf32=True):
        assert modes()[:2] == ["tf32", "tf32"]
    assert modes() == before


def test_a_method_may_set_them_by_either_interface(tf32_is_on):
    before = modes()
    with restored_settings():
        torch.backends.fp32_precision = "ieee"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert modes() == before
