"""Models by name.

Names are dispatched to loaders, which are registered by a whole name (``bagnet33``) or by how names
begin (``paperbirds/``, ``torchvision:``, ``timm:``, ``hf:``, ``file:``).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from heatproof.errors import HeatproofError, NotApplicable, unknown
from heatproof.models import download
from heatproof.models.batch_dependence import allow_batch_dependence, known_independence
from heatproof.models.huggingface import HUB_PREFIX, hf_model
from heatproof.models.linear_model import linear
from heatproof.models.model import Model
from heatproof.models.nets import (
    CIFAR10_NETS,
    CIFAR100_NETS,
    FINE_TUNED,
    NETS,
    ON_DEMAND,
    fine_tuned_path,
    weights_path,
)
from heatproof.models.paper_networks import (
    FINE_TUNED_FOR,
    FINE_TUNED_NAMES,
    NETWORKS,
    OURS,
    fine_tuned_url,
)
from heatproof.models.vision import (
    LIBRARIES,
    RANDOM_WEIGHTS,
    imagenet_names,
    library_model,
    library_source,
)
from heatproof.models.weights_file import load_weights, metadata, read_state
from heatproof.registry import Registry
from heatproof.tensor.noise import seeded
from heatproof.tensor.scores import HeadName
from heatproof.userfile import PREFIX, from_file, source_hash

DOWNLOADED_WEIGHTS = "download"  # the published ones, from the network unless they are cached

# the patches or the part of the pixels that were deleted, and what replaced them
FINE_TUNING = re.compile(r"\d+(?:\.\d+)?%?/.+")
_BEGINNING = re.compile(r"[^:/]*[:/]")

Weights = str | Path | None
Load = Callable[[str, Weights], Model]  # (name, weights) -> model


@dataclass(frozen=True)
class ModelLoader:
    """Loads models by name.

    Attributes:
        id: A model's name, or how names begin: then it ends in ``/`` or ``:``.
        load: Returns the model of a name with its weights. If other weights are given, the network
            may be untrained, as they are loaded into it afterwards.
        names: Names to suggest for an unknown one.
        published: Returns where the weights of a name are published.
        source: Hash of a user's code; None for what ships with heatproof.
        summary: One line about a user's model.
    """

    id: str
    load: Load
    names: tuple[str, ...] = ()
    published: Callable[[str], download.Source] | None = None
    source: str | None = None
    summary: str = ""


def _entry_of(factory: Any, name: str) -> ModelLoader:
    """Return the loader of a package's own model: a module, or a function that returns one."""
    if not callable(factory):
        raise HeatproofError(
            "a model is a torch.nn.Module, an hp.Model, or a function that returns one; got "
            f"{type(factory).__name__}"
        )
    name = name or getattr(factory, "__name__", type(factory).__name__)
    summary = (getattr(factory, "__doc__", "") or "").partition("\n")[0]
    return ModelLoader(
        name,
        lambda name, weights: _as_model(factory, name),
        (name,),
        source=source_hash(factory),
        summary=summary,
    )


MODELS: Registry[ModelLoader] = Registry("model", _entry_of)


def loader(
    id: str,
    *,
    names: tuple[str, ...] = (),
    published: Callable[[str], download.Source] | None = None,
) -> Callable[[Load], Load]:
    """Register a function ``(name, weights) -> Model``; see `ModelLoader` for the arguments."""

    def register(load: Load) -> Load:
        MODELS.add(ModelLoader(id, load, names, published, source_hash(load)), load)
        return load

    return register


def find_loader(name: str) -> ModelLoader:
    """Return the loader for a model's name.

    Raises:
        HeatproofError: If there is none; the message has suggestions.
    """
    beginning = _BEGINNING.match(name)
    for key in (beginning[0], name) if beginning else (name,):
        if key in MODELS:
            return MODELS[key]
    like = ["torchvision:resnet50", "timm:vit_base_patch16_224"]
    if name.isidentifier():
        like = [f"{package}:{name}" for package in LIBRARIES]
    hint = (
        f"Those of a library are named like {' or '.join(like)}, and your own "
        "file:my_model.py:build"
    )
    raise unknown("model", name, [n for entry in MODELS for n in entry.names], hint)


