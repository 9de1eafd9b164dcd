"""Write docs/leaderboard.md from the summaries in examples/real/results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from real_runs import SETTING, RealRun, load, order
from scipy import stats

from heatproof.text import counted

PAGE = Path(__file__).parent / "leaderboard.md"
FEWEST_NETWORKS = 5  # for an interval of another network
Setting = tuple[str, str, str]
HEAD = """# Leaderboard: which heatmaps to trust on real networks

Attribution methods on networks that others have trained, on photos.
`python docs/make_leaderboard.py` writes this page from the summaries in `examples/real/results`,
and [Findings](findings.md) sets them beside the papers. A number is the mean over the images
with its 95 % interval. **Bold**: no other method is ahead of it, all pairs of methods tested
together at 5 %; controls, in italics, never look at the network and cannot be the best. A dagger
marks a method that is not ranked, because it has no score on more than a tenth of the images.
Passes are those for one map, on the network where they are the most.

The images of ImageNet are one of each of some classes, probably from the training set, so that
accuracies on them are optimistic. What is claimed is about such images and these networks.
"""
ADD = """
## Add a network

1. Write a function that returns the network, as the files in
   [examples/real](../examples/real/README.md) do, and check its accuracy first: a wrong
   normalization shows there.
2. `heatproof run examples/real/cifar10.yaml --model file:mine.py:build -o real/runs/mine`, or
   `imagenet.yaml`, on the same images; the same command continues it.
3. `python docs/real_runs.py real/runs/mine mine`, then `python docs/make_leaderboard.py` and
   `python docs/make_findings.py`; open a pull request with what changed. Weights and images stay
   where they are.
"""


def settings(runs: Sequence[RealRun]) -> list[Setting]:
    """Return all settings, those of the most networks first."""
    counts: dict[Setting, int] = {}
    for run in runs:
        for key in run.ranking[SETTING].drop_duplicates().itertuples(index=False, name=None):
            counts[key] = counts.get(key, 0) + 1
    return sorted(counts, key=lambda key: -counts[key])


def by_network(runs: Sequence[RealRun], setting: Setting) -> dict[str, pd.DataFrame]:
    """Return the ranking of every network; of several runs, that with the most methods."""
    found: dict[str, pd.DataFrame] = {}
    for run in runs:
        chosen = (run.ranking[SETTING] == list(setting)).all(axis=1)
        lines = run.ranking[chosen & (run.ranking["n"] > 0)].set_index("method")
        if len(lines) > len(found.get(run.network, ())):
            found[run.network] = lines
    return found


def networks_table(runs: Sequence[RealRun]) -> Iterator[str]:
    """Yield the lines of the table of runs: what was computed, and what it has cost."""
    yield "| run | network | correct | methods | settings | passes | hours | rows (SHA-256) |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        model, passes = run.facts["model"], run.facts["passes"]
        shown = f"{passes.get('forward', 0):,} forward, {passes.get('backward', 0):,} backward"
        yield (
            f"| {run.name} | {run.network} | {model['correct']} of {model['labelled']} | "
            f"{run.ranking['method'].nunique()} | {len(run.ranking[SETTING].drop_duplicates())} | "
            f"{shown} | {run.facts['hours']:.2f} | `{run.facts['rows'][:12]}` |"
        )


def setting_table(found: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield the lines of the table of one setting: methods down, networks across."""
    several = len(found) >= FEWEST_NETWORKS
    more = ["another network"] if several else []
    cost = pd.DataFrame({name: lines["passes"] for name, lines in found.items()}).max(axis=1)
    control = {m for lines in found.values() for m in lines.index[lines["control"]]}
    means = pd.DataFrame({name: lines["mean"] for name, lines in found.items()})
    ranks = pd.DataFrame({name: lines["rank"] for name, lines in found.items()})
    yield f"| method | passes | {' | '.join([*found, *more])} |"
    yield f"|{' --- |' * (2 + len(found) + len(more))}"
    counts = ", ".join(f"{lines['n'].max():.0f}" for lines in found.values())
    for method in ranks.mean(axis=1).sort_values(kind="stable").index:
        name = str(method).replace("|", r"\|")
        cells = [_cell(lines, method) for lines in found.values()]
        if several:
            cells.append(another_network(means.loc[method].to_numpy(dtype=float)))
        shown = f"*`{name}`*" if method in control else f"`{name}`"
        passes = "" if pd.isna(cost[method]) else f"{cost[method]:,.0f}"
        yield f"| {shown} | {passes} | {' | '.join(cells)} |"
    yield ""
    yield f"Images: {counts}."


