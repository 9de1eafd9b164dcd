"""Fine-tuning: what it learns, what it keeps, and which errors stop it."""

import json
import os
import pickle
import signal
import socket
import time
from inspect import getsource
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from forked import Forked
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import heatproof as hp
import heatproof.functional as F
from heatproof.baselines import Baseline
from heatproof.cli import main
from heatproof.data.folder import ImageFolder
from heatproof.errors import HeatproofError
from heatproof.models.bcos import bcos
from heatproof.models.nets import NETS, SHIPPED
from heatproof.training import finetune as finetuning
from heatproof.training.checkpoint import RESUME, WEIGHTS
from heatproof.training.distributed import ProcessGroup
from heatproof.training.finetune import Epoch, at_least_two, best_epoch
from heatproof.training.loader import BatchLoader, Deletion, random_crop
from heatproof.training.losses import loss_function, loss_name
from heatproof.training.schedule import SCHEDULES, Schedule, resolve_schedule
from heatproof.training.splits import held_out, parse_val
from heatproof.training.validate import Accuracy, validate

CPU = torch.device("cpu")


def network(norm=False, dropout=False):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        extra = [nn.BatchNorm2d(6)] * norm + [nn.Dropout(0.2)] * dropout
        parts = [
            nn.Conv2d(3, 6, 3, padding=1),
            *extra,
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(96, 3),
        ]
        return hp.Model(
            nn.Sequential(*parts), size=16, name="tiny", classes=["red", "green", "blue"]
        )


def colours(count, prefix="c", seed=0):
    """Make noise with a brighter channel for the label."""
    images = 0.4 * torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    labels = [i % 3 for i in range(count)]
    for i, label in enumerate(labels):
        images[i, label] += 0.1
    return hp.TensorData(images, labels, [f"{prefix}{i}" for i in range(count)])


IMPORTS = "import sys, time\nimport torch\nfrom torch import nn\nimport heatproof as hp\n"
SETUP = IMPORTS + getsource(network) + getsource(colours)  # for scripts that run on their own
FAST = {"epochs": 3, "batch_size": 16, "lr": 0.05, "worst_images": 24}


def tuned(out: Path, model: hp.Model | None = None, **changes) -> hp.FineTuned:
    model = model or network()
    return hp.finetune(
        model, **{"data": colours(48), "val": colours(24, "v", 1), "out": out, **FAST, **changes}
    )


def test_it_learns_to_do_without_a_patch_and_leaves_the_model_unchanged(tmp_path):
    model = network(norm=True, dropout=True)
    model.module.train()
    model.module[0].weight.requires_grad_(False)
    before = model.fingerprint()
    state = torch.random.get_rng_state()
    steps = []
    result = tuned(tmp_path / "a", model, epochs=6, progress=steps.append)
    assert (
        model.fingerprint() == before
        and model.module.training
        and not model.module[0].weight.requires_grad
    )
    assert all(p.grad is None for p in model.module.parameters())
    assert torch.equal(state, torch.random.get_rng_state())
    assert [e.epoch for e in result.metrics] == list(range(7)) and result.metrics[0].loss is None
    assert result.metrics[-1].loss < 0.8 * result.metrics[1].loss
    assert result.metrics[result.best].worst_all > result.metrics[0].worst_all
    assert all(e.worst_all <= e.worst_largest for e in result.metrics)
    assert (steps[-1].epoch, steps[-1].images, steps[-1].total) == (6, 288, 288)
    weights = load_file(result.weights)
    assert not torch.equal(
        weights["0.weight"], model.module[0].weight
    )  # frozen in the given model, trained in the copy
    hp.load_model(network(norm=True, dropout=True), weights=result.weights)
    with safe_open(result.weights, "pt") as file:
        metadata = file.metadata()
    assert metadata["fine_tuned"] == "16/zero"
    assert metadata["base"] == before and metadata["model"] == "tiny"
    assert json.loads(metadata["recipe"])["lr"] == 0.05
    assert json.loads(metadata["classes"]) == [
        "red",
        "green",
        "blue",
    ]


