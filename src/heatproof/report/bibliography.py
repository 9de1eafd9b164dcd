"""BibTeX of everything that a run has used: heatproof, methods, protocols and data."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

import heatproof
from heatproof.analysis.run_statistics import RunStatistics

FILE = Path(__file__).parent / "papers.bib"
DATA = {"cifar10": "krizhevsky2009", "cifar100": "krizhevsky2009", "funnybirds": "hesse2023"}
SOFTWARE = """@software{{heatproof,
  title = {{heatproof: which heatmaps can you trust?}},
  author = {{{{The heatproof authors}}}},
  version = {{{version}}},
  year = {{{year}}}
}}"""


@cache
def entries() -> dict[str, str]:
    """Return all entries that heatproof knows, by key."""
    parts = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {part.partition("{")[2].partition(",")[0]: part for part in parts}


def keys_of(citation: str) -> list[str]:
    """Return the keys of the papers that a text names, such as ``Selvaraju et al. 2017``.

    Several papers are separated by semicolons. A key is the first author's name and the year.
    """
    keys = []
    for part in citation.split(";"):
        years = re.findall(r"\b(?:19|20)\d\d[a-z]?\b", part)
        author = re.match(r"\s*(?:as in )?([^\W\d]+)", part)
        if years and author:
            name = unicodedata.normalize("NFKD", author[1]).encode("ascii", "ignore").decode()
            keys.append(f"{name.lower()}{years[-1]}")
    return keys


def bibtex(run: RunStatistics) -> tuple[str, list[str]]:
    """Return the BibTeX of a run, and what it has used whose paper is not known here."""
    spec_data = run.provenance.spec.get("data")
    name = str(spec_data.get("name", "")) if isinstance(spec_data, dict) else ""
    cited = [facts.paper for facts in run.methods.values() if facts.paper]
    cited += [facts.citation for facts in run.protocols.values() if facts.citation]
    keys = [key for citation in dict.fromkeys(cited) for key in keys_of(citation)]
    keys += [DATA[part] for part in name.split(":") if part in DATA]
    known = entries()
    found = [known[key] for key in sorted(set(keys)) if key in known]
    year = run.provenance.started[:4]
    software = SOFTWARE.format(
        version=heatproof.__version__, year=year if year.isdigit() else "n.d."
    )
    unknown = [
        citation
        for citation in dict.fromkeys(cited)
        if not keys_of(citation) or any(key not in known for key in keys_of(citation))
    ]
    return "\n\n".join([software, *found]) + "\n", unknown
