"""Images that are not square or not in colour: every method, baseline and protocol takes them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.baselines import BASELINES, Baseline
from heatproof.data.catalog import load_data
from heatproof.data.folder import ImageFolder
from heatproof.data.images import crop_middle, fit
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.figures.pictures import photo
from heatproof.methods import METHODS, Expression
from heatproof.methods.explain import check_applicable
from heatproof.protocols.single_deletion import patch_drops
from heatproof.tensor.noise import Rng
from heatproof.training.loader import random_crop

HEIGHT = 16
WIDTH = 24


def images(count=3, channels=3, height=HEIGHT, width=WIDTH):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, height, width, generator=generator)


def network(channels=3, classes=4):
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 6, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, classes)).eval()


def made(channels=3, size=(HEIGHT, WIDTH), net=None, **options):
    preprocessing = {"mean": [0.5] * channels, "std": [0.25] * channels}
    return hp.Model(net or network(channels), size=size, **preprocessing, **options)


class LeftSquare(nn.Module):
    """A network that ignores all columns beyond a square."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x[..., : x.shape[-2]])


def test_the_size_of_a_model_is_a_side_or_height_and_width():
    wide = made()
    assert (wide.height, wide.width, wide.size) == (HEIGHT, WIDTH, (HEIGHT, WIDTH))
    assert wide.image_shape == (3, HEIGHT, WIDTH)
    assert wide.resize == round(HEIGHT * 256 / 224)
    assert "16×24 px" in repr(wide)
    assert made(size=16).size == made(size=(16, 16)).size == 16
    assert made(size=[16, 24]).fingerprint() == wide.fingerprint() != made(size=16).fingerprint()
    with pytest.raises(HeatproofError, match="smaller than 16, the shorter side"):
        made(resize=15)
    with pytest.raises(NotApplicable, match="paperbirds has square images, .* takes 16×24 px"):
        load_data("paperbirds:test", wide)


@pytest.mark.parametrize("method", ["saliency", "ixg", "ig", "deepshap", "lime(masks=40, cells=2)"])
def test_columns_that_a_network_ignores_have_no_attribution(method):
    square = made(size=HEIGHT)
    wide = made(net=LeftSquare(network()))
    x = wide.normalize(images())
    target = torch.tensor([0, 1, 2])
    maps = hp.explain(wide, x, target, method)
    if method.startswith("lime"):
        # Two cells of 12 columns along a side.
        assert maps.shape == (3, HEIGHT, WIDTH)
        assert (maps[..., :12] == maps[..., :1].repeat(1, 1, 12)).all()
        return
    expected = hp.explain(square, x[..., :HEIGHT].contiguous(), target, method)
    torch.testing.assert_close(maps[..., :HEIGHT], expected, rtol=1e-4, atol=1e-6)
    assert (maps[..., HEIGHT:] == 0).all()


def test_patches_of_a_wide_image_are_wide():
    model = made()
    x = model.normalize(images())
    target = torch.tensor([0, 1, 2])
    drops = patch_drops(model, x, target, 16)
    clean = model.logits(x)
    slow = torch.empty(3, 16)
    for patch in range(16):
        row, column = divmod(patch, 4)
        without = x.clone()
        without[..., 4 * row : 4 * row + 4, 6 * column : 6 * column + 6] = 0
        left = model.logits(without)
        slow[:, patch] = (clean - left)[torch.arange(3), target]
    torch.testing.assert_close(drops, slow, rtol=1e-4, atol=1e-6)
    with pytest.raises(HeatproofError, match="does not divide an image of 16×24"):
        patch_drops(model, x, target, 25)


