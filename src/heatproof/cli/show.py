"""Tables, progress and pictures in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from heatproof.api import Result, load_model
from heatproof.baselines import BASELINES
from heatproof.bench.cost import Forecast, plan_cost
from heatproof.bench.plan import Plan, Task
from heatproof.bench.spec import read_yaml, study_names
from heatproof.data.catalog import DATA
from heatproof.data.folder import fit, read_image
from heatproof.errors import HeatproofError, format_error, unknown
from heatproof.methods import METHODS, TRANSFORMS, Expression, explain, parse_methods
from heatproof.methods.base import NEEDS
from heatproof.models.nets import CIFAR10_NETS, NETS, ON_DEMAND
from heatproof.models.papers import NETWORKS
from heatproof.models.zoo import MODELS
from heatproof.protocols import PROTOCOLS
from heatproof.report.panel import panel
from heatproof.report.sections import ordered_sections
from heatproof.report.run_data import Run
from heatproof.training import cache
from heatproof.training.cifar10 import train_cifar10
from heatproof.training.recipes import RECIPES
from heatproof.training.train import train

FEW = 4  # baselines of a protocol whose scores are printed one by one
console = Console()
BACKWARD = 3  # a backward pass costs about two forwards, and comes with one


@contextmanager
def progress_of(plan: Plan) -> Iterator[Callable[[Task, bool], None]]:
    """A bar that follows the passes as they happen, not only whole tasks."""
    models = list({id(t.model): t.model for t in plan.tasks}.values())
    before = [m.passes.copy() for m in models]
    cost, images = plan_cost(plan), sum(len(t.indices) for t in plan.tasks)
    total = sum(c.forwards + BACKWARD * c.backwards for c in cost.values())
    reused, done = 0.0, 0

    def passed() -> float:
        spent = [m.passes - b for m, b in zip(models, before, strict=True)]
        return sum(s["forward"] + BACKWARD * s["backward"] for s in spent)

    class Passes(TextColumn):
        def render(self, task: Any) -> Any:
            bar.update(task.id, completed=min(total, reused + passed()))
            speed = images * (passed() / total) / task.elapsed if task.elapsed and total else 0
            task.fields["speed"] = f"{speed:.1f} images/s"
            return super().render(task)

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        Passes("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        shown = bar.add_task(f"task 0/{len(plan.tasks)}", total=total, speed="")

        def advance(task: Task, was_there: bool) -> None:
            nonlocal reused, done
            done += 1
            if was_there:
                reused += total * len(task.indices) / images
            bar.update(shown, description=f"task {done}/{len(plan.tasks)}")

        yield advance
        bar.update(shown, completed=total)


def print_summary(result: Result) -> None:
    for model, (correct, labelled) in Run(result.store).accuracy.items():
        if labelled:
            console.print(f"{model} classifies {correct} of {labelled} correctly", markup=False)
        if correct < labelled / 2:
            console.print(
                "  check its classes and its preprocessing (size, mean, std) before you trust what follows",
                style="bold yellow",
            )
    for (model, protocol, setting), group in result.summary().groupby(
        ["model", "protocol", "setting"], sort=False
    ):
        baselines = group["baseline"].nunique()
        if baselines > FEW:
            _print_ranks(model, protocol, setting, group, baselines)
        else:
            for baseline, part in group.groupby("baseline", sort=False):
                _print_scores(model, protocol, setting, part, str(baseline))


def _print_scores(
    model: str, protocol: str, setting: str, lines: pd.DataFrame, baseline: str
) -> None:
    direction = "higher" if PROTOCOLS[protocol].cls.higher_is_better else "lower"
    told = ", ".join(t for t in (setting, f"baseline={baseline}" if baseline else "") if t)
    title = f"{escape(model)} · {protocol}{f' ({told})' if told else ''}: {direction} is better"
    table = _table(
        title,
        {
            "rank (95 %)": "right",
            "method": "left",
            "mean": "right",
            "95 % interval": "right",
            "n": "right",
            "note": "left",
        },
    )
    for _, line in lines.sort_values("rank", na_position="last").iterrows():
        notes = [f"{line[s]} {s}" for s in ("undefined", "failed", "n/a", "skipped") if line[s]]
        known = pd.notna(line["mean"])
        sure = pd.notna(line["low"])
        ranks = (
            f"{line['rank']:.0f}"
            + (f" ({line['rank_low']:.0f}–{line['rank_high']:.0f})" if sure else "")
            if known
            else "–"
        )
        interval = f"{line['low']:.3f} … {line['high']:.3f}" if sure else "–"
        table.add_row(
            ranks,
            escape(line["method"]),
            f"{line['mean']:.3f}" if known else "–",
            interval,
            str(line["n"]),
            ", ".join(notes),
        )
    console.print(table)


def _print_ranks(
    model: str, protocol: str, setting: str, lines: pd.DataFrame, baselines: int
) -> None:
    """Over many baselines: a line a method. The scores of each are in the report."""
    title = f"{escape(model)} · {protocol} ({setting}): ranks over {baselines} baselines"
    table = _table(
        title,
        {
            "mean rank": "right",
            "method": "left",
            "best": "right",
            "worst": "right",
            "worst under": "left",
        },
    )
    ranks = lines.pivot(index="method", columns="baseline", values="rank")
    for method, row in ranks.loc[
        ranks.mean(axis=1).sort_values(na_position="last").index
    ].iterrows():
        known = row.dropna()
        told = (
            (f"{known.mean():.1f}", f"{known.min():.0f}", f"{known.max():.0f}", str(known.idxmax()))
            if len(known)
            else ("–",) * 4
        )
        table.add_row(told[0], escape(str(method)), *told[1:])
    console.print(table)


def _table(title: str, columns: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column, side in columns.items():
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    return table


def print_plan(plan: Plan, expected: Forecast, first: Sequence[str] = ()) -> None:
    for what in first:
        console.print(f"first: {what}", markup=False)
    table = Table("model", box=box.SIMPLE_HEAD)
    for column in ("images", "forwards", "backwards", "time"):
        table.add_column(column, justify="right")
    for subject, cost in plan_cost(plan).items():
        numbers = (f"{n:,}" for n in (cost.images, cost.forwards, cost.backwards))
        table.add_row(escape(subject.title), *numbers, duration(expected.seconds[subject]))
    console.print(table)
    records = sum(len(t.records) for t in plan.tasks)
    na = records - sum(len(t.applicable) for t in plan.tasks)
    console.print(
        f"{len(plan.tasks)} blocks of samples, {records} results"
        + (f" ({na} not applicable)" if na else "")
    )
    if all(label is None for t in plan.tasks for label in t.data.labels):
        console.print(
            "the images have no labels: the model's own predictions are explained and judged"
        )
    size = f"{expected.disk / 2**20:.0f} MB on disk"
    if expected.memory is not None:
        size = f"{expected.memory / 2**30:.1f} GB of memory, {size}"
    console.print(f"about {duration(sum(expected.seconds.values()))}, {size}")


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def catalogue(kind: str) -> list[dict[str, Any]]:
    """Objects with `id` and the registry's facts."""

    def methods() -> Iterator[dict[str, Any]]:
        for e in sorted(METHODS, key=lambda e: e.family):
            defaults = {k: p.default for k, p in e.parameters.items()}
            forwards, backwards = Expression.parse(e.id).cost or (None, None)
            each = " a channel" if "channels" in e.needs else ""
            yield {
                "id": e.id,
                "family": e.family,
                "paper": e.paper,
                "summary": e.summary,
                "signed": e.signed,
                "layer": e.layer,
                "needs": sorted(e.needs),
                "layers": e.layers,
                "cost": _price(forwards, backwards) + each,
                "forwards": forwards,
                "backwards": backwards,
                "arguments": defaults,
                "version": e.version,
            }

    def protocols() -> Iterator[dict[str, Any]]:
        for entry in PROTOCOLS:
            facts = entry.cls().facts()
            yield {
                **facts,
                "better": "higher" if facts["higher_is_better"] else "lower",
                "settings": entry.cls().model_dump(),
            }

    def baselines() -> Iterator[dict[str, Any]]:
        for e in BASELINES:
            given = {k: p.default for k, p in e.parameters.items()}
            facts = {
                "group": e.group,
                "summary": e.summary,
                "knows": "reference images" if e.prepare else "",
            }
            yield {"id": e.id, **facts, "arguments": given, "version": e.version}

    def models() -> Iterator[dict[str, Any]]:
        for name, net in NETS.items():
            ships = name not in ON_DEMAND
            yield {
                "id": f"paperbirds/{name}",
                "size": net.size,
                "classes": net.classes,
                "weights": "ship" if ships else "train",
                "fine_tuned": list(load_model(f"paperbirds/{name}").fine_tuned_weights)
                if ships
                else [],
                "training_minutes": RECIPES[name].minutes,
            }
        for name, network in NETWORKS.items():
            told = {
                "layers": dict(network.layers),
                "zero": network.zero,
                "papers": network.papers,
                "url": network.url or None,
            }
            preprocessing = {"resize": network.resize, "mean": network.mean, "std": network.std}
            yield {
                "id": name,
                "size": network.size,
                "classes": network.classes,
                "weights": "give",
                **told,
                **preprocessing,
            }
        for loader in MODELS:
            if loader.source is not None:
                yield {"id": loader.id, "weights": "its own", "summary": loader.summary}

    def studies() -> Iterator[dict[str, Any]]:
        for name in study_names():
            told = read_yaml(name)
            yield {
                "id": name,
                **{key: told[key] for key in ("about", "models", "data", "methods", "protocols")},
            }

    tables: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "methods": methods,
        "protocols": protocols,
        "baselines": baselines,
        "studies": studies,
        "transforms": lambda: (
            {
                "id": e.id,
                "summary": e.summary,
                "arguments": [str(p.name) for p in e.parameters.values()],
            }
            for e in TRANSFORMS
        ),
        "models": models,
        "data": lambda: ({"id": entry.id, "summary": entry.summary} for entry in DATA),
        "sections": lambda: (
            {"id": entry.id, "name": entry.short, "question": entry.question, "order": entry.order}
            for entry in ordered_sections()
        ),
    }
    return list(tables[kind]())


