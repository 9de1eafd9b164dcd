"""Files of images that a spec can name: what is wrong with them is said at once."""

import gzip
import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import heatproof as hp
from heatproof.cli import main
from heatproof.data.base import UnreadableImage
from heatproof.data.webdataset import expand
from heatproof.errors import HeatproofError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return hp.Model(
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        size=16,
        classes=["ant", "bee"],
    )


def png(i=0):
    pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path, files):
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def no_images(root):
    write_tar(root / "a.tar", {"a.txt": b"text"})
    return f"webdataset:{root}/a.tar"


def compressed(root):
    write_tar(root / "a.tar", {"a.png": png(), "a.cls": b"0"})
    (root / "a.tar.gz").write_bytes(gzip.compress((root / "a.tar").read_bytes()))
    return f"webdataset:{root}/a.tar.gz"


def bad_json(root):
    write_tar(root / "a.tar", {"a.png": png(), "a.json": b"{"})
    return f"webdataset:{root}/a.tar"


def unknown_class(root):
    write_tar(root / "a.tar", {"a.png": png(), "a.cls": b"cow"})
    return f"webdataset:{root}/a.tar"


def parquet(columns):
    def write(root):
        pq.write_table(pa.table(columns), root / "a.parquet")
        return f"parquet:{root}/a.parquet"

    return write


def text(name, content):
    def write(root):
        (root / name).write_text(content)
        return f"{'csv' if name.endswith('csv') else name.rpartition('.')[2]}:{root}/{name}"

    return write


def arrays(**named):
    def write(root):
        np.savez(root / "a.npz", **named)
        return f"numpy:{root}/a.npz"

    return write


PIXELS = np.zeros((2, 16, 16, 3), np.uint8)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda root: f"webdataset:{root}/none.tar", "there is no file"),
        (lambda root: f"webdataset:{root}/*.tar", "there are no files"),
        (no_images, "has no images; a sample is key.jpg"),
        (compressed, "A compressed one is unpacked first"),
        (bad_json, "a.json is not valid JSON"),
        (unknown_class, "cow"),
        (lambda root: f"parquet:{root}/none.parquet", "there is no file"),
        (lambda root: f"parquet:{root}", "there are no Parquet files"),
        (text("a.parquet", "text"), "as a Parquet file"),
        (parquet({"label": [1]}), "has the columns label; call that of the images image"),
        (parquet({"image": [3]}), "is of type int64, not the bytes"),
        (parquet({"image": [b"x"], "label": [2]}), "labels such as 2, but the classes"),
        (text("a.csv", ""), "is empty"),
        (text("a.csv", "label\n1\n"), "call that of the images path"),
        (text("a.csv", "path,label\na.png\n"), "line 2: expected 2 fields"),
        (text("a.csv", "path,label\na.png,cow\n"), "are not classes of the model: cow"),
        (text("a.csv", "path,label\n"), "has no images"),
        (lambda root: f"csv:{root}/none.csv", "there is no file"),
        (lambda root: "csv:", "csv needs a path"),
        (arrays(pictures=PIXELS), "has the arrays pictures; call that of the images images"),
        (arrays(images=PIXELS, labels=[1]), "2 images, but 1 labels"),
        (arrays(images=np.array([None, {}])), "Python objects"),
        (arrays(images=np.zeros(3)), "they are \\(N, H, W, C\\)"),
        (lambda root: f"numpy:{root}/none.npz", "there is no file"),
    ],
)
def test_what_is_wrong_is_said(model, tmp_path, write, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(write(tmp_path), model)


def test_a_source_without_splits_takes_none(model, tmp_path):
    name = arrays(images=PIXELS)(tmp_path)
    with pytest.raises(HeatproofError, match="data numpy takes no split; leave out split=test"):
        hp.load_data(name, model, split="test")


def test_broken_images_are_skipped_one_by_one(model, tmp_path):
    name = parquet({"image": [png(0), b"broken", None, png(3)], "label": ["ant", "bee"] * 2})
    rows = hp.evaluate(model, name(tmp_path), ["ixg"], ["sds(patches=4)"]).scores
    found = rows.set_index("sample")["status"].to_dict()
    assert found == {"0": "ok", "1": "skipped", "2": "skipped", "3": "ok"}
    assert "[2] has no image" in rows.set_index("sample").loc["2", "message"]


def test_of_a_row_group_only_wanted_images_are_kept(model, tmp_path):
    table = pa.table({"image": [png(i) for i in range(40)], "label": [0, 1] * 20})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    data = hp.load_data(f"parquet:{tmp_path}/a.parquet", model, limit=6)
    for i in range(6):
        data.load(i)
    assert sorted(data.source._stored) == sorted(data.positions)


def test_masks_ids_and_relative_paths_of_a_csv_file(model, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png())
    mask = np.zeros((16, 16), np.uint8)
    mask[4:8] = 1
    Image.fromarray(mask).save(tmp_path / "mask.png")
    (tmp_path / "list.csv").write_text(
        "path;label;id;mask\nimages/a.png;1;first;mask.png\nimages/a.png;;second;mask.png\n"
    )
    data = hp.load_data(f"csv:{tmp_path}/list.csv", model)
    samples = {name: data.load(i) for i, name in enumerate(data.ids)}
    assert (samples["first"].label, samples["second"].label) == (1, None)
    assert samples["first"].silhouette.nonzero()[:, 0].unique().tolist() == [4, 5, 6, 7]


def test_masks_and_repeated_keys_of_tars(model, tmp_path):
    mask = io.BytesIO()
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(mask, "PNG")
    for i in range(2):
        write_tar(
            tmp_path / f"{i}.tar",
            {"0.png": png(i), "0.cls": b"bee", "0.mask.png": mask.getvalue(), "./": b""},
        )
    data = hp.load_data(f"webdataset:{tmp_path}", model)
    assert sorted(data.ids) == ["0.tar/0", "1.tar/0"]
    assert data.labels == [1, 1]
    assert data.load(0).silhouette.sum() == 16


def test_shards_are_expanded_like_in_a_shell(tmp_path):
    paths = expand("/data/{0..1}/s-{008..010}.tar")
    assert [str(path).replace("\\", "/") for path in paths] == [
        f"/data/{a}/s-{b}.tar" for a in "01" for b in ("008", "009", "010")
    ]


def test_a_changed_file_has_other_fingerprints(model, tmp_path):
    name = arrays(images=PIXELS)(tmp_path)
    before = hp.load_data(name, model).fingerprints
    assert hp.load_data(name, model).fingerprints == before
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 17, 16, 3), np.uint8))
    after = hp.load_data(name, model).fingerprints
    assert not set(before) & set(after)


