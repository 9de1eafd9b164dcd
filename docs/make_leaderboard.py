"""Write docs/leaderboard.md from the summaries in examples/real/results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from real_runs import ROOT, SETTING, RealRun, load, order

from heatproof.analysis import wording
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.networks import FEWEST_NETWORKS, for_a_new_network
from heatproof.plan.spec import Spec, load_spec
from heatproof.text import counted

PAGE = Path(__file__).parent / "leaderboard.md"
REAL = ROOT / "examples" / "real"
SPECS = ("cifar10", "imagenet")  # what is to be run on each network
LAYERED = " Methods are ranked within a layer, which the name says; without it it is the input."
CELL_BAR = r"\|"
MOST_PAIRS = 8  # that are named
ENDS = ["mean", "low", "high"]
Setting = tuple[str, str, str]
HEAD = """# Leaderboard: which heatmaps to trust on real networks

Attribution methods on networks that others have trained, on photos.
`python docs/make_leaderboard.py` writes this page from the summaries in `examples/real/results`,
and [Findings](findings.md) sets them beside the papers. A number is the mean over the images
with its 95 % interval. **Bold**: no other method is ahead of it, all pairs of methods tested
together at 5 %; controls, in italics, never look at the network and cannot be the best. A dagger
marks a method that is not ranked, because it has no score on more than a tenth of the images.
Passes are those for one map, on the network where they are the most.

Where five networks or more were evaluated, the last column has the mean over them and the interval
that the score on *another network* lies in in 95 % of cases, if these networks were drawn at random
from its kind and their scores are nearly normal. Three sizes of one design, as here, are no such
draw: read the interval as the least that one should allow for.

The images of ImageNet are one of each of some classes, probably from the training set, so that
accuracies on them are optimistic. What is claimed is about such images and these networks.
"""
MISSING = """## What is missing

Methods of [cifar10.yaml and imagenet.yaml](../examples/real/README.md) that the tables above do not
have, by the protocols that these name; a table shows the run with the most methods.
`heatproof plan examples/real/cifar10.yaml -o RUN` says how long it takes here to add them to a
run."""
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
    networks: dict[Setting, set[str]] = {}
    for run in runs:
        for key in run.ranking[SETTING].drop_duplicates().itertuples(index=False, name=None):
            networks.setdefault(key, set()).add(run.network)
    return sorted(networks, key=lambda key: -len(networks[key]))


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
            f"| [{run.name}](../examples/real/results/{run.name}/ranking.csv) | {run.network} | "
            f"{model['correct']} of {model['labelled']} | "
            f"{run.ranking['method'].nunique()} | {len(run.ranking[SETTING].drop_duplicates())} | "
            f"{shown} | {run.facts['hours']:.2f} | `{run.facts['rows'][:12]}` |"
        )


def setting_table(found: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Yield the lines of the table of one setting: methods down, networks across."""
    several = len(found) >= FEWEST_NETWORKS
    more = ["another network"] if several else []
    cost = pd.DataFrame({name: lines["passes"] for name, lines in found.items()}).max(axis=1)
    control = {m for lines in found.values() for m in lines.index[lines["control"]]}
    ranks = pd.DataFrame({name: lines["rank"] for name, lines in found.items()})
    yield f"| method | passes | {' | '.join([*found, *more])} |"
    yield f"|{' --- |' * (2 + len(found) + len(more))}"
    counts = ", ".join(f"{lines['n'].max():.0f}" for lines in found.values())
    for method in ranks.mean(axis=1).sort_values(kind="stable").index:
        name = str(method).replace("|", r"\|")
        cells = [_cell(lines, method) for lines in found.values()]
        if several:
            at = [lines.loc[method] for lines in found.values() if method in lines.index]
            cells.append(another_network(np.array([[s[e] for e in ENDS] for s in at], float)))
        shown = f"*`{name}`*" if method in control else f"`{name}`"
        passes = "" if pd.isna(cost[method]) else f"{cost[method]:,.0f}"
        yield f"| {shown} | {passes} | {' | '.join(cells)} |"
    layered = any("@" in str(method) for method in ranks.index)
    yield ""
    yield f"{'Maps' if layered else 'Images'}: {counts}.{LAYERED if layered else ''}"