EVERY = [entry.id for entry in METHODS if entry.source is None]
OF_ONE_ARCHITECTURE = {
    "bagnet",
    "bcos",
    "rollout",
    "chefer",
    "vit-gradcam",
    "grad-rollout",
    "legrad",
}
CHEAP = {
    "rise": "rise(masks=8)",
    "rise-u": "rise-u(masks=8)",
    "lime": "lime(masks=20, cells=4)",
    "kernelshap": "kernelshap(masks=40, cells=4)",
    "sobol": "sobol(designs=2, cells=4)",
    "hsic": "hsic(masks=20, cells=4)",
    "occlusion": "occlusion(size=6)",
    "extremal": "extremal(steps=2)",
    "ig": "ig(steps=4)",
    "iba": "iba(steps=1, copies=1)",
    "input-iba": "input-iba(steps=1, copies=1, turns=1)",
}


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("name", EVERY)
def test_every_method_takes_wide_images_of_any_channels(name, channels):
    model = made(channels)
    x = model.normalize(images(2, channels))
    silhouette = torch.zeros(2, HEIGHT, WIDTH, dtype=torch.bool)
    silhouette[:, 2:8, 3:9] = True
    expression = Expression.parse(CHEAP.get(name, name))
    try:
        check_applicable(expression, model, True)
    except NotApplicable:
        assert name in OF_ONE_ARCHITECTURE
        return
    maps = hp.explain(
        model,
        x,
        torch.tensor([0, 3]),
        CHEAP.get(name, name),
        silhouette=silhouette,
        reference=images(4, channels),
    )
    assert maps.shape == (2, HEIGHT, WIDTH)
    assert torch.isfinite(maps).all()


@pytest.mark.filterwarnings("ignore:featurevis")
@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("name", [entry.id for entry in BASELINES if entry.source is None])
def test_every_baseline_takes_wide_images_of_any_channels(name, channels):
    model = made(channels)
    x = model.normalize(images(2, channels))
    baseline = Baseline.parse("featurevis(steps=2, crops=2)" if name == "featurevis" else name)
    prepared = None
    if baseline.entry.prepare is not None:
        prepared = baseline.prepare(model, iter([x]))
    removed = torch.zeros(2, HEIGHT, WIDTH, dtype=torch.bool)
    removed[:, 3:9, 5:20] = True
    remove = baseline.remover(x, model, Rng(0, ["a", "b"]), prepared)
    out = remove(torch.tensor([0, 1]), removed)
    assert out.shape == x.shape
    assert torch.equal(out.movedim(1, -1)[~removed], x.movedim(1, -1)[~removed])
    assert torch.isfinite(out).all()


SAME_IN_GREY = [
    "ixg",
    "ig",
    "gradcam",
    "layercam",
    "lrp-focus",
    "occlusion(size=4)",
    "rise(masks=20)",
    "lime(masks=40, cells=4)",
    "extremal(steps=3)",
    "edges",
    "center",
]


@pytest.mark.parametrize("method", SAME_IN_GREY)
def test_a_grey_network_is_one_that_sees_the_same_grey_thrice(method):
    net = network(1)
    colour = network(3)
    state = net.state_dict()
    colour.load_state_dict({**state, "0.weight": state["0.weight"].repeat(1, 3, 1, 1) / 3})
    grey_model = made(1, net=net)
    colour_model = made(3, net=colour)
    grey = images(3, 1)
    target = torch.tensor([0, 1, 2])
    ours, thrice = (
        hp.explain(model, model.normalize(pictures), target, method)
        for model, pictures in ((grey_model, grey), (colour_model, grey.repeat(1, 3, 1, 1)))
    )
    torch.testing.assert_close(ours, thrice, rtol=1e-3, atol=1e-5)


