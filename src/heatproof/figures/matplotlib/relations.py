"""Figures of relations: between protocols, cost and quality, layers, baselines, and papers.

Each figure is drawn from a frame alone, so that the numbers beside it are all that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.published import DIFFERS, REPRODUCED, all_comparisons
from heatproof.analysis.ranks import Key, Standings
from heatproof.analysis.tradeoff import tradeoff
from heatproof.errors import HeatproofError
from heatproof.figures.matplotlib.panels import (
    GREY,
    MARKERS,
    check_panels,
    finish,
    legend,
    panel_grid,
    short,
)
from heatproof.figures.palette import DIVERGING, FAMILIES
from heatproof.figures.svg import interval, number
from heatproof.tensor.information import INFORMATION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heatproof.analysis.run_statistics import RunStatistics

ENDS = ["low", "high"]
DISTANCES = {
    "ood": "distance to reference images (normalized)",
    "ood-raw": "distance to reference images (raw)",
}
FEWEST_BASELINES = 3
VERDICTS = {REPRODUCED: "#00875f", DIFFERS: "#cf5200"}
Options = Mapping[str, str | None]  # model and protocol; None for all


@dataclass(frozen=True)
class Relation:
    """A figure that is drawn from a frame.

    Attributes:
        description: What it shows, in a few words.
        data: Returns the frame; raises HeatproofError, with what would help, if there is none.
        draw: Draws it.
    """

    description: str
    data: Callable[[RunStatistics, Options], pd.DataFrame]
    draw: Callable[[RunStatistics, pd.DataFrame], Figure]


def _colour(run: RunStatistics, method: str) -> str:
    return FAMILIES.get(run.family(method), FAMILIES["other"]).light


def _markers(run: RunStatistics, methods: Sequence[str]) -> dict[str, str]:
    """Return a symbol for each method, other ones for those of a family, which share a colour."""
    seen: dict[str, int] = {}
    markers = {}
    for method in dict.fromkeys(methods):
        number = seen.get(run.family(method), 0)
        seen[run.family(method)] = number + 1
        markers[method] = MARKERS[number % len(MARKERS)]
    return markers


def _of_model(frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    model = options.get("model")
    return frame if model is None else frame[frame["model"] == model].reset_index(drop=True)


def _standings(result: RunStatistics, options: Options) -> Iterator[Standings]:
    for standing in result.standings:
        if options.get("model") in (None, standing.model):
            yield from standing.by_layer


def _errors(line: Mapping[str, Any], value: str) -> list[list[float]]:
    """Return how far an interval extends below and above a value, as matplotlib wants it."""
    if not np.isfinite(line["low"]):
        return [[0.0], [0.0]]
    return [[line[value] - line["low"]], [line["high"] - line[value]]]


# Protocols


def _agreement_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    frame = _of_model(result.agreement(), options)
    if not len(frame):
        raise HeatproofError(
            "agreement needs two protocols and three methods besides controls; "
            'evaluate more: protocols=["sds", "deletion"]'
        )
    return frame


def _draw_agreement(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    from matplotlib.colors import LinearSegmentedColormap

    panels = list(frame.groupby(["model", "layer"], sort=False))
    check_panels(len(panels))
    most = max(len(_names(lines)) for _, lines in panels)
    size = 1.6 + 0.72 * most
    figure, axes = panel_grid(len(panels), width=size + 0.8, height=size)
    colours = LinearSegmentedColormap.from_list("agreement", list(DIVERGING))
    for ((model, layer), lines), ax in zip(panels, axes, strict=True):
        names = _names(lines)
        values = np.eye(len(names))
        texts = {}
        for line in lines.to_dict("records"):
            i, j = names.index(line["a"]), names.index(line["b"])
            values[i, j] = values[j, i] = line["correlation"]
            value, low, high = line["correlation"], line["low"], line["high"]
            text = "all tied"
            if np.isfinite(value):
                text = f"{number(value, 2)}\n{interval(value, low, high, 2)}"
            texts[i, j] = texts[j, i] = text
        ax.imshow(values, cmap=colours, vmin=-1, vmax=1)
        for (i, j), text in texts.items():
            colour = "white" if abs(values[i, j]) > 0.7 else "black"
            ax.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
        ax.set_xticks(range(len(names)), [short(name, 20) for name in names])
        ax.set_yticks(range(len(names)), [short(name, 20) for name in names])
        for label in ax.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
        methods = lines["methods"].iloc[0]
        where = f"{model}, layer {layer}" if layer else model
        finish(ax, f"{where}: rank correlation of {methods} methods")
        ax.grid(visible=False)
    return figure


def _names(lines: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys([*lines["a"], *lines["b"]]))


def _variance_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    frame = result.variance()
    if not len(frame):
        raise HeatproofError(
            "a split of the variance needs two settings and three methods that are not ranked "
            "within layers; evaluate more protocols or baselines"
        )
    return frame


def _draw_variance(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    figure, (ax,) = panel_grid(1, width=4.6, height=1.0 + 0.32 * len(frame))
    for y, line in enumerate(frame.to_dict("records")):
        ax.barh(y, line["share"], height=0.6, color="#0067a8", alpha=0.75)
        ax.errorbar(line["share"], y, xerr=_errors(line, "share"), color="#222222", linewidth=1)
    ax.set_yticks(range(len(frame)), frame["between"])
    ax.set_ylim(len(frame) - 0.4, -0.6)
    ax.set_xlim(0, max(1.0, float(frame[["share", "high"]].max().max())))
    ax.set_xlabel("share of the variance of ranks and 95 % interval", fontsize=8)
    finish(ax, "Which choice moves the ranking")
    return figure


# Cost and quality


def _quality_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    times = result.milliseconds
    lines = []
    for standing in _standings(result, options):
        known = [m for m in standing.order if times.get((standing.model, m), 0) > 0]
        ranks = {m: standing.mean_rank(m) for m in known}
        cost = {m: times[standing.model, m] for m in known}
        best = np.inf
        for method in sorted(known, key=lambda m: (cost[m], ranks[m].value)):
            on_front = ranks[method].value < best
            best = min(best, ranks[method].value)
            where = (standing.model, standing.layer, method)
            lines.append((*where, cost[method], *ranks[method], on_front))
    if not lines:
        raise HeatproofError("the run has no times of single methods on record")
    columns = ["model", "layer", "method", "milliseconds", "mean_rank", *ENDS, "front"]
    return pd.DataFrame(lines, columns=columns)


def _draw_quality(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    panels = list(frame.groupby(["model", "layer"], sort=False))
    check_panels(len(panels))
    figure, axes = panel_grid(len(panels), width=5.4, height=4.2, across=2)
    markers = _markers(run, frame["method"])
    for ((model, layer), lines), ax in zip(panels, axes, strict=True):
        for line in lines.to_dict("records"):
            ax.errorbar(
                line["milliseconds"],
                line["mean_rank"],
                yerr=_errors(line, "mean_rank"),
                color=_colour(run, line["method"]),
                marker=markers[line["method"]],
                markersize=6,
                elinewidth=1,
                alpha=0.9,
                linestyle="",
                label=short(line["method"]),
            )
        front = lines[lines["front"]]
        x, y = front["milliseconds"], front["mean_rank"]
        ax.step(x, y, where="post", color=GREY, linewidth=1, zorder=0)
        ax.set_xscale("log")
        ax.set_ylim(float(frame["high"].max()) + 0.6, 0.4)
        ax.set_xlabel("milliseconds per map in this run (shared passes count for none)", fontsize=8)
        ax.set_ylabel("mean rank and 95 % interval", fontsize=8)
        finish(ax, f"{model}, layer {layer}" if layer else str(model))
    legend(figure, axes)
    return figure


# Layers


def _layers_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    run = result
    summary = _of_model(result.summary_frame, options)
    if options.get("protocol") is not None:
        summary = summary[summary["protocol"] == options["protocol"]]
    facts = run.methods
    summary = summary.assign(
        base=[facts[m].layerless if m in facts else m for m in summary["method"]]
    )
    groups = ["model", "protocol", "setting", "baseline"]
    several = summary.groupby([*groups, "base"], sort=False)["layer"].transform("nunique") > 1
    chosen = summary[several & summary["mean"].notna()]
    if not len(chosen):
        raise HeatproofError(
            "no method was run at several layers; name some: methods=[ixg@middle, ixg@final]"
        )
    return chosen[[*groups, "base", "method", "layer", "mean", *ENDS]].reset_index(drop=True)


def _draw_layers(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    panels = list(frame.groupby(["model", "protocol", "setting", "baseline"], sort=False))
    check_panels(len(panels))
    figure, axes = panel_grid(len(panels), width=4.6, height=3.4)
    first = frame.drop_duplicates("base").set_index("base")["method"]
    markers = _markers(run, list(first))
    for ((model, *key), lines), ax in zip(panels, axes, strict=True):
        layers = _ordered_layers(run, str(model), lines["layer"].unique())
        for base, of_base in lines.groupby("base", sort=False):
            of_base = of_base.sort_values("layer", key=lambda names: names.map(layers.index))
            x = [layers.index(layer) for layer in of_base["layer"]]
            ax.errorbar(
                x,
                of_base["mean"],
                yerr=[of_base["mean"] - of_base["low"], of_base["high"] - of_base["mean"]],
                color=_colour(run, first[base]),
                marker=markers[first[base]],
                markersize=4,
                linewidth=1.3,
                elinewidth=1,
                label=short(str(base)),
            )
        ax.set_xticks(range(len(layers)), [short(layer, 14) for layer in layers])
        ax.set_ylabel("mean score and 95 % interval", fontsize=8)
        ax.set_xlabel("layer, from the image to the output", fontsize=8)
        protocol, setting, baseline = key
        label = run.setting_labels[protocol, setting, baseline]
        finish(ax, f"{model} · {label}" if len(run.models) > 1 else label)
    legend(figure, axes)
    return figure


def _ordered_layers(run: RunStatistics, model: str, names: Sequence[str]) -> list[str]:
    """Return layers in the order of the computation, as far as it is on record."""
    facts = run.facts(model)
    known = ["input", *(facts.all_layers if facts else [])]
    return sorted(names, key=lambda name: known.index(name) if name in known else -1)


# Baselines


def _tradeoff_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    lines = []
    for standing in result.standings:
        if options.get("model") not in (None, standing.model):
            continue
        kept = result.kept(standing.model)
        for protocol in ("deletion", "insertion"):
            if options.get("protocol") not in (None, protocol):
                continue
            settings = [key for key in standing.settings if key[0] == protocol]
            settings = [key for key in settings if key[1] == settings[0][1]]
            found = _with_distances(result, kept, standing, settings)
            if found is not None:
                lines += list(_tradeoff_lines(standing.model, protocol, *found))
    if not lines:
        raise HeatproofError(
            "a trade-off needs three baselines whose distance to the data was measured: "
            "protocols=[{name: deletion, baseline: [zero, blur, uniform], ood: true}]"
        )
    columns = ["model", "protocol", "method", "distance", "measure", "baseline", "x", "x_low"]
    columns += ["x_high", "y", "y_low", "y_high", "correlation", "correlation_low"]
    return pd.DataFrame(lines, columns=[*columns, "correlation_high"])


def _with_distances(
    run: RunStatistics, kept: Any, standing: Standings, settings: Sequence[Key]
) -> tuple[str, dict[str, dict[str, np.ndarray]]] | None:
    """Return the best method whose distances are stored, and its mean curves by baseline."""
    for method in standing.order:
        curves: dict[str, dict[str, np.ndarray]] = {}
        for key in settings:
            stored = {
                name: kept.curves(run.protocols[key], method, name)
                for name in (*DISTANCES, *INFORMATION)
            }
            known = {n: v.double().mean(1).numpy() for n, v in stored.items() if v is not None}
            if any(name in known for name in DISTANCES):
                curves[key[2]] = known
        if len(curves) >= FEWEST_BASELINES:
            return method, curves
    return None


def _tradeoff_lines(
    model: str, protocol: str, method: str, curves: dict[str, dict[str, np.ndarray]]
) -> Iterator[tuple[Any, ...]]:
    first = next(iter(curves.values()))
    measure = next(name for name in first if name not in DISTANCES)
    for distance in DISTANCES:
        if distance not in first:
            continue
        x = np.stack([known[distance] for known in curves.values()], 1)
        y = np.stack([known[measure] for known in curves.values()], 1)
        found = tradeoff(x, y)
        rho = found.correlation if found else Estimate(np.nan, np.nan, np.nan)
        for k, baseline in enumerate(curves):
            ends = (*Estimate.mean(x[:, k]), *Estimate.mean(y[:, k]))
            yield (model, protocol, method, distance, measure, baseline, *ends, *rho)


def _draw_tradeoff(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    panels = list(frame.groupby(["model", "protocol", "distance"], sort=False))
    check_panels(len(panels))
    figure, axes = panel_grid(len(panels), width=4.8, height=3.8, across=2)
    numbers = {name: i for i, name in enumerate(frame["baseline"].unique())}
    for ((model, protocol, distance), lines), ax in zip(panels, axes, strict=True):
        for line in lines.to_dict("records"):
            number = numbers[line["baseline"]]
            ax.errorbar(
                line["x"],
                line["y"],
                xerr=[[line["x"] - line["x_low"]], [line["x_high"] - line["x"]]],
                yerr=[[line["y"] - line["y_low"]], [line["y_high"] - line["y"]]],
                marker=MARKERS[number % len(MARKERS)],
                color=list(FAMILIES.values())[number % len(FAMILIES)].light,
                markersize=6,
                elinewidth=1,
                linestyle="",
                label=line["baseline"],
            )
        one = lines.iloc[0]
        ax.set_xlabel(DISTANCES[str(distance)], fontsize=8)
        ax.set_ylabel(f"information left ({one['measure']})", fontsize=8)
        rho = (
            f"rank correlation {one['correlation']:.2f} "
            f"({one['correlation_low']:.2f} … {one['correlation_high']:.2f})"
        )
        finish(ax, f"{model}, {protocol} in the order of {one['method']}: {rho}")
    legend(figure, axes)
    return figure


# Papers


def _published_data(result: RunStatistics, options: Options) -> pd.DataFrame:
    run = result
    lines = [
        (
            comparison.table.name,
            line.model,
            line.entry.row,
            line.entry.quantity,
            line.entry.value,
            *line.found,
            line.verdict,
        )
        for comparison in all_comparisons(run)
        for line in comparison.lines
        if options.get("model") in (None, line.model)
    ]
    if not lines:
        raise HeatproofError(
            "the run has none of the published numbers; heatproof study lists the studies that have"
        )
    columns = ["table", "model", "row", "quantity", "published", "run", *ENDS, "verdict"]
    return pd.DataFrame(lines, columns=columns)


def _draw_published(run: RunStatistics, frame: pd.DataFrame) -> Figure:
    panels = list(frame.groupby(["table", "model", "quantity"], sort=False))
    check_panels(len(panels))
    most = max(len(lines) for _, lines in panels)
    figure, axes = panel_grid(len(panels), width=4.8, height=1.2 + 0.25 * most)
    for ((table, model, quantity), lines), ax in zip(panels, axes, strict=True):
        for y, line in enumerate(lines.to_dict("records")):
            _draw_beside(ax, y, line)
        ax.set_yticks(range(len(lines)), [short(row) for row in lines["row"]])
        ax.set_ylim(len(lines) - 0.4, -0.6)
        ax.set_xlabel(f"{quantity}: ○ published, ● this run and 95 % interval", fontsize=8)
        finish(ax, f"{table} · {model}")
    for verdict in frame["verdict"].unique():
        colour = VERDICTS.get(verdict, GREY)
        axes[0].plot([], [], "o", color=colour, markersize=5, label=verdict)
    legend(figure, axes)
    return figure


def _draw_beside(ax: Axes, y: int, line: Mapping[str, Any]) -> None:
    colour = VERDICTS.get(line["verdict"], GREY)
    ax.errorbar(line["run"], y, xerr=_errors(line, "run"), marker="o", markersize=5, color=colour)
    ax.plot(line["published"], y, "o", markersize=6, markerfacecolor="none", color="#222222")


RELATIONS: dict[str, Relation] = {
    "agreement": Relation(
        "rank correlation of protocols, with intervals", _agreement_data, _draw_agreement
    ),
    "variance": Relation("which choice moves the ranking", _variance_data, _draw_variance),
    "quality": Relation("mean rank against time per map", _quality_data, _draw_quality),
    "layers": Relation("scores of methods at several layers", _layers_data, _draw_layers),
    "tradeoff": Relation(
        "distance and information left, for each baseline", _tradeoff_data, _draw_tradeoff
    ),
    "published": Relation("the run beside published numbers", _published_data, _draw_published),
}
