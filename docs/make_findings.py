"""Write docs/findings.md from docs/claims.yaml and the summaries in examples/real/results.

What the papers say, and what is found on paperbirds, is taken from the tables of the papers' pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from real_runs import RealRun, claims, load, may_be_best, order

from heatproof.analysis import wording
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import Estimate
from heatproof.report.sections.stability import SAME_FROM

PAGE = Path(__file__).parent / "findings.md"
TRANSFORM = re.compile(r"\|(?=\w)")  # as in ig|abs
CELL_BAR = r"\\|"
PAPERS = {
    "hesse2024": "Hesse et al. 2024",
    "picard2024": "Picard et al. 2024",
    "li2024": "Li et al. 2024",
    "rao2024": "Rao et al. 2024",
}
HEAD = f"""# Findings: what the papers claim, on paperbirds and on real networks

The claims of the four papers, as their pages quote them, with what is found on paperbirds and on
the networks of the [leaderboard](leaderboard.md). `python docs/make_findings.py` writes this page
from the pages of the papers, from [claims.yaml](claims.yaml) and from the summaries in
[examples/real/results](../examples/real/results); every number on real networks is in the CSV
files there, under the name of the run, beside the spec that computes it. How a verdict on
paperbirds came about is on the page of the paper. On real networks:

- *One method above another*: **{wording.HOLDS}** if it is ahead with p ≤ {LEVEL}, adjusted for all
  pairs of methods of the setting; **{wording.DOES_NOT_HOLD}** if the other is ahead; else
  **{wording.UNDECIDED}**. Differences are given with the 95 % interval of a single difference; the
  verdict follows from p alone.
- *The best methods are of a kind*: **{wording.HOLDS}** if all methods that may be the best are,
  among those that the paper has; **{wording.DOES_NOT_HOLD}** if none is; else
  **{wording.UNDECIDED}**.
- *One method above another at two layers*, which are not ranked together: decided by whether the
  interval of the paired difference excludes zero, each pair alone.
- *Two methods are close*: decided if the whole interval of their difference is within the margin
  that stands with the claim, or beyond it.
- *An accuracy is kept, or raised*: decided if the whole interval of the paired change is within a
  point, or above zero.
- *Two rankings are alike*: decided if the whole interval of their rank correlation is
  on one side of {SAME_FROM}.

