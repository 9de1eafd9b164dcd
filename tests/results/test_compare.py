"""Two results beside each other."""

import numpy as np
import pytest
from click.testing import CliRunner

import heatproof as hp
from heatproof.cli import main
from heatproof.errors import HeatproofError

from .conftest import METHODS, PROTOCOLS, network, part_of, photos
from .test_result import plain_interval


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> hp.Result:
    """The first model with other weights, on fewer samples, with one method less and a new one."""
    out = tmp_path_factory.mktemp("compare") / "other"
    data = part_of(photos(), slice(2, 12))
    methods = [*METHODS[:3], "ig(steps=5)"]
    return hp.evaluate(network(3, "net/first"), data, methods, PROTOCOLS, seed=1, out=out)


def test_a_run_and_itself_differ_in_nothing(result):
    found = hp.compare(result, result.store.root)
    assert len(found.to_frame()) == len(result.summary())
    assert (found.differences[["difference", "low", "high"]] == 0).all(axis=None)
    assert not len(found.changes) and not len(found.only_in_a) and not len(found.only_in_b)
    assert not len(found.significant)


def test_differences_are_over_the_common_samples(result, other):
    found = hp.compare(result, other)
    assert set(found.differences["model"]) == {"net/first"}
    assert set(found.differences["method"]) == set(METHODS[:3])
    for line in found.differences.to_dict("records"):
        keys = ["model", "protocol", "setting", "baseline", "method"]
        a, b = (
            r.scores[(r.scores[keys] == [line[k] for k in keys]).all(axis=1)].set_index("sample")
            for r in (result, other)
        )
        common = [sample for sample in b.index if sample in a.index]
        values = (b.loc[common, "value"] - a.loc[common, "value"]).dropna()
        assert line["n"] == len(values) == 10
        assert line["difference"] == pytest.approx(line["b"] - line["a"], abs=1e-12)
        assert line["difference"] == pytest.approx(values.mean(), abs=1e-12)
        expected = plain_interval(values.to_numpy(), list(values.index))
        assert (line["low"], line["high"]) == pytest.approx(expected, abs=1e-9)


def test_what_changed_is_listed(result, other):
    found = hp.compare(result, other)
    changes = found.changes.set_index("what")
    prints = [r.store.provenance().models[0].fingerprint for r in (result, other)]
    assert changes.loc["weights of net/first"].tolist() == prints
    assert changes.loc["spec.seed"].tolist() == ["0", "1"]
    assert changes.loc["spec.methods"].tolist() == ["random, ixg|abs", "ig(steps=5)"]
    assert "images" not in changes.index
    assert set(found.only_in_b["method"]) == {"ig(steps=5)"}
    text = repr(found)
    assert max(map(len, text.splitlines())) <= 100
    assert f"{len(found.differences)} mean scores in both" in text
    assert "ixg|abs" in found._repr_html_()


def test_other_images_under_the_same_ids_are_noticed(models):
    data = photos(3)
    flipped = hp.TensorData(data.images.flip(3), data.labels, data.ids)
    a, b = (hp.evaluate(models[0], images, ["ixg"], ["sds"]) for images in (data, flipped))
    (change,) = hp.compare(a, b).changes.to_dict("records")
    assert change["what"] == "images"
    assert "photo_00, photo_01, photo_02" in change["a"]


def test_aggregated_scores_are_compared_on_the_same_samples_only(models):
    protocol = {"name": "soundness", "first": 0.96, "last": 0.16, "step": 0.08, "eps": 0.4}
    data = photos()
    a, b, fewer = (
        hp.evaluate(models[i], images, ["ixg"], [protocol])
        for i, images in ((0, data), (0, data), (0, part_of(data, slice(0, 6))))
    )
    (same,) = hp.compare(a, b).differences.to_dict("records")
    assert (same["difference"], same["low"], same["high"]) == (0, 0, 0)
    (line,) = hp.compare(a, fewer).differences.to_dict("records")
    assert np.isnan(line["difference"]) and line["n"] == 0


def test_runs_without_anything_in_common_are_refused(models, result):
    alone = hp.evaluate(network(0, "third"), photos(3), ["ixg"], ["sds"])
    same = "of net/first, net/second and of third. These are the same network.*name=.*as: mine"
    with pytest.raises(HeatproofError, match=f"no scores of the same model.*{same}"):
        hp.compare(result, alone)
    other = hp.evaluate(network(0, "net/first"), photos(3), ["edges"], ["sds"])
    with pytest.raises(HeatproofError, match="They are of ixg, .* and of edges."):
        hp.compare(result, other)


def test_two_runs_are_compared_in_the_terminal(result, other):
    roots = [str(r.store.root) for r in (result, other)]
    shown = CliRunner().invoke(main, ["compare", *roots], catch_exceptions=False)
    assert shown.exit_code == 0
    line = hp.compare(*roots).differences.iloc[0]
    assert f"{line['difference']:+.3f}" in shown.output
    assert "weights of net/first" in shown.output
    refused = CliRunner().invoke(main, ["compare", roots[0], "nowhere"])
    assert refused.exit_code == 2
