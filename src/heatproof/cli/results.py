"""Tables of what a run, a plan or a training has produced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from rich.markup import escape

from heatproof.analysis import race_wording, wording
from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.families import LEVEL
from heatproof.analysis.ranks import CONTROL
from heatproof.analysis.run_statistics import RunStatistics
from heatproof.api import Result
from heatproof.cli.terminal import console, duration, make_table, print_plain
from heatproof.data.grids import Grids
from heatproof.errors import join_limited
from heatproof.models.preprocessing import Resize
from heatproof.models.weights_file import metadata
from heatproof.plan.cost import (
    BASES,
    Forecast,
    plan_cost,
    planned_fills,
    seconds_per_fill,
    uncounted_methods,
)
from heatproof.plan.tasks import Plan
from heatproof.protocols import PROTOCOLS
from heatproof.runs.format import Cost, GridNote, ModelView
from heatproof.text import counted, short_titles, with_short_titles

if TYPE_CHECKING:
    from heatproof.analysis.published_lines import Comparison
    from heatproof.results.compare import RunComparison
    from heatproof.results.leaderboard import Leaderboard
    from heatproof.training.by_name import Trained
    from heatproof.training.finetune import Epoch, FineTuned

MAX_BASELINES = 4  # a protocol with more baselines is summarized by ranks
NONE = "–"
LANE = 24  # characters of the lane of a method that was in to the end
MOST_REASONS = 6  # why methods or protocols do not apply


def print_summary(result: Result) -> None:
    """Print what was evaluated, the models' accuracy and the scores or ranks of all methods."""
    run = result
    print_plain(f"evaluated on {run.counts}")
    for model, (correct, labelled) in run.accuracy.items():
        if labelled:
            title = with_short_titles(model, run.models)
            print_plain(f"{title} classifies {correct} of {labelled} images correctly")
    titles = short_titles(run.models)
    groups = result.summary().groupby(["model", "protocol", "setting"], sort=False)
    for (model, protocol, setting), group in groups:
        title = titles.get(model, model)
        baselines = group["baseline"].nunique()
        if baselines > MAX_BASELINES:
            _print_ranks(title, protocol, setting, group, baselines)
            continue
        for baseline, part in group.groupby("baseline", sort=False):
            counts = run.counts_of[model, (protocol, setting, str(baseline))]
            layers = {method: run.ranked_layers.get((model, method), "") for method in run.methods}
            _print_scores(title, protocol, setting, part, str(baseline), counts, layers)
    _print_race(result)
    for caveat in result.caveats:
        console.print(f"! {caveat}", style="bold yellow", markup=False)
    for sentence in result.verdicts:
        print_plain(sentence)


def _print_race(result: Result) -> None:
    """Print the lanes of races, and what happened in them."""
    most = result.race_images
    for of_contest in result.race_lanes:
        title = escape(result.titles[of_contest.model])
        under = f", {of_contest.keys[0][0]}" if len(of_contest.race.contests) > 1 else ""
        columns = {"method": "left", "in the race": "left", "images": "right", "": "left"}
        table = make_table(columns, title=f"{title}{under} · the race", title_justify="left")
        for lane in of_contest.lanes:
            bar = "━" * max(1, round(LANE * lane.images / max(1, most)))
            table.add_row(escape(lane.method), bar, str(lane.images), race_wording.lane(lane))
        console.print(table)
    for sentence in result.race_story:
        print_plain(sentence)


def print_failures(result: Result) -> bool:
    """Print which methods failed and why; return whether any did."""
    for message, rows in result.failures.groupby("message"):
        methods = ", ".join(sorted(set(rows["method"])))
        console.print("failed", style="red", end=" ")
        console.print(f"{methods}: {message} ({counted(len(rows), 'row')})", markup=False)
    return len(result.failures) > 0


def print_notes(result: Result) -> None:
    """Print what methods say about single maps, one line per method and kind of note."""
    for _, line in result.notes.iterrows():
        maps = counted(line["samples"], "map")
        console.print("noted", style="yellow", end=" ")
        console.print(f"{line['method']} on {line['model']}, {maps}:", end=" ", markup=False)
        console.print(f"for example {line['example']}", markup=False)


