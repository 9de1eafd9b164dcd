import os
import sys
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.models.nets import SHIPPED
from heatproof.models.weights_file import metadata
from heatproof.models.zoo import load_fine_tuned

FILE = """
import torch
from torch import nn
import heatproof as hp

def build():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    return hp.Model(nn.Sequential(*layers), size=16)

def plain():
    return build().module

number = lambda: 7
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE)
    return path


def test_a_model_is_built_by_a_user_file(file):
    model = hp.load_model(f"file:{file}:build")
    assert model.size == 16
    assert model.name == f"file:{file}:build"
    assert hp.load_model(f"file:{file}:plain").size == 224


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paperbirds/resnt", r"did you mean paperbirds/resnet"),
        ("resnet", r"unknown model"),
        ("file:nowhere.py:build", "there is no file .*nowhere.py"),
        ("file:{file}:biuld", "did you mean build"),
        ("file:{file}:number", "must return a torch.nn.Module or an hp.Model; it returned int"),
    ],
)
def test_an_unknown_name_is_reported_with_suggestions(file, name, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_model(name.format(file=file))


def test_user_weights_are_loaded(file, tmp_path):
    model = hp.load_model(f"file:{file}:build")
    state = {k: v + 1 for k, v in model.module.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pth")
    for weights in ("w.safetensors", "w.pth"):
        loaded = hp.load_model(f"file:{file}:build", weights=tmp_path / weights)
        assert all(torch.equal(v, state[k]) for k, v in loaded.module.state_dict().items())


def test_weights_that_do_not_fit_are_listed(file, tmp_path):
    save_file({"0.weight": torch.zeros(1), "strange": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(
        HeatproofError,
        match=r"0.weight is \(1,\), not \(4, 3, 3, 3\).*missing 0.bias.*unexpected strange",
    ):
        hp.load_model(f"file:{file}:build", weights=tmp_path / "w.safetensors")


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


def test_a_pickle_that_runs_code_is_refused(file, tmp_path):
    torch.save({"0.weight": Evil()}, tmp_path / "w.pth")
    with pytest.raises(HeatproofError, match="cannot read weights"):
        hp.load_model(f"file:{file}:build", weights=tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "content"),
    [("w.safetensors", b"junk"), ("w.pth", b"junk"), ("w.txt", b""), ("none.pth", None)],
)
def test_a_broken_weights_file_is_reported(file, tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(HeatproofError, match=name):
        hp.load_model(f"file:{file}:build", weights=tmp_path / name)


def test_weights_are_loaded_into_any_kind_of_model(file, tmp_path):
    model = hp.load_model(f"file:{file}:build")
    state = {k: v + 1 for k, v in model.module.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    hp.load_model(model, weights=tmp_path / "w.safetensors")
    assert all(torch.equal(v, state[k]) for k, v in model.module.state_dict().items())
    with pytest.raises(HeatproofError, match="no weights file"):
        hp.load_model(model.module, weights=tmp_path / "none.safetensors")


def test_an_edited_file_is_read_again(file):
    before = hp.load_model(f"file:{file}:build")
    file.write_text(FILE.replace("size=16", "size=18").replace("nn.ReLU()", "nn.Tanh()"))
    after = hp.load_model(f"file:{file}:build")
    assert (before.size, after.size) == (16, 18)
    assert before.fingerprint() != after.fingerprint()


def test_a_file_and_its_neighbour_that_are_edited_within_a_second_are_read_again(file, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    beside = file.with_name("beside_net.py")
    stamp = file.stat().st_mtime

    def load(size: int) -> int:
        beside.write_text(f"size = {size}")
        content = FILE.replace("size=16", "size=beside_net.size")
        file.write_text(f"import beside_net  # {size}\n{content}")
        for path in (file, beside):
            os.utime(path, (stamp, stamp))
        return hp.load_model(f"file:{file}:build").size

    assert (load(16), load(18)) == (16, 18)
    assert not sys.dont_write_bytecode


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nowhere", "net.py cannot be imported: ModuleNotFoundError"),
        ("def build(): 1 / 0", "ZeroDivisionError"),
    ],
)
def test_failing_user_code_is_reported(file, content, message):
    file.write_text(content)
    with pytest.raises(HeatproofError, match=message):
        hp.load_model(f"file:{file}:build")


@pytest.mark.parametrize("device", ["cdua", "cuda:77"])
def test_an_unavailable_device_is_reported(device):
    with pytest.raises(HeatproofError, match=f'device "{device}" cannot be used here'):
        hp.load_model("paperbirds/resnet", device=device)


def test_a_file_without_a_function_name_is_reported(file):
    with pytest.raises(HeatproofError, match="does not say what to take from the file"):
        hp.load_model("file:net.py")


def test_a_file_can_import_its_neighbour(file):
    (file.parent / "neighbour_of_net.py").write_text("SIZE = 18")
    file.write_text("from neighbour_of_net import SIZE\n" + FILE.replace("size=16", "size=SIZE"))
    assert hp.load_model(f"file:{file}:build").size == 18


def test_every_embedded_model_has_fine_tuned_weights():
    for name in SHIPPED:
        model = hp.load_model(f"paperbirds/{name}")
        expected = {"16/zero"} | (
            {"4/zero", "64/zero", "16/uniform(low=-1, high=1)", "16/blur", "10%/zero"}
            if name == "resnet"
            else set()
        )
        assert set(model.fine_tuned_weights) == expected
        assert model.fine_tuned == ""
        for setting, path in model.fine_tuned_weights.items():
            stored = metadata(path)
            assert (stored["fine_tuned"], stored["model"]) == (setting, model.name)


def test_a_fine_tuned_model_is_another_network_with_other_weights():
    model = hp.load_model("paperbirds/resnet")
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    view = hp.load_model("paperbirds/resnet", fine_tuned="16/blur")
    assert (view.name, view.fine_tuned) == ("paperbirds/resnet 16/blur", "16/blur")
    x = model.normalize(torch.rand(2, 3, 64, 64))
    tuned = load_fine_tuned(model, "16/blur")
    assert torch.equal(tuned.logits(x), view.logits(x))
    assert not torch.equal(tuned.logits(x), model.logits(x))
    # Its layers are its own, not the model's.
    assert torch.equal(tuned.cut("layer3")[1](tuned.cut("layer3")[0](x)), tuned(x))
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())
    assert load_fine_tuned(tuned, "16/blur") is tuned


def test_missing_fine_tuned_weights_are_reported_with_the_command(file, tmp_path):
    with pytest.raises(
        HeatproofError,
        match="heatproof finetune paperbirds/vgg paperbirds:train "
        "-o fine-tuned --patches 64 --baseline 'blur'",
    ):
        hp.load_model("paperbirds/vgg", fine_tuned="64/blur")
    with pytest.raises(
        HeatproofError,
        match=r"heatproof finetune file:.*net.py:build folder:… -o fine-tuned --patches 4",
    ):
        load_fine_tuned(hp.load_model(f"file:{file}:build"), "4/zero")
    with pytest.raises(HeatproofError, match="such as 16/zero"):
        hp.load_model("paperbirds/vgg", fine_tuned="zero")


def test_user_fine_tuned_weights_are_loaded(file, tmp_path):
    model = hp.load_model(f"file:{file}:build")
    save_file(
        {k: v + 1 for k, v in model.module.state_dict().items()},
        tmp_path / "t.safetensors",
        {"fine_tuned": "4/zero"},
    )
    torch.save({k: v + 1 for k, v in model.module.state_dict().items()}, tmp_path / "t.pth")
    for path in ("t.safetensors", "t.pth"):
        view = hp.load_model(
            f"file:{file}:build",
            fine_tuned_weights={"4/zero": tmp_path / path},
            fine_tuned="4/zero",
        )
        assert all(
            torch.equal(v, model.module.state_dict()[k] + 1)
            for k, v in view.module.state_dict().items()
        )
    with pytest.raises(HeatproofError, match="was fine-tuned for 4/zero, not 16/zero"):
        hp.load_model(
            f"file:{file}:build", fine_tuned_weights={"16/zero": tmp_path / "t.safetensors"}
        )
    with pytest.raises(HeatproofError, match="does not fit"):
        hp.load_model("paperbirds/vgg", fine_tuned_weights={"16/zero": tmp_path / "t.pth"})
    with pytest.raises(HeatproofError, match="such as 16/zero"):
        hp.load_model(f"file:{file}:build", fine_tuned_weights={"zero": tmp_path / "t.pth"})


def test_weights_that_do_not_ship_are_reported_with_a_remedy():
    with pytest.raises(
        HeatproofError, match=r"do not ship; in a spec write \{train: paperbirds/resnet18\}"
    ):
        hp.load_model("paperbirds/resnet18")


@pytest.mark.parametrize(
    ("name", "size", "resize", "mean"),
    [
        ("torchvision:resnet18", 224, 256, 0.485),
        ("torchvision:mobilenet_v3_small", 224, 256, 0.485),
        ("timm:resnet18.a1_in1k", 224, "235 bicubic", 0.485),  # 0.95 of the image
        ("timm:vit_tiny_patch16_224", 224, 248, 0.5),  # 0.9
        ("timm:vit_base_patch16_224", 224, 256, 0.5),  # as in the paper that uses it
        ("timm:deit_tiny_patch16_224", 224, "248 bicubic", 0.485),
    ],
)
def test_a_model_of_a_library_has_its_preprocessing(timm, name, size, resize, mean, monkeypatch):
    if "base" in name:  # two of its blocks; it takes ten times as long as the others
        monkeypatch.setattr(timm, "create_model", partial(timm.create_model, depth=2))
    state = torch.random.get_rng_state()
    model = hp.load_model(name, "random")
    assert (model.name, model.size, model.resize, model.n_classes) == (name, size, resize, 1000)
    assert model.mean[0].item() == pytest.approx(mean)
    assert not model.module.training
    again = hp.load_model(name, "random")
    assert model.fingerprint() == again.fingerprint()  # random, but always the same
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:vit_tiny_patch16_224"])
def test_library_weights_are_read_from_a_file_with_the_librarys_names(
    timm, torchvision, tmp_path, name, ending
):
    package, _, net = name.partition(":")
    module = timm.create_model(net) if package == "timm" else torchvision.models.get_model(net)
    path, x = tmp_path / f"w.{ending}", torch.randn(1, 3, 224, 224)
    save_file(module.state_dict(), path) if ending == "safetensors" else torch.save(
        module.state_dict(), path
    )
    with torch.no_grad():
        logits = module.eval()(x)
    torch.testing.assert_close(
        hp.load_model(name, path).logits(x), logits, rtol=0, atol=1e-5 * logits.abs().max().item()
    )


def test_published_weights_are_recognised_by_their_file_name(torchvision, tmp_path):
    state = torchvision.models.get_model("mobilenet_v2").state_dict()
    for file, resize in (
        ("mobilenet_v2-b0353104.pth", 256),
        ("mobilenet_v2-7ebf99e0.pth", 232),
        ("mine.pth", 256),
    ):
        torch.save(state, tmp_path / file)
        assert hp.load_model("torchvision:mobilenet_v2", tmp_path / file).resize == resize


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        (
            "torchvision:resnet50",
            None,
            "torchvision:resnet50 needs weights, and nothing is downloaded.*weights=random",
        ),
        ("timm:vit_base_patch16_224", None, "timm:vit_base_patch16_224 needs weights"),
        ("torchvision:resnt50", None, 'unknown torchvision model "resnt50"; did you mean resnet50'),
        ("torchvision:fasterrcnn_resnet50_fpn", "random", "unknown torchvision model"),
        ("timm:vit_base_patch16_22", "random", "did you mean vit_base_patch16_224"),
        (
            "timm:vit_tiny_patch16_224.augreg",
            "random",
            "did you mean vit_tiny_patch16_224.augreg_in21k",
        ),
        ("timm:qqqqqqqq", "random", r"there are: .* and \d+ more"),
        ("timm:vit_small_patch16_224.dino", "random", "has no classifier"),
        ("torchvision:resnet18", "IMAGENET1K_V1", "no weights file IMAGENET1K_V1"),
        ("resnet50", None, r"named like torchvision:resnet50 or timm:resnet50, and your own file:"),
        ("file:{file}:build", "random", "one of your own comes with the weights it has"),
    ],
)
def test_an_unknown_library_name_is_reported_with_suggestions(timm, file, name, weights, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_model(name.format(file=file), weights)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_missing_library_is_reported_with_the_install_command(timm, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        HeatproofError, match=rf"{package} cannot be imported .*pip install 'heatproof\[vision\]'"
    ):
        hp.load_model(f"{package}:resnet18", "random")


def test_an_embedded_model_loads_with_random_weights():
    x = torch.rand(1, 3, 64, 64)
    model = hp.load_model("paperbirds/resnet", "random")
    assert not torch.equal(model.logits(x), hp.load_model("paperbirds/resnet").logits(x))
    assert model.fine_tuned_weights == {}
