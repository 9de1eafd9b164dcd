"""Things of the user's own, named `file:path/to/code.py:name`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from heatproof.errors import HeatproofError, unknown
from heatproof.files import file_hash


def from_file(name: str) -> object:
    """What `file:path.py:name` names. This runs the file, as importing it would."""
    path, _, wanted = name.removeprefix("file:").rpartition(":")
    file = Path(path)
    if not path:
        raise HeatproofError(f'"{name}" does not say what to take from the file; write {name}:name')
    if not file.is_file():
        raise HeatproofError(
            f'"{name}": there is no file {file.absolute()}; write file:path/to/code.py:name'
        )
    there = vars(_loaded(file))
    if wanted not in there:
        raise unknown(
            f"name in {file.name}",
            wanted,
            [n for n, v in there.items() if callable(v) and not n.startswith("_")],
        )
    return there[wanted]


class _Loaded(NamedTuple):
    module: ModuleType
    files: dict[
        Path, str
    ]  # what it is made of, itself and the neighbours that it imports: their hashes


_files: dict[Path, _Loaded] = {}
_codes: dict[str, str] = {}  # by the module's name: what stands for all its code


def _loaded(file: Path) -> ModuleType:
    """The file as a module, which is loaded again where it, or a neighbour that it imports, was edited."""
    path = file.resolve()
    if path in _files:
        if all(_hash(part) == before for part, before in _files[path].files.items()):
            return _files[path].module
        for name in [
            name
            for name, module in sys.modules.items()
            if name != "__main__" and _lies(module) in _files[path].files
        ]:
            del sys.modules[name]  # or the old neighbours would be imported
    key = f"heatproof_user_{_hash(path)}_{path}"
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise HeatproofError(f"{file.name} is not a Python file")
    sys.modules[key] = module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise HeatproofError(
            f"{file.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    parts = [module]
    for part in parts:  # which grows
        for value in [*vars(part).values()]:
            other = (
                value
                if isinstance(value, ModuleType)
                else sys.modules.get(str(getattr(value, "__module__", "")))
            )
            if other and other not in parts and _beside(other, path.parent):
                parts.append(other)
    files = {place: _hash(place) for part in parts if (place := _lies(part))}
    _files[path], _codes[key] = (
        _Loaded(module, files),
        " ".join([key, *(files[place] for place in sorted(files))]),
    )
    return module


def _beside(module: ModuleType, folder: Path) -> bool:
    """Whether it is code of the user's own, in that folder or below."""
    place, package = _lies(module), module.__name__.partition(".")[0]
    others = {"heatproof", "__main__", *sys.stdlib_module_names}
    return (
        place is not None
        and place.is_relative_to(folder)
        and package not in others
        and "site-packages" not in place.parts
    )


def _lies(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _hash(file: Path) -> str:
    return file_hash(file) if file.is_file() else ""


def source_of(thing: object) -> str:
    """Its code, or that of the whole file it came from, and of the neighbours, where that was named; empty where neither can be read."""
    module = getattr(thing, "__module__", "") or ""
    try:
        return _codes[module] if module in _codes else inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