WIDE = 110  # characters that a table of methods with their papers takes
SHOWN = {
    "methods": ("id", "family", "paper", "signed", "needs", "cost", "layers"),
    "protocols": ("id", "summary", "better", "range", "random_score", "target"),
    "baselines": ("id", "group", "summary", "knows"),
    "studies": ("id", "about"),
    "models": ("id", "size", "weights", "zero", "papers"),
}


NOTES = {
    "methods": [
        "cost: forward and backward passes an image, alone, at 224 px; layers: where it is defined (and is, without @layer)",
        "needs: " + "; ".join(f"{word}: {meaning}" for word, meaning in NEEDS.items()),
        "what each computes, and its arguments: heatproof list methods --json",
    ],
    "baselines": ["knows: what it needs beforehand; arguments: heatproof list baselines --json"],
    "protocols": ["settings and their defaults: heatproof list protocols --json"],
    "models": [
        "weights: they ship; a spec trains them on demand, {train: paperbirds/resnet18}; or you give them, "
        "{name: bagnet33, weights: FILE}, or weights: download",
        "zero: the colour of the zero baseline; layers, preprocessing, addresses: heatproof list models --json, docs/models.md",
        "others: any torchvision:NAME and timm:NAME (extra vision), and file:my_model.py:build",
    ],
}


