"""Two results beside each other."""

import itertools
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from scipy import stats

import heatproof as hp
from heatproof.analysis import wording
from heatproof.analysis.paired_differences import run_differences
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.results.comparison_page import ComparedRun, _bar, comparison_page

from .conftest import METHODS, PROTOCOLS, network, part_of, photos


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
        alone = stats.ttest_1samp(values.to_numpy(), 0).confidence_interval()
        assert line["high"] - line["low"] > alone.high - alone.low, "all lines hold together"


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


def test_all_lines_are_one_family(result, other):
    """The smallest p-value is that of the largest statistic among all lines, over all signs."""
    found = hp.compare(result, other).differences
    keys = ["model", "protocol", "setting", "baseline", "method"]
    columns = []
    for line in found.to_dict("records"):
        a, b = (
            r.scores[(r.scores[keys] == [line[k] for k in keys]).all(axis=1)].set_index("sample")
            for r in (result, other)
        )
        columns.append((b["value"] - a["value"]).dropna().rename(len(columns)))
    table = pd.concat(columns, axis=1).to_numpy()
    assert table.shape == (10, len(found)) and np.isfinite(table).all()
    signs = np.array(list(itertools.product([1, -1], repeat=10)))
    flipped = signs[:, :, None] * table
    t = np.abs(flipped.mean(1)) / (flipped.std(1, ddof=1) / np.sqrt(10))
    largest = t.max(1)
    observed = t[0].max()
    p = (np.mean(largest >= observed - 1e-9) + np.mean(largest > observed + 1e-9)) / 2
    assert found["p"].min() == pytest.approx(p)
    significant = hp.compare(result, other).significant
    assert 0 < len(significant) < len(found)
    assert significant["p"].max() <= 0.05 < found.drop(significant.index)["p"].min()


def test_only_real_changes_are_listed_between_a_spec_and_python(models, tmp_path):
    """A spec records more keys than a call in Python, which changes nothing."""
    (tmp_path / "net.py").write_text(
        "import heatproof as hp\nimport torch\nfrom torch import nn\n"
        "def build():\n    torch.manual_seed(0)\n"
        "    net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4),"
        " nn.Flatten(), nn.Linear(96, 4))\n"
        "    return hp.Model(net.eval(), size=16, name='net')\n",
        encoding="utf-8",
    )
    for i in range(4):
        folder = tmp_path / "images" / f"class{i}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    data = f"folder:{tmp_path / 'images'}"
    spec = {
        "models": [{"name": f"file:{tmp_path / 'net.py'}:build", "as": "net"}],
        "data": {"name": data},
        "methods": ["ixg"],
        "protocols": ["sds"],
        "about": "a description",
    }
    written = hp.run(spec, tmp_path / "spec")
    again = hp.run({**spec, "about": "another"}, tmp_path / "again")
    assert not len(hp.compare(written, again).changes)
    called = hp.evaluate(network(0, "net"), data, ["ixg"], ["sds"])
    changes = hp.compare(written, called).changes
    assert set(changes["what"]) <= {"spec.data.name"}, changes
    seeded = hp.run({**spec, "seed": 1}, tmp_path / "seeded")
    assert list(hp.compare(written, seeded).changes["what"]) == ["spec.seed"]


def test_runs_are_compared_on_a_page(result, other, tmp_path):
    roots = [str(r.store.root) for r in (result, other)]
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    command = ["compare", *roots, roots[0], "--html", str(page), "--json", str(numbers)]
    shown = CliRunner().invoke(main, command, catch_exceptions=False)
    assert shown.exit_code == 0 and "page.html" in shown.output
    content = json.loads(numbers.read_text(encoding="utf-8"))
    assert len(content["comparisons"]) == 2 and "NaN" not in numbers.read_text(encoding="utf-8")
    html = page.read_text(encoding="utf-8")
    line = hp.compare(*roots).differences.iloc[0]
    assert f"{line['difference']:+.3f}" in html and "weights of net/first" in html
    assert "<script" not in html and "http" not in re.sub(r'http-equiv|content="[^"]*"', "", html)


