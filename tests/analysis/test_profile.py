"""Evidence by kind: constructed scores whose order is known."""

import numpy as np
import pandas as pd

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.profile import by_kind, conflicts, kind_of
from heatproof.analysis.ranks import standings
from heatproof.protocols import PROTOCOLS
from heatproof.protocols.base import KINDS

N = 64


def evidence_of(means: dict[str, tuple[float, ...]]) -> Evidence:
    """Return the evidence of methods a, b, c, … that are well apart, by protocol."""
    noise = np.random.default_rng(0)
    rows = [
        {
            "model": "net", "protocol": protocol, "setting": "", "baseline": "", "method": method,
            "layer": "input", "sample": str(i), "cluster": str(i), "status": "ok", "note": "",
            "value": mean + 0.01 * noise.standard_normal(),
        }
        for protocol, of_methods in means.items()
        for method, mean in zip("abcd", of_methods, strict=False)
        for i in range(N)
    ]  # fmt: skip
    (standing,) = standings(pd.DataFrame(rows))
    return Evidence(standing, controls=["d"])


def test_every_protocol_has_a_kind_with_a_meaning():
    for entry in PROTOCOLS:
        assert entry.cls.kind in KINDS
        assert (entry.cls.kind == "description") == (not entry.cls.ranked)
        assert entry.cls.source is not None or entry.cls.kind != "other"
    assert kind_of("idsds") == kind_of("parts") == "in-domain"
    assert kind_of("soundness") == "values" and kind_of("deletion") == "faithfulness"


def test_kinds_have_evidence_of_their_own():
    found = by_kind(
        evidence_of(
            {
                "sds": (0.9, 0.5, 0.1),
                "deletion": (1, 2, 3),  # lower is better
                "sensitivity": (0.9, 0.5, 0.1),
                "sparseness": (0.1, 0.5, 0.9),
            }
        )
    )
    assert [kind.kind for kind in found] == ["faithfulness", "robustness"]
    assert found[0].protocols == ("sds", "deletion")
    assert [kind.evidence.winner for kind in found] == ["a", "c"]


def test_conflicts_are_pairs_in_opposite_order_and_controls_come_last():
    means = {
        "sds": (0.9, 0.7, 0.5, 0.1),
        "randomization": (0.1, 0.3, 0.5, 0.9),  # lower is better: the same order
        "sensitivity": (0.1, 0.5, 0.3, 0.01),  # lower is better: d, a, c, b
    }
    found = conflicts(by_kind(evidence_of(means)))
    assert {conflict.kinds: conflict.count for conflict in found} == {
        ("faithfulness", "robustness"): 4,
        ("sanity", "robustness"): 4,
    }
    assert found[0].examples[0] == ("b", "c")
    assert all("d" in pair for pair in found[0].examples[1:])


def test_orders_that_the_data_do_not_bear_are_no_conflict():
    equal = evidence_of({"sds": (0.9, 0.5), "sensitivity": (0.5, 0.5)})
    assert conflicts(by_kind(equal)) == []
