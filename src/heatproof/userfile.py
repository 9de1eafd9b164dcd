"""User code: things named ``file:path/to/code.py:name``, and hashes of their source.

Results are keyed by these hashes, so that results of edited code are not mistaken for new ones.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from heatproof.errors import HeatproofError, unknown
from heatproof.files import content_hash, file_hash

PREFIX = "file:"
_MODULE = "heatproof_user_"  # how the names of the user's modules begin


def from_file(name: str) -> object:
    """Return what ``file:path.py:name`` refers to.

    This runs the file, as importing it would. A file that was edited since, or that imports a
    file next to it that was edited, is loaded again.

    Raises:
        HeatproofError: If the file or the name in it does not exist, or it cannot be imported.
    """
    path_text, _, attribute = name.removeprefix(PREFIX).rpartition(":")
    path = Path(path_text)
    if not path_text:
        raise HeatproofError(f'"{name}" does not say what to take from the file; write {name}:name')
    if not os.path.isfile(path):  # unlike Path.is_file, it takes names that are too long
        raise HeatproofError(
            f'"{name}": there is no file {path.absolute()}; write file:path/to/code.py:name'
        )
    attributes = vars(_load(path))
    if attribute not in attributes:
        public = [n for n, v in attributes.items() if callable(v) and not n.startswith("_")]
        raise unknown(f"name in {path.name}", attribute, public)
    return attributes[attribute]


class _UserModule(NamedTuple):
    module: ModuleType
    hashes: dict[Path, str]  # of the file and of the neighbouring files that it imports


_modules: dict[Path, _UserModule] = {}
_sources: dict[str, str] = {}  # module name -> text that identifies all of the module's code
_loading: dict[str, ModuleType] = {}  # modules whose decorators are running


def _load(file: Path) -> ModuleType:
    """Import a file as a module, unless it is imported already and nothing was edited."""
    path = file.resolve()
    if path in _modules:
        hashes = _modules[path].hashes
        if all(_hash_file(part) == before for part, before in hashes.items()):
            return _modules[path].module
    _forget_neighbours()
    module = _import(path, f"{_MODULE}{_hash_file(path)}_{path}")
    hashes = _hash_parts(module)
    _modules[path] = _UserModule(module, hashes)
    _sources[module.__name__] = _identify(module, hashes)
    return module


def _hash_parts(module: ModuleType) -> dict[Path, str]:
    """Hash the file of a module and the neighbouring files that it imports."""
    path = _path_of(module)
    assert path is not None
    parts = map(_path_of, _modules_beside(module, path.parent))
    return {part: _hash_file(part) for part in parts if part}


def _identify(module: ModuleType, hashes: dict[Path, str]) -> str:
    return " ".join([module.__name__, *(hashes[part] for part in sorted(hashes))])


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise HeatproofError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _loading[name] = module
    sys.path.insert(0, str(path.parent))  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise HeatproofError(
            f"{path.name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
        del _loading[name]
    return module


def _forget_neighbours() -> None:
    """Drop what the user's files have imported from the import cache.

    Otherwise a file would get an old version of its neighbour, or one of the same name that is in
    the folder of another file.
    """
    files = {part for loaded in _modules.values() for part in loaded.hashes}
    for name, module in list(sys.modules.items()):
        if name != "__main__" and not name.startswith(_MODULE) and _path_of(module) in files:
            del sys.modules[name]


def _modules_beside(module: ModuleType, folder: Path) -> list[ModuleType]:
    """Return the module and the user's own modules in the folder that it uses, directly or not."""
    modules = [module]
    for part in modules:  # which grows
        for name in _imported_names(part):
            other = sys.modules.get(name)
            if other and other not in modules and _is_beside(other, folder):
                modules.append(other)
    return modules


def _imported_names(module: ModuleType) -> Iterator[str]:
    """Yield the names of modules that a module imports, or whose functions and classes it has."""
    for value in list(vars(module).values()):
        yield value.__name__ if isinstance(value, ModuleType) else _module_of(value)
    path = _path_of(module)
    if path is None or path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _module_of(value: object) -> str:
    return str(getattr(value, "__module__", ""))


def _is_beside(module: ModuleType, folder: Path) -> bool:
    """Return whether a module is the user's own code, in that folder or below."""
    path = _path_of(module)
    package = module.__name__.partition(".")[0]
    others = {"heatproof", "__main__", *sys.stdlib_module_names}
    return (
        path is not None
        and path.is_relative_to(folder)
        and package not in others
        and "site-packages" not in path.parts
    )


def _path_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _hash_file(file: Path) -> str:
    return file_hash(file) if file.is_file() else ""


def source_of(thing: object) -> str:
    """Return text that identifies the code of a function or class.

    Returns:
        The hashes of its whole file and of the neighbours that the file imports, if the thing
        came from a ``file:`` name; otherwise its source code; empty if that cannot be read.
    """
    module = getattr(thing, "__module__", "") or ""
    if module in _loading:
        return _identify(_loading[module], _hash_parts(_loading[module]))
    if module in _sources:
        return _sources[module]
    try:
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def is_builtin(thing: object) -> bool:
    """Return whether a function or class is part of heatproof."""
    return (getattr(thing, "__module__", "") or "").partition(".")[0] == "heatproof"


def source_hash(thing: object) -> str | None:
    """Return the hash of a user's function or class, of its module, and of what it closes over.

    Returns:
        None for what is part of heatproof, which has version numbers instead. Empty if the
        source cannot be read; results are then computed again in every run.
    """
    if is_builtin(thing):
        return None
    source = source_of(thing)
    if not source:
        return ""
    code = getattr(thing, "__code__", None)
    constants = [c for c in code.co_consts if not inspect.iscode(c)] if code else []
    closure = [_stable(cell.cell_contents) for cell in getattr(thing, "__closure__", None) or ()]
    parts = [source, _module_source(thing), [code.co_code if code else None, constants], closure]
    return content_hash(repr(parts))


def _stable(value: Any) -> Any:
    """Return something whose ``repr`` depends on the content alone."""
    if isinstance(value, Tensor | np.ndarray):
        return content_hash(pickle.dumps(value))
    return value


def _module_source(thing: object) -> str:
    """Return the hash of the module, as helper functions in it count as well.

    A script that is run directly does not count: its other lines change all the time.
    """
    name = getattr(thing, "__module__", "") or ""
    path = _path_of(sys.modules.get(name))
    if path is None or name == "__main__" or name in _sources or name in _loading:
        return ""
    return _hash_file(path)
