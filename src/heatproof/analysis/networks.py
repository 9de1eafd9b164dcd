"""Networks as a sample: what a run of several networks says about another one of the same kind.

Statements about the networks of a run are about more images of the same kind. For another network,
the networks are the sample: the scores of a method on them vary, and a new one may be as far from
their mean. With K networks whose mean scores have the standard deviation s, a new one is within
t s √(1 + 1 / K) of their mean in 95 % of cases, if they are drawn from the same kind and nearly
normal; the error that the images leave to the mean is added. Methods are compared by one family of
tests, as under a setting of one network, with networks in place of images, and with the error of
the images, which networks share, added to that of the networks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatproof.analysis.evidence import Evidence
from heatproof.analysis.families import LEVEL
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.ranks import standings_of
from heatproof.analysis.settings import Key, SettingScores, scored_settings

FEWEST_NETWORKS = 5  # networks
NETWORK_DRAWS = 200  # of networks, which no statement rests on
KIND = "networks of this kind"


@dataclass(frozen=True)
class OverNetworks:
    """The scores of a method over several networks, under one setting.

    Attributes:
        key: The setting.
        method: The method.
        networks: On how many networks it is ranked.
        mean: The mean of its scores on them; the interval is for these networks and more images.
        new: The same mean; the interval is for the score of a new network of the same kind.
    """

    key: Key
    method: str
    networks: int
    mean: Estimate
    new: Estimate


def over_networks(settings: Sequence[SettingScores]) -> list[OverNetworks]:
    """Average scores over networks, where a method is ranked on five or more.

    Args:
        settings: The scores of all networks and settings.
    """
    found = []
    for key, of_setting in _by_key(settings).items():
        for method in dict.fromkeys(m for scores in of_setting for m in scores.methods):
            ranked = [
                (scores, i)
                for scores in of_setting
                if method in scores.methods and scores.ranked[i := scores.methods.index(method)]
            ]
            if len(ranked) >= FEWEST_NETWORKS:
                means = np.array([scores.means[i] for scores, i in ranked])
                draws = np.mean([scores.draws[:, i] for scores, i in ranked], axis=0)
                limits = ranked[0][0].limits or (-math.inf, math.inf)
                mean = Estimate.of(float(means.mean()), draws)
                new = for_a_new_network(means, mean, limits)
                found.append(OverNetworks(key, method, len(ranked), mean, new))
    return found


def _by_key(settings: Sequence[SettingScores]) -> dict[Key, list[SettingScores]]:
    by_key: dict[Key, list[SettingScores]] = {}
    for scores in settings:
        by_key.setdefault((scores.key[1], scores.key[2], scores.key[3]), []).append(scores)
    return by_key


def for_a_new_network(means: np.ndarray, mean: Estimate, limits: tuple[float, float]) -> Estimate:
    """Return the interval that the mean score of a new network lies in.

    Args:
        means: The mean score of each network.
        mean: Their mean; its interval is for these networks and more images.
        limits: Lowest and highest possible score.
    """
    from scipy.special import stdtrit  # slow to import

    count = len(means)
    reach = stdtrit(count - 1, 1 - LEVEL / 2) * means.std(ddof=1) * math.sqrt(1 + 1 / count)
    below, above = mean.value - mean.low, mean.high - mean.value
    low = mean.value - math.hypot(reach, below if math.isfinite(below) else 0)
    high = mean.value + math.hypot(reach, above if math.isfinite(above) else 0)
    return Estimate(mean.value, max(low, limits[0]), min(high, limits[1]))


def evidence_of_networks(
    settings: Sequence[SettingScores], controls: Collection[str]
) -> Evidence | None:
    """Return what a run shows about methods on networks of its kind; None for fewer than five.

    Args:
        settings: The scores of all networks and settings, where methods are ranked together.
        controls: Methods that never look at the model.
    """
    lines = [
        (KIND, *scores.key[1:], method, scores.key[0], scores.means[i])
        for scores in settings
        for i, method in enumerate(scores.methods)
        if scores.ranked[i]
    ]
    names = ["model", "protocol", "setting", "baseline", "method", "sample", "value"]
    rows = pd.DataFrame(lines, columns=names)
    if rows["sample"].nunique() < FEWEST_NETWORKS:
        return None
    limits = {key: of_setting[0].limits for key, of_setting in _by_key(settings).items()}
    of_kind = scored_settings(rows, NETWORK_DRAWS, limits=limits)
    for scores in of_kind:
        key = (scores.key[1], scores.key[2], scores.key[3])
        _add_errors_of_images(scores, _by_key(settings)[key])
    (standing,) = standings_of(of_kind)
    return Evidence(standing, controls)


def _add_errors_of_images(of_kind: SettingScores, of_networks: Sequence[SettingScores]) -> None:
    """Withdraw differences of methods that the images of all networks may have made by chance.

    Networks are evaluated on the same images, whose errors they share: a method that these images
    favour is ahead on every network. So the error of a difference gets that of the images.

    Args:
        of_kind: Scores with networks as samples, whose tests are changed.
        of_networks: The scores of each network under the same setting.
    """
    tests = of_kind.pairs
    drawn = []
    for method in tests.methods:
        own = [s.draws[:, s.methods.index(method)] for s in of_networks if method in s.methods]
        drawn.append(np.mean(own, axis=0))
    apart = np.stack(drawn, 1)
    errors = (apart[:, :, None] - apart[:, None, :]).std(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        statistics = np.abs(tests.gaps) / np.hypot(tests.errors, errors)
    p = tests.family.p_of(np.nan_to_num(statistics, nan=0.0))
    tests.adjusted[:] = np.maximum(tests.adjusted, p)
