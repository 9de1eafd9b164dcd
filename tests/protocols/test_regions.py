"""Localisation on masks: Quantus, closed forms, ties and images without objects."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.models.vision import import_torchvision
from heatproof.protocols.regions import top_fraction

import_torchvision()

import quantus  # noqa: E402

METRICS = {
    "pointing": quantus.PointingGame,
    "mass": quantus.RelevanceMassAccuracy,
    "rank-accuracy": quantus.RelevanceRankAccuracy,
}
NET = "paperbirds/resnet"


@pytest.fixture(scope="module")
def positive():
    """Return positive maps with distinct values, masks and images."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(6, 64, 64, generator=generator)
    masks = torch.zeros(6, 64, 64, dtype=torch.bool)
    for i in range(6):
        masks[i, 5 * i : 30 + 5 * i, 10 : 40 + 2 * i] = True
    return maps, masks, torch.rand(6, 3, 64, 64, generator=generator)


def scored(name, positive):
    maps, masks, images = positive
    ids = [str(i) for i in range(len(maps))]
    data = hp.load_data((images, [0] * len(maps)), masks=list(masks.numpy()), ids=ids)

    def given(model, x, target, *, rng):
        return torch.stack([maps[ids.index(i)] for i in rng.ids])

    rows = hp.evaluate(NET, data, [given], [name]).scores
    return rows.set_index("sample")["value"][ids].tolist()


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scores_are_those_of_quantus(name, positive):
    maps, masks, images = positive
    metric = METRICS[name](abs=False, normalise=False, disable_warnings=True)
    expected = metric(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2)),
        images.numpy(),
        np.zeros(len(maps), np.int64),
        a_batch=maps.numpy()[:, None],
        s_batch=masks.numpy()[:, None],
        channel_first=True,
    )
    assert scored(name, positive) == pytest.approx([float(e) for e in expected], abs=1e-5)


def test_top_values_equal_a_slow_count_and_equal_values_share_places():
    maps = torch.tensor([[[3.0, 2, 2, 2, 0]], [[5.0, 4, 3, 2, 1]]])
    inside = torch.tensor([[[1, 1, 0, 0, 0]], [[0, 1, 0, 1, 0]]]).bool()
    assert top_fraction(maps, inside, torch.tensor([1, 1])).tolist() == [1, 0]
    expected = [(1 + 1 / 3) / 2, 1 / 2]
    assert top_fraction(maps, inside, torch.tensor([2, 2])).tolist() == pytest.approx(expected)
    flat = torch.ones(1, 4, 5)
    object_of_six = torch.arange(20).reshape(1, 4, 5) < 6
    for count in (1, 6, 20):
        assert top_fraction(flat, object_of_six, torch.tensor([count])).item() == pytest.approx(0.3)


def test_the_object_scores_one_and_a_constant_map_its_fraction():
    names = ["pointing", "mass", "rank-accuracy", "attr-mass"]
    result = hp.evaluate(NET, "paperbirds:test", ["object", "constant"], names, limit=4)
    values = result.scores.set_index(["protocol", "method", "sample"])["value"]
    data = hp.load_data("paperbirds:test", limit=4)
    for i, sample in enumerate(data.ids):
        fraction = data.load(i).silhouette.float().mean().item()
        for name in names:
            assert values[name, "object", sample] == pytest.approx(1)
            assert values[name, "constant", sample] == pytest.approx(fraction, rel=1e-6)


def test_negative_values_do_not_count_as_mass_and_tolerance_widens_the_object():
    maps = torch.full((1, 64, 64), -1.0)
    maps[0, 10, 10], maps[0, 40, 40] = 3, 1
    masks = torch.zeros(1, 64, 64, dtype=torch.bool)
    masks[0, 13:20, 14:20] = True  # five pixels from the largest value
    masks[0, 40, 40] = True
    given = maps, masks, torch.rand(1, 3, 64, 64)
    assert scored("mass", given) == [0.25]
    tolerances = [scored(f"pointing(tolerance={t})", given) for t in (0, 4, 5)]
    assert tolerances == [[0], [0], [1]]


def test_images_without_an_object_have_no_score():
    masks = torch.zeros(2, 64, 64, dtype=torch.bool)
    masks[0, :4] = True
    data = hp.load_data((torch.rand(2, 3, 64, 64), [0, 1]), masks=list(masks.numpy()))
    rows = hp.evaluate(NET, data, ["ixg"], list(METRICS)).scores
    assert rows["status"].tolist().count("undefined") == 3
    assert rows["message"].str.contains("no pixel of the image is of an object").sum() == 3
