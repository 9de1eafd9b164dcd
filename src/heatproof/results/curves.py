"""The curves that protocols store, as a frame."""

from __future__ import annotations

import numpy as np
import pandas as pd

from heatproof.analysis.metric_curves import curve_positions
from heatproof.runs.format import ProtocolFacts
from heatproof.runs.run import Run

SETTING = ["model", "method", "protocol", "setting", "baseline"]
STEP = ["curve", "step", "position"]


def curve_frame(run: Run, samples: bool) -> pd.DataFrame:
    """Return the curves of all maps that have a score; see `Result.curves`."""
    facts = {f.canonical: f for f in run.protocols.values()}
    parts = []
    for task in run.tasks:
        kept = run.store.tensors(task.name)
        for key, values in kept.tensors.items():
            if key.kind == "curve" and key.protocol in facts:
                curves = values.double().numpy()
                part = _long(facts[key.protocol], key.name, kept.samples.ids, curves)
                parts.append(part.assign(model=task.model, method=key.method))
    columns = [*SETTING, *STEP, "sample", "value"]
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    rows = run.rows.loc[run.rows["status"] == "ok", [*SETTING, "sample"]].astype(str)
    scored = rows.merge(found, on=[*SETTING, "sample"])[columns]  # in the order of the rows
    if samples:
        return scored
    groups = scored.groupby([*SETTING, *STEP], sort=False, dropna=False)["value"]
    return groups.agg(["mean", "count"]).rename(columns={"count": "n"}).reset_index()


def _long(facts: ProtocolFacts, name: str, ids: list[str], values: np.ndarray) -> pd.DataFrame:
    """Return one line per sample and step."""
    samples, steps = values.shape
    positions = curve_positions(facts, steps)
    return pd.DataFrame(
        {
            "protocol": facts.id,
            "setting": facts.key[1],
            "baseline": facts.key[2],
            "curve": name,
            "step": np.tile(np.arange(steps), samples),
            "position": np.nan if positions is None else np.tile(positions, samples),
            "sample": np.repeat(np.array(ids, dtype=object), steps),
            "value": values.ravel(),
        }
    )