def test_a_page_has_the_gate_and_one_scale_for_all_lines_of_a_setting(result, other, tmp_path):
    page = tmp_path / "page.html"
    roots = [str(r.store.root) for r in (result, other)]
    command = ["compare", *roots, "--html", str(page), "--fail-if-worse", "all:0"]
    shown = CliRunner().invoke(main, command)
    found = hp.compare(result, other)
    html = unescape(page.read_text(encoding="utf-8"))
    lines = wording.gate_lines(found.gate([("all", 0.0)]))
    assert lines and all(text in html for text in lines)
    assert lines[-1] in shown.output
    for _, group in found.groups():
        drawn = [line for line in group if np.isfinite(line["low"])]
        widths = [float(b) - float(a) for a, b in map(drawn_ends, [(x, drawn) for x in drawn])]
        lengths = [line["high"] - line["low"] for line in drawn]
        np.testing.assert_allclose(
            np.array(widths) / max(widths), np.array(lengths) / max(lengths), atol=0.01
        )


def drawn_ends(lines):
    (ends,) = re.findall(r'x1="([-0-9.]+)" x2="([-0-9.]+)" y1="8', str(_bar(*lines)))
    return ends


def test_names_on_the_page_are_escaped(result):
    found = hp.compare(result, result)
    hostile = "<img src=x onerror=alert(1)> & \u202e\"'"
    changed = found.differences.assign(method=hostile, model=hostile)
    changes = pd.DataFrame([(hostile, hostile, "x" * 10_000)], columns=["what", "a", "b"])
    page = comparison_page(
        hostile, [ComparedRun(hostile, replace(found, differences=changed, changes=changes))]
    )
    assert "<img" not in page and "&lt;img" in page
    assert "x" * 300 not in page


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


def scores_of(values: np.ndarray, protocol: str = "sds") -> pd.DataFrame:
    names = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    rows = [
        ("net", protocol, "", "zero", f"m{j}", f"s{i}", value)
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    return pd.DataFrame(rows, columns=names)


def gate_of(a, b, allowed, protocol="sds", sign=1) -> list[str]:
    frames = (scores_of(np.asarray(v), protocol) for v in (a, b))
    limits = {f"m{j}": allowed for j in range(np.shape(a)[1])}
    lines = run_differences(*frames, {}, {}, {protocol: sign}, limits)
    return list(lines["outcome"])


def test_the_gate_follows_the_direction_and_needs_certainty():
    rng = np.random.default_rng(0)
    a = rng.normal(0.5, 0.1, (40, 3))
    moved = a + rng.normal(0, 0.02, (40, 3)) + np.array([-0.1, 0.1, 0.0])
    assert gate_of(a, moved, 0.02) == ["worse", "kept", "kept"]
    assert gate_of(a, moved, 0.02, "deletion", -1) == ["kept", "worse", "kept"]
    assert gate_of(a, moved, 0.2) == ["kept"] * 3
    noisy = a + rng.normal(0, 0.5, (40, 3))
    assert "undecided" in gate_of(a, noisy, 0.02)
    assert gate_of(a, a, 0.0) == ["same"] * 3
    assert gate_of(a[:3], moved[:3], 0.0) == ["undecided"] * 3


def gated(a: np.ndarray, b: np.ndarray, allowed: float, identical: bool = False) -> pd.DataFrame:
    frames = (scores_of(values, "gridpg") for values in (a, b))
    tolerances = {f"m{j}": allowed for j in range(a.shape[1])}
    limits = {("gridpg", "", "zero"): (0.0, 1.0)}
    return run_differences(*frames, {}, {}, None, tolerances, limits, identical)


def test_equal_scores_of_0_and_1_do_not_decide_by_themselves():
    """What makes a score worse on one image in twenty is mostly not seen on sixteen."""
    hits = np.ones((16, 3))
    lines = gated(hits, hits, 0.02)
    assert list(lines["outcome"]) == ["undecided"] * 3
    unseen = 1 - (0.05 / 3) ** (1 / 16)  # of images may be worse, and none of sixteen would be
    assert lines["low"].max() <= 1e-9 - unseen and lines["high"].min() >= unseen - 1e-9
    enough = int(lines["needed"].iloc[0])
    assert enough == np.ceil(np.log(0.05 / 3) / np.log(0.98))
    many = np.ones((enough + 1, 3))
    assert list(gated(many, many, 0.02)["outcome"]) == ["kept"] * 3
    assert list(gated(hits, hits, 0.02, identical=True)["outcome"]) == ["same"] * 3


def test_one_changed_image_of_few_does_not_decide():
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(60):
        a = (rng.random((16, 3)) < 0.97).astype(float)
        b = a * (rng.random((16, 3)) >= 0.05)
        false += "kept" in list(gated(a, b, 0.04)["outcome"])
    assert false <= 3


def test_a_method_that_fails_on_its_worst_images_does_not_pass_the_gate():
    """It is worse by .1, and by nothing on the images on which it does not fail."""
    rng = np.random.default_rng(2)
    a = rng.uniform(0.4, 0.6, (100, 2))
    b = a + 0.001 * rng.normal(size=a.shape)
    b[:20, 0] = np.nan
    lines = gated(a, b, 0.02)
    assert list(lines["outcome"]) == ["lost", "kept"] and list(lines["lost"]) == [20, 0]
    assert "has lost scores: it has no score on 20 images with one in the first run" in " ".join(
        wording.gate_lines(lines.assign(allowed=0.02))
    )
    b[8:20, 0] = a[8:20, 0]
    assert list(gated(a, b, 0.02)["outcome"]) == ["undecided", "kept"]  # 8 × .5 of 100 may be lost
    assert list(gated(a, b, 0.1)["outcome"]) == ["kept", "kept"]
    everywhere = np.column_stack([np.full(100, np.nan), b[:, 1]])
    assert list(gated(a, everywhere, 0.02)["outcome"]) == ["lost", "kept"]
    assert list(gated(b, a, 0.02)["outcome"]) == ["kept", "kept"]  # new scores are no loss


def test_unchanged_runs_seldom_fail_the_gate():
    """Ten methods under one setting, other noise in both runs and no true change."""
    rng = np.random.default_rng(1)
    alarms = differ = 0
    for _ in range(100):
        truth = rng.normal(0.5, 0.2, (32, 1))
        a, b = (truth + rng.normal(0, 0.1, (32, 10)) for _ in range(2))
        alarms += "worse" in gate_of(a, b, 0.0)
        differ += (run_differences(scores_of(a), scores_of(b), {}, {})["p"] <= 0.05).any()
    assert max(alarms, differ) / 100 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 100)


