"""Messages from the client to workers: the spec, the code it names, and single tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import heatproof
from heatproof.files import content_hash, file_hash
from heatproof.models.cache_dir import home
from heatproof.plan.spec import Spec
from heatproof.plan.tasks import Task
from heatproof.runs.store import Store
from heatproof.userfile import CodeFile, collect_code


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to open a spec as the client has opened it.

    Attributes:
        spec: The spec, as it would be written in YAML.
        device: Device that models are loaded to.
        threads: Threads that a worker computes with.
        code: The files of ``file:`` names.
        directory: The client's working directory, which relative paths begin at.
        cache: The client's cache directory, which holds the weights of models it has trained.
        root: The run directory, or its address; it is in no log, as it may contain credentials.
        plan: The hash of its ``plan.json``.
        versions: Versions of packages that must be the same.
    """

    spec: dict[str, Any]
    device: str
    threads: int
    code: tuple[CodeFile, ...]
    directory: str
    cache: str
    root: str = field(repr=False)
    plan: str
    versions: dict[str, str]

    @property
    def key(self) -> str:
        """Identity of the opened spec."""
        code = [[file.name, file.path, file.hashes] for file in self.code]
        return content_hash(json.dumps([self.spec, self.device, self.directory, self.cache, code]))


@dataclass(frozen=True)
class TaskRequest:
    """A task as the client has planned it, so that a worker can tell whether its own is the same.

    Attributes:
        name: The task's name.
        records: The keys of its records.
        model: The model's name.
        weights: The fingerprint of the model.
        data: The name of the data.
        samples: The hash of its samples.
    """

    name: str
    records: tuple[str, ...]
    model: str
    weights: str
    data: str
    samples: str


@dataclass(frozen=True)
class Outcome:
    """A worker's report on a task; the results are in the run directory.

    Attributes:
        error: Why the run cannot go on; empty if it can.
        stopped: Whether the worker stopped before the task was finished.
        notes: Warnings, each once.
    """

    error: str = ""
    stopped: bool = False
    notes: tuple[str, ...] = ()


def make_job(spec: Spec, device: str, threads: int, store: Store) -> Job:
    """Return what workers need; the plan must have been written to the run directory."""
    content = spec.as_dict()
    return Job(
        spec=content,
        device=device,
        threads=threads,
        code=tuple(collect_code(_texts(content))),
        directory=os.getcwd(),
        cache=str(home().absolute()),
        root=store.remote.address if store.remote else str(store.root.resolve()),
        plan=file_hash(store.paths.plan),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    return {"heatproof": heatproof.__version__, "torch": torch.__version__}


def request(task: Task) -> TaskRequest:
    """Describe a task."""
    data = task.data
    samples = [(data.ids[i], data.fingerprints[i], data.labels[i]) for i in task.indices]
    return TaskRequest(
        name=task.name,
        records=tuple(task.records.keys),
        model=task.model_name,
        weights=task.model.fingerprint(),
        data=data.name,
        samples=content_hash(json.dumps([data.name, samples])),
    )


def _texts(content: Any) -> Iterator[str]:
    """Yield all texts in a spec."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value)
