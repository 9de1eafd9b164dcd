import hashlib

import numpy as np
import scipy.stats
import torch

from heatproof.tensor.noise import Rng, generator


def test_the_noise_of_a_sample_does_not_depend_on_its_batch():
    together = Rng(0, ["a", "b", "c"]).normal("map", (4, 4))
    torch.testing.assert_close(
        Rng(0, ["c", "a"]).normal("map", (4, 4)), together[[2, 0]], rtol=0, atol=0
    )


def test_noise_is_philox_keyed_by_the_hash():
    key = int.from_bytes(hashlib.sha256(repr((0, "map", "a")).encode()).digest()[:16], "little")
    expected, noise = np.random.Generator(np.random.Philox(key=key)), generator(0, "map", "a")
    np.testing.assert_array_equal(noise.standard_normal(9), expected.standard_normal(9))
    assert noise.integers(2**40) == expected.integers(2**40)


def test_seed_purpose_and_id_all_matter():
    draws = [Rng(s, [i]).uniform(p, (8,)) for s in (0, 1) for i in ("a", "b") for p in ("x", "y")]
    assert len({tuple(d.flatten().tolist()) for d in draws}) == len(draws)


def test_once_is_the_same_for_all_samples():
    assert torch.equal(
        Rng(3, ["a"]).once("image", (2, 2)), Rng(3, ["b", "c"]).once("image", (2, 2))
    )


def test_noise_is_normal_or_uniform():
    rng = Rng(0, [str(i) for i in range(50)])
    assert scipy.stats.kstest(rng.normal("n", (400,)).flatten().numpy(), "norm").pvalue > 1e-3
    assert scipy.stats.kstest(rng.uniform("u", (400,)).flatten().numpy(), "uniform").pvalue > 1e-3


def test_global_generators_are_unchanged():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    Rng(0, ["a"]).normal("x", (3,))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