@pytest.mark.parametrize("baseline", ["zero", "uniform", "blur"])
def test_half_of_the_images_have_one_patch_replaced_by_the_baseline(baseline):
    model, data = network(), colours(200)
    deletion = Deletion(16, Baseline.parse(baseline))
    loader = BatchLoader(data, range(200), model, seed=3)
    (batch,) = loader.batches([range(200)], 5, deletion)
    clean = model.normalize(data.images)
    changed = (batch.x != clean).any(1)
    deleted = changed.flatten(1).any(1)
    assert 75 < deleted.sum() < 125
    patches = changed.reshape(200, 4, 4, 4, 4).any(4).any(2).reshape(200, 16)
    assert (patches[deleted].sum(1) == 1).all()
    assert len(set(patches[deleted].float().argmax(1).tolist())) == 16
    if baseline == "zero":
        assert (batch.x[changed[:, None].expand_as(clean)] == 0).all()
    backwards = list(
        BatchLoader(data, range(200), model, seed=3, workers=3).batches(
            [range(199, 99, -1), range(99, -1, -1)], 5, deletion
        )
    )
    assert torch.allclose(torch.cat([part.x for part in backwards]).flip(0), batch.x, atol=1e-6)
    (later,) = loader.batches([range(200)], 6, deletion)
    assert not torch.equal(later.x, batch.x)


def test_the_loader_normalises_as_the_model_does_and_caches_images():
    model = hp.load_model("paperbirds/vgg")
    birds = hp.load_data("paperbirds:train", model, limit=6)
    loader = BatchLoader(birds, range(6), model)
    expected = model.normalize(torch.stack([birds.load(i).image for i in range(6)]))
    for _ in range(2):  # decoded, then cached
        (batch,) = loader.batches([range(6)])
        assert torch.equal(batch.x, expected)
    assert len(loader._cache) == 6 and not BatchLoader(birds, range(6), model, memory=0)._cache


def test_the_number_of_workers_does_not_change_a_byte(tmp_path):
    one, four = (
        tuned(tmp_path / str(w), workers=w, baseline="uniform").weights.read_bytes() for w in (1, 4)
    )
    assert one == four


def test_one_step_is_the_step_of_plain_sgd(tmp_path):
    """One batch of all images, and the same update by hand."""
    model, data = network(), colours(8)
    result = tuned(
        tmp_path, model, data=data, epochs=1, batch_size=8, weight_decay=0.1, momentum=0.0
    )
    (batch,) = BatchLoader(data, range(8), model).batches(
        [range(8)], 1, Deletion(16, Baseline.parse("zero"))
    )
    nn.functional.cross_entropy(model.module(batch.x), batch.labels).backward()
    weights = load_file(result.weights)
    for name, p in model.module.named_parameters():
        assert torch.allclose(weights[name], p - 0.05 * (p.grad + 0.1 * p), atol=1e-6)


def test_worst_patch_accuracy_against_a_slow_loop():
    model, data = network(), colours(30)
    deletion = Deletion(4, Baseline.parse("zero"))
    x, labels = model.normalize(data.images), data.labels
    clean = every = largest = 0
    for image, label in zip(x, labels, strict=True):
        correct, probability = [], []
        for row in (0, 8):
            for column in (0, 8):
                without = image.clone()
                without[:, row : row + 8, column : column + 8] = 0
                logits = model.logits(without[None])[0]
                correct.append(logits.argmax().item() == label)
                probability.append(logits.softmax(0)[label].item())
        clean += model.logits(image[None]).argmax().item() == label
        every += all(correct)
        largest += correct[int(np.argmin(probability))]
    loader = BatchLoader(data, range(30), model)
    result = validate(model.module, loader, deletion, 30, ProcessGroup(CPU))
    assert result == pytest.approx((clean / 30, every / 30, largest / 30))
    limited = validate(model.module, loader, deletion, 12, ProcessGroup(CPU))
    assert limited.accuracy == pytest.approx(result.accuracy)


