"""What a result gives out: tables, JSON, maps and paired differences."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from rescored import linear_run, rescored
from scipy.stats import ttest_rel

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.results.tables import latex_text

from .conftest import METHODS, photos


def plain_interval(values: np.ndarray, clusters: list[str]) -> tuple[float, float]:
    """Compute the bootstrap-t interval of a mean again, draw by draw and cluster by cluster."""
    from heatproof.tensor.noise import generator

    names = sorted(set(clusters))
    members = [[v for v, c in zip(values, clusters, strict=True) if c == name] for name in names]
    mean = values.mean()
    count = len(names)
    sums = np.array([sum(v - mean for v in of_cluster) for of_cluster in members])
    sizes = np.array([len(of_cluster) for of_cluster in members])
    error = np.sqrt((sums**2).sum()) / sizes.sum()
    widen = np.sqrt((count + 1) / (count - 1))
    drawn = []
    choose = generator(0, "bootstrap", count)
    for chosen in choose.integers(count, size=(10_000, count), dtype=np.uint32):
        total = sizes[chosen].sum()
        shift = sums[chosen].sum() / total
        own = np.sqrt(((sums[chosen] - shift * sizes[chosen]) ** 2).sum()) / total
        drawn.append(mean - widen * shift / max(own, 0.25 * error) * error)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return min(low, mean), max(high, mean)


def test_curves_have_the_scores_as_their_areas(result):
    """Compare with the scores, by the trapezoidal rule, and with means by hand."""
    every = result.curves(samples=True)
    scores = result.scores[result.scores["protocol"] == "deletion"]
    assert set(every["protocol"]) == {"deletion"} and set(every["curve"]) == {"score"}
    assert len(every) == 5 * len(scores)
    for row in scores.itertuples():
        of_map = [every[name] == getattr(row, name) for name in ("model", "method", "sample")]
        curve = every[np.logical_and.reduce(of_map)]
        assert curve["position"].tolist() == [0, 0.25, 0.5, 0.75, 1]
        area = ((curve["value"][:-1].to_numpy() + curve["value"][1:].to_numpy()) / 2).mean()
        assert area == pytest.approx(row.value, abs=1e-5)
    means = result.curves()
    assert len(means) == 2 * len(METHODS) * 5 and set(means["n"]) == {12}
    for line in means.itertuples():
        same = [every[n] == getattr(line, n) for n in ("model", "method", "step")]
        assert every.loc[np.logical_and.reduce(same), "value"].mean() == pytest.approx(line.mean)


def test_maps_without_a_score_have_no_curve(models):
    flat = torch.zeros(2, 3, 16, 16)
    flat[1, :, 3:9, 4:10] = 1.0

    def own(model, x, target):
        return x[:, 0] if x[:, 0].any() else torch.full_like(x[:, 0], torch.nan)

    images = hp.TensorData(flat, [0, 1], ids=["black", "square"])
    chosen = hp.evaluate(models[0], images, [own], ["deletion(steps=4)"], batch_size=1)
    assert set(chosen.curves(samples=True)["sample"]) == {"square"}
    assert set(chosen.curves()["n"]) == {1}
    assert hp.evaluate(models[0], images, ["ixg"], ["sds(patches=4)"]).curves().empty


def test_a_difference_is_that_of_the_stored_rows(result):
    lines = result.difference("ixg", "random", protocol="sds")
    assert len(lines) == 2 * 3
    for line in lines.to_dict("records"):
        rows = result.scores[(result.scores[list(line)[:4]] == list(line.values())[:4]).all(axis=1)]
        scores = rows.pivot(index="sample", columns="method", values="value")
        values = (scores["ixg"] - scores["random"]).dropna()
        assert line["n"] == len(values) == 12
        assert line["difference"] == pytest.approx(values.mean(), abs=1e-12)
        expected = plain_interval(values.to_numpy(), list(values.index))
        assert (line["low"], line["high"]) == pytest.approx(expected, abs=1e-9)
        assert line["low"] <= line["difference"] <= line["high"]


def test_differences_draw_the_maps_of_a_grid_together(tmp_path):
    model = hp.load_model("paperbirds/resnet")
    protocols = [{"name": "gridpg", "grids": 4}]
    result = hp.evaluate(model, "paperbirds:test", ["ixg", "random"], protocols, limit=60)
    (line,) = result.difference("ixg", "random").to_dict("records")
    scores = result.scores.pivot(index="sample", columns="method", values="value")
    clusters = result.scores.drop_duplicates("sample").set_index("sample")["cluster"]
    values = (scores["ixg"] - scores["random"]).dropna()
    assert len(set(clusters)) == 4 < line["n"] == len(values)
    expected = plain_interval(values.to_numpy(), [clusters[s] for s in values.index])
    assert (line["low"], line["high"]) == pytest.approx(expected, abs=1e-9)


def test_the_difference_of_a_method_and_itself_is_zero(result):
    lines = result.difference("ixg", "ixg", model="net/first")
    assert (lines[["difference", "low", "high"]] == 0).all(axis=None)
    with pytest.raises(HeatproofError, match="did you mean ixg"):
        result.difference("ixgg", "random")
    with pytest.raises(HeatproofError, match="unknown model"):
        result.difference("ixg", "random", model="third")


def test_all_pairs_are_tested_as_scipy_does_and_adjusted_together(result):
    """Adjusted p-values lie between scipy's of one pair and these times the number of pairs."""
    lines = result.pairs(model="net/first", protocol="sds")
    assert len(lines) == 3 * 10
    for _, group in lines.groupby(["setting", "baseline"]):
        rows = result.scores[result.scores["model"] == "net/first"]
        for column in ("protocol", "setting", "baseline"):
            rows = rows[rows[column] == group[column].iloc[0]]
        scores = rows.pivot(index="sample", columns="method", values="value")
        chosen = zip(group["better"], group["other"], strict=True)
        p = np.array([ttest_rel(scores[a], scores[b]).pvalue for a, b in chosen])
        adjusted = group["p"].to_numpy()
        assert (adjusted >= p - 0.03).all()
        assert (adjusted <= 10 * p + 0.03).all()
        order = np.argsort(p)
        assert (np.diff(adjusted[order]) >= -0.03).all()
    assert (lines["ahead"] >= 0).all()
    assert (lines["significant"] == (lines["p"] <= 0.05)).all()
    with pytest.raises(HeatproofError, match="unknown protocol"):
        result.pairs(protocol="sdss")


