"""Labels of images: class names, ImageNet's ids (wnids) or numbers, and files that list them."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from heatproof.errors import HeatproofError, join_limited
from heatproof.models.vision import imagenet_wnids
from heatproof.text import clip, show

SUFFIXES = (".csv", ".tsv", ".txt")
WNID = re.compile(r"n\d{8}")
# names of columns, in the order in which they are looked for
FILE_COLUMNS = (
    "filename",
    "file_name",
    "file",
    "path",
    "image",
    "image_name",
    "image_id",
    "imageid",
    "name",
    "id",
)
LABEL_COLUMNS = (
    *("label", "labels", "class", "class_name", "target", "category", "wnid", "synset"),
    *("predictionstring", "class_index", "class_id", "index"),
)


def path_and_labels(rest: str) -> tuple[Path, Path | None]:
    """Parse ``images``, or ``images:labels.csv`` with a file here or in the folder."""
    folder, _, file = rest.rpartition(":")
    if not (folder and file.lower().endswith(SUFFIXES)):
        return Path(rest), None
    inside = Path(folder) / file
    if os.path.isfile(inside) and not os.path.isfile(file):  # which take any name
        return Path(folder), inside
    return Path(folder), Path(file)


def class_index(
    texts: Iterable[str], classes: Sequence[str] | None, n_classes: int | None, where: str
) -> dict[str, int]:
    """Return the class index that each text stands for.

    All texts must be class names, or all wnids, or all numbers. Case, blanks and underscores do not
    matter in names.

    Args:
        texts: Labels, or names of subfolders.
        classes: The model's class names.
        n_classes: The number of classes.
        where: What the texts are, for the message: ``labels of labels.csv``.

    Raises:
        HeatproofError: If a text stands for no class.
    """
    texts = list(dict.fromkeys(texts))
    readings = []
    for form, index in _readings(classes, n_classes):
        forms = {text: form(text) for text in texts}
        readings.append({text: index[key] for text, key in forms.items() if key in index})
    best = max(readings, key=len)
    if len(best) == len(texts):
        return best
    unmatched = [text for text in texts if text not in best]
    named = (
        f"named like {', '.join(classes[:3])}"
        if classes
        else f"{n_classes or 'some'} without names"
    )
    hint = " or ImageNet's ids, such as n01440764" if n_classes == 1000 else ""
    raise HeatproofError(
        f"{len(unmatched)} of {len(texts)} {where} are not classes of the model: "
        f"{join_limited(unmatched)}; its classes are {named}. Write those names, numbers from "
        f"0{hint}; or give the model its class names: hp.Model(…, classes=[…])"
    )


def _readings(
    classes: Sequence[str] | None, n_classes: int | None
) -> list[tuple[Callable[[str], str], Mapping[str, int]]]:
    """Return the ways to read a text: how it is normalized, and the class of each normal form."""
    names = list(classes or ())
    wnids = imagenet_wnids() if n_classes == 1000 else ()
    plain = [_plain(name) for name in names]
    twice = {name for name, count in Counter(plain).items() if count > 1}
    return [
        (str, {name: i for i, name in enumerate(names)}),
        (_plain, {name: i for i, name in enumerate(plain) if name not in twice}),
        (str, {wnid: i for i, wnid in enumerate(wnids)}),
        (_number, {str(i): i for i in range(n_classes or 0)}),
    ]


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().lower()


def _number(text: str) -> str:
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else ""


def labels_of(path: Path, ids: Sequence[str], root: Path) -> list[str]:
    """Return the text that a label file has for each image.

    The file names images by their path, with or without the suffix. Images and lines must match one
    to one.

    Args:
        path: A CSV or TSV file.
        ids: Paths of the images below the folder.
        root: The folder, for messages.

    Returns:
        One label per image, in the order of ``ids``.

    Raises:
        HeatproofError: If they do not match, or the file cannot be read.
    """
    images = _by_name(ids)
    texts: dict[str, str] = {}
    unmatched: list[str] = []
    for name, text in _rows(path):
        image = images.get(name.strip().removeprefix("./"))
        if image is None:
            unmatched.append(name)
        elif texts.setdefault(image, text) != text:
            raise HeatproofError(
                f"{path} has two labels for {image}: {clip(texts[image])} and {clip(text)}"
            )
    unlabelled = [image for image in ids if not texts.get(image)]
    problems = []
    if unlabelled:
        problems.append(
            f"{len(unlabelled)} of {len(ids)} images have no label ({join_limited(unlabelled)})"
        )
    if unmatched:
        problems.append(f"{len(unmatched)} labels have no image ({join_limited(unmatched)})")
    if problems:
        raise HeatproofError(
            f"{path} does not match {root}: {'; '.join(problems)}. Images are named by their path "
            "below the folder"
        )
    return [texts[image] for image in ids]


def _by_name(ids: Sequence[str]) -> dict[str, str]:
    """Map names to images, and names without suffix if only one image has such a name."""
    stems = {image: image.rpartition(".")[0] for image in ids}
    counts = Counter(stems.values())
    unique = {stem: image for image, stem in stems.items() if counts[stem] == 1}
    return {**unique, **{image: image for image in ids}}


def _rows(path: Path) -> Iterable[tuple[str, str]]:
    """Yield (file, label) for each line.

    A first line of column names may put them into any column; else they are the first two.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise HeatproofError(f"cannot read labels from {path}: {error}") from None
    except UnicodeDecodeError as error:
        raise HeatproofError(f"cannot read labels from {path}: {error}; save it as UTF-8") from None
    lines = [(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]
    delimiter = next((mark for mark in "\t,;" if lines and mark in lines[0][1]), None)
    rows = [(i, _fields(path, i, line, delimiter)) for i, line in lines]
    header = [_plain(field).replace(" ", "_") for field in rows[0][1]] if rows else []
    file = next((header.index(name) for name in FILE_COLUMNS if name in header), None)
    label = next((header.index(name) for name in LABEL_COLUMNS if name in header), None)
    if file is not None and label is not None:
        rows = rows[1:]
    elif len(header) > 2:
        raise HeatproofError(
            f"{path} has {len(header)} columns; name them in its first line: one is filename, one "
            "is label"
        )
    else:
        file = 0
        label = 1
    for number, row in rows:
        if len(row) <= max(file, label):
            found = show(" ".join(row))
            raise HeatproofError(
                f"{path}, line {number}: expected a file name and a label, found {found}"
            )
        text = row[label].strip()
        yield row[file], text.split()[0] if text and WNID.fullmatch(text.split()[0]) else text


def _fields(path: Path, number: int, line: str, delimiter: str | None) -> list[str]:
    """Return the fields of one line; a quoted field ends in its line."""
    if delimiter is None:
        return line.rsplit(None, 1)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error as error:  # a stray quote, or a field of more than 128 kB
        raise HeatproofError(
            f"{path}, line {number}: cannot read {show(line)} ({error}); a field that contains "
            'quotes is written as "say ""no"""'
        ) from None
