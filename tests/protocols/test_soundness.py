"""Soundness and completeness against slow versions, with known truth, and from a run."""

import numpy as np
import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.analysis.soundness import at_levels, table
from heatproof.errors import HeatproofError
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.tensor.noise import Rng

SIDE = 14


@pytest.fixture(scope="module")
def model(sign_of_sum):
    return hp.Model(sign_of_sum, size=SIDE, mean=[0.0], std=[1.0])


def judged(model, x, target, ids=None):
    ids = ids or [str(i) for i in range(len(x))]
    return EvalBatch(ids, x, target, model.logits(x), Rng(0, ids))


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def truth(model):
    """Draw x ~ N(0, 1); the label is the sign of the sum, a pixel adds its attribution."""
    x = draw(300, 1, SIDE, SIDE)
    target = (x.flatten(1).sum(1) > 0).long()
    maps = ((2 * target - 1)[:, None, None] * x[:, 0]).clamp(min=0)
    return x, target, maps / maps.flatten(1).amax(1)[:, None, None]


def removed(maps, seed=1):
    """Half of what is positive to zero, but not the largest."""
    some = draw(*maps.shape, seed=seed) > 0
    return maps.masked_fill(some & (maps < 1), 0)


def introduced(maps, seed=2):
    """Half of what is zero to U(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(maps.shape, generator=generator)
    return torch.where(
        (maps == 0) & (torch.rand(maps.shape, generator=generator) < 0.5), noise, maps
    )


def one_by_one(model, x, target, maps, missing, eps, soco=False):
    """Algorithm 3, an image and a pixel at a time; S_false is a set of pixels."""
    order = F.removal_order(maps.clamp(min=0))
    false = [set() for _ in x]
    included = [set() for _ in x]
    before, points = 0.0, []
    for share in missing:
        right, new = 0, []
        for i in range(len(x)):
            ranked = sorted(range(SIDE**2), key=order[i].flatten().tolist().__getitem__)
            now = set(ranked[: SIDE**2 - int(SIDE**2 * share + 1e-6)])
            image = torch.zeros(SIDE**2)
            image[list(now)] = x[i].flatten()[list(now)]
            right += int(model.logits(image.reshape(1, 1, SIDE, SIDE)).argmax() == target[i])
            new.append(now - included[i])
            included[i] = now
        accuracy = right / len(x)

        def q(i, false):
            mass = [
                maps[i].clamp(min=0).flatten()[list(s)].double().sum().item()
                for s in (included[i], false[i])
            ]
            return (mass[0] - mass[1]) / mass[0]

        lagging = [q(i, false) for i in range(len(x))]
        if accuracy - before <= eps if soco else accuracy - before < eps:
            false = [f | n for f, n in zip(false, new, strict=True)]
        points.append((accuracy, lagging if soco else [q(i, false) for i in range(len(x))]))
        before = accuracy
    return np.array([a for a, _ in points]), np.array([q for _, q in points]).T


@pytest.mark.parametrize("compat", [None, "soco"])
def test_soundness_one_by_one(model, compat):
    """With ties and negative values."""
    x, target = draw(12, 1, SIDE, SIDE, seed=3), torch.tensor([0, 1] * 6)
    maps = draw(12, SIDE, SIDE, seed=4)
    maps[::3] = maps[::3].round()
    settings = {
        "baseline": "zero",
        "first": 0.9,
        "last": 0.1,
        "step": 0.1,
        "eps": 0.12,
        "compat": compat,
        "gate": -1.0,
    }
    protocol = make_protocol("soundness", settings)
    found = protocol.score_maps(model, judged(model, x, target), {}, maps)
    assert found.reasons == [""] * 12
    accuracy, q = one_by_one(model, x, target, maps, protocol.missing, 0.12, bool(compat))
    np.testing.assert_allclose(found.curves["score"].mean(0), accuracy, atol=1e-6)
    np.testing.assert_allclose(protocol.quality(**found.curves), q, atol=1e-5)


def test_completeness_one_by_one(model):
    x, target = draw(6, 1, SIDE, SIDE, seed=3), torch.tensor([0, 1] * 3)
    maps = draw(6, SIDE, SIDE, seed=4)
    maps[::2] = maps[::2].round() / 10
    found = make_protocol("completeness", {"baseline": "zero", "score": "logit"}).score_maps(
        model, judged(model, x, target), {}, maps
    )
    for i in range(6):
        for k in range(9):
            left = x[i, 0].masked_fill(maps[i] > (9 - k) / 10 * maps[i].max(), 0)
            drop = (model.logits(x[i : i + 1]) - model.logits(left[None, None]))[0, target[i]]
            torch.testing.assert_close(found.curves["drop"][i, k], drop, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.value, found.curves["drop"].double().mean(1))


class Watched:
    """A model of which every image is looked at."""

    def __init__(self, model, forward):
        self.forward, self.batch_size = forward, model.batch_size


def test_included_sets_are_nested_and_fixed_for_a_sample(model):
    """An image of ones shows which pixels are there."""
    ids, seen = ["a", "b"], []

    def forward(images):
        seen.append(images)
        return model.forward(images)

    maps = draw(2, SIDE, SIDE).round()
    protocol = make_protocol("soundness", {"baseline": "zero"})
    batch = judged(model, torch.ones(2, 1, SIDE, SIDE), torch.ones(2, dtype=torch.long), ids)
    protocol.score_maps(Watched(model, forward), batch, {}, maps)
    there = (
        torch.cat(seen)[:, 0].reshape(2, -1, SIDE, SIDE).bool()
    )  # (sample, missing from little to much)
    assert (there[:, 1:] <= there[:, :-1]).all()
    assert (
        there.flatten(2).sum(2).tolist()
        == [[SIDE**2 - int(SIDE**2 * k / 100 + 1e-6) for k in range(1, 99)]] * 2
    )
    for step in there[0]:  # most relevant first
        assert not step.all()
        assert maps[0].clamp(min=0)[step].min() >= maps[0].clamp(min=0)[~step].max()


@pytest.mark.parametrize("make", [lambda m: m, removed], ids=["truth", "removed"])
def test_what_votes_for_the_label_is_sound(model, truth, make):
    """The first step inserts evidence for the label, so accuracy is 1 at once."""
    x, target, maps = truth
    protocol = make_protocol("soundness", {"baseline": "zero", "level": 1.0})
    curves = protocol.score_maps(model, judged(model, x, target), {}, make(maps)).curves
    assert (curves["score"][:, 0] == 1).all()
    assert (protocol.aggregate(curves).value == 1).all()
    found = at_levels(
        protocol, curves["score"].numpy(), curves["mass"].numpy(), (0.1, 0.5, 1.0), 10
    )
    np.testing.assert_allclose(found, 1)
    assert (
        protocol.quality(**curves)[:, 1] < 1
    ).all()  # all later steps count as false: so q is told at a level, never averaged


def test_attribution_that_is_introduced_is_less_sound(model, truth):
    x, target, maps = truth
    protocol = make_protocol("soundness", {"baseline": "zero", "level": 0.99})
    found = protocol.score_maps(model, judged(model, x, target), {}, introduced(maps))
    assert 0.2 < protocol.aggregate(found.curves).value.mean() < 0.9
    q = protocol.quality(**found.curves)
    assert (q >= -1e-9).all()
    assert (q <= 1).all()


@pytest.mark.parametrize("absolute", [False, True])
def test_a_map_that_lacks_something_is_less_complete(model, truth, absolute):
    """It removes, at every threshold, a part of what the truth removes: evidence for the label."""
    x, target, maps = truth
    protocol = make_protocol("completeness", {"baseline": "zero", "absolute": absolute})
    whole, less = (
        protocol.score_maps(model, judged(model, x, target), {}, m).curves["drop"]
        for m in (maps, removed(maps))
    )
    assert (less <= whole).all()
    assert less.mean() < whole.mean()
    assert (whole.diff(dim=1) >= 0).all()  # more is taken out at a lower threshold
    assert (whole[:, -1] == 1).float().mean() > 0.99


@pytest.mark.parametrize("name", ["completeness", "soundness"])
def test_a_sample_does_not_notice_its_neighbours(name):
    """Not even whether theirs is the only map with negative values."""
    net = hp.load_model("paperbirds/vgg")
    settings = {"completeness": {}, "soundness": {"step": 0.2}}[name] | {"score": "logit"}
    x, maps, target = (
        draw(3, 3, 64, 64),
        draw(3, 64, 64, seed=1).round(decimals=1),
        torch.tensor([1, 2, 3]),
    )
    maps[0] = maps[0].abs()
    protocol = make_protocol(name, settings)
    with net.passes.batches_of(4):
        together = protocol.score_maps(net, judged(net, x, target, list("abc")), {}, maps).curves
        for i in range(3):
            alone = judged(net, x[i : i + 1], target[i : i + 1], ["abc"[i]])
            for key, curve in protocol.score_maps(net, alone, {}, maps[i : i + 1]).curves.items():
                assert torch.equal(curve[0], together[key][i])


def test_maps_without_anything_positive_are_left_out(model):
    x, target = draw(3, 1, SIDE, SIDE), torch.tensor([0, 1, 0])
    maps = torch.stack([draw(SIDE, SIDE), -draw(SIDE, SIDE).abs(), torch.zeros(SIDE, SIDE)])
    for name in ("completeness", "soundness"):
        found = make_protocol(name, {"baseline": "zero"}).score_maps(
            model, judged(model, x, target), {}, maps
        )
        assert found.reasons == [
            "",
            "nothing in the map is positive",
            "nothing in the map is positive",
        ]
        assert found.value[1:].isnan().all()
        soco = make_protocol(name, {"baseline": "zero", "compat": "soco"})
        found = soco.score_maps(model, judged(model, x, target), {}, maps)
        assert found.reasons == [""] * 3
        value = found.value if name == "completeness" else soco.quality(**found.curves)[:, -1]
        assert value[1:].tolist() == [0, 0]


def test_a_level_that_is_never_reached(model):
    protocol = make_protocol("soundness", {"eps": 0.1, "level": 0.9})
    found = protocol.aggregate(
        {"score": torch.tensor([[0.0, 1.0]] * 5 + [[1.0, 0.0]] * 7), "mass": torch.ones(12, 2)}
    )
    assert found.value.isnan().all()
    assert set(found.reasons) == {"the accuracy is 0.583 at most and never reaches 0.9"}


def test_too_few_samples_are_reported():
    protocol = make_protocol("soundness", {"eps": 0.02})
    with pytest.warns(
        UserWarning,
        match="12 samples cannot resolve a gain of eps=0.02 in accuracy; use 50 or more",
    ):
        protocol.aggregate({"score": torch.ones(12, 98), "mass": torch.ones(12, 98)})
    protocol.aggregate({"score": torch.ones(50, 98), "mass": torch.ones(50, 98)})


def test_settings():
    assert make_protocol("soundness", {}).missing == tuple(k / 100 for k in range(98, 0, -1))
    assert make_protocol("soundness", {"compat": "soco"}).missing == tuple(
        k / 100 for k in range(98, 2, -1)
    )
    with pytest.raises(HeatproofError, match="at least two steps"):
        make_protocol("soundness", {"first": 0.5, "step": 0.9})
    with pytest.raises(HeatproofError, match="less than 1"):
        make_protocol("soundness", {"first": 1})
    with pytest.raises(HeatproofError, match="greater than 0"):
        make_protocol("soundness", {"eps": 0})
    with pytest.raises(HeatproofError, match="'soco'"):
        make_protocol("completeness", {"compat": "road"})


QUICK = "soundness(baseline=zero, first=0.8, last=0.2, step=0.2, eps=0.1, level=0.3)"


def magnitude(model, x, target, *, rng):
    return x[:, 0].abs()


def negative_at_times(model, x, target, *, rng):
    """Return maps of magnitude; one is negative, one is not finite and one is zero."""
    maps = magnitude(model, x, target, rng=rng)
    for i, sample in enumerate(rng.ids):
        maps[i] *= {"test-00003": -1.0, "test-00005": float("nan"), "test-00007": 0.0}.get(
            sample, 1.0
        )
    return maps


def test_a_run_aggregates_over_all_its_shards(tmp_path):
    """The scores are the same whether 64 samples were there before or not; their mean is soundness
    at the level, over the samples that have a map.

    Maps of magnitude reach the level at the second step, after one that gains less than eps, so
    that part of the attribution is unsound and the bootstrap's draws differ.
    """
    net = hp.load_model("paperbirds/vgg")
    methods = [magnitude, negative_at_times, "constant"]
    soundness = QUICK.replace("level=0.3", "level=0.8")

    def evaluate(protocols, limit, out=None):
        return hp.evaluate(
            net, "paperbirds:test", methods, protocols, limit=limit, out=out, batch_size=16
        )

    evaluate([soundness], 64, tmp_path / "grown")
    grown = evaluate([soundness], 70, tmp_path / "grown").scores
    whole = evaluate([soundness, "completeness(baseline=zero)"], 70)
    scores = whole.scores[whole.scores["protocol"] == "soundness"].reset_index(drop=True)
    assert scores.equals(grown)
    by_method = dict(list(scores.groupby("method")))
    messages = by_method["negative_at_times"].set_index("sample")["message"]
    assert messages[messages != ""].to_dict() == {
        "test-00003": "nothing in the map is positive",
        "test-00005": "negative_at_times: the map is not finite",
        "test-00007": "the map is the same everywhere",
    }
    assert set(by_method["constant"]["message"]) == {"the map is the same everywhere"}
    summary = whole.summary(resamples=50).set_index(["protocol", "method"]).loc["soundness"]
    levels = table(hp.Result.load(tmp_path / "grown"), (0.8, 1.01), resamples=50)
    levels = levels.set_index(["method", "level"])
    for method, n in {"magnitude": 70, "negative_at_times": 67}.items():
        at_level = levels.loc[(method, 0.8)]
        assert at_level["n"] == summary.loc[method, "n"] == n
        assert at_level["soundness"] == pytest.approx(summary.loc[method, "mean"])
        assert 0.5 < at_level["soundness"] < 0.8
        interval = at_level[["low", "high"]].tolist()
        assert interval == pytest.approx(summary.loc[method, ["low", "high"]].tolist())
        assert interval[0] <= at_level["soundness"] <= interval[1]
        assert interval[0] < interval[1]
        assert np.isnan(levels.loc[(method, 1.01), "soundness"])
    assert whole.scores["value"].notna().sum() == (whole.scores["status"] == "ok").sum()


def test_a_run_that_never_reaches_its_level(tmp_path):
    images = torch.rand(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    net = hp.load_model("paperbirds/vgg")
    wrong = (net.logits(net.normalize(images)).argmax(1) + 1) % net.n_classes
    protocol = "soundness(baseline=zero, first=0.2, last=0.1, step=0.1, eps=0.1, level=0.99)"
    scores = hp.evaluate(net, (images, wrong), ["saliency"], [protocol]).scores
    assert set(scores["status"]) == {"undefined"}
    assert scores["message"].str.contains("at most and never reaches 0.99").all()


def test_order_based_metrics_share_the_images():
    """They remove the same pixels at the same ratios for unsigned maps: each image is run once."""
    net = hp.load_model("paperbirds/vgg")
    images = torch.rand(10, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    road = "road(baseline=zero, order=least, steps=5)"
    net.pass_counts.clear()
    both = hp.evaluate(net, (images, None), ["saliency"], [QUICK, road]).scores
    assert net.pass_counts["forward"] == 10 * (1 + 4)
    alone = [hp.evaluate(net, (images, None), ["saliency"], [p]).scores for p in (QUICK, road)]
    for part in alone:
        same = both[both["protocol"] == part["protocol"].iloc[0]].reset_index(drop=True)
        assert same.equals(part)


def test_order_based_metrics_of_the_label_share_maps_and_images():
    """This also holds where the model is wrong: one map, and one pass per image and step."""
    net = hp.load_model("paperbirds/vgg")
    images = torch.rand(10, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    wrong = (net.logits(net.normalize(images)).argmax(1) + 1) % net.n_classes
    by_value, by_area = "completeness(baseline=zero, steps=5)", "road(baseline=zero, steps=5, {})"
    protocols = [
        QUICK,
        by_value,
        by_area.format("order=least, of=label"),
        by_area.format("of=label"),
        "deletion(score=correct, steps=5, of=label)",
    ]
    net.pass_counts.clear()
    rows = hp.evaluate(net, (images, wrong), ["saliency"], protocols).scores
    assert net.pass_counts["forward"] == 10 * (
        1 + 1 + 3 * 4
    )  # clean, empty; by area from either end, by value
    assert net.pass_counts["backward"] == 10
    assert set(rows["target_is"]) == {"label"}
    assert (rows.groupby("sample")["target"].nunique() == 1).all()
    net.pass_counts.clear()
    asked = hp.evaluate(
        net, (images, wrong), ["saliency"], [QUICK, by_area.format("order=least")]
    ).scores
    assert net.pass_counts["backward"] == 20
    assert asked.groupby("protocol")["target_is"].unique().map(list).to_dict() == {
        "soundness": ["label"],
        "road": ["prediction"],
    }
