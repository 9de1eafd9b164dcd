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
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from heatproof.errors import HeatproofError, unknown
from heatproof.files import atomic_write, content_hash, file_hash

PREFIX = "file:"
_MODULE_PREFIX = "heatproof_user_"


def from_file(name: str) -> object:
    """Return what ``file:path.py:name`` refers to.

    This runs the file, as importing it would. A file that was edited since, or that imports a
    file next to it that was edited, is loaded again.

    Raises:
        HeatproofError: If the file or the name in it does not exist, or it cannot be imported.
    """
    path_text, _, attribute = name.removeprefix(PREFIX).rpartition(":")
    if not path_text:
        raise HeatproofError(f'"{name}" does not say what to take from the file; write {name}:name')
    moved = _moved.get(path_text)
    path = moved.copy if moved else Path(path_text)
    if not os.path.isfile(path):  # unlike Path.is_file, it takes names that are too long
        raise HeatproofError(
            f'"{name}": there is no file {path.absolute()}; write file:path/to/code.py:name'
        )
    attributes = vars(_load(path, moved.original if moved else None))
    _paths[path_text] = path.resolve()
    if attribute not in attributes:
        public = [n for n, v in attributes.items() if callable(v) and not n.startswith("_")]
        raise unknown(f"name in {path.name}", attribute, public)
    return attributes[attribute]


class _UserModule(NamedTuple):
    module: ModuleType
    hashes: dict[Path, str]  # of the file and of the neighbouring files that it imports
    parts: dict[str, bytes]  # their content by path relative to the folder


_modules: dict[Path, _UserModule] = {}
_sources: dict[str, str] = {}  # module name -> text that identifies all of the module's code
_loading: dict[str, ModuleType] = {}  # modules whose decorators are running


class _Moved(NamedTuple):
    original: str  # the path where the spec was written, which is part of the module's name
    copy: Path


_paths: dict[str, Path] = {}  # path as written in a name -> the file that was imported
_moved: dict[str, _Moved] = {}  # path as written in a name -> where the file is on this machine


def _load(file: Path, original: str | None = None) -> ModuleType:
    """Import a file as a module, unless it is imported already and nothing was edited.

    Args:
        file: The file.
        original: The path that names the module, if the file is a copy.
    """
    path = file.resolve()
    if path in _modules:
        hashes = _modules[path].hashes
        if all(_hash_file(part) == before for part, before in hashes.items()):
            return _modules[path].module
    _forget_neighbours()
    module = _import(path, f"{_MODULE_PREFIX}{_hash_file(path)}_{original or path}")
    hashes = _hash_parts(module)
    _modules[path] = _UserModule(module, hashes, _read_parts(path.parent, hashes))
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
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # which is also used after an edit within the same second
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise HeatproofError(
            f"{path.name} cannot be imported: {type(error).__name__}: {error}{_cure(error)}"
        ) from error
    finally:
        sys.dont_write_bytecode = not writes_bytecode
        sys.path.remove(str(path.parent))
        del _loading[name]
    return module


def _cure(error: Exception) -> str:
    """Return a line that says what to write instead, for errors whose message does not."""
    if "torchvision::nms" in str(error):
        return (
            "\ntorchvision was built for another torch. Install builds that belong together, "
            "or write in the file: from heatproof.models.vision import import_torchvision; "
            "torchvision = import_torchvision()"
        )
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    if str(error) == "'module' object is not callable" and ".data(" in line:
        return "\nThe decorator of data sets is hp.dataset: write @hp.dataset(…) for @hp.data(…)"
    return ""


def _forget_neighbours() -> None:
    """Drop what the user's files have imported from the import cache.

    Otherwise a file would get an old version of its neighbour, or one of the same name that is in
    the folder of another file.
    """
    files = {part for loaded in _modules.values() for part in loaded.hashes}
    names = {file.name for file in files}
    for name, module in list(sys.modules.items()):
        if name == "__main__" or name.startswith(_MODULE_PREFIX) or not _may_be_in(module, names):
            continue
        if _path_of(module) in files:
            del sys.modules[name]


def _may_be_in(module: object, names: set[str]) -> bool:
    """Return whether a module's file may have one of these names; to resolve thousands is slow."""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and (os.path.basename(file) in names or os.path.islink(file))


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


@dataclass(frozen=True)
class CodeFile:
    """A user's file with the neighbours that it imports, to be sent to another machine.

    Attributes:
        name: Its path as written in names, such as ``nets/mine.py``.
        path: Its full path here.
        parts: Content by path relative to its folder: the file itself and its neighbours.
        hashes: The hashes of the parts.
    """

    name: str
    path: str
    parts: dict[str, bytes]
    hashes: dict[str, str]


def collect_code(names: Iterable[str]) -> list[CodeFile]:
    """Return the files that names such as ``file:mine.py:name`` have imported.

    Args:
        names: Texts that contain such names, for example all those of a spec.
    """
    texts = list(names)
    used = [path for path in _paths if any(f"{PREFIX}{path}:" in text for text in texts)]
    return [_code_file(name, _paths[name]) for name in used]


def _code_file(name: str, path: Path) -> CodeFile:
    parts = _modules[path].parts
    hashes = {part: content_hash(content) for part, content in parts.items()}
    return CodeFile(name, str(path), parts, hashes)


def _read_parts(folder: Path, files: Iterable[Path]) -> dict[str, bytes]:
    """Read files of a folder, with the ``__init__.py`` of the packages that they are in."""
    found = set(files)
    packages = {parent for file in found for parent in file.parents if parent != folder}
    inside = [package / "__init__.py" for package in packages if package.is_relative_to(folder)]
    found.update(file for file in inside if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(found)}


@contextmanager
def moved_code(files: Iterable[CodeFile], folder: Path) -> Iterator[None]:
    """Take the files of ``file:`` names from another machine, within a block.

    What they define has the same names and hashes as there. A file that exists at the same path
    with the same content is used in place, so that it finds what else is beside it.

    Args:
        files: The files.
        folder: Where copies are written.

    Raises:
        HeatproofError: If the content of a file does not have its hash.
    """
    before = dict(_moved)
    try:
        for file in files:
            _moved[file.name] = _Moved(file.path, _find_copy(file, folder))
        yield
    finally:
        _moved.clear()
        _moved.update(before)


def _find_copy(file: CodeFile, folder: Path) -> Path:
    """Return the file at its own path, if it is the same there, or else write a copy."""
    original = Path(file.path)
    if _is_same(file, original.parent):
        return original
    beside = folder / content_hash([file.path, *file.hashes, *file.hashes.values()])
    for part, content in file.parts.items():
        if content_hash(content) != file.hashes[part]:
            raise HeatproofError(f"{file.name}: {part} was damaged on its way; run the spec again")
        if _hash_file(beside / part) != file.hashes[part]:
            atomic_write(beside / part, content)
    return beside / PurePath(file.path).name


def _is_same(file: CodeFile, folder: Path) -> bool:
    return all(_hash_file(folder / part) == before for part, before in file.hashes.items())