def test_the_gate_refuses_a_method_that_is_not_there(result, other):
    with pytest.raises(HeatproofError, match="did you mean ixg"):
        hp.compare(result, other).gate([("ixgg", 0.0)])


def test_a_comparison_is_written_as_json(result, other, tmp_path):
    found = hp.compare(result, other)
    text = found.to_json(tmp_path / "found.json")
    content = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert content == json.loads(text) and "NaN" not in text
    assert len(content["differences"]) == len(found.differences)
    assert content["differences"][0]["n"] == found.differences["n"].iloc[0]
    assert {line["what"] for line in content["changes"]} == set(found.changes["what"])


def gradient(model, x, target):
    x = x.detach().requires_grad_()
    score = model(x).gather(1, target[:, None]).sum()
    return x * torch.autograd.grad(score, x)[0]


def negative(model, x, target):
    return -gradient(model, x, target)


def test_a_run_that_is_worse_fails_in_the_terminal(models, tmp_path):
    roots = [tmp_path / "a", tmp_path / "b"]
    for method, out in zip((gradient, negative), roots, strict=True):
        hp.evaluate(models[0], photos(), [("mine", method)], ["sds"], out=out)

    def code(first, second, *options) -> tuple[int, str]:
        command = ["compare", str(first), str(second), *options]
        shown = CliRunner().invoke(main, command, catch_exceptions=False)
        return shown.exit_code, " ".join(shown.output.split())

    assert code(*roots, "--fail-if-worse", "mine:0.02")[0] == 4
    assert "is worse than allowed" in code(*roots, "--fail-if-worse", "all:0.02")[1]
    assert code(*roots[::-1], "--fail-if-worse", "all:0.02")[0] == 0
    assert code(*roots)[0] == 0
    same = code(roots[0], roots[0], "--fail-if-worse", "all:0", "--undecided", "fail")
    assert same[0] == 0 and "1 of 1 score: the same in both runs on every image" in same[1]
    few = [tmp_path / "c", tmp_path / "d"]
    for method, out in zip((gradient, negative), few, strict=True):
        hp.evaluate(models[0], photos(4), [("mine", method)], ["sds"], out=out)
    assert code(*few, "--fail-if-worse", "all:0")[0] == 0
    assert code(*few, "--fail-if-worse", "all:0", "--undecided", "fail")[0] == 5
    for wrong in ("mine", "mine:", ":0.1", "mine:-1", "mine:nan", "mine:much"):
        exit_code, text = code(*roots, "--fail-if-worse", wrong)
        assert exit_code == 2 and "such as gradcam:0.02" in text
    assert code(roots[0], "published:hesse2024/table6", "--fail-if-worse", "all:0")[0] == 2