def load_model(
    name: str | nn.Module | Model,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    fine_tuned_weights: Mapping[str, str | Path] | Literal["download"] | None = None,
    fine_tuned: str | None = None,
    backend: str | None = None,
    precision: str | None = None,
    approximate: bool = False,
    head: HeadName | None = None,
    batch_dependent: bool = False,
) -> Model:
    """Load a model by name, from a file of your own, or from any torch module.

    Args:
        name: A name such as ``paperbirds/resnet``, ``bagnet33``, ``torchvision:resnet50``,
            ``timm:vit_base_patch16_224``, ``hf:google/vit-base-patch16-224``, ``hf:DIR`` or
            ``file:my_model.py:build``; a module or a `Model`.
        weights: A local .safetensors or .pth file of tensors (never an arbitrary pickle),
            ``random`` for an untrained network, or ``download`` for the published weights. Those
            of paperbirds ship; others are downloaded only on request, and then cached. Those of
            ``hf:`` come from its directory or the hub, by the rules of transformers.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto``; by default where the model is.
        fine_tuned_weights: Files of weights that were fine-tuned from these, by the number of
            patches and the baseline: ``{"16/zero": "fine-tuned.safetensors"}``. ``idsds`` uses
            them. ``download`` is for those that Hesse et al. publish, for 16/zero; specs find them
            in the cache without being told.
        fine_tuned: Return the model with these fine-tuned weights, such as ``16/zero``: embedded
            ones, or one of ``fine_tuned_weights``.
        backend: What computes whole passes without gradients: ``eager``, ``fused`` (convolutions
            merged with norms), ``compile`` (torch.compile) or ``openvino``. Each agrees with eager
            to 1e-3 of the logits' range, and always runs ``batch_size`` images. With ``auto``, the
            default, ``hp.evaluate`` and ``hp.run`` choose the fastest on this machine.
        precision: Of whole passes without gradients: ``float32`` (as the weights are, the default),
            ``tf32``, ``bfloat16`` or ``float16``, which has to agree as a backend has.
        approximate: Whether a lower precision need not agree. What it changes is then measured on
            images of a run, and stated with its results.
        head: What the outputs are: ``softmax``, ``sigmoid``, ``binary`` or ``regression``; see
            `Model`. By default as the model says, or as the number of outputs shows.
        batch_dependent: Whether a network whose result for an image depends on the others of the
            batch is run one image at a time instead of refused.

    Returns:
        The model. A `Model` that was passed is returned itself, unless ``fine_tuned``, a
        ``precision`` or another ``head`` is given.

    Raises:
        HeatproofError: If there is no such model, weights are missing or do not fit, or the device
            cannot be used.
    """
    target = pick_device(device) if device is not None else None
    file = _weights_file(name, weights)
    with allow_batch_dependence(batch_dependent):
        model = _open(name, RANDOM_WEIGHTS if weights == RANDOM_WEIGHTS else file)
    if file is not None:
        _load_checked(model, file)
        model.weights_metadata = metadata(file)
        model.fine_tuned = model.weights_metadata.get("fine_tuned", "")
        model.fine_tuned_weights = {}
    if batch_dependent and not model.batch_dependent:
        model = model.one_at_a_time()
    if head is not None and head != model.head:
        model = model.with_head(head)
    if fine_tuned_weights == DOWNLOADED_WEIGHTS:
        fine_tuned_weights = {FINE_TUNED_FOR: DOWNLOADED_WEIGHTS}
    assert not isinstance(fine_tuned_weights, str)
    for fine_tuning, path in (fine_tuned_weights or {}).items():
        if path == DOWNLOADED_WEIGHTS:
            path = _published_fine_tuned(model.name, fine_tuning)
        _check_fine_tuned(model, fine_tuning, Path(path))
        model.fine_tuned_weights[fine_tuning] = Path(path)
    if fine_tuned is not None:
        model = load_fine_tuned(model, fine_tuned)
    model.backend = backend or model.backend
    if precision is not None:
        model = model.with_precision(precision, approximate)
    if target is None or model.device == torch.device(target):
        return model
    return model.to(target)


