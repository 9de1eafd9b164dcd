"""Maps with attribution removed or introduced, as in Table 3 of Li et al. 2024."""

import numpy as np
import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.methods import TRANSFORMS, Explainer, Expression
from heatproof.models.batch import ModelBatch
from heatproof.tensor.noise import Rng

IDS = ["a", "b", "c"]


@pytest.fixture
def maps():
    """Signed maps: one with few levels, one without positive values."""
    values = torch.randn(3, 8, 10, generator=torch.Generator().manual_seed(0))
    values[1] = (2 * values[1]).round()
    values[2] = -values[2].abs()
    return values


def modified(name, scheme, maps, ids=IDS):
    return TRANSFORMS[name].apply(maps, {"scheme": scheme}, Rng(7, ids))


def unit(maps):
    positive = maps.clamp(min=0).numpy().astype(np.float64)
    return positive / np.maximum(positive.max((1, 2), keepdims=True), 1e-300)


def test_the_constant_scheme_shifts_all_pixels(maps):
    np.testing.assert_allclose(
        modified("remove", "constant", maps), np.clip(unit(maps) - 0.6, 0, 1), atol=1e-6
    )
    np.testing.assert_allclose(
        modified("introduce", "constant", maps), np.clip(unit(maps) + 0.6, 0, 1), atol=1e-6
    )


def test_unit_scales_the_positive_part_to_one(maps):
    np.testing.assert_allclose(
        TRANSFORMS["unit"].apply(maps, {}, Rng(7, IDS)), unit(maps), atol=1e-6
    )


def test_the_random_scheme_shifts_pixels_uniformly(maps):
    removed, introduced = (
        unit(maps) - modified("remove", "random", maps).numpy(),
        modified("introduce", "random", maps).numpy() - unit(maps),
    )
    for shift in (removed, introduced):
        assert shift.min() >= -1e-6
        assert shift.max() <= 0.6 + 1e-6
    free = introduced[unit(maps) < 0.4]  # not clipped at 1
    assert abs(free.mean() - 0.3) < 0.05
    assert len(np.unique(free)) == len(free)


def test_the_partial_scheme_without_ties(maps):
    maps = maps[:1].abs()
    order = np.argsort(unit(maps)[0].ravel())
    expected = unit(maps)[0].ravel()
    expected[order[48:64]] = 0
    np.testing.assert_allclose(
        modified("remove", "partial", maps, ["a"])[0].flatten(), expected, atol=1e-6
    )
    expected = unit(maps)[0].ravel()
    expected[order[:32]] = np.quantile(expected, 0.8)
    np.testing.assert_allclose(
        modified("introduce", "partial", maps, ["a"])[0].flatten(), expected, atol=1e-6
    )


def test_the_partial_scheme_with_ties_changes_as_many_pixels(maps):
    """Where pixels are tied, the given fraction of pixels changes, by next smallest value."""
    after, before = modified("remove", "partial", maps)[1].flatten().numpy(), unit(maps)[1].ravel()
    ranked = np.sort(before)
    ranked[48:64] = 0
    np.testing.assert_allclose(np.sort(after), np.sort(ranked), atol=1e-6)


@pytest.mark.parametrize("name", ["remove", "introduce"])
@pytest.mark.parametrize("scheme", ["constant", "random", "partial"])
def test_a_map_does_not_depend_on_the_batch_and_stays_in_range(maps, name, scheme):
    together = modified(name, scheme, maps)
    assert together.min() >= 0
    assert together.max() <= 1
    for i, sample in enumerate(IDS):
        assert torch.equal(modified(name, scheme, maps[i : i + 1], [sample])[0], together[i])


