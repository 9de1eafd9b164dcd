"""Merged runs equal a whole one; what cannot be compared is refused by name."""

import json
import shutil

import pandas as pd
import pytest
import torch
from report_text import report_text

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.results.merge import LOGIT_ROUNDING, _same_logits

from .conftest import METHODS, PROTOCOLS, network, part_of, photos

SOUNDNESS = {"name": "soundness", "first": 0.96, "last": 0.16, "step": 0.08, "eps": 0.4}


def assert_same(merged: hp.Result, whole: hp.Result) -> None:
    """Assert equal summaries and scores, to the bit."""
    pd.testing.assert_frame_equal(merged.summary(), whole.summary(), check_exact=True)
    keys = ["model", "protocol", "setting", "baseline", "method", "sample"]
    pd.testing.assert_frame_equal(
        merged.scores.sort_values(keys, ignore_index=True),
        whole.scores.sort_values(keys, ignore_index=True),
        check_exact=True,
    )


@pytest.fixture(scope="module")
def whole(models) -> hp.Result:
    protocols = [*PROTOCOLS, SOUNDNESS]
    return hp.evaluate(models, photos(), METHODS, protocols, keep_maps=4)


def evaluated(models, data=None, methods=METHODS, **options):
    protocols = [*PROTOCOLS, SOUNDNESS]
    return hp.evaluate(models, data or photos(), methods, protocols, **{"keep_maps": 4} | options)


def test_runs_of_other_methods_merge_to_the_whole(models, whole, tmp_path):
    parts = [evaluated(models, methods=METHODS[:2]), evaluated(models, methods=METHODS[2:])]
    merged = hp.merge(parts, out=tmp_path / "merged")
    assert_same(merged, whole)
    assert_same(hp.Result.load(tmp_path / "merged"), whole)
    sample = photos().ids[3]
    for method in ("ixg", "random"):
        found = merged.map(method, sample, model="net/first")
        assert torch.equal(found, whole.map(method, sample, model="net/first"))
    lines = merged.difference("ixg", "random")
    pd.testing.assert_frame_equal(lines, whole.difference("ixg", "random"), check_exact=True)
    page = report_text(merged.report())
    assert "hp.merge(runs)  # 2 runs" in page
    spec = json.loads((tmp_path / "merged" / "provenance.json").read_text())["spec"]
    assert [part["spec"]["methods"] for part in spec["merged"]] == [METHODS[:2], METHODS[2:]]


def test_runs_of_other_samples_merge_to_the_whole(models, whole):
    data = photos()
    parts = [evaluated(models, part_of(data, rows)) for rows in (slice(0, 5), slice(5, 12))]
    assert_same(hp.merge(parts), whole)


def test_runs_of_other_models_merge_to_the_whole(models, whole):
    parts = [evaluated(model) for model in models]
    assert_same(hp.merge(parts), whole)


def test_what_runs_have_in_common_is_kept_once(models, whole):
    """Shards that overlap in part, in samples and in methods, and the whole once more."""
    data = photos()
    parts = [
        evaluated(models, part_of(data, slice(0, 8)), METHODS[:3]),
        evaluated(models, part_of(data, slice(4, 12)), METHODS[:3]),
        evaluated(models, data, METHODS[3:]),
        evaluated(models, data, METHODS[3:]),
    ]
    merged = hp.merge(parts)
    assert_same(merged, whole)
    assert_same(hp.merge([merged, whole]), whole)
    assert merged.accuracy == whole.accuracy


def test_runs_with_other_settings_are_other_rows(models):
    data = photos(4)
    runs = [hp.evaluate(models[0], data, ["ixg"], [f"sds(patches={p})"]) for p in (4, 16)]
    assert hp.merge(runs).summary()["setting"].str[:10].tolist() == ["patches=4,", "patches=16"]


def test_grids_merge_with_their_clusters():
    model = hp.load_model("paperbirds/resnet")
    protocols = [{"name": "gridpg", "grids": 3}]

    def on_grids(methods):
        return hp.evaluate(model, "paperbirds:test", methods, protocols, limit=60)

    merged = hp.merge([on_grids(["ixg"]), on_grids(["random"])])
    assert_same(merged, on_grids(["ixg", "random"]))


