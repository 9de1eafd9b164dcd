"""Very large runs: what planning, resuming, summarising and reporting millions of rows takes.

    python benchmarks/scale.py                      # 50,000 samples, 22.5 million rows
    python benchmarks/scale.py --samples 1000 --methods 3 --protocols sds soundness
    python benchmarks/scale.py --folder F           # kept in F, where later
    python benchmarks/scale.py --folder F --steps resume report    # measures some steps again
    python benchmarks/scale.py --samples 1000 --models 1 --pixels 224 --steps write site

makes a run of real models, images, methods and protocols, except that the scores are drawn at
random around a true effect of each method instead of computed, which would take days. Everything
else is that of any run: plan, rows, tensors, manifests and checksums. Each step is then measured in
a process of its own (seconds with all imports, processor seconds, and peak memory), and compared
with its bounds. The exit code is 1 if a bound is exceeded, or if the summary does not have the
means that were drawn.

``site`` builds the report and opens every page in Chromium from disk: its size, what the page loads
before anything is clicked, and the seconds until it is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
import yaml
from PIL import Image

import heatproof as hp
from heatproof import cli
from heatproof.analysis.intervals import GROUP
from heatproof.api import Result
from heatproof.cli.results import print_failures, print_notes, print_summary
from heatproof.data.catalog import Batch
from heatproof.execute.commit import commit_task
from heatproof.execute.engines.base import Engine
from heatproof.execute.recorder import Recorder
from heatproof.execute.rows import RowBuilder
from heatproof.execute.run_plan import run_plan
from heatproof.execute.runner import OpenTask, Watcher
from heatproof.plan.open_spec import open_spec
from heatproof.plan.plan_file import plan_file
from heatproof.plan.spec import load_spec
from heatproof.plan.speed import Pace
from heatproof.plan.tasks import Plan, Record, Task
from heatproof.platform import peak_memory
from heatproof.runs import columns
from heatproof.runs.format import TimingKey
from heatproof.runs.store import Store
from heatproof.tensor.noise import generator

PIXELS = 16  # by default
SMALL = 1000  # samples of the run whose memory the large one is compared with
METHODS = [
    *("saliency", "ixg", "ig", "ig-u", "ixg-sg", "smoothgrad", "squaregrad", "vargrad"),
    *("guided-backprop", "deconvnet", "gradcam", "gradcam++", "xgradcam", "layercam"),
    *("ablationcam", "occlusion(4, 4)", "rise(masks=64)", "lime(masks=64)", "lrp-composite"),
    *("deepshap", "random", "edges", "center", "ixg|abs", "ig|abs", "ig-u|abs", "ixg-sg|abs"),
    *("lrp-composite|abs", "deepshap|abs", "ixg|smooth(3)"),
]
PROTOCOLS = ["sds", "deletion", "insertion", "road", "soundness"]
NETS = """
import torch
from torch import nn

import heatproof as hp


def _net(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, {classes}),
    )
    return hp.Model(net, name=f"net{{seed}}", size={pixels})

