"""Compare what an example prints with what a page says that it prints."""

import re

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\.\d+)")


def same_output(printed: str, expected: str, tolerance: float = 1e-6, ordered: bool = True) -> bool:
    """Return whether two texts are the same but for spaces and small differences of numbers.

    Args:
        printed: What was printed.
        expected: What was expected.
        tolerance: The largest difference of two numbers; whole numbers must be equal.
        ordered: Whether the words must be in the same order.
    """
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, expected)]
    words = [NUMBER.sub("#", text).split() for text in (printed, expected)]
    if not ordered:
        words = [sorted(text) for text in words]
    return words[0] == words[1] and all(
        abs(a - b) <= tolerance for a, b in zip(*numbers, strict=True)
    )
