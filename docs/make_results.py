"""Fill the tables of the study pages from runs: `python docs/make_results.py RUNS docs/PAGE.md …`.

RUNS holds one run directory per study, such as RUNS/hesse2024/ranking. A page marks its tables with

    <!-- results: TABLE STUDY option=value … -->
    <!-- end -->

and what stands between the two lines is replaced. With `csv=NAME` the table is written to
docs/results/NAME.csv, and a link to it stands on the page. The prose around the tables is edited by
hand, after reading them.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from result_pictures import draw_table

import heatproof as hp
from heatproof.analysis import soundness
from heatproof.analysis.halves import bootstrap_aggregates
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.published import compare_published
from heatproof.analysis.published_tables import published_table
from heatproof.analysis.ranks import CONTROL, Standings, agreement, ranked_layers, standings
from heatproof.report.sections import curves as curves_section
from heatproof.report.sections import grids as grids_section
from heatproof.report.sections import retraining as retraining_section
from heatproof.report.sections import soundness as soundness_section
from heatproof.report.sections.models import accuracy as model_accuracy
from heatproof.report.sections.models import similarity as similarity_section
from heatproof.report.site import Site

BLOCK = re.compile(r"(<!-- results: (\w+) (\S+)((?: \S+=[^ \n]*)*) -->\n).*?(<!-- end -->)", re.S)
Options = dict[str, str]


@cache
def result(directory: Path) -> hp.Result:
    return hp.Result.load(directory)


@cache
def summary(directory: Path) -> pd.DataFrame:
    return result(directory).summary()


@cache
def ranks(directory: Path) -> list[Standings]:
    run = result(directory)
    draws = bootstrap_aggregates(run)
    layers = ranked_layers(run.scores, run.store.plan().methods)
    return standings(run.scores, aggregate_draws=draws, layers=layers)


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "−") if np.isfinite(value) else "–"


def interval(value: float, low: float, high: float) -> str:
    if not np.isfinite(low):
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def estimate(e: Estimate) -> str:
    return interval(e.value, e.low, e.high)


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table; a vertical bar within a cell is escaped."""
    table = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |\n" for r in table)


