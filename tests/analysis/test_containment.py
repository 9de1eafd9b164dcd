"""Every interval contains its estimate, whatever the scores: ties, gaps, constants, clusters."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatproof.analysis import accuracy
from heatproof.analysis.evidence import Evidence
from heatproof.analysis.intervals import Estimate, bootstrap_means
from heatproof.analysis.paired_differences import gap
from heatproof.analysis.ranks import agreement, standings
from heatproof.analysis.settings import summarize
from heatproof.analysis.soundness import at_levels
from heatproof.analysis.tradeoff import tradeoff
from heatproof.protocols import make_protocol

RESAMPLES = 100


@st.composite
def tables(draw) -> tuple[np.ndarray, np.ndarray]:
    """Scores (settings, samples, methods) with ties, gaps and constant columns, and clusters."""
    samples = draw(st.integers(2, 24))
    methods = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.normal(size=(2, samples, methods)) * 10.0 ** draw(st.integers(-6, 6))
    kind = draw(st.sampled_from(["continuous", "binary", "rounded", "skewed"]))
    if kind == "binary":
        values = (values > 0).astype(float)
    elif kind == "rounded":
        values = np.round(values, draw(st.integers(0, 6)))
    elif kind == "skewed":
        values = 1 - np.exp(3 * np.clip(values, -1, 1))
    if draw(st.booleans()):
        values[:, :, 0] = draw(st.sampled_from([0.0, 0.1, -3.3]))
    if draw(st.booleans()):
        values[:, :, 1] = values[:, :, 0]
    values[rng.random(values.shape) < draw(st.sampled_from([0, 0.1, 0.6]))] = np.nan
    clusters = rng.integers(0, samples, samples) // draw(st.sampled_from([1, 4, samples]))
    return values, clusters


def as_rows(values: np.ndarray, clusters: np.ndarray) -> pd.DataFrame:
    settings_, samples, methods = values.shape
    index = pd.MultiIndex.from_product(
        [["zero", "blur"][:settings_], range(samples), list("abcdef")[:methods]],
        names=["baseline", "sample", "method"],
    )
    rows = pd.DataFrame({"value": values.ravel()}, index=index).reset_index()
    rows["cluster"] = [f"c{clusters[i]}" for i in rows["sample"]]
    rows["sample"] = [f"s{i:02d}" for i in rows["sample"]]
    rows["status"] = np.where(np.isfinite(rows["value"]), "ok", "undefined")
    return rows.assign(model="net", layer="input", protocol="sds", setting="", message="")


def check(estimate: Estimate | None) -> None:
    if estimate is None or not np.isfinite(estimate.low):
        return
    assert estimate.low <= estimate.value <= estimate.high


@settings(max_examples=150, deadline=None)
@given(tables())
def test_means_ranks_and_agreement(table):
    rows = as_rows(*table)
    for line in summarize(rows, RESAMPLES).to_dict("records"):
        check(Estimate(line["mean"], line["low"], line["high"]))
        check(Estimate(line["rank"], line["rank_low"], line["rank_high"]))
    (ranking,) = standings(rows, RESAMPLES)
    evidence = Evidence(ranking)
    for method in ranking.methods:
        check(evidence.mean_rank(method))
        check(ranking.mean_score(method))
        check(ranking.score(0, method))
    settings_ = range(len(ranking.settings))
    agreed = agreement(
        [(ranking.methods, ranking.ranks[s], ranking.drawn_ranks[s]) for s in settings_]
    )
    if agreed:
        for estimate in agreed.pairs.values():
            check(estimate)
        for measure in ("mean", "least", "spread", "flipped", "concordance"):
            check(getattr(agreed, measure))


@settings(max_examples=100, deadline=None)
@given(tables())
def test_an_interval_of_a_mean_contains_it_by_construction(table):
    """Draws are on both sides of the mean: it is extended by rounding alone."""
    values, clusters = table
    for column in values[0].T:
        mean = np.nanmean(column) if np.isfinite(column).any() else np.nan
        draws = bootstrap_means(column[:, None], RESAMPLES, 0, clusters)[:, 0]
        finite = draws[np.isfinite(draws)]
        if len(finite):
            low, high = np.quantile(finite, [0.025, 0.975])
            rounding = 1e-9 * (1 + np.nanmax(np.abs(column)))
            assert low - rounding <= mean <= high + rounding


@settings(max_examples=100, deadline=None)
@given(tables())
def test_differences_proportions_and_tradeoffs(table):
    values, clusters = table
    first, second = (pd.Series(v[:, 0]) for v in values)
    check(gap(first, second, dict(enumerate(clusters)))[0])
    binary = np.nan_to_num(values[:, :, 1]) > 0
    for correct in binary:
        check(accuracy.proportion(correct.astype(float)))
    check(accuracy.change(*binary.astype(float)))
    relation = tradeoff(*values, RESAMPLES)
    if relation:
        check(relation.correlation)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 60),
    st.integers(3, 20),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.01, 0.05, 0.2]),
    st.integers(0, 2**32),
    st.sampled_from(["correct", "softmax"]),
)
def test_soundness(samples, steps, flips, eps, seed, score):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, steps + 1, samples)
    correct = (np.arange(steps) >= start[:, None]) ^ (rng.random((samples, steps)) < flips)
    mass = rng.gamma(0.5, size=(samples, steps))
    protocol = make_protocol("soundness", {"eps": eps, "score": score})
    for estimate in at_levels(protocol, correct.astype(float), mass, resamples=RESAMPLES):
        if np.isfinite(estimate.value):
            assert estimate.low <= estimate.value <= estimate.high


def test_an_excluded_estimate_would_be_noticed():
    with pytest.raises(AssertionError):
        check(Estimate(1.0, 0.675, 0.949))
