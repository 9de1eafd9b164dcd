"""One table over runs, models and people, with only what can be compared in one table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import GROUP, AggregateDraws
from heatproof.analysis.ranks import CONTROL
from heatproof.analysis.settings import scored_settings
from heatproof.errors import HeatproofError, join_limited
from heatproof.methods import METHODS
from heatproof.results.result import JSON_SCHEMA, Result
from heatproof.results.submission import Submission, read_submission
from heatproof.results.tables import TERMINAL_WIDTH, html_table, records, write_json
from heatproof.runs.addresses import to_read
from heatproof.runs.format import ProtocolFacts, is_run

COLUMNS = [
    "place",
    "method",
    "model",
    "run",
    "mean",
    "low",
    "high",
    "letters",
    "n",
    "may_be_best",
    "control",
]
MOST_LINES = 30  # of a table in a repr
MOST_NAME = 44  # characters of an entry in a repr
SUBMITTED = ".json"
SUBMISSION = ".heatproof.json"  # how names of submissions end that are found in directories


@dataclass(frozen=True)
class Board:
    """Scores of one protocol on the same samples.

    Attributes:
        protocol: What is on record about the protocol.
        samples: Ids of the samples that all entries have been evaluated on.
        lines: One line per run, model and method, best first: ``place``, ``method``, ``model``,
            ``run``, ``mean`` with its 95 % interval ``low`` to ``high``, ``letters`` (entries that
            share one cannot be told apart), ``n``, the samples that the mean is over,
            ``may_be_best``, whether no other entry is ahead of it, and ``control``, whether it is a
            map that never looks at the model. The place is that of the mean, and equal means share
            it; an entry without a score on more than a tenth of the samples has none.
    """

    protocol: ProtocolFacts
    samples: frozenset[str]
    lines: pd.DataFrame

    @property
    def title(self) -> str:
        """The protocol with its version and settings, and the number of samples."""
        facts = self.protocol
        settings = ", ".join(filter(None, (facts.setting, facts.baseline)))
        better = "higher" if facts.higher_is_better else "lower"
        return (
            f"{facts.id} version {facts.version} ({settings}), {len(self.samples)} samples; "
            f"{better} is better"
        )


def place_and_mark(line: Mapping[str, Any], samples: int) -> tuple[str, str]:
    """Return the place and letters of a line as text, and whether it is a control or unranked.

    Args:
        line: A line of a table.
        samples: The samples of the table; a mean over fewer has their number.
    """
    more = f", n = {line['n']}" if line["n"] != samples else ""
    more += ", control" if line["control"] else ""
    if pd.isna(line["place"]):
        return "–", f"not ranked{more}"
    return f"{line['place']:.0f}", f"{line['letters']}{more}".removeprefix(", ")


@dataclass(frozen=True)
class RunNote:
    """Maker, date and version of a run.

    Attributes:
        by: Who submitted it; empty for a run directory.
        started: When it was started.
        heatproof: The version that made it.
        spec: Hash of its spec.
        report: Where its report is on the web; empty if it is nowhere.
        root: Its directory; None for a submission.
    """

    by: str
    started: str
    heatproof: str
    spec: str
    report: str = ""
    root: Path | None = None


@dataclass(frozen=True)
class Leaderboard:
    """Tables over several runs; what cannot be compared is in different ones.

    Attributes:
        boards: The tables.
        notes: Why a protocol has several tables.
        runs: Who made each run, when and with what, by its name in the tables.
    """

    boards: list[Board]
    notes: list[str]
    runs: Mapping[str, RunNote]

    def to_frame(self) -> pd.DataFrame:
        """Return all tables as one frame, with the protocol, its version and the samples."""
        frames = [
            board.lines.assign(
                protocol=board.protocol.id,
                version=board.protocol.version,
                setting=board.protocol.setting,
                baseline=board.protocol.baseline,
                samples=len(board.samples),
                table=number,
            )
            for number, board in enumerate(self.boards, 1)
        ]
        return pd.concat(frames, ignore_index=True)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, and write it to a file if one is named.

        The keys are ``schema`` (1; raised when a key changes), ``notes``, ``runs`` and ``lines``,
        a list of objects with the columns of ``to_frame``. What is not a number is null.
        """
        runs = {name: {**vars(note), "root": None} for name, note in self.runs.items()}
        lines = records(self.to_frame())
        return write_json(
            {"schema": JSON_SCHEMA, "notes": self.notes, "runs": runs, "lines": lines}, path
        )

    def __repr__(self) -> str:
        lines = []
        for board in self.boards:
            lines.append(board.title[:TERMINAL_WIDTH])
            for line in board.lines.head(MOST_LINES).to_dict("records"):
                name = f"{line['method']} · {line['model']} · {line['run']}"
                name = name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…"
                has_interval = pd.notna(line["low"])
                interval = f"({line['low']:.3f} … {line['high']:.3f})" if has_interval else ""
                place, mark = place_and_mark(line, len(board.samples))
                text = f"{place:>4}  {name:<{MOST_NAME}}  {line['mean']:.3f}  {interval}"
                lines.append(f"{text}  {mark}"[:TERMINAL_WIDTH].rstrip())
            if len(board.lines) > MOST_LINES:
                lines.append(f"      and {len(board.lines) - MOST_LINES} more")
            lines.append("")
        return "\n".join([*lines, *self.notes]).rstrip()

    def _repr_html_(self) -> str:
        shown = self.to_frame()[[*COLUMNS, "protocol", "setting", "baseline"]]
        return html_table(shown.astype(object).where(shown.notna(), "–"))


