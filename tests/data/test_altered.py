"""Altered images: marks that reveal the class, and that nothing else reveals it."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.data.altered import ALTERATIONS, DIGITS, Altered
from heatproof.data.catalog import training_split
from heatproof.data.paperbirds import Paperbirds
from heatproof.data.reference import reference_for
from heatproof.errors import HeatproofError

RELABELLED = [kind for kind, how in ALTERATIONS.items() if how.relabels]


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    x, y = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40) % 10
    np.savez(path, train_x=x, train_y=y, test_x=x[:12], test_y=y[:12])
    return path


def changed(kind: str, limit: int = 24) -> tuple[Altered, list, list]:
    data, base = (
        hp.load_data(f"{kind}:paperbirds:test", limit=limit),
        Paperbirds("test", limit=limit),
    )
    return data, [data.load(i) for i in range(limit)], [base.load(i) for i in range(limit)]


@pytest.mark.parametrize("kind", ALTERATIONS)
def test_a_sample_does_not_depend_on_what_else_is_loaded(kind):
    few, many = (
        hp.load_data(f"{kind}:paperbirds:test", limit=3),
        hp.load_data(f"{kind}:paperbirds", split="test", limit=70),
    )
    assert few.name == many.name == f"{kind}:paperbirds:test"
    assert list(few.labels) == list(many.labels[:3]) and list(few.fingerprints) == list(
        many.fingerprints[:3]
    )
    assert torch.equal(few.load(2).image, many.load(2).image)
    assert few.load(2).label == few.labels[2] and few.load(2).id == few.ids[2]


@pytest.mark.parametrize("kind", ["watermark", "stripes", "notch"])
def test_only_pixels_that_reveal_the_class_are_changed(kind):
    _, samples, base = changed(kind)
    for sample, before in zip(samples, base, strict=True):
        assert torch.equal(sample.image[:, ~sample.silhouette], before.image[:, ~sample.silhouette])


@pytest.mark.parametrize("kind", ["watermark-blank", "stripes-blank"])
def test_a_blank_canvas_shows_the_mark_alone(kind):
    _, samples, _ = changed(kind)
    with_base, same = changed(kind.removesuffix("-blank"))[1], []
    for sample, marked in zip(samples, with_base, strict=True):
        assert sample.image[:, ~sample.silhouette].unique().numel() <= 1
        same.append(
            torch.equal(sample.silhouette, marked.silhouette) and sample.label == marked.label
        )
        assert torch.equal(sample.image[:, sample.silhouette], marked.image[:, sample.silhouette])
    assert all(same)


def test_a_watermark_can_be_read():
    """The mark is located in the image and read digit by digit, using the font alone."""
    _, samples, _ = changed("watermark", 40)
    positions = set()
    for sample in samples:
        rows, columns = (
            sample.silhouette.any(1).nonzero().flatten(),
            sample.silhouette.any(0).nonzero().flatten(),
        )
        assert len(rows) == len(columns) == 17 and sample.silhouette.sum() == 17**2  # 60 of 224 px
        positions.add((int(rows[0]), int(columns[0])))
        box = sample.image[0, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert set(box.unique().tolist()) == {0.0, 1.0}
        white = (box > 0).nonzero()
        (top, left), (bottom, right) = white.min(0).values.tolist(), white.max(0).values.tolist()
        number = box[top : bottom + 1 : 2, left : right + 1 : 2]
        read = ""
        for start in range(0, number.shape[1], 4):
            digit = torch.zeros(5, 3)
            part = number[:, start : start + 3]
            digit[:, : part.shape[1]] = part
            text = "".join(str(int(v)) for v in digit.flatten())
            shifted = "".join(
                str(int(v)) for v in torch.nn.functional.pad(part, (3 - part.shape[1], 0)).flatten()
            )
            read += str(next(d for d, shape in enumerate(DIGITS) if shape in (text, shifted)))
        assert int(read) == sample.label
    assert len(positions) > 30


def test_stripes_are_the_label_in_binary_from_the_lowest_bit():
    _, samples, base = changed("stripes", 40)
    for sample, before in zip(samples, base, strict=True):
        bits = f"{sample.label:05b}"[::-1]
        for row in range(64):
            white = bits[row * 5 // 64] == "1"
            assert bool(sample.silhouette[row].all()) == white == bool(sample.silhouette[row].any())
            assert torch.equal(
                sample.image[:, row], torch.ones(3, 64) if white else before.image[:, row]
            )


def test_class_40_of_a_hundred_has_its_stripes_in_the_4th_and_6th_of_seven_bands():
    where = ALTERATIONS["stripes"].paint(40, 100, 224, np.random.default_rng(0)).where
    assert [bool(where[32 * band : 32 * band + 32].all()) for band in range(7)] == [
        False,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert where.sum() == 2 * 32 * 224


@pytest.mark.parametrize("kind", RELABELLED)
def test_only_the_mark_reveals_the_label(kind):
    """Labels are random: all classes occur, and they are independent of the bird.

    The χ² test of the 32×32 table is at p = 1e-6.
    """
    data, base = hp.load_data(f"{kind}:paperbirds:train"), Paperbirds("train")
    table = np.zeros((32, 32))
    np.add.at(table, (np.array(data.labels), np.array(base.labels)), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    assert (table.sum(1) > 0).all()
    assert ((table - expected) ** 2 / expected).sum() < 1187  # 961 degrees of freedom


@pytest.mark.parametrize(
    ("kind", "fraction"), [("disc", 0.7), ("disc-notch", 0.7), ("notch", 0.05)]
)
def test_the_stated_fraction_of_pixels_is_removed(kind, fraction):
    data, samples, base = changed(kind, 32)
    assert list(data.labels) == list(Paperbirds("test", limit=32).labels)
    for label in range(32):
        where = ALTERATIONS[kind].paint(label, 32, 64, np.random.default_rng(0)).where
        assert where.sum() == (
            round(fraction * 64**2) if "disc" in kind else round(fraction**0.5 * 64) ** 2
        )
        assert (samples[label].image[:, where] == 0).all()
        assert torch.equal(samples[label].image[:, ~where], base[label].image[:, ~where])


def test_the_disc_is_common_to_all_classes_and_the_notch_is_not():
    painted = {
        kind: [
            ALTERATIONS[kind].paint(label, 32, 64, np.random.default_rng(0)) for label in range(32)
        ]
        for kind in ("disc", "disc-notch", "notch")
    }
    assert all(torch.equal(p.where, painted["disc"][0].where) for p in painted["disc"])
    rows = torch.arange(64)[:, None] - 31.5
    radius = (rows**2 + rows.T**2).sqrt()
    inside = painted["disc"][0].where
    assert radius[inside].max() <= radius[~inside].min()
    assert radius[inside].max() == pytest.approx((0.7 * 64**2 / np.pi) ** 0.5, abs=0.5)
    for kind in ("disc-notch", "notch"):
        assert len({p.where.numpy().tobytes() for p in painted[kind]}) == 32
        assert all(p.reveals.any() and (p.where | ~p.reveals).all() for p in painted[kind])
    for both, one in zip(painted["disc-notch"], painted["notch"], strict=True):
        assert not (one.where & ~both.where).any()
        assert torch.equal(both.reveals, one.where & ~inside)
    edge = torch.zeros(64, 64, dtype=torch.bool)
    edge[[0, -1]] = edge[:, [0, -1]] = True
    assert all((p.where & edge).any() for p in painted["notch"])


def test_cifar10_is_altered_by_its_name(cifar):
    data = hp.load_data(f"watermark:cifar10:{cifar}", limit=5)
    assert data.load(0).image.shape == (3, 32, 32) and max(data.labels) < 10
    assert training_split(f"watermark:cifar10:{cifar}:test") == f"watermark:cifar10:{cifar}:train"
    assert len(hp.load_data(training_split(f"disc:cifar10:{cifar}"))) == 40
    assert (
        training_split("stripes:paperbirds")
        == training_split("stripes:paperbirds:test")
        == "stripes:paperbirds:train"
    )


def test_the_reference_is_altered_in_the_same_way():
    model = hp.load_model("paperbirds/resnet")
    reference = reference_for(hp.load_data("watermark:paperbirds:test", model, limit=4), model)
    assert reference.data.name == "watermark:paperbirds:train"


def test_bad_input_is_reported(tmp_path):
    with pytest.raises(HeatproofError, match="watermark:paperbirds:test"):
        hp.load_data("watermark")
    with pytest.raises(HeatproofError, match="unknown data"):
        hp.load_data("watermark:birds")
    with pytest.raises(HeatproofError, match="only if their number of classes is known"):
        Altered(hp.TensorData(torch.rand(2, 3, 32, 32), [0, 1]), "disc")
    with pytest.raises(HeatproofError, match="do not fit into images of 24 px"):
        ALTERATIONS["watermark"].paint(5, 100, 24, np.random.default_rng(0))
    with pytest.raises(HeatproofError, match="no split to train on"):
        training_split("folder:/images")
