"""Runs: the same bytes for any order, shard and batch and after any crash; no silent failures."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from forked import Forked
from torch import Tensor

import heatproof as hp
from heatproof.errors import HeatproofError
from heatproof.execute.runner import execute
from heatproof.methods import parse_methods
from heatproof.plan.cost import plan_cost, plan_passes
from heatproof.plan.make_plan import make_plan
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec, parse_protocols
from heatproof.runs.format import ModelView, TensorKey
from heatproof.runs.store import Store

METHODS = ["ixg", "ig(steps=3)", "gradcam", "gradcam@middle|abs", "random", "constant", "object"]
PROTOCOLS = [{"name": "sds", "patches": 16, "baseline": ["zero", "uniform"]}]
FEW_PATCHES = [{**PROTOCOLS[0], "patches": 4}]


@pytest.fixture(scope="module")
def model():
    return hp.load_model("paperbirds/resnet")


def nan_on_one(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    maps = x[:, 0].clone()
    maps[[i == "test-00003" for i in rng.ids], 0, 0] = float("nan")
    return maps


def raises(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    raise ZeroDivisionError("no luck")


def wrong_shape(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    return x[:, 0, 0]


def test_results_equal_those_of_the_functional_interface(model):
    import heatproof.functional as F
    from heatproof.data.catalog import load_batch

    result = hp.evaluate(model, "paperbirds:test", ["ixg", "gradcam"], ["sds"], limit=5)
    batch = load_batch(hp.load_data("paperbirds:test", model, limit=5), range(5), model)
    target = torch.tensor(batch.labels)
    drops = F.patch_drops(model, batch.x, target, 16)
    for method in ("ixg", "gradcam"):
        expected = F.spearman(
            F.patch_sums(hp.explain(model, batch.x, target, method), 16), drops.double()
        )
        rows = result.scores[result.scores["method"] == method]
        assert rows["value"].to_numpy() == pytest.approx(expected.numpy(), abs=0.02)
        assert rows["target"].tolist() == target.tolist()


def shuffled(data, order):
    """Return the same samples in another order."""
    other = hp.load_data("paperbirds:test", None, limit=len(data.ids))
    other.ids, other.labels = [data.ids[i] for i in order], [data.labels[i] for i in order]
    other.load = lambda i: data.load(order[i])
    return other


def assert_same_rows(a: pd.DataFrame, b: pd.DataFrame) -> None:
    keys = ["model", "method", "layer", "protocol", "setting", "baseline", "sample"]
    pd.testing.assert_frame_equal(
        a.sort_values(keys, ignore_index=True),
        b.sort_values(keys, ignore_index=True),
        check_exact=True,
    )


def test_the_same_bytes_in_any_order_and_shard(model):
    data = hp.load_data("paperbirds:test", model, limit=70)
    whole = hp.evaluate(model, data, METHODS, FEW_PATCHES, batch_size=16).scores
    assert set(whole["status"]) == {"ok", "undefined"}
    order = [*range(69, -1, -3), *range(68, -1, -3), *range(67, -1, -3)]
    assert_same_rows(
        hp.evaluate(model, shuffled(data, order), METHODS, FEW_PATCHES, batch_size=16).scores, whole
    )
    alone = hp.evaluate(model, data, ["gradcam"], FEW_PATCHES, batch_size=16).scores
    assert_same_rows(alone, whole[whole["method"] == "gradcam"])


def test_another_batch_size_changes_only_near_ties(model):
    runs = [
        hp.evaluate(model, "paperbirds:test", METHODS, PROTOCOLS, limit=20, batch_size=b).scores[
            "value"
        ]
        for b in (5, 64)
    ]
    assert (runs[0] - runs[1]).abs().max() < 0.02
    assert ((runs[0] - runs[1]).abs() > 1e-9).mean() < 0.05


def test_two_runs_write_the_same_bytes(model, tmp_path):
    for name in "ab":
        hp.evaluate(model, "paperbirds:test", METHODS, PROTOCOLS, limit=10, out=tmp_path / name)
    for file in [
        "spec.json",
        "plan.json",
        *(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").glob("rows/*")),
    ]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    task = Store(tmp_path / "a").plan().tasks[0].name
    kept = [Store(tmp_path / name).tensors(task).tensors for name in "ab"]
    assert kept[0].keys() == kept[1].keys()
    assert all(torch.equal(kept[0][k], kept[1][k]) for k in kept[0])


def test_failures_are_rows_and_the_other_methods_complete(model):
    scores = hp.evaluate(
        model,
        "paperbirds:test",
        ["ixg", nan_on_one, raises, wrong_shape, "constant"],
        ["sds"],
        limit=6,
    ).scores
    by_method = dict(list(scores.groupby("method")))
    assert set(by_method["ixg"]["status"]) == {"ok"}
    bad = by_method["nan_on_one"].set_index("sample")
    assert bad.loc["test-00003", ["status", "message"]].tolist() == [
        "failed",
        "nan_on_one: the map is not finite",
    ]
    assert (bad.drop("test-00003")["status"] == "ok").all()
    assert bad["value"].isna().tolist() == [s == "test-00003" for s in bad.index]
    assert set(by_method["raises"]["status"]) == {"failed"}
    assert (
        by_method["raises"]["message"]
        .iloc[0]
        .startswith("ZeroDivisionError: no luck (test_run.py:")
    )
    assert "returned shape (6, 64)" in by_method["wrong_shape"]["message"].iloc[0]
    assert set(by_method["constant"]["message"]) == {"the map is the same everywhere"}


def test_a_method_that_does_not_apply_has_rows_with_that_status(model):
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    scores = hp.evaluate(model, (images, [0, 1, 2]), ["object", "ixg"], ["sds"]).scores
    assert scores.groupby("method")["status"].agg(set).to_dict() == {
        "object": {"n/a"},
        "ixg": {"ok"},
    }


def test_images_without_labels_are_evaluated_for_the_predicted_class(model):
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    scores = hp.evaluate(model, (images, None), ["ixg"], ["sds"]).scores
    assert scores["target"].tolist() == model.logits(model.normalize(images)).argmax(1).tolist()


def test_a_larger_limit_reuses_existing_results(model, tmp_path):
    seen: list[tuple[str, bool]] = []

    def run(limit):
        seen.clear()
        return hp.evaluate(
            model,
            "paperbirds:test",
            ["ixg", "random"],
            ["sds(patches=4)"],
            limit=limit,
            out=tmp_path / "run",
            batch_size=16,
            progress=lambda task, reused: seen.append((task.indices, reused)),
        )

    run(70)
    grown = run(130)
    assert seen == [(range(64), True), (range(64, 128), False), (range(128, 130), False)]
    fresh = hp.evaluate(
        model, "paperbirds:test", ["ixg", "random"], ["sds(patches=4)"], limit=130, batch_size=16
    )
    assert_same_rows(grown.scores, fresh.scores)
    assert len(run(64).scores) == 2 * 64
    assert len(run(20).scores) == 2 * 20
    run(130)
    assert all(reused for _, reused in seen)  # a smaller limit deletes nothing


def test_only_failed_records_are_repeated(model, tmp_path):
    broken = tmp_path / "broken"

    def moody(model, x, target, *, rng):
        if broken.exists():
            raise OSError("the disk is full")
        return x[:, 0]

    broken.touch()
    first = hp.evaluate(
        model, "paperbirds:test", ["ixg", moody], ["sds"], limit=4, out=tmp_path / "run"
    )
    assert len(first.failures) == 4
    broken.unlink()
    second = hp.evaluate(
        model, "paperbirds:test", ["ixg", moody], ["sds"], limit=4, out=tmp_path / "run"
    )
    assert len(second.failures) == 0
    assert second.scores["method"].tolist() == ["ixg"] * 4 + ["moody"] * 4
    kept = second.store.tensors(second.store.plan().tasks[0].name).tensors
    assert {TensorKey.map("ixg"), TensorKey.map("moody")} <= kept.keys()


def test_a_directory_of_another_spec_is_refused_and_left_unchanged(model, tmp_path):
    hp.evaluate(model, "paperbirds:test", ["ixg"], ["sds"], limit=4, out=tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(HeatproofError, match=r"another spec, .* \(it differs in: data\)"):
        hp.evaluate(model, "paperbirds:val", ["ixg"], ["sds"], limit=4, out=tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("words")
    with pytest.raises(HeatproofError, match="not empty and not a run"):
        hp.evaluate(model, "paperbirds:test", ["ixg"], ["sds"], limit=4, out=tmp_path / "thesis")
    assert os.listdir(tmp_path / "thesis") == ["chapter1.tex"]


def test_only_one_process_can_write_to_a_run(model, tmp_path):
    store = Store(tmp_path / "run")
    with (
        store.locked(),
        pytest.raises(HeatproofError, match="another run is writing"),
        Store(tmp_path / "run").locked(),
    ):
        pass


@pytest.mark.parametrize(
    ("methods", "forwards", "backwards"),
    [
        (
            ["ixg", "saliency", "ig(steps=3)", "gradcam", "layercam", "edges"],
            33,
            1 + 3,
        ),  # clean image and patches; one backward for four methods
        (["gradcam", "layercam"], 33 + 1, 0),  # one forward to the layer, and no backward below it
        (["ig(steps=3)", "gradcam"], 33 + 1, 3),
        (["ixg", "gradcam", "ig(steps=2)@middle", "gradcam@middle"], 33, 1),
        (["ixg", "ixg(score=softmax)", "random"], 33, 2),
        (["edges"], 33, 0),
    ],
)
def test_the_plan_counts_the_passes_that_are_executed(
    model, tmp_path, methods, forwards, backwards
):
    data = hp.load_data("paperbirds:test", model, limit=10)
    plan = make_plan([model], [data], parse_methods(methods), parse_protocols(PROTOCOLS))
    model.pass_counts.clear()
    execute(plan, Store(tmp_path))
    cost = plan_cost(plan)[ModelView("paperbirds/resnet")]
    assert (cost.images, cost.forwards, cost.backwards) == (10, 10 * forwards, 10 * backwards)
    assert (model.pass_counts["forward"], model.pass_counts["backward"]) == (
        10 * forwards,
        10 * backwards,
    )


LATER = (
    "ixg(score=softmax)@middle;gradcam@middle;ixg-sg(n=2)@middle;ig(steps=2)@final;lrp-focus@final;"
    "ablationcam@final;scorecam@middle;occlusion@conv3;rise(masks=3)@final;sg-cam++(n=2)@final"
)


@pytest.mark.parametrize(
    "protocol", ["sds(patches=4)", "gridpg(grids=1)", "difull(grids=1)", "dipart(grids=1)"]
)
@pytest.mark.parametrize("methods", [LATER, f"{LATER};saliency;iba(steps=2, copies=2)"])
def test_passes_from_later_layers_are_counted_as_they_are_made(tmp_path, methods, protocol):
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=8 if protocol.startswith("sds") else 64)
    protocols = parse_protocols([protocol])
    if "grids" in protocol:
        methods = methods.replace(";iba(steps=2, copies=2)", "")  # needs references of grids
    plan = make_plan([model], [data], parse_methods(methods.split(";")), protocols)
    for task in plan.tasks:
        task.model.pass_counts.clear()
    execute(plan, Store(tmp_path))
    planned: dict[int, Counter[str]] = {}
    models = {id(task.model): task.model for task in plan.tasks}
    of_view = {task.subject: id(task.model) for task in plan.tasks}
    for subject, passes in plan_passes(plan).items():
        planned.setdefault(of_view[subject], Counter()).update(passes)
    assert {key: +passes for key, passes in planned.items()} == {
        key: +model.pass_counts for key, model in models.items()
    }


def test_the_batch_is_halved_when_memory_runs_out(tmp_path):
    model = hp.load_model("paperbirds/resnet")
    whole = hp.evaluate(model, "paperbirds:test", ["ixg"], ["sds"], limit=12, batch_size=3).scores
    run, sizes = model.body.run, []

    def small_machine(h, *args, **kwargs):
        sizes.append(len(h))
        if len(h) > 4:
            raise torch.OutOfMemoryError("no memory")
        return run(h, *args, **kwargs)

    model.body.run = small_machine
    assert_same_rows(
        hp.evaluate(model, "paperbirds:test", ["ixg"], ["sds"], limit=12, batch_size=12).scores,
        whole,
    )
    batches = [size for size in sizes if size > 1]  # besides a pass for the shapes of layers
    assert batches[:2] == [12, 6]
    assert set(batches[2:]) == {3}


SCRIPT = """
import sys, time
import heatproof as hp
def slow(model, x, target, *, rng):
    time.sleep(float(sys.argv[2]))
    return x[:, 0]