@dataclass(frozen=True)
class _Entry:
    """The scores of one protocol, model and run."""

    run: str
    model: str
    protocol: ProtocolFacts
    rows: pd.DataFrame
    draws: dict[str, np.ndarray]  # of methods whose score is aggregated
    controls: frozenset[str]

    @property
    def samples(self) -> frozenset[str]:
        evaluated = self.rows.loc[self.rows["status"] != "skipped", "sample"]
        return frozenset(str(sample) for sample in evaluated.unique())


def leaderboard(runs: Sequence[Result | str | Path]) -> Leaderboard:
    """Set the scores of several runs in tables.

    Scores are in one table if they are of the same version of a protocol with the same settings
    and baseline, on the same samples. Others are in tables of their own, with a note.

    Args:
        runs: Results, run directories, directories that contain run directories and submissions,
            or submissions: JSON files of ``heatproof leaderboard RUN --submit FILE``.

    Returns:
        The tables, in the order of the runs.

    Raises:
        HeatproofError: If there is no run, or no score.
    """
    results = [result for run in runs for result in _results(run)]
    if not results:
        raise HeatproofError(f"there is no run in {join_limited(str(run) for run in runs)}")
    roots = [r.store.root if isinstance(r, Result) else r.path for r in results]
    names = run_names(roots)
    groups: dict[tuple[str, frozenset[str]], list[_Entry]] = {}
    for name, result in zip(names, results, strict=True):
        entries = _entries(name, result) if isinstance(result, Result) else result.entries(name)
        for entry in entries:
            groups.setdefault((entry.protocol.canonical, entry.samples), []).append(entry)
    boards = [_board(entries, samples) for (_, samples), entries in groups.items()]
    boards = [board for board in boards if len(board.lines)]
    if not boards:
        raise HeatproofError(f"the runs {join_limited(names)} have no scores")
    notes = {n: _run_note(result) for n, result in zip(names, results, strict=True)}
    return Leaderboard(boards, list(_notes(groups)), notes)


@dataclass(frozen=True)
class _Submitted:
    """A submission that was read."""

    path: Path
    content: Submission

    def entries(self, name: str) -> Iterator[_Entry]:
        for scores in self.content.scores:
            controls = frozenset(filter(_is_control, scores.methods))
            yield _Entry(name, scores.model, scores.protocol, scores.rows, {}, controls)


def _is_control(method: str) -> bool:
    """Return whether a method is a control by its name, which is all that a submission has."""
    name = re.split(r"[(@|]", method)[0]
    return name in METHODS and METHODS[name].family == CONTROL


def _run_note(result: Result | _Submitted) -> RunNote:
    if isinstance(result, _Submitted):
        found = result.content
        return RunNote(found.by, found.started, found.heatproof, found.spec, found.report)
    facts = result.provenance
    root = result.store.root
    return RunNote("", facts.started, facts.heatproof, result.spec_hash, root=root)