def test_a_missing_mean_is_cured_by_the_line_in_the_message():
    net = network(1)
    with pytest.raises(HeatproofError) as caught:
        hp.Model(net, size=(HEIGHT, WIDTH))
    assert "takes 1 channel, but mean and std are of 3" in str(caught.value)
    assert str(caught.value).endswith("hp.Model(net, mean=[0.5], std=[0.5])")
    with pytest.raises(HeatproofError, match="a number for each channel"):
        hp.Model(net, mean=[0.5], size=16)
    with pytest.raises(HeatproofError, match=r"Is size=\(2, 3\) correct"):
        hp.Model(nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten()), size=(2, 3))


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (31, 97), (97, 31), (16, 24), (20, 30)])
@pytest.mark.parametrize("size", [(16, 24), (24, 16), 16])
def test_an_image_of_any_shape_covers_the_size_and_its_middle_is_cropped(shape, size):
    height, width = shape
    rows, columns = np.mgrid[0:height, 0:width] + 0.5
    pixels = np.stack([255 * rows / height, 255 * columns / width, 0 * rows], 2).astype(np.uint8)
    image = Image.fromarray(pixels)
    down, along = (size, size) if isinstance(size, int) else size
    fitted = fit(image, size, 20)
    assert fitted.shape == (3, down, along)
    if (height, width) == (down, along):
        assert torch.equal(fitted, torch.from_numpy(pixels).permute(2, 0, 1) / 255)
        return
    # The middle stays in the middle, and both gradients have the scale of the side that decides.
    scale = max(20 * down / min(down, along) / height, 20 * along / min(down, along) / width)
    torch.testing.assert_close(fitted[0].mean(), torch.tensor(0.5), atol=0.03, rtol=0)
    torch.testing.assert_close(fitted[1].mean(), torch.tensor(0.5), atol=0.03, rtol=0)
    slope = (fitted[0, -2].mean() - fitted[0, 1].mean()) / (down - 3)
    assert float(slope) == pytest.approx(1 / (scale * height), rel=0.1)


def test_square_images_are_cropped_as_before():
    def before(image, size, resize):
        shorter = min(image.size)
        width, height = (max(resize, int(resize * side / shorter)) for side in image.size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        resized = image.resize((width, height), Image.Resampling.BILINEAR)
        return resized.crop((left, top, left + size, top + size))

    chance = np.random.default_rng(0)
    for height, width in chance.integers(8, 90, (30, 2)).tolist():
        pixels = chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        ours = crop_middle(image, 16, 19, Image.Resampling.BILINEAR)
        assert np.array_equal(np.asarray(ours), np.asarray(before(image, 16, 19)))


def test_a_folder_is_read_as_grey_for_one_channel_and_refused_for_others(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "a.png")
    grey = load_data(f"folder:{tmp_path}", made(1)).load(0).image
    expected = Image.fromarray(pixels[..., :3]).convert("L")
    assert torch.equal(grey[0], torch.from_numpy(np.array(expected)) / 255)
    with pytest.raises(HeatproofError, match=r"takes 4 channels, .* \(N, 4, 16, 24\)"):
        load_data(f"folder:{tmp_path}", made(4))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    folder = ImageFolder(tmp_path, size=(HEIGHT, WIDTH), resize=HEIGHT, mode="RGBA")
    assert torch.equal(folder.load(0).image, torch.from_numpy(pixels).permute(2, 0, 1) / 255)
    with pytest.raises(HeatproofError, match="has colour images, but .* takes 1 channel;"):
        load_data("paperbirds:test", made(1))


def test_random_crops_have_the_shape_of_the_model():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70), dtype=np.uint8)
    crop = random_crop(Image.fromarray(pixels), (HEIGHT, WIDTH), np.random.default_rng(1))
    assert crop.shape == (HEIGHT, WIDTH, 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_pictures_show_grey_a_mean_or_the_first_three_channels(channels):
    image = (images(1, channels)[0] * 255).byte()
    picture = Image.open(io.BytesIO(photo(image)))
    shown = np.asarray(picture.convert("L") if channels < 3 else picture)
    if channels < 3:
        expected = image.float().mean(0).round().byte().numpy()
    else:
        expected = image[:3].permute(1, 2, 0).numpy()
    assert np.array_equal(shown, expected)
