"""Grids: which images are combined, and the pool they are drawn from."""

from collections import Counter

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.data.grids import (
    Grids,
    GridSample,
    assumed_confidence,
    confident_images,
    count_reused,
    draw_grids,
    label_confidence,
    make_grids,
)
from heatproof.errors import HeatproofError

POOL = {label: list(range(100 * label, 100 * label + 20 + label)) for label in range(6)}


def class_of(image):
    return image // 100


@pytest.mark.parametrize("grid", [2])
def test_grid_cells_have_distinct_classes_and_images_are_evaluated_once(grid):
    grids = draw_grids(POOL, grid, False, 25)
    assert len(grids) == 25
    for cells in grids:
        assert len({class_of(i) for i in cells}) == grid**2
    evaluated = [i for cells in grids for i in cells]
    assert len(set(evaluated)) == len(evaluated)


@pytest.mark.parametrize("grid", [2])
def test_the_last_cell_repeats_the_class_of_the_first_with_another_image(grid):
    grids = draw_grids(POOL, grid, True, 40)
    assert len(grids) == 40
    for cells in grids:
        assert class_of(cells[0]) == class_of(cells[-1]) and len(set(cells)) == grid**2
        assert len({class_of(i) for i in cells}) == grid**2 - 1
    evaluated = [i for cells in grids for i in (cells[0], cells[-1])]
    assert len(set(evaluated)) == len(evaluated)


