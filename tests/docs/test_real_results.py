"""The leaderboard and the findings follow from the summaries of runs on real networks."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import heatproof as hp
from heatproof.plan.spec import load_spec
from heatproof.userfile import from_file

ROOT = Path(__file__).parents[2]
REAL = ROOT / "examples" / "real"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize("name", ["leaderboard", "findings"])
def test_a_page_is_what_its_script_writes(script, name):
    module = script(f"make_{name}")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(module.load())


@pytest.mark.parametrize("path", sorted(REAL.rglob("*.yaml")), ids=lambda path: path.stem)
def test_specs_are_valid(path):
    assert load_spec(str(path)).expressions()


@pytest.mark.parametrize(("blocks", "parameters"), [(3, 269_722), (5, 464_154), (9, 853_018)])
def test_the_cifar_resnets_have_the_published_numbers_of_parameters(blocks, parameters):
    net = from_file(f"file:{REAL / 'cifar_resnets.py'}:CifarResNet")(blocks)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.fixture
def summary(script, tmp_path, monkeypatch):
    """The summary of a small run, and the module that has written it."""
    module = script("real_runs")
    claimed = {("sds", "ixg", "random"), ("deletion", "ixg", "random")}
    monkeypatch.setattr(module, "claimed_pairs", lambda: claimed)
    methods = ["ixg", "gradcam", "random"]
    protocols = ["sds(patches=4)", "sds(patches=4, baseline=blur)", "deletion(steps=4)"]
    run = hp.evaluate(
        "paperbirds/resnet", "paperbirds:test", methods, protocols, limit=16, out=tmp_path / "run"
    )
    module.summarize(tmp_path / "run", tmp_path / "results" / "birds")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module, run


def test_a_summary_has_the_numbers_of_its_run(summary):
    module, run = summary
    (read,) = module.load()
    keys = ["protocol", "baseline", "method"]
    expected = run.summary().set_index(keys)["mean"]
    found = read.ranking.set_index(keys)["mean"]
    pd.testing.assert_series_equal(found.sort_index(), expected.sort_index(), rtol=0, atol=1e-6)
    pairs = read.pairs.set_index(["protocol", "baseline"])
    assert {*pairs.index} == {("sds", "zero"), ("sds", "blur"), ("deletion", "zero")}
    for (protocol, baseline), line in pairs.iterrows():
        higher = expected[protocol, baseline, "ixg"] - expected[protocol, baseline, "random"]
        ahead = -higher if protocol == "deletion" else higher  # where less is better
        assert line["ahead"] == pytest.approx(ahead, abs=1e-5)
        assert line["low"] < line["ahead"] < line["high"]
    assert not read.ranking.loc[read.ranking["method"] == "random", "may_be_best"].any()
    assert read.facts["model"]["labelled"] == 16
    assert read.facts["passes"]["forward"] > 16 * 2 * 4
    assert read.facts["files"].keys() == {"ranking.csv", "pairs.csv", "agreement.csv", "spec.yaml"}


def test_an_edited_summary_is_refused(summary):
    module, _ = summary
    (path,) = module.RESULTS.glob("*/ranking.csv")
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(SystemExit, match="is not what the run wrote"):
        module.load()


def real_run(module, name="r", *, ranking=None, pairs=None, agreement=None):
    facts = {"model": {"name": f"file:nets.py:{name}"}, "fine_tuning": None}
    frames = [pd.DataFrame([] if f is None else f) for f in (ranking, pairs, agreement)]
    return module.RealRun(name, facts, *frames)


def pair(ahead, p, a="ixg", b="ig"):
    ends = {"low": ahead - 0.1, "high": ahead + 0.1}
    return {"protocol": "sds", "a": a, "b": b, "ahead": ahead, "p": p, "n": 8, **ends}


@pytest.mark.parametrize(
    ("ahead", "p", "verdict"),
    [
        (0.3, 0.04, "holds"),
        (-0.3, 0.04, "does not hold"),
        (0.3, 0.06, "undecided"),
        (0.3, math.nan, "undecided"),
    ],
)
def test_a_claim_about_two_methods_is_decided_by_the_adjusted_p_value(script, ahead, p, verdict):
    module = script("make_findings")
    claim = {"protocol": "sds", "ahead": [["ixg", "ig"]], "text": "One is ahead."}
    run = real_run(module, pairs=[pair(ahead, p)])
    found = list(module.findings(claim, [run]))
    assert [line.verdict for line in found] == [verdict]
    assert module.verdict(claim, found) == f"One is ahead: {verdict}."


@pytest.mark.parametrize(("ahead", "verdict"), [(0.3, "holds"), (0.05, "undecided")])
def test_methods_at_two_layers_are_judged_by_the_interval_of_their_difference(
    script, ahead, verdict
):
    """The interval is from 0.1 below to 0.1 above, and no test of all pairs has a p-value."""
    module = script("make_findings")
    layers = [{"method": "ixg@final", "layer": "layer3"}, {"method": "ixg", "layer": "input"}]
    run = real_run(module, ranking=layers, pairs=[pair(ahead, math.nan, "ixg@final", "ixg")])
    claim = {"protocol": "sds", "ahead": [["ixg@final", "ixg"]]}
    (found,) = module.findings(claim, [run])
    assert found.verdict == verdict
    assert "at two layers" in found.text


@pytest.mark.parametrize(
    ("letters", "ranks", "verdict"),
    [
        (("a", "b"), (1.0, 2.0), "holds"),
        (("b", "a"), (2.0, 1.0), "does not hold"),
        (("ab", "b"), (1.0, 2.0), "undecided"),
        (("", "a"), (math.nan, 1.0), "undecided"),
    ],
)
def test_a_pair_whose_difference_was_not_kept_is_judged_by_its_letters(
    script, letters, ranks, verdict
):
    module = script("make_findings")
    line = {"protocol": "sds", "baseline": "zero", "mean": 0.2, "low": -0.1, "high": 0.3, "n": 8}
    ranking = [
        line | {"method": m, "letters": text, "rank": rank}
        for m, text, rank in zip(("ixg", "ig"), letters, ranks, strict=True)
    ]
    columns = ["protocol", "a", "b"]
    run = real_run(module, ranking=ranking, pairs=pd.DataFrame(columns=columns))
    (found,) = module.findings({"protocol": "sds", "ahead": [["ixg", "ig"]]}, [run])
    assert found.verdict == verdict
    assert "`ixg` 0.20 (−0.10 to 0.30)" in found.text


@pytest.mark.parametrize(
    ("ahead", "within", "verdict"),
    [(0.01, 0.2, "holds"), (0.01, 0.05, "undecided"), (-0.3, 0.05, "does not hold")],
)
def test_two_methods_are_close_by_the_whole_interval_of_their_difference(
    script, ahead, within, verdict
):
    module = script("make_findings")
    claim = {"protocol": "sds", "close": [["ixg", "ig"]], "within": within}
    run = real_run(module, pairs=[pair(ahead, 0.5)])
    (found,) = module.findings(claim, [run])
    assert found.verdict == verdict


@pytest.mark.parametrize("paper", ["hesse2024", "rao2024", "picard2024", "li2024"])
def test_each_claim_on_the_page_of_a_paper_is_among_the_findings(script, paper):
    module = script("make_findings")
    rows, page = module.quoted(paper), module.PAGE.read_text(encoding="utf-8")
    assert len(rows) >= 9
    assert all(len(cells) == 3 for cells in rows.values())
    for row, judges in module.claims_by_row(paper).items():
        assert f"| {' | '.join(rows[row])} | " in page
        ways = [
            claim.keys() & {"ahead", "close", "best", "agree", "fine_tuning"} for claim in judges
        ]
        reasons = [claim.get("untestable") or claim.get("missing") for claim in judges]
        assert all(bool(way) != bool(why) for way, why in zip(ways, reasons, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found[1:], "has nothing on this row"),
        (lambda found: [*found, found[0] | {"says": "no such row"}], "0 rows of .* begin with"),
    ],
)
def test_a_claim_that_nothing_judges_is_an_error(script, monkeypatch, change, message):
    module = script("make_findings")
    listed = change(module.claims())
    monkeypatch.setattr(module, "claims", lambda: listed)
    with pytest.raises(SystemExit, match=message):
        module.claims_by_row("hesse2024")


def test_several_verdicts_are_counted(script):
    module = script("make_findings")
    claim = {"protocol": "sds", "ahead": [["ixg", "ig"]], "text": "One is ahead."}
    runs = [
        real_run(module, name, pairs=[pair(1, p)])
        for name, p in zip("abc", [0, 0, 0.5], strict=True)
    ]
    assert (
        module.verdict(claim, list(module.findings(claim, runs)))
        == "One is ahead: holds 2 of 3, undecided 1 of 3."
    )
    assert module.verdict(claim, []).startswith("not run: ")
    assert module.verdict({"missing": "grids"}, []) == "not run: grids"
    assert module.verdict({"untestable": "no network"}, []) == "not testable here: no network"


def test_a_network_counts_once_by_its_run_with_the_most_methods(script):
    module = script("make_findings")
    claim = {"protocol": "sds", "ahead": [["ixg", "ig"]]}
    small = real_run(module, "net", ranking=[{"method": "a"}], pairs=[pair(1, 0.5)])
    large = real_run(
        module, "net", ranking=[{"method": "a"}, {"method": "b"}], pairs=[pair(1, 0.0)]
    )
    for runs in ([small, large], [large, small]):
        (found,) = module.findings(claim, runs)
        assert found.verdict == "holds"


@pytest.mark.parametrize(
    ("letters", "verdict"),
    [("abc", "holds"), ("aac", "undecided"), ("bac", "does not hold")],
)
def test_a_claim_about_the_best_is_decided_among_the_methods_of_the_paper(script, letters, verdict):
    """The best method of the run, which is not one of the paper's, does not count."""
    module = script("make_findings")
    ranks = [1.0 + sorted(letters).index(letter) for letter in letters]
    lines = [
        {"protocol": "sds", "baseline": "", "method": m, "letters": letter, "rank": rank, "n": 9}
        for m, letter, rank in zip("xyz", letters, ranks, strict=True)
    ]
    lines.append({**lines[0], "method": "other", "letters": "z", "rank": 0.0})
    run = real_run(module, ranking=lines)
    (found,) = module.findings({"protocol": "sds", "best": ["x"], "among": ["x", "y", "z"]}, [run])
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("ends", "alike"),
    [((0.75, 0.9), "holds"), ((0.2, 0.6), "does not hold"), ((0.5, 0.9), "undecided")],
)
def test_a_claim_about_two_rankings_is_decided_by_the_whole_interval(script, ends, alike):
    module = script("make_findings")
    line = {"a": "sds · zero", "b": "idsds · zero", "correlation": sum(ends) / 2, "methods": 9}
    run = real_run(module, agreement=[line | dict(zip(("low", "high"), ends, strict=True))])
    (found,) = module.findings({"agree": ["sds", "idsds"]}, [run])
    assert found.verdict == alike


