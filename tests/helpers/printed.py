"""Compare what an example prints with what a page says that it prints."""

import re

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+|\.\d+)")  # whole numbers must be the same


def same_output(printed: str, expected: str, tolerance: float = 1e-6) -> bool:
    """Return whether two texts are the same but for spaces and small differences of numbers."""
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, expected)]
    words = [NUMBER.sub("#", text).split() for text in (printed, expected)]
    return words[0] == words[1] and all(
        abs(a - b) <= tolerance for a, b in zip(*numbers, strict=True)
    )
