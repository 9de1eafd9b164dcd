"""Rect and Pooling: transforms that use knowledge of the marks."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.methods.transforms import pooling, rect


def slow_rect(values: np.ndarray, fraction: float) -> np.ndarray:
    height, width = values.shape
    side, total, y, x = max(1, round(fraction * height)), 0.0, 0.0, 0.0
    for i in range(height):
        for j in range(width):
            weight = abs(float(values[i, j]))
            total, y, x = total + weight, y + weight * i, x + weight * j
    square = np.zeros_like(values)
    if total:
        top, left = (
            min(max(round(c / total - (side - 1) / 2), 0), n - side)
            for c, n in ((y, height), (x, width))
        )
        square[top : top + side, left : left + side] = 1
    return square


def slow_pooling(values: np.ndarray, bands: int) -> np.ndarray:
    pooled = np.zeros_like(values)
    for band in range(bands):
        rows = [r for r in range(len(values)) if r * bands // len(values) == band]
        if rows:
            pooled[rows] = values[rows].astype(np.float64).mean()
    return pooled


@pytest.mark.parametrize("fraction", [60 / 224, 0.5, 1.0, 0.01])
def test_rect_is_a_square_about_the_centre_of_mass(fraction):
    rng = np.random.default_rng(1)
    maps = rng.standard_normal((6, 20, 30)).astype(np.float32)
    maps[1] = 0
    maps[2], maps[3] = 0, 0
    maps[2, 0, 0] = maps[3, 19, 29] = -2
    squares = rect(torch.from_numpy(maps), fraction).numpy()
    assert all(
        np.array_equal(one, slow_rect(before, fraction))
        for one, before in zip(squares, maps, strict=True)
    )
    assert squares[0].sum() == max(1, round(fraction * 20)) ** 2 and not squares[1].any()


@pytest.mark.parametrize("bands", [1, 5, 7, 20, 33])
def test_pooling_is_the_mean_of_every_band(bands):
    maps = np.random.default_rng(2).standard_normal((3, 20, 8)).astype(np.float32)
    pooled = pooling(torch.from_numpy(maps), bands).numpy()
    assert np.allclose(pooled, [slow_pooling(one, bands) for one in maps], atol=1e-7)


def test_each_transform_recovers_the_mark_it_is_made_for():
    """A map that is nonzero on the mark alone becomes the mark, or stays within its bands."""
    for i in range(12):
        number, code = (
            hp.load_data(f"{kind}:paperbirds:test", limit=12).load(i).silhouette
            for kind in ("watermark", "stripes")
        )
        assert torch.equal(rect(number[None].float())[0].bool(), number)
        assert torch.equal(pooling(code[None].float(), 5)[0].bool(), code)


def test_transforms_follow_any_method_and_refuse_bad_arguments():
    assert Expression.parse("ig(steps=20)|relu|pooling(5)").label == "ig(steps=20)|relu|pooling(5)"
    assert not Expression.parse("ixg|rect").signed
    for wrong in ("ig|rect(0)", "ig|rect(2)", "ig|pooling(0)"):
        with pytest.raises(HeatproofError):
            Expression.parse(wrong)
