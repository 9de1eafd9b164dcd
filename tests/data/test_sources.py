"""The same twelve images from every kind of source give the same tensors, labels and scores."""

import csv
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import heatproof as hp
from heatproof.data.catalog import DATA
from heatproof.data.reference import reference_for
from heatproof.errors import HeatproofError
from heatproof.models.vision import import_torchvision

CLASSES = ["ant", "bee", "cat"]
COUNT = 12


def network(size=16, classes=CLASSES):
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    return hp.Model(nn.Sequential(*layers, nn.Linear(16, 3)), size=size, classes=classes)


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def pictures():
    """Pictures of different sizes; the middle of each is of its own."""
    rng = np.random.default_rng(0)
    sizes = [(20, 24), (16, 16), (30, 18)]
    return [
        Image.fromarray(rng.integers(0, 256, (*sizes[i % 3], 3), dtype=np.uint8))
        for i in range(COUNT)
    ]


LABELS = [i % 3 for i in range(COUNT)]


def png(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pictures):
    root = tmp_path_factory.mktemp("folder")
    for i, picture in enumerate(pictures):
        path = root / CLASSES[LABELS[i]] / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        picture.save(path)
    return root


@pytest.fixture(scope="module")
def expected(folder, model):
    """By the content of the fitted image: its label."""
    return contents(hp.load_data(f"folder:{folder}", model))


def contents(data):
    samples = [data.load(i) for i in range(len(data.ids))]
    assert [s.id for s in samples] == list(data.ids)
    assert [s.label for s in samples] == list(data.labels)
    return {s.image.numpy().tobytes(): s.label for s in samples}


class Pictures(Dataset):
    def __init__(self, pictures, form=lambda picture, i: (picture, LABELS[i])):
        self.pictures = pictures
        self.form = form

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        return self.form(self.pictures[i], i)


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def items(pictures):
    return [(picture, LABELS[i]) for i, picture in enumerate(pictures)]


def as_chw(picture, i):
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1), LABELS[i]


def as_dict(picture, i):
    return {"img": np.asarray(picture), "target": CLASSES[LABELS[i]], "id": f"sample {i}"}


def hugging_face(pictures, names=tuple(CLASSES)):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    )
    labels = [names.index(CLASSES[label]) for label in LABELS]
    return datasets.Dataset.from_dict({"image": pictures, "label": labels}, features)


def write_tars(root, pictures):
    for shard in range(2):
        with tarfile.open(root / f"shard-{shard:03d}.tar", "w") as archive:
            for i in range(shard, COUNT, 2):
                label = (
                    ("cls", str(LABELS[i]).encode())
                    if shard
                    else ("json", json.dumps({"label": LABELS[i], "by": "me"}).encode())
                )
                for extension, content in (("png", png(pictures[i])), label):
                    info = tarfile.TarInfo(f"a/{i:03d}.{extension}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return f"webdataset:{root}/shard-{{000..001}}.tar"


def write_parquet(root, pictures, encode=lambda content, i: {"bytes": content, "path": f"{i}.png"}):
    names = ("cat", "ant", "bee")
    for part in range(2):
        chosen = range(part, COUNT, 2)
        table = pa.table(
            {
                "image": [encode(png(pictures[i]), i) for i in chosen],
                "label": [names.index(CLASSES[LABELS[i]]) for i in chosen],
            }
        )
        feature = {"label": {"_type": "ClassLabel", "names": list(names)}}
        stored = {"huggingface": json.dumps({"info": {"features": feature}})}
        table = table.replace_schema_metadata(stored)
        pq.write_table(table, root / f"test-{part}.parquet", row_group_size=4)
    return f"parquet:{root}"


def write_csv(root, folder):
    with (root / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "id"])
        for i, label in enumerate(LABELS):
            path = folder / CLASSES[label] / f"{i:02d}.png"
            writer.writerow([path, CLASSES[label], f"image {i}"])
    return f"csv:{root}/list.csv"


def saved_to_disk(root, pictures):
    hugging_face(pictures).save_to_disk(root / "saved")
    return f"hf-dataset:{root}/saved"


def image_folder(folder):
    return import_torchvision().datasets.ImageFolder(str(folder))