def test_the_probes_are_scored_as_idsds_does(tmp_path):
    """Each epoch's probe scores against the protocol on the weights of that epoch."""
    data = colours(24, "v", 1)
    result = tuned(tmp_path, epochs=1, val=data, patches=4)
    for epoch, weights in ((0, None), (1, result.weights)):
        model = hp.load_model(network(), weights)
        scores = hp.evaluate(
            model, data, ["ixg", "saliency", "gradcam", "ig(steps=10)"], ["sds(patches=4)"]
        )
        expected = scores.scores.groupby("method")["value"].mean().to_dict()
        measured = result.metrics[epoch]
        assert measured.probes == pytest.approx(expected, abs=1e-6)
        per_image = scores.scores.groupby("sample")["value"].mean().dropna()
        assert measured.idsds == pytest.approx(per_image.mean(), abs=1e-6)
        assert measured.idsds_error == pytest.approx(per_image.sem(), abs=1e-6)
        x, labels = model.normalize(data.images), torch.tensor(data.labels)
        assert measured.drop == pytest.approx(
            F.patch_drops(model, x, labels, 4).mean().item(), abs=1e-5
        )
    with safe_open(result.weights, "pt") as file:
        history = json.loads(file.metadata()["history"])
    assert [h["idsds"] for h in history] == [round(e.idsds, 4) for e in result.metrics]
    assert "seconds" not in history[0]


def test_the_history_goes_on_after_the_epoch_that_is_kept(tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.9, 0.8, 0.7])
    monkeypatch.setattr(finetuning, "validate", lambda *_: Accuracy(next(accuracies), 0.1, 0.2))
    result = tuned(tmp_path)
    with safe_open(result.weights, "pt") as file:
        metadata = file.metadata()
    assert result.best == 1 and metadata["epoch"] == "1" and metadata["accuracy"] == "0.9000"
    assert [h["accuracy"] for h in json.loads(metadata["history"])] == [0.5, 0.9, 0.8, 0.7]


def test_the_epoch_with_the_best_clean_accuracy_is_kept_and_the_last_of_equals():
    metrics = [
        Epoch(i, None, accuracy, 0, 0, 0) for i, accuracy in enumerate([0.99, 0.5, 0.9, 0.9, 0.8])
    ]
    assert best_epoch(metrics) == 3


def test_the_papers_schedule():
    plan = SCHEDULES["paper"]
    assert plan == Schedule(30, 256, 1e-3, 0.9, 1e-4, 10, 0.1, network_lr=True)
    assert [plan.rate(e) for e in (1, 10, 11, 30)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])


def test_the_short_schedule_is_the_same_for_every_embedded_network():
    resolved = {resolve_schedule("short", {}, NETS[name].module()) for name in SHIPPED}
    assert resolved == {SCHEDULES["short"]}
    assert resolve_schedule("short", {"lr": 0.5}, NETS["resnet"].module()).lr == 0.5


@pytest.mark.usefixtures("cheap_weights")
@pytest.mark.parametrize("name", ["bcos-resnet18", "bcos-resnet50", "bagnet9"])
def test_bcos_networks_have_the_loss_and_the_learning_rate_of_the_paper(name):
    model = hp.load_model(name, "random")
    expected = ("binary_cross_entropy", 1e-2) if "bcos" in name else ("cross_entropy", 1e-3)
    assert (loss_name(model), resolve_schedule("paper", {}, model.module).lr) == expected
    assert resolve_schedule("paper", {"lr": 0.5}, model.module).lr == 0.5
    assert resolve_schedule(Schedule(), {}, model.module).lr == 1e-3