def test_the_variance_of_ranks_is_split_over_methods_and_choices(result):
    lines = result.variance()
    # each protocol has one setting, which cannot be told from it
    names = ["method", "transform", "model", "protocol", "baseline", "rest"]
    assert lines["between"].tolist() == names
    assert lines["share"].sum() == pytest.approx(1)
    assert list(lines) == ["between", "share"]


def test_frames_and_csv_hold_the_summary_or_all_scores(result, tmp_path):
    pd.testing.assert_frame_equal(result.to_frame(), result.summary())
    assert len(result.to_frame(samples=True)) == len(result.scores)
    read = pd.read_csv(result.to_csv(tmp_path / "summary.csv"), keep_default_na=False)
    assert read["mean"].tolist() == result.summary()["mean"].tolist()
    read = pd.read_csv(result.to_csv(tmp_path / "scores.csv", samples=True))
    assert len(read) == len(result.scores)


def test_json_has_the_summary_and_null_for_what_is_not_a_number(result, tmp_path):
    text = result.to_json(tmp_path / "result.json")
    assert "NaN" not in text
    content = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert content == json.loads(text)
    assert list(content) == ["schema", "heatproof", "data", "samples", "summary"]
    assert content["samples"] == "12 images"
    summary = result.summary()
    for line, (_, row) in zip(content["summary"], summary.iterrows(), strict=True):
        for column, value in row.items():
            assert line[column] == (None if pd.isna(value) else value)


def test_json_writes_null_for_a_method_without_a_score(models):
    result = hp.evaluate(models[0], photos(4), ["constant", "ixg"], ["sds"])
    lines = {line["method"]: line for line in json.loads(result.to_json())["summary"]}
    assert lines["constant"]["mean"] is None
    assert lines["constant"]["undefined"] == 4
    assert lines["ixg"]["mean"] is not None


def possible_winners(result) -> set[tuple[str, str, str, str]]:
    """Return (model, protocol, baseline, method) where no other is significantly ahead."""
    keys = ["model", "protocol", "baseline"]
    lines = result.pairs()
    behind = set(lines[lines["significant"]][[*keys, "other"]].itertuples(index=False, name=None))
    every = set(result.summary()[[*keys, "method"]].itertuples(index=False, name=None))
    return every - behind