def _cell(lines: pd.DataFrame, method: object) -> str:
    if method not in lines.index:
        return "–"
    line = lines.loc[method]
    text = interval(line["mean"], line["low"], line["high"])
    if pd.isna(line["rank"]):
        return f"{text}†"
    return f"**{text}**" if line["may_be_best"] else text


def another_network(means: np.ndarray) -> str:
    """Return the mean over networks, and the 95 % interval of the score on another network.

    It is the prediction interval of a normal distribution; empty for fewer than five networks.
    """
    known = means[np.isfinite(means)]
    if len(known) < FEWEST_NETWORKS:
        return "–"
    width = stats.t.ppf(0.975, len(known) - 1) * known.std(ddof=1) * math.sqrt(1 + 1 / len(known))
    return interval(known.mean(), known.mean() - width, known.mean() + width)


def interval(value: float, low: float, high: float) -> str:
    """Write a number with its interval, with two digits."""
    if not math.isfinite(low):
        return _number(value)
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    text = f"{value:.2f}".replace("-", "−")
    return text.replace("0.", ".", 1) if text.lstrip("−").startswith("0.") else text


def same_everywhere(found: Mapping[str, pd.DataFrame]) -> str:
    """Say which order of methods is the same on all networks, by the letters of each."""
    first, *others = found.values()
    common = [m for m in first.index if all(m in lines.index for lines in others)]
    same = reversed_somewhere = 0
    pairs = [(a, b) for i, a in enumerate(common) for b in common[i + 1 :]]
    for a, b in pairs:
        orders = {order(lines.loc[a], lines.loc[b]) for lines in found.values()}
        same += len(orders) == 1 and 0 not in orders
        reversed_somewhere += {-1, 1} <= orders
    best = [m for m in common if all(lines.loc[m, "may_be_best"] for lines in found.values())]
    names = ", ".join(f"`{m}`" for m in best)
    which = f"May be the best on all: {names}." if best else "None may be the best on all."
    return (
        f"Of {counted(len(pairs), 'pair')} of methods, {same} are told apart in the same order on "
        f"all {len(found)} networks, and {reversed_somewhere} in opposite orders on some. {which}"
    )


def above_methods(found: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Say for each network which methods a control is ahead of."""
    for network, lines in found.items():
        for control in lines.index[lines["control"]]:
            behind = [
                f"`{method}`"
                for method in lines.index[~lines["control"]]
                if order(lines.loc[control], lines.loc[method]) > 0
            ]
            if behind:
                yield f"On {network}, the control `{control}` is ahead of {', '.join(behind)}."


def page(runs: Sequence[RealRun]) -> str:
    """Return the page."""
    lines = [HEAD, "## Networks and runs", "", *networks_table(runs), ""]
    lines.append(
        "Each run has a directory in `examples/real/results` with its numbers (`ranking.csv`), its "
        "provenance (`run.json`) and\nthe spec that computes it: "
        "`heatproof run examples/real/results/RUN/spec.yaml`. Hours are those of one thread that "
        "shared two cores\nwith other work."
    )
    for setting in settings(runs):
        found = by_network(runs, setting)
        if not found:
            continue
        protocol, options, baseline = setting
        title = " · ".join(filter(None, (protocol, baseline)))
        lines += ["", f"## {title}", "", f"{options}.", "", *setting_table(found)]
        lines += ["", "\n".join(above_methods(found))]
        if len(found) > 1:
            lines += ["", same_everywhere(found)]
    return "\n".join(lines) + "\n" + ADD


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