def test_a_bcos_network_learns_with_the_papers_schedule(tmp_path):
    torch.manual_seed(0)
    model = hp.Model(bcos(3, widths=(8, 8, 8, 8)), size=16, mean=(0, 0, 0), std=(1, 1, 1))
    result = hp.finetune(
        model, colours(48), val=colours(24, "v", 1), out=tmp_path, epochs=6, batch_size=16
    )
    losses = [epoch.loss for epoch in result.metrics[1:]]
    assert losses[0] < np.log(3)  # that of cross entropy
    assert losses[-1] < 0.98 * losses[0]
    with safe_open(result.weights, "pt") as file:
        recipe = json.loads(file.metadata()["recipe"])
    assert (recipe["loss"], recipe["lr"]) == ("binary_cross_entropy", 1e-2)


def test_all_images_can_be_trained_on_and_then_the_last_epoch_is_kept(tmp_path):
    result = tuned(tmp_path / "all", val="none", epochs=2, worst_images=4)
    assert result.best == 2
    with safe_open(result.weights, "pt") as file:
        recipe = json.loads(file.metadata()["recipe"])
    assert (recipe["images"], recipe["val"]) == (48, "none")
    some = tuned(tmp_path / "some", val=5, epochs=1, worst_images=4)
    with safe_open(some.weights, "pt") as file:
        assert json.loads(file.metadata()["recipe"])["images"] == 43


@pytest.mark.parametrize(
    ("text", "meant"),
    [("0.1", 0.1), ("12", 12), ("none", "none"), ("folder:/x", "folder:/x"), (None, None)],
)
def test_validation_data_are_read_as_they_are_written(text, meant):
    assert parse_val(text) == meant and type(parse_val(text)) is type(meant)


def test_mixed_precision_trains_weights_in_float32(tmp_path):
    plain = tuned(tmp_path / "plain", epochs=2)
    same = tuned(tmp_path / "float32", epochs=2, precision="float32")
    mixed = tuned(tmp_path / "mixed", epochs=2, precision="bfloat16")
    assert plain.weights.read_bytes() == same.weights.read_bytes()  # off on the CPU
    exact = load_file(plain.weights)
    rounded = load_file(mixed.weights)
    assert all(value.dtype == exact[name].dtype for name, value in rounded.items())
    differences = [float((exact[name] - rounded[name]).abs().max()) for name in exact]
    assert 0 < max(differences) < 0.1
    with pytest.raises(HeatproofError, match="precision is bfloat16 there, None here"):
        tuned(tmp_path / "mixed", epochs=3)


def test_a_network_can_ask_for_binary_cross_entropy():
    model = network()
    model.module.loss = "binary_cross_entropy"
    logits, labels = torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([0])
    p = logits.sigmoid()[0]
    by_hand = -(p[0].log() + (1 - p[1]).log() + (1 - p[2]).log()) / 3
    assert loss_function(model)(logits, labels).item() == pytest.approx(by_hand.item())


# Resuming


def test_more_epochs_resume_and_the_same_call_again_does_nothing(tmp_path):
    whole = tuned(tmp_path / "whole", model=network(dropout=True), baseline="uniform")
    tuned(tmp_path / "parts", model=network(dropout=True), epochs=1, baseline="uniform")
    seen = []
    parts = tuned(
        tmp_path / "parts", model=network(dropout=True), baseline="uniform", progress=seen.append
    )
    assert {step.epoch for step in seen} == {2, 3}
    assert parts.weights.read_bytes() == whole.weights.read_bytes()
    written = parts.weights.stat().st_mtime_ns
    again = tuned(tmp_path / "parts", model=network(dropout=True), baseline="uniform")
    assert again == parts and parts.weights.stat().st_mtime_ns == written


