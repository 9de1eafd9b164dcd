"""Update the tables of docs/which-methods.md: which methods there are for which networks.

`make which-methods` finds what applies, compares methods of libraries with ours, and times them.
With ``--ours`` only the tables of our methods are updated, in seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tables import replace_rows
from torch import nn

import heatproof as hp
from heatproof.errors import NotApplicable
from heatproof.methods import METHODS, Expression
from heatproof.methods.adapters import network_of
from heatproof.methods.by_name import LibraryMethod
from heatproof.methods.explain import check_applicable
from heatproof.methods.library_objects import Request, construct
from heatproof.methods.library_tables import LIBRARIES
from heatproof.models.model import Model
from heatproof.models.vision import import_timm
from heatproof.tensor.noise import Rng

# What is compared with what. Libraries scale maps and spread steps in other ways, so that maps are
# compared by their correlation.
COUNTERPARTS = {
    "captum:Deconvolution": "deconvnet(reduce=sum)",
    "captum:DeepLift": "deepshap(compat=captum)",
    "captum:GuidedBackprop": "guided-backprop(reduce=sum)",
    "captum:InputXGradient": "ixg",
    "captum:IntegratedGradients": "ig",
    "captum:LayerGradCam(relu_attributions=True)": "gradcam",
    "captum:LayerGradientXActivation": "ixg@cam",
    "captum:LayerIntegratedGradients": "ig@cam",
    "captum:Occlusion": "occlusion",
    "captum:Saliency": "saliency(reduce=sum_abs)",
    "grad-cam:AblationCAM": "ablationcam",
    "grad-cam:GradCAM": "gradcam",
    "grad-cam:GradCAMPlusPlus": "gradcam++",
    "grad-cam:LayerCAM": "layercam",
    "grad-cam:ScoreCAM": "scorecam",
    "grad-cam:XGradCAM": "xgradcam",
    "torchcam:GradCAM": "gradcam",
    "torchcam:GradCAMpp": "gradcam++(compat=torchcam)",
    "torchcam:LayerCAM": "layercam",
    "torchcam:ScoreCAM": "scorecam",
    "torchcam:SmoothGradCAMpp": "sg-cam++(compat=torchcam)",
    "torchcam:XGradCAM": "xgradcam",
    "zennit:DeconvNet": "deconvnet(reduce=sum)",
    "zennit:GuidedBackprop": "guided-backprop(reduce=sum)",
    "zennit:IntegratedGradients": "ig(steps=20)",
}
IMAGES = 4
REPEATS = 5
LONG_SECONDS = 1.0  # after which a method is not repeated


def convnext() -> Model:
    """Build a small ConvNeXt of timm with random weights: a CNN without ReLUs."""
    torch.manual_seed(0)
    create = import_timm().create_model
    net = create("convnext_atto", num_classes=10, depths=(1, 1, 2, 1), dims=(8, 16, 32, 64))
    return hp.Model(net.eval(), name="convnext", size=64, mean=(0.5,) * 3, std=(0.5,) * 3)


def swin() -> Model:
    """Build a small Swin of timm with random weights: its features have channels last."""
    torch.manual_seed(0)
    net: nn.Module = import_timm().create_model(
        "swin_tiny_patch4_window7_224",
        num_classes=10,
        img_size=64,
        window_size=4,
        depths=(1, 1, 2, 1),
        embed_dim=24,
    )
    return hp.Model(net.eval(), name="swin", size=64, mean=(0.5,) * 3, std=(0.5,) * 3)


NETWORKS: dict[str, Callable[[], Model]] = {
    "ResNet": lambda: hp.load_model("paperbirds/resnet"),
    "VGG": lambda: hp.load_model("paperbirds/vgg"),
    "ConvNeXt": convnext,
    "ViT": lambda: hp.load_model("paperbirds/vit"),
    "Swin": swin,
    "BagNet": lambda: hp.load_model("paperbirds/bagnet"),
    "B-cos": lambda: hp.load_model("paperbirds/bcos"),
}


def reason(method: str, model: Model) -> str:
    """Return why a method does not apply to a network; empty if it does."""
    expression = Expression.parse(method)
    try:
        check_applicable(expression, model, has_silhouettes=True)
    except NotApplicable as error:
        text = str(error).removeprefix(f"{expression.label} does not apply: ")
        return text.replace(model.name, "the network").replace("\n", " ")
    return ""


def our_tables(models: dict[str, Model]) -> tuple[list[str], list[str]]:
    """Return the rows of our methods × networks, and those of the reasons."""
    methods = [entry.id for entry in METHODS if entry.source is None]
    return tables_of(methods, models)


def tables_of(methods: list[str], models: dict[str, Model]) -> tuple[list[str], list[str]]:
    """Return a row per method with a column per network, and a row per reason."""
    rows = []
    reasons = []
    for method in methods:
        found = {kind: reason(method, model) for kind, model in models.items()}
        cells = ["n/a" if why else "works" for why in found.values()]
        rows.append(f"| `{method}` | {' | '.join(cells)} |")
        for why in dict.fromkeys(filter(None, found.values())):
            kinds = ", ".join(kind for kind, other in found.items() if other == why)
            reasons.append(f"| `{method}` | {kinds} | {escaped(why)} |")
    return rows, reasons


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def library_methods() -> Iterator[str]:
    for library in LIBRARIES.values():
        yield from (f"{library.name}:{name}" for name in library.methods())


def birds(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    data = hp.load_data("paperbirds:test", model, limit=IMAGES)
    x = model.normalize(torch.stack([data.load(i).image for i in range(IMAGES)]))
    return x, torch.tensor(data.labels[:IMAGES])


def object_of(name: str, model: Model, x: torch.Tensor) -> Any:
    """Return the object that a user would make, with the arguments of its calls."""
    expression = Expression.parse(name)
    method = expression.entry.function
    assert isinstance(method, LibraryMethod)
    options = {n: v for n, v in expression.arguments.items() if n in method.settings}
    rng = Rng(0, [str(i) for i in range(len(x))])
    request = Request(method.library, model, network_of(model), x, rng, None)
    thing, left = construct(request, method.kind, options)
    return hp.named("theirs", thing, **left)


def seconds(model: Model, x: torch.Tensor, target: torch.Tensor, methods: list[Any]) -> list[float]:
    """Return the median seconds of a processor per image of methods, which take turns."""
    spent: list[list[float]] = [[] for _ in methods]
    for _ in range(REPEATS):
        for method, times in zip(methods, spent, strict=True):
            begin = time.process_time()
            hp.explain(model, x, target, method)
            times.append((time.process_time() - begin) / len(x))
        if sum(map(sum, spent)) * len(x) > LONG_SECONDS:
            break
    return [statistics.median(times) for times in spent]


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean correlation of maps, over those that are not constant."""
    pairs = zip(one.flatten(1).double(), other.flatten(1).double(), strict=True)
    values = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs]
    kept = [value.item() for value in values if value.isfinite()]
    return statistics.fmean(kept) if kept else float("nan")


