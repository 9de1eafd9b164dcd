"""Several seeds of a method: other noise, the same ranks, and the variance that noise has."""

import numpy as np
import pandas as pd
import pytest
import torch

import heatproof as hp
from heatproof.analysis.intervals import GROUP
from heatproof.analysis.seeds import seed_spreads
from heatproof.baselines.base import BASELINES, Baseline
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import METHODS, Expression, with_seeds
from heatproof.plan.spec import make_spec
from heatproof.tensor.noise import Rng

NET, DATA = "paperbirds/resnet", "paperbirds:test"
PROTOCOLS = ["sds", "soundness(eps=0.1, step=0.1)"]
METHOD_LIST = ["ixg", "smoothgrad(n=2)|abs", "random", "edges"]
FEW = {"masks": 40, "steps": 2, "n": 2, "copies": 2, "channels": 3, "epochs": 1, "rounds": 1}
FEW |= {"designs": 2, "size": 32, "stride": 32, "iterations": 2, "cells": 4}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("seeds") / "run"
    return hp.evaluate(NET, DATA, METHOD_LIST, PROTOCOLS, limit=12, seeds=2, out=out)


def test_a_seed_is_the_noise_of_a_run_with_that_seed(golden_model, images):
    model, (x, target) = golden_model("resnet"), images
    for method in ("smoothgrad(n=2)", "ixg|noise(n=2)", "ig-u(steps=2)", "random|remove(random)"):
        name, *tail = method.split("|")
        modifiers = [t for t in tail if t.startswith("noise")]
        text = "|".join([name, *modifiers, "seed(3)", *(t for t in tail if t not in modifiers)])
        assert Expression.parse(method).reseeded(3).label == text
        torch.testing.assert_close(
            hp.explain(model, x, target, text, seed=1),
            hp.explain(model, x, target, method, seed=4),
        )


def test_only_methods_that_draw_numbers_have_other_seeds(result):
    labels = [*result.plan.methods]
    assert labels == [
        "ixg",
        "smoothgrad(n=2)|abs",
        "smoothgrad(n=2)|seed(1)|abs",
        "random",
        "random|seed(1)",
        "edges",
    ]
    assert set(result.scores["method"]) == set(labels)


def test_ranks_are_those_of_a_run_with_one_seed(result):
    alone = hp.evaluate(NET, DATA, METHOD_LIST, PROTOCOLS, limit=12)
    pd.testing.assert_frame_equal(result.summary(), alone.summary())
    assert str(result.evidence[0].possible_winners) == str(alone.evidence[0].possible_winners)


def test_the_table_is_that_of_a_slow_count(result, tmp_path):
    frame = result.over_seeds()
    assert set(frame["method"]) == {"smoothgrad(n=2)|abs", "random"}
    assert set(frame["protocol"]) == {"sds"}  # soundness has one value for all images
    rows = result.scores[result.scores["protocol"] == "sds"]
    by_sample = rows.pivot(index="sample", columns="method", values="value")
    for line in frame.itertuples():
        first, *tail = line.method.split("|")
        other = "|".join([first, "seed(1)", *tail])
        pairs = by_sample[[line.method, other]].to_numpy()
        between = np.mean([np.var(pair, ddof=1) for pair in pairs])
        over = np.mean([np.var(pairs[:, i], ddof=1) for i in range(2)])
        assert (line.seeds, line.n) == (2, 12)
        assert line.between == pytest.approx(between) and line.variance == pytest.approx(over)
        assert line.share == pytest.approx(between / over)
        assert [line.lowest, line.highest] == pytest.approx(sorted(pairs.mean(0)))
    result.report(tmp_path / "report")
    page = (tmp_path / "report" / "stability.html").read_text(encoding="utf-8")
    assert "between seeds of the same method" in page