SCRIPT = f"""{SETUP}
torch.set_num_threads(1)

def slow(step):
    time.sleep(float(sys.argv[2]))

hp.finetune(network(norm=True, dropout=True), colours(48), val=colours(24, "v", 1),
            out=sys.argv[1], baseline="uniform", epochs=4, batch_size=16, lr=0.05,
            worst_images=24, progress=slow)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_killed_fine_tuning_resumes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(out: Path, wait: str) -> Forked:
        return Forked([tmp_path / "script.py", out, wait], tmp_path / "log")

    victim = start(tmp_path / "run", "0.3")
    for _ in range(2400):
        if (tmp_path / "run" / WEIGHTS).exists():
            break
        time.sleep(0.1)
    time.sleep(0.7)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    reached = torch.load(tmp_path / "run" / RESUME, weights_only=True)["epoch"]
    assert 1 <= reached < 4
    assert start(tmp_path / "run", "0").wait() == 0
    assert start(tmp_path / "whole", "0").wait() == 0
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()


PARALLEL = f"""{SETUP}
torch.set_num_threads(1)
result = hp.finetune(network(), colours(50), val=colours(24, "v", 1), out=sys.argv[1], epochs=2,
                     batch_size=16, lr=0.05, worst_images=24)
print(result.metrics[-1].accuracy, result.metrics[-1].worst_all)
"""


@pytest.mark.slow
def test_two_processes_reach_the_weights_of_one(tmp_path):
    """Compare without batch norm, which uses only its own process's part of a batch."""
    (tmp_path / "script.py").write_text(PARALLEL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    both = [
        Forked(
            [tmp_path / "script.py", tmp_path / "two"],
            tmp_path / f"log{rank}",
            {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    outputs = [process.text.splitlines()[-1] for process in both]  # after what torch may say
    assert outputs[0] == outputs[1]
    one = tuned(tmp_path / "one", data=colours(50), epochs=2)
    assert outputs[0].split() == [str(one.metrics[-1].accuracy), str(one.metrics[-1].worst_all)]
    alone, together = load_file(one.weights), load_file(tmp_path / "two" / WEIGHTS)
    assert all(torch.allclose(alone[key], together[key], atol=1e-5) for key in alone)
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(
        p.name for p in (tmp_path / "one").iterdir()
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_batch_is_never_too_small_for_batch_norm(rows):
    x = torch.rand(rows, 3, 4, 4)
    assert len(at_least_two(x)) == max(2, rows) and torch.equal(at_least_two(x)[:rows], x)


# Folders


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("red", "green", "blue"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(
                tmp_path / "images" / name / f"{i}.png"
            )
    return tmp_path / "images"


def test_a_folder_is_cropped_at_random_and_a_tenth_of_every_class_is_held_out(folder, tmp_path):
    model = network()
    data = hp.load_data(f"folder:{folder}", model)
    held = held_out(data, 0.1, 0)
    assert sorted(data.labels[i] for i in held) == [0, 1, 2]
    loader = BatchLoader(data, range(30), model, augment=True)
    first, again, other = (next(loader.batches([range(4)], epoch)).x for epoch in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    result = hp.finetune(model, f"folder:{folder}", out=tmp_path / "a", **FAST)
    assert (
        result.metrics[-1].loss is not None and not result.unreadable and not result.empty_classes
    )
    plain = hp.finetune(model, f"folder:{folder}", out=tmp_path / "b", augment=False, **FAST)
    assert plain.weights.read_bytes() != result.weights.read_bytes()


def test_crops_have_the_requested_size_for_any_image():
    for size in ((1, 1), (300, 2), (2, 300), (40, 30)):
        crop = random_crop(Image.new("RGB", size, (255, 0, 0)), (16, 16), np.random.default_rng(0))
        assert crop.shape == (16, 16, 3) and torch.equal(
            crop[..., 0], torch.full((16, 16), 255, dtype=torch.uint8)
        )


def test_unreadable_images_and_empty_classes_are_skipped_and_named(folder, tmp_path):
    (folder / "red" / "broken.png").write_bytes(b"not a picture")
    for file in (folder / "blue").iterdir():
        file.unlink()
    result = hp.finetune(network(), f"folder:{folder}", out=tmp_path / "a", **FAST)
    assert list(result.unreadable) == ["red/broken.png"] and result.empty_classes == ("blue",)
    history = json.loads(torch.load(tmp_path / "a" / RESUME, weights_only=True)["metrics"])
    assert list(history["unreadable"]) == ["red/broken.png"]


def test_one_class_or_no_label_is_refused(folder, tmp_path):
    for name in ("green", "blue"):
        for file in (folder / name).iterdir():
            file.unlink()
    with pytest.raises(HeatproofError, match="are of one class"):
        hp.finetune(network(), f"folder:{folder}", out=tmp_path / "a")
    Image.new("RGB", (16, 16)).save(folder / "loose.png")
    with (
        pytest.warns(UserWarning, match="without a label: loose.png"),
        pytest.raises(HeatproofError, match="1 images of .* have no label"),
    ):
        hp.finetune(network(), f"folder:{folder}", out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_without_readable_images_is_refused(folder, tmp_path):
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"")
    with pytest.raises(HeatproofError, match="no validation image"):
        hp.finetune(network(), f"folder:{folder}", out=tmp_path / "a", **FAST)
    assert isinstance(hp.load_data(f"folder:{folder}", network()), ImageFolder)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patches": 9}, "a 3×3 grid does not divide an image of 16×16"),
        ({"patches": 15}, "not the square"),
        ({"baseline": "zeroo"}, "did you mean zero"),
        ({"schedule": "long"}, 'unknown schedule "long"'),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"data": torch.zeros(3)}, r"\(N, channels, H, W\)"),
        ({"data": "paperbirds:test"}, "drawn at 32 to 1024 pixels"),
        ({"val": 1.5}, "between 0 and 1"),
        ({"val": 48}, "or their number, below 48; got 48"),
        ({"precision": "half"}, 'unknown precision "half"'),
        ({"augment": True}, "random crops need an image folder"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"data": (torch.rand(4, 3, 16, 16), [1, 1, 1, 1])}, "are of one class"),
        (
            {"data": (torch.rand(4, 3, 16, 16), [0, 1, 2, 7])},
            "labels such as 7, but the classes of tiny are 0 to 2",
        ),
        (
            {"data": (torch.rand(4, 3, 8, 8), [0, 1, 2, 1])},
            "gives images of 3×8×8, but tiny takes 3×16×16",
        ),
        (
            {
                "data": (torch.rand(4, 3, 16, 16), [0, 1, 2, 1]),
                "val": (torch.rand(4, 3, 16, 16), [0, 1, 2, 1]),
            },
            "4 images are in",
        ),
    ],
)
def test_bad_input_is_refused(tmp_path, changes, message):
    with pytest.raises(HeatproofError, match=message):
        tuned(tmp_path / "a", **changes)
    assert not list(tmp_path.glob("a/*.safetensors"))


def test_the_test_split_is_not_trained_on(tmp_path):
    with pytest.raises(HeatproofError, match="evaluated on paperbirds:test"):
        hp.finetune("paperbirds/vgg", "paperbirds:test", out=tmp_path)
    with pytest.raises(HeatproofError, match="evaluated on paperbirds:test"):
        hp.finetune("paperbirds/vgg", "paperbirds", val="paperbirds:test", limit=4, out=tmp_path)


def test_diverging_training_raises_and_keeps_the_last_good_epoch(tmp_path):
    with pytest.raises(
        HeatproofError,
        match="training diverged: .* in epoch 1, batch .* smaller learning rate .*nothing was kept",
    ):
        tuned(tmp_path / "a", lr=1e30)
    with pytest.raises(HeatproofError, match="in epoch 2, batch .* keeps epoch 1"):
        tuned(tmp_path / "b", gamma=1e32, step=1)
    assert all(
        torch.isfinite(value).all() for value in load_file(tmp_path / "b" / WEIGHTS).values()
    )
    assert torch.load(tmp_path / "b" / RESUME, weights_only=True)["epoch"] == 1


def test_a_directory_with_other_settings_is_left_alone(tmp_path):
    result = tuned(tmp_path, epochs=1)
    content = result.weights.read_bytes()
    with pytest.raises(HeatproofError, match="fine_tuned is 16/zero there, 4/zero here"):
        tuned(tmp_path, patches=4)
    with pytest.raises(HeatproofError, match="fine_tuned is 16/zero there, 16/blur here"):
        tuned(tmp_path, baseline="blur")
    with pytest.raises(HeatproofError, match="base is .* there"):
        tuned(tmp_path, network(norm=True))
    assert result.weights.read_bytes() == content
    (tmp_path / RESUME).unlink()
    with pytest.raises(HeatproofError, match="no resume.pt to resume from"):
        tuned(tmp_path)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/heatproof-was-here",)


def test_a_broken_or_hostile_checkpoint_is_refused(tmp_path):
    Path("/tmp/heatproof-was-here").unlink(missing_ok=True)
    torch.save({"identity": Hostile()}, tmp_path / "hostile.pt")
    for content in (b"half a fi", pickle.dumps(Hostile()), (tmp_path / "hostile.pt").read_bytes()):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / RESUME).write_bytes(content)
        with pytest.raises(
            HeatproofError, match="broken or not a checkpoint .* delete it to start again"
        ):
            tuned(tmp_path / "a")
    torch.save(
        {"identity": "{}", "epoch": "1", "net": {}, "optimiser": {}, "metrics": ""},
        tmp_path / "a" / RESUME,
    )
    with pytest.raises(HeatproofError, match="not a checkpoint of heatproof"):
        tuned(tmp_path / "a")
    assert not Path("/tmp/heatproof-was-here").exists()


def test_a_resume_file_with_other_weights_is_refused(tmp_path):
    tuned(tmp_path, epochs=1)
    result = torch.load(tmp_path / RESUME, weights_only=True)
    torch.save({**result, "net": {"1.weight": torch.zeros(2)}}, tmp_path / RESUME)
    with pytest.raises(HeatproofError, match="does not fit the model"):
        tuned(tmp_path)


# The command


NET = (
    SETUP.replace("import sys, time", "import sys, time").replace("torch.set_num_threads(1)", "")
    + "\ndef build():\n    return network()\n"
)


def call(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_prints_how_to_use_the_weights(folder, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (folder / "red" / "broken.png").write_bytes(b"not a picture")
    model = f"file:{tmp_path / 'net.py'}:build"
    output = call(
        "finetune",
        model,
        f"folder:{folder}",
        "-o",
        tmp_path / "out",
        "--epochs",
        2,
        "--batch-size",
        8,
        "--device",
        "cpu",
    )
    assert (
        "kept" in output
        and "before" in output
        and "1 images could not be read and were skipped: red/broken.png" in output
    )
    assert f"fine_tuned_weights: {{16/zero: '{tmp_path / 'out' / WEIGHTS}'}}" in output
    assert hp.load_model(model, weights=tmp_path / "out" / WEIGHTS).fine_tuned == "16/zero"
    assert (
        hp.load_model(
            model, fine_tuned_weights={"16/zero": tmp_path / "out" / WEIGHTS}, fine_tuned="16/zero"
        ).n_classes
        == 3
    )
    refused = call(
        "finetune",
        model,
        f"folder:{folder}",
        "-o",
        tmp_path / "out",
        "--patches",
        4,
        "--batch-size",
        8,
        code=2,
    )
    assert "fine_tuned is 16/zero there, 4/zero here" in refused


def test_the_command_refuses_weights_of_another_network(folder, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    torch.save({"0.weight": torch.zeros(2, 3, 3, 3)}, tmp_path / "other.pth")
    options = ("-o", tmp_path / "out", "--weights", tmp_path / "other.pth")
    assert "does not fit" in call(
        "finetune", f"file:{tmp_path / 'net.py'}:build", f"folder:{folder}", *options, code=2
    )


def test_help_has_examples():
    assert "heatproof finetune paperbirds/vgg" in call("finetune", "--help")
    assert "finetune" in call("--help")
