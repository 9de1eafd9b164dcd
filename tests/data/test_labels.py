"""Labels as users have them: ImageNet's folders, label files of several formats, numbers."""

import os
import sys

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.data.catalog import load_batch
from heatproof.data.folder import list_images
from heatproof.data.labels import class_index, path_and_labels
from heatproof.errors import HeatproofError
from heatproof.models.vision import imagenet_wnids


def network(classes, names=None):
    return hp.Model(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes)),
        size=16,
        classes=names,
    )


def save_images(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (40, 90, 200)).save(root / name)


def labels(name, model):
    data = hp.load_data(name, model)
    return dict(zip(data.ids, data.labels, strict=True))


@pytest.fixture
def images(tmp_path):
    save_images(tmp_path / "images", "a.png", "b.jpg", "sub/c.png")
    return tmp_path / "images"


def test_the_class_ids_of_imagenet_agree_with_timm(timm):
    from timm.data import ImageNetInfo

    assert list(imagenet_wnids()) == ImageNetInfo().label_names() == sorted(imagenet_wnids())


@pytest.mark.parametrize("names", [None, [f"name {i}" for i in range(1000)]])
def test_a_subset_of_imagenets_folders_keeps_the_class_indices(tmp_path, names):
    wnids = imagenet_wnids()
    save_images(tmp_path, *(f"{wnids[i]}/x.png" for i in (3, 500, 999)))
    assert labels(f"folder:{tmp_path}", network(1000, names)) == {
        f"{wnids[i]}/x.png": i for i in (3, 500, 999)
    }


def test_numbered_folders_are_not_sorted_as_text(tmp_path):
    save_images(tmp_path, *(f"{i}/x.png" for i in range(12)))
    assert labels(f"folder:{tmp_path}", network(12)) == {f"{i}/x.png": i for i in range(12)}
    save_images(tmp_path, "12/x.png")
    with pytest.raises(
        HeatproofError,
        match=r"1 of 13 subfolders .* are not classes of the model: 12; "
        r"its classes are 12 without names",
    ):
        hp.load_data(f"folder:{tmp_path}", network(12))


def test_class_names_match_in_other_spelling(tmp_path):
    save_images(tmp_path, "Great_White_Shark/x.png", "tench/y.png")
    model = network(3, ["tench", "goldfish", "great white shark"])
    assert labels(f"folder:{tmp_path}", model) == {"Great_White_Shark/x.png": 2, "tench/y.png": 0}
    assert class_index(["Crane", "x"], ["crane", "x"], 2, "") == {"Crane": 0, "x": 1}
    # Two classes match in another spelling, so the name is ambiguous.
    with pytest.raises(HeatproofError, match="not classes of the model: Crane"):
        class_index(["Crane", "x"], ["crane", "x", "CRANE"], 3, "labels")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("l.csv", "a.png,0\nb.jpg,2\nsub/c.png,1\n"),
        ("l.csv", "filename,label\na.png,0\nb.jpg,2\nsub/c.png,1\n"),
        (
            "l.csv",
            "\ufefflabel;size;image\n0;9;a.png\n2;9;b.jpg\n1;9;sub/c.png\n",
        ),  # from a spreadsheet: other column order, byte order mark
        (
            "l.csv",
            "id,index,filename,class,label\n7,1,a.png,x,0\n8,0,b.jpg,x,2\n9,2,sub/c.png,x,1\n",
        ),  # the most specific column names win
        ("l.tsv", "a.png\tred cat\nb.jpg\tfox\nsub/c.png\tdog\n"),
        ("l.csv", 'a.png,"red cat"\nb.jpg,fox\nsub/c.png,dog\n'),
        ("val.txt", "a.png 0\nb.jpg 2\n\nsub/c.png 1\n"),  # Caffe's format
        ("l.csv", "./a.png,0\r\nb,2\r\nsub/c,1\r\n"),  # without file extensions
    ],
)
def test_label_files_of_several_formats_are_read(images, tmp_path, file, content):
    (tmp_path / file).write_text(content, encoding="utf-8")
    expected = {"a.png": 0, "b.jpg": 2, "sub/c.png": 1}
    assert (
        labels(f"folder:{images}:{tmp_path / file}", network(3, ["red cat", "dog", "fox"]))
        == expected
    )


