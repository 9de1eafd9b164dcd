"""`make bench-check` notices a loss, and docs/benchmarks.md is what the results say."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("page", None)


def results(**values):
    ratios = [
        {
            "name": name,
            "value": value,
            "better": "lower" if name == "overhead" else "higher",
            "goal": 1.1 if name == "overhead" else 2.0,
            "detail": "",
        }
        for name, value in values.items()
    ]
    cases = {"one": {"ratios": ratios, "growths": [], "memory": 1.0, "seconds": 1.0}}
    machine = {
        "processor": "mine",
        "instructions": "AVX2",
        "threads": 2,
        "clock": "wall",
        "python": "3",
        "versions": {"torch": "2"},
    }
    return {"machine": machine, "cases": cases}


@pytest.mark.parametrize(
    ("speed", "overhead", "worse"),
    [
        (4.0, 1.0, []),
        (3.5, 1.14, []),  # within 15 %
        (9.0, 0.5, []),
        (3.3, 1.0, ["speed"]),
        (4.0, 1.16, ["overhead"]),
        (1.0, 2.0, ["speed", "overhead"]),
    ],
)
def test_a_loss_of_more_than_15_percent_is_found(bench, speed, overhead, worse):
    before = results(speed=4.0, overhead=1.0)
    assert list(bench.losses(before, results(speed=speed, overhead=overhead))) == worse


def test_a_ratio_that_is_missing_is_a_loss(bench):
    found = bench.losses(results(speed=4.0, other=3.0), results(speed=4.0))
    assert found == {"other": "other: 3.00 before, missing now"}


def test_goals(bench):
    assert bench.missed(results(speed=2.0, overhead=1.1)) == []
    assert bench.missed(results(speed=1.9, overhead=1.2)) == [
        "speed: 1.90, goal 2",
        "overhead: 1.20, goal 1.1",
    ]


@pytest.mark.parametrize(
    ("again", "expected"), [(3.9, []), (3.0, ["speed: 4.00 before, 3.00 now"])]
)
def test_what_seems_slower_is_measured_again(bench, monkeypatch, capsys, again, expected):
    measured = iter([results(speed=3.0), results(speed=again)])
    monkeypatch.setattr(bench, "measure", lambda names, quick: next(measured))
    assert bench.check(["one"], True, results(speed=4.0)) == expected
    assert next(measured, None) is None
    assert "again" in capsys.readouterr().out


def test_a_case_that_fails_says_why(bench):
    assert bench.run_case("no such case", quick=True) == {"error": "KeyError: 'no such case'"}


def test_the_page_is_written_from_the_committed_results(bench):
    import page

    stored = json.loads(bench.RESULTS.read_text()) if bench.RESULTS.is_file() else {}
    assert bench.PAGE.read_text(encoding="utf-8") == page.benchmark_page(stored)
    assert bench.PLOT.is_file() == bool(page.growths_of(stored))
    for results_of_kind in stored.values():
        assert all("error" not in case for case in results_of_kind["cases"].values())


def test_the_loop_over_patches_scores_as_sds_does(monkeypatch):
    import torch

    import heatproof as hp
    from heatproof.data.base import TensorData

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import cases

    model = hp.load_model("paperbirds/resnet", backend="eager")
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    x = model.normalize(images)
    target = torch.arange(4)
    maps = hp.explain(model, x, target, "ixg")
    loop = cases.single_deletion_loop(model.module, x, target, maps)
    result = hp.evaluate(model, TensorData(images, target.tolist()), "ixg", "sds")
    assert result.scores["value"].tolist() == pytest.approx(loop, abs=1e-6)
