"""An image without the same pixels is run once, and nothing else changes."""

import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.protocols.known_outputs import KnownOutputs, removed_pixels


@pytest.mark.parametrize("below", [True, False])
def test_sets_of_pixels_are_recognized(below):
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(4, 5, 6, generator=generator)
    maps[1] = maps[0]
    maps[2] = maps[0] + torch.rand(5, 6, generator=generator) / 50  # some pixels change places
    ranks = F.removal_order(maps, ["same"] * 4)
    bounds = torch.tensor([0, 3, 10, 15, 15, 29, 30]).expand(4, -1)
    masks = ranks[:, None] < bounds[..., None, None]
    masks = (masks if below else ~masks).flatten(0, 1)
    images = [key for steps in removed_pixels(ranks, bounds, below) for key in steps]
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            assert torch.equal(one, other) == (images[i] == images[j])


def test_most_and_least_relevant_pixels_can_be_the_same():
    ranks = F.removal_order(torch.arange(6.0).reshape(1, 2, 3))
    reversed_ranks = F.removal_order(-torch.arange(6.0).reshape(1, 2, 3))
    bounds = torch.tensor([[2]])
    most = removed_pixels(ranks, bounds, below=True)
    assert most == removed_pixels(reversed_ranks, 6 - bounds, below=False)


def test_each_image_is_run_once_and_the_oldest_is_forgotten():
    known = KnownOutputs(limit=3 * 4 * (2 + 1))  # three rows of two logits and one embedding
    runs = []

    def run(numbers):
        runs.append(numbers.tolist())
        return numbers[:, None].float().expand(-1, 2), -numbers[:, None].float()

    logits, embedding = known.complete(["a", "b", "a", "b"], run)
    assert runs == [[0, 1]]
    assert logits[:, 1].tolist() == [0, 1, 0, 1]
    assert embedding[:, 0].tolist() == [0, -1, 0, -1]
    assert known.complete(["b", "a"], run)[0][:, 0].tolist() == [1, 0]
    assert runs == [[0, 1]]
    known.complete(["c", "d", "b"], run)
    assert runs[1:] == [[0, 1]]
    known.complete(["a", "b"], run)  # "a" was the oldest of four
    assert runs[2:] == [[0]]


def scores(name, methods, protocols, backend):
    model = hp.load_model(name, backend=backend)
    result = hp.evaluate(
        model, "paperbirds:test", methods, protocols, limit=8, batch_size=16, keep_maps=0
    )
    values = result.scores.set_index(["method", "protocol", "sample"])["value"]
    return values, model.pass_counts["forward"]


PROTOCOLS = ["deletion(steps=5)", "srg(steps=5)", "ids(steps=4)", "completeness(baseline=zero)"]


@pytest.mark.parametrize("name", ["paperbirds/resnet", "paperbirds/vgg-bn"])
@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_methods_with_the_same_order_share_their_passes(name, backend):
    alone, passes = scores(name, ["saliency"], PROTOCOLS, backend)
    both, passes_of_both = scores(name, ["saliency", "saliency|abs"], PROTOCOLS, backend)
    assert passes_of_both == passes  # a saliency map has no negative values
    for method in ("saliency", "saliency|abs"):
        assert both[method].equals(alone["saliency"])


def test_methods_share_the_steps_that_remove_the_same_pixels():
    """Behind a global pooling, XGrad-CAM is Grad-CAM but for rounding."""
    methods = ["gradcam", "xgradcam"]
    single = [scores("paperbirds/resnet", [m], ["deletion"], "eager") for m in methods]
    both, passes = scores("paperbirds/resnet", methods, ["deletion"], "eager")
    new = passes - single[0][1]
    assert new < (single[1][1] - 16) / 2  # without the clean and the empty images
    for method, (values, _) in zip(methods, single, strict=True):
        assert both[method].equals(values[method])


def test_a_users_baseline_sees_every_batch(tmp_path):
    """It may look at the other images of its batch, so nothing is left out."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import heatproof as hp\n"
        "@hp.baseline('mine')\n"
        "def mine(x, *, model, rng):\n"
        "    'Grey.'\n"
        "    return 0 * x\n"
    )
    protocol = f"deletion(steps=4, baseline=file:{file}:mine)"
    _, one = scores("paperbirds/vgg", ["saliency"], [protocol], "eager")
    _, two = scores("paperbirds/vgg", ["saliency", "saliency|abs"], [protocol], "eager")
    assert two == one + 3 * 8
