"""Models by name: `paperbirds/resnet`, `bagnet33`, `torchvision:resnet50`, `timm:vit_base_patch16_224`, `file:my_model.py:build`."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from heatproof.errors import HeatproofError, unknown
from heatproof.models import download
from heatproof.models.checkpoint import load_weights, metadata
from heatproof.models.invariance import invariance
from heatproof.models.model import Model
from heatproof.models.nets import (
    ASSETS,
    CIFAR10_NETS,
    NETS,
    ON_DEMAND,
    build,
    build_cifar10,
    weights_path,
)
from heatproof.models.papers import NETWORKS, OURS
from heatproof.models.vision import (
    OPEN,
    RANDOM,
    Input,
    imagenet_names,
    library_model,
    library_source,
)
from heatproof.tensor.noise import seeded
from heatproof.userfile import from_file

DOWNLOAD = "download"  # as weights: the published ones, from the network if they are not kept yet

ALIGNMENT = re.compile(r"(\d+)/(.+)")


def load_model(
    name: str | nn.Module | Model,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    fine_tuned_weights: Mapping[str, str | Path] | None = None,
    fine_tuned: str | None = None,
    backend: str | None = None,
) -> Model:
    """A model by name, from a file of one's own, or from any torch module.

    weights: a local .safetensors or .pth file of tensors (never an arbitrary pickle), "random" for an untrained network, or "download" for
        the published ones. Those of paperbirds ship; others are downloaded only when asked, and then kept.
    device: "cpu", "cuda", "cuda:1", "mps", or "auto"; by default where it is.
    fine_tuned_weights: files of weights that were fine-tuned from these, by cells and baseline: {"16/zero": "fine-tuned.safetensors"}. `idsds` takes them.
    fine_tuned: "16/zero" gives the model with those weights, the embedded ones or one of `fine_tuned_weights`.
    backend: what computes whole passes without gradients: "eager", "fused" (convolutions and norms in one), "compile" (torch.compile) or
        "openvino"; by default eager. Each agrees with eager to 1e-3 of the logits' range, and always runs `batch_size` images at once.
    """
    place = pick_device(device) if device is not None else None
    file = _file(name, weights)
    model = _open(name, file if weights != RANDOM else RANDOM)
    if file is not None:
        load_weights(model.module, file, model.name)
        model.fine_tuned, model.fine_tuned_weights = metadata(file).get("fine_tuned", ""), {}
    for to, path in (fine_tuned_weights or {}).items():
        model.fine_tuned_weights[_checked(model, to, Path(path))] = Path(path)
    if fine_tuned is not None:
        model = load_fine_tuned(model, fine_tuned)
    model.backend = backend or model.backend
    return model if place is None or model.device == torch.device(place) else model.to(place)


def _file(name: str | nn.Module | Model, weights: str | Path | None) -> Path | None:
    """The file that weights are to be read from, if there is one."""
    published = isinstance(name, str) and (name in OURS or name.partition(":")[0] in OPEN)
    if weights not in (None, DOWNLOAD) or not published:
        if weights == DOWNLOAD:
            raise HeatproofError(
                f"weights={DOWNLOAD} is for published networks: {', '.join(OURS)}, and those of timm and torchvision"
            )
        return None if weights in (None, RANDOM) else Path(str(weights))
    source = (
        download.Source.at(NETWORKS[str(name)].url) if name in OURS else library_source(str(name))
    )
    path = download.kept(source)
    if path is not None:
        return path
    if weights == DOWNLOAD and source.url:
        return download.fetch(source)
    if not source.url:
        raise HeatproofError(
            f"{name} needs weights, and none are published: give a local .safetensors or .pth file, or weights={RANDOM}"
        )
    raise HeatproofError(
        f"{name} needs weights, and nothing is downloaded unless asked "
        f"(looked for {' and '.join(str(p) for p in download.places(source.file))}): give a local .safetensors or .pth file, "
        f"weights={DOWNLOAD} to get {source.url}, or weights={RANDOM} for an untrained network"
    )


def _open(name: str | nn.Module | Model, weights: str | Path | None) -> Model:
    """With the weights it comes with; a network by name that is to get others, with random ones."""
    if weights == RANDOM and (not isinstance(name, str) or name.startswith("file:")):
        raise HeatproofError(
            f"weights={RANDOM} is for networks that heatproof builds by name; one of your own comes with the weights it has"
        )
    if isinstance(name, Model):
        return name
    if isinstance(name, nn.Module):
        return Model(name)
    if not isinstance(name, str):
        raise HeatproofError(
            f"a model is a name, a torch.nn.Module or an hp.Model; got {type(name).__name__}"
        )
    if name in OURS:
        return _published(name)
    kind = next((kind for kind in _KINDS if name.startswith(kind)), None)
    if kind is None:
        like = (
            [f"{package}:{name}" for package in OPEN]
            if name.isidentifier()
            else ["torchvision:resnet50", "timm:vit_base_patch16_224"]
        )
        others = f"Those of a library are named like {' or '.join(like)}, and your own file:my_model.py:build"
        raise unknown("model", name, [*(f"paperbirds/{n}" for n in NETS), *OURS], others)
    return _KINDS[kind](name, weights)


def pick_device(device: str) -> str:
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise HeatproofError(
                f'device "{device}" cannot be used here: {str(error).splitlines()[0]}'
            ) from None
        return device
    return (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )


def load_fine_tuned(model: Model, to: str) -> Model:
    """The model with the weights that were fine-tuned for these cells and this baseline."""
    if model.fine_tuned == to:
        return model
    if not ALIGNMENT.fullmatch(to):
        raise HeatproofError(
            f'fine_tuned is the number of cells and the baseline, such as 16/zero; got "{to}"'
        )
    if to not in model.fine_tuned_weights:
        raise HeatproofError(_not_aligned(model, to))
    view, path = copy.deepcopy(model), model.fine_tuned_weights[to]
    if path is not None:
        load_weights(view.module, path, model.name)
    view.name = f"{model.name} {to}"
    view.fine_tuned = to
    view.pass_counts.clear()
    return view


def _not_aligned(model: Model, to: str) -> str:
    patches, _, baseline = to.partition("/")
    embedded = model.name.startswith("paperbirds/")
    what = ("paperbirds:train", " --schedule short") if embedded else ("folder:…", "")
    has = (
        f"it has: {', '.join(model.fine_tuned_weights)}"
        if model.fine_tuned_weights
        else "it has none"
    )
    return (
        f"{model.name} has no weights fine-tuned for {to} ({has}). Make them with\n"
        f"  heatproof finetune {model.name} {what[0]} -o fine-tuned --patches {patches} --baseline '{baseline}'{what[1]}\n"
        f"and name them in the spec: {{name: {model.name}, fine_tuned_weights: {{{to}: fine-tuned/fine-tuned.safetensors}}}}, "
        f'or in Python: load_model(…, fine_tuned_weights={{"{to}": "fine-tuned/fine-tuned.safetensors"}})'
    )


def _checked(model: Model, to: str, path: Path) -> str:
    """The file is there, says nothing else, and fits."""
    if not ALIGNMENT.fullmatch(to):
        raise HeatproofError(
            f'fine_tuned_weights: "{to}" must be the number of cells and the baseline, such as 16/zero'
        )
    load_weights(copy.deepcopy(model.module), path, model.name)
    told = metadata(path).get("fine_tuned", to)
    if told != to:
        raise HeatproofError(f"fine_tuned_weights: {path} was fine-tuned for {told}, not {to}")
    return to


def _embedded(net: str, pretrained: bool) -> Model:
    if net not in NETS:
        raise unknown("model", f"paperbirds/{net}", [f"paperbirds/{n}" for n in NETS])
    if pretrained and net in ON_DEMAND:
        raise HeatproofError(
            f"the weights of paperbirds/{net} do not ship; in a spec write {{train: paperbirds/{net}}}, "
            f"or train them with: heatproof train paperbirds/{net} -o {net}.safetensors, and give them as weights"
        )
    with seeded():
        module = build(net)
    if pretrained:
        load_weights(module, weights_path(net))
    names = json.loads(metadata(weights_path("resnet"))["classes"])
    model = Model(
        module.eval(),
        name=f"paperbirds/{net}",
        size=64,
        mean=NETS[net].mean,
        std=NETS[net].std,
        classes=names,
    )
    for path in sorted(ASSETS.glob(f"paperbirds-{net}-*.safetensors")) if pretrained else ():
        if found := re.fullmatch(rf"paperbirds-{re.escape(net)}-(\d+)-([a-z]+)", path.stem):
            model.fine_tuned_weights["/".join(found.groups())] = path
    return model


def _cifar10(name: str, pretrained: bool) -> Model:
    net = name.removeprefix("cifar10/")
    if net not in CIFAR10_NETS:
        raise unknown("model", name, [f"cifar10/{n}" for n in CIFAR10_NETS])
    if pretrained:
        raise HeatproofError(
            f"the weights of {name} do not ship; train them with: heatproof train {name} --data cifar10:/path -o {net}.safetensors, "
            "and give them as weights"
        )
    with seeded():
        module = build_cifar10(net)
    told = CIFAR10_NETS[net]
    return Model(module.eval(), name=name, size=told.size, mean=told.mean, std=told.std)


def _published(name: str) -> Model:
    """A network of a paper that no library has."""
    network = NETWORKS[name]
    with seeded():
        module = network.module()
    image = Input(network.size, network.resize, network.mean, network.std, imagenet_names())
    return Model(module.eval(), name=name, aliases=dict(network.layers), **image._asdict())


def _from_file(name: str) -> Model:
    """The named function returns a torch module or an hp.Model."""
    build = from_file(name)
    try:
        built = build() if callable(build) and not isinstance(build, nn.Module) else build
    except HeatproofError:
        raise
    except Exception as error:
        raise HeatproofError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(built, Model | nn.Module):
        raise HeatproofError(
            f"{name} must return a torch.nn.Module or an hp.Model; it returned {type(built).__name__}"
        )
    model = built if isinstance(built, Model) else Model(built)
    model.name = name
    return model


_KINDS: dict[str, Callable[[str, str | Path | None], Model]] = {  # by how the name begins
    "file:": lambda name, weights: _from_file(name),
    "cifar10/": lambda name, weights: _cifar10(name, pretrained=weights is None),
    "paperbirds/": lambda name, weights: _embedded(
        name.removeprefix("paperbirds/"), pretrained=weights is None
    ),
    "rao2024/": lambda name, weights: invariance(name),
    **{
        f"{package}:": lambda name, weights: library_model(
            name, None if weights == RANDOM else Path(str(weights))
        )
        for package in OPEN
    },
}