Where several runs or pairs are about a claim, their verdicts are counted. The networks and images
are not the papers', so a verdict says whether a finding carries over to these networks.
"""


class Finding(NamedTuple):
    """What one run says about one part of a claim."""

    run: str
    text: str
    verdict: str


def findings(claim: Mapping[str, Any], runs: Sequence[RealRun]) -> Iterator[Finding]:
    """Yield what the runs say about a claim: of each network, the run with the most to say."""
    of_network: dict[str, list[Finding]] = {}
    sizes: dict[str, int] = {}
    for run in runs:
        found = list(_of_run(claim, run))
        if found and _size(claim, run) > sizes.get(run.network, 0):
            of_network[run.network] = found
            sizes[run.network] = _size(claim, run)
    for found in of_network.values():
        yield from found


def _size(claim: Mapping[str, Any], run: RealRun) -> int:
    """Return the number of images of a claim about accuracy, else that of methods."""
    if "fine_tuning" in claim:
        return int(run.facts["fine_tuning"]["evaluated"])
    return 1 + run.ranking["method"].nunique() if len(run.ranking) else 1


def _of_run(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    if "ahead" in claim:
        yield from _ahead(claim, run)
    elif "close" in claim:
        yield from _close(claim, run)
    elif "best" in claim:
        yield from _best(claim, run)
    elif "agree" in claim:
        yield from _agree(claim, run)
    elif "fine_tuning" in claim and run.facts["fine_tuning"]:
        yield _fine_tuning(claim, run)


def _ahead(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    for a, b in claim["ahead"]:
        lines = _differences(run, claim["protocol"], a, b)
        for line in lines:
            found = Estimate(*(line[end] for end in ("ahead", "low", "high")))
            if _layer(run, a) != _layer(run, b):
                how, shown = "at two layers", found.low > 0 or found.high < 0
            else:
                how, shown = _p(line["p"]), line["p"] <= LEVEL
            text = f"`{a}` − `{b}`: {signed(found)}, {how}, n = {line['n']}"
            verdict = wording.of_claim(shown and found.value > 0, shown and found.value < 0)
            yield Finding(run.name, text, verdict)
        if not lines:
            yield from _ahead_by_letters(claim, run, a, b)


def _differences(run: RealRun, protocol: str, a: str, b: str) -> list[dict[str, Any]]:
    chosen = (run.pairs["protocol"] == protocol) & (run.pairs["a"] == a)
    return run.pairs[chosen & (run.pairs["b"] == b)].to_dict("records")


def _layer(run: RealRun, method: str) -> str:
    """Return the layer that a method explains; methods of two layers are not tested together."""
    lines = run.ranking[run.ranking["method"] == method] if len(run.ranking) else run.ranking
    return str(lines["layer"].iloc[0]) if len(lines) and "layer" in lines else ""


def _close(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    margin = claim["within"]
    for a, b in claim["close"]:
        for line in _differences(run, claim["protocol"], a, b):
            found = Estimate(*(line[end] for end in ("ahead", "low", "high")))
            verdict = wording.of_claim(
                -margin <= found.low and found.high <= margin,
                found.low > margin or found.high < -margin,
            )
            yield Finding(run.name, f"`{a}` − `{b}`: {signed(found)}, n = {line['n']}", verdict)


def _ahead_by_letters(claim: Mapping[str, Any], run: RealRun, a: str, b: str) -> Iterator[Finding]:
    """Judge two methods by their letters, which the same tests of all pairs give.

    This is for pairs whose difference the summary does not have.
    """
    lines = run.ranking[run.ranking["protocol"] == claim["protocol"]]
    for baseline in dict.fromkeys(lines["baseline"]):
        at = run.at(claim["protocol"], baseline).set_index("method")
        if not {a, b} <= set(at.index):
            continue
        found = order(at.loc[a], at.loc[b])
        means = [
            f"`{m}` {wording.estimate(Estimate(*at.loc[m, ['mean', 'low', 'high']]))}"
            for m in (a, b)
        ]
        n = min(at.loc[m, "n"] for m in (a, b))
        text = f"{', '.join(means)}, p {'≤' if found else '>'} {LEVEL}, n = {n}"
        yield Finding(run.name, text.replace("-0.", "−0."), wording.of_claim(found > 0, found < 0))


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _best(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    lines = run.ranking[run.ranking["protocol"] == claim["protocol"]]
    for baseline in dict.fromkeys(lines["baseline"]):
        at = run.at(claim["protocol"], baseline)
        present = [method for method in claim["among"] if method in set(at["method"])]
        possible = may_be_best(at, present)
        if not possible or not set(claim["best"]) & set(present):
            continue
        inside = [method in claim["best"] for method in possible]
        verdict = wording.of_claim(all(inside), not any(inside))
        count = f"{len(present)} of the paper's methods, n = {at['n'].max()}"
        text = f"{wording.names(possible)} may be the best of {count}"
        yield Finding(run.name, text, verdict)


def _agree(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    a, b = claim["agree"]
    firsts, seconds = (run.agreement[c].astype(str).str.split(" · ").str[0] for c in "ab")
    lines = run.agreement[((firsts == a) & (seconds == b)) | ((firsts == b) & (seconds == a))]
    if not len(lines):
        return
    line = lines.sort_values("correlation").iloc[0]
    found = Estimate(line["correlation"], line["low"], line["high"])
    text = f"{line['a']} and {line['b']}: {wording.estimate(found)}, {line['methods']} methods"
    yield Finding(run.name, text, _alike(found))


def _alike(found: Estimate) -> str:
    """Return whether rankings are alike, by the interval of their correlation."""
    return wording.of_claim(found.low >= SAME_FROM, found.high < SAME_FROM)


def _fine_tuning(claim: Mapping[str, Any], run: RealRun) -> Finding:
    """Judge the paired change of an accuracy: kept within a margin, or raised."""
    facts = run.facts["fine_tuning"]
    of_reading = facts["accuracies"][claim["fine_tuning"]]
    before, after = (100 * of_reading[label][0] for label in ("original", "fine-tuned"))
    change = Estimate(*(100 * end for end in of_reading["change"]))
    margin = claim.get("within")
    if margin is None:
        sides = (change.low > 0, change.high < 0)
    else:
        sides = (
            -margin <= change.low and change.high <= margin,
            change.high < -margin or change.low > margin,
        )
    verdict = wording.of_claim(*sides)
    ends = " to ".join(f"{end:+.1f}" for end in (change.low, change.high))
    text = (
        f"{before:.1f} → {after:.1f} %, change {change.value:+.1f} ({ends}) points, "
        f"n = {facts['evaluated']}"
    ).replace("-", "−")
    return Finding(run.name, text, verdict)


def settling(runs: Sequence[RealRun]) -> Iterator[str]:
    """Say how the IDSDS of cheap methods went over the epochs of each fine-tuning."""
    seen = set()
    for run in runs:
        facts = run.facts["fine_tuning"]
        if not facts or run.network in seen:
            continue
        seen.add(run.network)
        steps = [
            f"{epoch['idsds']:.3f} ± {epoch['idsds_error']:.3f}"
            for epoch in facts["history"]
            if epoch["idsds"] is not None
        ]
        yield (
            f"\nFine-tuning of {run.network}: {facts['images']:,} images, "
            f"{facts['epochs']} epochs, "
            f"learning rate {facts['lr']:g}; epoch {facts['kept']} was kept. Mean IDSDS of some "
            f"cheap methods with its standard error, before and after each epoch: "
            f"{', '.join(steps)}.\n"
        )


def beside_print(runs: Sequence[RealRun], paper: str) -> Iterator[str]:
    """Say how far the numbers of a run are from those of a paper's table."""
    for run in runs:
        for found in run.facts.get("beside_print", ()):
            if not found["table"].startswith(f"{paper}/"):
                continue
            value, low, high = (f"{end:.2f}".replace("-", "−") for end in found["correlation"])
            verdicts = ", ".join(f"{word} {count}" for word, count in found["verdicts"].items())
            yield (
                f"\n{run.name} beside `published:{found['table']}`, as `{found['network']}` "
                f"(said, not checked): rank correlation with the published numbers {value} "
                f"({low} to {high}) over {found['over']} methods, n = {found['n']}; "
                f"{found['missing']} published numbers are not in the run. Single numbers: "
                f"{verdicts}.\n"
            )