def test_the_interval_of_another_network_covers_it(script):
    """Of normally distributed scores, the sixth is within the interval of five in 95 %."""
    module = script("make_leaderboard")
    draws = np.random.default_rng(0).normal(0.0, 0.1, (4000, 6)).clip(-0.99, 0.99)
    inside = 0
    for *known, other in draws:
        text = module.another_network(np.array([known] * 3).T).replace("−", "-")
        low, high = (float(end) for end in text.partition("(")[2].rstrip(")").split(" to "))
        inside += low - 0.005 <= other <= high + 0.005
    assert 0.94 <= inside / len(draws) <= 0.97
    assert module.another_network(np.array([[0.1, 0.2, 0.3, 0.4]] * 3).T) == "–"


@pytest.mark.parametrize(
    ("ends", "within", "verdict"),
    [
        ((-0.004, 0.006), 1.0, "holds"),
        ((-0.03, -0.012), 1.0, "does not hold"),
        ((-0.03, 0.001), 1.0, "undecided"),
        ((0.01, 0.05), None, "holds"),
        ((-0.05, -0.01), None, "does not hold"),
        ((-0.01, 0.05), None, "undecided"),
    ],
)
def test_a_change_of_accuracy_is_decided_by_its_interval(script, ends, within, verdict):
    module = script("make_findings")
    run = real_run(module)
    accuracies = {"original": [0.9], "fine-tuned": [0.9], "change": [sum(ends) / 2, *ends]}
    run.facts["fine_tuning"] = {"accuracies": {"worst": accuracies}, "evaluated": 99}
    claim = {"fine_tuning": "worst"} | ({} if within is None else {"within": within})
    (found,) = module.findings(claim, [run])
    assert found.verdict == verdict


