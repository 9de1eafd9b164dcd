"""Image classifiers of transformers: by directory, as objects, and their preprocessing."""

import warnings

import numpy as np
import pytest
import tiny_networks as tiny
import torch
from PIL import Image

import heatproof as hp
from heatproof.data.folder import fit
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.models.preprocessing import Resize
from heatproof.models.processors import facts_of
from heatproof.models.vision import _library_network, _timm_resize, _torchvision_resize
from heatproof.models.vit import is_vit

HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("transformers")
    return tiny.import_transformers()


def saved(path, transformers, name="ViT", processor=True, **options):
    net = tiny.build(f"transformers:{name}", **options)
    with torch.no_grad():
        net.classifier.weight.mul_(3)  # a network from its configuration has other weights
    net.save_pretrained(path)
    if processor:
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    return net


def test_a_directory_is_a_model(tmp_path, transformers):
    labels = dict(enumerate("abcde"))
    net = saved(tmp_path, transformers, id2label=labels)
    model = hp.load_model(f"hf:{tmp_path}")
    assert (model.name, model.size, model.resize) == (f"hf:{tmp_path}", 32, "square 32")
    assert model.classes == tuple("abcde")
    assert model.mean.flatten().tolist() == [0.5, 0.5, 0.5]
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model.logits(x), net(x).logits, rtol=1e-5, atol=1e-6)
    for method in ("rollout", "chefer", "vit-gradcam", "ixg", "gradcam@block2"):
        assert hp.explain(model, x, 1, method).isfinite().all()


def test_random_weights_are_always_the_same(tmp_path, transformers):
    saved(tmp_path, transformers)
    first, second = (hp.load_model(f"hf:{tmp_path}", "random") for _ in range(2))
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() != hp.load_model(f"hf:{tmp_path}").fingerprint()
    assert first.classes is None  # LABEL_0 is no name


def test_weights_of_a_file_are_loaded(tmp_path, transformers):
    saved(tmp_path, transformers)
    model = hp.load_model(f"hf:{tmp_path}", tmp_path / "model.safetensors")
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(model.logits(x), hp.load_model(f"hf:{tmp_path}").logits(x))


def test_a_network_without_a_head_is_refused(tmp_path, transformers):
    net = transformers.ViTModel(transformers.ViTConfig(**tiny.VIT))
    with pytest.raises(HeatproofError, match="AutoModelForImageClassification"):
        hp.Model(net, **HALF)
    net.save_pretrained(tmp_path)
    with pytest.raises(HeatproofError, match=r"no trained classification head.*classifier"):
        hp.load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nobody/nothing", r"cannot be downloaded.*hf download nobody/nothing --local-dir"),
        ("hf:{empty}", "the directory is not what save_pretrained writes"),
    ],
)
def test_what_cannot_be_loaded_says_what_to_do(tmp_path, transformers, monkeypatch, name, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HeatproofError, match=message):
        hp.load_model(name.format(empty=tmp_path))


def test_a_network_as_an_object_takes_its_processor(transformers):
    net = tiny.build("transformers:ViT")
    processor = transformers.ViTImageProcessor(
        size={"height": 40, "width": 40},
        do_center_crop=True,
        crop_size={"height": 32, "width": 32},
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.4, 0.5, 0.6],
        resample=3,
    )
    model = hp.Model(net, processor=processor)
    assert model.resize in ("square 40 bicubic floor", "square 40 bicubic")
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(model.std.flatten(), torch.tensor([0.4, 0.5, 0.6]))


def test_a_network_as_an_object_without_a_processor_is_warned_about(transformers):
    net = tiny.build("transformers:Swin")
    with pytest.warns(UserWarning, match=r"normalized with ImageNet's.*processor="):
        model = hp.load_model(net)
    assert model.size == 32  # of its configuration
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hp.Model(net, **HALF)


@pytest.mark.filterwarnings("ignore:the preprocessing of")
def test_a_network_is_evaluated_as_it_is(transformers):
    result = hp.evaluate(
        tiny.build("transformers:Swin"),
        (torch.rand(4, 3, 32, 32), [0, 1, 2, 3]),
        ["ixg", "gradcam", "random"],
        ["sds(patches=4)"],
    )
    assert set(result.scores["status"]) == {"ok"}


@pytest.mark.parametrize("name", ["DeiT", "Swin", "Beit"])
def test_other_transformers_say_why_their_attention_is_not_read(name, transformers):
    model = hp.Model(tiny.build(f"transformers:{name}"), **HALF)
    assert not is_vit(model.module)
    reason = "a distillation token" if name == "DeiT" else "not a plain vision transformer"
    with pytest.raises(NotApplicable, match=reason):
        hp.explain(model, torch.zeros(1, 3, 32, 32), 0, "rollout")


