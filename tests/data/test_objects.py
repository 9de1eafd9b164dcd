"""Objects that are not fit for an evaluation are refused at once; none needs much memory."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import heatproof as hp
from heatproof.data.base import UnreadableImage
from heatproof.data.catalog import load_batch
from heatproof.data.objects import parse_item
from heatproof.data.stream import StreamSource
from heatproof.errors import HeatproofError


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return hp.Model(
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), size=16
    )


def picture(i):
    pixels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


class Made(Dataset):
    """Images that are made when they are asked for."""

    def __init__(self, make=lambda i: (picture(i), i % 2), count=20):
        self.make = make
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.make(i)


class Counted(np.ndarray):
    """An image that weak references can follow."""


def test_two_thousand_images_are_never_in_memory_together(model):
    alive = set()
    most = 0

    def make(i):
        nonlocal most
        image = np.full((16, 16, 3), i % 251, np.uint8).view(Counted)
        image[0, 0] = (i % 256, i // 256, 0)
        alive.add(id(image))
        weakref.finalize(image, alive.discard, id(image))
        most = max(most, len(alive))
        return image, i % 2

    data = hp.load_data(Made(make, 2000), model)
    assert len(data.fingerprints) == len(set(data.fingerprints)) == 2000
    for start in range(0, 2000, 64):
        load_batch(data, range(start, min(start + 64, 2000)), model)
    gc.collect()
    assert 1 <= most <= 8  # four threads, each with the image that it fits
    assert not alive


def test_memory_does_not_grow_with_the_number_of_images(model):
    """2000 images of 0.75 MB pass through a few megabytes, from a data set and from a stream."""
    import tracemalloc

    def make(i):
        image = np.zeros((3, 16, 16), np.float32)
        image[0, 0, 0] = i / 2000
        return np.broadcast_to(image, (256, 3, 16, 16)).copy()[0], i % 2

    class Stream(IterableDataset):
        def __iter__(self):
            return (make(i) for i in range(2000))

    for thing in (Made(make, 2000), Stream()):
        tracemalloc.start()
        data = hp.load_data(thing, model)
        assert len(data.fingerprints) == 2000
        for start in range(0, 2000, 500):
            load_batch(data, range(start, start + 32), model)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6  # one image as it is made has 0.75 MB, all of them 1.5 GB


def test_a_stream_is_read_no_further_than_needed(model):
    taken = []

    def endless():
        i = 0
        while True:
            taken.append(i)
            yield picture(i), i % 2
            i += 1

    data = hp.load_data(endless(), model, limit=5)
    assert data.ids == ["0", "1", "2", "3", "4"]
    assert len(taken) == 5
    torch.testing.assert_close(
        data.load(3).image, torch.from_numpy(np.array(picture(3))).permute(2, 0, 1) / 255
    )


def test_a_stream_gives_back_what_it_was_given(tmp_path):
    picture(0).save(tmp_path / "a.png")
    palette = picture(1).quantize(8)
    things = [
        picture(0),
        palette,
        torch.rand(3, 4, 4),
        np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        (tmp_path / "a.png").read_bytes(),
        str(tmp_path / "a.png"),
        {"bytes": (tmp_path / "a.png").read_bytes(), "path": None},
        {"image": picture(2), "label": 1, "id": "two", "mask": np.ones((16, 16), bool)},
    ]
    source = StreamSource(things, parse_item, "things")
    assert len(source) == len(things)
    read = [source.read(i) for i in range(len(things))]
    assert read[0].image.tobytes() == things[0].tobytes()
    assert read[1].image.tobytes() == palette.convert("RGB").tobytes()
    torch.testing.assert_close(read[2].image, things[2], rtol=0, atol=0)
    np.testing.assert_array_equal(read[3].image, things[3])
    assert read[4].image == read[6].image == things[4]
    assert (read[5].image, read[5].id) == (things[5], things[5])
    assert (read[7].label, read[7].id) == (1, "two")
    assert read[7].mask.all()


def test_a_shuffling_loader_is_refused(model):
    data = Made()
    weighted = WeightedRandomSampler([1.0] * 20, 20)
    for loader in (DataLoader(data, shuffle=True), DataLoader(data, sampler=weighted)):
        with pytest.raises(HeatproofError, match=r"shuffle=False\), or pass loader.dataset"):
            hp.load_data(loader, model)
    ordered = hp.load_data(DataLoader(data, batch_size=7), model)
    assert sorted(ordered.ids, key=int) == [str(i) for i in range(20)]


def test_a_collate_function_is_used_where_items_are_no_images(model):
    def collate(numbers):
        images = torch.stack([torch.full((3, 16, 16), n / 20) for n in numbers])
        return {"pixel_values": images, "labels": torch.tensor([n % 2 for n in numbers])}

    loader = DataLoader(Made(lambda i: i), batch_size=4, collate_fn=collate)
    data = hp.load_data(loader, model)
    for index, name in enumerate(data.ids):
        assert data.load(index).image.unique().item() == pytest.approx(int(name) / 20)
        assert data.labels[index] == int(name) % 2


def test_random_augmentation_is_noticed(model):
    def flip(i):
        image = picture(i)
        return image.rotate(random.choice((0, 90, 180, 270, 45, 30))), 0

    random.seed(0)
    with pytest.raises(HeatproofError, match="another image every time.*remove random augmentati"):
        hp.load_data(Made(flip), model)
    later = Made()
    data = hp.load_data(later, model)
    later.make = lambda i: (picture(i + 1), i % 2)
    with pytest.raises(UnreadableImage, match="is another image than when it was first read"):
        data.load(0)


def test_a_length_that_changes_is_noticed(model):
    growing = Made()
    data = hp.load_data(growing, model)
    growing.count = 21
    with pytest.raises(HeatproofError, match="had 20 items and now has 21"):
        data.load(0)


def test_one_broken_item_is_skipped_and_reported(model):
    def sometimes(i):
        if i == 7:
            raise OSError("disk on fire")
        return picture(i), i % 2

    result = hp.evaluate(model, Made(sometimes), ["ixg"], ["sds(patches=4)"])
    rows = result.scores.set_index("sample")
    assert rows.loc["7", "status"] == "skipped"
    assert "disk on fire" in rows.loc["7", "message"]
    assert set(rows.drop("7")["status"]) == {"ok"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i: 1 / 0, "none of 5 images can be read: .*ZeroDivisionError"),
        (lambda i: "text", "none of 5 images can be read: text: No such file"),
        (lambda i: None, "NoneType, which is not an image"),
        (lambda i: (picture(i), 2), "labels such as 2, but the classes .* are 0 to 1"),
        (lambda i: (picture(i), -1), "labels such as -1"),
        (lambda i: (picture(i), 0.5), "labels of type float, such as 0.5"),
        (lambda i: (picture(i), torch.tensor([0.0, 1.0])), r"take label.argmax\(\)"),
        (lambda i: (picture(i), 0, 3), "third part of type int, which is not a mask"),
        (lambda i: (picture(i), 0, None, 1), "has 4 parts"),
        (lambda i: {"photo": picture(i)}, "the keys photo, none of which is an image"),
        (lambda i: (torch.randn(3, 16, 16, generator=seeded(i)), 0), "looks normalized"),
        (lambda i: (picture(i), "cat" if i else 0), "names .* and others that are numbers"),
    ],
)
def test_items_of_the_wrong_kind_are_refused_at_once(model, make, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(Made(make), model)


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor, bool, np.bool_])
def test_labels_may_be_floats_that_are_whole_numbers(model, kind):
    labels = [kind(float(i % 2)) if kind is torch.tensor else kind(i % 2) for i in range(4)]
    data = hp.load_data([(picture(i), labels[i]) for i in range(4)], model)
    assert dict(zip(data.ids, data.labels, strict=True)) == {str(i): i % 2 for i in range(4)}
    assert hp.TensorData(torch.rand(4, 3, 16, 16), labels).labels == [0, 1, 0, 1]
    with pytest.raises(HeatproofError, match=r"whole numbers from 0; got 0.5"):
        hp.TensorData(torch.rand(2, 3, 16, 16), np.array([1.0, 0.5]))


def seeded(i):
    return torch.Generator().manual_seed(i)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([], "images has no images"),
        (iter(()), "has no images"),
        (np.zeros((16, 16), np.uint8), r"one image is image\[None\]"),
        ((picture(0), 1, 2), "got a tuple of 3"),
        (3, "data is a name"),
        (torch.zeros(2, 16, 16, 3), r"images.permute\(0, 3, 1, 2\)"),
        (torch.rand(2, 3, 16, 16) * 255, "Write images / 255"),
        (torch.randn(2, 3, 16, 16), r"Remove Normalize, or write hp.load_data\(images, norm"),
    ],
)
def test_other_objects_are_refused(model, thing, message):
    with pytest.raises(HeatproofError, match=message):
        hp.load_data(thing, model)


def test_tensor_data_says_how_to_pass_bytes():
    with pytest.raises(HeatproofError, match=r"got uint8. Write images.float\(\) / 255"):
        hp.TensorData(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))


def test_a_limit_applies_to_any_data(model):
    images = torch.rand(6, 3, 16, 16)
    assert hp.load_data(hp.TensorData(images), limit=2).ids == ["0", "1"]
    result = hp.evaluate(model, (images, [0, 1] * 3), ["ixg"], ["sds(patches=4)"], limit=4)
    assert result.scores["sample"].tolist() == ["0", "1", "2", "3"]
    with pytest.raises(HeatproofError, match="limit must be at least 1"):
        hp.evaluate(model, Made(), ["ixg"], limit=0)


def test_a_run_of_an_object_continues_where_it_stopped(model, tmp_path):
    """The same images have the same records, also in another object."""
    done = []

    def progress(task, finished_before):
        done.append(finished_before)

    for _ in range(2):
        hp.evaluate(model, Made(), ["ixg"], out=tmp_path, progress=progress)
    assert done == [False, True]