def chosen(frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Keep the lines that agree with the options that name a column, such as ``protocol=sds``."""
    for column, values in options.items():
        if column in frame:
            frame = frame[frame[column].astype(str).isin(values.split(","))]
    if part := options.get("setting_has"):  # a part of the settings, where a protocol has several
        other = ~frame["setting"].str.contains(part.partition("=")[0], regex=False)
        frame = frame[other | frame["setting"].str.contains(part, regex=False)]
    return frame


def scores(directory: Path, options: Options) -> str:
    """Mean scores with intervals; ``rows`` and ``columns`` name columns of the summary."""
    frame = chosen(summary(directory), options)
    rows = options.get("rows", "method").split(",")
    columns = [c for c in options.get("columns", "model,protocol").split(",") if c]
    cells = {}
    for line in frame[frame["n"] > 0].to_dict("records"):
        place = tuple(str(line[c]) for c in rows), tuple(str(line[c]) for c in columns)
        if place in cells:
            sys.exit(f"{directory}: two numbers for {place}; add a column or choose a setting")
        cells[place] = interval(line["mean"], line["low"], line["high"])
    heads = list(dict.fromkeys(column for _, column in cells))
    body = []
    for row in dict.fromkeys(row for row, _ in cells):
        names = [f"`{name}`" if c == "method" else name for name, c in zip(row, rows, strict=True)]
        body.append([*names, *(cells.get((row, head), "–") for head in heads)])
    titles = [" ".join(name.removeprefix("paperbirds/") for name in head) for head in heads]
    return lines([*rows, *titles], body)


def controls(directory: Path) -> list[str]:
    methods = result(directory).store.plan().methods
    return [label for label, facts in methods.items() if facts.family == CONTROL]


def correlations(directory: Path, options: Options) -> str:
    """Rank correlation of every two settings of a model, over its methods without controls.

    ``reference`` names a setting that one of the two must be, such as ``idsds,16,zero``.
    """
    labels = result(directory).setting_labels
    blocks = []
    for standing in ranks(directory):
        if options.get("model", standing.model) != standing.model:
            continue
        rankings = [
            (standing.methods, standing.ranks[s], standing.drawn_ranks[s])
            for s in range(len(standing.settings))
        ]
        agreed = agreement(rankings, controls(directory))
        if agreed is None:
            continue
        names = [labels[key] for key in standing.settings]
        wanted = options.get("reference", "").replace(",", " · ")
        rows = []
        for (a, b), value in agreed.pairs.items():
            if not wanted or wanted in (names[a], names[b]):
                rows.append([names[a], names[b], estimate(value)])
        head = [f"{standing.model}, {len(agreed.methods)} methods", "", "rank correlation"]
        blocks.append(lines(head, rows))
    return "\n".join(blocks)


def stability(directory: Path, options: Options) -> str:
    """How far the rankings of a protocol agree over its baselines."""
    rows = []
    for standing in ranks(directory):
        for protocol in dict.fromkeys(key[0] for key in standing.settings):
            wanted = options.get("baseline", "").split(",") if "baseline" in options else None
            picked = [
                s
                for s, key in enumerate(standing.settings)
                if key[0] == protocol and (wanted is None or key[2] in wanted)
            ]
            rankings = [
                (standing.methods, standing.ranks[s], standing.drawn_ranks[s]) for s in picked
            ]
            left_out = controls(directory) if options.get("controls") == "no" else []
            agreed = agreement(rankings, left_out)
            if agreed is None:
                continue
            least = " and ".join(f"`{standing.settings[picked[i]][2]}`" for i in agreed.least_pair)
            rows.append(
                [
                    standing.model.removeprefix("paperbirds/"),
                    protocol,
                    str(len(picked)),
                    estimate(agreed.mean),
                    f"{number(agreed.least.value)} ({least})",
                    estimate(agreed.flipped),
                    estimate(agreed.spread),
                    estimate(agreed.concordance),
                ]
            )
    head = ["model", "protocol", "baselines", "mean correlation", "lowest", "pairs flipped"]
    return lines([*head, "rank spread", "Kendall's W"], rows)


def levels(directory: Path, options: Options) -> str:
    """Soundness at levels of accuracy."""
    wanted = [float(level) for level in options.get("levels", "0.3,0.5,0.7,0.9").split(",")]
    frame = chosen(soundness.table(result(directory), wanted), options)
    rows = []
    for (model, method), part in frame.groupby(["model", "method"], sort=False):
        cells = [interval(*line) for line in part[["soundness", "low", "high"]].to_numpy()]
        rows.append([str(model).removeprefix("paperbirds/"), f"`{method}`", *cells])
    return lines(["model", "method", *(f"@{level:g}" for level in wanted)], rows)


def percent(e: Estimate) -> str:
    return f"{100 * e.value:.1f} % ({100 * e.low:.1f}–{100 * e.high:.1f})"


def points(e: Estimate) -> str:
    ends = (f"{100 * end:+.1f}".replace("-", "−") for end in e)
    return "{} ({} to {})".format(*ends)


def accuracy(directory: Path, options: Options) -> str:
    """Accuracy before and after fine-tuning, and its paired change, in percent."""
    run = result(directory)
    (table,) = model_accuracy.content(run)
    wanted = ("intact", "worst", "whichever")
    columns = [list(table.columns).index(name) for name in wanted]
    rows = []
    for model, lines_of in table.models.items():
        by_label = {row.label: row for row in lines_of}
        cells = [model.removeprefix("paperbirds/")]
        for c in columns:
            before, after = (by_label[label].estimates[c].value for label in BEFORE_AFTER)
            cells.append(f"{100 * before:.1f} → {100 * after:.1f}")
            if c != columns[0]:
                cells.append(points(by_label["change"].estimates[c]))
        rows.append(cells)
    head = ["model", "intact images", "without the worst patch", "change"]
    return lines([*head, "whichever patch is deleted", "change"], rows)


BEFORE_AFTER = ("original", "fine-tuned")


def similarity(directory: Path, options: Options) -> str:
    """How far networks are from their fine-tuned copies and from each other."""
    rows = []
    for pair in similarity_section._pairs(result(directory)):
        cells = [pair.label, "itself, fine-tuned" if pair.same else "another network"]
        for measure in ("softmax", "cam"):
            found = pair.difference(measure)
            cells.append("–" if found is None else estimate3(found[0]))
        rows.append(cells)
    return lines(["pair", "compared with", "probability of the label", "Grad-CAM"], rows)


def estimate3(e: Estimate) -> str:
    return "{:.3f} ({:.3f}–{:.3f})".format(*e)


def retraining(directory: Path, options: Options) -> str:
    """Accuracy of networks that were trained on altered images."""
    with TemporaryDirectory() as folder:
        content = retraining_section.content(result(directory), Site(Path(folder)))
    rows = [[r.trained_on, r.evaluated_on, percent(r.accuracy)] for r in content.rows]
    return lines(["trained on", "evaluated on", "accuracy"], rows)


def distances(directory: Path, options: Options) -> str:
    """The least distance between the curves of changed maps, and whether all three differ."""
    with TemporaryDirectory() as folder:
        content = soundness_section.content(result(directory), Site(Path(folder)))
    (compared,) = [m.distinct for m in content.models if m.distinct is not None]
    metrics = compared.distances
    rows = []
    for i, (trio, _) in enumerate(compared.trios):
        each = [metric.each[i] for metric in metrics.values()]
        cells = [f"{number(d.value)} (p = {number(d.p, 3)})" for d in each]
        rows.append([f"`{trio.base}`", trio.scheme, *cells])
    means = [f"{number(m.mean)} ± {number(m.spread)}" for m in metrics.values()]
    return lines(["method", "scheme", *metrics], [*rows, ["mean ± deviation", "", *means]])


def smoothed(directory: Path, options: Options) -> str:
    """Mean localization under each kernel, and the correlation with Grad-CAM."""
    with TemporaryDirectory() as folder:
        content = grids_section.content(result(directory), Site(Path(folder)))
    rows = []
    for model in content.models:
        for setting in model.settings:
            if setting.label != options.get("protocol", setting.label) or not setting.smoothed:
                continue
            widths = setting.smoothed.widths
            for row in setting.smoothed.rows:
                cells = [f"{estimate(s.mean)}, ρ {number(s.rho)}" if s else "–" for s in row.scores]
                rows.append([model.model.removeprefix("paperbirds/"), f"`{row.method}`", *cells])
    return lines(["model", "method", *(f"K = {w}" for w in widths)], rows)


@cache
def curves(directory: Path) -> curves_section.Content:
    with TemporaryDirectory() as folder:
        return curves_section.content(result(directory), Site(Path(folder)))


def tradeoff(directory: Path, options: Options) -> str:
    """Say whether distance and remaining information are related over the baselines."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    distances: dict[str, None] = {}
    for model in curves(directory).models:
        for found in model.tradeoffs:
            for figure in found.figures:
                distances[figure.distance] = None
                key = (model.model.removeprefix("paperbirds/"), found.method, found.measure)
                rows.setdefault(key, []).append(figure.trend or "–")
    head = ["model", "order of removal", "measure of the information left", *distances]
    return lines(
        head,
        [[model, f"`{order}`", *rest, *cells] for (model, order, *rest), cells in rows.items()],
    )


def baselines(directory: Path, options: Options) -> str:
    """Distance and information left under each baseline, and what the model makes of it alone."""
    wanted = options.get("protocol", "deletion")
    rows = []
    for model in curves(directory).models:
        strips = {strip.baseline: strip for strip in model.strips.rows} if model.strips else {}
        for row in model.rows:
            if row.protocol != wanted:
                continue
            strip = strips.get(row.baseline)
            alone = ["–", "–"] if strip is None else [f"{strip.entropy:.2f}", f"{strip.norm:.3g}"]
            means = [number(row.means[name].value) for name in ("ood", "ood-raw", "negentropy")]
            name = model.model.removeprefix("paperbirds/")
            rows.append([name, f"`{row.baseline}`", *alone, *means, estimate(row.beyond["ood"])])
    head = ["model", "baseline", "entropy of the bare baseline", "length of its embedding"]
    head += ["distance, normalized", "distance, raw", "information left", "fraction out of domain"]
    return lines(head, rows)


def layers(directory: Path, options: Options) -> str:
    """Mean scores of each method, from layer to layer."""
    frame = chosen(summary(directory), options)
    facts = result(directory).store.plan().methods
    cells = {}
    for line in frame[frame["n"] > 0].to_dict("records"):
        known = facts[line["method"]]
        text = interval(line["mean"], line["low"], line["high"])
        cells[f"`{known.layerless}`", known.layer] = text
    names = list(dict.fromkeys(layer for _, layer in cells))
    body = [
        [method, *(cells.get((method, layer), "–") for layer in names)]
        for method in dict.fromkeys(method for method, _ in cells)
    ]
    return lines(["method", *names], body)


def published(directory: Path, options: Options) -> str:
    """Numbers of a run beside those of a published table."""
    found = compare_published(result(directory), published_table(options["table"]))
    rows = []
    for line in found.lines:
        digits = line.entry.digits
        value, low, high = (f"{end:.{digits}f}".replace("-", "−") for end in line.found)
        print_value = f"{line.entry.value:.{digits}f}".replace("-", "−")
        rows.append(
            [line.entry.row, f"`{line.entry.method}`", print_value, f"{value} ({low} to {high})"]
        )
    text = lines(["in the paper", "here", "published", "this run"], rows)
    for *_, correlation, methods in found.correlations:
        text += f"\nRank correlation over {methods} methods: {estimate(correlation)}.\n"
    return text


TABLES: dict[str, Callable[[Path, Options], str]] = {
    "published": published,
    "layers": layers,
    "tradeoff": tradeoff,
    "baselines": baselines,
    "accuracy": accuracy,
    "similarity": similarity,
    "retraining": retraining,
    "distances": distances,
    "smoothed": smoothed,
    "scores": scores,
    "correlations": correlations,
    "stability": stability,
    "levels": levels,
}


ESTIMATE = re.compile(r"([−+]?[\d.]+|–) \(([−+]?[\d.]+)(?: to |–)([−+]?[\d.]+)\)(.*)", re.S)
TABLES_AS_CSV = Path(__file__).parent / "results"


def link(table: str, name: str) -> str:
    """Write a Markdown table to a CSV file, with intervals in columns; return a link to it."""
    head, _, *body = (
        [cell.strip(" `").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.strip().splitlines()
        if line.startswith("|")
    )
    columns: list[list[str]] = []
    for title, *cells in zip(head, *body, strict=True):
        found = [ESTIMATE.fullmatch(cell) for cell in cells]
        if not any(found):
            columns.append([title, *(plain_number(cell) for cell in cells)])
            continue
        parts = [
            [m[1], m[2], m[3], m[4].strip(", ")] if m else [cell, "", "", ""]
            for m, cell in zip(found, cells, strict=True)
        ]
        titles = [title, f"{title} low", f"{title} high", f"{title} note"]
        for title, *part in zip(titles, *parts, strict=True):
            if any(part):
                columns.append([title, *map(plain_number, part)])
    path = TABLES_AS_CSV / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    after = [line for line in table.strip().splitlines() if not line.startswith("|")]
    rest = "".join(f"\n\n{line}" for line in after if line)
    draw_table(path, TABLES_AS_CSV.parent / f"img/results/{name}.png")
    title = path.stem.replace("-", " ").capitalize()
    picture = f"![{title}: the table as a picture](img/results/{name}.png)"
    return f"{picture}\n\n[{name}.csv](results/{name}.csv), {len(body)} rows.{rest}\n"


def plain_number(cell: str) -> str:
    """Return a number of a page as programs read it; other text, and a dash as nothing."""
    text = cell.replace("−", "-").removeprefix("+")
    text = re.sub(r"^(-?)\.", r"\g<1>0.", text)
    return "" if cell == "–" else text if re.fullmatch(r"-?[\d.]+", text) else cell


def fill(page: Path, runs: Path) -> None:
    """Replace every marked table whose run exists; name those whose run does not."""

    def replaced(block: re.Match[str]) -> str:
        start, table, study, options, end = block.groups()
        if not (runs / study).is_dir():
            print(f"{page}: {study} has no run in {runs}; its table stays", file=sys.stderr)
            return block[0]
        chosen_options = dict(option.split("=", 1) for option in options.split())
        text = TABLES[table](runs / study, chosen_options)
        if "csv" in chosen_options:
            text = link(text, chosen_options["csv"])
        return f"{start}\n{text}\n{end}"

    page.write_text(BLOCK.sub(replaced, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[2:]:
        fill(Path(name), Path(sys.argv[1]))
