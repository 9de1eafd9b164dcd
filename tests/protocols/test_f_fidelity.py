"""F-Fidelity: a slow loop with the same noise, a network that looks at one pixel, fine-tuning."""

import pytest
import torch
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.protocols import EvalBatch, make_protocol
from heatproof.tensor.curves import removal_order
from heatproof.tensor.noise import Rng
from heatproof.training.loader import BatchLoader, PixelDeletion

SIDE = 8
PIXELS = SIDE * SIDE


class OnePixel(nn.Module):
    """The first class where the pixel in the corner is bright, the second elsewhere."""

    def forward(self, x):
        bright = x[:, 0, 0, 0]
        return torch.stack([bright, 0.5 - bright], 1)


def score(model, protocol, x, target, maps):
    ids = [str(i) for i in range(len(x))]
    batch = EvalBatch(ids, x, target, model.logits(x), Rng(3, ids))
    return protocol.score_maps(model, batch, {}, maps)


@pytest.mark.parametrize("kind", ["correct", "softmax"])
@pytest.mark.parametrize("name", ["f-fidelity", "f-fidelity-minus"])
def test_scores_against_a_slow_loop(name, kind):
    torch.manual_seed(1)
    model = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * PIXELS, 4)).eval(), size=SIDE)
    x, target, maps = torch.randn(3, 3, SIDE, SIDE), torch.tensor([0, 2, 1]), torch.randn(3, 8, 8)
    settings = {"sizes": 5, "samples": 7, "alpha": 0.6, "beta": 0.25, "score": kind}
    ours = score(model, make_protocol(name, settings), x, target, maps)
    ranks = removal_order(maps if name == "f-fidelity" else -maps, ["0", "1", "2"], 3)

    def of(image, label):
        logits = model.logits(image[None])[0]
        return float(logits.argmax() == label if kind == "correct" else logits.softmax(0)[label])

    for i in range(3):
        lost = []
        for k in range(5):
            count = int((k + 1) / 5 * PIXELS)
            chance = min(0.6, 0.25 * PIXELS / count)
            left = []
            for draw in range(7):
                key = f"{i}, deletion {k * 7 + draw}"
                noise = Rng(3, [key]).uniform("f-fidelity", (SIDE, SIDE))[0]
                image = x[i].clone()
                for row in range(SIDE):
                    for column in range(SIDE):
                        if ranks[i, row, column] < count and noise[row, column] < chance:
                            image[:, row, column] = 0
                left.append(of(image, target[i]))
            lost.append(of(x[i], target[i]) - sum(left) / 7)
        assert ours.curves["lost"][i].tolist() == pytest.approx(lost, abs=1e-6)
        assert ours.value[i].item() == pytest.approx(sum(lost) / 5, abs=1e-6)


OTHER = {
    "sizes": 3,
    "samples": 9,
    "alpha": 0.2,
    "beta": 0.2,
    "score": "softmax",
    "baseline": "uniform",
}


@pytest.mark.parametrize("name", ["f-fidelity", "f-fidelity-minus"])
def test_every_setting_matters(name):
    torch.manual_seed(1)
    model = hp.Model(nn.Sequential(nn.Flatten(), nn.Linear(3 * PIXELS, 4)).eval(), size=SIDE)
    x, maps = torch.randn(8, 3, SIDE, SIDE), torch.randn(8, SIDE, SIDE)
    target = model.logits(x).argmax(1)
    shared = {"sizes": 5, "samples": 5}

    def values(**settings):
        return score(model, make_protocol(name, shared | settings), x, target, maps).value.tolist()

    assert {*OTHER} == {*make_protocol(name, {}).model_dump()} - {"missing"}
    for setting, value in OTHER.items():
        assert values(**{setting: value}) != values(), setting


def test_a_network_that_looks_at_one_pixel_loses_it_as_often_as_it_is_deleted():
    model = hp.Model(OnePixel(), size=SIDE)
    x = torch.ones(1, 3, SIDE, SIDE)
    right = torch.zeros(1, SIDE, SIDE)
    right[:, 0, 0] = 1
    settings = {"sizes": 4, "samples": 4000, "alpha": 0.5, "beta": 0.1}
    chances = torch.tensor([0.4, 0.2, 0.4 / 3, 0.1])  # of each marked pixel: 10 % of all of them
    error = 4 * (chances * (1 - chances) / 4000).sqrt()
    for maps, name, expected in (
        (right, "f-fidelity", chances),
        (-right, "f-fidelity-minus", chances),
        (-right, "f-fidelity", torch.tensor([0, 0, 0, 0.1])),
        (right, "f-fidelity-minus", torch.tensor([0, 0, 0, 0.1])),
    ):
        found = score(model, make_protocol(name, settings), x, torch.tensor([0]), maps)
        difference = (found.curves["lost"][0] - expected).abs()
        assert (difference <= error * (expected > 0)).all()


def test_every_image_loses_the_same_part_of_its_pixels():
    model = hp.load_model("paperbirds/resnet")
    birds = hp.load_data("paperbirds:train", model, limit=6)
    clean = torch.stack([birds.load(i).image for i in range(6)])
    deletion = PixelDeletion(0.1, Baseline.parse("uniform"))
    assert deletion.name == "10%/uniform"

    def batch(order, epoch):
        (loaded,) = BatchLoader(birds, range(6), model, seed=2).batches([order], epoch, deletion)
        return loaded.x

    first = batch(range(6), 1)
    deleted = (first != model.normalize(clean)).any(1).flatten(1)
    assert deleted.sum(1).tolist() == [409] * 6  # of 64 × 64
    assert len({tuple(row.tolist()) for row in deleted}) == 6
    assert torch.equal(batch(range(5, -1, -1), 1).flip(0), first)
    assert not torch.equal(batch(range(6), 2), first)


def test_weights_are_fine_tuned_with_the_pixels_that_the_protocol_deletes():
    model = hp.load_model("paperbirds/resnet")
    (view,) = make_protocol("f-fidelity", {}).views(model, hp.load_data("paperbirds", model))
    assert view.key.name == "10%/zero"
    assert view.model.weights_metadata["fine_tuned"] == "10%/zero"
    with pytest.raises(hp.HeatproofError, match=r"--pixels 0\.2 --baseline 'blur'"):
        make_protocol("f-fidelity", {"beta": 0.2, "baseline": "blur"}).views(model, None)


def test_finetuning_with_pixels(tmp_path):
    model = hp.load_model("paperbirds/vgg")
    options = {"val": "paperbirds:val", "pixels": 0.05, "epochs": 1, "worst_images": 2}
    tuned = hp.finetune(model, "paperbirds:train", out=tmp_path, limit=8, **options)
    weights = {"5%/zero": tuned.weights}
    loaded = hp.load_model("paperbirds/vgg", fine_tuned_weights=weights)
    protocol = "f-fidelity(beta=0.05, sizes=2, samples=2)"
    result = hp.evaluate(loaded, "paperbirds", ["ixg"], [protocol], limit=2)
    assert result.summary()["n"].tolist() == [2]
    with pytest.raises(hp.HeatproofError, match="between 0 and 1; got 1.5"):
        hp.finetune(model, "paperbirds:train", out=tmp_path / "wrong", pixels=1.5)