def test_markdown_has_the_possible_winners_of_each_column_in_bold(result):
    source, _, head, rule, *lines, _, note = result.to_markdown(columns=[], digits=4).splitlines()
    assert source == f"<!-- {result.source} -->"
    assert note.startswith("Means over n = 12 images or maps. Bold: methods that may be the best")
    assert head.count("|") == rule.count("|") == 7
    assert "deletion · zero ↓" in head and "sds · blur ↑" in head
    assert len(lines) == 2 * len(METHODS)
    columns = [cell.strip(" ↑↓").split(" · ") for cell in head.split("|")[3:-1]]
    bold = set()
    for line in lines:
        model, method, *cells = re.split(r" (?<!\\)\| ", line.strip("| "))
        for (protocol, baseline), cell in zip(columns, cells, strict=True):
            if cell.startswith("**"):
                bold.add((model, protocol, baseline, method.replace("\\", "")))
    assert bold == possible_winners(result)


def test_latex_is_balanced_and_escaped(result, models):
    for layout in ({"columns": []}, {"columns": ["interval", "rank", "letters", "n"]}):
        text = result.to_latex(**layout)
        assert text.startswith(f"% {result.source}")
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
        for rule in (r"\toprule", r"\bottomrule"):
            assert text.count(rule) == 1
        bare = re.sub(r"\\[\\{}%&_#$]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        note = text.split(r"\end{tabular}")[1]  # below the table, where it widens no column
        assert "may be the best" in note and "Means over n = 12" in note
        assert ("share a letter" in note) == ("letters" in layout["columns"])
        assert len(rows) == 1 + 2 * len(METHODS)
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {5}
        assert len(re.findall(r"\\textbf\{", text)) == len(possible_winners(result))
        assert r"ixg\textbar{}abs" in text
    assert latex_text(r"a_b 5% c&d {x} \y ~^#$") == (
        r"a\_b 5\% c\&d \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{}\#\$"
    )


def test_a_table_has_what_is_asked_for_and_can_be_turned(result):
    lines = result.to_markdown(columns="letters", transpose=True, names={"ixg": "I×G"}).splitlines()
    heads, *rows = [line for line in lines if line.startswith("|") and "---" not in line]
    assert "I×G" in heads and len(rows) == 8
    best = next(row for row in rows if row.startswith("| net/first | sds · zero ↑"))
    tests = next(s.pairs for s in result.settings if s.key[:2] == ("net/first", "sds"))
    means = result.summary().query("model == 'net/first' and protocol == 'sds'")
    first = means[means["baseline"] == "zero"].set_index("method")["mean"]
    for method in METHODS:
        letters = tests.letters[tests.methods.index(method)]
        assert f"{first[method]:.3f} {letters}" in best
    with pytest.raises(HeatproofError, match="did you mean letters"):
        result.to_latex(columns=["leters"])
    with pytest.raises(HeatproofError, match="unknown layout"):
        result.to_latex(intervals=True)


def test_the_repr_fits_a_terminal_and_shows_means_and_intervals(result):
    text = repr(result)
    assert max(map(len, text.splitlines())) <= 100
    assert "5 methods on 2 models, 12 images" in text
    row = result.summary().query("model == 'net/first' and baseline == 'blur'").iloc[0]
    assert f"{row['mean']:.3f}  {row['low']:.3f} … {row['high']:.3f}" in text
    assert "and 2 more rankings" in text


def test_long_names_and_many_methods_are_cut_in_the_repr_and_escaped_in_html(models):
    def named(i):
        def method(model, x, target, *, rng):
            return x[:, 0] * (i + 1)

        method.__name__ = method.__qualname__ = f"{'long_' * 20}<b>{i}"
        return method

    result = hp.evaluate(models[0], photos(3), [named(i) for i in range(14)], ["sds"])
    text = repr(result)
    assert max(map(len, text.splitlines())) <= 100
    assert "and 2 more methods" in text
    page = result._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;" in page
    assert page.count("<tr>") == 1 + 12 + 1


def test_maps_are_read_all_or_one_by_one(result, models):
    maps = dict(result.maps("ixg", model="net/first"))
    assert list(maps) == photos().ids[:4]
    one = result.map("ixg", "photo_02", model="net/first")
    torch.testing.assert_close(one, maps["photo_02"])
    data = photos()
    x = models[0].normalize(data.images[2:3])
    expected = hp.explain(models[0], x, data.labels[2], "ixg")[0]
    torch.testing.assert_close(one, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))
    image = result.image("photo_02", model="net/first")
    torch.testing.assert_close(image, (data.images[2] * 255).round().byte(), atol=1, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ixg", "photo_09"), "not stored; a run keeps those of the first samples, here photo_00"),
        (("ixg", "photo_99"), "unknown sample"),
        (("ixgg", "photo_00"), "did you mean ixg"),
    ],
)
def test_a_map_that_is_not_there_is_named(result, arguments, message):
    with pytest.raises(HeatproofError, match=message):
        result.map(*arguments, model="net/first")
    with pytest.raises(HeatproofError, match="several models"):
        result.map("ixg", "photo_00")


