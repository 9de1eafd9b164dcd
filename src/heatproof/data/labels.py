"""What a text says about an image's class: a class's name, ImageNet's id of it (a wnid), or its number; and files that list such texts."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from heatproof.errors import HeatproofError, join_limited
from heatproof.models.vision import imagenet_wnids

SUFFIXES = (".csv", ".tsv", ".txt")
WNID = re.compile(r"n\d{8}")
# names of columns, the surest first
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


def place_and_labels(rest: str) -> tuple[Path, Path | None]:
    """`images`, or `images:labels.csv`, which lies here or in the folder."""
    folder, _, told = rest.rpartition(":")
    if not (folder and told.lower().endswith(SUFFIXES)):
        return Path(rest), None
    inside = Path(folder) / told
    return Path(folder), inside if inside.is_file() and not Path(told).is_file() else Path(told)


def class_index(
    texts: Iterable[str], classes: Sequence[str] | None, n_classes: int | None, where: str
) -> dict[str, int]:
    """Each text's class; all are names, or all wnids, or all numbers. Case, blanks and underscores do not matter in names."""
    texts = list(dict.fromkeys(texts))
    ways = [
        {text: known[key] for text in texts if (key := form(text)) in known}
        for form, known in _ways(classes, n_classes)
    ]
    best = max(ways, key=len)
    if len(best) == len(texts):
        return best
    strange = [text for text in texts if text not in best]
    named = (
        f"named like {', '.join(classes[:3])}"
        if classes
        else f"{n_classes or 'some'} without names"
    )
    hint = " or ImageNet's ids, such as n01440764" if n_classes == 1000 else ""
    raise HeatproofError(
        f"{len(strange)} of {len(texts)} {where} are not classes of the model: {join_limited(strange)}; its classes are {named}. "
        f"Write those names, numbers from 0{hint}; or give the model its class names: hp.Model(…, classes=[…])"
    )


def _ways(
    classes: Sequence[str] | None, n_classes: int | None
) -> list[tuple[Callable[[str], str], Mapping[str, int]]]:
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
    return str(int(text)) if text.isascii() and text.isdigit() else ""


def labels_of(path: Path, ids: Sequence[str], root: Path) -> list[str]:
    """The text that a label file has for each image, whose names it gives with or without their ending; both must match, one to one."""
    ways = _by_name(ids)
    found: dict[str, str] = {}
    homeless: list[str] = []
    for name, text in _rows(path):
        image = ways.get(name.strip().removeprefix("./"))
        if image is None:
            homeless.append(name)
        elif found.setdefault(image, text) != text:
            raise HeatproofError(f"{path} has two labels for {image}: {found[image]} and {text}")
    bare = [image for image in ids if not found.get(image)]
    if homeless or bare:
        told = (
            [f"{len(bare)} of {len(ids)} images have no label ({join_limited(bare)})"]
            if bare
            else []
        )
        told += (
            [f"{len(homeless)} labels have no image ({join_limited(homeless)})"] if homeless else []
        )
        raise HeatproofError(
            f"{path} does not match {root}: {'; '.join(told)}. Images are named by their path below the folder"
        )
    return [found[image] for image in ids]


def _by_name(ids: Sequence[str]) -> dict[str, str]:
    """Full names, and names without ending where only one image has that."""
    short = Counter(image.rpartition(".")[0] for image in ids)
    return {
        **{name: image for image in ids if short[name := image.rpartition(".")[0]] == 1},
        **{image: image for image in ids},
    }


def _rows(path: Path) -> Iterable[tuple[str, str]]:
    """(file, label) of each line; a first line of column names may put them anywhere, else they are the first two columns."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise HeatproofError(f"cannot read labels from {path}: {error}") from None
    mark = next((mark for mark in "\t,;" if lines and mark in lines[0]), None)
    rows = (
        [*csv.reader(lines, delimiter=mark)] if mark else [line.rsplit(None, 1) for line in lines]
    )
    head = [_plain(cell).replace(" ", "_") for cell in rows[0]] if rows else []
    file, label = (
        next((head.index(name) for name in names if name in head), None)
        for names in (FILE_COLUMNS, LABEL_COLUMNS)
    )
    titled = file is not None and label is not None
    at = (file or 0, label or 0) if titled else (0, 1)
    if rows and len(rows[0]) > 2 and not titled:
        raise HeatproofError(
            f"{path} has {len(rows[0])} columns; name them in its first line: one is filename, one is label"
        )
    for number, row in enumerate(rows[1:] if titled else rows, start=2 if titled else 1):
        if len(row) <= max(at):
            raise HeatproofError(
                f"{path}, line {number}: expected a file's name and its label, found {' '.join(row)!r}"
            )
        text = row[at[1]].strip()
        yield row[at[0]], text.split()[0] if text and WNID.fullmatch(text.split()[0]) else text