def test_hugging_face_splits(model, tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["bee", "ant"])}
    )

    def rows(labels):
        images = [{"bytes": png(i), "path": None} for i in range(len(labels))]
        return datasets.Dataset.from_dict({"image": images, "label": labels}, features)

    both = datasets.DatasetDict({"train": rows([0, 1, 0]), "test": rows([1, -1])})
    with pytest.raises(HeatproofError, match=r"the splits train, test; pass one .*\[\"train\"\]"):
        hp.load_data(both, model)
    both.save_to_disk(tmp_path / "both")
    name = f"hf-dataset:{tmp_path}/both"
    test = hp.load_data(f"{name}:test", model)
    assert sorted(test.labels, key=str) == [0, None]  # -1 is a label that is not published
    assert sorted(hp.load_data(name, model, split="train").labels) == [0, 1, 1]
    with pytest.raises(HeatproofError, match="has the splits train, test; name one"):
        hp.load_data(name, model)
    with pytest.raises(HeatproofError, match="names a split, and split=train another"):
        hp.load_data(f"{name}:test", model, split="train")
    with pytest.raises(HeatproofError, match="cannot open the data set .*nowhere"):
        hp.load_data(f"hf-dataset:{tmp_path}/nowhere", model)
    with pytest.raises(HeatproofError, match="none of which is an image; rename it"):
        hp.load_data(datasets.Dataset.from_dict({"a": [1]}), model)


def test_specs_and_the_command_line_take_the_names(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(6))
    spec = {
        "models": ["paperbirds/bagnet"],
        "data": {"name": f"numpy:{tmp_path}/a.npz", "limit": 4},
        "methods": ["ixg"],
        "protocols": ["sds"],
    }
    assert len(hp.run(spec, tmp_path / "run").scores) == 4
    listed = CliRunner().invoke(main, ["list", "data"]).output
    for name in ("webdataset:", "parquet:", "csv:", "numpy:", "hf-dataset:"):
        assert name in listed


def test_an_unreadable_row_is_unreadable(model, tmp_path):
    data = hp.load_data(parquet({"image": [b"broken"]})(tmp_path), model)
    with pytest.raises(UnreadableImage, match="cannot identify"):
        data.load(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [("path,label\na.png\0,0\n", "NUL characters"), (f"path\n{'x' * 200_000}\n", "field limit")],
)
def test_a_table_that_no_program_writes_is_refused(tmp_path, text, message):
    table = tmp_path / "images.csv"
    table.write_text(text)
    with pytest.raises(HeatproofError, match=f"cannot read .*{message}"):
        hp.load_data(f"csv:{table}")
