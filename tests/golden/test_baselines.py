"""Case 12: baselines of the baseline paper's notebooks, with the permutations they drew."""

import pytest
import torch

from heatproof.baselines import Baseline, scrambles
from heatproof.baselines.fills import cell_centers, enlarged
from heatproof.baselines.scrambles import permuted, scrambled
from heatproof.tensor.noise import Rng


@pytest.fixture(scope="module")
def case(golden):
    return {k: torch.from_numpy(v) for k, v in golden("case12_baselines").items()}


@pytest.fixture(scope="module")
def x(case):
    return case["x_nhwc"].permute(0, 3, 1, 2).contiguous()


def stored(case, name):
    return case[f"base__{name}"].permute(0, 3, 1, 2)


def fill(text, x):
    return Baseline.parse(text).fill(x, None, Rng(0, [str(i) for i in range(len(x))]))


@pytest.mark.parametrize(("text", "name"), [("image-mean", "mean"), ("image-median", "median")])
def test_image_colours_agree_with_the_notebooks(case, x, text, name):
    theirs = case[f"base__{name}"][..., None, None].expand_as(x)
    torch.testing.assert_close(fill(text, x).double(), theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["local-mean", "mosaic"])
def test_local_means_agree_with_the_notebooks(case, x, name):
    ours = fill(f"{name}(compat=xplique)", x)
    torch.testing.assert_close(ours, stored(case, "local_mean"), rtol=1e-6, atol=1e-6)


def test_permutations_agree_with_the_notebooks(case, x):
    torch.testing.assert_close(
        permuted(x, case["draw__permutation"]), stored(case, "permutation"), rtol=0, atol=0
    )
    blocks = enlarged(permuted(cell_centers(x, 8), case["draw__local_permutation"]), 32, 32)
    torch.testing.assert_close(blocks, stored(case, "local_permutation"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "name"), [("magnitude", "scramble_amplitude"), ("phase", "scramble_phase")]
)
def test_scrambled_spectra_agree_with_the_notebooks(case, x, what, name):
    ours = scrambled(x, what, case[f"draw__{name}"], "xplique")
    torch.testing.assert_close(ours, stored(case, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "draw", "name"),
    [
        ("permutation", "permutation", "permutation"),
        ("local-permutation", "local_permutation", "local_permutation"),
        ("scramble-magnitude", "scramble_amplitude", "scramble_amplitude"),
        ("scramble-phase", "scramble_phase", "scramble_phase"),
    ],
)
def test_one_drawn_permutation_is_used_for_all_images(case, x, monkeypatch, text, draw, name):
    """Use the registry, with the stored permutation as the ranks of the draw."""
    ranks = case[f"draw__{draw}"].argsort().float()
    monkeypatch.setattr(scrambles, "_draw", lambda rng, name, count, compat: ranks)
    torch.testing.assert_close(
        fill(f"{text}(compat=xplique)", x), stored(case, name), rtol=1e-5, atol=1e-6
    )


def test_one_drawn_colour_is_used_for_all_images(case, monkeypatch):
    monkeypatch.setattr(
        Rng, "once", lambda rng, purpose, shape: case["draw__random_color"].reshape(shape)
    )
    painted = fill("random-color(compat=xplique)", torch.zeros(5, 3, 4, 4))
    theirs = case["base__random_color"][:, None, None].expand_as(painted)
    torch.testing.assert_close(painted.double(), theirs, rtol=1e-6, atol=1e-7)
