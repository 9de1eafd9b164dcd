"""Runs that grow and runs that are interrupted: nothing is computed twice, and the same results."""

import signal
import time

import pandas as pd
import pytest
import torch
from forked import Forked
from torch import nn

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.execute import blocks as cut
from heatproof.execute.blocks import blocks

IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
LABELS = [0, 1, 2, 3, 0, 1]
METHODS = ["ixg", "ig(steps=8)", "gradcam", "smoothgrad(n=2)", "rise(masks=40)"]
PROTOCOLS = [
    "sds(patches=4)",
    "deletion(steps=4)",
    "insertion(steps=4)",
    "soundness(step=0.2, eps=0.2)",
]


def network(name: str = "net", seed: int = 0) -> hp.Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
    return hp.Model(net, size=16, name=name)


def evaluate(out, methods=METHODS, protocols=PROTOCOLS, models=None, samples=6, **options):
    models = models or [network()]
    data = hp.TensorData(IMAGES[:samples], LABELS[:samples])
    return hp.evaluate(models, data, methods, protocols, out=out, batch_size=4, **options)


def assert_same_run(a: hp.Result, b: hp.Result) -> None:
    pd.testing.assert_frame_equal(a.scores, b.scores, check_exact=True)
    for task in a.store.plan().tasks:
        ours = a.store.tensors(task.name).tensors
        theirs = b.store.tensors(task.name).tensors
        assert ours.keys() >= theirs.keys()
        for key, values in theirs.items():
            torch.testing.assert_close(ours[key], values, rtol=0, atol=0, equal_nan=True)
    pd.testing.assert_frame_equal(a.summary(50), b.summary(50), check_exact=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return evaluate(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def passes():
    """Return a model, and a function that returns the passes it has made since the last call."""
    model = network()
    model.pass_counts.clear()

    def made() -> int:
        total = sum(model.pass_counts.values())
        model.pass_counts.clear()
        return total

    return model, made


def test_a_run_that_grew_equals_one_made_at_once(whole, tmp_path):
    evaluate(tmp_path, METHODS[:2], PROTOCOLS[:1])
    evaluate(tmp_path, METHODS[:2], [PROTOCOLS[0], *PROTOCOLS[2:]])
    evaluate(tmp_path, METHODS[3:], PROTOCOLS[:3])
    grown = evaluate(tmp_path)
    assert_same_run(grown, whole)
    names = [task.name for task in whole.store.plan().tasks]
    for name in names:  # once everything is asked for, the files are the same as well
        ours, theirs = (run.store.manifest(name).files["rows"] for run in (grown, whole))
        assert ours.sha256 == theirs.sha256


def test_a_method_that_is_asked_for_again_is_reused(whole, tmp_path, passes):
    model, made = passes
    everything = evaluate(tmp_path, models=[model])
    made()
    few = evaluate(tmp_path, METHODS[:1], PROTOCOLS[:1], models=[model])
    assert made() == 0
    assert set(few.scores["method"]) == {"ixg"}
    assert set(few.scores["protocol"]) == {"sds"}
    evaluate(tmp_path, ["edges"], PROTOCOLS, models=[model])  # rewrites the files
    made()
    again = evaluate(tmp_path, models=[model])
    assert made() == 0
    assert_same_run(again, whole)
    pd.testing.assert_frame_equal(again.scores, everything.scores)


def test_only_what_is_new_is_computed(tmp_path, passes):
    model, made = passes
    evaluate(tmp_path, ["ixg"], ["sds(patches=4)"], models=[model])
    made()
    evaluate(tmp_path, ["ixg", "edges"], ["sds(patches=4)"], models=[model])
    assert made() == 6  # the intact images; what the patches make is stored
    evaluate(tmp_path, ["edges"], ["sds(patches=4, baseline=blur)"], models=[model])
    assert made() == 6 * (1 + 4)
    other = network("other", seed=1)
    evaluate(tmp_path, ["ixg", "edges"], ["sds(patches=4)"], models=[model, other])
    assert made() == 0
    assert sum(other.pass_counts.values()) == 6 * (1 + 1 + 4)


def test_what_methods_share_is_read_only_if_it_is_the_same(tmp_path, passes):
    """Of the same images and protocol, and from passes with as many rows."""
    model, made = passes
    data = hp.TensorData(IMAGES, LABELS)

    def run(methods, batch_size, out=tmp_path / "grown"):
        made()
        protocols = ["sds(patches=4)"]
        result = hp.evaluate(model, data, methods, protocols, out=out, batch_size=batch_size)
        return result, made()

    run(["ixg"], 4)
    assert run(["ixg", "edges"], 3)[1] == 6 * (1 + 4)
    grown, passes = run(["ixg", "edges", "random"], 3)
    assert passes == 6
    assert_same_run(grown, run(["ixg", "edges", "random"], 3, tmp_path / "fresh")[0])
    path = grown.store.path_of(grown.store.plan().tasks[0].name, "tensors")
    path.write_bytes(path.read_bytes()[:-8])  # a damaged file is not read
    with pytest.warns(UserWarning, match="set aside"):
        assert run(["ixg", "edges", "random"], 3)[1] > 6 * (1 + 4)


def own_map(model, x, target, *, rng):
    """A map that depends on how many images it is given."""
    return x[:, 0] * len(x)


SLOW = [
    "extremal(steps=9, areas=[0.1, 0.3])",
    "iba(steps=5, copies=3)",
    hp.named("mine", own_map, images_per_call=2),
]
IN_TURNS = ["input-iba(steps=3, copies=2, turns=2)"]  # of 48 passes


@pytest.mark.parametrize(
    ("methods", "most_calls", "commit_seconds"),
    [(SLOW, 8, 0.0), (SLOW, 8, 60.0), (IN_TURNS, 60, 0.0)],
)
def test_slow_methods_are_continued_where_they_were_interrupted(
    tmp_path, monkeypatch, methods, most_calls, commit_seconds
):
    """Optimisations continue from their state, and a user's method from its last call."""
    reference = hp.TensorData(1 - IMAGES, LABELS)

    def run(out, model):
        return evaluate(out, methods, ["sds(patches=4)"], [model], reference=reference)

    whole = run(tmp_path / "whole", network())
    monkeypatch.setattr(cut, "PART_SECONDS", commit_seconds)
    model = network()
    original = model.body.run
    attempts = 0
    most_states = 0
    while True:
        calls = 0

        def interrupted(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > most_calls:  # fewer than one optimisation takes
                raise Stop
            return original(*args, **kwargs)

        model.body.run = interrupted
        try:
            result = run(tmp_path / "run", model)
            break
        except Stop:
            attempts += 1
            assert attempts < 200, "it does not get on"
            files = (tmp_path / "run").rglob("parts/*/*")
            most_states = max(most_states, sum(b'"state' in p.read_bytes() for p in files))
    assert 1 <= most_states <= attempts  # a state replaces the one before
    assert_same_run(result, whole)


def test_an_edited_method_does_not_bring_back_maps_of_the_old_one(tmp_path):
    code = tmp_path / "own.py"

    def run(sign: str, methods):
        code.write_text(f"def own(model, x, target, *, rng):\n    return {sign}x\n")
        methods = [f"file:{code}:own" if method == "own" else method for method in methods]
        return evaluate(tmp_path / "run", methods, ["soundness(step=0.2, eps=0.2)"])

    first = run("", ["own"])
    run("-", ["own", "edges"])
    again = run("", ["own", "edges"])
    assert_same_run(
        again, evaluate(tmp_path / "fresh", [f"file:{code}:own", "edges"], PROTOCOLS[3:])
    )
    own = again.scores[again.scores["method"] == "own"].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, first.scores)


@pytest.mark.parametrize(
    ("change", "key"),
    [({"seed": 1}, "seed"), ({"models": [network("other", 1)]}, "models")],
)
def test_a_spec_with_which_nothing_could_be_reused_needs_to_be_added(tmp_path, change, key):
    evaluate(tmp_path, ["ixg"], ["sds(patches=4)"])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(HeatproofError, match=rf"it differs in: {key}\).*add=True"):
        evaluate(tmp_path, ["ixg"], ["sds(patches=4)"], **change)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    added = evaluate(tmp_path, ["ixg"], ["sds(patches=4)"], add=True, **change)
    fresh = evaluate(None, ["ixg"], ["sds(patches=4)"], **change)
    pd.testing.assert_frame_equal(added.scores, fresh.scores)


def test_python_objects_of_the_same_name_are_known_by_their_content(tmp_path):
    data = hp.TensorData(IMAGES, LABELS)

    def run(model=None, images=data, **options):
        return hp.evaluate(
            model or network(), images, ["ixg"], ["sds(patches=4)"], out=tmp_path, **options
        )

    run()
    run(images=hp.TensorData(IMAGES[:4], LABELS[:4]))
    run(images=(IMAGES, LABELS))  # the same images and names in another form
    with pytest.raises(HeatproofError, match="data, whose images are others.*out="):
        run(images=hp.TensorData(1 - IMAGES, LABELS))
    with pytest.raises(HeatproofError, match="net has other weights or preprocessing.*add=True"):
        run(network(seed=1))
    run([network(), network("other", seed=1)])
    with pytest.warns(UserWarning, match="^net: everything is computed anew"):
        run([network(seed=2), network("other", seed=1)])  # of one of them something can be reused
    run(network(seed=3), add=True)


class Stop(BaseException):
    """Raised like a signal."""


@pytest.mark.parametrize("commit_seconds", [0.0, 60.0])
def test_an_interrupted_run_continues_with_the_same_results(
    whole, tmp_path, monkeypatch, commit_seconds
):
    """Interrupt it again and again, always after a few more passes, in blocks and without."""
    monkeypatch.setattr(cut, "PART_SECONDS", commit_seconds)
    model = network()
    run = model.body.run
    interruptions = 0
    for budget in range(10, 1000, 15):
        calls = 0

        def interrupted(*args, budget=budget, **kwargs):
            nonlocal calls
            calls += 1
            if calls > budget:
                raise Stop
            return run(*args, **kwargs)

        model.body.run = interrupted
        try:
            result = evaluate(tmp_path, models=[model])
            break
        except Stop:
            interruptions += 1
            assert any((tmp_path / "parts").rglob("*.safetensors"))
    assert interruptions >= 3
    assert_same_run(result, whole)
    assert not (tmp_path / "parts").exists() or not any((tmp_path / "parts").iterdir())


def test_blocks_take_a_minute_and_fill_a_pass():
    assert blocks(range(64), None, 100, 64) == [slice(0, 64)]
    assert blocks(range(64), 0.5, 100, 64) == [slice(0, 64)]
    assert [b.stop - b.start for b in blocks(range(64), 5.0, 100, 64)] == [12] * 5 + [4]
    assert [b.stop - b.start for b in blocks(range(64), 300.0, 6000, 64)] == [1] * 64
    # One sample takes two passes that are mostly full, three samples five that are.
    assert [b.stop - b.start for b in blocks(range(64), 300.0, 100, 64)] == [3] * 21 + [1]
    assert [b.stop - b.start for b in blocks(range(64), 300.0, 10, 64)] == [6] * 10 + [4]
    assert [b.stop - b.start for b in blocks(range(64), 300.0, 2, 64)] == [32, 32]
    assert [b.stop - b.start for b in blocks(range(64), 300.0, 4, 64)] == [16] * 4
    assert blocks(range(64), 300.0, 0, 64) == [slice(0, 64)]  # it is unknown how passes are filled
    assert blocks([2, 3, 9], 300.0, 64, 64) == [slice(2, 3), slice(3, 4), slice(9, 10)]


SCRIPT = """
import sys, time
import heatproof as hp
from heatproof.execute import blocks as cut
cut.PART_SECONDS = 0.0
def slow(model, x, target, *, rng):
    time.sleep(float(sys.argv[2]))
    return x[:, 0]
methods = ["ixg", slow, "rise(masks=64)"]
hp.evaluate("paperbirds/vgg", "paperbirds:test", methods, ["sds"], limit=16, out=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_killed_task_keeps_what_it_has_written(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(out: str, wait: str) -> Forked:
        return Forked(["script.py", out, wait], tmp_path / "log", folder=tmp_path)

    victim = start("run", "60")
    for _ in range(1200):
        if list((tmp_path / "run").glob("parts/*/*.safetensors")):
            break
        time.sleep(0.1)
    victim.kill()
    victim.wait()
    assert list((tmp_path / "run").glob("parts/*/*.safetensors"))
    assert not list((tmp_path / "run").glob("rows/*"))
    assert start("run", "0").wait() == 0
    assert start("whole", "0").wait() == 0
    (file,) = (tmp_path / "whole").glob("rows/*")
    assert (tmp_path / "run" / "rows" / file.name).read_bytes() == file.read_bytes()


NETWORK_FILE = """
import torch
import heatproof as hp

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        torch.nn.init.eye_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))

def build():
    return hp.Model(Net(), size=32, name="net")
"""


def test_a_run_says_that_the_network_of_a_name_is_another(tmp_path, monkeypatch, recwarn):
    """Here it is the same file in another folder, which is another network to a run."""

    def run(folder):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "net.py").write_text(NETWORK_FILE)
        monkeypatch.chdir(place)
        spec = {
            "models": ["file:net.py:build"],
            "data": {"name": "paperbirds", "limit": 2},
            "methods": ["ixg"],
            "protocols": ["sds(patches=4)"],
        }
        recwarn.clear()
        result = hp.run(spec, tmp_path / "run")
        texts = [str(w.message) for w in recwarn if "computed anew" in str(w.message)]
        return result, texts

    first, texts = run("a")
    assert texts == []
    assert run("a")[1] == []
    moved, texts = run("b")
    assert len(texts) == 1
    assert texts[0].startswith("file:net.py:build: everything is computed anew")
    pd.testing.assert_frame_equal(first.scores, moved.scores)
