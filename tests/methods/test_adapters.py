"""Adapters: Captum objects and maps on disk as methods."""

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, LayerGradCam, Saliency
from PIL import Image
from safetensors.numpy import save_file

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Expression


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/vgg")


def values(result, method):
    return result.scores.loc[result.scores["method"] == method, "value"].to_numpy()


def test_a_captum_object_is_a_method(model):
    layer = LayerGradCam(model.module, model.module.pool4)
    result = hp.evaluate(
        model, "paperbirds:test", ["ixg", InputXGradient(model.module), layer], ["sds"], limit=6
    )
    np.testing.assert_allclose(values(result, "InputXGradient"), values(result, "ixg"), atol=0.02)
    assert np.isfinite(values(result, "LayerGradCam")).all()


def test_a_captum_object_of_another_network_is_refused(model):
    other = hp.load_model("paperbirds/resnet")
    explainer = Saliency(other.module)
    with pytest.raises(HeatproofError, match="another network than .*make it with model.module"):
        hp.evaluate(model, "paperbirds:test", [explainer], ["sds"], limit=2)
    result = hp.evaluate([model, other], "paperbirds:test", [explainer], ["sds"], limit=2)
    statuses = result.scores.groupby("model")["status"].unique().map(list).to_dict()
    assert statuses == {model.name: ["n/a"], other.name: ["ok"]}


