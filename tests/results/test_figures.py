"""Figures as files: formats, numbers beside them, and what cannot be drawn."""

import pandas as pd
import pytest
from click.testing import CliRunner

from heatproof.cli import main

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
    if ending != "svg":  # whose ids are random
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
    assert (curves["low"] <= curves["mean"]).all() and (curves["mean"] <= curves["high"]).all()
    call(result.store.root, "cost", "-o", tmp_path / "t.pdf")
    assert (pd.read_csv(tmp_path / "t.csv")["milliseconds"] > 0).all()


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
