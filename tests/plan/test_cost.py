"""Plans: no pass over the data, times from earlier runs, and passes without data and weights."""

import time

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.data.grids import assumed_confidence
from heatproof.errors import HeatproofError
from heatproof.execute.runner import execute
from heatproof.methods import parse_methods
from heatproof.models import backends, views
from heatproof.plan import cost
from heatproof.plan.assumed_cost import assumed_cost
from heatproof.plan.cost import forecast, plan_cost
from heatproof.plan.make_plan import make_plan
from heatproof.plan.open_spec import open_spec
from heatproof.plan.plan_file import plan_file
from heatproof.plan.spec import make_spec, parse_protocols
from heatproof.plan.speed import (
    Speed,
    in_forwards,
    method_cost,
    probe,
    probe_shapes,
    read_speed,
    record_speed,
    share_after,
)
from heatproof.runs.format import Cost, TimingKey
from heatproof.runs.store import Store

SPEC = {
    "models": ["paperbirds/vgg"],
    "data": {"name": "paperbirds", "split": "test", "limit": 64},
    "methods": ["ixg", "gradcam", "ig(steps=4)", "random"],
    "protocols": ["sds(patches=4)", {"name": "gridpg", "grids": 6}],
}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))


def costs(plan):
    return {(subject.view.kind, subject.view.cell): c for subject, c in plan_cost(plan).items()}


def test_a_plan_with_grids_makes_no_pass_and_counts_the_same(own_cache):
    with assumed_confidence() as assumed:
        plan = open_spec(make_spec(SPEC), "cpu")
    assert assumed == ["paperbirds/vgg"]
    assert not any(sum(task.model.pass_counts.values()) for task in plan.tasks)
    with_passes = open_spec(make_spec(SPEC), "cpu")
    assert costs(plan) == costs(with_passes)
    with assumed_confidence() as assumed:  # now the confidences are known
        known = open_spec(make_spec(SPEC), "cpu")
    assert assumed == []
    assert [task.name for task in known.tasks] == [task.name for task in with_passes.tasks]


def test_the_cost_without_data_and_weights_is_that_of_the_plan(own_cache):
    plan = open_spec(make_spec(SPEC), "cpu")
    assert assumed_cost(make_spec(SPEC), 5000) == plan_cost(plan)
    fewer = assumed_cost(make_spec({**SPEC, "protocols": ["sds(patches=4)", "idsds"]}), 10)
    assert {subject.view.kind for subject in fewer} == {"plain", "fine-tuned"}
    assert all(cost.images == 10 for cost in fewer.values())


def test_studies_at_the_papers_scale_have_a_cost_without_data_and_weights():
    spec = make_spec(
        {
            "models": [{"train": "cifar10/resnet18", "trained_on": ["plain", "disc"]}],
            "data": {"name": "cifar10:nowhere.npz", "split": "test"},
            "methods": ["gradcam", "ixg", "random"],
            "protocols": ["attr-mass"],
        }
    )
    found = assumed_cost(spec, 10_000)
    assert list(found.values()) == [Cost(images=10_000, forwards=10_000, backwards=10_000)] * 2
    own = make_spec({**SPEC, "models": ["file:nowhere.py:build"]})
    with pytest.raises(HeatproofError, match="a network of your own"):
        assumed_cost(own, 10)


def test_a_plan_is_based_on_earlier_runs(own_cache, tmp_path):
    """The forecast of the same run is near what the run took, whatever the machine does."""
    model = hp.load_model("paperbirds/vgg")
    data = hp.load_data("paperbirds:test", model, limit=64)
    methods = parse_methods(["ixg", "ig(steps=4)", "rise(masks=30)", "gradcam", "scorecam@final"])
    protocols = parse_protocols(["sds(patches=4)", "deletion(steps=4)"])
    plan = make_plan([model], [data], methods, protocols)
    assert forecast(plan).basis == "estimated"
    begin = time.perf_counter()
    execute(plan, Store(tmp_path / "run"))
    took = time.perf_counter() - begin
    expected = forecast(plan)
    assert expected.basis == "runs"
    assert sum(expected.seconds.values()) == pytest.approx(took, rel=0.5)
    assert forecast(plan, measure=True).basis == "measured"


def test_the_time_to_make_a_backend_is_not_taken_for_that_of_a_pass(own_cache, monkeypatch):
    made = []
    make = backends._make

    def slow(*arguments):
        time.sleep(1)
        made.append(arguments[0])
        return make(*arguments)

    monkeypatch.setattr(backends, "_make", slow)
    model = hp.load_model("paperbirds/vgg").with_backend("fused")
    assert cost._seconds_per_image(model, 2)[0] < 0.5
    assert made == ["fused"]


