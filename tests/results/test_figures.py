"""Figures as files: formats, numbers beside them, and what cannot be drawn."""

import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import heatproof as hp
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.cli import main
from heatproof.results.export import TABLES
from heatproof.results.plots import FIGURES
from heatproof.results.tables import frame_to_latex, frame_to_markdown

from .conftest import METHODS

pytest.importorskip("matplotlib")


def call(*args: object, code: int = 0) -> str:
    shown = CliRunner().invoke(main, ["figure", *map(str, args)], catch_exceptions=False)
    assert shown.exit_code == code, shown.output
    return shown.output


@pytest.mark.parametrize(
    ("ending", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89P")]
)
def test_the_ending_chooses_the_format_and_the_bytes_are_the_same_again(
    result, tmp_path, ending, start
):
    files = [tmp_path / f"{name}.{ending}" for name in ("one", "two")]
    for file in files:
        call(result.store.root, "stability", "-o", file)
    assert files[0].read_bytes().startswith(start)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_numbers_of_a_figure_stand_beside_it(result, tmp_path):
    shown = call(result.store.root, "ranking", "--protocol", "sds", "-o", tmp_path / "r.png")
    assert shown.split() == [str(tmp_path / "r.png"), str(tmp_path / "r.csv")]
    read = pd.read_csv(tmp_path / "r.csv", keep_default_na=False)
    summary = result.summary()
    expected = summary[summary["protocol"] == "sds"]
    assert sorted(read["mean"]) == pytest.approx(sorted(expected["mean"]))
    call(result.store.root, "curves", "--model", "net/first", "-o", tmp_path / "c.pdf")
    curves = pd.read_csv(tmp_path / "c.csv", keep_default_na=False)
    assert set(curves["model"]) == {"net/first"}
    score = "logit of the target"
    assert (curves["low"] <= curves[score]).all() and (curves[score] <= curves["high"]).all()
    call(result.store.root, "cost", "-o", tmp_path / "t.pdf")
    assert (pd.read_csv(tmp_path / "t.csv")["mean"] > 0).all()


def numbers(result, tmp_path, name) -> pd.DataFrame:
    call(result.store.root, name, "-o", tmp_path / "r.svg")
    return pd.read_csv(tmp_path / "r.csv", keep_default_na=False)


def test_relations_are_drawn_from_the_numbers_beside_them(result, tmp_path):
    columns = ["correlation", "low", "high"]
    read = numbers(result, tmp_path, "agreement")
    expected = result.agreement()
    assert np.sort(read[columns], axis=0) == pytest.approx(np.sort(expected[columns], axis=0))
    read = numbers(result, tmp_path, "variance")
    expected = result.variance()
    assert read["method"].tolist() == expected["between"].tolist()
    assert read["mean"].tolist() == pytest.approx(expected["share"].tolist())
    bars = [patch.get_width() for patch in result.plot.variance().axes[0].patches]
    assert bars == pytest.approx(expected["share"].tolist())
    read = numbers(result, tmp_path, "quality")
    assert set(read["series"]) <= set(METHODS)
    assert (read["ms per map, alone"] > 0).all()


def test_figures_are_listed_with_what_they_lack(result):
    shown = call(result.store.root, "--list")
    for name in FIGURES:
        assert f"\n{name} " in f"\n{shown}"
    lacking = {line.split()[0] for line in shown.splitlines() if "not in this run" in line}
    assert lacking == {
        "aggregates",
        "cells",
        "changes",
        "depth",
        "distinctness",
        "fine_tuning",
        "layers",
        "localization",
        "methods",
        "published",
        "tradeoff",
    }
    assert call(result.store.root) == shown
    assert "did you mean ranking" in call(result.store.root, "rankin", code=2)


@pytest.fixture(scope="module")
def grids(tmp_path_factory) -> hp.Result:
    """Methods at two layers, on grids whose maps are kept."""
    out = tmp_path_factory.mktemp("figures") / "grids"
    data = hp.load_data("paperbirds:test", limit=40)
    methods = ["ixg", "ixg@middle", "gradcam", "gradcam@middle"]
    protocol = {"name": "gridpg", "grids": 5}
    return hp.evaluate("paperbirds/vgg", data, methods, [protocol], keep_maps=100, out=out)


def test_layers_and_aggregated_maps_of_grids(grids, tmp_path):
    call(grids.store.root, "layers", "-o", tmp_path / "l.png")
    layers = pd.read_csv(tmp_path / "l.csv", keep_default_na=False)
    summary = grids.summary().set_index("method")["mean"]
    drawn = layers["mean score and 95 % interval"]
    assert sorted(drawn) == pytest.approx(sorted(summary))
    assert set(layers["curve"]) == {"ixg", "gradcam"}
    call(grids.store.root, "aggregates", "-o", tmp_path / "a.pdf")
    bins = pd.read_csv(tmp_path / "a.csv")
    scores = grids.scores
    first = scores["sample"].map({s: note.cell for s, note in grids.grids.items()}) == 0
    expected = scores[first].groupby("method")["value"].mean()
    for method, lines in bins.groupby("method"):
        assert lines["maps"].sum() == 5
        mean = (lines["score"] * lines["maps"]).sum() / 5
        assert mean == pytest.approx(expected[method])


def test_the_tradeoff_of_baselines_is_drawn_from_stored_distances(tmp_path):
    out = tmp_path / "run"
    data = hp.load_data("paperbirds:test", limit=6)
    protocol = {"name": "deletion", "baseline": ["zero", "blur", "uniform"], "steps": 3}
    result = hp.evaluate(
        "paperbirds/vgg",
        data,
        ["ixg", "random"],
        [{**protocol, "ood": True}],
        reference=hp.load_data("paperbirds:train", limit=40),
        out=out,
    )
    call(out, "tradeoff", "-o", tmp_path / "t.svg")
    read = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert set(read["series"]) == {"zero", "blur", "uniform"}
    run = RunStatistics(result.store)
    kept = run.kept(run.models[0])
    line = read.iloc[0]
    facts = next(p for p in run.plan.protocols if p.baseline == line["series"])
    method = line["chart"].split()[-1]
    stored = kept.curves(facts, method, "ood")
    distance = line["distance to reference images (normalized embeddings)"]
    assert float(distance) == pytest.approx(stored.double().mean().item())


# Tables


def table(*args: object, code: int = 0) -> str:
    shown = CliRunner().invoke(main, ["table", *map(str, args)], catch_exceptions=False)
    assert shown.exit_code == code, shown.output
    return shown.output


@pytest.mark.parametrize("name", ["ranking", "pairs", "agreement", "settings", "variance"])
def test_tables_have_three_formats(result, tmp_path, name):
    for ending, begin in ((".tex", r"\begin{tabular}"), (".md", "| "), (".csv", "")):
        out = tmp_path / f"table{ending}"
        assert table(result.store.root, name, "-o", out).strip() == str(out)
        text = out.read_text(encoding="utf-8")
        assert result.source in text
        source, text = text.split("\n", 1) if ending != ".csv" else ("", text)
        assert text.lstrip().startswith(begin) and "nan" not in text
        if ending == ".tex":
            assert source == f"% {result.source}"
            assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
            columns = text.splitlines()[0].count("l") + text.splitlines()[0].count("r")
            assert re.search(r"[^\\]_|[^\\]%|[^\\]#", text) is None and columns
            rows = [line for line in text.splitlines() if line.endswith(r"\\")]
            assert len({line.replace(r"\&", "").count("&") for line in rows}) == 1
    read = pd.read_csv(tmp_path / "table.csv", keep_default_na=False)
    assert len(read) == len(TABLES[name].lines(result))


def test_lines_of_a_table_can_be_chosen_and_what_is_not_there_is_refused(result, tmp_path):
    root = result.store.root
    shown = table(root, "pairs", "--protocol", "deletion", "--model", "net/first")
    assert "deletion" not in shown and "ixg" in shown  # it is the same in all lines
    assert "has no protocol" in table(root, "variance", "--protocol", "sds", code=2)
    assert "unknown protocol" in table(root, "pairs", "--protocol", "road", code=2)
    assert "choose the format" in table(root, "pairs", "-o", tmp_path / "t.doc", code=2)
    assert "unknown table" in table(root, "pears", code=2)
    assert "unknown column" in table(root, "pairs", "--columns", "betterr", code=2)
    shown = table(root, "pairs", "--columns", "better,p", "--digits", 1)
    assert "| better | p |" in shown and "| ahead |" not in shown
    assert "--transpose is for" in table(root, "pairs", "--transpose", code=2)
    shown = table(root, "ranking", "--columns", "letters,n", "--digits", 2, "--transpose")
    assert "| model | setting | " in shown and "(n = 12)" in shown
    assert "ranking" in table(root)


def test_special_characters_are_escaped_in_latex():
    frame = pd.DataFrame({"name": ["a_b & 50 % {x} #1 ~^\\ $|<>"], "value": [-0.5], "p": [1e-9]})
    text = frame_to_latex(frame)
    assert r"a\_b \& 50 \% \{x\} \#1" in text and "$-$0.500" in text and "$<$0.001" in text
    assert frame_to_markdown(pd.DataFrame({"a|b": ["x|y"]})).startswith(r"| a\|b |")


def test_maps_are_those_of_the_first_sample_unless_one_is_named(result, tmp_path):
    where = [result.store.root, "maps", "--model", "net/first"]
    for options in ([], ["--sample", "photo_01"]):
        shown = call(*where, "-o", tmp_path / "m.png", *options)
        assert shown.split() == [str(tmp_path / "m.png")]


def test_what_cannot_be_drawn_is_refused(result, tmp_path):
    root = result.store.root
    assert "choose the format" in call(root, "ranking", "-o", tmp_path / "r.doc", code=2)
    assert "has no option --sample" in call(
        root, "ranking", "--sample", "x", "-o", tmp_path / "r.pdf", code=2
    )
    assert "unknown protocol" in call(
        root, "ranking", "--protocol", "road", "-o", tmp_path / "r.pdf", code=2
    )
    assert not list(tmp_path.iterdir())
