"""Fills of generative baselines are kept by image and mask, and change nothing but the time."""

import pytest
import torch
from click.testing import CliRunner

import heatproof as hp
from heatproof.baselines import BASELINES, Baseline
from heatproof.cli import main
from heatproof.errors import HeatproofError
from heatproof.tensor.noise import Rng

CODE = """
import heatproof as hp

calls = []

@hp.baseline("fill-of-file", imputes=True, cached=True)
def fill(x, removed, *, model, rng, add: float = 0.25):
    calls.append(len(x))
    kept = ~removed[:, None]
    mean = (x * kept).sum((2, 3), keepdim=True) / kept.sum().clamp(min=1)
    return (mean + add).expand_as(x)
"""


@pytest.fixture
def fill(tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(CODE)
    from heatproof.userfile import from_file

    function = from_file(f"file:{tmp_path}/mine.py:fill")
    yield f"file:{tmp_path}/mine.py:fill", function.__globals__["calls"]
    BASELINES._entries.pop("fill-of-file", None)
    BASELINES._objects.pop("fill-of-file", None)


def images():
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def halves(x):
    removed = torch.zeros_like(x[:, 0], dtype=torch.bool)
    removed[0, :8] = True
    removed[1, :, :8] = True
    return removed


def test_a_fill_is_made_once_for_an_image_and_a_mask(fill, tmp_path):
    name, calls = fill
    x = images()
    removed = halves(x)
    rng = Rng(0, ["a", "b", "c"])
    first = Baseline.parse(name).fill(x, None, rng, removed)
    assert calls == [1, 1]  # one image at a time, and none where nothing is removed
    again = Baseline.parse(name).fill(x, None, rng, removed)
    assert calls == [1, 1]
    assert torch.equal(first, again)
    assert torch.equal(first[~removed[:, None].expand_as(x)], x[~removed[:, None].expand_as(x)])
    expected = x[0, :, 8:].mean((1, 2)) + 0.25
    torch.testing.assert_close(first[0, :, 0, 0], expected, rtol=1e-3, atol=1e-3)
    kept = list((tmp_path / "cache" / "fills").rglob("*.npy"))
    assert len(kept) == 2

    Baseline.parse(f"{name}(add=0.5)").fill(x, None, rng, removed)  # other arguments
    Baseline.parse(name).fill(x, None, Rng(1, ["a", "b", "c"]), removed)  # another seed
    Baseline.parse(name).fill(x + 1, None, rng, removed)  # other images
    Baseline.parse(name).fill(x, None, rng, ~removed)  # other masks, and one more
    assert calls == [1] * 11

    for path in (tmp_path / "cache" / "fills").rglob("*.npy"):
        path.write_bytes(b"damaged")
    assert torch.equal(Baseline.parse(name).fill(x, None, rng, removed), first)


def test_fills_do_not_depend_on_the_batch(fill, tmp_path, monkeypatch):
    name, _ = fill
    x = images()
    removed = halves(x)
    together = Baseline.parse(name).fill(x, None, Rng(0, ["a", "b", "c"]), removed)
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "another"))
    remove = Baseline.parse(name).remover(x, None, Rng(0, ["a", "b", "c"]))
    for row in range(3):
        alone = remove(torch.tensor([row]), removed[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_edited_code_does_not_read_old_fills(fill, tmp_path):
    name, _ = fill
    x = images()
    rng = Rng(0, ["a", "b", "c"])
    old = Baseline.parse(name).fill(x, None, rng, halves(x))
    (tmp_path / "mine.py").write_text(CODE.replace("mean + add", "mean - add"))
    new = Baseline.parse(name).fill(x, None, rng, halves(x))
    assert not torch.equal(old, new)


def test_the_scores_of_a_second_run_come_from_the_cache(fill):
    name, calls = fill
    run = lambda: hp.evaluate(  # noqa: E731
        "paperbirds/resnet",
        "paperbirds:test",
        ["ixg", "random"],
        [f"deletion(baseline={name}, steps=4)"],
        limit=3,
    ).scores["value"]
    first = run()
    made = len(calls)
    assert made > 0
    assert run().tolist() == first.tolist()
    assert len(calls) == made


def test_a_plan_says_how_many_images_are_filled_in(fill, tmp_path):
    name, calls = fill
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "models: [paperbirds/resnet]\n"
        "data: {name: paperbirds, split: test, limit: 3}\n"
        "methods: [ixg, random]\n"
        f'protocols: [{{name: deletion, steps: 4, baseline: "{name}"}}]\n'
    )
    result = CliRunner().invoke(main, ["plan", str(spec)])
    assert result.exit_code == 0, result.output
    calls.clear()
    hp.run(spec, out=tmp_path / "run")
    text = " ".join(result.output.split())
    most = int(text.split("fills in up to ")[1].split()[0])
    assert "about" in text and "fills that are in the cache are not made again" in text
    assert len(calls) <= most <= len(calls) + 3  # two maps may remove the same pixels


def test_what_cannot_be_cached_is_refused():
    with pytest.raises(HeatproofError, match="cached=True is for functions"):

        @hp.baseline("not imputing", cached=True)
        def painted(x, *, model, rng):
            return x
