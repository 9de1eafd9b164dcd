"""Weights from files, by the names under which they were published; never a pickle that runs code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from heatproof.errors import HeatproofError, join_limited
from heatproof.models.convert import renamed
from heatproof.models.nets import NETS, load_state
from heatproof.models.papers import NETWORKS
from heatproof.models.vision import bare
from heatproof.models.vit import is_vit

SUFFIXES = (".safetensors", ".pth", ".pt", ".tar", ".bin", ".ckpt")
WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
)  # what lies around the weights in a training's checkpoint
PREFIXES = (
    "module.",
    "model.",
    "net.",
    "_orig_mod.",
)  # what wrappers of the network put before all names
NAMES = (  # (pattern, ours); taken where it leads to a name of the network
    (r"(^|\.)module\.", r"\1"),  # DataParallel around a part
    (r"\.linear\.weight$", ".weight"),  # B-cos
    (r"(^|\.)(bias\d[ab]?)$", r"\1\2.bias"),  # Fixup
    (r"(^|\.)scale$", r"\1scale.scale"),
)
ALIKE = 0.9  # the share of names and shapes from which on weights look like a network's


def load_weights(module: nn.Module, path: Path, name: str | None = None) -> None:
    """Into the module; what is missing, unexpected or of another shape is listed, with what the file looks like."""
    state, own = read_state(path), module.state_dict()
    state = _bare(state, own)
    fitted = _fitted(renamed(state) if is_vit(module) else state, own)
    wrong = _differences(fitted, own)
    if wrong:
        alike = looks_like(state)
        guess = f"it looks like {alike}: " if alike and alike != name else ""
        raise HeatproofError(
            f"{path.name} does not fit {name or type(module).__name__}: {guess}{'; '.join(wrong)}"
        )
    module.load_state_dict(fitted)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name."""
    if not path.is_file():
        raise HeatproofError(f"there is no weights file {path}")
    if path.suffix not in SUFFIXES:
        raise HeatproofError(f"weights must be one of {', '.join(SUFFIXES)}; got {path.name}")
    try:
        found: Any = (
            load_state(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (
        Exception
    ) as error:  # whatever the reader makes of a broken or hostile file, the user needs its name
        raise HeatproofError(f"cannot read weights from {path}: {error}") from error
    for _ in WRAPPERS:
        inside = (
            next((found[w] for w in WRAPPERS if isinstance(found.get(w), Mapping)), None)
            if isinstance(found, Mapping)
            else None
        )
        found = inside or found
    strange = (
        [str(key) for key, value in found.items() if not isinstance(value, Tensor)]
        if isinstance(found, Mapping)
        else ["no names"]
    )
    if strange or not found:
        raise HeatproofError(
            f"{path.name} holds no weights by name, but {join_limited(strange) or 'nothing'}"
        )
    return dict(found)


def metadata(path: Path) -> dict[str, str]:
    """What a .safetensors file tells about itself."""
    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def _bare(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what all names begin with, unless the network's do."""
    while not own.keys() & state.keys() and (
        prefix := next((p for p in PREFIXES if all(k.startswith(p) for k in state)), "")
    ):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _fitted(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the network's names. What norms count beside their statistics may be there or not: old files lack it, B-cos norms do."""
    fitted = {next(_candidates(key, own), key): value for key, value in state.items()}
    for key in fitted.keys() - own.keys():
        if key.endswith((".running_mean", ".num_batches_tracked")) and _variance(key) in own:
            del fitted[key]
    for key in own.keys() - fitted.keys():
        if key.endswith(".num_batches_tracked") and _variance(key) in fitted:
            fitted[key] = own[key]
    return fitted


def _candidates(key: str, own: Mapping[str, Tensor]) -> Iterator[str]:
    changed = key
    for pattern, ours in (("", ""), *NAMES):
        changed = re.sub(pattern, ours, changed) if pattern else changed
        if changed in own:
            yield changed


def _variance(key: str) -> str:
    return f"{key.rpartition('.')[0]}.running_var"


def _differences(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    shapes = (
        f"{k} is {tuple(state[k].shape)}, not {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    )
    kinds = {
        "": shapes,
        "missing ": (k for k in own if k not in state),
        "unexpected ": (k for k in state if k not in own),
    }
    return [word + told for word, names in kinds.items() if (told := join_limited(names))]


def looks_like(state: Mapping[str, Tensor]) -> str:
    """The network of the zoo whose names and shapes these are, all or nearly all; a library's only where it is there."""
    best, found = ALIKE, ""
    for name, own in _zoo().items():
        fitted = _fitted(state, own)
        share = sum(k in own and own[k].shape == v.shape for k, v in fitted.items()) / max(
            len(own), len(fitted)
        )
        if share > best:
            best, found = share, name
    return found


@cache
def _zoo() -> dict[str, dict[str, Tensor]]:
    """Names and shapes, without memory."""
    with torch.device("meta"):
        built: dict[str, nn.Module | None] = {
            f"paperbirds/{name}": net.build(net.classes, **net.options)
            for name, net in NETS.items()
        }
        built |= {
            name: network.module() if network.build else bare(name)
            for name, network in NETWORKS.items()
        }
    return {name: module.state_dict() for name, module in built.items() if module is not None}
