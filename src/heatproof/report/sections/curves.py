"""What happens along a curve (Picard et al. 2024): the score, how far out of domain the images are, and how much is left of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import Key, Standings
from heatproof.analysis.tradeoff import tradeoff
from heatproof.baselines import Baseline
from heatproof.bench.layout import ProtocolFacts
from heatproof.report import charts, pictures
from heatproof.report.charts import Axis, Point, Spot
from heatproof.report.lines import Trace, traces
from heatproof.report.run_data import Kept, Run, confidence
from heatproof.report.sections.base import section
from heatproof.report.site import Site
from heatproof.tensor.curves import removal_order
from heatproof.tensor.information import INFORMATION, area_beyond, area_reached
from heatproof.tensor.noise import Rng

GROUPS = {  # of baselines: the colour of a family of methods, and what it says
    "colour": ("gradient", "one colour"),
    "noise": ("cam", "noise"),
    "local": ("perturbation", "the image itself, coarser or shuffled"),
    "spectral": ("relevance", "the image's spectrum, shuffled"),
    "imputed": ("attention", "from the pixels that are left"),
    "model": ("yours", "made for the model"),
    "other": ("other", "other"),
}
LEFT = {
    "negentropy": "information left (nats)",
    "energy": "energy of the logits",
    "mean-sigmoid": "mean sigmoid of the logits",
}
STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a strip
TOP = 5  # predictions of a bare baseline


class Watched(NamedTuple):
    """One baseline under one protocol: what was kept of one method's curves."""

    baseline: str
    key: Key
    protocol: ProtocolFacts
    score: Tensor  # (N, S)
    others: dict[
        str, Tensor
    ]  # (N, S): ood, ood-raw and what is left; empty where it was not watched
    far: float | None  # the distance that 95 % of known images stay below


@section("curves", short="Curves", question="What happens while pixels are removed?", order=70)
def content(run: Run, site: Site) -> dict[str, Any] | None:
    found = [model for standing in run.standings if (model := _model(run, site, standing))]
    if not found:
        return None
    used = {group for model in found for group in model["groups"]}
    return {
        "models": found,
        "groups": [(family, says) for group, (family, says) in GROUPS.items() if group in used],
    }


def _model(run: Run, site: Site, standing: Standings) -> dict[str, Any] | None:
    kept = run.kept(standing.model)
    protocols = [
        p for p in ("deletion", "insertion") if any(key[0] == p for key in standing.settings)
    ]
    method = next(
        (
            m
            for m in [*standing.order, *standing.methods]
            if any(_watched(run, kept, standing, p, m) for p in protocols)
        ),
        None,
    )
    if method is None:
        return None
    panels: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for protocol in protocols:
        watched = _watched(run, kept, standing, protocol, method)
        if watched:
            panels.append(
                {"protocol": protocol, "figures": _figures(site, protocol, method, watched)}
            )
            rows += [{"protocol": protocol, **_facts(w)} for w in watched]
    first = _watched(run, kept, standing, panels[0]["protocol"], method)
    return {
        "model": standing.model,
        "method": method,
        "samples": len(kept.ids),
        "panels": panels,
        "rows": rows,
        "tradeoffs": _tradeoffs(run, site, kept, standing, panels[0]["protocol"], method),
        "watched": bool(first[0].others),
        "strips": _strips(run, site, kept, standing.model, method, first),
        "crisp": run.is_crisp(standing.model),
        "groups": {_group(w.baseline) for w in first},
    }


def _watched(
    run: Run, kept: Kept, standing: Standings, protocol: str, method: str
) -> list[Watched]:
    """Of the first setting of that protocol, baseline by baseline."""
    settings = [key for key in standing.settings if key[0] == protocol]
    found = []
    for key in (k for k in settings if k[1] == settings[0][1]):
        facts = run.protocols[key]
        score = kept.curves(facts, method, "score")
        others = {
            name: kept.curves(facts, method, name) for name in ("ood", "ood-raw", *INFORMATION)
        }
        known = {name: curve for name, curve in others.items() if curve is not None}
        far = kept.shared(facts, "far")
        if score is not None:
            found.append(
                Watched(
                    key[2],
                    key,
                    facts,
                    score,
                    known,
                    float(far[0, 0]) if far is not None else None,
                )
            )
    return found


def _figures(site: Site, protocol: str, method: str, watched: list[Watched]) -> list[Any]:
    across = (
        "of the pixels removed, most relevant first"
        if protocol == "deletion"
        else "of the pixels put in, most relevant first"
    )
    wanted: list[tuple[str, str, float | None]] = [("score", "score of the target", None)]
    if watched[0].others:
        wanted += [
            ("ood", "distance to known images", watched[0].far),
            ("negentropy", LEFT["negentropy"], None),
        ]
    found = []
    for name, says, level in wanted:
        lines = [
            Trace(
                w.baseline,
                _family(w.baseline),
                _mean(w.score if name == "score" else w.others[name]),
            )
            for w in watched
        ]
        ends = [v for line in lines for v in line.values] + ([level] if level is not None else [])
        title = f"{protocol}, {method}: {says}, mean over the samples, for each baseline"
        found.append(
            site.figure(traces(lines, Axis.around(ends, most=5), (across, says), title, level))
        )
    return found


def _mean(curve: Tensor) -> tuple[float, ...]:
    return tuple(curve.double().nanmean(0).tolist())