SOURCES = {
    "PIL items": lambda p, f, root: Pictures(p),
    "uint8 tensors": lambda p, f, root: Pictures(p, as_chw),
    "dicts with names": lambda p, f, root: Pictures(p, as_dict),
    "bytes": lambda p, f, root: Pictures(p, lambda q, i: (png(q), LABELS[i])),
    "a list of pairs": lambda p, f, root: items(p),
    "a pair of lists": lambda p, f, root: (p, LABELS),
    "paths": lambda p, f, root: (
        [f / CLASSES[label] / f"{i:02d}.png" for i, label in enumerate(LABELS)],
        LABELS,
    ),
    "a loader": lambda p, f, root: DataLoader(Pictures(p), batch_size=5),
    "a subset": lambda p, f, root: Subset(Pictures(p), list(reversed(range(COUNT)))),
    "a stream": lambda p, f, root: Stream(items(p)),
    "a generator": lambda p, f, root: iter(items(p)),
    "a loader of a stream": lambda p, f, root: DataLoader(Stream(items(p)), batch_size=4),
    "Hugging Face": lambda p, f, root: hugging_face(p, ("bee", "cat", "ant")),
    "Hugging Face stream": lambda p, f, root: hugging_face(p).to_iterable_dataset(),
    "Hugging Face transform": lambda p, f, root: hugging_face(p).with_transform(lambda rows: rows),
    "torchvision": lambda p, f, root: image_folder(f),
    "webdataset": lambda p, f, root: write_tars(root, p),
    "parquet": lambda p, f, root: write_parquet(root, p),
    "parquet bytes": lambda p, f, root: write_parquet(root, p, lambda content, i: content),
    "csv": lambda p, f, root: write_csv(root, f),
    "hf-dataset": lambda p, f, root: saved_to_disk(root, p),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_images_and_labels(
    kind, model, pictures, folder, expected, tmp_path
):
    thing = SOURCES[kind](pictures, folder, tmp_path)
    data = hp.load_data(thing, model)
    assert contents(data) == expected
    assert len(set(data.ids)) == len(set(data.fingerprints)) == COUNT


@pytest.mark.parametrize("kind", ["PIL items", "a stream", "Hugging Face", "parquet", "webdataset"])
def test_every_source_gives_the_same_scores(kind, model, pictures, folder, tmp_path):
    def scores(data):
        result = hp.evaluate(model, data, ["ixg", "random"], ["sds(patches=4)"])
        assert set(result.scores["status"]) == {"ok"}
        return result.scores[result.scores["method"] == "ixg"].set_index("sample")["value"]

    fitted = hp.load_data(f"folder:{folder}", model)
    numbers = {fitted.load(i).image.numpy().tobytes(): name for i, name in enumerate(fitted.ids)}
    by_folder = scores(f"folder:{folder}")
    data = hp.load_data(SOURCES[kind](pictures, folder, tmp_path), model)
    found = scores(data)
    for i, name in enumerate(data.ids):
        same = numbers[data.load(i).image.numpy().tobytes()]
        assert found[name] == pytest.approx(by_folder[same], abs=1e-6)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_arrays_in_memory_and_in_a_file_are_the_same_as_tensors(
    model, tmp_path, channels_last, compressed
):
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    reference = contents(hp.TensorData(tensors, LABELS))
    arrays = pixels if channels_last else pixels.transpose(0, 3, 1, 2)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", images=arrays, labels=LABELS, ids=[f"i{n}" for n in range(COUNT)])
    for data in (
        (arrays, LABELS),
        (torch.from_numpy(np.ascontiguousarray(arrays)), torch.tensor(LABELS)),
        (arrays / np.float32(255), LABELS),
        TensorDataset(tensors, torch.tensor(LABELS)),
        f"numpy:{tmp_path}/a.npz",
    ):
        assert contents(hp.load_data(data, model)) == reference
    assert sorted(hp.load_data(f"numpy:{tmp_path}/a.npz", model).ids)[0] == "i0"
    np.save(tmp_path / "a.npy", arrays)
    plain = hp.load_data(f"numpy:{tmp_path}/a.npy", model)
    assert contents(plain) == dict.fromkeys(reference)


def test_pairs_of_float_tensors_are_tensor_data_as_before(model):
    images = torch.rand(4, 3, 16, 16)
    data = hp.load_data((images, [0, 1, 2, 0]), model)
    direct = hp.TensorData(images, [0, 1, 2, 0])
    assert isinstance(data, hp.TensorData)
    assert (data.ids, data.fingerprints) == (direct.ids, direct.fingerprints)


def test_a_smaller_limit_gives_a_prefix_and_the_rest_is_the_reference(model, pictures):
    data = Pictures(pictures)
    everything = hp.load_data(data, model, seed=3).ids
    assert everything != sorted(everything, key=int)
    assert hp.load_data(data, model, limit=5, seed=3).ids == everything[:5]
    assert hp.load_data(hp.load_data(data, model, seed=3), limit=5).ids == everything[:5]
    result = hp.evaluate(model, data, ["ixg"], ["sds(patches=4, baseline=mean)"], limit=5, seed=3)
    assert set(result.scores["status"]) == {"ok"}
    all_used = hp.evaluate(model, data, ["ixg"], ["sds(patches=4, baseline=mean)"])
    assert "none is left as a reference" in all_used.scores["message"].iloc[0]


def test_a_reference_is_the_images_beyond_the_limit(model, pictures, tmp_path):
    for thing in (Pictures(pictures), write_parquet(tmp_path, pictures)):
        data = hp.load_data(thing, model, limit=5)
        reference = reference_for(data, model)
        ids = {reference.data.ids[i] for i in reference.indices}
        assert ids == {str(i) for i in range(COUNT)} - set(data.ids)
    stream = hp.load_data(Stream(items(pictures)), model, limit=5)
    assert reference_for(stream, model).data.ids == [str(i) for i in range(5, COUNT)]


@pytest.mark.parametrize("kind", ["PIL items", "parquet", "csv", "Hugging Face", "a stream"])
def test_per_class_balances_any_source(kind, model, pictures, folder, tmp_path):
    data = hp.load_data(SOURCES[kind](pictures, folder, tmp_path), model, per_class=2)
    assert sorted(data.labels) == [0, 0, 1, 1, 2, 2]
    assert len(hp.load_data(Pictures(pictures), model, per_class=2, limit=4).ids) == 4


def test_objects_are_fitted_to_every_model_and_read_once_for_all(pictures):
    reads = []

    def count(picture, i):
        reads.append(i)
        return picture, LABELS[i]

    models = [network(16), network(24)]
    models[1].name = "larger"
    result = hp.evaluate(models, Pictures(pictures, count), ["ixg"], ["sds(patches=4)"])
    assert set(result.scores["status"]) == {"ok"}
    assert result.scores["model"].nunique() == 2
    # Once for the label and the hash, and once for each model; a few are read again for checks.
    counts = sorted(reads.count(i) for i in range(COUNT))
    assert counts[:6] == [3] * 6


def test_ids_labels_and_masks_are_given_beside_the_images(model, pictures):
    masks = [np.zeros(p.size[::-1], bool) for p in pictures]
    for mask in masks:
        mask[:, : mask.shape[1] // 2] = True
    ids = [f"photo {i}" for i in range(COUNT)]
    data = hp.load_data(pictures, model, ids=ids, labels=LABELS, masks=masks)
    assert sorted(data.ids) == sorted(ids)
    assert data.has_silhouettes
    silhouette = data.load(0).silhouette
    assert silhouette[:, :6].all() and not silhouette[:, 10:].any()
    triples = Pictures(pictures, lambda p, i: (p, LABELS[i], masks[i]))
    result = hp.evaluate(model, triples, ["ixg", "object"], ["attr-mass"])
    assert result.scores.query("method == 'object'")["value"].min() == pytest.approx(1)
    with pytest.raises(HeatproofError, match="12 images, but 2 labels"):
        hp.load_data(pictures, model, labels=[0, 1])
    with pytest.raises(HeatproofError, match="labels go with a Dataset"):
        hp.load_data("paperbirds:test", labels=[0])


def test_a_normalisation_can_be_undone(model, pictures):
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.1])
    images = torch.rand(4, 3, 16, 16)
    normal = (images - mean[:, None, None]) / std[:, None, None]
    data = hp.load_data((normal, [0, 1, 2, 0]), normalized=(mean, std))
    fitted = hp.load_data(data, model)
    for i, name in enumerate(fitted.ids):
        torch.testing.assert_close(fitted.load(i).image, images[int(name)], atol=1e-6, rtol=0)
    with pytest.raises(HeatproofError, match="are those of your transform's Normalize"):
        hp.load_data((normal, None), normalized=([0.9], [0.9]))
    with pytest.raises(HeatproofError, match="8 bits, which is not normalized"):
        hp.load_data(pictures, normalized=(mean, std))
    with pytest.raises(HeatproofError, match="normalized is the mean and the std"):
        hp.load_data(pictures, normalized=3)


def test_labels_of_torchvision_data_sets_are_not_read_from_images(model, pictures):
    class Listed(Pictures):
        classes = ("cat", "ant", "bee")  # other numbers than the model's
        targets = torch.tensor([(label + 1) % 3 for label in LABELS])

    reads = []

    def count(picture, i):
        reads.append(i)
        return picture, (LABELS[i] + 1) % 3

    data = hp.load_data(Listed(pictures, count), limit=8)
    few = len(reads)
    fitted = hp.load_data(data, model)
    assert [LABELS[int(i)] for i in fitted.ids] == fitted.labels
    assert few < 24  # only for the checks

    class Shifted(Listed):
        target_transform = staticmethod(lambda label: label)

    items_label = hp.load_data(Shifted(pictures, lambda p, i: (p, LABELS[i])), network(16, None))
    assert [LABELS[int(i)] for i in items_label.ids] == items_label.labels


def test_new_sources_are_listed():
    names = {entry.id: entry.summary for entry in DATA}
    for name in ("webdataset", "parquet", "csv", "numpy", "hf-dataset"):
        assert names[name].startswith(f"{name}:")
