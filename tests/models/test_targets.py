"""Targets: what is explained, where it is not one label: differences, groups, values."""

import re

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from scipy.stats import spearmanr
from torch import nn

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods.explain import explained
from heatproof.models.targets import Column, Derived, Target
from heatproof.plan.spec import make_spec
from heatproof.protocols.single_deletion import patch_drops

A = "class fjord martin"
B = "class tide kingfisher"
DIFFERENCE = f"{A} - {B}"


@pytest.fixture(scope="module")
def resnet():
    return hp.load_model("paperbirds/resnet")


@pytest.fixture(scope="module")
def birds(resnet):
    data = hp.load_data("paperbirds:test", resnet, limit=5)
    return resnet.normalize(torch.stack([data.load(i).image for i in range(5)]))


def small(outputs, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, outputs)).eval()


def images(count=6, side=16):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


# What is explained


def test_classes_of_an_image_are_those_of_its_logits(resnet, birds):
    logits = resnet.logits(birds)
    order = logits.argsort(1, descending=True)
    assert torch.equal(explained(resnet, birds, "prediction")[1], order[:, 0])
    assert torch.equal(explained(resnet, birds, "runner-up")[1], order[:, 1])
    assert explained(resnet, birds, "class Fjord_Martin")[1].tolist() == [11] * 5
    assert explained(resnet, birds, "class 11")[1].tolist() == [11] * 5
    seen, target = explained(resnet, birds, "prediction - runner-up")
    derived = seen.logits(birds).gather(1, target[:, None])[:, 0]
    expected = logits.gather(1, order[:, :1]) - logits.gather(1, order[:, 1:2])
    assert torch.equal(derived, expected[:, 0])
    assert torch.equal(seen.class_logits(seen.logits(birds)), logits)


def test_groups_are_means_or_log_sum_exps(resnet, birds):
    logits = resnet.logits(birds).double()
    members = [i for i, name in enumerate(resnet.classes) if name.endswith(("martin", "tern"))]
    assert len(members) == 4
    for text, expected in (
        ("classes *martin, *tern", logits[:, members].mean(1)),
        ("mean of classes *martin, *tern", logits[:, members].mean(1)),
        ("log-sum-exp of classes *martin, *tern", logits[:, members].exp().sum(1).log()),
    ):
        seen, target = explained(resnet, birds, text)
        found = seen.score_function("logit")(seen.logits(birds), target)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_scores_of_a_difference_are_those_of_two_classes_alone(resnet, birds):
    seen, target = explained(resnet, birds, DIFFERENCE)
    logits = seen.logits(birds)
    pair = resnet.logits(birds)[:, [11, 13]]
    scores = {name: seen.score_function(name)(logits, target) for name in ("softmax", "logprob")}
    torch.testing.assert_close(scores["softmax"], pair.softmax(1)[:, 0])
    torch.testing.assert_close(scores["logprob"], pair.log_softmax(1)[:, 0])
    correct = seen.score_function("correct")(logits, target)
    assert torch.equal(correct == 1, pair[:, 0] > pair[:, 1])


def test_the_probability_of_a_group_is_the_sum_of_those_of_its_classes(resnet, birds):
    logits = resnet.logits(birds)
    members = [i for i, name in enumerate(resnet.classes) if "heron" in name]
    for text in ("classes *heron", "log-sum-exp of classes *heron"):
        seen, target = explained(resnet, birds, text)
        own = seen.logits(birds)
        share = logits.softmax(1)[:, members].sum(1)
        torch.testing.assert_close(seen.score_function("softmax")(own, target), share)
        torch.testing.assert_close(seen.score_function("logprob")(own, target), share.log())
        hit = torch.tensor([top in members for top in logits.argmax(1).tolist()])
        assert torch.equal(seen.score_function("correct")(own, target) == 1, hit)


# Maps


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("resnet", "ixg"),
        ("resnet", "ig(steps=4)"),
        ("resnet", "ixg@middle"),
        ("vit", "ixg"),
        ("bagnet", "bagnet"),
        ("bcos", "bcos"),
        ("resnet", "occlusion(score=logit)"),
    ],
)
def test_maps_that_are_linear_in_the_logits_are_differences_of_maps(name, method):
    model = hp.load_model(f"paperbirds/{name}")
    data = hp.load_data("paperbirds:test", model, limit=2)
    x = model.normalize(torch.stack([data.load(i).image for i in range(2)]))
    first, second, both = (hp.explain(model, x, t, method) for t in (A, B, DIFFERENCE))
    scale = float(first.abs().max())
    torch.testing.assert_close(both, first - second, rtol=1e-4, atol=2e-5 * scale)


