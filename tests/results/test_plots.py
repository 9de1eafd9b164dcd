"""Figures: what is drawn equals the summary, and matplotlib is left as it was."""

import io
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.metric_curves import metric_curves
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.errors import HeatproofError
from heatproof.figures.matplotlib.layout import STYLES
from heatproof.figures.palette import FAMILIES
from heatproof.figures.paper_names import names_without_marks

from .conftest import METHODS

SETTINGS = ["model", "protocol", "setting", "baseline"]


def groups(result):
    return result.summary().groupby(SETTINGS, sort=False)


def test_a_ranking_draws_means_and_intervals_best_on_top(result):
    figure = result.plot.ranking()
    assert len(figure.axes) == len(groups(result)) == 8
    for ax, (key, lines) in zip(figure.axes, groups(result), strict=True):
        ranked = lines.sort_values("rank", kind="stable")
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        bars = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_alpha()]
        assert [d.get_xdata()[0] for d in dots] == ranked["mean"].tolist()
        assert [list(b.get_xdata()) for b in bars] == ranked[["low", "high"]].to_numpy().tolist()
        assert [d.get_ydata()[0] for d in dots] == list(range(len(METHODS)))
        assert [t.get_text() for t in ax.get_yticklabels()] == ranked["method"].tolist()
        assert ax.yaxis_inverted()
        assert ("lower" if key[1] == "deletion" else "higher") in ax.get_xlabel()


def test_a_ranking_can_be_of_one_model_and_protocol(result):
    assert len(result.plot.ranking(model="net/first", protocol="sds").axes) == 3
    with pytest.raises(HeatproofError, match="did you mean sds"):
        result.plot.ranking(protocol="sdss")
    with pytest.raises(HeatproofError, match="unknown model"):
        result.plot.cost(model="third")


def test_curves_are_the_mean_of_the_stored_ones(result):
    figure = result.plot.curves(model="net/first")
    (ax,) = figure.axes
    run = RunStatistics(result.store)
    facts = next(p for p in run.plan.protocols if p.id == "deletion")
    stored = metric_curves(run, "net/first", facts)
    assert list(stored) == METHODS
    assert sorted(line.get_label() for line in ax.lines) == sorted(METHODS)
    for line, band in zip(ax.lines, ax.collections, strict=True):
        curves = stored[line.get_label()].values
        assert line.get_ydata() == pytest.approx(curves.mean(0))
        assert line.get_xdata() == pytest.approx(np.linspace(0, 100, 5))
        ends = [Estimate.mean(column) for column in curves.T]
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(min(end.low for end in ends), abs=1e-3)
        assert heights.max() == pytest.approx(max(end.high for end in ends), abs=1e-3)
    score = {m: c.values for m, c in stored.items()}["ixg"]  # its area is the score
    area = np.trapezoid(score, dx=0.25, axis=1).mean()
    summary = result.summary().query("model == 'net/first' and protocol == 'deletion'")
    assert area == pytest.approx(summary.set_index("method").loc["ixg", "mean"], abs=1e-6)
    assert len(result.plot.curves(methods=["ixg"], model="net/first").axes[0].lines) == 1
    with pytest.raises(HeatproofError, match="no curves"):
        result.plot.curves(protocol="sds")


def test_stability_draws_the_rank_under_every_baseline(result):
    for model in ("net/first", "net/second"):
        ax = next(ax for ax in result.plot.stability(model=model, protocol="sds").axes)
        lines = result.summary().query(f"model == {model!r} and protocol == 'sds'")
        ranks = lines.pivot(index="method", columns="baseline", values="rank")
        baselines = [t.get_text() for t in ax.get_xticklabels()]
        assert baselines == ["zero", "uniform", "blur"]
        drawn = sorted(tuple(line.get_ydata()) for line in ax.lines)
        assert drawn == sorted(map(tuple, ranks[baselines].to_numpy()))
        assert sorted(t.get_text() for t in ax.texts) == sorted(METHODS)
    with pytest.raises(HeatproofError, match="several baselines"):
        result.plot.stability(protocol="deletion")


def test_maps_stand_beside_the_image(result):
    figure = result.plot.maps("photo_01", ["ixg", "ixg|abs"], model="net/first")
    image, signed, unsigned = [ax.images[0] for ax in figure.axes]
    pixels = result.image("photo_01", model="net/first").permute(1, 2, 0).numpy()
    assert (image.get_array() == pixels).all()
    values = result.map("ixg", "photo_01", model="net/first").numpy()
    assert np.asarray(signed.get_array()) == pytest.approx(values, abs=1e-6)
    assert signed.norm.vmin == -signed.norm.vmax and unsigned.norm.vmin == 0
    scores = result.scores.query(
        "model == 'net/first' and sample == 'photo_01' and protocol == 'sds'"
    )
    value = scores.query("method == 'ixg' and baseline == 'zero'")["value"].item()
    assert figure.axes[1].get_xlabel() == f"sds {value:.2f}"
    with pytest.raises(HeatproofError, match="image of photo_07 is not stored"):
        result.plot.maps("photo_07", model="net/first")


