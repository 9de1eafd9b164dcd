"""Similarity of maps: scikit-image, closed forms and invariances."""

import pytest
import torch
from skimage.metrics import structural_similarity

from heatproof.tensor.map_similarity import map_similarity, normalized, ssim


def maps(count: int = 4, side: int = 23) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, side, side + 4, generator=generator, dtype=torch.float64)


def test_structural_similarity_is_that_of_scikit_image():
    a = maps()
    b = 0.7 * a + 0.3 * maps().flip(0)
    for x, y, value in zip(a.numpy(), b.numpy(), ssim(a, b).tolist(), strict=True):
        span = max(x.max(), y.max()) - min(x.min(), y.min())
        assert value == pytest.approx(structural_similarity(x, y, data_range=span), abs=1e-10)


def test_a_map_is_most_similar_to_itself_and_scales_matter_for_ssim_alone():
    a, b = maps(), maps().flip(0)
    for kind in ("spearman", "ssim"):
        assert map_similarity(a, a, kind).tolist() == pytest.approx([1.0] * len(a))
    assert torch.equal(map_similarity(a, 5 * b), map_similarity(a, b))
    assert not torch.allclose(ssim(a, 5 * b), ssim(a, b))
    for by in ("max", "moment"):
        scaled = map_similarity(a, 5 * b, "ssim", by)
        torch.testing.assert_close(scaled, map_similarity(a, b, "ssim", by))


def test_normalized_maps_have_a_largest_value_or_a_mean_square_of_one():
    a = 3 * maps()
    assert normalized(a, "max").abs().flatten(1).amax(1).tolist() == pytest.approx([1] * len(a))
    assert normalized(a, "moment").square().mean((1, 2)).tolist() == pytest.approx([1] * len(a))
    assert not normalized(torch.zeros(1, 8, 8), "moment").any()


def test_maps_of_one_value_have_no_rank_correlation_and_no_structure():
    same = torch.ones(1, 9, 9)
    assert map_similarity(same, maps(1, 9)[:, :, :9]).isnan().all()
    assert ssim(same, same).isnan().all()
