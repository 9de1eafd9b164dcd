"""Image classifiers of ``transformers`` by name: ``hf:NAME_OR_DIR``. Imported only on demand."""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from heatproof.errors import HeatproofError
from heatproof.models.model import Model
from heatproof.models.vision import import_torchvision
from heatproof.tensor.noise import seeded

HUB_PREFIX = "hf:"


def import_transformers() -> Any:
    """Import transformers, and torchvision before it where that is installed.

    Raises:
        HeatproofError: If transformers is not installed.
    """
    with suppress(HeatproofError):  # only some image processors need it
        import_torchvision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise HeatproofError(
            f'transformers cannot be imported ({error}). Install it: pip install "heatproof[hf]"'
        ) from None


def hf_model(name: str, trained: bool) -> Model:
    """Load an image classifier of the Hugging Face hub, its cache, or a directory.

    Args:
        name: Such as ``hf:google/vit-base-patch16-224``, or ``hf:DIR`` with what
            ``save_pretrained`` writes there.
        trained: Whether its weights are loaded; if not, it is built from its configuration, with
            random weights that are always the same.

    Raises:
        HeatproofError: If transformers is not installed, there is no such network, it cannot be
            downloaded, or it is no classifier.
    """
    transformers = import_transformers()
    source = name.removeprefix(HUB_PREFIX)
    if Path(source).expanduser().is_dir():
        source = str(Path(source).expanduser())
    auto = transformers.AutoModelForImageClassification
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        if trained:
            module, info = auto.from_pretrained(source, config=config, output_loading_info=True)
            _check_head(name, config, info)
        else:
            with seeded():
                module = auto.from_config(config)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) or "model_type" in str(error):
            raise HeatproofError(_cannot_load(name, source, error)) from None
        raise HeatproofError(
            f"{name} is no image classifier of transformers: {' '.join(str(error).split())[:300]}"
        ) from None
    return Model(module.eval(), name=name, processor=_processor(transformers, source))


def _processor(transformers: Any, source: str) -> Any:
    """Return the image processor of a network; None if it has none."""
    try:
        return transformers.AutoImageProcessor.from_pretrained(source)
    except (OSError, ValueError):  # no preprocessor_config.json, or one of another kind
        return None


def _check_head(name: str, config: Any, info: Any) -> None:
    """Check that all weights were in the checkpoint; a new head would be random."""
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        kind = ", ".join(config.architectures or ["a network"])
        raise HeatproofError(
            f"{name} has no trained classification head: it is {kind}, without "
            f"{', '.join(missing[:4])}. Save a classifier: transformers."
            "AutoModelForImageClassification.from_pretrained(…), fine-tuned, .save_pretrained(DIR)"
        )


def _cannot_load(name: str, source: str, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300]
    if Path(source).is_dir():
        return f"{name}: the directory is not what save_pretrained writes: {reason}"
    return (
        f"{name} is neither a directory nor in the cache of transformers, and cannot be "
        f"downloaded: {reason} Where there is a connection, run `hf download {source} --local-dir "
        f"DIR`, and name {HUB_PREFIX}DIR; or unset HF_HUB_OFFLINE if it is set"
    )
