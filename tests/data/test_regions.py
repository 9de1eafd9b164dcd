"""Masks and boxes of one's own: what is read, how it follows the image, and what is refused."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import heatproof as hp
from heatproof.data.annotations import Region, _decompressed, _run_lengths, read_annotations
from heatproof.errors import HeatproofError

NAMES = ["cat", "dog"]
SIZE = (60, 40)  # width and height of the images


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )
    return hp.Model(net, size=20, resize=20, classes=NAMES, mean=[0.5] * 3, std=[0.5] * 3)


@pytest.fixture
def images(tmp_path):
    for name in ("cat/a", "dog/b"):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True)
        noise = np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], 3), np.uint8)
        Image.fromarray(noise).save(path)
    return tmp_path / "images"


def coco(*annotations, size=SIZE, **changes):
    image = {"width": size[0], "height": size[1]}
    return {
        "images": [
            {"id": 1, "file_name": "a.png", **image},
            {"id": 2, "file_name": "b.png", **image},
        ],
        "categories": [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}],
        "annotations": [
            {"image_id": 1, "category_id": 7, "bbox": [20, 10, 20, 10], **a} for a in annotations
        ],
    } | changes


def opened(tmp_path, images, model, tables, kind="regions"):
    (tmp_path / "objects.json").write_text(json.dumps(tables))
    return hp.load_data(f"{kind}:{tmp_path}/objects.json:folder:{images}", model)


def mask(data, name="cat/a.png"):
    return data.load(list(data.ids).index(name)).silhouette


def voc(*boxes, name="cat", size=SIZE):
    objects = "".join(
        f"<object><name>{name}</name><bndbox>"
        + "".join(
            f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        )
        + "</bndbox></object>"
        for box in boxes
    )
    width, height = size
    size_tag = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation>{size_tag}{objects}</annotation>"


def test_a_box_follows_the_resizing_and_cropping_of_its_image(tmp_path, images, model):
    data = opened(tmp_path, images, model, coco({}))
    # 60×40 is resized to 30×20 and cropped to columns 5 to 25; the box is 20…40 × 10…20
    expected = torch.zeros(20, 20, dtype=torch.bool)
    expected[5:10, 5:15] = True
    assert torch.equal(mask(data), expected)
    assert not mask(data, "dog/b.png").any()
    assert data.labels == hp.load_data(f"folder:{images}", model).labels


def test_objects_of_other_classes_do_not_count_and_several_are_joined(tmp_path, images, model):
    tables = coco({}, {"bbox": [40, 30, 10, 10]}, {"category_id": 8, "bbox": [0, 0, 60, 40]})
    found = mask(opened(tmp_path, images, model, tables))
    assert found.sum() == 50 + 25 and found[15:, 15:20].all()


def test_crowds_outlines_and_run_lengths_are_drawn_and_boxes_take_their_box(
    tmp_path, images, model
):
    inside = np.zeros((SIZE[1], SIZE[0]), bool)
    inside[10:20, 20:40] = True
    inside[12:14, 24:30] = False
    flat = inside.T.flatten()
    changes = np.flatnonzero(np.diff(flat, prepend=False)).tolist()
    counts = np.diff([0, *changes, flat.size]).tolist()
    lengths = {"counts": counts, "size": [SIZE[1], SIZE[0]]}
    assert np.array_equal(_run_lengths(lengths, SIZE), inside)
    crowd = {"segmentation": lengths, "iscrowd": 1}
    triangle = {"segmentation": [[20, 10, 40, 10, 20, 20]]}
    assert mask(opened(tmp_path, images, model, coco(crowd))).sum() == 50 - 3
    half = mask(opened(tmp_path, images, model, coco(triangle))).sum()
    assert abs(int(half) - 25) <= 5
    for tables in (coco(crowd), coco(triangle)):
        assert mask(opened(tmp_path, images, model, tables, "boxes")).sum() == 50


def test_compressed_run_lengths_are_those_of_coco():
    assert _decompressed("13") == [1, 3]
    assert _decompressed("P1") == [32]  # of two letters
    assert _decompressed("1352") == [1, 3, 5, 5]  # the fourth is a difference to the second
    assert _decompressed("135N") == [1, 3, 5, 1]  # which may be negative


OF_PYCOCOTOOLS = [  # polygons in an image of 60×40, as pycocotools 2.0.11 draws and compresses them
    (
        [20.3, 10.1, 41.7, 8.4, 52.2, 30.9, 30.5, 36.6, 12.8, 25.0],
        "Pa01U13M3M2N3M3M2N3O1O001O1O001O1O0O2O0000000000O1000000O10O12M3N2N2N3L3N2N2N2M3NS9",
        737,
    ),
    (
        [5.2, 5.7, 50.4, 5.7, 50.4, 12.8, 15.3, 12.8, 15.3, 33.0, 5.2, 33.0],
        "^6k0=000000000000000000\\Od0000000000000000000000"
        "0000000000000000000000000000000000000000000000Z<",
        515,
    ),
    (
        [30.0, 2.0, 33.1, 17.2, 55.0, 18.5, 35.2, 23.3, 29.0, 26.1, 8.0, 36.4, 22.2, 20.0],
        "[<1U1101O001O001N101O001O001N1O2N1N3N1O2M2O21N6K5K3L100O10001O0O1000000O1000000O1000000O1000n6",
        322,
    ),
]


@pytest.mark.parametrize(("polygon", "compressed", "area"), OF_PYCOCOTOOLS)
def test_outlines_are_those_of_pycocotools(polygon, compressed, area):
    """Run lengths are the same; polygons differ in few pixels that they only touch."""
    theirs = _run_lengths({"counts": compressed, "size": [SIZE[1], SIZE[0]]}, SIZE)
    assert theirs.sum() == area
    canvas = Image.new("L", SIZE)
    Region("cat", (0, 0, *SIZE), [polygon]).draw(canvas)
    ours = np.array(canvas) > 0
    assert (ours ^ theirs).sum() <= 0.02 * area
    assert abs(ours.sum() - polygon_area(polygon)) <= 0.02 * area


def polygon_area(polygon):
    x, y = np.array(polygon).reshape(-1, 2).T
    return abs((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()) / 2


def test_a_polygon_is_drawn_where_the_image_is():
    canvas = Image.new("L", SIZE)
    far = [-1e6, -1e6, 1e6, -1e6, 1e6, 1e6, -1e6, 1e6]
    Region("cat", (0, 0, *SIZE), [far]).draw(canvas)
    assert np.array(canvas).all()
    many = np.random.default_rng(0).uniform(-9, 70, (5000, 2)).flatten().tolist()
    Region("cat", (0, 0, *SIZE), [many]).draw(canvas)  # in blocks of edges


def test_boxes_of_voc_and_imagenet_count_pixels_from_one(tmp_path, images, model):
    folder = tmp_path / "xml"
    folder.mkdir()
    (folder / "a.xml").write_text(voc((21, 11, 40, 20)))
    data = hp.load_data(f"regions:{folder}:folder:{images}", model)
    assert mask(data).sum() == 50 and mask(data)[5:10, 5:15].all()


def test_images_without_a_label_have_that_of_their_largest_object(tmp_path, images, model):
    for file in ("cat/a", "dog/b"):
        (images / f"{file}.png").rename(images / f"{file[-1]}.png")
    tables = coco({"bbox": [0, 0, 3, 3]}, {"category_id": 8})
    data = opened(tmp_path, images, model, tables)
    assert dict(zip(data.ids, data.labels, strict=True)) == {"a.png": 1, "b.png": None}
    assert mask(data, "a.png").sum() == 50


def test_all_objects_count_where_the_model_does_not_know_their_classes(tmp_path, images, model):
    tables = coco({}, categories=[{"id": 7, "name": "zebra"}])
    with pytest.warns(UserWarning, match="no class of the annotations is one of .*: zebra"):
        data = opened(tmp_path, images, model, tables)
    assert mask(data).sum() == 50


def test_png_masks_have_the_names_of_the_images(tmp_path, images, model):
    (tmp_path / "masks" / "cat").mkdir(parents=True)
    values = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    values[10:20, 20:40] = 1
    path = tmp_path / "masks" / "cat" / "a.png"
    Image.fromarray(values).save(path)
    name = f"regions:{tmp_path}/masks:folder:{images}"
    data = hp.load_data(name, model)
    assert mask(data).sum() == 50
    before = data.fingerprints
    Image.fromarray(values * 255).rotate(180).save(path)
    assert hp.load_data(name, model).fingerprints != before
    for wrong, message in (
        (np.arange(values.size).reshape(values.shape).astype(np.uint8), "values 0, 1, 2, 3, …"),
        (values[:20], "for 60×20 px, but the image has 60×40; annotate the original"),
    ):
        Image.fromarray(wrong).save(path)
        rows = hp.evaluate(model, name, ["ixg"], ["mass"]).scores.set_index("sample")
        assert rows.loc["cat/a.png", "status"] == "skipped"
        assert message in rows.loc["cat/a.png", "message"]


def test_an_evaluation_on_boxes_takes_five_lines(tmp_path, images, model):
    (tmp_path / "objects.json").write_text(json.dumps(coco({}, {"image_id": 2, "category_id": 8})))
    data = hp.load_data(f"regions:{tmp_path}/objects.json:folder:{images}", model)
    result = hp.evaluate(model, data, ["ixg", "object"], ["pointing", "mass", "attr-mass"])
    assert result.scores["status"].eq("ok").all()
    assert result.scores.query("method == 'object'")["value"].eq(1).all()


BAD_COCO = {
    "reversed": (coco({"bbox": [20, 10, -5, 10]}), "0 to 15, 20 is reversed; a box is [x, y, w"),
    "outside": (coco({"bbox": [50, 10, 20, 10]}), "outside its image of 60×40 px; boxes are in"),
    "no class": (coco({"category_id": 9}), "its class 9 is not in categories; add it"),
    "three numbers": (coco({"bbox": [1, 2, 3]}), "four numbers are expected in bbox"),
    "not finite": (coco({"bbox": [1, 2, 3, float("nan")]}), "four numbers are expected"),
    "no image": (coco({"image_id": 5}), "image_id is not that of an image of the file"),
    "two points": (coco({"segmentation": [[1, 2, 3, 4]]}), "a polygon is a list"),
    "run lengths": (
        coco({"segmentation": {"counts": [5], "size": [40, 60]}}),
        "do not add up to an image of 60×40 px; write them as",
    ),
    "no size": (coco(images=[{"id": 1, "file_name": "a.png"}]), "width and height"),
    "other images": (
        coco(images=[{"id": 1, "file_name": "z", "width": 60, "height": 40}]),
        "nothing on any image",
    ),
    "no tables": ({}, "is not a file of COCO annotations"),
    "a list": ([], "is not a file of COCO annotations"),
}


@pytest.mark.parametrize("kind", BAD_COCO)
def test_bad_coco_files_are_named_with_the_cure(tmp_path, images, model, kind):
    tables, message = BAD_COCO[kind]
    if kind == "other images":
        tables["annotations"] = []
    with pytest.raises(HeatproofError, match=re.escape(message)) as caught:
        opened(tmp_path, images, model, tables)
    assert "\n" not in str(caught.value)


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]><annotation>&c;</annotation>'
BAD_VOC = {
    "bomb": (BOMB, "declares a document type"),
    "utf-16 bomb": (BOMB.encode("utf-16"), "declares a document type"),
    "broken": ("<annotation><size>", "is not XML"),
    "reversed": (voc((40, 11, 21, 20)), "is reversed; xmin"),
    "outside": (voc((21, 11, 80, 20)), "lies outside its image of 60×40 px"),
    "no class": (voc((21, 11, 40, 20), name=""), "has no class; write it as <name>"),
    "words": (voc(("a", "b", "c", "d")), "four numbers are expected in bndbox"),
    "no size": ("<annotation/>", "width and height of the image are missing"),
    "large": (voc() + " " * 1_000_001, "MB of annotations"),
}


@pytest.mark.parametrize("kind", BAD_VOC)
def test_bad_xml_files_are_named_with_the_cure(tmp_path, kind):
    content, message = BAD_VOC[kind]
    path = tmp_path / "a.xml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HeatproofError, match=message) as caught:
        read_annotations(path)
    assert "\n" not in str(caught.value)


def test_broken_nested_and_large_json_is_one_line(tmp_path):
    path = tmp_path / "a.json"
    for content in ("{", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(HeatproofError, match="is not a file of COCO annotations"):
            read_annotations(path)
    with path.open("wb") as file:
        file.truncate(101 * 10**6)
    with pytest.raises(HeatproofError, match="has 101 MB of annotations, and at most 100 MB"):
        read_annotations(path)


def test_empty_boxes_are_counted_and_left_out(tmp_path, images, model):
    with pytest.warns(UserWarning, match="2 boxes without area left out"):
        data = opened(
            tmp_path, images, model, coco({"bbox": [1, 1, 0, 4]}, {"bbox": [1, 1, 4, 0]}, {})
        )
    assert mask(data).sum() == 50


def test_names_that_cannot_be_opened(tmp_path, images, model):
    with pytest.raises(HeatproofError, match="write the annotations and then the images"):
        hp.load_data("regions:/nowhere", model)
    with pytest.raises(HeatproofError, match="there is no file or folder"):
        hp.load_data(f"regions:{tmp_path}/none.json:folder:{images}", model)
    with pytest.raises(HeatproofError, match="fitted to a model"):
        hp.load_data(f"regions:{tmp_path}:folder:{images}")
