"""Models by name, such as paperbirds/resnet, bagnet33, torchvision:resnet50, file:net.py:build."""

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
    LIBRARIES,
    RANDOM,
    Input,
    imagenet_names,
    library_model,
    library_source,
)
from heatproof.tensor.noise import seeded
from heatproof.userfile import from_file

DOWNLOAD = "download"  # as weights: the published ones, downloaded if they are not cached yet

FINE_TUNING = re.compile(r"(\d+)/(.+)")  # patches and baseline


def load_model(
    name: str | nn.Module | Model,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    fine_tuned_weights: Mapping[str, str | Path] | None = None,
    fine_tuned: str | None = None,
    backend: str | None = None,
) -> Model:
    """Load a model by its name, from a file of your own, or from any torch module.

    Args:
        name: A name such as ``paperbirds/resnet``, ``torchvision:resnet50`` or
            ``file:my_model.py:build``, a ``torch.nn.Module``, or a ``Model``.
        weights: A local .safetensors or .pth file of tensors (never an arbitrary pickle),
            ``random`` for an untrained network, or ``download`` for the published weights. Those of
            paperbirds ship; others are downloaded only when asked for, and then cached.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto``; by default where the model is.
        fine_tuned_weights: Files of weights that were fine-tuned from these, by patches and
            baseline, such as ``{"16/zero": "fine-tuned.safetensors"}``. The protocol ``idsds``
            uses them.
        fine_tuned: Such as ``16/zero``: load the model with those weights, the embedded ones or one
            of ``fine_tuned_weights``.
        backend: What computes whole passes without gradients: ``eager`` (the default), ``fused``
            (convolutions and norms in one), ``compile`` (torch.compile) or ``openvino``. Each
            agrees with eager to 1e-3 of the logits' range, and always runs ``batch_size`` images.

    Returns:
        The model.

    Raises:
        HeatproofError: If there is no such model, or the weights, device or backend do not fit it.
    """
    chosen_device = pick_device(device) if device is not None else None
    file = _weights_file(name, weights)
    model = _open(name, file if weights != RANDOM else RANDOM)
    if file is not None:
        load_weights(model.module, file, model.name)
        model.fine_tuned = metadata(file).get("fine_tuned", "")
        model.fine_tuned_weights = {}
    for fine_tuning, path in (fine_tuned_weights or {}).items():
        _check_fine_tuned(model, fine_tuning, Path(path))
        model.fine_tuned_weights[fine_tuning] = Path(path)
    if fine_tuned is not None:
        model = load_fine_tuned(model, fine_tuned)
    model.backend = backend or model.backend
    if chosen_device is not None and model.device != torch.device(chosen_device):
        model.to(chosen_device)
    return model


def _weights_file(name: str | nn.Module | Model, weights: str | Path | None) -> Path | None:
    """Return the file that weights are read from, downloaded if asked for; None: there is none."""
    published = isinstance(name, str) and (name in OURS or name.partition(":")[0] in LIBRARIES)
    if weights == DOWNLOAD and not published:
        raise HeatproofError(
            f"weights={DOWNLOAD} is for published networks: {', '.join(OURS)}, "
            "and those of timm and torchvision"
        )
    if weights not in (None, RANDOM, DOWNLOAD):
        return Path(str(weights))
    if weights == RANDOM or not published:
        return None
    if name in OURS:
        source = download.Source.at(NETWORKS[str(name)].url)
    else:
        source = library_source(str(name))
    path = download.cached(source)
    if path is not None:
        return path
    if not source.url:
        raise HeatproofError(
            f"{name} needs weights, and none are published: "
            f"give a local .safetensors or .pth file, or weights={RANDOM}"
        )
    if weights == DOWNLOAD:
        return download.fetch(source)
    looked_for = " and ".join(str(path) for path in download.cache_paths(source.file))
    raise HeatproofError(
        f"{name} needs weights, and nothing is downloaded unless asked (looked for {looked_for}): "
        f"give a local .safetensors or .pth file, weights={DOWNLOAD} to get {source.url}, "
        f"or weights={RANDOM} for an untrained network"
    )


