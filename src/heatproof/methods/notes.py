"""Notes on single maps: what a reader of a score must know about the map that was scored."""

from __future__ import annotations

from torch import Tensor

STRETCH = 1.25  # between the sides of a map, from which a note says so


class MapNotes:
    """Notes of a method on single maps of a batch.

    A method with a parameter ``notes`` is passed one. A note is short plain text such as
    ``not converged: the mask covers .61 of the image instead of .10``. What stands before the
    colon is its kind: reports count notes by kind and show one as an example.

    Args:
        count: The number of maps.

    Attributes:
        texts: The note of each map; empty where there is none.
        missing: Why there is no map; empty where there is one.
        doubts: The notes that ``explain`` warns of, by row.
    """

    def __init__(self, count: int):
        self.texts = [""] * count
        self.missing = [""] * count
        self.doubts: dict[int, str] = {}

    def add(self, row: int, text: str, *, doubt: bool = True) -> None:
        """Add a note on the map of a row, after those that it has.

        Args:
            row: The row.
            text: The note.
            doubt: Whether it is a reason to doubt the map, rather than a fact about it.
        """
        if doubt:
            self.doubts.setdefault(row, text)
        if text not in self.texts[row].split("; "):
            self.texts[row] = "; ".join(filter(None, (self.texts[row], text)))

    def add_missing(self, row: int, reason: str) -> None:
        """Say why a row has no map; what the method returns for it is not used."""
        self.missing[row] = reason

    def set_rows(self, rows: slice, notes: MapNotes) -> None:
        """Take over the notes on the maps of a block of rows."""
        self.texts[rows] = notes.texts
        self.missing[rows] = notes.missing
        self.doubts |= {rows.start + row: text for row, text in notes.doubts.items()}

    def add_of_copies(self, copies: list[MapNotes]) -> None:
        """Add the notes on the maps of noisy copies: how many have one, and the first."""
        for row in range(len(self.texts)):
            texts = [copy.texts[row] for copy in copies if copy.texts[row]]
            if texts:
                kind, colon, detail = texts[0].partition(":")
                counted = f"{len(texts)} of {len(copies)} noisy copies"
                text = f"{kind}: {counted}{', the first one:' if colon else ''}{detail}"
                self.add(row, text, doubt=any(row in copy.doubts for copy in copies))
            missing = next((copy.missing[row] for copy in copies if copy.missing[row]), "")
            self.add_missing(row, missing)


def kind_of(note: str) -> str:
    """Return the kinds of a row's notes, without details that differ between maps."""
    return "; ".join(dict.fromkeys(part.partition(":")[0] for part in note.split("; ")))


def note_stretch(notes: MapNotes, maps: Tensor, size: tuple[int, int]) -> None:
    """Note on maps of another shape than the images, which resizing stretches.

    Args:
        notes: Where to add the notes.
        maps: Maps of shape ``(B, h, w)``.
        size: Height and width of the images.
    """
    height, width = maps.shape[1:]
    fitting = width * size[0] / size[1]  # the height of a map of this width
    ratio = max(fitting / height, height / fitting)
    if ratio > STRETCH and abs(height - fitting) > 1:
        for row in range(len(maps)):
            notes.add(
                row,
                f"the map has another shape than the image: {height}×{width} for "
                f"{size[0]}×{size[1]} px, so it is stretched",
            )


def note_sign(notes: MapNotes | None, logits: Tensor, target: Tensor, reversed_map: bool) -> None:
    """Note on maps of classes whose logit is not positive.

    Args:
        notes: Where to add the notes; None: nowhere.
        logits: Logits of shape ``(B, K)``.
        target: Class indices of shape ``(B,)``.
        reversed_map: Whether such a map shows the evidence against the class.
    """
    if notes is None:
        return
    for row, logit in enumerate(logits.gather(1, target[:, None])[:, 0].tolist()):
        if logit <= 0:
            sign = "negative" if logit < 0 else "zero"
            meaning = ", so the map shows what speaks against the class" if reversed_map else ""
            text = f"the target's logit is {sign}: {logit:.3g}{meaning}"
            notes.add(row, text, doubt=reversed_map)
