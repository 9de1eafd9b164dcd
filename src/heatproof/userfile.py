"""Things of the user's own, named `file:path/to/code.py:name`."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path

from heatproof.errors import HeatproofError, unknown


def from_file(name: str) -> object:
    """What `file:path.py:name` names. This runs the file, as importing it would."""
    path, _, wanted = name.removeprefix("file:").rpartition(":")
    file = Path(path)
    if not path:
        raise HeatproofError(f'"{name}" does not say what to take from the file; write {name}:name')
    if not file.is_file():
        raise HeatproofError(f'"{name}": there is no file {file.absolute()}; write file:path/to/code.py:name')
    key = f"heatproof_user_{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}_{file.resolve()}"  # an edited file is another one
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, file)
        if spec is None or spec.loader is None:
            raise HeatproofError(f'"{name}": {file.name} is not a Python file')
        sys.modules[key] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(file.resolve().parent))  # so that it can import its neighbours
        try:
            spec.loader.exec_module(sys.modules[key])
        except Exception as error:
            del sys.modules[key]
            raise HeatproofError(f"{file.name} cannot be imported: {type(error).__name__}: {error}") from error
        finally:
            sys.path.remove(str(file.resolve().parent))
    there = vars(sys.modules[key])
    if wanted not in there:
        raise unknown(f"name in {file.name}", wanted, [n for n, v in there.items() if callable(v) and not n.startswith("_")])
    return there[wanted]


def source_of(thing: object) -> str:
    """Its code, or the whole file it came from where that was named; empty where neither can be read."""
    module = getattr(thing, "__module__", "") or ""
    try:
        if module.startswith("heatproof_user_"):
            return module
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