model = hp.load_model("paperbirds/resnet")
methods, protocols = ["ixg", slow, "random"], ["sds(baseline=uniform)"]
hp.evaluate(
    model, "paperbirds:test", methods, protocols, limit=192, out=sys.argv[1], batch_size=16
)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_killed_run_resumes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(out: Path, wait: str) -> Forked:
        return Forked([tmp_path / "script.py", out, wait], tmp_path / "log")

    victim = start(tmp_path / "run", "0.7")
    for _ in range(2400):
        if len(list((tmp_path / "run").glob("rows/*.parquet"))) >= 1:
            break
        time.sleep(0.1)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    finished = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").glob("rows/*.parquet")}
    assert 1 <= len(finished) < 3
    assert start(tmp_path / "run", "0").wait() == 0
    assert {p: p.stat().st_mtime_ns for p in finished} == finished
    assert start(tmp_path / "whole", "0").wait() == 0
    names = sorted(p.name for p in (tmp_path / "whole").glob("rows/*.parquet"))
    assert names == sorted(p.name for p in (tmp_path / "run").glob("rows/*.parquet"))
    for name in names:
        assert (tmp_path / "run" / "rows" / name).read_bytes() == (
            tmp_path / "whole" / "rows" / name
        ).read_bytes()


def test_methods_whose_code_cannot_be_read_are_repeated_with_a_warning(model, tmp_path):
    names: dict = {}
    exec("def typed_in(model, x, target, *, rng):\n    return x", names)

    def run():
        return hp.evaluate(
            model,
            "paperbirds:test",
            ["edges", names["typed_in"]],
            ["sds"],
            limit=4,
            out=tmp_path / "run",
        )

    first = run()
    with pytest.warns(UserWarning, match="the code of typed_in cannot be read"):
        second = run()
    assert_same_rows(first.scores, second.scores)


def overwrites_its_input(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    return x.mul_(0)[:, 0]


def flips_the_weights(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    with torch.no_grad():
        next(model.module.parameters()).mul_(-1)
    return x[:, 0]


def leaves_things_behind(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    model.module.train()
    model.module[0].register_forward_hook(lambda *_: None)
    model(x).sum().backward()
    return x[:, 0]


def test_a_method_that_has_side_effects_fails_and_does_not_affect_others(model):
    expected = hp.evaluate(
        model, "paperbirds:test", ["edges", "ixg", "ig(steps=3)"], ["sds"], limit=4
    ).scores
    before = model.fingerprint()
    result = hp.evaluate(
        model,
        "paperbirds:test",
        [
            "edges",
            overwrites_its_input,
            flips_the_weights,
            leaves_things_behind,
            "ixg",
            "ig(steps=3)",
        ],
        ["sds"],
        limit=4,
    )
    assert_same_rows(result.scores[result.scores["status"] == "ok"], expected)
    messages = result.failures.groupby("method")["message"].first()
    assert "changed its input in place" in messages["overwrites_its_input"]
    assert "changed the network (weights)" in messages["flips_the_weights"]
    assert "changed the network (gradients, hooks, mode)" in messages["leaves_things_behind"]
    assert model.fingerprint() == before
    assert not model.module.training


def tenth(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    return x.new_full((len(x), 7, 7), 0.1)


def minus_infinity(model, x: Tensor, target: Tensor, *, rng) -> Tensor:
    maps = x[:, 0].clone()
    maps[:, :4] = -float("inf")
    return maps


def test_constant_maps_and_maps_with_infinities_have_no_score(model, tmp_path):
    (tmp_path / "own.py").write_text(
        "def below(model, x, target, *, rng):\n"
        "    maps = x[:, 0].clone()\n"
        "    maps[:, 0, 0] = -float('inf')\n"
        "    return maps\n"
    )
    scores = hp.evaluate(
        model,
        "paperbirds:test",
        [tenth, minus_infinity, f"file:{tmp_path}/own.py:below|relu"],
        ["sds"],
        limit=3,
    ).scores
    by_method = scores.groupby("method")["status"].agg(set)
    assert by_method.to_dict() == {
        "tenth": {"undefined"},
        "minus_infinity": {"failed"},
        "below|relu": {"failed"},
    }
    assert scores["value"].isna().all()


def test_changes_that_affect_results_are_not_served_from_old_records(tmp_path):
    """Labels, layer aliases and the code of a method are part of a record's key."""
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    module = hp.load_model("paperbirds/resnet").module
    code = tmp_path / "own.py"

    def run(out, labels=(0, 1, 2, 3), cam="layer4", sign="", power="1"):
        (tmp_path / "furthest_helper.py").write_text(f"POWER = {power}\n")
        (tmp_path / "further_helper.py").write_text(
            "import furthest_helper\ndef bent(x):\n    return x ** furthest_helper.POWER\n"
        )
        helpers = f"from further_helper import bent\ndef helper(x):\n    return {sign}bent(x)\n"
        code.write_text(helpers + "def own(model, x, target, *, rng):\n    return helper(x)\n")
        model = hp.Model(module, size=64, name="net", aliases={"cam": cam})
        return hp.evaluate(
            model, (images, list(labels)), ["gradcam", f"file:{code}:own"], ["sds"], out=out
        ).scores

    first = run(tmp_path / "run")
    for i, change in enumerate(
        [{"labels": (3, 2, 1, 0)}, {"cam": "layer2"}, {"sign": "-"}, {"power": "3.0"}]
    ):
        changed = run(tmp_path / "run", **change)
        assert not changed["value"].equals(first["value"])
        assert_same_rows(changed, run(tmp_path / f"fresh{i}", **change))


def test_memory_is_bounded_by_the_batch(model):
    seen = []

    def nosy(model, x, target, *, rng):
        seen.append(len(x))
        return x

    hp.evaluate(model, "paperbirds:test", [nosy], ["sds"], limit=70, batch_size=16)
    assert max(seen) == 16


class NotANumber(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.fc = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.c(x).mean((2, 3))) / 0


def test_scores_that_are_not_finite_have_a_message_and_a_report(tmp_path):
    torch.manual_seed(0)
    model = hp.Model(NotANumber(), size=64)
    result = hp.evaluate(model, hp.TensorData(IMAGES, [0, 1, 2]), ["edges"], ["sds"])
    told = "the logits of the network are not finite for this image"
    assert set(result.scores["message"]) == {told}
    assert result.report(tmp_path / "report").is_file()


def test_results_without_a_directory_are_temporary_unless_saved(model, tmp_path):
    result = hp.evaluate(model, "paperbirds:test", "edges", "sds", limit=2)
    with pytest.raises(HeatproofError, match="name one"):
        result.report()
    result.save(tmp_path / "kept")
    assert hp.Result.load(tmp_path / "kept").report().is_file()
    root = result.store.root
    del result
    assert not root.exists()


def test_leftover_temporary_files_do_not_block_a_directory(model, tmp_path):
    (tmp_path / ".tmp-abc").write_text("half a file")
    hp.evaluate(model, "paperbirds:test", ["edges"], ["sds"], limit=2, out=tmp_path)
    assert not list(tmp_path.rglob(".tmp-*"))


IMAGES = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            hp.TensorData(IMAGES, [0, 1, 99]),
            {},
            "labels such as 99, but the classes of paperbirds/resnet are 0 to 31",
        ),
        (hp.TensorData(IMAGES, ids=["a", "b", "a"]), {}, 'two samples with the id "a"'),
        (
            hp.TensorData(IMAGES[:, :, :32, :32]),
            {},
            "gives images of 3×32×32, but paperbirds/resnet takes 3×64×64",
        ),
        (hp.TensorData(IMAGES), {"limit": 0}, "limit must be at least 1"),
        (3, {}, r"or a pair \(images, labels\); got 3"),
        ("paperbirds:test", {"batch_size": 0}, "batch_size must be at least 1"),
        ("paperbirds:test", {"methods": []}, "nothing to evaluate"),
        ("paperbirds:test", {"methods": [lambda x: x]}, "must be callable as"),
        ("paperbirds:test", {"methods": ["ig(baseline=blurr)"]}, "did you mean blur"),
        (
            "paperbirds:test",
            {"methods": ["ig(steps=abc)"]},
            "steps: found 'abc'; input should be a valid integer",
        ),
        ("paperbirds:test", {"methods": ["gradcam++(compat=rao)"]}, "compat: found 'rao'"),
        ("paperbirds:test", {"protocols": ["sds(baseline=uniform(1))"]}, "both bounds or none"),
        (
            "paperbirds:test",
            {"protocols": ["sds(baseline=blur(size=201))"]},
            "too wide for an image of 64×64",
        ),
        ("paperbirds:test", {"methods": ["ixg@layer7"]}, 'unknown layer "layer7"'),
        (
            "paperbirds:test",
            {"protocols": ["sds(patches=9)"]},
            "a 3×3 grid does not divide an image of 64×64",
        ),
        (
            "paperbirds:test",
            {"methods": [lambda model, x, target, *, rng: x, lambda model, x, target, *, rng: -x]},
            "two methods are called",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_runs(model, tmp_path, data, options, message):
    arguments = {"methods": ["ixg"], "protocols": ["sds"], **options}
    with pytest.raises(HeatproofError, match=message):
        hp.evaluate(model, data, out=tmp_path / "run", **arguments)
    assert not list(tmp_path.glob("run/rows/*"))


def test_all_maps_are_kept_and_read_one_by_one(tmp_path):
    spec = {
        "models": ["paperbirds/vgg"],
        "data": {"name": "paperbirds", "split": "test", "limit": 70},
        "methods": ["ixg", "gradcam"],
        "protocols": ["sds", "idsds"],
        "keep_maps": "all",
    }
    result = hp.run(spec, tmp_path / "run")
    maps = list(result.maps("ixg"))
    assert len({sample for sample, _ in maps}) == len(maps) == 70
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=70)
    x = model.normalize(torch.stack([data.load(i).image for i in (0, 69)]))
    expected = hp.explain(model, x, torch.tensor([data.labels[0], data.labels[69]]), "ixg")
    for (sample, found), index, values in zip((maps[0], maps[69]), (0, 69), expected, strict=True):
        assert sample == data.ids[index]
        torch.testing.assert_close(found, values, rtol=1e-3, atol=1e-3 * float(values.abs().max()))
    fine_tuned = dict(result.maps("ixg", protocol="idsds"))
    assert not torch.allclose(fine_tuned[data.ids[0]], maps[0][1])
    for arguments, message in [
        ({"method": "ixgg"}, "did you mean ixg"),
        ({"method": "ixg", "model": "resnet"}, "unknown model"),
        ({"method": "ixg", "protocol": "ids"}, "unknown protocol"),
    ]:
        with pytest.raises(HeatproofError, match=message):
            list(result.maps(**arguments))


def test_a_report_begins_with_the_section_that_a_spec_names(tmp_path):
    spec = {
        "models": ["paperbirds/vgg"],
        "data": {"name": "paperbirds", "limit": 4},
        "methods": ["ixg", "random"],
        "protocols": ["sds"],
        "lead": "explorer",
    }
    page = hp.run(spec, tmp_path / "run").report().read_text(encoding="utf-8")
    assert page.index('id="explorer"') < page.index('id="headline"')
    with pytest.raises(HeatproofError, match="did you mean explorer"):
        hp.run({**spec, "lead": "explore"}, tmp_path / "other")


def test_grids_take_as_many_rows_per_pass_as_their_images_allow(tmp_path):
    spec = make_spec(
        {
            "models": ["paperbirds/vgg"],
            "data": {"name": "paperbirds", "split": "test", "limit": 64},
            "methods": ["ixg"],
            "protocols": ["sds", {"name": "gridpg", "grids": 6}],
        }
    )
    plan = open_spec(spec, "cpu")
    rows = {task.view.kind: plan.rows_per_pass(task) for task in plan.tasks}
    assert rows == {"plain": 64, "grid": 6}
    few = make_spec({**spec.as_dict(), "batch_size": 8})
    assert {open_spec(few, "cpu").rows_per_pass(t) for t in open_spec(few, "cpu").tasks} == {8, 2}
