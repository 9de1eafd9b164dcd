"""Summaries of runs on real networks, which the leaderboard and the findings are made from.

`python docs/real_runs.py RUN NAME` writes what a finished run shows to examples/real/results/NAME:
`ranking.csv`, `pairs.csv`, `agreement.csv`, `spec.yaml` to run it again, and `run.json` with the
provenance and the hashes of the others. Images, weights and rows of single images stay where they
are.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import heatproof as hp
from heatproof.analysis import wording
from heatproof.analysis.published import all_comparisons
from heatproof.report.sections.models import accuracy

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples" / "real" / "results"
CLAIMS = ROOT / "docs" / "claims.yaml"
SETTING = ["protocol", "setting", "baseline"]
DIGITS = 6


@dataclass(frozen=True)
class RealRun:
    """The summary of a run.

    Attributes:
        name: Its directory in examples/real/results.
        facts: ``run.json``.
        ranking: Means with intervals; one line per setting and method.
        pairs: Paired differences that claims are about.
        agreement: Rank correlations of all pairs of settings.
        data: The data set, as the spec names it.
    """

    name: str
    facts: dict[str, Any]
    ranking: pd.DataFrame
    pairs: pd.DataFrame
    agreement: pd.DataFrame
    data: str = ""

    @property
    def network(self) -> str:
        """The network's name, without the file that it is in."""
        return str(self.facts["model"]["name"]).rpartition(":")[2]

    def at(self, protocol: str, baseline: str) -> pd.DataFrame:
        """Return the ranking under one setting, best method first."""
        chosen = (self.ranking["protocol"] == protocol) & (self.ranking["baseline"] == baseline)
        return self.ranking[chosen]


def claims() -> list[dict[str, Any]]:
    """Read the claims of the papers."""
    listed: list[dict[str, Any]] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return listed


def claimed_pairs() -> set[tuple[str, str, str]]:
    """Return the protocol and the two methods of every claim about the difference of two."""
    return {
        (c["protocol"], *pair)
        for c in claims()
        for pair in [*c.get("ahead", ()), *c.get("close", ())]
    }


def load() -> list[RealRun]:
    """Read all summaries; one whose files were edited is refused."""
    return [_read(path.parent) for path in sorted(RESULTS.glob("*/run.json"))]


def _read(directory: Path) -> RealRun:
    facts = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    for name, digest in facts["files"].items():
        if file_digest(directory / name) != digest:
            sys.exit(f"{directory / name} is not what the run wrote; summarize the run again")
    kinds = dict.fromkeys(SETTING, str)
    tables = [
        pd.read_csv(directory / f"{n}.csv", keep_default_na=False, na_values=[""], dtype=kinds)
        for n in ("ranking", "pairs", "agreement")
    ]
    for table in tables:
        text = [column for column in SETTING if column in table]
        table[text] = table[text].fillna("")
    spec = yaml.safe_load((directory / "spec.yaml").read_text(encoding="utf-8"))
    return RealRun(directory.name, facts, *tables, spec["data"]["name"])


def order(a: pd.Series, b: pd.Series) -> int:
    """Return 1 or −1 for the better of two lines of a ranking, and 0 if they share a letter."""
    groups = [set(re.findall(r"[a-z]\d*", str(line["letters"]))) for line in (a, b)]
    if pd.isna(a["rank"]) or pd.isna(b["rank"]) or groups[0] & groups[1]:
        return 0
    return 1 if a["rank"] < b["rank"] else -1


def may_be_best(lines: pd.DataFrame, among: Sequence[str]) -> list[str]:
    """Return the methods of some that none of these is ahead of, by the letters of all."""
    chosen = lines[lines["method"].isin(among) & lines["rank"].notna()]
    rows = [line for _, line in chosen.iterrows()]
    return [str(a["method"]) for a in rows if not any(order(b, a) > 0 for b in rows)]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def summarize(directory: Path, out: Path) -> None:
    """Write the summary of a finished run of one model."""
    run = hp.Result.load(directory)
    if run.unfinished:
        sys.exit(f"{directory} is not finished: {len(run.unfinished)} tasks have no rows")
    if len(run.models) != 1:
        sys.exit(f"{directory} has {len(run.models)} models; summarize runs of one")
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "ranking": ranking(run),
        "pairs": pairs(run),
        "agreement": run.agreement(by="setting"),
    }
    for name, table in tables.items():
        lines = table.drop(columns="model", errors="ignore").round(DIGITS)
        lines.to_csv(out / f"{name}.csv", index=False)
    spec = yaml.safe_dump(run.provenance.spec, sort_keys=False, allow_unicode=True, width=100)
    (out / "spec.yaml").write_text(spec, encoding="utf-8")
    files = [*(f"{name}.csv" for name in tables), "spec.yaml"]
    facts = provenance(run) | {"files": {name: file_digest(out / name) for name in files}}
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (out / "run.json").write_text(text + "\n", encoding="utf-8")