def _print_scores(
    model: str,
    protocol: str,
    setting: str,
    lines: pd.DataFrame,
    baseline: str,
    counts: SampleCounts,
    layers: Mapping[str, str],
) -> None:
    """Print a table, with the layers if methods are ranked within them; controls come last."""
    direction = "higher" if PROTOCOLS[protocol].cls.higher_is_better else "lower"
    settings = ", ".join(part for part in (setting, baseline and f"baseline={baseline}") if part)
    heading = f"{protocol} ({settings})" if settings else protocol
    by_layer = any(layers.values())
    columns = {
        **({"layer": "left"} if by_layer else {}),
        "rank (95 %)": "right",
        "method": "left",
        "mean": "right",
        "95 % interval": "right",
        "n": "right",
        "note": "left",
    }
    title = f"{escape(model)} · {heading}: {direction} is better, {counts}"
    table = make_table(columns, title=title, title_justify="left", title_style="bold")
    order = [*dict.fromkeys(layer for layer in layers.values() if layer), ""]
    ranked = lines.sort_values("rank", na_position="last", kind="stable")
    if by_layer:
        depth = ranked["method"].map(lambda method: order.index(layers[method]))
        ranked = ranked.iloc[depth.argsort(kind="stable")]
    for _, line in ranked.iterrows():
        rank = NONE
        mean = NONE
        interval = NONE
        if pd.notna(line["rank"]):
            rank = f"{line['rank']:.0f} ({line['rank_low']:.0f}–{line['rank_high']:.0f})"
        if pd.notna(line["mean"]):
            mean = f"{line['mean']:.3f}"
        if pd.notna(line["low"]):
            interval = f"{line['low']:.3f} … {line['high']:.3f}"
        statuses = ("undefined", "failed", "missing", "n/a", "skipped", "noted")
        parts = [f"{line[status]} {status}" for status in statuses if line[status]]
        if pd.isna(line["rank"]) and pd.notna(line["mean"]):
            parts.insert(0, "not ranked: own images")
        notes = ", ".join(parts)
        cells = [rank, escape(line["method"]), mean, interval, str(line["n"]), notes]
        table.add_row(*([layers[line["method"]] or "all"] if by_layer else []), *cells)
    console.print(table)


def _print_ranks(
    model: str, protocol: str, setting: str, lines: pd.DataFrame, baselines: int
) -> None:
    """Print one line per method over many baselines; the report has the scores of each."""
    columns = {
        "mean rank": "right",
        "method": "left",
        "best": "right",
        "worst": "right",
        "worst under": "left",
    }
    title = f"{escape(model)} · {protocol} ({setting}): ranks over {baselines} baselines"
    table = make_table(columns, title=title, title_justify="left", title_style="bold")
    ranks = lines.pivot(index="method", columns="baseline", values="rank")
    order = ranks.mean(axis=1).sort_values(na_position="last").index
    for method, row in ranks.loc[order].iterrows():
        ranked = row.dropna()
        if not len(ranked):
            table.add_row(NONE, escape(str(method)), NONE, NONE, NONE)
            continue
        table.add_row(
            f"{ranked.mean():.1f}",
            escape(str(method)),
            f"{ranked.min():.0f}",
            f"{ranked.max():.0f}",
            str(ranked.idxmax()),
        )
    console.print(table)


def print_plan(plan: Plan, expected: Forecast, to_train: Sequence[str] = ()) -> None:
    """Print what a run would cost, and what has to be trained before it."""
    for description in to_train:
        print_plain(f"first: {description}")
    print_cost(plan_cost(plan), expected.seconds)
    results = sum(len(task.records) for task in plan.tasks)
    console.print(f"{counted(len(plan.tasks), 'task')}, {counted(results, 'result')}")
    print_not_applicable(plan)
    uncounted = uncounted_methods(plan)
    if uncounted:
        print_plain(
            f"Not counted: {join_limited(uncounted)}, since what methods of your own and of other "
            "libraries cost is not known; the run takes longer. A function says it with "
            "@hp.method(…, cost=(forward, backward) passes per image)."
        )
    for name, count in planned_fills(plan).items():
        spent = count * seconds_per_fill(plan, name)
        print_plain(
            f"{name} fills in up to {counted(count, 'image')}, about {duration(spent)} beside the "
            "rest; fills that are in the cache are not made again."
        )
    if all(label is None for task in plan.tasks for label in task.data.labels):
        console.print(
            "The images have no labels: methods explain the model's own predictions, and "
            "protocols evaluate them."
        )
    print_layers(plan)
    print_backends(plan)
    parts = [f"about {duration(sum(expected.seconds.values()))}"]
    if expected.memory is not None:
        parts.append(f"{expected.memory / 2**30:.1f} GB of memory")
    parts.append(f"{expected.disk / 2**20:.0f} MB on disk")
    console.print(", ".join(parts))
    print_plain(f"The time is {BASES[expected.basis]}.")


