"""CIFAR-10 from both file formats, and from files that are something else."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.data.cifar import CLASSES
from heatproof.data.reference import reference_for
from heatproof.errors import HeatproofError


def arrays(count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    """Write the same images as .npz and as batches in the format of Python 2.

    Those are pickles of protocol 2 with bytes as keys.
    """
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-py"
    folder.mkdir()
    train, test = [arrays(6, seed) for seed in range(1, 6)], arrays(8, 0)
    for name, (x, y) in {
        **{f"data_batch_{i}": batch for i, batch in enumerate(train, 1)},
        "test_batch": test,
    }.items():
        batch = {
            b"data": x.transpose(0, 3, 1, 2).reshape(len(x), -1),
            b"labels": y.tolist(),
            b"batch_label": b"one of some",
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    npz = folder.parent / "cifar10.npz"
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
    np.savez(npz, train_x=x, train_y=y, test_x=test[0], test_y=test[1])
    return npz, folder, test


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_formats_give_the_same_data(formats, split):
    npz, folder, (x, y) = formats
    sets = [hp.load_data(f"cifar10:{path}:{split}") for path in (npz, folder, folder.parent)]
    assert len(sets[0]) == (30 if split == "train" else 8)
    for other in sets[1:]:
        assert (other.ids, other.labels, other.fingerprints) == (
            sets[0].ids,
            sets[0].labels,
            sets[0].fingerprints,
        )
        assert torch.equal(other.load(4).image, sets[0].load(4).image)
    if split == "test":
        assert sets[0].labels == y.tolist()
        assert torch.equal(sets[0].load(3).image, torch.from_numpy(x[3]).permute(2, 0, 1) / 255)


def test_the_test_split_is_the_default_and_a_limit_takes_the_first(formats):
    npz, _, (_, y) = formats
    data = hp.load_data(f"cifar10:{npz}", limit=5)
    assert data.labels == y[:5].tolist() and data.ids[0] == "test-00000"
    assert len(hp.load_data(f"cifar10:{npz}", split="train")) == 30
    with pytest.raises(HeatproofError, match="names a split, and split=test another"):
        hp.load_data(f"cifar10:{npz}:train", split="test")


def test_labels_follow_the_class_names_of_the_model_and_images_its_size(formats):
    npz, _, (_, y) = formats
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    model = hp.Model(net, size=48, classes=CLASSES[::-1])
    data = hp.load_data(f"cifar10:{npz}", model)
    assert data.labels == [9 - label for label in y.tolist()] and data.load(0).image.shape == (
        3,
        48,
        48,
    )
    with pytest.raises(HeatproofError, match="the model has no class named airplane"):
        hp.load_data(f"cifar10:{npz}", hp.Model(net, size=32, classes=[f"c{i}" for i in range(10)]))


class Hostile:
    def __reduce__(self):
        return eval, ("open('ran', 'w')",)


def test_a_pickle_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(
        pickle.dumps({b"data": Hostile(), b"labels": []}, protocol=2)
    )
    with pytest.raises(
        HeatproofError, match=r"it asks for (builtins|__builtin__)\.eval, which is not an array"
    ):
        hp.load_data(f"cifar10:{tmp_path}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1, 2]), "it has no data and labels"),
        (b"not a pickle", "cannot read"),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 11]}),
            "labels from 0 to 9",
        ),
    ],
)
def test_batches_of_something_else_are_reported(tmp_path, content, message):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(f"cifar10:{tmp_path}")


def test_files_of_something_else_are_reported(tmp_path):
    with pytest.raises(
        HeatproofError, match="CIFAR-10 is read from an .npz file or from the folder"
    ):
        hp.load_data(f"cifar10:{tmp_path / 'nothing.npz'}")
    with pytest.raises(HeatproofError, match="there is no .*test_batch"):
        hp.load_data(f"cifar10:{tmp_path}")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    np.savez(tmp_path / "b.npz", test_x=np.zeros((2, 32, 32)), test_y=np.zeros(2))
    np.savez(tmp_path / "c.npz", test_x=np.array([Hostile()], dtype=object), test_y=np.zeros(1))
    (tmp_path / "d.npz").write_bytes(b"nothing")
    for name, message in {
        "a": "it has train_x",
        "b": "expected images of 32×32×3",
        "c": "allow_pickle",
        "d": "cannot read",
    }.items():
        with pytest.raises(HeatproofError, match=message):
            hp.load_data(f"cifar10:{tmp_path / name}.npz")


def test_the_training_split_is_the_reference(formats):
    """Methods and baselines that prepare from reference images apply without one being named."""
    npz, *_ = formats
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU())
    net = nn.Sequential(*net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model = hp.Model(net, size=32, name="small")
    evaluated = hp.load_data(f"cifar10:{npz}:test", model)
    reference = reference_for(evaluated, model)
    assert (reference.data.name, len(reference.indices)) == (f"cifar10:{npz}:train", 30)
    trained_on = hp.load_data(f"cifar10:{npz}:train", model, limit=10)
    assert list(reference_for(trained_on, model).indices) == list(range(10, 30))
    summary = hp.evaluate(model, evaluated, ["iba(steps=2)@0"], ["sds"]).summary()
    assert summary["n/a"].tolist() == [0] and summary["mean"].notna().all()


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """The published folder of CIFAR-100: one file per split, with fine and coarse labels."""
    folder = tmp_path_factory.mktemp("cifar100") / "cifar-100-python"
    folder.mkdir()
    for split, seed in (("train", 1), ("test", 2)):
        x, _ = arrays(6, seed)
        batch = {
            b"data": x.transpose(0, 3, 1, 2).reshape(len(x), -1),
            b"fine_labels": [99, 0, 41, 7, 99, 63],
            b"coarse_labels": [0] * 6,
        }
        (folder / split).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def test_cifar100_has_its_fine_labels(hundred):
    data = hp.load_data(f"cifar100:{hundred.parent}:test")
    assert len(data.classes) == 100
    assert (data.classes[0], data.classes[99]) == ("apple", "worm")
    assert data.labels == [99, 0, 41, 7, 99, 63]
    assert torch.equal(
        data.load(2).image, torch.from_numpy(arrays(6, 2)[0][2]).permute(2, 0, 1) / 255
    )
    assert hp.load_data(f"stripes:cifar100:{hundred}:test").load(0).silhouette is not None


def test_the_two_data_sets_are_not_mistaken_for_each_other(hundred, formats):
    with pytest.raises(HeatproofError, match="the folder cifar-10-batches-py has"):
        hp.load_data(f"cifar10:{hundred}")
    np.savez(hundred / "mixed.npz", test_x=arrays(1, 0)[0], test_y=np.array([41]))
    with pytest.raises(HeatproofError, match="as many labels from 0 to 9"):
        hp.load_data(f"cifar10:{hundred / 'mixed.npz'}")


def test_a_mark_for_a_hundred_classes_has_seven_bands(hundred):
    """Class 41 is 0101001 in binary: the first, the fourth and the sixth of seven bands."""
    data = hp.load_data(f"stripes:cifar100:{hundred}:train", seed=0)
    model = hp.load_model("cifar100/vgg16", "random")
    assert (model.size, model.n_classes) == (224, 100)
    large = hp.load_data(f"stripes:cifar100:{hundred}:train", model=model)
    for index in range(6):
        label = data.labels[index]
        rows = large.load(index).silhouette.any(1)
        bands = [bool(rows[32 * band + 16]) for band in range(7)]
        assert bands == [bool(label >> band & 1) for band in range(7)]