def of_difference(model):
    """Return the same network with a last layer of the weights of A minus those of B, twice."""
    merged = hp.load_model(model)
    (last,) = [m for m in merged.module.modules() if isinstance(m, nn.Linear)][-1:]
    with torch.no_grad():
        weight = (last.weight[11] - last.weight[13]).expand_as(last.weight).clone()
        last.weight.copy_(weight)
        last.bias.copy_((last.bias[11] - last.bias[13]).expand_as(last.bias).clone())
    return merged


@pytest.mark.parametrize(
    ("name", "method"),
    [("resnet", "lrp-composite"), ("resnet", "lrp-focus"), ("resnet", "deepshap"),
     ("vit", "chefer"), ("vit", "vit-gradcam"), ("resnet", "scorecam(score=logit)")],
)  # fmt: skip
def test_other_maps_are_those_of_a_network_whose_last_layer_has_the_difference(name, method):
    model = hp.load_model(f"paperbirds/{name}")
    merged = of_difference(f"paperbirds/{name}")
    data = hp.load_data("paperbirds:test", model, limit=2)
    x = model.normalize(torch.stack([data.load(i).image for i in range(2)]))
    found = hp.explain(model, x, DIFFERENCE, method)
    expected = hp.explain(merged, x, 0, method)
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * scale)


def test_captum_is_given_the_derived_logit(resnet, birds):
    captum = pytest.importorskip("captum.attr")

    def gradient(net, x, target):
        return captum.Saliency(net).attribute(x.requires_grad_(), target=target, abs=False)

    found = hp.explain(resnet, birds[:2], DIFFERENCE, gradient)
    expected = hp.explain(resnet, birds[:2], DIFFERENCE, "saliency(reduce=sum)")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    holder = hp.named("held", captum.Saliency(resnet.module))
    with pytest.raises(NotApplicable, match="has no output class fjord martin - class tide"):
        hp.explain(resnet, birds[:2], DIFFERENCE, holder)


# Protocols


def test_drops_of_a_difference_are_differences_of_drops(resnet, birds):
    seen, target = explained(resnet, birds, DIFFERENCE)
    drops = patch_drops(seen, birds, target)
    of_both = [patch_drops(resnet, birds, torch.full((5,), index)) for index in (11, 13)]
    torch.testing.assert_close(drops, of_both[0] - of_both[1], rtol=1e-4, atol=1e-4)
    data = hp.TensorData(resnet.denormalize(birds))
    rows = hp.evaluate(resnet, data, "ixg", "sds", target=DIFFERENCE).rows
    maps = hp.explain(resnet, birds, DIFFERENCE, "ixg")
    sums = maps.unfold(1, 16, 16).unfold(2, 16, 16).sum((3, 4)).flatten(1)
    for row in range(5):
        rho = spearmanr(sums[row].numpy(), drops[row].numpy()).statistic
        assert rows["value"][row] == pytest.approx(rho, abs=1e-6)
    assert set(rows["target_is"]) == {DIFFERENCE}
    assert set(rows["target"]) == {11}
    assert set(rows["model"]) == {f"paperbirds/resnet ({DIFFERENCE})"}


def test_scores_do_not_depend_on_which_images_share_a_batch(resnet):
    found = [
        hp.evaluate(
            resnet,
            "paperbirds:test",
            ["ixg", "ig(steps=4)"],
            ["sds", "deletion", "sensitivity"],
            target="prediction - runner-up",
            limit=limit,
            batch_size=3,
        ).rows
        for limit in (4, 5)
    ]
    keys = ["method", "protocol", "sample"]
    first, second = (rows.set_index(keys)["value"].to_dict() for rows in found)
    assert len(first) == 24
    assert all(second[key] == value for key, value in first.items())
    assert set(found[0]["status"]) == {"ok"}


