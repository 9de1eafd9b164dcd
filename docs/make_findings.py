"""Write docs/findings.md from docs/claims.yaml and the summaries in examples/real/results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from real_runs import RealRun, claims, load, may_be_best

from heatproof.analysis import wording
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import Estimate
from heatproof.report.sections.stability import SAME_FROM

PAGE = Path(__file__).parent / "findings.md"
HOLDS = "holds"
CONTRARY = "the contrary holds"
UNTESTABLE = "not testable here"
NOT_RUN = "not run yet"
PAPERS = {
    "hesse2024": "Hesse et al. 2024",
    "picard2024": "Picard et al. 2024",
    "li2024": "Li et al. 2024",
    "rao2024": "Rao et al. 2024",
}
HEAD = f"""# Findings: what the papers claim, on real networks

Each claim of the four papers that the runs of the [leaderboard](leaderboard.md) can test, with
what is found and a verdict. `python docs/make_findings.py` writes this page from
[claims.yaml](claims.yaml) and the summaries in `examples/real/results`; every number is in the CSV
files there, under the name of the run. What the same claims come to on the birds is on the pages of
the papers.

- *One method above another*: **{HOLDS}** if it is ahead with p ≤ {LEVEL}, adjusted for all pairs of
  methods of the setting; **{CONTRARY}** if the other is; else **{wording.UNDECIDED}**. Differences
  are given with the 95 % interval of a single difference; the verdict follows from p alone.
- *The best methods are of a kind*: **{HOLDS}** if all methods that may be the best are, among those
  that the paper has; **{CONTRARY}** if none is; else **{wording.UNDECIDED}**.
- *An accuracy is kept, or raised*: decided if the whole interval of the paired change is within a
  point, or above zero.
- *Two rankings are alike* (or differ): decided if the whole interval of their rank correlation is
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
    elif "best" in claim:
        yield from _best(claim, run)
    elif "agree" in claim:
        yield from _agree(claim, run)
    elif "fine_tuning" in claim and run.facts["fine_tuning"]:
        yield _fine_tuning(claim, run)


def _ahead(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    for a, b in claim["ahead"]:
        chosen = (run.pairs["protocol"] == claim["protocol"]) & (run.pairs["a"] == a)
        for line in run.pairs[chosen & (run.pairs["b"] == b)].to_dict("records"):
            found = Estimate(line["ahead"], *_ends(line))
            text = f"`{a}` − `{b}`: {signed(found)}, p = {line['p']:.3f}, n = {line['n']}"
            yield Finding(run.name, text, _side(line["ahead"], line["p"]))


def _ends(line: Mapping[str, Any]) -> tuple[float, float]:
    """Return the interval of a difference in the direction of better."""
    ends = sorted(math.copysign(1, line["ahead"]) * abs(line[e]) for e in ("low", "high"))
    same = line["low"] <= line["ahead"] <= line["high"]
    return (line["low"], line["high"]) if same else (ends[0], ends[1])


def _side(ahead: float, p: float) -> str:
    if not p <= LEVEL:
        return wording.UNDECIDED
    return HOLDS if ahead > 0 else CONTRARY


def _best(claim: Mapping[str, Any], run: RealRun) -> Iterator[Finding]:
    lines = run.ranking[run.ranking["protocol"] == claim["protocol"]]
    for baseline in dict.fromkeys(lines["baseline"]):
        at = run.at(claim["protocol"], baseline)
        present = [method for method in claim["among"] if method in set(at["method"])]
        possible = may_be_best(at, present)
        if not possible or not set(claim["best"]) & set(present):
            continue
        inside = [method in claim["best"] for method in possible]
        verdict = HOLDS if all(inside) else CONTRARY if not any(inside) else wording.UNDECIDED
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
    least = "least of " + str(len(lines)) + " pairs: " if claim.get("least") else ""
    text = (
        f"{least}{line['a']} and {line['b']}: {wording.estimate(found)}, {line['methods']} methods"
    )
    yield Finding(run.name, text, _alike(found, differs=bool(claim.get("least"))))


def _alike(found: Estimate, differs: bool) -> str:
    """Return whether rankings are alike, or differ, by the interval of their correlation."""
    if found.low >= SAME_FROM:
        return CONTRARY if differs else HOLDS
    if found.high < SAME_FROM:
        return HOLDS if differs else CONTRARY
    return wording.UNDECIDED


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
    verdict = HOLDS if sides[0] else CONTRARY if sides[1] else wording.UNDECIDED
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
        return f"{UNTESTABLE}: {claim['untestable']}"
    if not found:
        return NOT_RUN
    counts = Counter(finding.verdict for finding in found)
    if len(counts) == 1:
        return next(iter(counts)) + (f" ({len(found)} of {len(found)})" if len(found) > 1 else "")
    return ", ".join(f"{word} {n} of {len(found)}" for word, n in counts.most_common())


def page(runs: Sequence[RealRun]) -> str:
    """Return the page."""
    parts = [HEAD]
    for paper, title in PAPERS.items():
        of_paper = [claim for claim in claims() if claim["paper"] == paper]
        found = [(claim, list(findings(claim, runs))) for claim in of_paper]
        parts.append(f"\n## {title}\n\nThe page of the paper: [{paper}]({paper}.md).\n\n")
        parts.append("| claim | where | verdict |\n| --- | --- | --- |\n")
        parts += [
            f"| {claim['text']} | {claim['where']} | {verdict(claim, lines)} |\n"
            for claim, lines in found
        ]
        for claim, lines in found:
            if lines:
                parts.append(f"\n**{claim['text']}**\n\n| run | found | verdict |\n")
                parts.append("| --- | --- | --- |\n")
                parts += [
                    f"| {line.run} | {line.text} | {line.verdict} |\n".replace("|abs", r"\|abs")
                    for line in lines
                ]
        if paper == "hesse2024":
            parts += settling(runs)
        parts += beside_print(runs, paper)
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
