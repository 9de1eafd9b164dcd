"""Attr%: closed forms, the oracle, and undefined scores."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.tensor.localization import mass_fraction


def one_corner(model, x, target, *, rng):
    """Return maps of −3 in the first pixel and 1 in the last."""
    maps = torch.zeros_like(x[:, 0])
    maps[:, 0, 0], maps[:, -1, -1] = -3, 1
    return maps


def nothing(model, x, target, *, rng):
    """Return maps that are zero everywhere."""
    return torch.zeros_like(x[:, 0])


def scores(data: str, methods: list, limit: int = 40):
    result = hp.evaluate(
        "paperbirds/resnet", data, methods, ["attr-mass"], limit=limit, keep_maps=0
    )
    return result.scores.set_index(["method", "sample"]), hp.load_data(data, limit=limit)


def test_simple_maps_have_the_mass_fractions_of_closed_forms():
    rows, data = scores(
        "watermark:paperbirds:test", ["object", "constant", one_corner, nothing, "random"]
    )
    assert rows["status"].eq("ok").all()
    for i, sample in enumerate(data.ids):
        inside = data.load(i).silhouette
        value = rows["value"].xs(sample, level="sample")
        assert value["object"] == 1
        assert value["constant"] == pytest.approx(17**2 / 64**2, rel=1e-12)
        assert value["one_corner"] == (3 * int(inside[0, 0]) + int(inside[-1, -1])) / 4
        assert value["nothing"] == 0
    assert rows["value"]["random"].mean() == pytest.approx(17**2 / 64**2, abs=0.005)


def test_samples_whose_label_adds_no_stripes_have_no_score():
    rows, data = scores("stripes:paperbirds:test", ["constant"], 80)
    for i, sample in enumerate(data.ids):
        row = rows.loc["constant", sample]
        if data.labels[i]:
            assert row["status"] == "ok" and row["value"] == pytest.approx(
                data.load(i).silhouette.float().mean().item(), rel=1e-6
            )
        else:
            assert (
                row["status"] == "undefined"
                and "no pixel of the image determines its class" in row["message"]
            )
    assert 0 in data.labels


def test_the_mass_fraction_is_independent_of_scale_and_equals_a_slow_sum():
    rng = np.random.default_rng(0)
    maps, inside = rng.standard_normal((5, 7, 9)).astype(np.float32), rng.random((5, 7, 9)) < 0.3
    slow = [
        sum(abs(float(v)) for v in m[i]) / sum(abs(float(v)) for v in m.flatten())
        for m, i in zip(maps, inside, strict=True)
    ]
    for scale in (1.0, 1e-30, 1e30):
        fractions = mass_fraction(
            torch.from_numpy(maps * np.float32(scale)), torch.from_numpy(inside)
        )
        assert fractions.tolist() == pytest.approx(slow, rel=1e-6)


def test_data_without_relevant_pixels_is_named_as_not_applicable():
    rows = hp.evaluate(
        "paperbirds/resnet", "disc:paperbirds:test", ["random"], ["attr-mass"], limit=2
    ).scores
    assert rows["status"].eq("n/a").all()
    assert (
        rows["message"]
        .str.contains("disc:paperbirds:test does not say which pixels matter; use watermark")
        .all()
    )
    with pytest.raises(HeatproofError, match="has no setting"):
        hp.evaluate(
            "paperbirds/resnet", "paperbirds:test", ["random"], ["attr-mass(steps=3)"], limit=2
        )
