"""Preprocessing of images of any size for a network: resized, then cropped.

``resize`` of a model is the length of the shorter side before the middle is cropped, such as 256;
or text that says more: ``256 bicubic``, ``square`` (both sides are resized to the network's size,
so that the image is distorted and nothing is cropped), ``square 256 bicubic``. With ``floor``, a
crop whose borders differ by a pixel has the smaller one above and left, as transformers does;
otherwise borders are rounded, as torchvision does.
"""

from __future__ import annotations

from typing import NamedTuple

from heatproof.errors import HeatproofError

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "box", "hamming", "lanczos")


class Resize(NamedTuple):
    """Resizing of an image before the middle is cropped.

    Attributes:
        side: The length of the shorter side, or of both sides if ``square``.
        square: Whether both sides get this length.
        interpolation: One of ``INTERPOLATIONS``.
        floor: Whether the border above and left of the crop is rounded down.
    """

    side: int
    square: bool = False
    interpolation: str = "bilinear"
    floor: bool = False

    @classmethod
    def parse(cls, resize: int | str, size: int) -> Resize:
        """Read a model's ``resize``.

        Args:
            resize: See the module.
            size: The side of the images that the network takes.

        Raises:
            HeatproofError: If the text means nothing, or the side is smaller than ``size``.
        """
        result = cls(size)
        for word in str(resize).split():
            if word.isdigit():
                result = result._replace(side=int(word))
            elif word == "square":
                result = result._replace(square=True)
            elif word == "floor":
                result = result._replace(floor=True)
            elif word in INTERPOLATIONS:
                result = result._replace(interpolation=word)
            else:
                raise HeatproofError(
                    f"resize={resize!r}: it is a length such as 256, and may be text such as "
                    f'"256 bicubic", "square" or "square 256 bicubic" ({", ".join(INTERPOLATIONS)})'
                )
        if result.side < size:
            raise HeatproofError(
                f"resize={resize} is smaller than {size}, the shorter side of images; "
                "the image is resized first, then its middle is cropped"
            )
        return result

    @property
    def written(self) -> int | str:
        """The shortest ``resize`` that means the same: a number where a number says it all."""
        words = [str(self.side)]
        if self.square:
            words.insert(0, "square")
        if self.interpolation != "bilinear":
            words.append(self.interpolation)
        if self.floor:
            words.append("floor")
        return self.side if len(words) == 1 else " ".join(words)

    @property
    def text(self) -> str:
        """Description for people."""
        what = "both sides" if self.square else "shorter side"
        how = "" if self.interpolation == "bilinear" else f" ({self.interpolation})"
        return f"{what} resized to {self.side}{how}"

    def border(self, side: int, size: int) -> int:
        """Return how many pixels are cropped above or left of the middle."""
        return (side - size) // 2 if self.floor else round((side - size) / 2)

    def scaled(self, factor: int) -> Resize:
        """Return the same for images whose sides are some times larger."""
        return self._replace(side=factor * self.side)
