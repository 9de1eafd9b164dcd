"""Draw docs/img/statements.png from docs/statements.csv: `python docs/make_statements_picture.py`.

A dot is the rate of false statements in one scenario of `benchmarks/statements.py`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from panels import BLUE, GREY, ORANGE
from result_pictures import save

DOCS = Path(__file__).parent
LEVEL = 0.05
NO_RATES = {"named first by failing"}  # a difference of two rates


def main() -> None:
    rates = pd.read_csv(DOCS / "statements.csv")
    rates = rates[~rates["statement"].isin(NO_RATES)]
    statements = list(dict.fromkeys(rates["statement"]))[::-1]
    plt.rcParams.update({"font.size": 8})
    figure, ax = plt.subplots(figsize=(8, 0.6 + 0.19 * len(statements)), dpi=110)
    colors = [GREY if name.startswith("old") else BLUE for name in rates["statement"]]
    ax.scatter(rates["false"], rates["statement"].map(statements.index), s=9, c=colors, alpha=0.5)
    ax.axvline(LEVEL, color=ORANGE, lw=1)
    ax.set_yticks(range(len(statements)), statements)
    ax.set_xlabel("fraction of worlds with a false statement, or of intervals that miss the truth")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=2)
    save(figure, DOCS / "img/statements.png")


if __name__ == "__main__":
    main()
