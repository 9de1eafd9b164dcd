"""Checkpoints that are there whole or not at all, and that cannot run code."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from heatproof.errors import HeatproofError
from heatproof.files import atomic_write

WEIGHTS = "fine-tuned.safetensors"
RESUME = "resume.pt"
PARTS = {"identity": str, "epoch": int, "net": dict, "optimiser": dict, "metrics": str}


def write_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """As .safetensors; the same weights are the same bytes (the library writes metadata in an order of chance)."""
    content = save(
        {key: value.detach().cpu().contiguous().clone() for key, value in state.items()},
        dict(metadata),
    )
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    told = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    told += b" " * (-len(told) % 8)
    atomic_write(path, struct.pack("<Q", len(told)) + told + content[8 + length :])


def write_resume(path: Path, parts: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(dict(parts), content)
    atomic_write(path, content.getvalue())


def read_resume(
    directory: Path, identity: Mapping[str, Any], device: torch.device
) -> dict[str, Any] | None:
    """Where an earlier call ended, or None; an error where the directory holds something else than is asked for."""
    path = directory / RESUME
    if not path.is_file():
        if (directory / WEIGHTS).exists():
            raise HeatproofError(
                f"{directory} has {WEIGHTS} but no {RESUME} to go on from; choose another directory"
            )
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        wrong = [key for key, kind in PARTS.items() if not isinstance(found[key], kind)]
        there = json.loads(found["identity"])
    except Exception as error:  # a broken or hostile file can make the reader raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise HeatproofError(
            f"cannot go on from {path}: it is broken or not a checkpoint ({reason}); delete it to start anew"
        ) from error
    if wrong or not isinstance(there, dict):
        raise HeatproofError(
            f"cannot go on from {path}: it is not a checkpoint of heatproof; delete it to start anew"
        )
    asked = json.loads(json.dumps(identity))
    other = [
        f"{key} is {there.get(key)} there, {asked.get(key)} here"
        for key in sorted({*there, *asked})
        if there.get(key) != asked.get(key)
    ]
    if other:
        raise HeatproofError(
            f"{directory} holds a fine-tuning with other settings: {'; '.join(other)}. Choose another directory"
        )
    return found
