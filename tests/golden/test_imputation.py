"""Case 9: ROAD's linear imputation without noise, by the papers' code (sparse LU, double)."""

import numpy as np
import pytest
import torch

import heatproof.functional as F

MASKS = [
    "scattered_10",
    "scattered_50",
    "scattered_90",
    "scattered_98",
    "disc_centre",
    "block_corner",
    "border_frame",
    "half",
]
MASKS += ["keep_disc_98", "single_pixel_known", "single_pixel_unknown"]


@pytest.mark.parametrize("mask", MASKS)
def test_small_images(golden, deviation, mask):
    case = golden("case09_imputation32")
    x, removed = torch.from_numpy(case["images"]), torch.from_numpy(~case[f"mask__{mask}"])
    ours = F.linear_impute(x, removed.expand(len(x), -1, -1), noise=0).numpy()
    deviation("linear", "ROAD", ours, case[f"soco__{mask}"])
    np.testing.assert_allclose(ours, case[f"soco__{mask}"], rtol=0, atol=1e-5)


def test_a_disc_and_scattered_pixels_of_224_px(golden, deviation):
    case = golden("case09_imputation224")
    x, removed = torch.from_numpy(case["image"])[None], torch.from_numpy(~case["mask"])[None]
    ours = F.linear_impute(x, removed, noise=0)[0][:, removed[0]].numpy()
    deviation("linear", "ROAD, 224 px", ours, case["imputed_values_at_unknown"])
    np.testing.assert_allclose(ours, case["imputed_values_at_unknown"], rtol=0, atol=1e-5)


def test_nothing_removed_is_the_image(golden):
    x = torch.from_numpy(golden("case09_imputation32")["images"])
    assert torch.equal(F.linear_impute(x, torch.zeros_like(x[:, 0], dtype=torch.bool)), x)