def _weights_file(name: str | nn.Module | Model, weights: Weights) -> Path | None:
    """Return the file that weights are read from, if there is one."""
    if isinstance(name, str) and name.startswith(HUB_PREFIX) and weights == DOWNLOADED_WEIGHTS:
        return None  # transformers downloads what is not in its cache
    has_loader = isinstance(name, str) and not name.startswith(PREFIX)
    published = find_loader(str(name)).published if has_loader else None
    if published is None and weights == DOWNLOADED_WEIGHTS:
        raise HeatproofError(
            f"weights={DOWNLOADED_WEIGHTS} is for published networks: {', '.join(OURS)}, and "
            "those of timm and torchvision"
        )
    if published is None or weights not in (None, DOWNLOADED_WEIGHTS):
        return None if weights in (None, RANDOM_WEIGHTS) else Path(str(weights))
    source = published(str(name))
    path = download.cached(source)
    if path is not None:
        return path
    if weights == DOWNLOADED_WEIGHTS and source.url:
        return download.fetch(source, read_state)
    if not source.url:
        raise HeatproofError(
            f"{name} needs weights, and none are published: give a local .safetensors or .pth "
            f"file, or weights={RANDOM_WEIGHTS}"
        )
    searched = " and ".join(str(p) for p in download.cache_paths(source.file))
    raise HeatproofError(
        f"{name} needs weights, and nothing is downloaded unless asked (looked for {searched}): "
        f"give a local .safetensors or .pth file, in a command --weights FILE or --weights-dir "
        f"with its directory; weights={DOWNLOADED_WEIGHTS}, in a command --weights "
        f"{DOWNLOADED_WEIGHTS}, to get {source.url}; or weights={RANDOM_WEIGHTS} for an untrained "
        "network"
    )


def is_published(name: str) -> bool:
    """Return whether the weights of a model are published, so that they do not come with it."""
    return find_loader(name).published is not None


def cached_fine_tuned(name: str) -> dict[str, str]:
    """Return the fine-tuned weights of Hesse et al. that were downloaded before, if there are."""
    path = download.cached(download.Source.at(fine_tuned_url(name)))
    return {FINE_TUNED_FOR: str(path)} if path else {}


def _published_fine_tuned(name: str, fine_tuning: str) -> Path:
    """Return the file of Hesse et al. with a network's fine-tuned weights, downloaded if need be.

    Raises:
        HeatproofError: If they publish none for it, or it cannot be downloaded.
    """
    source = download.Source.at(fine_tuned_url(name, fine_tuning))
    if not source.url:
        raise HeatproofError(
            f"fine_tuned_weights: {DOWNLOADED_WEIGHTS} is for what Hesse et al. publish, which is "
            f"{FINE_TUNED_FOR} of {', '.join(FINE_TUNED_NAMES)}; got {fine_tuning} of {name}. Give "
            "a file, made by heatproof finetune"
        )
    return download.cached(source) or download.fetch(source, read_state)


def _open(name: str | nn.Module | Model, weights: Weights) -> Model:
    """Return a model with its weights, or untrained if others will be loaded into it."""
    if isinstance(name, str):
        entry = find_loader(name)
        if weights == RANDOM_WEIGHTS and (name.startswith(PREFIX) or entry.source is not None):
            raise HeatproofError(_NO_RANDOM)
        with known_independence(name in NETWORKS):
            return entry.load(name, weights)
    if not isinstance(name, Model | nn.Module):
        raise HeatproofError(
            f"a model is a name, a torch.nn.Module or an hp.Model; got {type(name).__name__}"
        )
    if weights == RANDOM_WEIGHTS:
        raise HeatproofError(_NO_RANDOM)
    return name if isinstance(name, Model) else Model(name)


_NO_RANDOM = (
    f"weights={RANDOM_WEIGHTS} is for networks that heatproof builds by name; one of your own "
    "comes with the weights it has"
)