def test_speeds_are_of_full_passes_and_of_this_network(own_cache):
    model = hp.load_model("paperbirds/vgg")
    speed = Speed()
    speed.add(2.0, {"forward": 4})
    speed.add(9.0, {"backward": 3})
    speed.add(5.0, {"forward": 1, "backward": 1})  # it is unknown which took how long
    speed.add(5.0, {"forward from layer1": 1})
    assert (speed.of("forward"), speed.of("backward")) == (0.5, 3.0)
    maps = TimingKey("maps", "ixg@1")
    record_speed(model, speed, {maps: 8.0}, 4)
    last = Speed()
    last.add(9.0, {"forward": 1})
    other = TimingKey("maps", "ig@1")
    record_speed(model, last, {maps: 50.0, other: 1.0}, 1, full=False)
    known = read_speed(model)
    assert (known.forward, known.backward) == (0.5, 3.0)
    assert (known.seconds_of(maps), known.seconds_of(other)) == (2.0, 1.0)
    assert read_speed(hp.load_model("paperbirds/resnet")).forward is None
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert read_speed(model).forward is None
    finally:
        torch.set_num_threads(threads)


def test_a_plan_runs_the_network_as_little_as_it_can(own_cache):
    """Features of an image and of a grid once each, and no pass for costs that need none."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    model = hp.Model(net, size=16)
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, labels=[0, 1, 2, 3] * 2)
    sizes = []
    net[0].register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].shape[-1]))
    with assumed_confidence():
        plan = make_plan(
            [model], [data], parse_methods(["ig", "gradcam"]), parse_protocols(["sds", "gridpg"])
        )
    assert sizes == [16, 32]
    cost = plan_cost(plan)
    assert sizes == [16, 32]
    with_channels = parse_methods(["scorecam"])
    assert method_cost(with_channels[0], model) == (4, 0)
    assert sizes == [16, 32, 16]
    assert len(cost) == 5


def test_a_pass_from_a_later_layer_weighs_its_share_of_the_operations():
    """Two convolutions of 3→4 and 4→8 channels, of which the second takes 4·8 of 3·4 + 4·8."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = hp.Model(net, size=16)
    share = share_after(model, "0")
    assert share == 32 / 44
    passes = {"forward": 2, "forward from 0": 5, "backward from 0": 1}
    assert in_forwards(model, passes) == pytest.approx(2 + 5 * share + 3 * share)
    cell = views.difull(model, 2, 3)  # only one grid cell runs
    assert share_after(cell, "0") == share
    assert probe(cell).operations == probe(model).operations
    without_values = hp.Model(net, size=16)
    probe_shapes(without_values)
    assert probe(without_values) == probe(model)


def test_a_reference_of_the_same_data_set_is_assumed_to_be_other_images():
    """The splits of a data set have one name."""
    spec = make_spec(
        {
            **SPEC,
            "methods": ["random"],
            "reference": {"name": "paperbirds", "split": "train", "limit": 20},
            "protocols": ["deletion(steps=2, ood=true, baseline='featurevis(steps=3, crops=2)')"],
        }
    )
    counted = assumed_cost(spec, 5000).values()
    assert sum(cost.backwards for cost in counted) == 6
    assert sum(cost.forwards for cost in counted) > 20


def test_maps_of_other_images_are_counted_once_for_protocols_that_share_them():
    def backwards(*protocols):
        data = {"name": "paperbirds", "split": "test", "limit": 2}
        small = {"methods": ["saliency"], "data": data, "protocols": list(protocols)}
        (found,) = plan_cost(open_spec(make_spec(SPEC | small), "cpu")).values()
        return found.backwards

    assert backwards("sensitivity(copies=3)") == 2 * (1 + 3)
    assert backwards("sensitivity(copies=3)", "sensitivity(copies=3, statistic=mean)") == 2 * 4
    assert backwards("randomization(networks=4)", "emprt") == 2 * (1 + 4 + 1)


def test_the_passes_for_a_map_that_a_run_records_are_those_on_its_network():
    """A channel each, and a window each, of this network; of two networks those of the larger."""

    def model(channels, name):
        body = [nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return hp.Model(nn.Sequential(*body, nn.Linear(channels, 5)), size=16, name=name)

    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = hp.TensorData(images, labels=[0, 1, 2, 3])
    methods = parse_methods(["scorecam", "occlusion(size=8, stride=4)", "ixg", "random"])
    models = [model(4, "narrow"), model(6, "wide")]
    plan = make_plan(models, [data, data], methods, parse_protocols(["sds(patches=4)"]))
    costs = {name: facts.cost for name, facts in plan_file(plan).methods.items()}
    made = {}
    for name in costs:
        models[1].pass_counts.clear()
        hp.explain(models[1], images[:1], torch.tensor([0]), name)
        made[name] = models[1].pass_counts["forward"], models[1].pass_counts["backward"]
    made["scorecam"] = (made["scorecam"][0] - 1, 0)  # its features are not counted
    assert costs == made
    assert costs["scorecam"] == (6, 0)


def test_the_disk_space_is_that_of_rows_logits_and_the_maps_that_are_kept(own_cache):
    """70 images in two tasks, 4 methods and one protocol; images and maps of the first two."""
    spec = {**SPEC, "data": {**SPEC["data"], "limit": 70}, "protocols": ["sds"], "keep_maps": 2}
    plan = open_spec(make_spec(spec), "cpu")
    classes = plan.tasks[0].model.n_classes
    rows, logits = 4 * 70 * 4, 70 * classes * 4  # 4 bytes each
    pictures = 2 * 64 * 64 * (3 + 4 * 2)  # bytes of a pixel, and two of each map
    assert forecast(plan).disk == rows + logits + pictures