def test_the_maps_of_all_samples_are_kept_on_request(models):
    one = hp.evaluate(models, photos(), ["ixg"], ["sds"], keep_maps="all")
    assert len(list(one.maps("ixg", model=models[0].name))) == len(set(one.scores["sample"]))


@pytest.mark.parametrize("keep", [-1, "some", 2.5])
def test_another_number_of_maps_is_refused(models, keep):
    with pytest.raises(HeatproofError, match='number of samples, or "all"'):
        hp.evaluate(models, photos(), ["ixg"], ["sds"], keep_maps=keep)


def test_intervals_stay_in_the_range_that_settings_give_a_score(tmp_path):
    """Scores of a logit have no range, those of a softmax have one."""
    scores = ["logit", "softmax"]
    protocols = [{"name": "deletion", "steps": 4, "score": score} for score in scores]
    run = linear_run(tmp_path / "run", ["ixg", "random"], protocols, 8)
    found = rescored(run, lambda row: [0, 0.001, 0.002, 0.2][row["image"] % 4]).summary()
    low = found.groupby(found["setting"].str.extract("score=(\\w+)")[0])["low"].min()
    assert low["logit"] < 0 <= low["softmax"]


def noise(model, x, target, *, rng):
    return rng.normal("map", x.shape[-2:])


def mostly_nothing(model, x, target, *, rng):
    """Noise without a value on five images of six."""
    maps = rng.normal("map", x.shape[-2:])
    keep = rng.uniform("kept", (1,)).reshape(-1) < 1 / 6
    maps[~keep] = float("nan")
    return maps


def test_a_method_that_fails_on_five_images_of_six_gains_nothing(models):
    methods = ["ixg", "saliency", ("luck", mostly_nothing)]
    result = hp.evaluate(models[0], photos(24), methods, ["sds"])
    summary = result.summary().set_index("method")
    assert np.isnan(summary.loc["luck", "rank"])
    assert 0 < summary.loc["luck", "n"] < 12
    assert summary.loc["ixg", "n"] == 24
    assert "`luck` is not ranked" in result.caveats[0]
    assert "not ranked" in repr(result)
    assert "†" in result.to_markdown()
    assert r"\textdagger{}" in result.to_latex()
    assert "luck" not in set(result.pairs()["better"]) | set(result.pairs()["other"])
    assert not any("luck" in text for text in result.verdicts)
    (board,) = hp.leaderboard([result]).boards
    assert np.isnan(board.lines.set_index("method").loc["luck", "place"])


def test_python_warns_of_what_the_report_warns_of(models):
    data = photos(24)
    predicted = models[0].logits(models[0].normalize(data.images)).argmax(1).tolist()
    shifted = hp.TensorData(data.images, [(label + 1) % 4 for label in predicted], data.ids)
    result = hp.evaluate(models[0], shifted, ["ixg"], ["sds"], keep_maps=2)
    assert result.accuracy[models[0].name] == (0, 24)
    assert any("not shown to be better than guessing" in text for text in result.caveats)
    assert "not shown to be better than guessing" in repr(result)
    dark = hp.TensorData(0 * data.images + 0.001 * data.images, data.labels, data.ids)
    dim = hp.evaluate(models[0], dark, ["ixg"], ["sds"], keep_maps=2)
    assert any("after normalization" in text for text in dim.caveats)
    assert "after normalization" in repr(dim) and "after normalization" in dim._repr_html_()


def test_a_setting_that_applies_to_nothing_is_a_caveat():
    """A grid takes four classes, which a network of two does not have."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
    model = hp.Model(net, size=32, name="two")
    data = hp.TensorData(torch.rand(6, 3, 32, 32), [0, 1] * 3)
    result = hp.evaluate(model, data, ["ixg", "random"], ["gridpg", "sds"])
    why = "gridpg has no score on two: a grid of 2×2 shows 4 classes, but two has 2"
    assert result.caveats.count(why) == 1
    assert why in " ".join(repr(result).split())
    with pytest.raises(hp.HeatproofError, match="a grid of 2×2 shows 4 classes, but two has 2"):
        hp.evaluate(model, data, ["ixg", "random"], ["gridpg"])