def measured_rows(model: Model) -> Iterator[str]:
    """Yield a row per library method: time by name and as an object, and agreement with ours."""
    x, target = birds(model)
    for name in library_methods():
        if reason(name, model):
            continue
        by_name, as_object = seconds(model, x, target, [name, object_of(name, model, x)])
        counterpart = [text for text in COUNTERPARTS if text.partition("(")[0] == name]
        agreement = "–", "–"
        if counterpart:
            ours = COUNTERPARTS[counterpart[0]]
            maps = [hp.explain(model, x, target, text) for text in (counterpart[0], ours)]
            agreement = f"`{ours}`", f"{correlation(*maps):.3f}"
        times = f"{1000 * by_name:.1f} | {1000 * as_object:.1f}"
        print(name, times, *agreement, file=sys.stderr, flush=True)
        yield f"| `{counterpart[0] if counterpart else name}` | {times} | {' | '.join(agreement)} |"


def main(page: Path, ours_alone: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    models = {kind: build() for kind, build in NETWORKS.items()}
    for number, rows in enumerate(our_tables(models)):
        replace_rows(page, rows, table=number)
    if ours_alone:
        return
    for number, rows in enumerate(tables_of(list(library_methods()), models), 2):
        replace_rows(page, rows, table=number)
    replace_rows(page, measured_rows(models["ResNet"]), table=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--ours" in sys.argv)