def print_not_applicable(plan: Plan) -> None:
    """Print which methods and protocols have no scores on a model, and why: a line per reason."""
    found: dict[str, dict[str, None]] = {}
    counts: Counter[str] = Counter()
    for task in {task.subject: task for task in plan.tasks}.values():
        for evaluation in task.records.evaluations:
            if evaluation.not_applicable:
                found.setdefault(evaluation.not_applicable, {})[task.subject.title] = None
                counts[evaluation.not_applicable] += 1
    for reason, titles in list(found.items())[:MOST_REASONS]:
        names = with_short_titles(join_limited(titles), list(titles))
        print_plain(f"n/a on {names}, {counted(counts[reason], 'combination')}: {reason}")
    if len(found) > MOST_REASONS:
        print_plain(f"n/a: {len(found) - MOST_REASONS} more reasons; the report has all")


def print_layers(plan: Plan) -> None:
    """Print that methods will be ranked within layers, if one is evaluated at several."""
    several: dict[str, None] = {}
    for task in {task.subject: task for task in plan.tasks}.values():
        layers: dict[str, set[str]] = {}
        for evaluation in task.records.evaluations:
            expression = evaluation.expression
            if expression.entry.family != CONTROL:
                name = expression.at(expression.entry.layer).label
                layers.setdefault(name, set()).add(task.model.layer_name(expression.layer))
        several |= dict.fromkeys(name for name, at in layers.items() if len(at) > 1)
    if several:
        print_plain(
            f"Methods are ranked within layers, as {join_limited(several)} is evaluated at "
            "several: a method at one layer is not compared with one at another."
        )


def print_backends(plan: Plan) -> None:
    """Print which backend computes the passes of each model, and why it was chosen."""
    titles: dict[str, list[str]] = {}
    for subject, model in {task.subject: task.model for task in plan.tasks}.items():
        reason = f" ({model.backend_reason})" if model.backend_reason else ""
        titles.setdefault(f"{model.backend}{reason}", []).append(subject.title)
    for text, subjects in titles.items():
        of = f" of {join_limited(subjects)}" if len(titles) > 1 else ""
        print_plain(f"Backend{of}: {text}.")


def print_cost(
    cost: Mapping[ModelView, Cost], seconds: Mapping[ModelView, float] | None = None
) -> None:
    """Print the passes of each model view, and how long they take if that is known."""
    total = sum(cost.values(), Cost(images=0, forwards=0, backwards=0))
    later = ["later"] if total.later_forwards or total.later_backwards else []
    numbers = ["images", "forwards", "backwards", *later, *(["time"] if seconds else [])]
    table = make_table({"model": "left"} | dict.fromkeys(numbers, "right"))
    models = [subject.model for subject in cost]
    for subject, passes in cost.items():
        counts = [passes.images, passes.forwards, passes.backwards]
        counts += [passes.later_forwards + passes.later_backwards] * len(later)
        time = [duration(seconds[subject])] if seconds else []
        title = with_short_titles(subject.title, models)
        table.add_row(escape(title), *(f"{count:,}" for count in counts), *time)
    console.print(table)
    if len(cost) > 1:
        print_plain(f"in all {total.forwards:,} forward and {total.backwards:,} backward passes")
    if later:
        print_plain(
            f"{total.later_forwards:,} forward and {total.later_backwards:,} backward passes more "
            "start at a later layer, and cost as much less"
        )


def print_assumed(models: Sequence[str]) -> None:
    """Print for which models the images of grids are not known yet."""
    if models:
        print_plain(
            "Grids: the number asked for is assumed. Whether there are enough images that "
            f"{with_short_titles(join_limited(models), models)} classifies with confidence is "
            "known when the run starts."
        )


