"""Spectra: against NumPy, torch's own resizing, and closed forms."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heatproof.tensor.spectra import (
    COLOURS,
    decorrelated,
    pair_conjugates,
    power_law_magnitude,
    recorrelated,
    resample_crops,
    resize_magnitude,
    standardised,
)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_colours_come_back():
    x = drawn(2, 3, 5, 4)
    torch.testing.assert_close(recorrelated(decorrelated(x)), x, rtol=1e-5, atol=1e-5)
    first = recorrelated(torch.tensor([2.0, 0, 0])[:, None, None])
    torch.testing.assert_close(first.flatten(), 2 * torch.tensor(COLOURS[0]))


def test_standardised_is_so_and_a_constant_is_no_division_by_zero():
    x = standardised(drawn(3, 8, 8) * 5 + 2)
    torch.testing.assert_close(x.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.var(correction=0), torch.tensor(1.0))
    flat = torch.full((3, 8, 8), 0.7, requires_grad=True)
    standardised(flat).sum().backward()
    torch.testing.assert_close(standardised(flat).detach(), torch.zeros(3, 8, 8), rtol=0, atol=0.01)
    assert flat.grad.isfinite().all()


@pytest.mark.parametrize("size", [8, 12])
def test_paired_phases_are_those_of_a_real_image(size):
    magnitude = torch.fft.rfft2(drawn(3, size, size).double()).abs()
    phase = pair_conjugates(drawn(3, size, size // 2 + 1, seed=1).double() * 2)
    back = np.fft.rfft2(
        np.fft.irfft2(magnitude.numpy() * np.exp(1j * phase.numpy()), s=(size, size))
    )
    kept = np.ones((size, size // 2 + 1), dtype=bool)
    kept[np.ix_([0, size // 2], [0, size // 2])] = False  # of these four only the real part is
    np.testing.assert_allclose(np.abs(back)[:, kept], magnitude.numpy()[:, kept], rtol=1e-5)
    real = (magnitude * phase.cos()).numpy()
    np.testing.assert_allclose(back[:, ~kept], real[:, ~kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [6, 7])
def test_stretched_is_linear_between_the_frequencies(size):
    magnitude = np.abs(np.fft.rfft2(drawn(1, size, size).numpy()))[0]
    magnitudes = resize_magnitude(torch.from_numpy(magnitude)[None], size, (2 * size, 2 * size))[
        0
    ].numpy()
    assert magnitudes.shape == (2 * size, size + 1)
    np.testing.assert_allclose(magnitudes[::2, : 2 * magnitude.shape[1] : 2], magnitude, rtol=1e-6)
    around = np.concatenate([magnitude, magnitude[:1]])  # the frequency after the last is the first
    np.testing.assert_allclose(
        magnitudes[1::2, ::2][:, : magnitude.shape[1]], (around[1:] + around[:-1]) / 2, rtol=1e-6
    )
    np.testing.assert_allclose(magnitudes[::2, 1], magnitude[:, :2].mean(1), rtol=1e-6)


def test_falling_is_a_power_of_the_frequency():
    magnitudes = power_law_magnitude((8, 8), 2.0)
    assert magnitudes[0, 0] == magnitudes[0, 1] == 64
    torch.testing.assert_close(magnitudes[6, 1], torch.tensor(64 / 5))


def test_the_whole_image_is_resized_as_torch_does():
    image = drawn(3, 20, 20).double()
    whole = torch.full((1, 2), 0.5).double(), torch.ones(1).double()
    for size in (7, 10, 20, 33):
        theirs = F.interpolate(
            image[None], (size, size), mode="bilinear", antialias=True, align_corners=False
        )
        torch.testing.assert_close(
            resample_crops(image, *whole, (size, size)), theirs, rtol=1e-4, atol=1e-5
        )


def test_a_part_is_what_grid_sampling_gives():
    image, centre, side = (
        drawn(3, 24, 24),
        torch.tensor([[0.3, 0.5], [0.5, 0.7], [0.15, 0.85]]),
        torch.tensor([0.5, 0.25, 0.3]),
    )
    steps = (torch.arange(12) + 0.5) / 12 - 0.5
    down, right = (centre[:, axis, None] + side[:, None] * steps for axis in (0, 1))
    grid = torch.stack(torch.broadcast_tensors(right[:, None], down[:, :, None]), -1) * 2 - 1
    theirs = F.grid_sample(
        image.expand(3, -1, -1, -1),
        grid,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    torch.testing.assert_close(
        resample_crops(image, centre, side, (12, 12)), theirs, rtol=1e-4, atol=1e-5
    )


def test_a_look_only_sees_its_square():
    image = torch.zeros(1, 40, 40)
    image[:, 10:30, 10:30] = 1
    seen = resample_crops(image, torch.full((1, 2), 0.5), torch.full((1,), 0.45), (8, 8))
    torch.testing.assert_close(seen, torch.ones_like(seen))
