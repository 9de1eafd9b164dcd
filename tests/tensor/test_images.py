"""Patches, filters and resizing, compared with direct implementations."""

import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatproof.errors import HeatproofError
from heatproof.tensor.filters import gaussian, resize, separable
from heatproof.tensor.patches import patch_masks, patch_sums


@pytest.mark.parametrize("patches", [4, 16, 64])
def test_patch_sums_and_masks_agree_with_a_loop(patches):
    maps = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    side = int(patches**0.5)
    height, width = 24 // side, 16 // side
    expected = torch.stack(
        [
            maps[:, r * height : (r + 1) * height, c * width : (c + 1) * width].sum((1, 2))
            for r in range(side)
            for c in range(side)
        ],
        1,
    )
    torch.testing.assert_close(patch_sums(maps, patches), expected)
    masks = patch_masks(patches, 24, 16)
    torch.testing.assert_close(torch.einsum("bhw,phw->bp", maps, masks.double()), expected)
    assert (masks.sum(0) == 1).all()


@pytest.mark.parametrize(
    ("patches", "cure"),
    [
        (17, "the nearest: 16 or 25$"),
        (1, "the nearest: 4$"),
        (0, "the nearest: 4$"),
        (-4, "the nearest: 4$"),
        (9, "choose patches from 4, 16, 64, 256, 1024$"),
        (900, "choose patches from 4, 16, 64, 256, 1024$"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_with_the_nearest_that_do(patches, cure):
    with pytest.raises(HeatproofError, match=cure):
        patch_sums(torch.zeros(1, 32, 32), patches)


def test_of_many_possible_grids_the_nearest_are_named():
    with pytest.raises(HeatproofError, match="patches from 4, 9, 16, 36, 64, 81$"):
        patch_sums(torch.zeros(1, 144, 144), 49)


def test_the_numbers_of_patches_divide_both_sides():
    with pytest.raises(HeatproofError, match="choose patches from 4, 16, 64$"):
        patch_sums(torch.zeros(1, 24, 16), 9)
    with pytest.raises(HeatproofError, match="no number of patches divides 7×5 px"):
        patch_sums(torch.zeros(1, 7, 5), 4)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 3, 5, 9]), st.floats(0.5, 5))
def test_separable_gaussian_equals_the_two_dimensional_one(size, sigma):
    x = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    kernel = gaussian(size, sigma)
    for padding, mode in {"constant": "constant", "reflect": "mirror"}.items():
        ours = separable(x, kernel, padding)
        for channel in range(2):
            expected = scipy.ndimage.correlate(
                x[0, channel].double().numpy(),
                torch.outer(kernel, kernel).double().numpy(),
                mode=mode,
            )
            torch.testing.assert_close(
                ours[0, channel], torch.from_numpy(expected).float(), rtol=1e-5, atol=1e-6
            )


def test_smoothing_keeps_the_mass_away_from_the_border():
    point = torch.zeros(1, 1, 31, 31)
    point[0, 0, 15, 15] = 1
    assert separable(point, gaussian(17, 17 / 4), "constant").sum().item() == pytest.approx(
        1, abs=1e-6
    )


def test_resize_returns_a_map_of_the_requested_size_unchanged():
    maps = torch.randn(2, 8, 8)
    assert resize(maps, 8, 8) is maps
    assert resize(maps, 32, 16).shape == (2, 32, 16)
