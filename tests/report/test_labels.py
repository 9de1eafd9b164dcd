"""Labels of methods in figures: the names of a paper, and no two that look the same."""

import pytest

from heatproof.figures import svg
from heatproof.figures.axes import Axis
from heatproof.figures.charts import Mark, RankingChart, chart_labels
from heatproof.figures.matplotlib.renderers import draw
from heatproof.figures.numbers import labelling, shortened
from heatproof.figures.paper_names import paper_names
from heatproof.methods import GROUPS, parse_methods
from heatproof.methods.groups import PAPER_NAMES

HESSE = "ig-sg(n=4, std=1, unit=absolute)"


def ranking(labels):
    marks = [Mark(label, "gradient", 0.5, 0.4, 0.6, 1.0, "") for label in labels]
    return RankingChart("title", marks, Axis(0.0, 1.0, (0.0, 1.0)))


def test_a_cut_keeps_what_follows_the_arguments():
    assert shortened(HESSE) == "ig-sg(n=4, std=1, unit=…"[:22] + "…)"
    assert shortened(f"{HESSE}|abs") == "ig-sg(n=4, std=1, …)|abs"
    assert all(len(shortened(text)) == 24 for text in (HESSE, f"{HESSE}|abs"))


def test_labels_that_would_look_the_same_are_not_cut():
    alike = [f"gradcam++(score=softmax, compat=torchcam, k={k})|smooth(9)" for k in (1, 2)]
    assert shortened(alike[0]) == shortened(alike[1])
    with labelling([*alike, HESSE], {}):
        assert [shortened(label) for label in alike] == alike
        assert shortened(HESSE).endswith("…)")
    drawn = svg.draw(ranking(alike))
    assert all(f">{label}<" in drawn for label in alike)


@pytest.mark.parametrize("paper", PAPER_NAMES)
def test_methods_of_a_group_have_the_names_of_the_paper(paper):
    """Table 2 of Hesse et al. marks raw maps by a disc, and absolute ones by a square."""
    names = paper_names({"methods": [f"group:{paper}", "random"]})
    labels = [expression.label for expression in parse_methods(list(GROUPS[paper]))]
    assert list(names) == labels and len(set(names.values())) == len(labels)
    assert paper_names({"methods": labels}) == paper_names({"methods": 3, "models": 1}) == {}
    assert paper_names({"methods": ["group:hesse2024", "group:li2024"]}) == {}
    own = {"name": "bcos-resnet50", "methods": [f"group:{paper}"]}
    assert paper_names({"models": [own, "bagnet33"], "methods": ["ixg"]}) == names
    if paper == "hesse2024":
        assert (names[HESSE], names[f"{HESSE}|abs"]) == ("● IG-SG", "■ IG-SG abs.")
        squares = [label for label, name in names.items() if name.startswith("■")]
        assert all("|abs" in s or s.startswith(("saliency", "ig-sq")) for s in squares)


def test_methods_of_a_group_at_layers_have_the_layer_after_the_name():
    layers = ["input", "middle", "final"]
    names = paper_names({"methods": [*(f"group:rao2024@{layer}" for layer in layers), "random"]})
    assert len(names) == len(set(names.values())) == 36
    assert names["gradcam@final"] == "Grad-CAM@final"
    assert names["lrp-focus"] == "LRP@input"  # explains the input unless a layer is named
    assert names["ablationcam@middle"] == "Ablation-CAM@middle"


def test_figures_have_the_names_and_link_the_methods():
    chart = ranking([HESSE, f"{HESSE}|abs", "random"])
    assert chart_labels(chart) == [HESSE, f"{HESSE}|abs", "random"]
    names = paper_names({"methods": ["group:hesse2024"]})
    drawn = svg.draw(chart, names)
    for text in (">● IG-SG<", ">■ IG-SG abs.<", ">random<", f'data-method="{HESSE}"'):
        assert text in drawn
    pytest.importorskip("matplotlib")
    ticks = [t.get_text() for t in draw([chart], names=names).axes[0].get_yticklabels()]
    assert ticks == ["● IG-SG", "■ IG-SG abs.", "random"]
