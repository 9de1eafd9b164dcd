"""One grammar for YAML, command line and Python."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.expressions import Call, parse_call
from heatproof.methods import METHODS, Expression, parse_methods

names = st.from_regex(r"[a-z][a-z0-9\-+]{0,8}", fullmatch=True)
values = st.one_of(
    st.integers(-99, 99),
    st.floats(-9, 9),
    st.booleans(),
    st.none(),
    names,
    st.lists(st.integers(0, 9), max_size=3),
)
keys = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)


@given(names, st.lists(values, max_size=3), st.dictionaries(keys, values, max_size=3))
def test_a_call_is_parsed_back_from_its_text(name, args, kwargs):
    call = Call(name, tuple(args), kwargs)
    assert parse_call(str(call)) == call


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ig", "ig"),
        ("ig(steps=50)", "ig"),
        ("ig(20)", "ig(steps=20)"),
        ("ig(steps=20, baseline=blur)", "ig(steps=20, baseline=blur)"),
        ("ig(baseline=uniform(-1, 1))", "ig(baseline=uniform(low=-1, high=1))"),
        ("gradcam@cam", "gradcam"),
        ("gradcam++ @ middle", "gradcam++@middle"),
        ("ixg@features.28 | abs|smooth(17)", "ixg@features.28|abs|smooth(17)"),
        ("ixg|smooth(size=9)", "ixg|smooth(9)"),
    ],
)
def test_the_label_is_the_shortest_text_that_means_the_same(text, label):
    expression = Expression.parse(text)
    assert expression.label == label
    assert Expression.parse(label).canonical == expression.canonical


def test_the_canonical_text_lists_every_argument():
    assert (
        Expression.parse("ig").canonical
        == "ig(baseline=zero, reduce=sum, rule=gauss, score=logit, steps=50)@input v1"
    )
    assert Expression.parse("ig|abs").map_key == Expression.parse("ig").map_key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gradcm", "did you mean gradcam"),
        ("ig(step=5)", "ig takes: steps=50, baseline=zero, rule=gauss"),
        ("ixg|ab", "unknown transform"),
        ("GradCAM", "did you mean gradcam"),
        ("Grad-CAM", "did you mean gradcam"),
        ("ixg|smooth(4)", "odd"),
        ("ixg|smooth", "missing a required argument: 'size'"),
        ("abs", "abs is a transform, not a method; write for example ixg|abs"),
        ("ixg(reduce=max)", "did you mean max_abs|there are"),
        ("ig(steps=3", "brackets do not match"),
        ("ig(steps=3, 5)", "unnamed argument 5 follows a named one"),
        ("ixg||abs", "nothing on one side"),
        ("", "method expression is empty"),
        ("i g", "cannot read"),
        ("ig,ixg", "repeat the option, or write a list"),
    ],
)
def test_an_invalid_expression_is_reported_with_the_reason(text, message):
    with pytest.raises(HeatproofError, match=message):
        Expression.parse(text)


def test_the_group_of_controls_has_all_controls():
    assert [e.label for e in parse_methods(["group:controls"])] == [
        e.id for e in METHODS if e.family == "control"
    ]


def test_groups_are_expanded_and_duplicates_removed():
    assert [e.label for e in parse_methods(["ixg", "ig", "ixg", "ixg@input"])] == ["ixg", "ig"]
    assert len(parse_methods(["group:all"])) == len(METHODS)
    with pytest.raises(HeatproofError, match='unknown group of methods "al"'):
        parse_methods(["group:al"])


def test_a_user_function_is_a_method():
    @hp.method("tests-own", family="yours")
    def own(model, x, target, *, rng, power: int = 2):
        return x**power

    def nameless(model, x, target, *, rng):
        return x

    assert Expression.parse("tests-own(power=3)|abs").label == "tests-own(power=3)|abs"
    assert Expression.parse(own).label == "tests-own"
    assert Expression.parse(nameless).label == "nameless"
    assert Expression.parse(nameless).entry.source

    def ixg(model, x, target, *, rng):
        return x

    with pytest.raises(HeatproofError, match="like a method of the library"):
        Expression.parse(ixg)


def test_built_in_methods_cannot_be_replaced():
    with pytest.raises(HeatproofError, match='already a method "ixg"'):

        @hp.method("ixg", family="yours")
        def other(model, x, target, *, rng):
            return x


def test_a_changed_function_has_another_key():
    def first():
        def mine(model, x, target, *, rng):
            return x

        return mine

    def second():
        def mine(model, x, target, *, rng):
            return -x

        return mine

    assert Expression.parse(first()).canonical != Expression.parse(second()).canonical


def test_a_function_that_closes_over_another_value_has_another_key():
    def powered(power):
        def mine(model, x, target, *, rng):
            return x**power

        return mine

    assert Expression.parse(powered(2)).canonical == Expression.parse(powered(2)).canonical
    assert Expression.parse(powered(2)).canonical != Expression.parse(powered(3)).canonical
    with pytest.raises(HeatproofError, match="two methods are called mine"):
        parse_methods([powered(2), powered(3)])


def test_transforms_apply_left_to_right_at_the_resolution_of_the_layer(golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    from heatproof.methods.transforms import smooth
    from heatproof.tensor.filters import resize

    native = (model.activation(x, "layer2") * model.gradient(x, target, "layer2").gradient).sum(1)
    expected = resize(smooth(native.abs(), 3), 32, 32)
    torch.testing.assert_close(hp.explain(model, x, target, "ixg@layer2|abs|smooth(3)"), expected)


@pytest.mark.parametrize(("side", "size"), [(448, 129), (128, 37), (56, 17), (28, 9)])
def test_a_smoothing_kernel_scales_with_the_map(side, size):
    """The kernels of 129, 17 and 9 px of Rao et al. have the same relative size."""
    maps = torch.rand(2, side, side)
    scaled = Expression.parse("ixg|smooth(129, of=448)").transforms[0]
    direct = Expression.parse(f"ixg|smooth({size})").transforms[0]
    (entry, arguments), (_, plain) = scaled, direct
    assert torch.equal(entry.function(maps, **arguments), entry.function(maps, **plain))
