"""Changes to a spec without an editor: other models, data, methods, or any single key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatproof.data.catalog import DEFAULT_REFERENCE_IMAGES
from heatproof.errors import HeatproofError
from heatproof.expressions import parse_call
from heatproof.models import download
from heatproof.models.nets import slug
from heatproof.models.paper_networks import fine_tuned_url
from heatproof.models.zoo import find_loader, finetune_options
from heatproof.plan.yaml_reader import parse_yaml
from heatproof.text import clip, show

KEPT_WITH_OTHER_DATA = ("limit", "per_class")
WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".pth.tar")
CIFAR = ("cifar10/", "cifar100/")  # networks whose weights neither ship nor are published


@dataclass(frozen=True)
class Changes:
    """Replacements for parts of a spec.

    Attributes:
        models: Names of models, in place of all models of the spec.
        data: The name of a data set, in place of the spec's; its limit and its number of samples
            per class stay, while a split, which belongs to the other data, does not. A reference
            keeps its limit: as many of the new data's images that are not evaluated.
        methods: Method expressions, in place of all, also of those of single models.
        add_methods: Method expressions, beside those of the spec, also of those of single models.
        run_methods: The methods of the run that is there, which added ones join.
        protocols: Protocols, in place of all.
        settings: Single keys, such as ``data.limit=100`` or ``protocols.0.grids=50``.
        weights: The weights of the only model: a file, ``download`` or ``random``.
        weights_dir: The directory with the weights of models that have none in the spec.
        download: Whether models that have none get the published weights, which are downloaded.
    """

    models: Sequence[str] = ()
    data: str | None = None
    methods: Sequence[str] = ()
    add_methods: Sequence[str] = ()
    run_methods: Sequence[Any] = ()
    protocols: Sequence[str] = ()
    settings: Sequence[str] = ()
    weights: str | None = None
    weights_dir: Path | None = None
    download: bool = False

    def apply(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changed content of a spec, as it would be written in YAML.

        Raises:
            HeatproofError: If a setting cannot be read, or there is nothing at its place, or if
                weights are given for several models.
        """
        changed = dict(content)
        for key in ("models", "methods", "protocols"):
            if named := list(getattr(self, key)):
                changed[key] = named
        if self.add_methods:
            methods = self.methods or self.run_methods or changed.get("methods", [])
            changed["methods"] = _joined(methods, self.add_methods)
        if self.data is not None:
            data = changed.get("data")
            data = data if isinstance(data, dict) else {}
            kept = {k: v for k, v in data.items() if k in KEPT_WITH_OTHER_DATA}
            changed["data"] = {**kept, "name": self.data}
            reference = changed.pop("reference", None)
            if reference is not None:
                limit = reference.get("limit") if isinstance(reference, dict) else None
                changed["reference"] = {"limit": limit or DEFAULT_REFERENCE_IMAGES}
        models = changed.get("models")
        if self.methods and isinstance(models, list):
            changed["models"] = [_without_methods(entry) for entry in models]
        elif self.add_methods and isinstance(models, list):
            changed["models"] = [_with_methods(entry, self.add_methods) for entry in models]
        if self.weights is not None:
            changed["models"] = [_with_weights(changed.get("models"), self.weights)]
        for setting in self.settings:
            changed = _changed(changed, setting)
        return changed

    def note(self, content: Mapping[str, Any]) -> str:
        """Return what other data take from a spec, in one line; empty if they take nothing.

        Args:
            content: The content of the spec before it is changed.
        """
        if self.data is None:
            return ""
        changed = self.apply(content)
        data = changed["data"]
        parts = [f"{k} {data[k]:,}" for k in KEPT_WITH_OTHER_DATA if isinstance(data.get(k), int)]
        note = f"of the spec's data, {' and '.join(parts)} stays" if parts else ""
        reference = changed.get("reference")
        if isinstance(reference, dict) and "name" not in reference:
            others = f"{reference['limit']:,} images of {clip(self.data)} that are not evaluated"
            note = "; ".join(filter(None, [note, f"its reference becomes {others}"]))
        return f"--data {clip(self.data)}: {note} (--limit and --set change it)" if note else ""


def _joined(methods: Any, more: Sequence[str]) -> list[Any]:
    """Return methods of a spec, one or a list, and those of some others that are not among them."""
    listed = [methods] if isinstance(methods, str | dict) else list(methods)
    return [*listed, *(method for method in more if method not in listed)]


def _with_methods(entry: Any, more: Sequence[str]) -> Any:
    """Return a model of a spec whose own methods, if it has any, are joined by others."""
    if not isinstance(entry, dict) or "methods" not in entry:
        return entry
    return {**entry, "methods": _joined(entry["methods"], more)}


def _without_methods(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: value for key, value in entry.items() if key != "methods"}