"""


@dataclass(frozen=True)
class Bound:
    """What a step may take; None: it is only measured."""

    seconds: float | None = None
    memory: float | None = None  # GB
    disk: float | None = None  # MB
    seconds_open: float | None = None  # until the slowest page is complete
    first_view: float | None = None  # MB of the largest page, before anything is clicked


BOUNDS = {
    "plan": Bound(30, 2),
    "write": Bound(),
    "resume": Bound(10),
    "summary": Bound(60, 4),
    "check": Bound(),
    "report": Bound(60, None, 60),
    "site": Bound(None, None, 30, 1.5, 1),
    "merge": Bound(),
}
GROWTH = 0.1  # by which the memory of writing may exceed that of `SMALL` samples


def make_inputs(folder: Path, samples: int, options: argparse.Namespace) -> None:
    """Write tiny images in folders of classes, networks of a few weights, and a spec.

    What is there from an earlier call with the same options is kept, so that a step can be measured
    again on its own.
    """
    made_for = {"samples": samples} | {
        name: getattr(options, name) for name in ("classes", "models", "methods", "protocols")
    }
    if options.pixels != PIXELS:
        made_for["pixels"] = options.pixels
    note = folder / "inputs.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == made_for:
        return
    images = folder / "images"
    draw = np.random.default_rng(0)
    names = [f"{label:04d}" for label in range(options.classes)]
    for name in names:
        (images / name).mkdir(parents=True, exist_ok=True)
    for i in range(samples):
        path = images / names[i % len(names)] / f"{i:06d}.png"
        pixels = draw.integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, compress_level=0)
    code = NETS.format(classes=options.classes, pixels=options.pixels)
    for seed in range(options.models):
        code += f"\ndef net{seed}():\n    return _net({seed})\n"
    (folder / "nets.py").write_text(code, encoding="utf-8")
    spec = {
        "models": [f"file:{folder / 'nets.py'}:net{seed}" for seed in range(options.models)],
        "data": {"name": f"folder:{images}"},
        "methods": METHODS[: options.methods],
        "protocols": options.protocols,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    note.write_text(json.dumps(made_for), encoding="utf-8")


def open_plan(folder: Path) -> Plan:
    return open_spec(load_spec(folder / "spec.yaml"), "cpu")


class Synthetic(Recorder):
    """Draws what a task would compute, and records it as if it had been."""

    def compute(self) -> None:
        task = self._task
        ids, labels = self._batch.ids, self._batch.labels
        draw = generator(0, "scale", task.name)
        self._clean(draw, task, labels)
        for evaluation in task.records.evaluations:
            name, expression = evaluation.protocol.canonical, evaluation.expression
            self.seconds[TimingKey("maps", expression.map_key)] = 0.1
            self.seconds[TimingKey("scores", expression.label, name)] = 0.1
        values = drawn_scores(task)
        for i, record in enumerate(self._missing):
            curves = drawn_curves(draw, record, len(ids))
            name, label = record.protocol.canonical, record.expression.label
            self.kept.add_curves(0, name, label, curves)
            if record.protocol.aggregates:
                values[i] = np.nan
        self.rows.tables.append(make_rows(task, self._missing, ids, labels, values))

    def _clean(self, draw: np.random.Generator, task: Task, labels: Sequence[int]) -> None:
        """Add logits that are right for two thirds of the samples, images, maps, shared tensors."""
        size = len(labels)
        shown = max(0, min(size, self.kept.keep_maps))
        logits = torch.from_numpy(draw.random((size, task.model.n_classes), np.float32))
        logits[torch.arange(size), torch.tensor(labels)] += torch.from_numpy(draw.random(size) * 3)
        side = task.model.height
        images = drawn_photos(draw, shown, side)
        self.kept.add_clean(0, logits, images, logits[:, :8, None, None])
        if shown:
            for label in {e.expression.label for e in task.records.evaluations}:
                maps = torch.from_numpy(draw.normal(size=(shown, side, side)))
                self.kept.add_map(0, label, maps.float())
        for protocol in task.protocols:
            if protocol.startswith("sds"):
                drops = torch.from_numpy(draw.random((size, 16), np.float32))
                shared = {"drops": drops, "correct": drops.round(), "log_prob": -drops}
            else:
                shared = {
                    "end": logits,
                    "norm": logits.norm(dim=1),
                    "picture": (255 * images).byte(),
                }
            if not protocol.startswith(("road", "soundness")):
                self.kept.add_shared(0, protocol, shared)


def drawn_photos(draw: np.random.Generator, count: int, side: int) -> torch.Tensor:
    """Draw images ``(count, 3, side, side)``: large ones are smooth with some grain, as photos."""
    if side <= PIXELS:
        return torch.from_numpy(draw.random((count, 3, side, side), np.float32))
    coarse = torch.from_numpy(draw.random((count, 3, side // 8, side // 8), np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    grain = torch.from_numpy(draw.normal(0, 0.02, (count, 1, side, side))).float()
    return (smooth + grain).clamp(0, 1)


def make_rows(
    task: Task, records: Sequence[Record], ids: list[str], labels: list[int], values: np.ndarray
) -> pa.Table:
    """Return the rows of all records of a task at once, as `RowBuilder` makes them one by one."""
    of_record = np.repeat(np.arange(len(records)), len(ids))
    of_sample = np.tile(np.arange(len(ids)), len(records))
    builder = RowBuilder(task)
    of_records = [builder.record_columns(record) for record in records]
    texts = {name: [texts[name] for texts in of_records] for name in of_records[0]}
    texts["target_is"] = [target_column(record) for record in records]
    return columns.make_rows(
        **{name: pa.array(values).take(of_record) for name, values in texts.items()},
        sample=pa.array(ids).take(of_sample),
        target=pa.array(labels, pa.int32()).take(of_sample),
        value=pa.array(values.ravel()),
        status="ok",
        message="",
    )


def target_column(record: Record) -> str:
    return "label" if record.protocol.target_policy == "label" else "prediction"


def drawn_scores(task: Task) -> np.ndarray:  # (records, samples)
    """Draw scores: the effect of the method, the difficulty of the sample, and noise."""
    draw = generator(0, "scores", task.name)
    labels = [evaluation.expression.label for evaluation in task.records.evaluations]
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    effects = np.array([0.2 + 0.4 * number[label] / len(number) for label in labels])
    difficulty = draw.normal(0, 0.05, len(task.indices))
    noise = draw.normal(0, 0.05, (len(labels), len(task.indices)))
    return effects[:, None] + difficulty + noise


def drawn_curves(
    draw: np.random.Generator, record: Record, size: int
) -> dict[str, torch.Tensor]:  # (size, steps) each
    """Draw what a protocol keeps of each map."""
    if record.protocol.id == "sds":
        return {}
    if record.protocol.id != "soundness":
        steps = 9 if record.protocol.id == "road" else 11
        return {"score": torch.from_numpy(draw.random((size, steps), np.float32))}
    steps = len(record.protocol.missing)
    # From which step on the label is predicted: the accuracy rises fast at first, then slowly.
    reached = draw.exponential(steps / 5, (size, 1))
    mass = draw.random((size, steps), np.float32) * np.linspace(2, 0, steps, dtype=np.float32)
    score = (np.arange(steps) >= reached).astype(np.float32)
    return {"score": torch.from_numpy(score), "mass": torch.from_numpy(mass)}


def write(plan: Plan, store: Store, watcher: Watcher, open_tasks: Sequence[OpenTask]) -> None:
    """Write tasks as the local engine does, with scores that are drawn instead of computed."""
    for open_task in open_tasks:
        task, missing = open_task
        ids = [task.data.ids[i] for i in task.indices]
        labels = [task.data.labels[i] for i in task.indices]
        batch = Batch(ids, torch.empty(0), labels, None, {})
        synthetic = Synthetic(store, task, missing, batch, plan, Pace())
        synthetic.compute()
        commit_task(store, task, missing, batch, synthetic)
        watcher.finish(task, False)


def run(folder: Path, engine: Engine) -> None:
    plan = open_plan(folder)
    spec = load_spec(folder / "spec.yaml")
    run_plan(plan, Store(folder / "run"), spec.identity(), spec.as_dict(), engine=engine)


def step_plan(folder: Path) -> dict[str, float]:
    plan = open_plan(folder)
    content = plan_file(plan)
    return {"rows": sum(len(t.indices) * len(t.records) for t in plan.tasks if content.tasks)}


def step_write(folder: Path) -> dict[str, float]:
    run(folder, Engine(write))
    return {"disk": size_of(folder / "run")}


def step_resume(folder: Path) -> dict[str, float]:
    def nothing(plan: Plan, store: Store, watcher: Watcher, open_tasks: Sequence[OpenTask]) -> None:
        assert not open_tasks, "the run is finished"

    run(folder, Engine(nothing))
    return {}


def step_summary(folder: Path) -> dict[str, float]:
    """Print what ``heatproof run`` prints at the end."""
    result = Result.load(folder / "run")
    print_summary(result)
    print_notes(result)
    print_failures(result)
    result.summary().to_csv(folder / "summary.csv", index=False)
    return {}


def step_check(folder: Path) -> dict[str, float]:
    """Count the means of the first model that are not those of the scores that were drawn."""
    plan = open_plan(folder)
    first = plan.tasks[0].model_name
    tasks = [task for task in plan.tasks if task.model_name == first]
    total = sum(drawn_scores(task).sum(1) for task in tasks)
    drawn = total / sum(len(task.indices) for task in tasks)
    frame = pd.read_csv(folder / "summary.csv", keep_default_na=False)
    means = frame.set_index([*GROUP, "method"])["mean"].astype(float)
    wrong = 0
    for record, mean in zip(tasks[0].records, drawn.tolist(), strict=True):
        protocol = record.protocol
        if not protocol.aggregates:
            key = (first, protocol.id, protocol.setting, protocol.baseline_name)
            wrong += int(abs(means[*key, record.expression.label] - mean) > 1e-9)
    return {"wrong": wrong}


def step_report(folder: Path) -> dict[str, float]:
    """Build the report as the command line does."""
    cli.main(["report", str(folder / "run"), "-o", str(folder / "report")], standalone_mode=False)
    return {"disk": size_of(folder / "report")}


def step_site(folder: Path) -> dict[str, float]:
    """Build the report, and open every page of it."""
    from playwright.sync_api import sync_playwright

    page = Result.load(folder / "run").report(folder / "report")
    used = {"seconds_open": 0.0, "first_view": 0.0}
    with sync_playwright() as engine:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for file in sorted(page.parent.glob("*.html")):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            loaded: list[str] = []
            tab.on("requestfinished", lambda request, found=loaded: found.append(request.url))
            begin = time.perf_counter()
            tab.goto(file.as_uri())
            seconds = time.perf_counter() - begin
            tab.wait_for_timeout(500)  # what the script asks for without a click
            files = {Path(unquote(urlsplit(url).path)) for url in loaded if url.startswith("file:")}
            size = sum(f.stat().st_size for f in files) / 1e6
            print(f"  {file.name:20}{seconds:6.2f} s, first view {size:.2f} MB", file=sys.stderr)
            used["seconds_open"] = max(used["seconds_open"], seconds)
            used["first_view"] = max(used["first_view"], size)
            tab.close()
        browser.close()
    for entry in sorted(page.parent.iterdir()):
        if entry.is_dir():
            print(f"  {entry.name + '/':20}{size_of(entry):6.2f} MB", file=sys.stderr)
    return {"disk": size_of(page.parent), **used}


def step_merge(folder: Path) -> dict[str, float]:
    """Merge the run with itself: every row is there twice, is compared, and is kept once."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        merged = hp.merge([folder / "run", folder / "run"], Path(out) / "merged")
        manifests = [merged.store.manifest(task.name) for task in merged.store.plan().tasks]
    groups = [group for manifest in manifests if manifest for group in manifest.groups]
    return {"rows": sum(sum(group.rows.values()) * len(group.records) for group in groups)}


