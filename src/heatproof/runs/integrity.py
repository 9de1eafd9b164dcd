"""Find what is damaged in a run directory, set it aside, and rebuild what follows from the rest.

Before it computes, a run verifies the tasks of its plan (`heal`), by manifests and stamps: a file
is read only if it was touched since it was last verified. ``heatproof check`` reads every file
(`check`), and whoever uses a file verifies what it reads. A damaged task is set aside as a whole,
so that it is computed anew; a lost manifest is rebuilt from the files that it listed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from heatproof.errors import HeatproofError, join_limited
from heatproof.files import TEMP_PREFIX, file_hash
from heatproof.runs.format import (
    SUFFIXES,
    FileKind,
    Latencies,
    PlanFile,
    SameAs,
    StoredFile,
    TaskPaths,
    hashed_name,
    name_hash,
    to_json,
)
from heatproof.runs.part_files import read_part
from heatproof.runs.race_file import RaceFile
from heatproof.runs.sealed import is_older, parse_json, read_sealed, read_spec, reason_of, seal
from heatproof.runs.store import RUN_NAMES, Store
from heatproof.runs.task_files import (
    decode_prepared,
    make_manifest,
    read_rows,
    read_tensors,
    read_timings,
)

HASHING_THREADS = 8  # that hash files; hashing leaves Python's lock alone
MISSING = "it is missing"
FOREIGN = "it is not a file of this run"


@dataclass(frozen=True)
class Finding:
    """A file that is not as it was written."""

    path: Path
    problem: str


@dataclass(frozen=True)
class Checked:
    """The result of `check`.

    Attributes:
        files: Number of files that were verified.
        tasks: Number of finished tasks among them.
        rebuilt: Tasks whose manifest was lost and rebuilt.
        findings: What is damaged, missing or foreign.
    """

    files: int
    tasks: int
    rebuilt: list[str]
    findings: list[Finding]


def damage_text(store: Store) -> str:
    """Return a sentence about the damaged files that were found when a run was read."""
    names = join_limited(f"{p.relative_to(store.root)} ({why})" for p, why in store.damage.items())
    return (
        f"{store.name} has damaged files, whose results are missing: {names}. Run the spec again "
        "into the same directory to make them anew"
    )


def verify_plan(store: Store) -> None:
    """Verify all files of the tasks in the latest plan; `Store.damage` has what is wrong."""
    for findings in _all_findings(store, [task.name for task in store.plan().tasks]):
        store.damage |= {finding.path: finding.problem for finding in findings}


def heal(store: Store, tasks: Sequence[str]) -> list[Finding]:
    """Verify all files of some tasks, and set aside what is damaged.

    A file that was verified before and has not been touched since is not read again.

    Args:
        store: The run directory, which no other process may write to meanwhile.
        tasks: The names of the tasks.

    Returns:
        What was found, except for manifests that were missing and could be rebuilt.
    """
    if is_older(store.root):
        upgrade(store)
    files = store.paths.of_tasks()
    planned = set(tasks)
    of_tasks = (of_kind for task, of_kind in files.items() if task in planned)
    store.recall([path for of_kind in of_tasks for paths in of_kind.values() for path in paths])
    problems = _all_findings(store, tasks, files, read=False)
    store.remember()
    found = []
    for task, findings in zip(tasks, problems, strict=True):
        was_lost = [finding.problem for finding in findings] == [MISSING]
        if not findings and store.remote is None:
            _remove_uncommitted(store, task, files.get(task))
        elif store.remote and findings == [Finding(store.paths.manifest(task), MISSING)]:
            _rebuild(store, task)  # or another machine is about to write it
        elif findings and not (_mend(store, task, findings) and was_lost):
            found += findings  # a process that was killed has not lost anything
    if found:
        names = join_limited(f"{f.path.relative_to(store.root)} ({f.problem})" for f in found)
        warnings.warn(
            f"damaged files of {store.name} were set aside in {store.name}/damaged, and are made "
            f"anew: {names}",
            stacklevel=2,
        )
    return found


def _remove_uncommitted(store: Store, task: str, files: TaskPaths | None) -> None:
    """Delete what a process that was killed has written beside the files of a finished task."""
    manifest = store.manifest(task)
    if manifest is None or files is None:
        return
    for kind, paths in files.items():
        for path in paths:
            if path.name != manifest.files[kind].name:
                store.remove(path)


def _all_findings(
    store: Store,
    tasks: Sequence[str],
    files: Mapping[str, TaskPaths] | None = None,
    read: bool = True,
) -> list[list[Finding]]:
    """Return what is wrong with the files of each task; see ``Store.problem_of`` about ``read``."""
    files = store.paths.of_tasks() if files is None else files
    none: TaskPaths = {kind: [] for kind in SUFFIXES}
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        of_tasks = [files.get(task, none) for task in tasks]
        return list(
            pool.map(lambda t, of_task: _findings(store, t, of_task, read), tasks, of_tasks)
        )


def _findings(store: Store, task: str, found: TaskPaths, read: bool) -> list[Finding]:
    """Return what is wrong with the files of a task; nothing if it is not finished."""
    path = store.paths.manifest(task)
    manifest = store.manifest(task)
    findings = []
    expected: dict[Path, StoredFile] = {}
    kinds: dict[Path, FileKind] = {}
    if manifest is not None:
        expected = {store.paths.stored(kind, f.name): f for kind, f in manifest.files.items()}
        kinds = {store.paths.stored(kind, f.name): kind for kind, f in manifest.files.items()}
        store.damage.pop(path, None)
    elif path in store.damage:
        findings.append(Finding(path, store.damage[path]))
    elif found["rows"]:  # which are written after the other files
        findings.append(Finding(path, MISSING))
    for file in [*expected, *(f for files in found.values() for f in files if f not in expected)]:
        problem = store.problem_of(file, expected.get(file), read)
        if not problem and file in expected and (read or not store.is_trusted(file)):
            problem = store.content_problem(task, kinds[file], file)
        if problem:
            findings.append(Finding(file, problem))
    return findings


def _mend(store: Store, task: str, findings: Sequence[Finding]) -> bool:
    """Rebuild the manifest of a task if that is all that was lost, else set its files aside.

    Returns:
        Whether the task is finished.
    """
    manifest = store.paths.manifest(task)
    files = [path for paths in store.paths.of_task(task).values() for path in paths]
    reasons = "; ".join(f"{f.path.name}: {f.problem}" for f in findings)
    store.set_aside([manifest], reasons)
    only_manifest = all(finding.path == manifest for finding in findings)
    if only_manifest and _rebuild(store, task):
        return True
    store.set_aside(files, reasons)
    return False


def _rebuild(store: Store, task: str) -> bool:
    """Write the manifest of a task anew, from files whose names say what their SHA-256 is."""
    found = store.paths.of_task(task)
    if any(len(paths) != 1 for paths in found.values()):
        return False
    paths = {kind: paths[0] for kind, paths in found.items()}
    if any(store.problem_of(path) for path in paths.values()):
        return False
    try:
        rows = read_rows(paths["rows"])
        kept = read_tensors(paths["tensors"], ())
        read_timings(paths["timings"])
    except ValueError:
        return False
    files: dict[FileKind, StoredFile] = {
        kind: StoredFile(
            name=path.name, sha256=file_hash(path, length=64), size=path.stat().st_size
        )
        for kind, path in paths.items()
    }
    manifest = make_manifest(task, files, kept, rows, rebuilt=True)
    store.write(store.paths.manifest(task), seal(to_json(manifest)))
    return True


def upgrade(store: Store) -> None:
    """Take over a run of the format before this one, whose files had no hash in their names.

    What was damaged before cannot be found any more: manifests say that they were rebuilt.

    Raises:
        HeatproofError: If the run is not in a directory of this machine.
    """
    if store.remote:
        raise HeatproofError(
            f"{store.name} was written by an older version of heatproof; copy it to a directory "
            "of this machine, take it over with heatproof check --repair, and copy it back"
        )
    for folder, suffix in (*SUFFIXES.items(), ("prepared", ".safetensors")):
        for path in sorted(store.paths.folder(folder).glob(f"*{suffix}")):
            if name_hash(path.name) is None:
                name = hashed_name(path.stem, file_hash(path, length=64), suffix)
                path.replace(store.paths.stored(folder, name))
    for task in _tasks_with_files(store):
        if store.manifest(task) is None and not _rebuild(store, task):
            files = [path for paths in store.paths.of_task(task).values() for path in paths]
            store.set_aside(files, "they could not be taken over from an older version")
    for path in store.paths.folder("parts").glob("*/*.safetensors"):
        store.set_aside([path], "parts of an older version are not read")
    if store.paths.provenance.is_file():
        store.write(store.paths.provenance, seal(store.paths.provenance.read_bytes()))
    if store.paths.spec.is_file():
        spec = store.paths.spec.read_bytes()
        if not spec.startswith(b'{"sha256"'):
            store.write(store.paths.spec, seal(spec))
    content = store.paths.plan.read_bytes().replace(b'"format": 2', b'"format": 3', 1)
    content = content.replace(b'"format":2', b'"format":3', 1)
    store.write(store.paths.plan, seal(to_json(parse_json(content, PlanFile))))


def _tasks_with_files(store: Store) -> list[str]:
    """Return the tasks that have a manifest or rows."""
    written = {task for task, files in store.paths.of_tasks().items() if files["rows"]}
    return sorted(written | {path.stem for path in store.paths.manifests()})


def check(store: Store, repair: bool = False) -> Checked:
    """Verify every file of a run.

    Args:
        store: The run directory.
        repair: Whether damaged and foreign files are set aside and lost manifests rebuilt, so that
            the next run makes anew what is missing. No other process may write meanwhile.

    Raises:
        HeatproofError: If it is not a run, or one of an older format and not repaired.
    """
    names = {path.name for path in store.root.glob("*")}
    if not RUN_NAMES & names:
        raise HeatproofError(f"{store.name} is not a run of heatproof")
    if is_older(store.root):
        if not repair:
            raise HeatproofError(
                f"{store.root} was written by an older version of heatproof, without checksums; "
                f"take it over with: heatproof check --repair {store.root}"
            )
        upgrade(store)
    tasks = _tasks_with_files(store)
    of_tasks = _all_findings(store, tasks)
    others = list(_other_findings(store))
    store.remember()
    if repair:
        for task, findings in zip(tasks, of_tasks, strict=True):
            if findings:
                _mend(store, task, findings)
        for finding in others:
            store.set_aside([finding.path], finding.problem)
    found = [finding for findings in of_tasks for finding in findings] + others
    manifests = [manifest for task in tasks if (manifest := store.manifest(task))]
    rebuilt = [manifest.task for manifest in manifests if manifest.rebuilt]
    return Checked(len(_files(store)), len(manifests), rebuilt, found)


def _other_findings(store: Store) -> Iterable[Finding]:
    """Yield what is wrong with files that belong to no finished task."""
    paths = store.paths
    sealed: list[tuple[Path, Callable[[Path], object]]] = [
        (paths.spec, read_spec),
        (paths.plan, lambda path: store.plan()),
        (paths.provenance, lambda path: store.provenance()),
    ]
    if paths.latencies.is_file():
        sealed.append((paths.latencies, lambda path: read_sealed(path, Latencies)))
    if paths.race.is_file():
        sealed.append((paths.race, lambda path: read_sealed(path, RaceFile)))
    if paths.same_as.is_file():
        sealed.append((paths.same_as, lambda path: read_sealed(path, SameAs)))
    for path, read in sealed:
        try:
            read(path)
        except FileNotFoundError:
            yield Finding(path, MISSING)
        except HeatproofError as error:
            yield Finding(path, reason_of(error))
    for path in sorted(paths.folder("provenance").glob("*")):
        if store.origin(path.stem) is None or path.suffix != ".json":
            yield Finding(path, store.damage.get(path, FOREIGN))
    hashed: list[tuple[Path, Callable[[Path], object]]] = []
    hashed += [(path, _check_prepared) for path in paths.folder("prepared").glob("*")]
    hashed += [(path, read_part) for path in paths.folder("parts").glob("*/*")]
    for path, read in sorted(hashed, key=lambda found: found[0]):
        problem = FOREIGN if name_hash(path.name) is None else store.problem_of(path)
        if not problem:
            try:
                read(path)
            except ValueError as error:
                problem = str(error).partition("\n")[0]
        if problem and not path.name.startswith(TEMP_PREFIX):
            yield Finding(path, problem)
    for folder in (*SUFFIXES, "tasks"):
        for path in sorted(paths.folder(folder).glob("*")):
            known = path.suffix == ".json" if folder == "tasks" else name_hash(path.name)
            if not known and not path.name.startswith(TEMP_PREFIX):
                yield Finding(path, FOREIGN)


def _check_prepared(path: Path) -> None:
    decode_prepared(path.read_bytes())


def _files(store: Store) -> list[Path]:
    folders = (*SUFFIXES, "tasks", "provenance", "prepared", "parts")
    inside = [p for name in folders for p in store.paths.folder(name).rglob("*") if p.is_file()]
    paths = store.paths
    single = [paths.spec, paths.plan, paths.provenance, paths.latencies, paths.race, paths.same_as]
    return inside + [path for path in single if path.is_file()]