def test_protocols_of_objects_and_grids_are_not_defined_for_a_difference(resnet):
    result = hp.evaluate(
        resnet,
        "paperbirds:test",
        "ixg",
        ["sds", "pointing", "gridpg", "random-logit"],
        target=DIFFERENCE,
        limit=2,
    )
    rows = result.rows
    reasons = dict(zip(rows["protocol"], rows["message"], strict=True))
    assert reasons["sds"] == ""
    for name, reason in (
        ("pointing", "the object of the label or prediction"),
        ("gridpg", "explained for its label"),
        ("random-logit", "other single classes"),
    ):
        assert f"{name} is not defined for the target {DIFFERENCE}" in reasons[name]
        assert reason in reasons[name]


def test_an_image_without_the_target_has_no_score(resnet, birds):
    data = hp.TensorData(resnet.denormalize(birds), resnet.logits(birds).argmax(1).tolist())
    rows = hp.evaluate(resnet, data, "ixg", ["sds", "srg"], target="prediction - label").rows
    assert set(rows["status"]) == {"undefined"}
    assert rows["message"].str.startswith("both sides of prediction - label are").all()


def test_a_target_is_part_of_keys_and_no_target_changes_none(resnet):
    assert resnet.with_target("prediction").fingerprint() != resnet.fingerprint()
    named = {resnet.with_target(t).fingerprint() for t in (A, B, DIFFERENCE, "class 11")}
    assert len(named) == 4
    assert resnet.target is None


def test_models_with_several_targets_stand_side_by_side():
    spec = make_spec(
        {
            "models": [{"name": "paperbirds/resnet", "target": ["label", "runner-up"]}],
            "data": {"name": "paperbirds:test", "limit": 2},
            "methods": ["ixg"],
            "protocols": ["sds"],
        }
    )
    assert [entry.target for entry in spec.models] == ["label", "runner-up"]
    with pytest.raises(HeatproofError, match="cannot be read"):
        make_spec({**spec.as_dict(), "target": "the best"})


# Regression and several labels


def test_a_regression_head_is_explained_by_drops_of_its_value(tmp_path):
    net = small(1)
    model = hp.Model(net, size=16, head="regression", mean=[0.5] * 3, std=[0.5] * 3)
    x = model.normalize(images())
    with torch.no_grad():
        assert torch.allclose(model.logits(x), net(x), atol=1e-6)
    drops = patch_drops(model, x, torch.zeros(6, dtype=torch.long))
    for patch in range(16):
        row, column = divmod(patch, 4)
        without = x.clone()
        without[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
        with torch.no_grad():
            expected = (net(x) - net(without))[:, 0]
        torch.testing.assert_close(drops[:, patch], expected, rtol=1e-4, atol=1e-5)
    methods = ["ixg", "gradcam", "occlusion(score=logit)"]
    protocols = ["sds", "deletion(baseline=blur)", "deletion", "insertion", "sensitivity"]
    result = hp.evaluate(model, hp.TensorData(images()), methods, protocols)
    assert set(result.rows["status"]) == {"ok"}
    result.report(tmp_path / "report")
    for page in (tmp_path / "report").rglob("*.html"):
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page.read_text(), flags=re.S)
        assert not re.search(r"\bnan\b|class 0|correctly classified with", text), page


def test_a_regression_head_has_no_labels_and_no_probabilities():
    model = hp.Model(small(1), size=16, head="regression")
    labelled = hp.TensorData(images(), [0] * 6)
    with pytest.raises(HeatproofError, match="regression head, which has no classes; give images"):
        hp.evaluate(model, labelled, "ixg", "sds")
    assert len(hp.evaluate(model, labelled, "ixg", "sds", target="value").rows) == 6
    for target in ("label", "class 0", "prediction - runner-up"):
        with pytest.raises(HeatproofError, match="write target: value"):
            model.with_target(target)
    data = hp.TensorData(images())
    rows = hp.evaluate(
        model, data, ["ixg", "rise(masks=4)"], ["sds", "srg", "road", "random-logit"]
    ).rows
    reasons = rows.drop_duplicates(["protocol", "method"]).set_index(["protocol", "method"])
    assert reasons.loc[("sds", "ixg"), "status"] == "ok"
    for key in (("sds", "rise(masks=4)"), ("road", "ixg")):
        assert "write score=logit, which is that number" in reasons.loc[key, "message"]
    assert reasons.loc[("random-logit", "ixg"), "status"] == "n/a"
    with pytest.raises(HeatproofError, match="is for one"):
        hp.Model(small(3), size=16, head="regression")