def _facts(w: Watched) -> dict[str, Any]:
    curve = w.score.double().nanmean(0)
    beyond = None
    if "ood" in w.others and w.far is not None:
        low = w.score.double().amin(1, keepdim=True).clamp(max=0)
        beyond = Estimate.mean(
            area_beyond(w.score.double() - low, w.others["ood"].double(), w.far).numpy()
        )
    return {
        "baseline": w.baseline,
        "family": _family(w.baseline),
        "reached": float(area_reached(curve)),
        "beyond": beyond,
        "means": {
            name: Estimate.mean(values.double().mean(1).numpy())
            for name, values in w.others.items()
        },
    }


def _tradeoffs(
    run: Run, site: Site, kept: Kept, standing: Standings, protocol: str, method: str
) -> list[dict[str, Any]]:
    """For the method that is looked at and for a random order, which no map has a part in."""
    found = []
    for name in dict.fromkeys([method, *(m for m in standing.methods if m == "random")]):
        watched = [w for w in _watched(run, kept, standing, protocol, name) if w.others]
        if len(watched) < 3:
            continue
        distance = np.stack([w.others["ood"].double().mean(1).numpy() for w in watched], 1)
        for measure, says in LEFT.items():
            left = np.stack([w.others[measure].double().mean(1).numpy() for w in watched], 1)
            trade = tradeoff(distance, left)
            points = []
            for k, w in enumerate(watched):
                x, y = Estimate.mean(distance[:, k]), Estimate.mean(left[:, k])
                told = {"distance": x, says: y}
                lines = [
                    f"{what} {charts.number(e.value)} ({charts.interval(e.low, e.high)})"
                    for what, e in told.items()
                ]
                tip = "\n".join([w.baseline, *lines])
                points.append(
                    Point(
                        x.value,
                        Spot(y.value, y.low, y.high, tip),
                        _family(w.baseline),
                        w.baseline,
                        w.baseline,
                        True,
                    )
                )
            across = Axis.around([p.x for p in points])
            up = Axis.around([v for p in points for v in (p.spot.low, p.spot.high, p.spot.value)])
            title = f"{standing.model}, {protocol} in the order of {name}: distance to known images and {says}, for each baseline"
            figure = charts.scatter(
                points,
                across,
                up,
                ("distance to known images", says),
                title,
                fit=trade.line if trade else None,
            )
            below = (
                [
                    w.baseline
                    for w, r in sorted(
                        zip(watched, trade.residuals, strict=True), key=lambda p: p[1]
                    )
                ][:3]
                if trade
                else []
            )
            found.append(
                {
                    "method": name,
                    "measure": says,
                    "figure": site.figure(figure),
                    "trade": trade,
                    "below": below,
                }
            )
    return found


def _strips(
    run: Run, site: Site, kept: Kept, model: str, method: str, watched: list[Watched]
) -> dict[str, Any] | None:
    """The first sample on its way to nothing under each baseline, and what the model makes of the end."""
    sample = next(iter(kept.shown), None)
    if sample is None:
        return None
    image = kept.image(sample)
    small = kept.map(sample, method)
    if image is None or small is None:
        return None
    ranks = removal_order(
        pictures.resized(small, (image.shape[1], image.shape[2]))[None].nan_to_num(0), [sample]
    )[0]
    rows = []
    for w in watched:
        empty = kept.shared_row(sample, w.protocol, "picture")
        end = kept.shared_row(sample, w.protocol, "end")
        norm = kept.shared_row(sample, w.protocol, "norm")
        if empty is None or end is None:
            continue
        images = [
            site.picture(
                pictures.photo(
                    _without(image, empty, ranks < int(share * ranks.numel()), w.baseline)
                )
            )
            for share in STEPS
        ]
        shares = torch.softmax(end.double(), 0).topk(min(TOP, len(end)))
        top = [(run.class_name(model, int(i)), float(p)) for p, i in zip(*shares, strict=True)]
        length = float(norm) if norm is not None else None
        entropy = float(torch.special.entr(torch.softmax(end.double(), 0)).sum())
        distance = (
            float(w.others["ood"][kept.ids.index(sample), -1])
            if "ood" in w.others and w.key[0] == "deletion"
            else None
        )
        rows.append(
            {
                "baseline": w.baseline,
                "family": _family(w.baseline),
                "images": images,
                "top": top,
                "norm": length,
                "entropy": entropy,
                "far": distance,
            }
        )
    predicted, sure = confidence(kept.logits[kept.ids.index(sample)])
    facts = {"sample": sample, "label": run.class_name(model, predicted), "sure": sure}
    return {**facts, "rows": rows, "shares": [f"{100 * s:.0f} %" for s in STEPS]} if rows else None


def _without(
    image: Tensor, empty: Tensor, removed: Tensor, baseline: str
) -> Tensor:  # (C, H, W) uint8
    """As it was judged; what a baseline imputes is imputed again."""
    imputing = Baseline.find(baseline)
    # a user's own may need the model, which is not here
    again = imputing and imputing.entry.imputes and imputing.entry.source is None
    if imputing and again and not removed.all():
        filled = imputing.remover(image[None].float() / 255, None, Rng(0, [""]))(
            torch.tensor([0]), removed[None]
        )[0]
        return (filled * 255).round().clamp(0, 255).byte()
    return torch.where(removed, empty, image)


def _group(baseline: str) -> str:
    known = Baseline.find(baseline)
    return known.entry.group if known else "other"


def _family(baseline: str) -> str:
    return GROUPS.get(_group(baseline), GROUPS["other"])[0]
