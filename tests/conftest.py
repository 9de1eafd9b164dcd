"""Shared fixtures: golden arrays, the small networks they were made with, and a few images."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file
from torch import Tensor, nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.execute import run_plan
from heatproof.execute.latency import time_methods
from heatproof.models.vision import import_timm, import_torchvision

gc.disable()  # until all tests are collected: modules stay
settings.load_profile("ci")  # no time limits, and the same examples on every machine

DATA = Path(__file__).parent / "golden" / "data"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEVIATIONS = pytest.StashKey[list[tuple[str, str, float]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--deviations",
        type=Path,
        help="write the largest deviation of every compared expression to this JSON file",
    )
    parser.addoption("--soak", action="store_true", help="run the tests marked soak, too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[DEVIATIONS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make soak` runs."""
    if config.getoption("--soak"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("soak")]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := session.config.getoption("--deviations"):
        path.write_text(json.dumps(session.config.stash[DEVIATIONS]))


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what heatproof caches out of the user's own cache directory.

    The processes of pytest-xdist share it.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEATPROOF_CACHE", str(root / "cache"))
        yield


FSYNC = os.fsync


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out flushes, which only matter if the system crashes: a run has dozens of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def methods_are_not_timed() -> Iterator[None]:
    """Leave out timing methods alone, which is no part of a score."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_plan, "time_methods", lambda plan, store: None)
        yield


@pytest.fixture(scope="session")
def timing() -> Callable[[], AbstractContextManager[None]]:
    """Time methods alone within a block, as users do."""

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_plan, "time_methods", time_methods)
            yield

    return patched


@pytest.fixture
def timed(timing: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Time methods alone, as users do."""
    with timing():
        yield


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush files, as users do."""
    monkeypatch.setattr(os, "fsync", FSYNC)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let commands be interrupted, also where the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def deviation(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Record the largest deviation of our maps, as a fraction of the reference's largest value.

    The first argument is the whole expression that was compared, or the name of a baseline.
    """

    def record(
        expression: str, against: str, ours: Tensor | np.ndarray, theirs: Tensor | np.ndarray
    ) -> None:
        ours, theirs = (
            np.asarray(torch.as_tensor(v).detach(), dtype=np.float64) for v in (ours, theirs)
        )
        largest = np.nanmax(np.abs(theirs), initial=1e-30)
        fraction = np.nanmax(np.abs(ours - theirs), initial=0) / largest
        request.config.stash[DEVIATIONS].append((expression, against, float(fraction)))

    return record


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        changes = inside != outside or stride > 1
        self.downsample = (
            nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
            if changes
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class GoldenResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = (
            nn.Conv2d(3, 12, 3, 1, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        for i, (inside, outside, stride) in enumerate(
            [(12, 12, 1), (12, 24, 2), (24, 32, 2), (32, 40, 1)], 1
        ):
            setattr(self, f"layer{i}", nn.Sequential(BasicBlock(inside, outside, stride)))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class GoldenVGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = []
        for inside, outside in [(3, 16), (16, 16), (0, 0), (16, 32), (32, 32), (0, 0)]:
            features += (
                [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()]
                if inside
                else [nn.MaxPool2d(2)]
            )
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(2048, 48),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(48, 48),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(48, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def build_golden(name: str) -> nn.Module:
    module = {"resnet": GoldenResNet, "vgg": GoldenVGG}[name]()
    module.load_state_dict(load_file(DATA / f"model_{name}.safetensors"))
    return module.eval()


@pytest.fixture(scope="session")
def golden_model() -> Callable[[str], hp.Model]:
    return cache(lambda name: hp.Model(build_golden(name), size=32, name=name))


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    return cache(lambda case: dict(np.load(DATA / f"{case}.npz")))


@pytest.fixture(scope="session")
def images(golden: Callable[[str], dict[str, np.ndarray]]) -> tuple[Tensor, Tensor]:
    """Eight normalised images of 32 px and their labels, for the golden models."""
    case = golden("case01_single_deletion")
    return torch.from_numpy(case["images"]), torch.from_numpy(case["labels"])


class Sum(nn.Module):
    """Classifies images by the sign of the sum of their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.signs = nn.Linear(1, 2, bias=False)
        nn.init.constant_(self.signs.weight[0], -1)
        nn.init.constant_(self.signs.weight[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.signs(x.flatten(1).sum(1, keepdim=True))
        return logits


@pytest.fixture(scope="session")
def sign_of_sum() -> nn.Module:
    return Sum()


@pytest.fixture
def cheap_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill weights with a constant: drawing them would take longer than all else."""

    def fill(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        with torch.no_grad():
            return tensor.fill_(1e-3)

    drawing = ("kaiming_uniform_", "kaiming_normal_", "normal_", "trunc_normal_", "uniform_")
    for name in (*drawing, "xavier_uniform_", "xavier_normal_"):
        monkeypatch.setattr(nn.init, name, fill)


def extra(load: Callable[[], Any]) -> Any:
    """Import an optional library, or skip the test."""
    try:
        return load()
    except HeatproofError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def torchvision() -> Any:
    return extra(import_torchvision)


@pytest.fixture(scope="session")
def timm() -> Any:
    return extra(import_timm)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, one for all tests of a process, since playwright has one event loop in it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on the path")
    with sync_api.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()