def test_labels_of_a_sigmoid_head_are_contrasted_like_classes():
    model = hp.Model(small(4), size=16, head="sigmoid", classes=["cat", "dog", "dot", "sun"])
    x = model.normalize(images())
    logits = model.logits(x)
    seen, target = explained(model, x, "classes do* - class sun")
    z = logits[:, 1:3].mean(1) - logits[:, 3]
    scores = seen.score_function
    torch.testing.assert_close(scores("logit")(seen.logits(x), target), z)
    torch.testing.assert_close(scores("softmax")(seen.logits(x), target), z.sigmoid())
    data = hp.TensorData(images())
    rows = hp.evaluate(model, data, "gradcam", ["sds", "srg"], target="class dog").rows
    assert set(rows["target"]) == {1}


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class tide kingfischer", 'unknown class "tide kingfischer"; did you mean tide kingf'),
        ("classes fjrd martin", "did you mean fjord martin"),
        ("class 32", "numbers from 0 to 31 serve"),
        (f"{A} - {A}", "minus itself is zero"),
        ("prediction - prediction", "minus itself is zero"),
        (f"classes *martin - {A}", "both sides have fjord martin"),
        ("classes *", "is all 32 classes"),
        ("value", "value is for a network of one number"),
        ("the best", "cannot be read; write label, prediction"),
    ],
)
def test_bad_targets_are_one_line_before_anything_is_computed(resnet, text, message):
    before = resnet.pass_counts.copy()
    with pytest.raises(HeatproofError, match=re.escape(message)) as error:
        hp.evaluate(resnet, "paperbirds:test", "ixg", "sds", target=text, limit=2)
    assert "\n" not in str(error.value)
    assert resnet.pass_counts == before


def test_a_target_that_some_images_lack_is_refused_before_anything_is_computed(resnet, birds):
    data = hp.TensorData(resnet.denormalize(birds), [0, None, 11, 11, 2])
    before = resnet.pass_counts.copy()
    with pytest.raises(HeatproofError, match="1 of 5 images of .* have no label"):
        hp.evaluate(resnet, data, "ixg", "sds", target="label - runner-up")
    data = hp.TensorData(resnet.denormalize(birds), [0, 1, 11, 11, 2])
    with pytest.raises(HeatproofError, match="for 2 of 5 images of .* both sides are the same"):
        hp.evaluate(resnet, data, "ixg", "sds", target=f"label - {A}")
    assert resnet.pass_counts == before
    with pytest.raises(HeatproofError, match="explain has no labels"):
        hp.explain(resnet, birds, f"label - {A}")


def test_a_derived_logit_may_be_a_difference_of_groups():
    derived = Derived(5, [Column(((0, 1), "log-sum-exp"), ((3,), "mean"))], "x")
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    expected = (logits[:, 0].exp() + logits[:, 1].exp()).log() - logits[:, 3]
    torch.testing.assert_close(derived(logits)[:, 5], expected)
    assert Target.parse("log-sum-exp of classes a*  −  class b").text == (
        "log-sum-exp of classes a* - class b"
    )


# Surfaces


def test_the_command_line_takes_targets_and_shows_them(tmp_path):
    data = hp.load_data("paperbirds:test", hp.load_model("paperbirds/resnet"), limit=1)
    photo = tmp_path / "bird.png"
    pixels = (data.load(0).image * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(photo)
    out = str(tmp_path / "maps.png")
    arguments = ["explain", str(photo), "-m", "paperbirds/resnet", "-o", out, "--method", "ixg"]
    done = CliRunner().invoke(main, [*arguments, "--target", "prediction - runner-up"])
    assert done.exit_code == 0, done.output
    assert re.search(r"bird.png: [a-z ]+ - [a-z ]+ \+\d", done.output)
    assert CliRunner().invoke(main, [*arguments, "--target", "3"]).exit_code == 0
    refused = CliRunner().invoke(main, [*arguments, "--target", "class emberfinch"])
    assert refused.exit_code != 0
    assert "did you mean ember finch" in refused.output


def test_a_report_names_the_target(resnet, tmp_path):
    methods = ["ixg", "gradcam"]
    result = hp.evaluate(resnet, "paperbirds:test", methods, "sds", target=DIFFERENCE, limit=4)
    result.report(tmp_path / "report")
    text = "".join(page.read_text() for page in (tmp_path / "report").rglob("*.html"))
    assert f"paperbirds/resnet ({DIFFERENCE})" in text
    assert f"{DIFFERENCE} is explained and evaluated" in text
    assert "of the sample's label is explained" not in text