@pytest.mark.parametrize("kind", [".npz", ".safetensors", ".npy"])
def test_maps_are_matched_by_sample_id(model, tmp_path, kind):
    data = hp.load_data("paperbirds:test", model, limit=5)
    x = model.normalize(torch.stack([data.load(i).image for i in range(5)]))
    maps = hp.explain(model, x, torch.tensor(data.labels), "ixg").numpy()
    order = [3, 0, 4, 1]  # in another order, and one is missing
    path = tmp_path / f"mine{kind}"
    if kind == ".npy":
        np.save(path, maps[order])
        path.with_suffix(".txt").write_text("\n".join(data.ids[i] for i in order) + "\n")
    else:
        maps_by_id = {data.ids[i]: maps[i] for i in order}
        np.savez(path, **maps_by_id) if kind == ".npz" else save_file(maps_by_id, path)
    result = hp.evaluate(model, data, [f"file:{path}", f"file:{path}|abs", "ixg"], ["sds"])
    rows = result.scores[result.scores["method"] == f"file:{path}"].set_index("sample")
    assert rows.loc[data.ids[2], "status"] == "missing"
    assert rows.loc[data.ids[2], "message"].startswith("no map was saved for this sample")
    assert np.isnan(rows.loc[data.ids[2], "value"])
    assert result.failures.empty
    for i in order:
        expected = result.scores[
            (result.scores["method"] == "ixg") & (result.scores["sample"] == data.ids[i])
        ]["value"].item()
        assert rows.loc[data.ids[i], "value"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("kind", [".npz", ".safetensors", ".npy"])
def test_maps_are_judged_only_for_the_class_they_explain(model, tmp_path, kind):
    data = hp.load_data("paperbirds:test", model, limit=3)
    maps = torch.rand(4, 16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    right, wrong = data.labels[0], (data.labels[1] + 1) % model.n_classes
    keys = [
        f"{data.ids[0]}\t{right}",
        f"{data.ids[1]}\t{wrong}",
        data.ids[2],  # names no class
        f"{data.ids[0]}\t{(right + 1) % model.n_classes}",  # a second map of the first sample
    ]
    path = tmp_path / f"mine{kind}"
    if kind == ".npy":
        np.save(path, maps)
        path.with_suffix(".txt").write_text("\n".join(keys))
    elif kind == ".npz":
        np.savez(path, **dict(zip(keys, maps, strict=True)))
    else:
        save_file(dict(zip(keys, maps, strict=True)), path)
    plain = tmp_path / "plain.npz"
    np.savez(plain, **{data.ids[0]: maps[0]})
    result = hp.evaluate(model, data, [f"file:{path}", f"file:{plain}"], ["sds"])
    by_sample = result.scores.set_index(["method", "sample"])
    rows = by_sample.loc[f"file:{path}"].loc[list(data.ids)]
    assert rows["status"].tolist() == ["ok", "missing", "ok"]
    assert rows["message"].tolist()[1] == (
        f"the saved map explains class {wrong}, not the class {data.labels[1]} that is evaluated"
    )
    assumed = f"no class named in mine{kind}: assumed to explain class {data.labels[2]}"
    assert rows["note"].tolist() == ["", "", assumed]
    expected = by_sample.loc[(f"file:{plain}", data.ids[0]), "value"]
    assert rows["value"].iloc[0] == expected


def test_a_class_that_is_no_number_is_reported(tmp_path):
    np.savez(tmp_path / "mine.npz", **{"a\tdog": np.zeros((8, 8))})
    with pytest.raises(HeatproofError, match="after the tab stands the index of a class"):
        Expression.parse(f"file:{tmp_path}/mine.npz")


def test_rewritten_maps_are_read_again(model, tmp_path):
    data = hp.load_data("paperbirds:test", model, limit=2)
    path, maps = (
        tmp_path / "mine.npy",
        torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(0)).numpy(),
    )

    def evaluate_maps(values, ids):
        np.save(path, values)
        path.with_suffix(".txt").write_text("\n".join(ids))
        scores = hp.evaluate(model, data, [f"file:{path}"], ["sds"], out=tmp_path / "run").scores
        return scores.set_index("sample").loc[list(data.ids), "value"].tolist()

    first = evaluate_maps(maps, data.ids)
    assert evaluate_maps(-maps, data.ids) == pytest.approx([-value for value in first])
    assert evaluate_maps(-maps[::-1], data.ids[::-1]) == evaluate_maps(-maps, data.ids)
    assert evaluate_maps(-maps, data.ids[::-1]) != evaluate_maps(-maps, data.ids)


def test_files_that_do_not_fit_are_reported(model, tmp_path):
    with pytest.raises(HeatproofError, match="there is no file|does not exist"):
        Expression.parse(f"file:{tmp_path}/none.npz")
    np.save(tmp_path / "alone.npy", np.zeros((2, 8, 8)))
    with pytest.raises(HeatproofError, match="write the sample ids"):
        Expression.parse(f"file:{tmp_path}/alone.npy")
    (tmp_path / "alone.txt").write_text("a\n")
    with pytest.raises(HeatproofError, match="2 maps, but alone.txt 1 id$"):
        Expression.parse(f"file:{tmp_path}/alone.npy")
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    with pytest.raises(HeatproofError, match="cannot read maps"):
        Expression.parse(f"file:{tmp_path}/broken.npz")
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(HeatproofError, match="cannot read maps"):
        Expression.parse(f"file:{tmp_path}/evil.npy")
    np.savez(tmp_path / "other.npz", elsewhere=np.zeros((8, 8)))
    result = hp.evaluate(model, "paperbirds:test", [f"file:{tmp_path}/other.npz"], ["sds"], limit=2)
    assert result.scores["message"].str.contains("other.npz has ids like elsewhere").all()
    assert (result.scores["status"] == "missing").all()


@pytest.fixture
def pictures(tmp_path):
    """A folder of images, and one of grey pictures of their maps at the size of the images."""
    rng = np.random.default_rng(0)
    for name, (width, height) in {"a": (90, 120), "b": (64, 64), "c": (70, 70)}.items():
        (tmp_path / "images" / "0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "maps" / "0").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "0" / f"{name}.bmp")
        grey = rng.integers(0, 256, (height, width), dtype=np.uint8)
        if name != "c":
            Image.fromarray(grey).save(tmp_path / "maps" / "0" / f"{name}.png")
    return tmp_path


def test_a_folder_of_pictures_is_a_method(pictures):
    """Pictures of the images' size are resized and cropped with them, by the nearest pixel."""
    model = hp.load_model("paperbirds/resnet")
    data = hp.load_data(f"folder:{pictures / 'images'}", model)
    name = f"file:{pictures / 'maps'}"
    result = hp.evaluate(model, data, [name], ["deletion"], keep_maps=3)
    statuses = result.scores.set_index("sample")["status"].to_dict()
    assert statuses == {"0/a.bmp": "ok", "0/b.bmp": "ok", "0/c.bmp": "missing"}
    assert result.scores["note"].str.contains("no class named in maps").sum() == 2
    (label,) = set(result.scores["method"])
    maps = dict(result.maps(label))
    whole = np.asarray(Image.open(pictures / "maps/0/b.png")) / 255
    np.testing.assert_allclose(maps["0/b.bmp"].numpy(), whole, atol=1e-3)
    grey = Image.open(pictures / "maps/0/a.png")
    large = grey.resize((model.resize, int(model.resize * 120 / 90)), Image.Resampling.NEAREST)
    left, top = round((large.width - 64) / 2), round((large.height - 64) / 2)
    cropped = np.asarray(large.crop((left, top, left + 64, top + 64))) / 255
    np.testing.assert_allclose(maps["0/a.bmp"].numpy(), cropped, atol=1e-3)


def test_a_folder_without_pictures_is_explained(tmp_path):
    with pytest.raises(HeatproofError, match="there is no .png file in"):
        hp.evaluate("paperbirds/resnet", "paperbirds:test", [f"file:{tmp_path}"], limit=1)


def test_a_picture_that_cannot_be_read_is_explained(pictures):
    (pictures / "maps/0/a.png").write_bytes(b"not a picture")
    data = f"folder:{pictures / 'images'}"
    result = hp.evaluate("paperbirds/resnet", data, [f"file:{pictures / 'maps'}"], ["deletion"])
    lost = result.left_out
    assert "cannot read a map from" in lost["message"].iloc[0]
    assert lost["status"].iloc[0] == "missing"


def test_fine_tuned_weights_are_explained_by_functions_and_not_by_objects(model):
    def product(network, x, target):
        x.requires_grad_()
        network(x).gather(1, target[:, None]).sum().backward()
        return x.grad * x.detach()

    methods = [InputXGradient(model.module), product, "ixg"]
    result = hp.evaluate(model, "paperbirds:test", methods, ["idsds"], limit=4)
    np.testing.assert_allclose(values(result, "product"), values(result, "ixg"), atol=0.02)
    rows = result.scores[result.scores["method"] == "InputXGradient"]
    assert set(rows["status"]) == {"n/a"}
    assert rows["message"].str.contains("other weights than those fine-tuned for 16/zero").all()


def test_a_method_is_given_as_many_images_per_call_as_it_asks_for(model):
    given = []

    def mine(model, x, target):
        given.append(len(x))
        return x[:, 0] + target[:, None, None]

    images = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    x = model.normalize(images)
    target = torch.tensor([0, 1, 2, 3, 0])
    whole = hp.explain(model, x, target, mine)
    parted = hp.explain(model, x, target, hp.named("mine", mine, images_per_call=2))
    assert given == [5, 2, 2, 1]
    assert torch.equal(parted, whole)
    plain, other = (
        Expression.parse(hp.named("mine", mine, **options))
        for options in ({}, {"images_per_call": 2})
    )
    assert plain.map_key != other.map_key
    assert "images_per_call" not in plain.map_key
    with pytest.raises(HeatproofError, match="images_per_call"):
        hp.explain(model, x, target, hp.named("mine", mine, images_per_call=0))
    saliency = hp.named("few", Saliency(model.module), images_per_call=2)
    torch.testing.assert_close(
        hp.explain(model, x, target, saliency),
        hp.explain(model, x, target, Saliency(model.module)),
        rtol=1e-3,
        atol=1e-5,
    )