def test_cost_draws_the_time_per_map(result):
    figure = result.plot.cost(model="net/first")
    (ax,) = figure.axes
    names = [t.get_text() for t in ax.get_yticklabels()]
    times = result.costs().query("model == 'net/first'").set_index("method")["ms"]
    drawn = [line.get_xdata()[0] for line in ax.lines]
    assert drawn == [times[m] for m in names] == sorted(drawn)
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize("name", ["ranking", "curves", "stability", "cost", "maps"])
def test_figures_are_drawn_completely_and_matplotlib_is_left_as_it_was(result, name):
    settings = dict(mpl.rcParams)
    before = "matplotlib.pyplot" in sys.modules
    arguments = {"sample": "photo_00", "model": "net/first"} if name == "maps" else {}
    figure = getattr(result.plot, name)(**arguments)
    picture = Image.open(io.BytesIO(figure._repr_png_()))
    assert dict(mpl.rcParams) == settings
    assert ("matplotlib.pyplot" in sys.modules) == before
    width, height = figure.get_size_inches() * 110
    assert picture.size == pytest.approx((width, height), abs=1)
    edges = np.asarray(picture.convert("L"))
    border = np.concatenate([edges[0], edges[-1], edges[:, 0], edges[:, -1]])
    assert (border == 255).all()  # nothing is cut off
    box = figure.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0
    assert box.x1 <= figure.get_size_inches()[0] and box.y1 <= figure.get_size_inches()[1]


def test_a_missing_matplotlib_is_named(result, monkeypatch):
    from heatproof.figures.matplotlib import panels

    panels.figure_class.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HeatproofError, match=r'pip install "heatproof\[plot\]"'):
        result.plot.ranking()
    panels.figure_class.cache_clear()


@pytest.mark.parametrize("name", ["ranking", "curves", "stability", "quality", "cost"])
@pytest.mark.parametrize("style", ["column", "page", "slide"])
def test_a_style_has_its_width_and_size_of_text_and_nothing_is_cut(result, name, style):
    figure = getattr(result.plot, name)(style=style, model="net/first")
    assert figure.get_size_inches()[0] == pytest.approx(STYLES[style].width)
    sizes = {round(t.get_fontsize(), 2) for ax in figure.axes for t in ax.get_xticklabels()}
    assert sizes == {STYLES[style].text}
    edges = np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("L"))
    border = np.concatenate([edges[0], edges[-1], edges[:, 0], edges[:, -1]])
    assert (border == 255).all()
    own = result.plot.ranking(style=style, height=5, width=4, model="net/first", protocol="sds")
    assert own.get_size_inches() == pytest.approx((4, 5))


def test_a_height_at_which_names_hide_each_other_is_refused(result):
    with pytest.raises(HeatproofError, match=r"too little for 3 panels in 3 rows, which need \d"):
        result.plot.ranking(style="column", height=1, model="net/first", protocol="sds")


def test_the_best_methods_of_networks_are_drawn_over_their_accuracy(result):
    chart, *_ = result.plot.charts("accuracy")
    assert {line["series"] for line in chart.table} == set(result.models)
    ends = result.plot.accuracy().axes[0].get_xlim()
    assert all(ends[0] <= point.x <= ends[1] for point in chart.points)
    with pytest.raises(HeatproofError, match="no network was fine-tuned"):
        result.plot.fine_tuning()


def test_panels_of_a_protocol_share_their_axis_and_say_protocol_and_n(result):
    figure = result.plot.ranking()
    charts = result.plot.charts("ranking")
    limits = {}
    for ax, chart in zip(figure.axes, charts, strict=True):
        limits.setdefault(chart.protocol, set()).add(ax.get_xlim())
        title = ax.get_title(loc="left").replace("\n", " ").replace("\u00a0", " ")
        assert chart.protocol in title and f"n = {result.summary()['n'].max()}" in title
        low, high = ax.get_xlim()
        assert all(low <= m.low and m.high <= high for m in chart.marks)
    assert all(len(found) == 1 for found in limits.values()) and len(limits) == 2
    cost = result.plot.cost().axes[0].get_title(loc="left").replace("\u00a0", " ")
    assert "n =" not in cost


def test_legends_are_by_family(result):
    (legend,) = result.plot.curves(model="net/first").legends
    families = [result.plot._result.family(text.get_text()) for text in legend.get_texts()]
    assert families == sorted(families, key=list(FAMILIES).index)


def test_axes_of_the_user_are_filled_one_for_each_panel(result):
    own = Figure(figsize=(6, 3))
    axes = own.subplots(1, 2)
    drawn = result.plot.cost(ax=axes, style="column")
    assert drawn is own and all(ax.lines for ax in axes)
    assert {t.get_fontsize() for t in axes[0].get_xticklabels()} == {7.0}
    maps = result.plot.maps("photo_01", ["ixg"], model="net/first", ax=own.subplots(1, 2))
    assert maps is own
    with pytest.raises(HeatproofError, match="has 2 .*and there are 1"):
        result.plot.cost(ax=axes[0])
    with pytest.raises(HeatproofError, match="leave out width"):
        result.plot.cost(ax=axes, width=3)


def test_sizes_and_styles_that_cannot_be_are_refused(result):
    with pytest.raises(HeatproofError, match="did you mean column"):
        result.plot.ranking(style="colum")
    with pytest.raises(HeatproofError, match="0.5 to 100"):
        result.plot.ranking(width=0)


def test_text_of_files_is_text(result, tmp_path):
    figure = result.plot.cost(model="net/first")
    before = dict(mpl.rcParams)
    figure.savefig(tmp_path / "c.svg")
    figure.savefig(tmp_path / "c.pdf")
    assert "ixg</text>" in (tmp_path / "c.svg").read_text(encoding="utf-8")
    pdf = (tmp_path / "c.pdf").read_bytes()
    assert b"/Subtype /Type3" not in pdf and b"/FontFile2" in pdf
    assert dict(mpl.rcParams) == before


def test_tables_of_a_paper_s_group_have_its_names_without_marks():
    names = names_without_marks({"methods": ["group:hesse2024"]})
    assert names["ixg|abs"] == "I×G abs." and names["gradcam"] == "Grad-CAM"
    assert len(set(names.values())) == len(names)
    assert names_without_marks({"methods": ["ixg"]}) == {}
