"""``backend: auto``: the fastest backend that agrees, the same for the whole run."""

import importlib.util
import json
import math

import pytest
import torch

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.models import backends
from heatproof.plan import backend_choice as choice
from heatproof.plan.backend_choice import Trial, choices_of
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.runs.store import Store

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 8},
    "methods": ["ixg", "random"],
    "protocols": ["sds"],
    "batch_size": 8,
    "keep_maps": 0,
}
openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Measure every run, whatever its size, in a cache of its own."""
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "MEASURED_FROM_OPERATIONS", 0.0)
    return tmp_path / "cache" / "backends"


@pytest.fixture
def no_openvino(monkeypatch):
    monkeypatch.setattr(
        backends, "missing", lambda name: "pip install it" if name == "openvino" else ""
    )


def fused_is_chosen(monkeypatch):
    monkeypatch.setattr(choice, "_best", lambda *_: choice.Choice("fused", "it is the fastest"))


def backend_of(plan):
    (model,) = {task.model for task in plan.tasks}
    return model.backend, model.backend_reason


def test_a_short_run_is_eager_and_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "_measure", None)
    backend, reason = backend_of(open_spec(make_spec(SPEC)))
    assert backend == "eager"
    assert reason == "136 forward passes take no longer than to try others"  # 8 · (1 + 16)
    assert not (tmp_path / "backends").exists()


def test_backends_are_measured_once_and_then_read(cache, monkeypatch):
    shown = []
    first = backend_of(open_spec(make_spec(SPEC), progress=lambda *step: shown.append(step)))
    assert {step[0] for step in shown} == {"trying backends for paperbirds/resnet, once"}
    (file,) = cache.iterdir()
    trials = json.loads(file.read_bytes())["of"]
    tried = {"eager", "fused"} | {"openvino"} - {n for n in backends.NAMES if backends.missing(n)}
    assert set(trials) == tried  # `compile` is for longer runs
    assert [step[1:] for step in shown] == [(i, len(tried)) for i in range(len(tried) + 1)]
    assert all(trial["seconds"] > 0 for trial in trials.values())
    for name in tried - {"eager"}:
        assert trials[name]["difference"] < 1e-4
        assert trials[name]["correlation"] > 0.999
        assert trials[name]["refusal"] == ""
    monkeypatch.setattr(choice, "_measure", None)
    assert backend_of(open_spec(make_spec(SPEC))) == first
    assert first[1].startswith("passes per second: ")


def test_other_weights_batches_and_threads_are_measured_anew(cache, no_openvino):
    open_spec(make_spec(SPEC))
    open_spec(make_spec({**SPEC, "models": ["paperbirds/vgg"]}))
    open_spec(make_spec({**SPEC, "batch_size": 4}))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        open_spec(make_spec(SPEC))
    finally:
        torch.set_num_threads(threads)
    assert len(list(cache.iterdir())) == 4


def test_a_damaged_cache_is_measured_anew(cache, no_openvino):
    open_spec(make_spec(SPEC))
    (file,) = cache.iterdir()
    file.write_bytes(b"{")
    open_spec(make_spec(SPEC))
    assert json.loads(file.read_bytes())["of"]["eager"]["seconds"] > 0


def test_validation_measures_nothing(cache, monkeypatch):
    monkeypatch.setattr(choice, "_measure", None)
    plan = open_spec(make_spec(SPEC), measure=False)
    assert backend_of(plan) == ("eager", "others have not been tried")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"eager": 1.0, "fused": 0.8, "openvino": 0.5}, "openvino"),
        ({"eager": 1.0, "fused": 0.4, "openvino": 0.5}, "fused"),
        ({"eager": 1.0, "fused": 0.95, "openvino": 1.5}, "eager"),
        ({"eager": 1.0}, "eager"),
        ({}, "eager"),
    ],
)
def test_the_fastest_is_chosen_if_it_gains_enough(seconds, expected):
    trials = {name: Trial(seconds=value) for name, value in seconds.items()}
    assert choice._decide(trials).backend == expected


def test_a_backend_that_disagrees_or_fails_is_skipped_with_its_reason(
    cache, no_openvino, monkeypatch
):
    right = backends._fused

    def noisy(program):
        forward = right(program)

        def with_noise(x):
            logits, embedding = forward(x)
            noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(len(calls)))
            calls.append(1)
            return logits + level * (logits.max() - logits.min()) * noise, embedding

        return with_noise

    calls: list[int] = []
    level = 1e-4  # below the tolerance of logits, but the drops of some patches change places
    monkeypatch.setitem(backends._MAKERS, "fused", noisy)
    monkeypatch.setattr(choice, "LEAST_CORRELATION_WITH_EAGER", 1.0 - 1e-9)
    backend, reason = backend_of(open_spec(make_spec(SPEC)))
    assert backend == "eager"
    assert "fused was refused: its drops of patches have a rank correlation of 0.9" in reason

    def broken(program):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(backends._MAKERS, "fused", broken)
    next(cache.iterdir()).unlink()
    backend, reason = backend_of(open_spec(make_spec(SPEC)))
    assert backend == "eager"
    assert "fused was refused" in reason
    assert "no such kernel" in reason


def test_what_is_compared():
    logits = torch.tensor([[0.0, 10.0]])
    drops = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    eager = (logits, drops, 1.0)
    same = choice._compared(eager, (logits, 2 * drops, 0.5))
    assert same == Trial(seconds=0.5, correlation=1.0)
    far = choice._compared(eager, (logits + 0.02, drops, 0.5))
    assert math.isclose(far.difference, 2e-3, rel_tol=1e-3)
    assert far.refusal == "its logits differ by 2e-03 of their range"
    swapped = drops[:, [1, 0, 2, 3]]
    assert choice._compared(eager, (logits, swapped, 0.5)).correlation == pytest.approx(0.8)
    nan = choice._compared(eager, (logits * torch.nan, drops, 0.5))
    assert nan.refusal == "its logits differ by nan of their range"
    constant = (logits, torch.zeros(1, 4), 1.0)
    assert choice._compared(constant, constant).refusal == ""


def test_a_run_keeps_its_backend(tmp_path, monkeypatch):
    fused_is_chosen(monkeypatch)
    run = tmp_path / "run"
    hp.run(SPEC, run)
    begun = choices_of(run)
    assert {c.backend for c in begun.values()} == {"fused"}
    facts = Store(run).provenance().models[0]
    assert (facts.backend, facts.backend_reason) == ("fused", "it is the fastest")
    monkeypatch.undo()
    reused = []
    result = hp.run({**SPEC, "methods": ["ixg", "random", "saliency"]}, run)
    assert choices_of(run) == begun
    assert result.scores["method"].nunique() == 3
    hp.run(SPEC, run, progress=lambda _, done: reused.append(done))
    assert reused == [True]
    # Workers plan the same records, from the run directory.
    stored = [key for task in Store(run).plan().tasks for key in task.records]
    planned = open_spec(make_spec(SPEC), train=False, out=run)
    assert [key for task in planned.tasks for key in task.records.keys] == stored
    elsewhere = open_spec(make_spec(SPEC), train=False, out=tmp_path / "other")
    assert [key for task in elsewhere.tasks for key in task.records.keys] != stored


def test_a_backend_that_is_not_installed_any_more_is_named(tmp_path, monkeypatch):
    fused_is_chosen(monkeypatch)
    hp.run(SPEC, tmp_path)
    monkeypatch.setattr(
        backends, "missing", lambda name: "pip install fuse" if name == "fused" else ""
    )
    with pytest.raises(
        HeatproofError,
        match="paperbirds/resnet: this run was begun with the backend fused, which is not "
        r"installed here; install it \(pip install fuse\), or begin another run with -o",
    ):
        hp.run(SPEC, tmp_path)


def test_a_named_backend_that_is_not_installed_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "missing", lambda name: "pip install fuse")
    with pytest.raises(HeatproofError, match="the backend fused is not installed: pip install fu"):
        hp.run({**SPEC, "backend": "fused"}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_python_calls_choose_and_leave_the_model_as_it_is(tmp_path, monkeypatch):
    fused_is_chosen(monkeypatch)
    model = hp.load_model("paperbirds/resnet")
    arguments = {"limit": 8, "batch_size": 8, "keep_maps": 0, "out": tmp_path}
    hp.evaluate(model, "paperbirds:test", "ixg", **arguments)
    assert model.backend == "auto"
    assert {c.backend for c in choices_of(tmp_path).values()} == {"fused"}
    hp.evaluate(
        model, "paperbirds:test", "ixg", **{**arguments, "out": tmp_path / "e"}, backend="eager"
    )
    assert {c.backend for c in choices_of(tmp_path / "e").values()} == {"eager"}
    with pytest.raises(HeatproofError, match='unknown backend "fuse"; did you mean fused'):
        hp.evaluate(model, "paperbirds:test", "ixg", **arguments, backend="fuse")


def test_a_run_that_names_its_backend_goes_on_with_auto(tmp_path):
    hp.run({**SPEC, "backend": "fused"}, tmp_path)
    reused = []
    hp.run(SPEC, tmp_path, progress=lambda _, done: reused.append(done))
    assert reused == [True]
    assert {c.backend for c in choices_of(tmp_path).values()} == {"fused"}


def test_two_named_backends_do_not_share_a_directory(tmp_path):
    hp.run({**SPEC, "backend": "eager"}, tmp_path)
    with pytest.raises(HeatproofError, match="differs in: backend"):
        hp.run({**SPEC, "backend": "fused"}, tmp_path)


def test_grids_are_eager(cache):
    spec = {**SPEC, "protocols": ["gridpg(grids=2)"], "data": {"name": "paperbirds", "limit": 512}}
    plan = open_spec(make_spec(spec), measure=False)
    backend, reason = backend_of(plan)
    assert backend == "eager"
    assert reason.startswith("grids are seen with gradients")


@openvino
def test_all_backends_rank_patches_as_the_network_does():
    for name in ("paperbirds/resnet", "paperbirds/vgg"):
        model = hp.load_model(name)
        data = hp.load_data("paperbirds:test", model, limit=8)
        x = torch.stack([model.normalize(data.load(i).image) for i in range(8)])
        trials = choice._measure(model, x, 16, ["fused", "openvino"])
        assert {trial.refusal for trial in trials.values()} == {""}
        assert model.pass_counts["forward"] == 0
