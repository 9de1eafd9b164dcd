"""Weights from files, under the names they were published with; never a pickle that runs code."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from heatproof.errors import HeatproofError, join_limited
from heatproof.models.convert import renamed
from heatproof.models.nets import NETS, load_state
from heatproof.models.paper_networks import NETWORKS
from heatproof.models.vision import library_module
from heatproof.models.vit import is_vit
from heatproof.text import clip

SUFFIXES = (".safetensors", ".pth", ".pt", ".tar", ".bin", ".ckpt")
# Keys under which training checkpoints store the weights.
CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model", "net")
# Prefixes that wrappers of the network add to all names.
WRAPPER_PREFIXES = ("module.", "model.", "net.", "_orig_mod.")
RENAMED_WEIGHTS = (  # (pattern, ours), applied where that gives a name of the network
    (r"(^|\.)module\.", r"\1"),  # DataParallel around a part
    (r"\.linear\.weight$", ".weight"),  # B-cos
    (r"(^|\.)(bias\d[ab]?)$", r"\1\2.bias"),  # Fixup
    (r"(^|\.)scale$", r"\1scale.scale"),
)
# How PyTorch speaks of files that are not whole.
DAMAGE = ("reading zip archive", "unexpected EOF")
LEAST_AGREEMENT = 0.9  # of names and shapes, as a fraction, for weights to look like a network's


def load_weights(module: nn.Module, path: Path, name: str | None = None) -> None:
    """Load weights from a file into a module.

    Args:
        module: The network.
        path: A file that ``read_state`` can read.
        name: The network's name, for the message.

    Raises:
        HeatproofError: If the weights do not fit. The message lists what is missing, unexpected or
            of another shape, and the network that the file looks like.
    """
    expected = module.state_dict()
    state = _without_prefix(read_state(path), expected)
    fitted = _fitted(renamed(state) if is_vit(module) else state, expected)
    differences = _differences(fitted, expected)
    if differences:
        alike = looks_like(state)
        guess = f"it looks like {alike}: " if alike and alike != name else ""
        network = name or type(module).__name__
        raise HeatproofError(f"{path.name} does not fit {network}: {guess}{'; '.join(differences)}")
    module.load_state_dict(fitted)


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name, without running code from it.

    Raises:
        HeatproofError: If there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise HeatproofError(f"there is no weights file {path}")
    if path.suffix not in SUFFIXES:
        raise HeatproofError(f"weights must be one of {', '.join(SUFFIXES)}; got {path.name}")
    try:
        if path.suffix == ".safetensors":
            content: Any = load_state(path)
        elif _is_zip_bomb(path):
            raise ValueError("it is compressed, which PyTorch never does, and far larger inside")
        else:
            # PyTorch's ImageNet example saves its arguments, and so does code derived from it. A
            # namespace has nothing but attributes: reading it runs no code, and its values are
            # restricted like everything else.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile file can raise anything
        # Further lines of PyTorch's message recommend to load the file with code.
        reason = clip((str(error).splitlines() or [type(error).__name__])[0], 500)
        if isinstance(error, EOFError | SafetensorError) or any(t in reason for t in DAMAGE):
            reason = f"the file is cut off or damaged ({reason.split('. ')[0]}); get it again"
        raise HeatproofError(f"cannot read weights from {path}: {reason}") from error
    state = _unwrapped(content)
    if not isinstance(state, Mapping):
        others = ["no names"]
    else:
        others = [
            clip(f"{key} ({problem})")
            for key, value in state.items()
            if (problem := _weight_problem(key, value))
        ]
    if others or not state:
        raise HeatproofError(
            f"{path.name} holds no weights by name, but {join_limited(others) or 'nothing'}"
        )
    return dict(state)


def _weight_problem(key: Any, value: Any) -> str:
    """Return why an entry of a file is not a weight of a network; empty if it is one."""
    if not isinstance(key, str):
        return f"its name is of type {type(key).__name__}"
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return "not a dense tensor"
    if value.is_meta or value.is_complex():
        return "without values" if value.is_meta else "complex numbers"
    return ""


def _is_zip_bomb(path: Path) -> bool:
    """Return whether a file is an archive whose content is much larger than itself."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        inside = sum(part.file_size for part in archive.infolist())
    return inside > 2 * path.stat().st_size + 2**20


def _unwrapped(content: Any) -> Any:
    """Return the weights inside a training checkpoint, which may be wrapped several times."""
    for _ in CHECKPOINT_KEYS:
        if not isinstance(content, Mapping):
            break
        inside = [content[key] for key in CHECKPOINT_KEYS if isinstance(content.get(key), Mapping)]
        content = next(iter(inside), None) or content
    return content


def metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a .safetensors file; other files have none.

    Raises:
        HeatproofError: If the file is broken.
    """
    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise HeatproofError(f"cannot read weights from {path}: {clip(str(error))}") from None


def _without_prefix(state: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove prefixes that all names have, unless the network's names have them too."""
    while not expected.keys() & state.keys():
        prefix = next((p for p in WRAPPER_PREFIXES if all(key.startswith(p) for key in state)), "")
        if not prefix:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _fitted(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the network's names.

    The batch count of norms may be missing, as in old files; B-cos norms have neither a count nor a
    mean.
    """
    fitted = {_our_name(key, expected): value for key, value in state.items()}
    for key in fitted.keys() - expected.keys():
        if key.endswith((".running_mean", ".num_batches_tracked")) and _variance(key) in expected:
            del fitted[key]
    for key in expected.keys() - fitted.keys():
        if key.endswith(".num_batches_tracked") and _variance(key) in fitted:
            fitted[key] = expected[key]
    return fitted


def _our_name(key: str, expected: Mapping[str, Tensor]) -> str:
    """Return the first name in the network that the patterns lead to; else the name unchanged."""
    changed = key
    for pattern, ours in RENAMED_WEIGHTS:
        if changed in expected:
            return changed
        changed = re.sub(pattern, ours, changed)
    return changed if changed in expected else key


def _variance(key: str) -> str:
    return f"{key.rpartition('.')[0]}.running_var"


def _differences(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    shapes = (
        f"{key} is {tuple(state[key].shape)}, not {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    )
    kinds = {
        "": shapes,
        "missing ": (key for key in expected if key not in state),
        "unexpected ": (key for key in state if key not in expected),
    }
    listed = {word: join_limited(names) for word, names in kinds.items()}
    return [word + names for word, names in listed.items() if names]


def looks_like(state: Mapping[str, Tensor]) -> str:
    """Return the name of a known network with nearly all of these names and shapes, or "".

    A library's networks are known if it is installed.
    """
    best = LEAST_AGREEMENT
    alike = ""
    for name, expected in _known_networks().items():
        fitted = _fitted(state, expected)
        agreeing = sum(
            key in expected and expected[key].shape == value.shape for key, value in fitted.items()
        )
        fraction = agreeing / max(len(expected), len(fitted))
        if fraction > best:
            best = fraction
            alike = name
    return alike


@cache
def _known_networks() -> dict[str, dict[str, Tensor]]:
    """Return the names and shapes of all networks, as tensors without memory."""
    with torch.device("meta"):
        built: dict[str, nn.Module | None] = {
            f"paperbirds/{name}": net.module() for name, net in NETS.items()
        }
        built |= {
            name: network.module() if network.build else library_module(name)
            for name, network in NETWORKS.items()
        }
    return {name: module.state_dict() for name, module in built.items() if module is not None}
