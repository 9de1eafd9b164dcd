"""The studies that ship, the index of figures, and changes from the command line."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import heatproof as hp
from heatproof.data.catalog import load_data
from heatproof.data.reference import reference_for
from heatproof.errors import HeatproofError
from heatproof.methods import parse_methods
from heatproof.plan.assumed_cost import assumed_plan
from heatproof.plan.changes import Changes, find_weights
from heatproof.plan.make_plan import make_plan
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import load_spec, make_spec, parse_protocols, read_yaml
from heatproof.plan.studies import STUDIES, figures, study_file, study_names
from heatproof.report.sections import SECTIONS

COUNTS = {"hesse2024": (10, 7), "rao2024": (36, 2), "li2024": (15, 3), "picard2024": (12, 0)}


@pytest.mark.parametrize("figure", figures().values(), ids=lambda f: f"{f.paper}/{f.name}")
def test_every_figure_has_a_study_or_a_reason(figure):
    if figure.without:
        assert not (figure.study or figure.full or figure.section)
        return
    assert study_file(f"{figure.paper}/{figure.name}").is_file()
    assert figure.section in SECTIONS
    if figure.full:
        scale = figure.full.partition("/")[0]
        path = study_file(f"{figure.paper}/{scale}/{figure.name}")
        assert path == STUDIES / figure.paper / f"{figure.full}.yaml" and path.is_file()
    else:
        assert figure.note, "say why there is none at the paper's scale"


@pytest.mark.parametrize(("paper", "counts"), COUNTS.items())
def test_the_index_has_every_figure_and_table_of_a_paper(paper, counts):
    names = {name.rstrip("abc") for of, name in figures() if of == paper}
    names = {name for name in names if not name.startswith("prop")}
    expected = {f"fig{i}" for i in range(1, counts[0] + 1)}
    assert names == expected | {f"table{i}" for i in range(1, counts[1] + 1)}


def test_every_study_of_a_paper_makes_a_figure():
    """Others ask what the papers do not: how far fine-tuning goes, and kinds of evidence."""
    made = {f"{f.paper}/{s}" for f in figures().values() for s in (f.study, f.full) if s}
    extra = {"quickstart", "hesse2024/alignment", "hesse2024/training-seeds"}
    extra |= {"audit", "f-fidelity", "objects", "robustness", "sanity"}
    parts_of_others = {
        "hesse2024/imagenet/ids",
        "hesse2024/funnybirds/parts",
        "picard2024/imagenet/stability-text",
    }
    assert set(study_names()) == made | extra | parts_of_others


@pytest.mark.parametrize("name", [n for n in study_names() if n.count("/") > 1])
def test_a_study_at_the_scale_of_a_paper_needs_only_data_and_weights(name):
    """Its methods and protocols are those of the study on embedded data, or of the paper."""
    spec = load_spec(name)
    assert not any(m.name and m.name.startswith("paperbirds/") for m in spec.models)
    assert spec.data.name.partition(":")[0] in ("folder", "cifar10", "cifar100", "funnybirds")


def test_names_that_are_neither_studies_nor_figures():
    for name, message in [
        ("hesse2024/table2", "has no study: the legend"),
        ("picard2024/imagenet/fig6", "linear imputation in place"),
        ("rao2024/imagenet/fig33", "rao2024/cifar10/quantitative"),
        ("hesse2024/fig77", "did you mean"),
        ("hesse2024/a/b/fig1", "unknown study"),
        ("hesse2024/tabel6", "did you mean hesse2024/table6"),
    ]:
        with pytest.raises(HeatproofError, match=message):
            study_file(name)


def test_changes_replace_parts_of_a_spec():
    content = read_yaml("quickstart")
    changes = Changes(
        models=["paperbirds/vgg"],
        data="paperbirds:validation",
        methods=["ixg", "random"],
        settings=["data.limit=8", "protocols.0.patches=4", "keep_maps=all", "seed=3"],
    )
    spec = make_spec(changes.apply(content))
    assert [m.name for m in spec.models] == ["paperbirds/vgg"]
    assert (spec.data.name, spec.data.split, spec.data.limit) == ("paperbirds:validation", None, 8)
    assert spec.methods == ("ixg", "random")
    assert {p.patches for p in spec.parsed_protocols()} == {4}
    assert (spec.keep_maps, spec.seed) == ("all", 3)
    assert content == read_yaml("quickstart"), "the original is not changed"


def test_other_data_keep_the_number_of_samples_and_of_reference_images():
    content = read_yaml("picard2024/imagenet/tradeoff")
    changes = Changes(data="folder:/images")
    changed = changes.apply(content)
    assert changed["data"] == {"name": "folder:/images", "limit": 500}
    assert changed["reference"] == {"limit": 5000}
    assert changes.note(content) == (
        "--data folder:/images: of the spec's data, limit 500 stays; its reference becomes 5,000 "
        "images of folder:/images that are not evaluated (--limit and --set change it)"
    )
    assert Changes().note(content) == changes.note(read_yaml("hesse2024/imagenet/sds")) == ""
    for setting in ("reference=folder:/bank", "reference.name=folder:/bank"):
        named = Changes(data="folder:/images", settings=[setting])
        assert "reference" not in named.note(content)


@pytest.mark.parametrize(
    ("content", "setting", "changed"),
    [
        (["sds"], "patches=4", {"name": "sds", "patches": 4}),
        ("sds", "patches=4", {"name": "sds", "patches": 4}),
        (["sds(baseline=blur)"], "patches=4", {"name": "sds", "baseline": "blur", "patches": 4}),
    ],
)
def test_an_entry_in_short_form_takes_settings(content, setting, changed):
    settings = [f"protocols.0.{setting}"]
    assert Changes(settings=settings).apply({"protocols": content})["protocols"] == [changed]


def test_data_in_short_form_are_replaced():
    assert Changes(data="folder:/x").apply({"data": "paperbirds"})["data"] == {"name": "folder:/x"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("limit", "takes key=value"),
        ("=3", "takes key=value"),
        ("protocols.7.patches=4", "is not the number of an entry; there are 1, from 0"),
        ("data.limt=3", 'unknown key "limt"; did you mean limit'),
        ("sed=3", 'unknown key "sed"; did you mean seed'),
        ("protocols.0.pathes=4", "has no setting 'pathes'"),
        ("seed=[", "not readable as YAML"),
        ("seed.low=3", "is not a key of 0"),
    ],
)
def test_a_setting_that_does_not_exist_is_explained(setting, message):
    with pytest.raises(HeatproofError, match=message):
        load_spec("quickstart", Changes(settings=[setting]))


def test_weights_are_found_by_the_name_of_the_model(tmp_path):
    for name in ("resnet50.pth", "resnet50-16-zero.safetensors", "bagnet32-2ddd53ed.pth.tar"):
        (tmp_path / name).touch()
    wanted = {"torchvision:resnet50": ["16/zero"], "paperbirds/vgg": ["16/zero"]}
    found = find_weights(wanted, tmp_path)
    assert found == {
        "torchvision:resnet50": {
            "weights": str(tmp_path / "resnet50.pth"),
            "fine_tuned_weights": {"16/zero": str(tmp_path / "resnet50-16-zero.safetensors")},
        }
    }
    assert "weights" in find_weights({"bagnet33": []}, tmp_path)["bagnet33"]  # as it is published
    (tmp_path / "vgg11.pth").touch()
    found = find_weights({"cifar10/vgg11": []}, tmp_path)
    assert found == {"cifar10/vgg11": {"weights": str(tmp_path / "vgg11.pth")}}


def test_the_authors_fine_tuned_weights_are_found_by_their_names(tmp_path):
    names = {"torchvision:resnet50": "resnet50", "x-vgg16": "xvgg16", "bagnet33": "bagnet33"}
    files = {
        name: tmp_path / f"{stem}_imagenet1000_lr0.001_epochs30_step10_checkpoint_best.pth.tar"
        for name, stem in names.items()
    }
    for file in files.values():
        file.touch()
    found = find_weights({n: ["16/zero"] for n in names}, tmp_path, list(names))
    assert found == {n: {"fine_tuned_weights": {"16/zero": str(files[n])}} for n in names}
    with pytest.raises(HeatproofError, match="bagnet33: bagnet32-2ddd53ed.pth.tar, from https"):
        find_weights({"bagnet33": ["16/zero"]}, tmp_path)
    spec = load_spec("hesse2024/imagenet/idsds", Changes(download=True))
    assert {m.fine_tuned_weights for m in spec.models} == {"download"}
    assert {m.weights for m in spec.models} == {None}
    sds = load_spec("hesse2024/imagenet/sds", Changes(download=True))
    assert sds.models[0].weights == "download"


def test_weights_of_the_command_line_are_those_of_the_only_model():
    models = ["torchvision:vgg19"]
    spec = load_spec("rao2024/fig4", Changes(models=models, weights="download"))
    assert [(m.name, m.weights) for m in spec.models] == [("torchvision:vgg19", "download")]
    content = {"models": {"name": "torchvision:vgg11", "fine_tuned_weights": {"16/zero": "a"}}}
    changed = Changes(weights="vgg11.pth").apply(content)
    assert changed["models"] == [content["models"] | {"weights": "vgg11.pth"}]
    with pytest.raises(HeatproofError, match="there are 2: name one with --model"):
        Changes(models=[*models, "paperbirds/vgg"], weights="random").apply({})


def test_methods_of_a_model_replace_those_of_the_spec():
    content = {
        "models": ["paperbirds/vgg", {"name": "paperbirds/bcos", "methods": "bcos"}],
        "data": {"name": "paperbirds", "limit": 1},
        "methods": ["ixg", "gradcam"],
        "protocols": ["sds"],
    }
    tasks = open_spec(make_spec(content), "cpu", measure=False).tasks
    evaluated = {t.model_name: [r.expression.label for r in t.records] for t in tasks}
    assert evaluated == {"paperbirds/vgg": ["ixg", "gradcam"], "paperbirds/bcos": ["bcos"]}
    assumed = assumed_plan(make_spec(content), 1).tasks
    assert [len(t.records) for t in assumed] == [2, 1]
    changed = Changes(methods=["saliency"]).apply(content)
    assert changed["models"][1] == {"name": "paperbirds/bcos"}
    for wrong in ({"methods": ["bcso"]}, {"methods": []}):
        with pytest.raises(HeatproofError, match=r"models\.1\.methods"):
            make_spec({**content, "models": ["paperbirds/vgg", {"name": "bagnet33", **wrong}]})


def test_a_reference_is_a_number_of_other_images_or_an_error(tmp_path):
    for i in range(6):
        folder = tmp_path / f"class{i % 2:02}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (64, 64), (40 * i, 90, 60)).save(folder / f"{i}.png")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 64), torch.nn.Flatten())
    model = hp.Model(net, size=64, classes=["class00", "class01"])
    data = load_data(f"folder:{tmp_path}", model, limit=2)
    assert len(reference_for(data, model, 4).indices) == 4
    with pytest.warns(UserWarning, match="has 4 images that are not evaluated.* not 5,000"):
        assert len(reference_for(data, model, 5000).indices) == 4
    everything = load_data(f"folder:{tmp_path}", model)
    protocols = parse_protocols(["deletion(baseline=mean, steps=2)"])
    with pytest.raises(HeatproofError, match="are evaluated"):
        make_plan([model], [everything], parse_methods(["ixg"]), protocols, references=[5000])
    with pytest.raises(HeatproofError, match="a reference has a name, or is a number"):
        make_spec({**read_yaml("quickstart"), "reference": {"split": "train"}})


def test_missing_weights_are_named_with_their_source(tmp_path):
    with pytest.raises(HeatproofError) as error:
        find_weights({"bagnet33": ["16/zero"], "torchvision:vgg16": ["16/zero"]}, tmp_path)
    message = str(error.value)
    for part in ("bagnet32-2ddd53ed.pth.tar, from https://", "vgg16-16-zero.pth", "finetune"):
        assert part in message
    with pytest.raises(HeatproofError, match="there is no directory"):
        find_weights({"bagnet33": []}, tmp_path / "nowhere")


def test_a_spec_takes_the_weights_of_a_directory(tmp_path):
    (tmp_path / "resnet50.pth").touch()
    spec = load_spec("hesse2024/imagenet/table6", Changes(weights_dir=tmp_path))
    assert spec.models[0].weights == str(tmp_path / "resnet50.pth")
    assert spec.models[0].fine_tuned_weights is None


def test_the_page_of_figures_has_every_figure_and_its_studies():
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    for figure in figures().values():
        for study in (figure.study, figure.full):
            assert not study or f"`{figure.paper}/{study}`" in page
        title = figure.name.replace("fig", "Fig. ").replace("table", "Table ")
        title = title.replace("prop", "Prop. ")
        assert f"| {title} |" in page
