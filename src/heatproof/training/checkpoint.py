"""Checkpoints that are written atomically and that cannot run code when they are read."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import heatproof
from heatproof.errors import HeatproofError
from heatproof.files import atomic_write
from heatproof.models.nets import stored

WEIGHTS = "fine-tuned.safetensors"
RESUME = "resume.pt"
PARTS = {"identity": str, "epoch": int, "net": dict, "optimiser": dict, "metrics": str}


def write_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write weights as a .safetensors file; equal weights and metadata give equal bytes.

    The safetensors library writes metadata in random order, so the header is sorted here.

    Args:
        path: File to write.
        state: Tensors by parameter name, as from ``state_dict()``.
        metadata: Texts to store in the header.
    """
    content = save(
        {key: value.detach().cpu().contiguous().clone() for key, value in state.items()},
        dict(metadata),
    )
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    atomic_write(path, struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


def write_trained(path: Path, network: nn.Module, recipe: Any, seed: int, **facts: str) -> None:
    """Write the weights of a network that was trained by a recipe, as they ship.

    Args:
        path: File to write.
        network: The network.
        recipe: The settings of the training, a dataclass.
        seed: Training seed.
        **facts: Further texts to store in the header.
    """
    metadata = facts | {
        "recipe": json.dumps(asdict(recipe)),
        "seed": str(seed),
        "heatproof": heatproof.__version__,
    }
    write_weights(path, stored(network.state_dict()), metadata)


def write_resume(path: Path, parts: Mapping[str, Any]) -> None:
    """Write what is needed to resume a fine-tuning; ``PARTS`` lists the keys."""
    content = io.BytesIO()
    torch.save(dict(parts), content)
    atomic_write(path, content.getvalue())


def read_resume(
    directory: Path, identity: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Read the checkpoint that an earlier call with the same settings left in a directory.

    Args:
        directory: Output directory of the fine-tuning.
        identity: Settings of this call, compared with those in the checkpoint.
        device: Device to load the tensors to.

    Returns:
        The checkpoint (see ``PARTS``), or None if there is none.

    Raises:
        HeatproofError: If the file is damaged or belongs to a fine-tuning with other settings.
    """
    path = directory / RESUME
    if not path.is_file():
        if (directory / WEIGHTS).exists():
            raise HeatproofError(
                f"{directory} has {WEIGHTS} but no {RESUME} to resume from; "
                "choose another directory"
            )
        return None
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        wrong = [key for key, kind in PARTS.items() if not isinstance(checkpoint[key], kind)]
        stored = json.loads(checkpoint["identity"])
    except Exception as error:  # a damaged or hostile file can make the reader raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise HeatproofError(
            f"cannot resume from {path}: it is broken or not a checkpoint ({reason}); "
            "delete it to start again"
        ) from error
    if wrong or not isinstance(stored, dict):
        raise HeatproofError(
            f"cannot resume from {path}: it is not a checkpoint of heatproof; "
            "delete it to start again"
        )
    requested = json.loads(json.dumps(identity))
    differences = [
        f"{key} is {stored.get(key)} there, {requested.get(key)} here"
        for key in sorted({*stored, *requested})
        if stored.get(key) != requested.get(key)
    ]
    if differences:
        raise HeatproofError(
            f"{directory} holds a fine-tuning with other settings: {'; '.join(differences)}. "
            "Choose another directory"
        )
    return checkpoint