def lines_of(letters, ranks):
    control = [m == "center" for m in letters]
    return pd.DataFrame(
        {
            "letters": list(letters.values()),
            "rank": ranks,
            "may_be_best": [rank == 1 for rank in ranks],
            "control": control,
        },
        index=list(letters),
    )


def test_orders_of_methods_are_compared_by_their_letters(script):
    module = script("make_leaderboard")
    one = lines_of({"a": "a", "b": "b", "center": "a2"}, [1.0, 3.0, 2.0])
    other = lines_of({"a": "a", "b": "ab", "center": "b"}, [1.0, 2.0, 3.0])
    text = module.same_everywhere({"one": one, "other": other})
    assert (
        "Of 3 pairs of methods, 1 are told apart in the same order on all 2 networks "
        "(`a` above `center`), and 0 in opposite orders on some." in text
    )
    assert "May be the best on all: `a`" in text
    assert list(module.above_methods({"one": one, "other": other})) == [
        "On one, the control `center` is ahead of `b`."
    ]


def test_what_the_specs_name_and_no_run_has_is_listed(script):
    module = script("make_leaderboard")
    runs = [run for run in module.load() if run.network == "resnet56"]
    assert runs
    spec = load_spec(str(REAL / "cifar10.yaml"))
    (line,) = [line for line in module.not_run(runs) if line.startswith("| resnet56 |")]
    cells = {what: where.split(", ") for what, where in map(split_cell, line[:-2].split("; "))}
    for protocol in spec.parsed_protocols():
        baseline = protocol.baseline_name
        title = f"{protocol.id} · {baseline}" if baseline else protocol.id
        have = set(pd.concat([run.at(protocol.id, baseline) for run in runs])["method"])
        listed = [what for what, where in cells.items() if title in where]
        missing = [entry.label for entry in spec.expressions() if entry.label not in have]
        if not have:
            assert listed[0].endswith("all methods")
        else:
            assert len(missing) == sum(what.count("`") // 2 for what in listed)


def split_cell(text):
    what, _, where = text.rpartition(" by ")
    return what, where


def test_a_run_that_is_said_to_be_a_papers_network_is_set_beside_its_table(script, summary):
    module, _ = summary
    text = "hesse2024/table6"
    (birds,) = module.load()
    assert birds.facts["beside_print"] == []  # nobody has said so
    findings = script("make_findings")
    found = {"table": text, "network": "a net", "over": 14, "correlation": [0.9, -0.5, 1.0], "n": 9}
    birds.facts["beside_print"] = [found | {"verdicts": {"undecided": 14}, "missing": 5}]
    (line,) = findings.beside_print([birds], "hesse2024")
    assert "0.90 (−0.50 to 1.00) over 14 methods, n = 9; 5 published numbers" in line
    assert list(findings.beside_print([birds], "li2024")) == []