def print_validated(spec: str, plan: Plan) -> None:
    """Print that a spec is valid, and how each model preprocesses its images."""
    results = sum(len(task.records) for task in plan.tasks)
    tasks = counted(len(plan.tasks), "task")
    print_plain(
        f"{spec} is valid: {_planned_counts(plan)}, {counted(results, 'result')} in {tasks}"
    )
    # The cells of a grid may be seen by the same model.
    seen = {id(task.model): task for task in plan.tasks[::-1]}
    names = [task.model_name for task in plan.tasks]
    for task in reversed(seen.values()):
        subject, model = task.subject, task.model
        cells = task.data.side if isinstance(task.data, Grids) else 1  # along a side
        height, width = model.height // cells, model.width // cells
        resize = Resize.parse(model.resize, min(model.height, model.width))
        resized = resize._replace(side=resize.side // cells).text
        whole = resize.square and resize.side == min(model.height, model.width)
        cropped = "" if whole else ", then the centre cropped"
        mean = ", ".join(f"{value:.3g}" for value in model.mean.flatten().tolist())
        std = ", ".join(f"{value:.3g}" for value in model.std.flatten().tolist())
        size = str(height) if height == width else f"{height}×{width}"
        grid = f"{cells}×{cells} images of " if cells > 1 else ""
        head = "" if model.head == "softmax" else f" ({model.head} head)"
        print_plain(
            f"{with_short_titles(subject.title, names)}: {grid}{size} px "
            f"(images of another size: {resized}{cropped}), mean {mean}, std {std}, "
            f"{counted(model.n_classes, 'class', 'classes')}{head}"
        )
    print_not_applicable(plan)
    print_layers(plan)


def _planned_counts(plan: Plan) -> SampleCounts:
    """Count the samples of a plan, each once however many models and views evaluate it."""
    samples = []
    grids: dict[str, GridNote] = {}
    for task in plan.tasks:
        ids = [task.data.ids[i] for i in task.indices]
        samples += ids
        if isinstance(task.data, Grids):
            contents = task.data.contents
            grids |= {i: GridNote(images=contents[i].images, cell=contents[i].cell) for i in ids}
    return SampleCounts.of(samples, grids)


def print_comparison(comparison: Comparison, run: RunStatistics) -> None:
    """Print a run beside the published numbers of a table."""
    table = comparison.table
    print_plain(f"{table.name}: {table.title}")
    print_plain(f"published: {table.data}")
    data = run.provenance.spec.get("data", {}).get("name", "")
    print_plain(f"run:       {run.counts}{f' of {data}' if data else ''}")
    columns = {
        "row": "left",
        "published": "right",
        "run": "right",
        "95 % interval": "right",
        "difference (joint interval)": "right",
        "verdict": "left",
    }
    shown = make_table(columns)
    for line in comparison.lines:
        digits = line.entry.digits
        interval = f"{line.found.low:.{digits}f} … {line.found.high:.{digits}f}"
        shown.add_row(
            escape(line.entry.row),
            line.entry.printed,
            f"{line.found.value:.{digits}f}",
            NONE if pd.isna(line.found.low) else interval,
            wording.estimate(line.difference, digits),
            line.shown_verdict + wording.would_decide(line.verdict, line.needed),
        )
    console.print(shown)
    for said in comparison.same_as:
        print_plain(wording.said_network(said.model, said.network, said.by))
    for found in comparison.correlations:
        print_plain(
            f"rank correlation over {counted(found.number, found.over)}, {found.model}, "
            f"{found.of}: {wording.estimate(found.estimate)}"
        )
    for reason in dict.fromkeys(line.reason for line in comparison.lines if line.reason):
        print_plain(f"not comparable: {reason}")
    for reason, count in comparison.missing.items():
        print_plain(
            f"{count} of the {len(table.entries)} published numbers are not in the run: {reason}"
        )


def print_run_comparison(comparison: RunComparison) -> None:
    """Print the paired differences of two runs, and what changed between them."""
    print_plain(comparison.summary)
    columns = {
        "method": "left",
        "a": "right",
        "b": "right",
        "difference": "right",
        "joint 95 %": "right",
        "p": "right",
        "n": "right",
    }
    for title, lines in comparison.groups():
        table = make_table(columns, title=escape(title), title_justify="left", title_style="bold")
        for line in lines:
            interval = f"{line['low']:+z.3f} … {line['high']:+z.3f}"
            table.add_row(
                escape(line["method"]),
                *(NONE if pd.isna(line[k]) else f"{line[k]:.3f}" for k in ("a", "b")),
                NONE if pd.isna(line["difference"]) else f"{line['difference']:+z.3f}",
                NONE if pd.isna(line["low"]) else interval,
                wording.p_value(line["p"]),
                str(line["n"]),
                style="bold" if line["p"] <= LEVEL else None,
            )
        console.print(table)
    if comparison.few:
        print_plain(
            "fewer than six independent samples have no interval: no test of so few succeeds"
        )
    for change in comparison.changes.to_dict("records"):
        print_plain(f"changed: {change['what']}: {change['a']} → {change['b']}")
    for name, lines in (("a", comparison.only_in_a), ("b", comparison.only_in_b)):
        methods = dict.fromkeys(lines["method"])
        if methods:
            print_plain(
                f"only in {name}: {counted(len(lines), 'score')}, of {join_limited(methods)}"
            )


def print_leaderboard(leaderboard: Leaderboard) -> None:
    """Print the tables of a leaderboard, and why there are several."""
    from heatproof.results.leaderboard import place_and_mark

    for board in leaderboard.boards:
        print_plain(board.title)
        varying = [name for name in ("model", "run") if board.lines[name].nunique() > 1]
        same = [name for name in ("model", "run") if name not in varying]
        if same:
            print_plain(", ".join(f"{name} {board.lines[name].iloc[0]}" for name in same))
        columns = {"": "right", "method": "left", **dict.fromkeys(varying, "left")}
        columns |= {"mean": "right", "95 % interval": "right", "letters": "left"}
        table = make_table(columns)
        for line in board.lines.to_dict("records"):
            known = not pd.isna(line["low"])
            place, mark = place_and_mark(line, len(board.samples))
            table.add_row(
                place,
                *(escape(line[name]) for name in ("method", *varying)),
                f"{line['mean']:.3f}",
                f"{line['low']:.3f} … {line['high']:.3f}" if known else NONE,
                mark,
            )
        console.print(table)
    for note in leaderboard.notes:
        print_plain(note)


def print_figures(listed: Sequence[tuple[str, str, str]]) -> None:
    """Print names and descriptions of figures or tables, and why a run does not have some."""
    width = max(len(name) for name, _, _ in listed)
    for name, description, reason in listed:
        lacking = f" (not in this run: {reason})" if reason else ""
        print_plain(f"{name:<{width}}  {description}{lacking}")


def print_gate(lines: pd.DataFrame) -> set[str]:
    """Print which scores are, or may be, worse than allowed; return the outcomes."""
    for text in wording.gate_lines(lines):
        print_plain(text)
    return set(lines["outcome"])


def print_trained(trained: Trained) -> None:
    """Print accuracy and part drops of a trained network, and how a spec refers to it."""
    if trained.metrics is None:
        print_plain(f"already trained: {trained.weights}")
        return
    metrics = trained.metrics
    text = (
        f"accuracy {metrics['accuracy']:.2%}, "
        f"correct with confidence ≥ 0.99: {metrics['confident']:.0%}"
    )
    if "minutes" in metrics:
        text += f", {metrics['minutes']:.1f} minutes"
    console.print(text)
    if "drops" in metrics:
        table = make_table(
            {
                "part removed": "left",
                "mean drop of the logit": "left",
                "images where it drops": "left",
            }
        )
        for part, drop in metrics["drops"].items():
            table.add_row(part, f"{drop['mean']:.2f}", f"{drop['fraction']:.0%}")
        console.print(table)
    print_plain(f"weights: {trained.weights}")
    if trained.spec:
        print_plain(f"in a spec: {trained.spec}")


def print_finetuned(result: FineTuned, model: str, weights: str | None) -> None:
    """Print the metrics of all epochs, what was skipped, and how a spec uses the weights."""
    worst = ("worst patch (all correct)", "worst patch (largest drop)")
    numbers = ("loss", "clean", *worst, "probe IDSDS", "seconds", "")
    table = make_table({"epoch": "left"} | dict.fromkeys(numbers, "right"))
    for epoch in result.metrics:
        table.add_row(*_epoch_row(epoch, result.best))
    console.print(table)
    if result.unreadable:
        images = (f"{sample} ({reason})" for sample, reason in result.unreadable.items())
        print_plain(
            f"{len(result.unreadable)} images could not be read and were skipped: "
            + join_limited(images)
        )
    if result.empty_classes:
        print_plain(
            f"{len(result.empty_classes)} classes have no training image: "
            + join_limited(result.empty_classes)
        )
    entry = [f"name: {model!r}"]
    if weights:
        entry.append(f"weights: {weights!r}")
    fine_tuned = metadata(result.weights)["fine_tuned"]
    entry.append(f"fine_tuned_weights: {{{fine_tuned}: {str(result.weights)!r}}}")
    protocol = "f-fidelity" if "%" in fine_tuned else "idsds"
    print_plain(
        f"Accuracies are on the validation images. To use the weights for {protocol} in a spec:"
    )
    print_plain(f"  models: [{{{', '.join(entry)}}}]")


def _epoch_row(epoch: Epoch, best: int) -> list[str]:
    note = ""
    if epoch.epoch == 0:
        note = "before"
    elif epoch.epoch == best:
        note = "kept"
    return [
        str(epoch.epoch),
        NONE if epoch.loss is None else f"{epoch.loss:.4f}",
        f"{epoch.accuracy:.2%}",
        f"{epoch.worst_all:.2%}",
        f"{epoch.worst_largest:.2%}",
        NONE if epoch.idsds is None else f"{epoch.idsds:.3f}",
        f"{epoch.seconds:.0f}",
        note,
    ]
