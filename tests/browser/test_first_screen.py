"""Overviews of usual and odd runs: what is on the first screen, and that everything fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import small_model
from torch import nn
from visitor import serious_findings

import heatproof as hp

pytestmark = pytest.mark.browser

METHODS = ["saliency", "ixg", "gradcam", "random", "edges"]
FIRST_SCREEN = {1300: 900, 390: 2 * 844}  # px: a desktop, and two screens of a phone
BOTTOMS = """() => Object.fromEntries(
    Object.entries({lead: '.lead', maps: '.example-maps', sure: '.verdict .winner + h3 + p'})
        .map(([name, of]) => [name, [...document.querySelectorAll(of)]])
        .filter(([, found]) => found.length)
        .map(([name, found]) => [name, found[0].getBoundingClientRect().bottom + scrollY]))"""


EVIL = "<img src=x onerror=\"document.title='taken over'\">"
TWELVE = [f"zoo/network-{i}-of-twelve" for i in range(12)]


def noise(model, x, target, *, rng):
    return rng.normal("noise", x.shape[2:])


def named_models(*names: str) -> list[hp.Model]:
    return [small_model(name) for name in names]


def images(count: int, channels: int = 3, classes: int = 4, **options: Any) -> hp.TensorData:
    values = torch.rand(count, channels, 16, 16, generator=torch.Generator().manual_seed(0))
    return hp.TensorData(values, **{"labels": [i % classes for i in range(count)]} | options)


def network(channels: int, classes: int) -> hp.Model:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    half = [0.5] * channels
    net.append(nn.Linear(4, classes))
    return hp.Model(net, size=16, mean=half, std=half, name="net")


def evaluate(model: Any, data: Any, methods: Any = METHODS, protocols: Any = "sds(patches=4)", **o):
    return hp.evaluate(model, data, methods, protocols, **{"keep_maps": 3, "batch_size": 64} | o)


def hostile(_: Path) -> hp.Result:
    ids = [EVIL, "x" * 10_000, "שלום 🦜", *(f"s{i}" for i in range(9))]
    models = named_models(EVIL, "מודל 🦜", "n" * 10_000)
    methods = [*METHODS, hp.named("m" * 4000, noise), hp.named("a_rather_long_name" * 5, noise)]
    return evaluate(models, images(12, ids=ids), methods)


def half_done(out: Path) -> hp.Result:
    result = evaluate(named_models("one"), images(70), out=out)
    last = max(path.stem for path in (result.store.root / "tasks").iterdir())
    for folder in ("tasks", "rows"):  # as before its last task was finished
        next((result.store.root / folder).glob(f"{last}.*")).unlink()
    return hp.Result.load(result.store.root)


SIXTY = [hp.named(f"noise_{i}", noise) for i in range(55)]
RUNS: dict[str, Callable[[Path], hp.Result]] = {
    "one model": lambda _: evaluate(named_models("one"), images(12)),
    "three models": lambda _: evaluate(named_models(*TWELVE[:3]), images(12)),
    "twelve models": lambda _: evaluate(named_models(*TWELVE), images(12)),
    "sixty methods": lambda _: evaluate(named_models("one"), images(12), [*METHODS, *SIXTY]),
    "one image": lambda _: evaluate(named_models("one"), images(1)),
    "names": hostile,
    "no labels, no maps": lambda _: evaluate(
        named_models("one"), images(12, labels=None), keep_maps=0
    ),
    "one channel": lambda _: evaluate(network(1, 4), images(12, 1)),
    "two classes": lambda _: evaluate(
        network(3, 2), images(12, classes=2), METHODS, ["sds(patches=4)", "gridpg(grids=2)"]
    ),
    "half done": half_done,
    "controls alone": lambda _: evaluate(named_models("one"), images(12), ["random", "edges"]),
}
EXPECTED = {
    "twelve models": "of 12 models",
    "one image": "only 1 image",
    "no labels, no maps": "No maps were kept in this run",
    "two classes": "gridpg does not apply",
    "half done": "1 of 2 tasks are missing",
    "controls alone": "Only controls were run",
}


WIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.mark.parametrize("run", RUNS)
def test_the_first_screen_has_the_answer(visit, tmp_path: Path, run: str):
    report = RUNS[run](tmp_path / "run").report(tmp_path / "report").parent
    for width, height in FIRST_SCREEN.items():
        page = visit(report, viewport={"width": width, "height": 900}).open()
        bottoms = page.evaluate(BOTTOMS)
        assert max(bottoms.values()) < height, (width, bottoms)
        assert ("maps" in bottoms) == (run not in ("no labels, no maps", "controls alone"))
        text = " ".join(page.locator("main").inner_text().split())
        assert EXPECTED.get(run, "") in text
        assert page.evaluate(WIDE) <= 0
        assert serious_findings(page) == []


@pytest.mark.parametrize("run", ["names", "twelve models", "sixty methods"])
def test_no_page_overflows(visit, tmp_path: Path, run: str):
    report = RUNS[run](tmp_path / "run").report(tmp_path / "report").parent
    visitor = visit(report)
    for path in sorted(report.glob("*.html")):
        page = visitor.open(path.name)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        page.wait_for_load_state("networkidle")
        for width in FIRST_SCREEN:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(WIDE) <= 0, (path.name, width)