def pick_device(device: str) -> str:
    """Return the device to use; ``auto`` is the fastest available one.

    Raises:
        HeatproofError: If the device cannot be used.
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
    """Return a copy of the model with the weights that were fine-tuned for patches and a baseline.

    Args:
        model: The model, whose ``fine_tuned_weights`` are looked up.
        fine_tuning: The number of patches and the baseline, such as ``16/zero``.

    Raises:
        HeatproofError: If there are no such weights; the message says how to make them.
    """
    if model.fine_tuned == fine_tuning:
        return model
    if not FINE_TUNING.fullmatch(fine_tuning):
        raise HeatproofError(
            "fine_tuned is the number of patches, or the part of the pixels, and the baseline, "
            f'such as 16/zero or 10%/zero; got "{fine_tuning}"'
        )
    if fine_tuning not in model.fine_tuned_weights:
        raise HeatproofError(missing_fine_tuning(model.name, fine_tuning, model.fine_tuned_weights))
    view = copy.deepcopy(model)
    path = model.fine_tuned_weights[fine_tuning]
    if path is not None:
        load_weights(view.module, path, model.name)
        view.weights_metadata = metadata(path)
    view.name = f"{model.name} {fine_tuning}"
    view.fine_tuned = fine_tuning
    view.pass_counts.clear()
    return view


def check_fine_tuned(model: Model, fine_tuning: str) -> None:
    """Check that a model has the weights that `load_fine_tuned` loads.

    Raises:
        NotApplicable: If it does not; the message says how to make them.
    """
    if fine_tuning not in model.fine_tuned_weights:
        raise NotApplicable(missing_fine_tuning(model.name, fine_tuning, model.fine_tuned_weights))


def missing_fine_tuning(name: str, fine_tuning: str, has: Collection[str] = ()) -> str:
    """Say that a model has no such weights, and how to get them.

    Args:
        name: The model's name.
        fine_tuning: The number of patches and the baseline, such as ``16/zero``.
        has: What the model has weights for.
    """
    if url := fine_tuned_url(name, fine_tuning):
        source = download.Source.at(url)
        return (
            f"{name} has no weights fine-tuned for {fine_tuning}, and nothing is downloaded "
            f"unless asked (looked for {download.cache_paths(source.file)[0]}): give a local file "
            f"in the spec as fine_tuned_weights: {{{fine_tuning}: FILE}}, or in a command "
            f"--weights-dir with the directory that has {source.file}; or fine_tuned_weights: "
            f"{DOWNLOADED_WEIGHTS} (in a command --download) to get {url}"
        )
    data = "folder:…"
    options = ""
    if name.startswith("paperbirds/"):
        data = "paperbirds:train"
        options = " --schedule short"
    others = f"it has: {', '.join(has) or 'none'}"
    file = "fine-tuned/fine-tuned.safetensors"
    return (
        f"{name} has no weights fine-tuned for {fine_tuning} ({others}). Make them with\n"
        f"  heatproof finetune {name} {data} -o fine-tuned {finetune_options(fine_tuning)}"
        f"{options}\n"
        f"and name them in the spec: {{name: {name}, "
        f"fine_tuned_weights: {{{fine_tuning}: {file}}}}}, "
        f'or in Python: load_model(…, fine_tuned_weights={{"{fine_tuning}": "{file}"}})'
    )


def finetune_options(fine_tuning: str) -> str:
    """Return the options of ``heatproof finetune`` that make such weights."""
    deleted, _, baseline = fine_tuning.partition("/")
    if not deleted.endswith("%"):
        return f"--patches {deleted} --baseline '{baseline}'"
    return f"--pixels {float(deleted[:-1]) / 100:g} --baseline '{baseline}'"


def _load_checked(model: Model, file: Path) -> None:
    """Load weights into a model; if they do not fit, say where those that do are published."""
    try:
        load_weights(model.module, file, model.name)
    except HeatproofError as error:
        published = find_loader(model.name).published if model.name in NETWORKS else None
        url = published(model.name).url if published else ""
        raise HeatproofError(
            f"{error}. Those published are at {url}" if url else f"{error}"
        ) from None


def _check_fine_tuned(model: Model, fine_tuning: str, path: Path) -> None:
    """Check that a file of fine-tuned weights exists, fits, and is what it is said to be."""
    if not FINE_TUNING.fullmatch(fine_tuning):
        raise HeatproofError(
            f'fine_tuned_weights: "{fine_tuning}" must be the number of patches, or the part of '
            "the pixels, and the baseline, such as 16/zero or 10%/zero"
        )
    try:
        load_weights(copy.deepcopy(model.module), path, model.name)
    except HeatproofError as error:
        url = fine_tuned_url(model.name, fine_tuning)
        hint = f". Those of Hesse et al. for {model.name} are at {url}" if url else ""
        raise HeatproofError(f"fine_tuned_weights: {path}: {error}{hint}") from None
    stated = metadata(path).get("fine_tuned", fine_tuning)
    if stated != fine_tuning:
        raise HeatproofError(
            f"fine_tuned_weights: {path} was fine-tuned for {stated}, not {fine_tuning}"
        )


@loader("paperbirds/", names=tuple(f"paperbirds/{net}" for net in NETS))
def _paperbirds(name: str, weights: Weights) -> Model:
    net = name.removeprefix("paperbirds/")
    pretrained = weights is None
    if net not in NETS:
        raise unknown("model", name, [f"paperbirds/{n}" for n in NETS])
    if pretrained and net in ON_DEMAND:
        raise HeatproofError(
            f"the weights of {name} do not ship; in a spec write {{train: {name}}}, or train them "
            f"with: heatproof train {name} -o {net}.safetensors, and give them as weights"
        )
    with seeded():
        module = NETS[net].module()
    if pretrained:
        load_weights(module, weights_path(net))
    names = json.loads(metadata(weights_path("resnet"))["classes"])
    model = Model(
        module.eval(),
        name=name,
        size=64,
        mean=NETS[net].mean,
        std=NETS[net].std,
        classes=names,
    )
    if pretrained:
        model.fine_tuned_weights |= {f: fine_tuned_path(net, f) for f in FINE_TUNED[net]}
    return model


@loader("cifar10/")
@loader("cifar100/")
def _cifar(name: str, weights: Weights) -> Model:
    data, _, net = name.partition("/")
    nets = {"cifar10": CIFAR10_NETS, "cifar100": CIFAR100_NETS}[data]
    if net not in nets:
        raise unknown("model", name, [f"{data}/{n}" for n in nets])
    config = nets[net]
    if weights is None:
        recipe = f"{{train: {name}, trained_on: plain}}"
        if data == "cifar10":
            recipe = f"heatproof train {name} --data cifar10:/path -o {net}.safetensors"
        raise HeatproofError(
            f"the weights of {name} do not ship; train them with {recipe}, and give them as weights"
        )
    with seeded():
        module = config.module()
    return Model(
        module.eval(),
        name=name,
        size=config.size,
        resize=config.size,
        mean=config.mean,
        std=config.std,
    )


@loader("picard2024/")
def _picard2024(name: str, weights: Weights) -> Model:
    return linear(name)


def _published(name: str, weights: Weights) -> Model:
    """Build a network of a paper that no library has."""
    network = NETWORKS[name]
    with seeded():
        module = network.module()
    return Model(
        module.eval(),
        name=name,
        size=network.size,
        resize=network.resize,
        mean=network.mean,
        std=network.std,
        classes=imagenet_names(),
    )


def _library(name: str, weights: Weights) -> Model:
    return library_model(name, None if weights == RANDOM_WEIGHTS else Path(str(weights)))


for _name in OURS:
    loader(_name, names=(_name,), published=lambda name: download.Source.at(NETWORKS[name].url))(
        _published
    )
for _package in LIBRARIES:
    loader(f"{_package}:", published=library_source)(_library)


@loader(HUB_PREFIX)
def _hub(name: str, weights: Weights) -> Model:
    """Load ``hf:google/vit-base-patch16-224`` or ``hf:DIR``; a file's weights come later."""
    return hf_model(name, trained=weights is None)


@loader(PREFIX)
def _from_file(name: str, weights: Weights) -> Model:
    """Load ``file:my_model.py:build``, a function that returns a torch module or an hp.Model."""
    return _as_model(from_file(name), name)


def _as_model(factory: Any, name: str) -> Model:
    """Return the model that a function builds, or a module as a model."""
    try:
        is_function = callable(factory) and not isinstance(factory, nn.Module)
        built = factory() if is_function else factory
    except HeatproofError:
        raise
    except Exception as error:
        raise HeatproofError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(built, Model | nn.Module):
        raise HeatproofError(
            f"{name} must return a torch.nn.Module or an hp.Model; it returned "
            f"{type(built).__name__}"
        )
    model = built if isinstance(built, Model) else Model(built)
    model.name = name
    return model