def _results(run: Result | str | Path) -> Iterator[Result | _Submitted]:
    """Yield a result or submission, or those of all runs and submissions below a directory."""
    if isinstance(run, Result):
        yield run
        return
    root = to_read(run)
    if root.is_file() and root.suffix == SUBMITTED:
        yield _Submitted(root, read_submission(root))
        return
    if not root.is_dir():
        raise HeatproofError(f"{root} is not a directory")
    found = [root] if is_run(root) else sorted(p.parent for p in root.rglob("plan.json"))
    for directory in found:
        if is_run(directory):
            yield Result.load(directory)
    if not is_run(root):
        for path in sorted(root.rglob(f"*{SUBMISSION}")):
            yield _Submitted(path, read_submission(path))


def run_names(roots: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that no other path has."""
    parts = [root.absolute().parts for root in roots]
    names = []
    for own in parts:
        lengths = range(1, len(own) + 1)
        others = [other for other in parts if other != own]
        alone = (n for n in lengths if all(other[-n:] != own[-n:] for other in others))
        names.append("/".join(own[-next(alone, len(own)) :]))
    return names


def _entries(name: str, result: Result) -> Iterator[_Entry]:
    protocols = {facts.key: facts for facts in result.store.plan().protocols}
    controls = frozenset(filter(result.is_control, result.methods))
    for key, rows in result.rows.groupby(GROUP, sort=False, observed=True):
        model, protocol, setting, baseline = (str(part) for part in key)
        draws = {k[-1]: drawn for k, drawn in result.aggregate_draws.items() if k[:-1] == key}
        yield _Entry(name, model, protocols[protocol, setting, baseline], rows, draws, controls)


def _board(entries: Sequence[_Entry], samples: frozenset[str]) -> Board:
    """Rank the methods of several runs and models on the same samples."""
    protocol = entries[0].protocol
    labels: dict[str, tuple[str, str, str]] = {}
    frames = []
    draws: dict[str, np.ndarray] = {}
    controls: set[str] = set()
    for number, entry in enumerate(entries):
        methods = [str(method) for method in entry.rows["method"].unique()]
        named = {method: f"{number} {method}" for method in methods}
        labels |= {label: (method, entry.model, entry.run) for method, label in named.items()}
        columns = entry.rows[["sample", "cluster", "value"]].astype({"sample": str, "cluster": str})
        frames.append(columns.assign(method=entry.rows["method"].astype(str).map(named)))
        draws |= {named[method]: drawn for method, drawn in entry.draws.items()}
        controls |= {named[method] for method in methods if method in entry.controls}
    facts = dict(zip(GROUP, ("", protocol.id, protocol.setting, protocol.baseline), strict=True))
    rows = pd.concat(frames, ignore_index=True).assign(**facts)
    of_group: AggregateDraws = {("", *protocol.key, label): drawn for label, drawn in draws.items()}
    limits = {protocol.key: protocol.range}
    (scores,) = scored_settings(rows, aggregate_draws=of_group, limits=limits)
    letters = dict(zip(scores.pairs.methods, scores.pairs.letters, strict=True))
    best = set(scores.pairs.best(scores.pairs.methods))
    sign = -1 if protocol.higher_is_better else 1
    lines = [
        (
            scores.ranks[i],
            *labels[label],
            scores.means[i],
            *scores.ends[:, i],
            letters.get(label, ""),
            int(scores.counts[i]),
            label in best,
            label in controls,
        )
        for i, label in enumerate(scores.methods)
        if scores.counts[i]
    ]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    order = (sign * frame["mean"]).argsort(kind="stable")
    frame = frame.iloc[order].sort_values("place", kind="stable", na_position="last")
    return Board(protocol, samples, frame.reset_index(drop=True))


def _notes(groups: dict[tuple[str, frozenset[str]], list[_Entry]]) -> Iterator[str]:
    """Say which scores of the same protocol and settings are not in one table, and why."""
    by_setting: dict[tuple[str, str, str], list[list[_Entry]]] = {}
    for entries in groups.values():
        by_setting.setdefault(entries[0].protocol.key, []).append(entries)
    for (name, setting, baseline), tables in by_setting.items():
        if len(tables) < 2:
            continue
        versions = {entries[0].protocol.version for entries in tables}
        reason = "they have other samples" if len(versions) == 1 else "versions or samples differ"
        where = "; ".join(
            f"{join_limited(dict.fromkeys(e.run for e in entries))} "
            f"({len(entries[0].samples)} samples)"
            for entries in tables
        )
        settings = ", ".join(filter(None, (setting, baseline)))
        yield f"{name} ({settings}) has {len(tables)} tables, as {reason}: {where}"