def scaled(by):
    def mine(model, x, target, *, rng):
        return by * x[:, 0] ** by

    return mine


def test_other_weights_under_the_same_name_are_refused(models):
    other = network(5, "net/first")
    runs = [hp.evaluate(model, photos(3), ["ixg"], ["sds"]) for model in (models[0], other)]
    with pytest.raises(HeatproofError, match="net/first is not the same model in"):
        hp.merge(runs)


def test_another_image_under_the_same_id_is_refused(models):
    flipped = hp.TensorData(photos(3).images.flip(0), photos(3).labels, photos(3).ids)
    first = hp.evaluate(models[0], photos(3), ["ixg"], ["sds"])
    second = hp.evaluate(models[0], flipped, ["random"], ["sds"])
    with pytest.raises(HeatproofError, match='sample "photo_00" of net/first is another image'):
        hp.merge([first, second])


def test_two_scores_of_the_same_sample_are_refused(models):
    runs = [hp.evaluate(models[0], photos(3), ["random"], ["sds"], seed=seed) for seed in (0, 1)]
    pattern = r"random has two scores for sample photo_00 of net/first under sds\(patches=16"
    with pytest.raises(HeatproofError, match=pattern):
        hp.merge(runs)


def test_two_methods_of_the_same_name_are_refused(models):
    def mine(model, x, target, *, rng):
        return x[:, 1]

    runs = [hp.evaluate(models[0], photos(3), [m], ["sds"]) for m in (mine, scaled(2))]
    with pytest.raises(HeatproofError, match="the method mine is"):
        hp.merge(runs)


def test_a_directory_that_is_taken_is_refused(models, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HeatproofError, match="is not empty"):
        hp.merge([hp.evaluate(models[0], photos(3), ["ixg"], ["sds"])], out=tmp_path)
    with pytest.raises(HeatproofError, match="nothing to merge"):
        hp.merge([])


def test_methods_on_different_samples_do_not_rank_without_a_word(models, whole):
    first = hp.evaluate(models[0], part_of(photos(), slice(0, 5)), ["ixg"], ["sds"])
    second = hp.evaluate(models[0], part_of(photos(), slice(3, 12)), ["saliency"], ["sds"])
    merged = hp.merge([first, second])
    assert merged.caveats[0].startswith("`ixg` is not ranked: it has a score on 5 of 12 images")
    assert merged.caveats[1].startswith("`saliency` is not ranked: it has a score on 9 of 12")
    assert "not ranked" in next(line for line in repr(merged).splitlines() if "n = 5" in line)
    assert not any("not ranked" in text for text in whole.caveats)
    assert any(line.endswith("higher is better, n = 12") for line in repr(whole).splitlines())


def test_a_merge_that_was_killed_goes_on(models, tmp_path):
    """A merge writes its plan last; until then the same call continues, and no other."""
    runs = [evaluated(models[:1], methods=[method]) for method in ("ixg", "random")]
    whole = hp.merge(runs, out=tmp_path / "whole")
    partial = tmp_path / "partial"
    shutil.copytree(tmp_path / "whole", partial)
    (partial / "plan.json").unlink()
    next(partial.glob("tasks/*.json")).unlink()
    (partial / ".tmp-of-a-killed-process").write_text("half")
    with pytest.raises(HeatproofError, match="is not empty"):
        hp.merge(runs[:1], out=partial)
    assert_same(hp.merge(runs, out=partial), whole)
    with pytest.raises(HeatproofError, match="is not empty"):
        hp.merge(runs, out=partial)


@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_logits_may_differ_by_rounding_of_the_largest(scale):
    """Of the largest logit, and of 1 where all are smaller."""
    ours = torch.tensor([[scale, -scale / 2]])
    rounding = LOGIT_ROUNDING * max(1.0, scale)
    assert _same_logits(ours, ours + 0.5 * rounding) == [True]
    assert _same_logits(ours, ours + 2 * rounding) == [False]
    assert _same_logits(ours, torch.zeros(1, 3)) == [False]