def signed(found: Estimate) -> str:
    """Write a difference with its interval."""
    value, low, high = (f"{end:+.3f}".replace("-", "−") for end in found)
    return f"{value} ({low} to {high})"


def verdict(claim: Mapping[str, Any], found: Sequence[Finding]) -> str:
    """Return the verdict on a claim over all runs and parts."""
    if "untestable" in claim:
        return wording.not_testable(claim["untestable"])
    if "missing" in claim:
        return wording.not_run(claim["missing"])
    if not found:
        return wording.not_run("the methods that it is about")
    counts = wording.claim_counts([line.verdict for line in found])
    return f"{claim['text'].rstrip('.')}: {counts}."


def quoted(paper: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a paper's table of claims, by the first of them."""
    page = (PAGE.parent / f"{paper}.md").read_text(encoding="utf-8")
    section = page.split("\n## What it claims", 1)[1].split("\n## ", 1)[0]
    rows = [re.split(r"(?<!\\)\|", row) for row in re.findall(r"^\|(.*)\|$", section, re.M)]
    return {row[0].strip(): [cell.strip() for cell in row] for row in rows[2:]}


def claims_by_row(paper: str) -> dict[str, list[dict[str, Any]]]:
    """Return what judges each row of a paper's table of claims; none may be left out.

    Exits with a message if a row has nothing that judges it, or if something judges no row.
    """
    rows: dict[str, list[dict[str, Any]]] = {row: [] for row in quoted(paper)}
    for claim in claims():
        if claim["paper"] != paper:
            continue
        meant = [row for row in rows if row.startswith(claim["says"])]
        if len(meant) != 1:
            sys.exit(f"{len(meant)} rows of docs/{paper}.md begin with: {claim['says']}")
        rows[meant[0]].append(claim)
    for row, judges in rows.items():
        if not judges:
            sys.exit(f"claims.yaml has nothing on this row of docs/{paper}.md: {row}")
    return rows


def page(runs: Sequence[RealRun]) -> str:
    """Return the page."""
    parts = [HEAD]
    for paper, title in PAPERS.items():
        cells = quoted(paper)
        found = [
            (row, [(claim, list(findings(claim, runs))) for claim in judges])
            for row, judges in claims_by_row(paper).items()
        ]
        parts.append(f"\n## {title}\n\nThe page of the paper: [{paper}]({paper}.md).\n\n")
        parts.append("| the paper says | where, and for what | on paperbirds, and elsewhere | ")
        parts.append("on real networks |\n| --- | --- | --- | --- |\n")
        for row, judged in found:
            verdicts = " ".join(verdict(claim, lines) for claim, lines in judged)
            parts.append(f"| {' | '.join(cells[row])} | {verdicts} |\n")
        for claim, lines in (pair for _, judged in found for pair in judged):
            if lines:
                parts.append(f"\n**{claim['text']}**\n\n| run | found | verdict |\n")
                parts.append("| --- | --- | --- |\n")
                parts += [
                    f"| {line.run} | {TRANSFORM.sub(CELL_BAR, line.text)} | {line.verdict} |\n"
                    for line in lines
                ]
        if paper == "hesse2024":
            parts += settling(runs)
        parts += beside_print(runs, paper)
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