def test_a_label_file_with_wnids_and_boxes_is_read(tmp_path):
    save_images(tmp_path / "val", "v1.png", "v2.png")
    wnids = imagenet_wnids()
    (tmp_path / "l.csv").write_text(
        f"ImageId,PredictionString\nv1,{wnids[7]} 1 2 30 40\n"
        f"v2,{wnids[990]} 1 2 3 4 {wnids[990]} 5 6 7 8\n"
    )
    assert labels(f"folder:{tmp_path / 'val'}:{tmp_path / 'l.csv'}", network(1000)) == {
        "v1.png": 7,
        "v2.png": 990,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a.png,0\nb.jpg,1\n", r"1 of 3 images have no label \(sub/c.png\)"),
        (
            "a.png,0\nb.jpg,1\nc.png,1\nd.png,2\n",
            r"1 of 3 images have no label \(sub/c.png\); 2 labels have no image \(c.png, d.png\)",
        ),
        ("a.png,0\nb.jpg,\nsub/c.png,1\n", r"no label \(b.jpg\)"),
        ("picture,what\na.png,0\nb.jpg,1\nsub/c.png,1\n", r"1 labels have no image \(picture\)"),
        ("a.png,0\na.png,1\nb.jpg,1\nsub/c.png,1\n", "two labels for a.png: 0 and 1"),
        ("a.png,0\nb.jpg,3\nsub/c.png,1\n", r"1 of 3 labels of .* are not classes of the model: 3"),
        (
            "a.png,cat\nb.jpg,dog\nsub/c.png,fish\n",
            r"are not classes of the model: fish; its classes are named like cat, dog, fox",
        ),
        ("a.png,n01440764\nb.jpg,dog\nsub/c.png,fox\n", "are not classes of the model: n01440764"),
        ("a.png,0\nb.jpg\n", "line 2: expected a file name and a label, found 'b.jpg'"),
        (
            "a.png,7,0\nb.jpg,8,1\nsub/c.png,9,2\n",
            "has 3 columns; name them in its first line: one is filename, one is label",
        ),
        ("", "3 of 3 images have no label"),
    ],
)
def test_a_label_file_that_does_not_match_is_reported(images, tmp_path, content, message):
    (tmp_path / "l.csv").write_text(content)
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(f"folder:{images}:{tmp_path / 'l.csv'}", network(3, ["cat", "dog", "fox"]))


def test_an_unreadable_label_file_is_reported(images, tmp_path):
    with pytest.raises(HeatproofError, match="cannot read labels from .*nowhere.csv"):
        hp.load_data(f"folder:{images}:{tmp_path / 'nowhere.csv'}", network(3))
    (tmp_path / "l.csv").write_bytes(b"a.png,caf\xe9\n")
    with pytest.raises(HeatproofError, match="cannot read labels"):
        hp.load_data(f"folder:{images}:{tmp_path / 'l.csv'}", network(3))


def test_a_folder_name_may_contain_colons():
    assert [str(p) for p in path_and_labels("C:/my:images:l.csv")] == ["C:/my:images", "l.csv"]
    assert path_and_labels("C:/my:images")[1] is None


def test_without_labels_the_prediction_is_the_target(tmp_path):
    save_images(tmp_path, "a.png", "b.png")
    model = network(3)
    with torch.no_grad():
        model.module[2].bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    assert set(labels(f"folder:{tmp_path}", model).values()) == {None}
    assert set(
        hp.evaluate(model, f"folder:{tmp_path}", ["ixg"], ["sds(patches=4)"]).scores["target"]
    ) == {1}


def test_hidden_files_and_folders_are_ignored(tmp_path):
    save_images(tmp_path, "cat/a.png", "dog/b.png", ".ipynb_checkpoints/a.png", "cat/.a.png")
    assert labels(f"folder:{tmp_path}", network(2, ["cat", "dog"])) == {
        "cat/a.png": 0,
        "dog/b.png": 1,
    }