def _open(name: str | nn.Module | Model, weights: str | Path | None) -> Model:
    """Open a model with the weights it comes with, or random ones where others are to be loaded."""
    if weights == RANDOM and (not isinstance(name, str) or name.startswith("file:")):
        raise HeatproofError(
            f"weights={RANDOM} is for networks that heatproof builds by name; "
            "one of your own comes with the weights it has"
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
    prefix = next((prefix for prefix in _OPENERS if name.startswith(prefix)), None)
    if prefix is None:
        examples = ["torchvision:resnet50", "timm:vit_base_patch16_224"]
        if name.isidentifier():
            examples = [f"{library}:{name}" for library in LIBRARIES]
        others = (
            f"Those of a library are named like {' or '.join(examples)}, "
            "and your own file:my_model.py:build"
        )
        raise unknown("model", name, [*(f"paperbirds/{n}" for n in NETS), *OURS], others)
    return _OPENERS[prefix](name, weights)


def pick_device(device: str) -> str:
    """Return a device that can be used; ``auto`` is cuda, mps or cpu, the first there is.

    Raises:
        HeatproofError: If the device cannot be used on this machine.
    """
    if device != "auto":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise HeatproofError(
                f'device "{device}" cannot be used here: {str(error).splitlines()[0]}'
            ) from None
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def load_fine_tuned(model: Model, fine_tuning: str) -> Model:
    """Load the weights that were fine-tuned for some patches and a baseline.

    Args:
        model: The model, which is left as it is.
        fine_tuning: The number of patches and the baseline, such as ``16/zero``.

    Returns:
        A copy of the model with those weights, or the model itself if it has them.

    Raises:
        HeatproofError: If the model has no such weights.
    """
    if model.fine_tuned == fine_tuning:
        return model
    if not FINE_TUNING.fullmatch(fine_tuning):
        raise HeatproofError(
            "fine_tuned is the number of patches and the baseline, such as 16/zero; "
            f'got "{fine_tuning}"'
        )
    if fine_tuning not in model.fine_tuned_weights:
        raise HeatproofError(_no_fine_tuned_weights(model, fine_tuning))
    copied = copy.deepcopy(model)
    path = model.fine_tuned_weights[fine_tuning]
    if path is not None:
        load_weights(copied.module, path, model.name)
    copied.name = f"{model.name} {fine_tuning}"
    copied.fine_tuned = fine_tuning
    copied.pass_counts.clear()
    return copied


def _no_fine_tuned_weights(model: Model, fine_tuning: str) -> str:
    patches, _, baseline = fine_tuning.partition("/")
    data = "folder:…"
    options = f"--patches {patches} --baseline '{baseline}'"
    if model.name.startswith("paperbirds/"):
        data = "paperbirds:train"
        options += " --schedule short"
    names = ", ".join(model.fine_tuned_weights)
    has = f"it has: {names}" if names else "it has none"
    file = "fine-tuned/fine-tuned.safetensors"
    return (
        f"{model.name} has no weights fine-tuned for {fine_tuning} ({has}). Make them with\n"
        f"  heatproof finetune {model.name} {data} -o fine-tuned {options}\n"
        f"and name them in the spec: {{name: {model.name}, "
        f"fine_tuned_weights: {{{fine_tuning}: {file}}}}}, "
        f'or in Python: load_model(…, fine_tuned_weights={{"{fine_tuning}": "{file}"}})'
    )


def _check_fine_tuned(model: Model, fine_tuning: str, path: Path) -> None:
    """Check that a file of weights fits the model and was not fine-tuned for something else."""
    if not FINE_TUNING.fullmatch(fine_tuning):
        raise HeatproofError(
            f'fine_tuned_weights: "{fine_tuning}" must be the number of patches and the baseline, '
            "such as 16/zero"
        )
    load_weights(copy.deepcopy(model.module), path, model.name)
    stated = metadata(path).get("fine_tuned", fine_tuning)
    if stated != fine_tuning:
        raise HeatproofError(
            f"fine_tuned_weights: {path} was fine-tuned for {stated}, not {fine_tuning}"
        )


def _embedded(net: str, pretrained: bool) -> Model:
    if net not in NETS:
        raise unknown("model", f"paperbirds/{net}", [f"paperbirds/{n}" for n in NETS])
    if pretrained and net in ON_DEMAND:
        raise HeatproofError(
            f"the weights of paperbirds/{net} do not ship; "
            f"in a spec write {{train: paperbirds/{net}}}, "
            f"or train them with: heatproof train paperbirds/{net} -o {net}.safetensors, "
            "and give them as weights"
        )
    with seeded():
        module = build(net)
    if pretrained:
        load_weights(module, weights_path(net))
    classes = json.loads(metadata(weights_path("resnet"))["classes"])
    model = Model(
        module.eval(),
        name=f"paperbirds/{net}",
        size=64,
        mean=NETS[net].mean,
        std=NETS[net].std,
        classes=classes,
    )
    if pretrained:
        for path in sorted(ASSETS.glob(f"paperbirds-{net}-*.safetensors")):
            match = re.fullmatch(rf"paperbirds-{re.escape(net)}-(\d+)-([a-z]+)", path.stem)
            if match:
                model.fine_tuned_weights["/".join(match.groups())] = path
    return model


def _cifar10(name: str, pretrained: bool) -> Model:
    net = name.removeprefix("cifar10/")
    if net not in CIFAR10_NETS:
        raise unknown("model", name, [f"cifar10/{n}" for n in CIFAR10_NETS])
    if pretrained:
        raise HeatproofError(
            f"the weights of {name} do not ship; train them with: "
            f"heatproof train {name} --data cifar10:/path -o {net}.safetensors, "
            "and give them as weights"
        )
    with seeded():
        module = build_cifar10(net)
    row = CIFAR10_NETS[net]
    return Model(module.eval(), name=name, size=row.size, mean=row.mean, std=row.std)


def _published(name: str) -> Model:
    """Build a network of a paper that no library has."""
    network = NETWORKS[name]
    with seeded():
        module = network.module()
    image = Input(network.size, network.resize, network.mean, network.std, imagenet_names())
    return Model(module.eval(), name=name, aliases=dict(network.layers), **image._asdict())


def _from_file(name: str) -> Model:
    """Build a model by a function of the user's, which returns a torch module or an hp.Model."""
    build = from_file(name)
    try:
        built = build() if callable(build) and not isinstance(build, nn.Module) else build
    except HeatproofError:
        raise
    except Exception as error:
        raise HeatproofError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(built, Model | nn.Module):
        raise HeatproofError(
            f"{name} must return a torch.nn.Module or an hp.Model; "
            f"it returned {type(built).__name__}"
        )
    model = built if isinstance(built, Model) else Model(built)
    model.name = name
    return model


def _library(name: str, weights: str | Path | None) -> Model:
    return library_model(name, None if weights == RANDOM else Path(str(weights)))


_OPENERS: dict[str, Callable[[str, str | Path | None], Model]] = {  # by how the name begins
    "file:": lambda name, weights: _from_file(name),
    "cifar10/": lambda name, weights: _cifar10(name, pretrained=weights is None),
    "paperbirds/": lambda name, weights: _embedded(
        name.removeprefix("paperbirds/"), pretrained=weights is None
    ),
    "rao2024/": lambda name, weights: invariance(name),
    **{f"{library}:": _library for library in LIBRARIES},
}
