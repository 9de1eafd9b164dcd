"""Label files from strangers are read, or refused with the line that is wrong."""

import pytest

from heatproof.data.labels import class_index, labels_of, path_and_labels
from heatproof.errors import HeatproofError

IDS = ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'filename,label\na.png,"cat\nb.png,dog\n', "line 2: cannot read"),
        (b'a.png,cat\n\n"b"x.png,dog\n', "line 3: cannot read"),
        (b"a.png,cat\nb.png,d\x00g\nx,\x00", "1 labels have no image"),
        (b"a.png,cat\nb.png\n", "line 2: expected a file name and a label"),
        ("a.png,cat\nb.png,dog".encode("utf-16"), "save it as UTF-8"),
        ("a.png,Löwe\nb.png,dog".encode("latin-1"), "save it as UTF-8"),
        (b"a.png,cat\nb.png," + b"x" * 200_000, "line 2: cannot read"),
        (b"a.png,cat\na.png," + b"x" * 100_000 + b"\nb.png,dog", "two labels for a.png"),
        (b"", "2 of 2 images have no label"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content, message):
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(HeatproofError, match=message) as caught:
        labels_of(path, IDS, tmp_path)
    assert len(str(caught.value)) < 1500


def test_quoted_fields_are_read(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_bytes(b'filename,label\n"a.png","great, ""white"" shark"\nb.png,di"no\n')
    assert labels_of(path, IDS, tmp_path) == ['great, "white" shark', 'di"no']


def test_a_number_may_have_any_length():
    assert class_index(["007", "0"], None, 8, "labels") == {"007": 7, "0": 0}
    with pytest.raises(HeatproofError, match="are not classes"):
        class_index(["9" * 5000], None, 8, "labels")


def test_a_name_that_no_file_can_have_is_no_file():
    folder, labels = path_and_labels(f"images:{'x' * 5000}.csv")
    assert str(folder) == "images"
    assert labels is not None