def test_a_vit_is_converted_with_the_names_of_version_4(transformers):
    """Versions 4 and 5 of transformers name the same weights differently."""
    from heatproof.models.convert import renamed

    net = tiny.build("transformers:ViT")
    older = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    state = {}
    for key, value in net.state_dict().items():
        for new, old in older.items():
            key = key.replace(new, old)
        state[key] = value
    model = hp.Model(net, **HALF)
    ours = renamed(state)
    assert ours.keys() == model.module.state_dict().keys()
    for key, value in model.module.state_dict().items():
        assert torch.equal(ours[key], value)


def picture(width, height):
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


SQUARE = {"height": 32, "width": 32}
PROCESSORS = {
    "ViT": {"size": SQUARE},
    "DeiT": {"size": {"height": 36, "width": 36}, "crop_size": SQUARE},
    "Beit": {"size": SQUARE, "do_center_crop": False},
    "ConvNext": {"size": {"shortest_edge": 32}, "crop_pct": 0.875},
    "Levit": {"size": {"shortest_edge": 32}, "crop_size": SQUARE},
    "MobileNetV2": {"size": {"shortest_edge": 36}, "crop_size": SQUARE},
    "PoolFormer": {"size": {"shortest_edge": 32}, "crop_pct": 0.9, "crop_size": SQUARE},
    "EfficientNet": {"size": SQUARE, "rescale_offset": True, "rescale_factor": 1 / 127.5},
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("sides", [(60, 48), (51, 77)])
def test_images_are_prepared_as_the_processor_does(name, sides, transformers):
    pytest.importorskip("torchvision")
    processor = getattr(transformers, f"{name}ImageProcessor")(**PROCESSORS[name])
    image = picture(*sides)
    theirs = torch.as_tensor(np.asarray(processor(image, return_tensors="np")["pixel_values"][0]))
    facts = facts_of(torch.nn.Identity(), processor)
    assert facts.size == 32
    pixels = fit(image, facts.size, facts.resize)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (facts.mean, facts.std))
    ours = (pixels - mean) / std
    # Pillow and torchvision round differently: by up to 1/255, and where both steps round, 2/255.
    unit = 1 / 255 / float(std.min())
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 2.01 * unit
    assert (ours - theirs).abs().mean() < 0.25 * unit


def test_what_cannot_be_done_alike_is_said(transformers):
    processor = transformers.MobileViTImageProcessor(
        size={"shortest_edge": 36}, crop_size=SQUARE, do_flip_channel_order=True
    )
    with pytest.warns(UserWarning, match=r"MobileViTImageProcessor.*RGB into BGR.*x\.flip\(1\)"):
        facts_of(torch.nn.Identity(), processor)


@pytest.mark.parametrize(
    ("resize", "parsed", "written"),
    [
        (256, Resize(256), 256),
        ("256", Resize(256), 256),
        ("256 bicubic", Resize(256, False, "bicubic"), "256 bicubic"),
        ("square", Resize(224, True), "square 224"),
        ("square 256 bicubic", Resize(256, True, "bicubic"), "square 256 bicubic"),
        ("256 floor", Resize(256, floor=True), "256 floor"),
    ],
)
def test_resize_is_a_number_or_text(resize, parsed, written):
    assert Resize.parse(resize, 224) == parsed
    assert parsed.written == written
    assert Resize.parse(written, 224) == parsed


@pytest.mark.parametrize("resize", ["cubic", "200", "square 100"])
def test_a_resize_that_means_nothing_is_refused(resize):
    with pytest.raises(HeatproofError, match="resize="):
        hp.Model(torch.nn.Sequential(), resize=resize)


def test_a_square_resize_keeps_the_whole_image():
    image = picture(60, 30)
    both = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC)) / 255
    ours = fit(image, 16, "square bicubic").permute(1, 2, 0).numpy()
    np.testing.assert_allclose(ours, both, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm:test_vit", "168 bicubic"),
        ("timm:test_efficientnet", "168 bicubic"),
        ("torchvision:squeezenet1_1", 256),
        ("timm:vit_tiny_patch16_224", 248),  # as in the papers
    ],
)
def test_libraries_give_their_interpolation(timm, torchvision, name, expected):
    assert _library_network(name, None).build()[1].resize == expected


def test_torchvision_gives_its_interpolation(torchvision):
    preset = torchvision.models.Swin_T_Weights.IMAGENET1K_V1.transforms()
    assert _torchvision_resize(preset) == "232 bicubic"


def test_timm_may_squash_images():
    config = {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"}
    assert _timm_resize("timm:…", 224, config) == "square 224 bicubic"
    config = {"crop_pct": 0.9, "crop_mode": "border", "interpolation": "random"}
    with pytest.warns(UserWarning, match="pads the image"):
        assert _timm_resize("timm:…", 224, config) == 248