def _with_weights(models: Any, weights: str) -> Any:
    """Return the only model of a spec with other weights."""
    listed = [models] if isinstance(models, str | dict) else list(models or ())
    if len(listed) != 1:
        raise HeatproofError(
            f"--weights is for one model, and there are {len(listed)}: name one with --model, or "
            "give --weights-dir DIR or --download for all"
        )
    (entry,) = listed
    return {**(entry if isinstance(entry, dict) else {"name": entry}), "weights": weights}


def _changed(content: dict[str, Any], setting: str) -> dict[str, Any]:
    """Return the content with one key replaced, such as ``data.limit=100``."""
    path, equals, text = setting.partition("=")
    keys = [key for key in path.split(".") if key]
    if not equals or not keys:
        raise HeatproofError(
            f'--set takes key=value, such as data.limit=100; got "{clip(setting)}"'
        )
    value = parse_yaml(text, f'--set {clip(path)}: "{clip(text)}"')
    changed: dict[str, Any] = _replaced(content, keys, value, clip(setting))
    return changed


def _replaced(content: Any, keys: Sequence[str], value: Any, setting: str) -> Any:
    if not keys:
        return value
    key, *rest = keys
    index = int(key) if re.fullmatch(r"[0-9]{1,6}", key) else None
    if index is not None and isinstance(content, str | dict):  # one entry stands for a list of it
        content = [content]
    if isinstance(content, list):
        if index is None or index >= len(content):
            raise HeatproofError(
                f'--set {setting}: "{key}" is not the number of an entry; there are '
                f"{len(content)}, from 0"
            )
        entry = _replaced(content[index], rest, value, setting)
        return [*content[:index], entry, *content[index + 1 :]]
    if isinstance(content, str):  # an entry that is a name, or a call such as sds(patches=64)
        call = parse_call(content) if "(" in content else None
        content = {"name": call.name, **call.kwargs} if call else {"name": content}
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise HeatproofError(f'--set {setting}: "{key}" is not a key of {show(content)}')
    return {**content, key: _replaced(content.get(key), rest, value, setting)}


def find_weights(
    names: Mapping[str, Sequence[str]],
    directory: Path,
    only_fine_tuned: Collection[str | None] = (),
) -> dict[str, dict[str, Any]]:
    """Find the files with the weights of models, by their names.

    The weights of ``torchvision:resnet50`` are in ``resnet50.pth`` (or ``.safetensors``, ``.pt``,
    ``.pth.tar``) or in the file as it is published, and those that were fine-tuned for 16 patches
    and the baseline ``zero`` in ``resnet50-16-zero.pth`` or in the file of Hesse et al.

    Args:
        names: Names of models, and what they need fine-tuned weights for, such as ``16/zero``.
        directory: Where the files are.
        only_fine_tuned: Models whose weights before fine-tuning are not used and may be missing.

    Returns:
        For each model the keys ``weights`` and ``fine_tuned_weights`` of its entry in a spec.

    Raises:
        HeatproofError: If there is no such directory or files are missing; the message names every
            missing file and where it can be had.
    """
    if not directory.is_dir():
        raise HeatproofError(f"there is no directory {directory.absolute()} with weights")
    entries: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    for name, fine_tunings in names.items():
        published = find_loader(name).published
        if published is None and not name.startswith(CIFAR):
            continue  # it comes with its weights
        short = re.split("[:/]", name)[-1]
        source = published(name) if published else download.Source("", "")
        file = _first_file(directory, short, source.file)
        if file is None and not (fine_tunings and name in only_fine_tuned):
            missing.append(_missing_weights(name, short, source))
        entry: dict[str, Any] = {"weights": str(file)} if file else {}
        for fine_tuning in fine_tunings:
            stem = f"{short}-{slug(fine_tuning)}"
            published_file = download.Source.at(fine_tuned_url(name, fine_tuning)).file
            fine_tuned = _first_file(directory, stem, published_file)
            if fine_tuned is None:
                missing.append(_missing_fine_tuned(name, stem, fine_tuning))
            entry.setdefault("fine_tuned_weights", {})[fine_tuning] = str(fine_tuned)
        entries[name] = entry
    if missing:
        raise HeatproofError(f"{directory} does not have all weights:\n  " + "\n  ".join(missing))
    return entries


def _first_file(directory: Path, stem: str, published: str = "") -> Path | None:
    names = [published] if published else []
    names += [f"{stem}{suffix}" for suffix in WEIGHT_SUFFIXES]
    return next((directory / name for name in names if (directory / name).is_file()), None)


def _missing_weights(name: str, short: str, source: download.Source) -> str:
    if not source.url:
        return f"{name}: {short}.pth or {short}.safetensors"
    return f"{name}: {source.file}, from {source.url}, or {short}.pth with other weights"


def _missing_fine_tuned(name: str, stem: str, fine_tuning: str) -> str:
    url = fine_tuned_url(name, fine_tuning)
    published = f"{download.Source.at(url).file}, from {url}, or " if url else ""
    return (
        f"{name} fine-tuned for {fine_tuning}: {published}{stem}.pth, made by heatproof finetune "
        f"{name} folder:… -o fine-tuned {finetune_options(fine_tuning)}"
    )
