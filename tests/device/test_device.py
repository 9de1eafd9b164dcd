"""On an accelerator, everything gives what it gives on the processor, and memory is the device's.

``make test-device`` runs these tests on the pretend accelerator of this directory, and
``HEATPROOF_DEVICE=cuda make test-device`` on a graphics card.
"""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from pathlib import Path

import accelerator
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import heatproof as hp
from heatproof.baselines import BASELINES, Baseline
from heatproof.cli import main
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import METHODS
from heatproof.models.backends import NAMES as BACKENDS
from heatproof.platform import memory_in_use, peak_memory_since, reset_peak_memory
from heatproof.protocols import PROTOCOLS
from heatproof.runs.format import Origin
from heatproof.runs.origins import origins_by_view
from heatproof.tensor.noise import Rng
from heatproof.training.distributed import init_distributed

HERE = str(Path(__file__).parent)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MODELS = ["resnet", "vgg", "vit", "bcos", "bagnet"]
FEW = {"masks": 8, "steps": 2, "n": 2, "designs": 2, "copies": 2, "turns": 1}
COARSE = ("kernelshap", "lime", "hsic", "sobol")  # over 2×2 cells
GRIDS = ("gridpg", "difull", "dipart")
OF_PROTOCOLS = {
    "deletion": "steps=3, baseline=blur",
    "insertion": "steps=3, baseline=uniform",
    "srg": "steps=3",
    "ids": "steps=3, updated=true, baseline=mean",
    "road": "steps=3",
    "soundness": "step=0.25, baseline=zero",
    "completeness": "steps=3, baseline=zero",
    "sds": "baseline=random-color",
    **dict.fromkeys(GRIDS, "grids=2, confidence=0.5"),
}
# of the largest value: sums are in another order on a graphics card
TOLERANCE = 1e-5 if accelerator.IS_FAKE else 1e-3
# On the ViT an input that is moved by 1e-7 moves Chefer's maps by 5e-4, and those of CAMs with
# quotients by up to 7e-5.
SENSITIVE = {"chefer": 5e-3, **dict.fromkeys(("gradcam++", "xgradcam", "sg-cam++"), 1e-4)}
pretend = pytest.mark.skipif(not accelerator.IS_FAKE, reason="of the pretend accelerator")


@pytest.fixture(scope="session")
def device() -> str:
    if why := accelerator.why_missing():
        pytest.skip(why)
    return accelerator.use_device()


def paperbirds(name: str, device: str) -> hp.Model:
    return hp.load_model(f"paperbirds/{name}", device=device)


def few(method) -> str:
    """Return a method with as few passes as it takes."""
    options = [
        f"{name}={value}"
        for name, value in FEW.items()
        if name in method.parameters and type(method.parameters[name].default) is int
    ]
    options += ["cells=2"] * (method.id in COARSE)
    options += ["size=16, stride=16"] * (method.id == "occlusion")
    return f"{method.id}({', '.join(options)})" if options else method.id


def images(count: int = 3) -> Tensor:
    birds = hp.load_data("paperbirds:test", limit=count)
    return torch.stack([birds.load(i).image for i in range(count)])


def assert_close(
    ours: Tensor, expected: Tensor, tolerance: float = TOLERANCE, name: str = ""
) -> None:
    scale = max(1e-30, expected.abs().max().item())
    apart = (ours.cpu() - expected).abs().max().item()
    assert apart <= tolerance * scale, f"{name} {apart / scale:.1e}"


@pytest.mark.parametrize("name", MODELS)
def test_every_method_gives_the_maps_of_the_processor(device, name):
    there, here = paperbirds(name, device), paperbirds(name, "cpu")
    families = set()
    for entry in METHODS:
        if entry.source is not None or entry.needs & {"silhouette"}:
            continue
        maps = []
        for model in (there, here):
            try:
                found = hp.explain(
                    model, model.normalize(images()), [0, 1, 2], few(entry), reference=images()
                )
            except NotApplicable:
                continue
            assert found.device.type == model.device.type, entry.id
            maps.append(found)
        assert len(maps) != 1, f"{entry.id} applies on one of the devices only"
        if maps:
            families.add(entry.family)
            sensitive = SENSITIVE.get(entry.id, 0) if name == "vit" else 0
            assert_close(*maps, max(TOLERANCE, sensitive), entry.id)
    assert {"gradient", "perturbation"} <= families