def ranking(run: hp.Result) -> pd.DataFrame:
    """Return the summary with letters, and whether a method may be the best of its setting."""
    lines = run.summary()
    letters: dict[tuple[str, ...], str] = {}
    best: set[tuple[str, ...]] = set()
    for scores in run.settings:
        tests = scores.pairs
        letters |= {
            (*scores.key, m): text for m, text in zip(tests.methods, tests.letters, strict=True)
        }
        real = [m for m in tests.methods if not run.is_control(m)]
        best |= {(*scores.key, method) for method in tests.best(real)}
    keys = list(lines[["model", *SETTING, "method"]].itertuples(index=False, name=None))
    lines["letters"] = [letters.get(key, "") for key in keys]
    lines["may_be_best"] = [key in best for key in keys]
    lines["control"] = lines["method"].map(run.is_control)
    lines["passes"] = lines["method"].map(run.passes)
    return lines.sort_values([*SETTING, "rank"], kind="stable")


def pairs(run: hp.Result) -> pd.DataFrame:
    """Return the difference of every pair that a claim names, with its adjusted p-value.

    There is no p-value for methods at two layers, which are not ranked together.
    """
    tested = {
        (*scores.key[1:], a, b): float(scores.pairs.adjusted[i, j])
        for scores in run.settings
        for i, a in enumerate(scores.pairs.methods)
        for j, b in enumerate(scores.pairs.methods)
    }
    found = []
    for protocol, a, b in sorted(claimed_pairs()):
        if not {a, b} <= set(run.methods) or protocol not in {key[0] for key in run.protocols}:
            continue
        for line in run.difference(a, b, protocol=protocol).to_dict("records"):
            key = tuple(line[column] for column in SETTING)
            ends = [line[end] for end in ("difference", "low", "high")]
            if not run.protocols[key].higher_is_better:
                ends = [-ends[0], -ends[2], -ends[1]]
            found.append((*key, a, b, *ends, tested.get((*key, a, b), float("nan")), line["n"]))
    names = [*SETTING, "a", "b", "ahead", "low", "high", "p", "n"]
    return pd.DataFrame(found, columns=names)


def provenance(run: hp.Result) -> dict[str, Any]:
    """Return what computed a run, on what, and what it has cost."""
    record = run.provenance
    (model,) = run.models
    facts = run.facts(model)
    assert facts is not None
    correct, labelled = run.accuracy[model]
    timings = [timing for task in run.tasks if (timing := run.store.timings(task.name))]
    passes = Counter[str]()
    for timing in timings:
        for count in timing.passes:
            passes[count.kind] += count.images
    rows = run.to_frame(samples=True).drop(columns="message").round(DIGITS)
    return {
        "heatproof": record.heatproof,
        "git": record.git,
        "python": record.python,
        "packages": record.packages,
        "hardware": record.hardware.model_dump(),
        "started": record.started,
        "model": {
            "name": model,
            "fingerprint": facts.fingerprint,
            "parameters": facts.parameters,
            "backend": facts.backend,
            "size": facts.size,
            "correct": correct,
            "labelled": labelled,
        },
        "fine_tuning": _fine_tuning(run, model),
        "samples": str(run.counts),
        "hours": round(sum(t.seconds for timing in timings for t in timing.seconds) / 3600, 3),
        "passes": dict(passes),
        "verdicts": list(_verdicts(run)),
        "caveats": run.caveats,
        "beside_print": list(_beside_print(run)),
        "rows": hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest(),
    }


def _verdicts(run: hp.Result) -> Iterator[str]:
    for evidence in run.evidence:
        for number, key in enumerate(evidence.standing.settings):
            alone = evidence.under([number])
            if alone.real:
                yield wording.by_protocol(alone, run.setting_labels[key], None)


def _beside_print(run: hp.Result) -> Iterator[dict[str, Any]]:
    """Yield the tables that the run is set beside, if it is said whose network this is."""
    for comparison in all_comparisons(run):
        if not comparison.same_as or not comparison.correlations:
            continue
        correlation = comparison.correlations[0]
        yield {
            "table": comparison.table.name,
            "network": comparison.same_as[0].network,
            "over": correlation.number,
            "correlation": [round(end, DIGITS) for end in correlation.estimate],
            "n": max(line.images for line in comparison.lines),
            "verdicts": dict(Counter(line.verdict for line in comparison.lines)),
            "missing": sum(comparison.missing.values()),
        }


def _fine_tuning(run: hp.Result, model: str) -> dict[str, Any] | None:
    """Return how the model was fine-tuned, and its accuracy on the evaluated images.

    For each reading, such as ``worst``, there are value, low and high before and after, and of the
    paired change.
    """
    views = [view for view in run.networks(model) if view.is_fine_tuned]
    if not views:
        return None
    facts = run.facts(model, views[0])
    history = facts.fine_tuning.model_dump() if facts and facts.fine_tuning else {}
    (table,) = accuracy.content(run)
    (lines,) = table.models.values()
    accuracies = {
        reading: {line.label: list(line.estimates[column]) for line in lines}
        for column, reading in enumerate(table.columns)
    }
    return {**history, "evaluated": lines[0].n, "accuracies": accuracies}


if __name__ == "__main__":
    summarize(Path(sys.argv[1]), RESULTS / sys.argv[2])