def test_splits_of_folders_and_invalid_data_are_refused(tmp_path):
    save_images(tmp_path, "a.png")
    with pytest.raises(
        HeatproofError, match="an image folder has no splits, so split=val has no meaning"
    ):
        hp.load_data(f"folder:{tmp_path}", network(2), split="val")
    with pytest.raises(HeatproofError, match=f'named with its kind: "folder:{tmp_path}"'):
        hp.load_data(tmp_path, network(2))
    with pytest.raises(HeatproofError, match="a DataFrame is not a data set; give its columns"):
        hp.load_data(pd.DataFrame({"path": ["a.png"], "label": [0]}), network(2))
    for wrong in (network(2), None):
        with pytest.raises(
            HeatproofError,
            match="data is a name, such as paperbirds:test or folder:/path/to/images, "
            "or a data set",
        ):
            hp.load_data(wrong, network(2))
    images = torch.rand(2, 3, 16, 16)
    with pytest.raises(
        HeatproofError, match="whole numbers from 0; got 0.5. hp.load_data takes names"
    ):
        hp.evaluate(network(2), (images, torch.tensor([0.5, 1.0])), ["random"])
    named = network(2, ["ant", "bee"])
    assert hp.load_data((images, ["bee", "ant"]), named, limit=2).labels in ([1, 0], [0, 1])
    with pytest.raises(HeatproofError, match="wasp"):
        hp.evaluate(named, (images, ["ant", "wasp"]), ["random"])


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege")
def test_links_are_followed_without_cycles(tmp_path):
    save_images(tmp_path / "store", "a.png")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "cat").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "again").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert list_images(tmp_path / "root") == ["cat/a.png", "gone.png"]
    with pytest.warns(
        UserWarning, match="beside the folders of classes are images without a label: gone.png"
    ):
        data = hp.load_data(f"folder:{tmp_path / 'root'}", network(2, ["cat", "dog"]))
    batch = load_batch(data, range(2), network(2))
    assert (batch.ids, list(batch.unreadable)) == (["cat/a.png"], ["gone.png"])


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    save_images(tmp_path, "a.png", "closed/b.png")
    original_scandir = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return original_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.warns(UserWarning, match="cannot list .*closed: Permission denied; it is skipped"):
        assert list_images(tmp_path) == ["a.png"]
    with pytest.raises(HeatproofError, match="cannot list .*closed"):
        list_images(tmp_path / "closed")


def test_many_files_are_listed_without_being_opened(tmp_path, monkeypatch):
    """The order is that of sorted paths; only requested images are touched."""
    names = [f"{folder}/{i}.png" for folder in ("a", "a-b", "b") for i in range(300)]
    for folder in ("a", "a-b", "b"):
        (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / name).touch()
    assert list_images(tmp_path) == [
        p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*.png"))
    ]
    requested = []
    original_stat = os.stat
    monkeypatch.setattr(
        os,
        "stat",
        lambda path, *rest, **more: (
            requested.append(str(path)) or original_stat(path, *rest, **more)
        ),
    )
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    data = hp.load_data(f"folder:{tmp_path}", network(3, ["a", "a-b", "b"]), limit=5)
    assert len(data.fingerprints) == 5
    assert len([path for path in requested if path.endswith(".png")]) == 5


def test_a_table_in_a_folder_without_classes_is_suggested_as_labels(tmp_path):
    save_images(tmp_path, "a.png", "b.png")
    (tmp_path / "labels.csv").write_text("filename,label\na.png,1\nb.png,0\n")
    with pytest.warns(UserWarning, match="if labels.csv has them, write folder:.*:labels.csv"):
        assert hp.load_data(f"folder:{tmp_path}", network(2)).labels == [None, None]
    data = hp.load_data(f"folder:{tmp_path}:labels.csv", network(2))
    assert dict(zip(data.ids, data.labels, strict=True)) == {"a.png": 1, "b.png": 0}


def test_a_plain_directory_is_reported_with_its_data_name(tmp_path):
    with pytest.raises(HeatproofError, match=f"folder:{tmp_path}"):
        hp.load_data(str(tmp_path), network(2))