def test_every_baseline_fills_as_on_the_processor(device):
    there, here = paperbirds("resnet", device), paperbirds("resnet", "cpu")
    for entry in BASELINES:
        baseline = Baseline.parse("featurevis(steps=2)" if entry.id == "featurevis" else entry.id)
        filled = []
        for model in (there, here):
            x = model.normalize(images())
            removed = torch.arange(64, device=x.device) % 3 == 0
            prepared = baseline.prepare(model, iter([x])) if entry.prepare else None
            filled.append(
                baseline.fill(
                    x,
                    model,
                    Rng(0, ["a", "b", "c"], x.device),
                    removed.expand(3, 64, 64),
                    prepared,
                )
            )
        assert filled[0].device.type == there.device.type, entry.id
        assert_close(*filled)


def scores(model: hp.Model, protocols: list[str], limit: int) -> pd.DataFrame:
    methods = ["ixg", "gradcam", "random"]
    reference = hp.load_data("paperbirds:train", limit=4)
    options = {"limit": limit, "reference": reference, "batch_size": 4}
    return hp.evaluate(model, "paperbirds:test", methods, protocols, **options).scores


def assert_same_scores(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    columns = [
        name for name in ("protocol", "method", "sample", "status", "reason") if name in found
    ]
    assert len(found) == len(expected) > 0
    pd.testing.assert_frame_equal(found[columns], expected[columns])
    pd.testing.assert_series_equal(found["value"], expected["value"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("grids", [False, True])
def test_every_protocol_gives_the_scores_of_the_processor(device, grids):
    protocols = [
        f"{entry.id}({OF_PROTOCOLS[entry.id]})" if entry.id in OF_PROTOCOLS else entry.id
        for entry in PROTOCOLS
        if entry.cls.source is None and (entry.id in GRIDS) == grids
    ]
    limit = 40 if grids else 2
    found, expected = (
        scores(paperbirds("vgg" if grids else "resnet", place), protocols, limit)
        for place in (device, "cpu")
    )
    assert {name.partition("(")[0] for name in found["protocol"]} == {
        name.partition("(")[0] for name in protocols
    }
    assert found["value"].notna().mean() > 0.7
    assert_same_scores(found, expected)


def test_random_draws_are_those_of_the_processor(device):
    there, here = Rng(3, ["a", "b"], device), Rng(3, ["a", "b"])
    for draw in ("normal", "uniform", "once"):
        drawn = getattr(there, draw)("test", (4, 5))
        assert drawn.device.type == torch.device(device).type
        assert torch.equal(drawn.cpu(), getattr(here, draw)("test", (4, 5)))


def tiny(device: str) -> hp.Model:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        )
    return hp.Model(net.to(device), size=16, classes=["a", "b", "c"], name="tiny")


def test_fine_tuning_gives_the_weights_of_the_processor(device, tmp_path):
    both = []
    for place in (device, "cpu"):
        result = tuned(place, tmp_path / place.replace(":", "-"))
        both.append((result, hp.load_model(tiny("cpu"), weights=result.weights).module))
    (there, ours), (here, expected) = both
    assert not torch.equal(expected[0].weight, tiny("cpu").module[0].weight)
    for a, b in zip(ours.parameters(), expected.parameters(), strict=True):
        assert_close(a, b.detach(), 10 * TOLERANCE)
    assert [e.loss for e in there.metrics[1:]] == pytest.approx(
        [e.loss for e in here.metrics[1:]], rel=1e-3
    )


TWO_PROCESSES = """
import os, sys
sys.path.insert(0, sys.argv[2])
import accelerator, test_device as tests
import torch, heatproof as hp

device = accelerator.use_device().partition(":")[0]
if accelerator.IS_FAKE:
    import collectives
    collectives.register()
torch.set_num_threads(1)
place = f"{device}:{int(os.environ['RANK']) % torch.accelerator.device_count()}"
torch.accelerator.set_device_index(torch.device(place).index)
result = tests.tuned(place, sys.argv[1])
assert next(tests.tiny(place).module.parameters()).device == torch.device(place)
print(result.metrics[-1].accuracy, result.metrics[-1].worst_all)
"""


def tuned(place: str, out: object) -> hp.FineTuned:
    noise = torch.rand(24, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(noise, [i % 3 for i in range(24)])
    val = hp.TensorData(1 - noise, [i % 3 for i in range(24)], [f"v{i}" for i in range(24)])
    options = {"epochs": 2, "batch_size": 8, "lr": 0.05, "worst_images": 8}
    return hp.finetune(tiny(place), data, val=val, out=out, precision="float32", **options)


def test_two_processes_with_a_device_each_reach_the_weights_of_one(device, tmp_path):
    if not accelerator.IS_FAKE and torch.accelerator.device_count() < 2:
        pytest.skip("there is one device")
    (tmp_path / "script.py").write_text(TWO_PROCESSES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "two"), HERE]
    both = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(texts)
    one = tuned("cpu", tmp_path / "one")
    last = one.metrics[-1]
    assert {text.splitlines()[-1] for text in texts} == {f"{last.accuracy} {last.worst_all}"}
    alone, together = (
        hp.load_model(tiny("cpu"), weights=tmp_path / name / one.weights.name).module
        for name in ("one", "two")
    )
    for a, b in zip(together.parameters(), alone.parameters(), strict=True):
        assert_close(a.detach(), b.detach(), 10 * TOLERANCE)


@pretend
def test_several_processes_are_refused_where_they_cannot_communicate(device, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(HeatproofError, match="several processes cannot train on fake"),
        init_distributed(torch.device("fake:0")),
    ):
        pass


def test_dask_workers_compute_on_the_device(device, tmp_path, monkeypatch):
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    preload = []
    if accelerator.IS_FAKE:  # every worker has the pretend accelerator, too
        preload = [f"{HERE}/preload.py"]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    spec = {
        "models": ["paperbirds/resnet"],
        "data": {"name": "paperbirds", "split": "test", "limit": 80},
        "methods": ["ixg", "gradcam", "rise(masks=8)"],
        "protocols": ["sds"],
        "backend": "eager",
    }
    options = {"engine": "dask", "workers": 2}
    with dask.config.set({"distributed.worker.preload": preload}):
        there = hp.run(spec, tmp_path / "dask", device, **options)
    here = hp.run(spec, tmp_path / "local", device)
    pd.testing.assert_frame_equal(there.scores, here.scores)
    kinds = {origin.device for run in (there, here) for origin in origins(run)}
    assert {kind.partition(" ")[0] for kind in kinds} == {device.partition(":")[0]}


def origins(run: hp.Result) -> list[Origin]:
    found = origins_by_view(run.store).values()
    return [origin for by_digest in found for origin in by_digest.values() if origin is not None]


def test_lower_precision_is_measured_on_the_device(device):
    arguments = ("paperbirds:test", ["ixg", "random"], ["sds"])
    lower = {"precision": "bfloat16", "approximate": True}
    found, expected = (
        hp.evaluate(paperbirds("resnet", place), *arguments, limit=8, **lower)
        for place in (device, "cpu")
    )
    for result in (found, expected):
        (text,) = (caveat for caveat in result.caveats if "bfloat16" in caveat)
        assert "off by up to 0.0e+00" not in text
    if accelerator.IS_FAKE:  # the kernels are those of the processor
        assert_same_scores(found.scores, expected.scores)
    with pytest.raises(HeatproofError, match="cannot run in bfloat16"):
        hp.evaluate(paperbirds("resnet", device), *arguments, limit=8, precision="bfloat16")


@pretend
def test_tf32_is_of_graphics_cards(device):
    model = paperbirds("resnet", device).with_precision("tf32", approximate=True)
    with pytest.raises(HeatproofError, match="TF32 is a mode of NVIDIA graphics cards, and it is"):
        model.logits(model.normalize(images()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_is_right_or_refused(device, backend):
    arguments = ("paperbirds:test", ["ixg", "occlusion(size=16, stride=16)"], ["sds"])
    expected = hp.evaluate(paperbirds("resnet", "cpu"), *arguments, limit=4).scores
    try:
        result = hp.evaluate(paperbirds("resnet", device), *arguments, limit=4, backend=backend)
    except HeatproofError as error:
        assert backend in ("compile", "openvino") and backend in str(error)  # noqa: PT017
    else:
        assert_same_scores(result.scores, expected)


def test_another_device_is_chosen_on_the_command_line(device, tmp_path):
    count = torch.accelerator.device_count()
    last = f"{device.partition(':')[0]}:{count - 1}"
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "models: [paperbirds/resnet]\ndata: {name: paperbirds, split: test, limit: 4}\n"
        "methods: [ixg, rise(masks=8)]\nprotocols: [sds]\n"
    )
    frames = []
    for place in (last, "cpu"):
        out = tmp_path / place.replace(":", "-")
        done = CliRunner().invoke(main, ["run", str(spec), "-o", str(out), "--device", place])
        assert done.exit_code == 0, done.output
        frames.append(hp.Result.load(out).scores)
    assert_same_scores(*frames)
    missing = f"{device.partition(':')[0]}:{count}"
    refused = CliRunner().invoke(main, ["run", str(spec), "--device", missing])
    assert refused.exit_code == 2 and "cannot be used here" in refused.output


def test_memory_is_that_of_the_device(device):
    place = torch.device(device)
    before = memory_in_use(place)
    assert reset_peak_memory(place)
    kept = torch.empty(2**20, device=place)
    more = torch.empty(2**20, device=place)
    del more
    assert memory_in_use(place) - before == kept.nbytes == 2**22
    assert peak_memory_since(place) - before == 2**23


def test_images_are_copied_while_the_device_computes(device):
    model = paperbirds("resnet", device)
    before = accelerator.extension().late_copies() if accelerator.IS_FAKE else 0
    x = model.normalize(images())
    assert_close(x, paperbirds("resnet", "cpu").normalize(images()))
    if accelerator.IS_FAKE:
        assert accelerator.extension().late_copies() == before + 1


@pretend
def test_the_batch_is_halved_when_the_device_has_no_more_memory(device):
    arguments = ("paperbirds:test", ["ixg", "gradcam"], ["sds"])
    expected = hp.evaluate(paperbirds("resnet", "cpu"), *arguments, limit=16, batch_size=2).scores
    model = paperbirds("resnet", device)
    refused = accelerator.extension().refused(0)
    with accelerator.memory_for(12 * 2**20):
        found = hp.evaluate(model, *arguments, limit=16, batch_size=16).scores
    assert accelerator.extension().refused(0) > refused
    assert_same_scores(found, expected)


@pretend
def test_what_does_not_fit_with_one_image_is_an_error(device):
    model = paperbirds("resnet", device)
    with accelerator.memory_for(2**17), pytest.raises(HeatproofError, match="not enough memory"):
        hp.evaluate(model, "paperbirds:test", ["ixg"], ["sds"], limit=2)


@pretend
def test_the_pretend_accelerator_behaves_like_one(device):
    x = torch.rand(3, 4)
    there, second = x.to("fake:0"), x.to("fake:1")
    assert (there.device.index, second.device.index) == (0, 1)
    for other in (x, second):
        with pytest.raises(RuntimeError, match="same device"):
            there + other
    copied = copy.deepcopy(nn.Linear(2, 2).to("fake:1"))
    assert copied.weight.device == torch.device("fake:1")
    pinned = x.pin_memory()
    expected = x.clone()
    late = pinned.to("fake", non_blocking=True)
    pinned.zero_()  # before the copy is made: a race, as on a graphics card
    assert not torch.equal(late.cpu(), expected) and torch.equal(there.cpu(), expected)
    with accelerator.memory_for(1000), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1000, device="fake:0")
    torch.empty(1000, device="fake:0")
