"""JSON files that begin with their own checksum, so that no changed byte goes unnoticed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from heatproof.errors import HeatproofError
from heatproof.runs.format import FORMAT, UPGRADABLE, PlanFile, RunPaths
from heatproof.text import clip

Content = TypeVar("Content", bound=BaseModel)


def seal(content: bytes) -> bytes:
    """Return a JSON object with the SHA-256 of its bytes as a first entry."""
    return _seal_head(hashlib.sha256(content).hexdigest()) + content[1:]


def _seal_head(digest: str) -> bytes:
    return f'{{"sha256": "{digest}",'.encode()


def seal_parts(parts: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the parts of a JSON object as `seal` returns it whole, which would take much memory.

    Args:
        parts: Returns the object in parts, the first of which begins with its bracket; it is called
            twice.
    """
    sha = hashlib.sha256()
    for part in parts():
        sha.update(part)
    again = iter(parts())
    yield _seal_head(sha.hexdigest()) + next(again)[1:]
    yield from again


_FORMAT = re.compile(rb'\{(?:"sha256": "[0-9a-f]{64}",)?\s*"format": ?(\d{1,9})\b')
_SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})",')


def unseal(content: bytes) -> bytes:
    """Return the JSON object that was sealed.

    Raises:
        ValueError: If a byte of it was changed.
    """
    found = _SEAL.match(content)
    if not found:
        raise ValueError("it does not begin with a checksum")
    inner = b"{" + content[found.end() :]
    if hashlib.sha256(inner).hexdigest() != found[1].decode():
        raise ValueError("its checksum does not match")
    return inner


def read_sealed(path: Path, kind: type[Content]) -> Content:
    """Read a sealed JSON file of a run and validate it.

    Raises:
        HeatproofError: If the file is damaged, or was written by another version of heatproof.
    """
    raw = path.read_bytes()
    try:
        return parse_json(unseal(raw), kind)
    except ValueError as error:
        if kind is PlanFile and written_format(path) not in (None, FORMAT):
            raise HeatproofError(
                f"{path} was written by another version of heatproof; run its spec again into the "
                f"same directory, or take it over with: heatproof check --repair {path.parent}"
            ) from None
        raise damaged(path, str(error)) from None


def parse_json(content: bytes, kind: type[Content]) -> Content:
    """Validate JSON; raises ValueError with the first problem."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = clip(".".join(map(str, problem["loc"])))
        raise ValueError(f"{where}: {problem['msg']}" if where else problem["msg"]) from None


def read_spec(path: Path) -> dict[str, Any]:
    """Read ``spec.json``, also as older versions have written it.

    Raises:
        HeatproofError: If the file is damaged.
    """
    content = path.read_bytes()
    try:
        spec = json.loads(content if is_older(path.parent) else unseal(content))
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    if not isinstance(spec, dict):
        raise damaged(path, "it is not a JSON object")
    return spec


def is_older(root: Path) -> bool:
    """Return whether a run was written in the format before this one."""
    return written_format(RunPaths(root).plan) == UPGRADABLE


def written_format(plan: Path) -> int | None:
    """Return the format that a ``plan.json`` claims; None if it cannot be read."""
    try:
        with plan.open("rb") as file:
            begins = _FORMAT.match(file.read(200))
        if begins:  # a plan can have millions of records
            return int(begins[1])
        content = json.loads(plan.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    found = content.get("format", 0)
    return found if isinstance(found, int) else 0


LONGEST_PROBLEM = 1000  # characters, since names of a run may be of any length


class DamagedFile(HeatproofError):
    """A file of a run that cannot be read as it was written."""

    def __init__(self, path: Path, problem: str, cure: str):
        super().__init__(f"{path} is damaged ({problem}); {cure}")
        self.problem = problem


def damaged(path: Path, problem: str) -> DamagedFile:
    """Return the error for a file without which a run cannot be read."""
    cure = "run the spec again into the same directory to mend it: finished tasks stay as they are"
    return DamagedFile(path, clip(problem, LONGEST_PROBLEM), cure)


def reason_of(error: HeatproofError) -> str:
    """Return what is wrong with a file, of an error that `damaged` has made."""
    return getattr(error, "problem", str(error))
