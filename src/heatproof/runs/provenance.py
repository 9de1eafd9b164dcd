"""Where results come from: versions, hardware, models and spec of a run."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import heatproof
from heatproof.models.channel_peaks import chosen_channels
from heatproof.models.model import Model
from heatproof.platform import cpu_name
from heatproof.runs.format import (
    FineTuningFacts,
    Hardware,
    ModelFacts,
    ModelView,
    Origin,
    Provenance,
)
from heatproof.text import counted

LayerShape = Callable[[Model, str], tuple[int, ...]]
PACKAGES = ("torch", "numpy", "scipy", "pillow", "pandas", "pyarrow")


def provenance(
    spec: Mapping[str, Any],
    models: Mapping[ModelView, Model],
    threads: int | None,
    layer_shape: LayerShape,
) -> Provenance:
    """Collect what is needed to understand or repeat a run that starts now.

    Args:
        spec: The spec as it would be written in YAML, or the arguments of ``evaluate``.
        models: The model of every view in the plan.
        threads: Threads of the processes that compute; None for those of this one.
        layer_shape: Returns the shape of one image's activation at a layer.
    """
    return Provenance(
        heatproof=heatproof.__version__,
        git=_git_revision(),
        python=platform.python_version(),
        packages=_packages(),
        hardware=_hardware(threads or torch.get_num_threads()),
        devices=sorted({str(model.device) for model in models.values()}),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        models=[_model_facts(subject, model, layer_shape) for subject, model in models.items()],
        spec=dict(spec),
    )


def origin_of(model: Model, batch_size: int) -> Origin:
    """Return what computes records in this process now.

    Args:
        model: The model whose records are computed.
        batch_size: Images in one pass.
    """
    return Origin(
        heatproof=heatproof.__version__,
        git=_git_revision(),
        python=platform.python_version(),
        packages=_packages(),
        hardware=_hardware(torch.get_num_threads()),
        device=device_name(model.device),
        backend=model.backend,
        batch_size=batch_size,
    )


def machine_of(model: Model) -> str:
    """Return what computes a model in this process: the accelerator, or processor and threads."""
    if model.device.type != "cpu":
        return device_name(model.device)
    return f"{cpu_name()}, {counted(torch.get_num_threads(), 'thread')}"


def device_name(device: torch.device) -> str:
    """Return the kind of a device, with the name of a graphics card."""
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)})"


@cache
def _packages() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@cache
def _hardware(threads: int) -> Hardware:
    return Hardware(
        machine=platform.machine(), cpu=cpu_name(), cores=os.cpu_count(), threads=threads
    )


def _model_facts(subject: ModelView, model: Model, layer_shape: LayerShape) -> ModelFacts:
    return ModelFacts(
        model=subject.model,
        view=subject.view,
        fingerprint=model.fingerprint(),
        fine_tuned=model.fine_tuned,
        fine_tuning=FineTuningFacts.from_metadata(model.weights_metadata),
        backend=model.backend,
        backend_reason=model.backend_reason,
        parameters=sum(p.numel() for p in model.module.parameters()),
        size=model.size,
        image_channels=len(model.mean),
        classes=model.n_classes,
        head=model.head,
        class_names=list(model.classes) if model.classes else None,
        layers=dict(model.landmarks),
        all_layers=list(model.all_layers),
        target=model.target.text if model.target else "",
        output_advice=model.output_advice,
        mean=model.mean.flatten().tolist(),
        std=model.std.flatten().tolist(),
        normalization=model.normalization,
        channels=_channels(subject, model, layer_shape),
    )


def _channels(subject: ModelView, model: Model, layer_shape: LayerShape) -> list[int]:
    """Return the numbers of the channels whose largest activations a run stores."""
    is_network = subject.view.is_plain or subject.view.is_fine_tuned
    if not is_network or "cam" not in model.landmarks:
        return []
    activation = torch.empty(1, *layer_shape(model, "cam"))
    return chosen_channels(model.tail("cam").channels_first(activation).shape[1])


@cache
def _git_revision() -> str | None:
    """Return the commit of a source checkout; None for an installed package."""
    here = Path(__file__).parent
    if not _in_checkout(here):
        return None
    command = ["git", "rev-parse", "HEAD"]
    result = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def _in_checkout(path: Path) -> bool:
    return any((p / ".git").exists() and (p / "pyproject.toml").exists() for p in path.parents)