def test_noise_alone_has_all_of_the_variance_and_none_if_seeds_agree():
    facts = {"m": METHOD("", "m"), "m|seed(1)": METHOD("m", "m|seed(1)")}
    rng = np.random.default_rng(0)
    noise, fixed = rng.normal(size=(2000, 2)), rng.normal(size=(2000, 1)).repeat(2, 1)

    def spread(values):
        rows = [
            (*["net", "p", "", ""], method, str(i), values[i, j])
            for i in range(len(values))
            for j, method in enumerate(facts)
        ]
        frame = pd.DataFrame(rows, columns=[*GROUP, "method", "sample", "value"])
        (found,) = seed_spreads(frame, facts)
        return found.share

    assert spread(noise) == pytest.approx(1, abs=0.1)
    assert spread(fixed) == 0
    assert spread(fixed + noise) == pytest.approx(0.5, abs=0.05)


class METHOD:
    def __init__(self, first_seed, label):
        self.first_seed, self.label = first_seed, label


def test_methods_that_draw_numbers_are_marked():
    """Against the maps of all methods of the library with two seeds."""
    model = hp.load_model(NET)
    x, target = torch.randn(1, 3, 64, 64), torch.tensor([0])
    reference = torch.rand(4, 3, 64, 64)
    checked = 0
    for entry in METHODS:
        name = entry.id
        if entry.source is not None or "silhouette" in entry.needs:
            continue
        known = {k: v for k, v in FEW.items() if k in entry.parameters}
        arguments = ", ".join(f"{k}={v}" for k, v in known.items())
        layer = "@middle" if name == "sg-cam++" else ""  # at the last one, noise changes nothing
        expression = Expression.parse(f"{name}({arguments}){layer}")
        try:
            first, second = (
                hp.explain(model, x, target, expression, seed=s, reference=reference)
                for s in (0, 1)
            )
        except NotApplicable:
            continue
        assert expression.is_stochastic == (not torch.equal(first, second)), name
        checked += 1
    assert checked > 30


def test_baselines_that_draw_numbers_are_marked(images):
    model, x = hp.load_model(NET), images[0][:1]
    removed = torch.zeros(1, *x.shape[2:], dtype=torch.bool)
    removed[:, 8:40, 8:40] = True
    for name in [entry.id for entry in BASELINES if entry.source is None]:
        baseline = Baseline.parse(name)
        if baseline.entry.prepare is not None:
            assert not baseline.entry.stochastic  # from the reference images alone
            continue
        one, other = (baseline.fill(x, model, Rng(seed, ["a"]), removed) for seed in (0, 1))
        assert baseline.entry.stochastic == (not torch.equal(one, other)), name
    assert Expression.parse("ig(steps=2, baseline=uniform)").is_stochastic
    assert not Expression.parse("ig(steps=2)").is_stochastic


def test_methods_of_others_count_as_stochastic_once_for_each_seed():
    def mine(model, x, target, *, rng):
        return x[:, 0]

    labels = [e.label for e in with_seeds([Expression.parse(("a name", mine))], 3)]
    assert labels == ["a name", "a name|seed(1)", "a name|seed(2)"]
    reseeded = Expression.parse(("a name", mine)).reseeded(2)
    assert reseeded.first_seed.label == "a name"


def test_seeds_that_cannot_be():
    spec = {"models": NET, "data": "paperbirds", "methods": ["random"], "protocols": ["sds"]}
    assert [e.label for e in make_spec({**spec, "seeds": 2}).expressions()] == [
        "random",
        "random|seed(1)",
    ]
    for wrong, message in (
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"seeds": 1000}, "less than or equal to 100"),
        ({"seeds": 2, "decide": True}, "decide drops methods on the way; leave one of them out"),
    ):
        with pytest.raises(HeatproofError, match=message):
            make_spec({**spec, **wrong})
    for text, message in (
        ("ixg|abs|seed(1)", r"seed stands once, after the method and its noise: ixg\|seed\(1\)"),
        ("ixg|seed(0)", "greater than or equal to 1"),
        ("ixg|seed", "missing a required argument"),
    ):
        with pytest.raises(HeatproofError, match=message):
            Expression.parse(text)
    for options, message in (
        ({"seeds": 0}, "from 1 to 100; got 0"),
        ({"seeds": 2, "decide": True}, "leave one of them out"),
    ):
        with pytest.raises(HeatproofError, match=message):
            hp.evaluate(NET, DATA, ["random"], limit=2, **options)
