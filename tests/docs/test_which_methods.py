"""The page on methods for networks is what its generator makes."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "which-methods.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator():
    sys.path.insert(0, str(DOCS))
    try:
        import make_which_methods

        yield make_which_methods
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def models(generator):
    return {kind: build() for kind, build in generator.NETWORKS.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_table_of_our_methods_is_that_of_the_code(generator, models):
    ours, reasons = generator.our_tables(models)
    cure = "python docs/make_which_methods.py docs/which-methods.md --ours"
    assert tables()[0] == ours, cure
    assert tables()[1] == reasons, cure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_table_of_other_libraries_is_that_of_the_code(generator, models):
    theirs, reasons = generator.tables_of(list(generator.library_methods()), models)
    assert tables()[2] == theirs
    assert tables()[3] == reasons


def tables() -> list[list[str]]:
    """Return the rows of each table of the page."""
    found: list[list[str]] = []
    for line in PAGE.splitlines():
        if line.startswith("| --- |"):
            found.append([])
        elif line.startswith("| `"):
            found[-1].append(line)
    return found


def test_as_many_library_methods_run_as_are_promised():
    columns = [line.strip("| ").split(" | ")[1:] for line in tables()[2]]
    by_network = list(zip(*columns, strict=True))
    assert by_network[0].count("works") >= 45  # ResNet
    assert by_network[3].count("works") >= 30  # ViT


def test_names_that_have_a_counterpart_agree_with_it():
    """Maps of the same formula: others take steps, windows or signs in another way."""
    same = {
        "`captum:InputXGradient`",
        "`captum:LayerGradCam(relu_attributions=True)`",
        "`captum:Saliency`",
        "`torchcam:GradCAM`",
        "`torchcam:LayerCAM`",
        "`torchcam:XGradCAM`",
        "`captum:GuidedBackprop`",
    }
    values = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[-1] for line in tables()[4]
    }
    assert {name: values[name] for name in same} == dict.fromkeys(same, "1.000")