STEPS = {
    "plan": step_plan,
    "write": step_write,
    "resume": step_resume,
    "summary": step_summary,
    "check": step_check,
    "report": step_report,
    "site": step_site,
    "merge": step_merge,
}
DEFAULT = [step for step in STEPS if step not in ("site", "merge")]


def size_of(folder: Path) -> float:  # MB
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def measured(step: str, folder: Path) -> dict[str, float]:
    """Return what a step takes in a process of its own: seconds, peak memory in GB, and more."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    environment = {**os.environ, "HEATPROOF_CACHE": str(folder / "cache")}
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


def exceeded(step: str, found: dict[str, float], small: dict[str, float] | None) -> list[str]:
    """Return the bounds that a step has exceeded, as texts."""
    bound = BOUNDS[step]
    texts = [
        f"{name} {found[name]:.2f} > {limit:g}"
        for name in ("seconds", "memory", "disk", "seconds_open", "first_view")
        if (limit := getattr(bound, name)) is not None and found[name] > limit
    ]
    if small is not None and found["memory"] > (1 + GROWTH) * small["memory"]:
        texts.append(f"memory {found['memory']:.3f} of {small['memory']:.3f} GB")
    if found.get("wrong"):
        texts.append(f"{found['wrong']} means are wrong")
    return texts


def measure(folder: Path, options: argparse.Namespace) -> int:
    """Measure every step, print a table and write it as JSON; return the exit code."""
    small = None
    if options.samples > SMALL and "write" in options.steps:
        make_inputs(folder / "small", SMALL, options)
        small = measured("write", folder / "small")
    make_inputs(folder, options.samples, options)
    found = {}
    failed = False
    print(f"load before the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'step':10}{'seconds':>10}{'processor':>11}{'memory, GB':>12}{'disk, MB':>10}  bounds")
    for step in options.steps:
        found[step] = measured(step, folder)
        texts = exceeded(step, found[step], small if step == "write" else None)
        failed |= bool(texts)
        numbers = [found[step][name] for name in ("seconds", "processor", "memory")]
        disk = f"{found[step]['disk']:.0f}" if "disk" in found[step] else ""
        line = f"{step:10}{numbers[0]:10.1f}{numbers[1]:11.1f}{numbers[2]:12.3f}{disk:>10}"
        print(f"{line}  {'; '.join(texts) or 'ok'}", flush=True)
    if small is not None:
        print(f"writing {SMALL} samples: {small['memory']:.3f} GB")
    if options.json:
        content = {"steps": found, "small": small, "samples": options.samples}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--methods", type=int, default=len(METHODS))
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument(
        "--pixels", type=int, default=PIXELS, help="of maps and images that are kept"
    )
    parser.add_argument("--protocols", nargs="+", default=PROTOCOLS)
    parser.add_argument("--steps", nargs="+", default=DEFAULT, choices=list(STEPS))
    parser.add_argument("--folder", type=Path, help="kept; by default a temporary one")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        more = STEPS[options.step](options.folder)
        used = {"processor": time.process_time(), "memory": (peak_memory() or 0) / 1e9}
        print(json.dumps({**used, **more}))
        return 0
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        return measure(options.folder, options)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), options)


if __name__ == "__main__":
    sys.exit(main())
