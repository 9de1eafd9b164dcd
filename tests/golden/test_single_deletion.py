"""Case 1: drops, patch sums and correlations of the IDSDS code."""

import numpy as np
import pytest
import torch

import heatproof.functional as F

BASELINES = {"zeros": "zero", "blur": "blur(compat=idsds)"}
MAPS = ["ixg_resnet", "random_normal", "ties_cells", "constant_some", "with_nan"]


@pytest.mark.parametrize("name", ["vgg", "resnet"])
@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("baseline", BASELINES)
def test_drops_and_correlations_agree_with_the_idsds_code(
    golden, golden_model, name, side, baseline
):
    case, model = golden("case01_single_deletion"), golden_model(name)
    x, target = torch.from_numpy(case["images"]), torch.from_numpy(case["labels"])
    stored = case[f"{name}__g{side}__{baseline}__drops"]
    drops = F.patch_drops(model, x, target, side * side, BASELINES[baseline])
    np.testing.assert_allclose(drops, stored, rtol=1e-4, atol=1e-5 * np.abs(stored).max())
    for label in MAPS:
        prefix = f"{name}__g{side}__{baseline}__{label}__"
        sums = F.patch_sums(torch.from_numpy(case[f"map__{label}"])[:, 0], side * side)
        np.testing.assert_allclose(sums, case[prefix + "patchsum"], rtol=1e-4, atol=1e-4)
        from_stored = F.spearman(
            torch.from_numpy(case[prefix + "patchsum"]), torch.from_numpy(stored)
        ).numpy()
        np.testing.assert_allclose(from_stored, case[prefix + "rho"], atol=1e-6, equal_nan=True)
        np.testing.assert_array_equal(np.isfinite(from_stored), case[prefix + "kept"])
        ours = F.spearman(sums, drops.double()).numpy()
        np.testing.assert_allclose(ours, case[prefix + "rho"], atol=0.003, equal_nan=True)
        np.testing.assert_allclose(np.nanmean(from_stored), case[prefix + "mean"], atol=1e-6)


def test_a_plain_function_gives_the_same_drops(golden, golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    plain = F.patch_drops(lambda batch: model(batch), x, target, 16)
    torch.testing.assert_close(plain, F.patch_drops(model, x, target, 16), rtol=1e-4, atol=1e-5)


def test_the_blur_agrees_with_the_idsds_code(golden, golden_model):
    from heatproof.baselines import Baseline
    from heatproof.tensor.noise import Rng

    case = golden("case01_single_deletion")
    x = torch.from_numpy(case["images"])
    blurred = Baseline.parse("blur(compat=idsds)").fill(x, None, Rng(0, [""] * len(x)))
    np.testing.assert_allclose(blurred, case["blurred_images"], atol=1e-5)
