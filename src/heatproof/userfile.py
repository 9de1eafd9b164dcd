"""Things of the user's own, named `file:path/to/code.py:name`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from heatproof.errors import HeatproofError, unknown


def from_file(name: str) -> object:
    """What `file:path.py:name` names. This runs the file, as importing it would."""
    path, _, wanted = name.removeprefix("file:").rpartition(":")
    file = Path(path)
    if not path or not file.is_file():
        raise HeatproofError(f'"{name}": there is no file {path or wanted}; write file:path/to/code.py:name')
    key = f"heatproof_user_{file.resolve()}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, file)
        if spec is None or spec.loader is None:
            raise HeatproofError(f'"{name}": {file.name} is not a Python file')
        sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[key])
        except BaseException:
            del sys.modules[key]
            raise
    there = vars(sys.modules[key])
    if wanted not in there:
        raise unknown(f"name in {file.name}", wanted, [n for n, v in there.items() if callable(v) and not n.startswith("_")])
    return there[wanted]
