"""The time of a method is its own: the order and the other methods do not matter."""

import pytest

import heatproof as hp
from heatproof.execute import latency
from heatproof.runs.format import Latencies


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/resnet")


@pytest.fixture
def calls(monkeypatch):
    """Which methods were called, and for how many images."""
    made = []
    call = latency._Timer._call

    def counted(self, expression, count):
        made.append((expression.entry.id, count))
        return call(self, expression, count)

    monkeypatch.setattr(latency._Timer, "_call", counted)
    return made


def evaluate(model, methods, **options):
    return hp.evaluate(model, "paperbirds:test", methods, ["ids"], limit=4, batch_size=4, **options)


@pytest.mark.usefixtures("timed")
def test_every_method_pays_for_its_own_gradient_whatever_its_place(model, monkeypatch):
    passes = {}
    call = latency._Timer._call

    def with_passes(self, expression, count):
        before = model.pass_counts.copy()
        native = latency.Explainer.native

        def seen(explainer, *arguments):
            maps = native(explainer, *arguments)
            passes[expression.label, count] = model.pass_counts - before
            return maps

        with monkeypatch.context() as patch:
            patch.setattr(latency.Explainer, "native", seen)
            return call(self, expression, count)

    monkeypatch.setattr(latency._Timer, "_call", with_passes)
    for methods in (["ixg", "saliency"], ["saliency", "ixg"]):
        costs = evaluate(model, methods).costs().set_index("method")
        assert (costs["ms"] > 0).all() and (costs["ms_in_batch"] > 0).all()
        assert {method: dict(passes[method, 1]) for method in methods} == {
            method: {"backward": 1} for method in methods
        }


@pytest.mark.usefixtures("timed")
def test_methods_that_differ_in_transforms_are_timed_once_and_only_once_per_machine(
    model, calls, tmp_path, monkeypatch
):
    evaluate(model, ["ixg", "ixg|abs"], out=tmp_path / "run")
    assert {label for label, _ in calls} == {"ixg"}
    calls.clear()
    result = evaluate(model, ["ixg", "ixg|abs", "saliency"], out=tmp_path / "run")
    assert {label for label, _ in calls} == {"saliency"}
    costs = result.costs().set_index("method")
    assert costs.loc["ixg", "ms"] == costs.loc["ixg|abs", "ms"]
    calls.clear()
    monkeypatch.setattr(latency, "machine_of", lambda model: "another machine")
    result = evaluate(model, ["ixg"], out=tmp_path / "run")
    assert {label for label, _ in calls} == {"ixg"}
    assert set(result.costs()["machine"]) == {"another machine"}


@pytest.mark.usefixtures("timed")
def test_a_slow_method_is_not_timed_again_and_its_time_in_the_run_is_marked(
    model, calls, monkeypatch
):
    monkeypatch.setattr(latency, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(latency, "MOST_OF_RUN", 0.0)
    result = evaluate(model, ["ig(steps=4)"])
    assert not calls
    (line,) = result.costs().to_dict("records")
    assert line["ms"] > 0 and "from the run" in line["time_note"]


@pytest.mark.usefixtures("timed")
def test_a_method_that_fails_has_no_time_and_counters_are_left_alone(model):
    def fails(model, x, target):
        raise ZeroDivisionError

    before = model.pass_counts.copy()
    result = evaluate(model, [("fails", fails), "random"])
    costs = result.costs().set_index("method")
    assert costs.loc["fails", "time_note"] == "failed"
    assert costs.loc["random", "ms"] > 0
    assert not (model.pass_counts - before)["backward"]


@pytest.mark.usefixtures("timed")
def test_times_survive_merging_and_damaged_ones_are_named(model, tmp_path):
    evaluate(model, ["random"], out=tmp_path / "a")
    evaluate(model, ["center"], out=tmp_path / "b")
    merged = hp.merge([tmp_path / "a", tmp_path / "b"], out=tmp_path / "merged")
    assert set(merged.costs().dropna(subset=["ms"])["method"]) == {"random", "center"}
    store = hp.Result.load(tmp_path / "merged").store
    store.paths.latencies.write_text("{}")
    assert store.latencies() == Latencies()
    assert store.paths.latencies in store.damage