def _price(forwards: int | None, backwards: int | None) -> str:
    passes = [f"{count} {kind}" for count, kind in ((forwards, "fwd"), (backwards, "bwd")) if count]
    return "?" if forwards is None else " + ".join(passes) or "none"


def print_catalogue(kind: str) -> None:
    rows = catalogue(kind)
    columns = [
        c for c in SHOWN.get(kind) or tuple(rows[0]) if c != "paper" or console.width >= WIDE
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(
            column.replace("_", " "),
            no_wrap=column == "id",
            justify="right" if column.endswith("wards") else "left",
        )
    for row in rows:
        table.add_row(
            *(
                _cell(f"any ({row['layer']})" if row.get(c) == "any" else row.get(c))
                for c in columns
            )
        )
    console.print(table)
    for note in NOTES.get(kind, ()):
        console.print(note, markup=False, highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return value.partition("\n\n")[0]
    return (
        "–"
        if value is None
        else {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else str(value)
    )


def draw_maps(
    images: Sequence[Path],
    name: str,
    weights: str | None,
    methods: Sequence[str],
    target: int | None,
    out: Path,
    seed: int,
    device: str,
) -> str:
    if out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp", ".pdf"):
        raise HeatproofError(f"-o {out}: a picture ends in .png, .jpg, .webp or .pdf")
    out.parent.mkdir(parents=True, exist_ok=True)
    expressions = parse_methods(list(methods))
    model = load_model(name, weights, device)
    photos = torch.stack([fit(read_image(path), model.size, model.resize) for path in images])
    x = model.normalize(photos)
    chances = model.logits(x).softmax(1)
    targets = (
        chances.argmax(1) if target is None else torch.full((len(x),), target, device=model.device)
    )
    maps = {}
    for e in expressions:
        try:
            maps[e.label] = explain(
                model, x, targets, e, ids=[p.name for p in images], seed=seed
            ).cpu()
        except HeatproofError:
            raise
        except Exception as error:
            raise HeatproofError(f"{e.label}: {format_error(error)}") from error
    names = [model.classes[t] if model.classes else f"class {t}" for t in targets.tolist()]
    captions = [f"{n} {p[t]:.0%}" for n, p, t in zip(names, chances, targets, strict=True)]
    panel(list((photos * 255).round().byte()), captions, maps).save(out)
    return f"{out}: {', '.join(f'{p.name}: {c}' for p, c in zip(images, captions, strict=True))}"


@contextmanager
def _steps() -> Iterator[Callable[[int, int, float], None]]:
    """A bar of training steps and the loss."""
    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console
    ) as bar:
        shown = bar.add_task("", total=None, loss=float("nan"))
        yield lambda step, total, loss: bar.update(shown, completed=step, total=total, loss=loss)


def train_on_cifar10(
    name: str, data: str | None, out: Path | None, steps: int | None, seed: int
) -> None:
    if name.removeprefix("cifar10/") not in CIFAR10_NETS:
        raise unknown("model", name, [f"cifar10/{n}" for n in CIFAR10_NETS])
    if data is None or out is None:
        raise HeatproofError(
            f"say where CIFAR-10 is and where the weights go: heatproof train {name} --data cifar10:/path -o FILE"
        )
    with _steps() as progress:
        found = train_cifar10(
            data, out, net=name.removeprefix("cifar10/"), steps=steps, seed=seed, progress=progress
        )
    console.print(
        f"accuracy {found['accuracy']:.2%}, right with confidence ≥ 0.99: {found['confident']:.0%}"
    )
    console.print(f"weights: {out}; in a spec: {{name: {name}, weights: {out}}}", soft_wrap=True)


def train_embedded(name: str, out: Path | None, steps: int | None, seed: int) -> None:
    """Into the cache, unless told where."""
    net = name.removeprefix("paperbirds/")
    if net not in NETS:
        raise unknown("model", name, [f"paperbirds/{n}" for n in NETS])
    path = out or cache.place(net, seed, steps)
    if out is None and path.is_file():
        console.print(f"trained before: {path}", soft_wrap=True)
        return
    with _steps() as progress:
        found = train(net, steps=steps, seed=seed, out=path, progress=progress)
    table = Table(
        "part removed", "mean drop of the logit", "images where it drops", box=box.SIMPLE_HEAD
    )
    for part, drop in found["drops"].items():
        table.add_row(part, f"{drop['mean']:.2f}", f"{drop['share']:.0%}")
    console.print(
        f"accuracy {found['accuracy']:.2%}, right with confidence ≥ 0.99: {found['confident']:.0%}, {found['minutes']:.1f} minutes"
    )
    console.print(table)
    console.print(f"weights: {path}", soft_wrap=True)
    told = (
        f"{{train: paperbirds/{net}{f', seed: {seed}' if seed else ''}}}"
        if out is None
        else f"{{name: paperbirds/{net}, weights: {path}}}"
    )
    if out is not None or steps is None:
        console.print(f"in a spec: {told}", markup=False, soft_wrap=True)


@contextmanager
def making() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is trained before a run."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        shown: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in shown:
                shown[what] = bar.add_task(what, total=total)
            bar.update(shown[what], completed=done)

        yield advance