def test_transforms_work_in_an_expression(golden_model, images):
    """Noise is keyed by sample and seed."""
    model, (x, target) = golden_model("vgg"), images
    assert Expression.parse("gradcam|remove(random)").label == "gradcam|remove(random)"
    assert not Expression.parse("ixg|introduce(constant)").signed
    maps = hp.explain(model, x, target, "saliency|remove(random)", ids=list("abcdefgh"), seed=3)
    alone = hp.explain(model, x[2:3], target[2:3], "saliency|remove(random)", ids=["c"], seed=3)
    torch.testing.assert_close(alone[0], maps[2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(
        hp.explain(model, x, target, "saliency|remove(random)", ids=list("abcdefgh"), seed=4), maps
    )
    with pytest.raises(HeatproofError, match="'constant', 'random' or 'partial'"):
        Expression.parse("ixg|remove(some)")


def bilinear(values, size):
    """Resize a map as slowly as can be; pixels are squares, and the border is repeated."""
    height, width = values.shape

    def between(at, count):
        position = min(max((at + 0.5) * count / size - 0.5, 0), count - 1)
        first = int(position)
        return first, min(first + 1, count - 1), position - first

    large = np.zeros((size, size))
    for i in range(size):
        top, bottom, down = between(i, height)
        for j in range(size):
            left, right, across = between(j, width)
            upper = (1 - across) * values[top, left] + across * values[top, right]
            lower = (1 - across) * values[bottom, left] + across * values[bottom, right]
            large[i, j] = (1 - down) * upper + down * lower
    return large


def table_3(change, scheme, values, shift):
    """Change a map in [0, 1] as Table 3 of Li et al. 2024 says, pixel by pixel."""
    sign = -1 if change == "remove" else 1
    changed = values.copy()
    if scheme == "partial":
        order = sorted(range(values.size), key=lambda pixel: values.flat[pixel])
        begin, end = (0.6, 0.8) if change == "remove" else (0, 0.4)
        for pixel in order[int(begin * values.size) : int(end * values.size)]:
            changed.flat[pixel] = 0 if change == "remove" else np.quantile(values, 0.8)
        return changed
    for pixel in range(values.size):
        by = 0.6 if scheme == "constant" else 0.6 * shift.flat[pixel]
        changed.flat[pixel] = min(max(values.flat[pixel] + sign * by, 0), 1)
    return changed


@pytest.mark.parametrize("change", ["remove", "introduce"])
@pytest.mark.parametrize("scheme", ["constant", "random", "partial"])
def test_maps_of_a_layer_are_changed_at_the_pixels_of_the_image(
    golden_model, images, change, scheme
):
    model, (x, target) = golden_model("vgg"), images
    ids = [str(i) for i in range(len(x))]
    # Without the ReLU there are no ties at zero, whose order is random.
    method = "ixg@cam|smooth(3)|abs"
    small = Explainer(ModelBatch(model, x, target), Rng(0, ids))
    native = small.transformed(Expression.parse(method), small.native(Expression.parse(method)))
    assert native.shape[-1] < model.size
    changed = hp.explain(model, x, target, f"{method}|{change}({scheme})")
    shift = Rng(0, ids).uniform(change, x.shape[2:]).numpy()
    for i, values in enumerate(native.double().numpy()):
        large = np.clip(bilinear(values, model.size), 0, None)
        large /= large.max()
        expected = table_3(change, scheme, large, shift[i])
        # Pixels at the border repeat values; which of them a fraction includes is arbitrary.
        bounds = [int(f * large.size) - d for f in (0.4, 0.6, 0.8) for d in (0, 1)]
        ends = np.sort(large.flat)[bounds]
        clear = np.abs(large[..., None] - ends).min(-1) > 1e-6
        assert clear.mean() > 0.95
        np.testing.assert_allclose(changed[i][clear], expected[clear], atol=1e-5)


def test_a_transform_after_one_at_the_image_acts_on_its_pixels(golden_model, images):
    model, (x, target) = golden_model("vgg"), images
    unit_maps = hp.explain(model, x, target, "gradcam|unit")
    smooth = hp.explain(model, x, target, "gradcam|unit|smooth(3)")
    again = TRANSFORMS["smooth"].apply(unit_maps, {"size": 3}, Rng(0, IDS))
    torch.testing.assert_close(smooth, again, rtol=1e-4, atol=1e-6)
    before = hp.explain(model, x, target, "gradcam|smooth(3)|unit")
    assert not torch.allclose(smooth / smooth.amax((1, 2), keepdim=True), before, atol=1e-2)


def test_the_key_of_a_transform_contains_its_version():
    keys = [Expression.parse(f"ixg|{name}").canonical for name in ("unit", "abs")]
    assert keys[0].endswith("|unit+2") and keys[1].endswith("|abs")
