"""The scores of a run in one file that others can rank: what people submit to a leaderboard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from heatproof.analysis.intervals import GROUP
from heatproof.errors import HeatproofError
from heatproof.protocols import PROTOCOLS
from heatproof.results.result import Result
from heatproof.runs.format import ProtocolFacts
from heatproof.runs.sealed import DamagedFile, read_sealed, seal
from heatproof.text import counted, printable

MOST_PROBLEMS = 6  # that are listed
Name = Annotated[str, Field(max_length=200)]


class SubmittedScores(BaseModel):
    """The scores of a model under one protocol, per method and sample; None where there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    protocol: ProtocolFacts
    samples: list[str]
    clusters: list[str]  # samples of one are not independent
    methods: dict[str, list[float | None]]

    @property
    def rows(self) -> pd.DataFrame:
        """The scores as a frame with a line per method and sample."""
        frames = [
            pd.DataFrame(
                {"method": method, "sample": self.samples, "cluster": self.clusters}
            ).assign(value=pd.Series(values, dtype=float), status="ok")
            for method, values in self.methods.items()
        ]
        return pd.concat(frames, ignore_index=True)


class Submission(BaseModel):
    """``heatproof leaderboard RUN --submit FILE``: scores of a run, and who made them with what.

    Attributes:
        submission: The version of this format.
        by: Who submits it.
        report: Where its report is, an address of the web; empty if nowhere.
        run: Name of the run.
        heatproof: The version that made the run.
        started: When the run was started.
        spec: Hash of its spec.
        scores: The scores, by model and protocol.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    submission: Literal[1] = 1
    by: Name
    report: Annotated[str, Field(pattern=r"^(https?://\S+)?$", max_length=2000)] = ""
    run: Name
    heatproof: Name
    started: Name
    spec: Name
    scores: Annotated[list[SubmittedScores], Field(min_length=1)]


def write_submission(run: Result | str | Path, out: Path, *, by: str, report: str = "") -> Path:
    """Write the scores of a run for a leaderboard.

    Args:
        run: A result or a run directory.
        out: The file.
        by: Who submits it.
        report: Where its report can be read: an address that begins with ``https://``.

    Returns:
        The file.

    Raises:
        HeatproofError: If the run has no scores of single images, or the address is none.
    """
    result = run if isinstance(run, Result) else Result.load(run)
    protocols = {facts.key: facts for facts in result.plan.protocols}
    scores = []
    for key, rows in result.rows.groupby(GROUP, sort=False, observed=True):
        model, *setting = map(str, key)
        facts = protocols[setting[0], setting[1], setting[2]]
        if facts.aggregates:  # scores of all samples together cannot be tested from a file
            continue
        rows = rows[rows["status"] != "skipped"]
        if not rows["value"].notna().any():
            continue
        clusters = rows.drop_duplicates("sample").set_index("sample")["cluster"].astype(str)
        table = rows.pivot(index="method", columns="sample", values="value")
        table = table.reindex(columns=clusters.index)
        scores.append(
            SubmittedScores(
                model=model,
                protocol=facts,
                samples=clusters.index.astype(str).tolist(),
                clusters=clusters.tolist(),
                methods={
                    str(method): [float(v) if math.isfinite(v) else None for v in values]
                    for method, values in zip(table.index, table.to_numpy(float), strict=True)
                },
            )
        )
    if not scores:
        raise HeatproofError(f"{result.name} has no scores of single images to submit")
    facts_of_run = result.provenance
    try:
        submission = Submission(
            by=by,
            report=report,
            run=printable(result.name)[:200],
            heatproof=facts_of_run.heatproof,
            started=facts_of_run.started,
            spec=result.spec_hash,
            scores=scores,
        )
    except ValueError as error:
        raise HeatproofError(
            "--by takes a name of at most 200 characters, and --report an address that begins "
            "with https://"
        ) from error
    out.write_bytes(seal(submission.model_dump_json(indent=0).encode()))
    return out


def read_submission(path: Path) -> Submission:
    """Read a submission, and check its schema, its checksum and what it says about itself.

    Raises:
        HeatproofError: If it is damaged or contradicts itself, or if a protocol has another
            version here, whose scores are not the same.
    """
    try:
        found = read_sealed(path, Submission)
    except DamagedFile as error:
        cure = "write it again from its run: heatproof leaderboard RUN --submit FILE"
        raise DamagedFile(path, error.problem, cure) from None
    problems = [problem for scores in found.scores for problem in _problems(scores)]
    if problems:
        more = len(problems) - MOST_PROBLEMS
        listed = "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise HeatproofError(f"{path} cannot be ranked: {printable(listed)}")
    return found


def _problems(scores: SubmittedScores) -> Iterator[str]:
    """Say what is wrong with the scores of a model under a protocol."""
    facts = scores.protocol
    where = f"{facts.id} on {scores.model}"
    known = next((entry for entry in PROTOCOLS if entry.id == facts.id), None)
    if known is None:
        yield f"{where}: there is no protocol {facts.id} here"
    elif known.cls.version != facts.version:
        yield (
            f"{where} is of version {facts.version} of the protocol, and this heatproof has "
            f"{known.cls.version}: run it again, or use the heatproof that made it"
        )
    if facts.aggregates:
        yield f"{where}: it has no scores of single images"
    count = len(scores.samples)
    if len(set(scores.samples)) < count or len(scores.clusters) != count or not scores.methods:
        yield f"{where}: samples are listed twice, or clusters or methods are missing"
    low, high = facts.range or (-math.inf, math.inf)
    slack = 1e-6 * (high - low) if facts.range else 0.0
    for method, values in scores.methods.items():
        if len(values) != count:
            yield (
                f"{where}: {method} has {counted(len(values), 'score')}, and there are "
                f"{counted(count, 'sample')}"
            )
        given = [v for v in values if v is not None]
        if not all(math.isfinite(v) and low - slack <= v <= high + slack for v in given):
            yield f"{where}: {method} has a score outside {low:g} to {high:g}"