@pytest.mark.parametrize("grid", [2, 3])
def test_every_image_is_used_once_where_the_pool_is_large_enough(grid):
    """As in the paper: 1,000 grids of 2×2 consist of 4,000 different images."""
    pool = {label: list(range(100 * label, 100 * label + 50)) for label in range(40)}
    grids = draw_grids(pool, grid, True, 1600 // grid**2)
    images = [i for cells in grids for i in cells]
    assert len(grids) == 1600 // grid**2 and len(set(images)) == len(images)
    assert count_reused(grids) == 0


def test_images_beside_the_evaluated_ones_are_reused_where_the_pool_is_too_small():
    small = {label: images[:8] for label, images in POOL.items()}
    grids = draw_grids(small, 2, True, 100)
    assert len(grids) == 24  # every pair of images is evaluated
    evaluated = [i for cells in grids for i in (cells[0], cells[-1])]
    assert len(set(evaluated)) == len(evaluated) == 48
    assert all(len({class_of(i) for i in cells}) == 3 for cells in grids)
    first_reuse = next(n for n in range(25) if count_reused(grids[:n]))
    assert 9 <= first_reuse <= 12  # 12 grids would have all 48 images once
    counts = Counter(i for cells in grids for i in cells)
    assert count_reused(grids) == sum(n > 1 for n in counts.values()) > 0


@pytest.mark.parametrize("repeated", [False, True])
def test_more_grids_extend_fewer_and_another_seed_draws_others(repeated):
    assert draw_grids(POOL, 2, repeated, 20)[:7] == draw_grids(POOL, 2, repeated, 7)
    assert draw_grids(POOL, 2, repeated, 20, seed=1) != draw_grids(POOL, 2, repeated, 20)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_pool_that_runs_out_gives_fewer_grids(repeated):
    grids = draw_grids({label: images[:3] for label, images in POOL.items()}, 2, repeated, 100)
    assert 0 < len(grids) < 100
    assert draw_grids({0: [1, 2], 1: [3]}, 2, repeated, 5) == []


def test_classes_are_drawn_uniformly():
    """Each grid has 4 of 6 classes, however many images a class has."""
    large = {
        label: list(range(10_000 * label, 10_000 * label + 1000 * (label + 1)))
        for label in range(6)
    }
    grids = draw_grids(large, 2, False, 900)
    counts = torch.bincount(
        torch.tensor([i // 10_000 for cells in grids for i in cells]), minlength=6
    )
    assert (counts - 600).abs().max() < 5 * (900 * 4 / 6 * 2 / 6) ** 0.5


class Brightness(nn.Module):
    """Predicts class ⌊4 · brightness⌋, with more confidence near the centre of its range."""

    def forward(self, x):
        return -400 * (x.mean((1, 2, 3))[:, None] - (torch.arange(4) + 0.5) / 4) ** 2


@pytest.fixture(scope="module")
def bright():
    model = hp.Model(Brightness(), size=8, mean=(0, 0, 0), std=(1, 1, 1), name="bright")
    values = (torch.arange(48) + 0.5) / 48
    labels = (4 * values).long()
    labels[5] = 3  # a wrong label
    return model, hp.TensorData(values[:, None, None, None].expand(-1, 3, 8, 8).clone(), labels)


def test_the_pool_has_the_correct_and_confident_images(bright):
    model, data = bright
    softmax = model.logits(data.images).double().softmax(1)
    for threshold in (0.0, 0.6, 0.99):
        expected: dict[int, list[int]] = {}
        for i, label in enumerate(data.labels):
            if softmax[i].argmax() == label and softmax[i, label] >= threshold:
                expected.setdefault(label, []).append(i)
        assert confident_images([(model, data)], threshold) == dict(sorted(expected.items()))
    assert label_confidence(model, data)[5] == -1


def test_a_common_pool_has_the_images_all_models_are_confident_about(bright):
    """Images are matched by id in any order; one that a model lacks is left out."""
    model, data = bright

    class Softer(Brightness):
        def forward(self, x):
            return super().forward(x) / 3

    other = hp.Model(Softer(), size=8, mean=(0, 0, 0), std=(1, 1, 1), name="softer")
    order = list(range(47, 3, -1))
    reversed_data = hp.TensorData(
        data.images[order], [data.labels[i] for i in order], ids=[data.ids[i] for i in order]
    )
    pool = confident_images([(model, data), (other, reversed_data)], 0.9)
    first, second = (
        {i for part in confident_images([(m, data)], 0.9).values() for i in part}
        for m in (model, other)
    )
    assert {i for part in pool.values() for i in part} == (first & second) - {0, 1, 2, 3}
    assert second < first
    with pytest.raises(
        HeatproofError, match="bright and softer all give .* confidence=0.* would give"
    ):
        make_grids(
            [(model, data), (other, reversed_data)],
            2,
            repeated=False,
            confidence=0.99,
            count=5,
            most=5,
        )


def test_confidences_are_computed_once(bright):
    model, data = bright
    label_confidence(model, data)
    before = model.pass_counts.copy()
    confident_images([(model, data)], 0.3)
    assert model.pass_counts == before


def again(model):
    """Return the same model as another process would build it."""
    return hp.Model(type(model.module)(), size=8, mean=(0, 0, 0), std=(1, 1, 1), name=model.name)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_confidences_are_kept_for_the_next_process(bright, cache):
    _, data = bright
    first = again(bright[0])
    expected = label_confidence(first, data)
    assert sum(first.pass_counts.values()) > 0
    (file,) = (cache / "confidences").iterdir()
    second = again(bright[0])
    assert torch.equal(label_confidence(second, data), expected)
    assert not second.pass_counts

    content = file.read_bytes()
    damaged = bytearray(content)
    damaged[100] ^= 1
    for bad in (bytes(damaged), content[:-8], b""):
        file.write_bytes(bad)
        third = again(bright[0])
        assert torch.equal(label_confidence(third, data), expected)
        assert sum(third.pass_counts.values()) > 0  # computed again
        assert file.read_bytes() == content


def test_kept_confidences_belong_to_model_data_and_preprocessing(bright, cache):
    model, data = bright
    label_confidence(again(model), data)
    darker = hp.Model(Brightness(), size=8, mean=(0.1, 0, 0), std=(1, 1, 1), name="bright")
    other_images = hp.TensorData(data.images.flip(0), data.labels)
    other_labels = hp.TensorData(data.images, [1, *data.labels[1:]])
    for changed, its_data in (
        (darker, data),
        (again(model), other_images),
        (again(model), other_labels),
    ):
        label_confidence(changed, its_data)
        assert sum(changed.pass_counts.values()) > 0
    same = again(model)
    label_confidence(same, hp.TensorData(data.images.clone(), data.labels))
    assert not same.pass_counts


def test_confidences_are_computed_where_the_cache_cannot_be_written(bright, cache):
    cache.write_text("not a directory")
    model, data = bright
    assert torch.equal(label_confidence(again(model), data), label_confidence(model, data))


def test_a_grid_is_its_images_side_by_side(bright):
    _, data = bright
    grids = Grids(data, [(1, 13, 25, 37), (2, 14, 26, 38)], 2, 2, POOL)
    sample = grids.load(1)
    assert (
        sample.id == "2+14+26+38#2"
        and sample.label == 2 == grids.labels[1]
        and grids.contents[sample.id] == GridSample(("2", "14", "26", "38"), 2)
    )
    assert sample.image.shape == (3, 16, 16)
    for cell, (row, column) in zip((2, 14, 26, 38), ((0, 0), (0, 8), (8, 0), (8, 8)), strict=True):
        assert torch.equal(sample.image[:, row : row + 8, column : column + 8], data.images[cell])
    assert len(set(grids.fingerprints)) == 2


def test_ids_of_images_may_contain_any_character():
    """Grids whose joined names would be equal have different ids and keep their images."""
    names = ["a+b", "c", "a", "b+c", "#2", "\\", "d\\", "+"]
    data = hp.TensorData(torch.zeros(8, 3, 4, 4), range(8), ids=names)
    grids = Grids(data, [(0, 1, 4, 5), (2, 3, 4, 5), (6, 7, 4, 5)], 2, 1, {})
    assert len(set(grids.ids)) == 3
    assert [grids.contents[i].images[:2] for i in grids.ids] == [
        ("a+b", "c"),
        ("a", "b+c"),
        ("d\\", "+"),
    ]


def test_silhouettes_of_all_grid_cells_are_combined():
    data = hp.load_data("paperbirds:test", limit=8)
    mask = Grids(data, [(4, 5, 6, 7)], 2, 0, POOL).load(0).silhouette
    assert torch.equal(mask[64:, :64], data.load(6).silhouette)


def made(model, data, **changes):
    return make_grids(
        [(model, data)],
        2,
        **{"repeated": False, "confidence": 0.99, "count": None, "most": 500, **changes},
    )


def test_too_few_images_are_reported_with_a_sufficient_threshold(bright):
    model, data = bright
    grids, pool = made(model, data)
    assert len(grids) == min(map(len, pool.values()))
    count = len(grids) + 1
    images = sum(map(len, pool.values()))
    with pytest.raises(
        HeatproofError,
        match=rf"bright gives {images} images in 4 classes .* at least 0.99: "
        rf"enough for {count - 1} grids",
    ) as error:
        made(model, data, count=count)
    threshold = float(str(error.value).partition(". confidence=")[2].split()[0])
    assert len(made(model, data, count=count, confidence=threshold)[0]) == count
    with pytest.raises(
        HeatproofError,
        match="Even confidence=0 gives 47 images in 4 classes, and 11 grids. Use more data",
    ):
        made(model, data, count=100)


def test_a_plan_that_has_not_measured_confidences_does_not_claim_any(bright):
    model, data = bright
    few = hp.TensorData(data.images[:3], data.labels[:3])
    message = r"has 3 images in \d class(es)?: not enough for a grid of 2×2. Use more data"
    with assumed_confidence(), pytest.raises(HeatproofError, match=message):
        made(model, few)


def test_an_empty_pool_is_reported(bright):
    model, data = bright
    wrong = hp.TensorData(data.images, [(label + 1) % 4 for label in data.labels])
    with pytest.raises(
        HeatproofError,
        match="gives 1 image in 1 class .*: not enough for a grid of 2×2. Even confidence=0",
    ):
        made(model, wrong)


def test_images_without_labels_are_reported(bright):
    model, data = bright
    with pytest.raises(HeatproofError, match="images without a label"):
        made(model, hp.TensorData(data.images))