def _cell(lines: pd.DataFrame, method: object) -> str:
    if method not in lines.index:
        return "–"
    line = lines.loc[method]
    text = interval(line["mean"], line["low"], line["high"])
    if pd.isna(line["rank"]):
        return f"{text}†"
    return f"**{text}**" if line["may_be_best"] else text


def another_network(scores: np.ndarray) -> str:
    """Return the mean over networks, and the 95 % interval of the score on another network.

    It is a dash for fewer than five networks. Most networks were evaluated on the same images, so
    the error that these leave to the mean is taken to be as large as that of one network.

    Args:
        scores: ``(K, 3)``, the mean of each network with its interval.
    """
    known = scores[np.isfinite(scores[:, 0])]
    if len(known) < FEWEST_NETWORKS:
        return "–"
    mean = Estimate(*known.mean(0))
    return interval(*for_a_new_network(known[:, 0], mean, (-math.inf, math.inf)))


def interval(value: float, low: float, high: float) -> str:
    """Write a number with its interval, with two digits."""
    if not math.isfinite(low):
        return _number(value)
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:z.2f}".replace("-", "−")


def same_everywhere(found: Mapping[str, pd.DataFrame]) -> str:
    """Say which order of methods is the same on all networks, by the letters of each."""
    first, *others = found.values()
    common = [m for m in first.index if all(m in lines.index for lines in others)]
    pairs = [(a, b) for i, a in enumerate(common) for b in common[i + 1 :]]
    same, reversed_somewhere = [], []
    for a, b in pairs:
        orders = {order(lines.loc[a], lines.loc[b]) for lines in found.values()}
        if len(orders) == 1 and 0 not in orders:
            same.append((a, b) if 1 in orders else (b, a))
        elif {-1, 1} <= orders:
            reversed_somewhere.append((a, b))
    best = [m for m in common if all(lines.loc[m, "may_be_best"] for lines in found.values())]
    names = ", ".join(f"`{m}`" for m in best)
    which = f"May be the best on all: {names}." if best else "None may be the best on all."
    return (
        f"Of {counted(len(pairs), 'pair')} of methods, {len(same)} are told apart in the same "
        f"order on all {len(found)} networks{_listed(same, 'above')}, and "
        f"{len(reversed_somewhere)} in opposite orders on some"
        f"{_listed(reversed_somewhere, 'and')}. {which}"
    )


def _listed(pairs: Sequence[tuple[str, str]], word: str) -> str:
    """Name pairs of methods in brackets; nothing if there are none, or too many."""
    if not 0 < len(pairs) <= MOST_PAIRS:
        return ""
    return f" ({', '.join(f'`{a}` {word} `{b}`' for a, b in pairs)})"


def not_run(runs: Sequence[RealRun]) -> Iterator[str]:
    """Yield the lines of the table of what the specs name and no table shows, by network."""
    yield "| network | not run |"
    yield "| --- | --- |"
    specs = {spec.data.name: spec for name in SPECS if (spec := load_spec(REAL / f"{name}.yaml"))}
    for network in dict.fromkeys(run.network for run in runs):
        own = [run for run in runs if run.network == network]
        missing = "; ".join(_missing(specs[own[0].data], own))
        yield f"| {network} | {missing or 'nothing'} |"


def _missing(spec: Spec, own: Sequence[RealRun]) -> Iterator[str]:
    methods = [entry.label for entry in spec.expressions()]
    named: dict[str, list[str]] = {}
    for protocol in spec.parsed_protocols():
        setting = (protocol.id, protocol.baseline_name)
        shown = by_network(own, (protocol.id, protocol.setting, protocol.baseline_name))
        have = {method for lines in shown.values() for method in lines.index}
        missing = [method for method in methods if method not in have]
        what = (
            "all methods" if len(missing) == len(methods) else wording.names(missing, len(missing))
        )
        if missing:
            named.setdefault(what, []).append(" · ".join(filter(None, setting)))
    for what, titles in named.items():
        yield f"{what.replace('|', CELL_BAR)} by {', '.join(titles)}"


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
    lines += ["", MISSING, "", *not_run(runs)]
    return "\n".join(lines) + "\n" + ADD


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
