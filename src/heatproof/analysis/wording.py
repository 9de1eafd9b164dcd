"""The one place that puts evidence into words.

Whether a method wins, which ones cannot be told apart, whether a difference is significant and a
published number reproduced: such words are written here and nowhere else, and only from facts that
`evidence`, `families`, `published` and their like have computed. Names of methods are between
backticks, which a page sets as code and a terminal prints as they are.

| word | what it rests on |
| --- | --- |
| wins | it is the only method that may be the best |
| cannot be told apart | methods that may be the best as well |
| significant | the p-value, adjusted for its family, is at most 5 % |
| reproduced, differs, undecided | the interval of the difference from print, and a margin |
| holds, does not hold, undecided | what tests or whole intervals show of a paper's claim |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heatproof.analysis.counts import SampleCounts
from heatproof.analysis.evidence import Evidence, NotRanked
from heatproof.analysis.intervals import Estimate
from heatproof.analysis.settings import Key
from heatproof.analysis.significance import PairedTests
from heatproof.text import counted

if TYPE_CHECKING:
    import pandas as pd

MOST_NAMES = 6
LEAST_P = 0.001  # that is written as a number
MOST_DIGITS = 6  # after the point
Labels = Mapping[Key, str]
CHECK_MODEL = "check its weights, the order of its classes and its preprocessing"
EXPLAINED = (
    "All pairs of methods under a setting are tested as one family, at a joint level of 5 %. A "
    "method wins if it is the only one that may be the best."
)
LETTERS_EXPLAINED = (
    "Methods that share a letter do not differ significantly, by tests of all pairs at a joint "
    "level of 5 %; rank intervals follow from the same tests."
)


def names(methods: Sequence[str], most: int = MOST_NAMES) -> str:
    """Join names of methods as "`a`, `b` and `c`"; a long list ends with the number of the rest."""
    shown = [f"`{method}`" for method in methods]
    if len(shown) > most + 1:
        shown = [*shown[:most], f"{len(shown) - most} more"]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def where(evidence: Evidence, title: Callable[[str], str] = str) -> str:
    """Name the model, and the layer if methods are ranked within layers."""
    model = title(evidence.model)
    return f"{model} at layer {evidence.layer}" if evidence.layer else model


def of_networks(evidence: Evidence | None) -> str:
    """Say which method may be the best on other networks of the kind; empty if nothing is known."""
    if evidence is None or len(evidence.real) < 2:
        return ""
    networks = max(scores.pairs.count for scores in evidence.used)
    by = "score" if len(evidence.used) == 1 else "rank"
    if evidence.winner:
        best = f"`{evidence.winner}` wins, by mean {by}"
    else:
        best = f"any of {names(evidence.possible_winners)} may be the best, by mean {by}"
    return f"On all networks of a kind that these {networks} were drawn from: {best}."


LEADERBOARD_EXPLAINED = (
    "Entries in bold may be the best; entries that share a letter cannot be told apart, by tests "
    "of all pairs of a table at a joint level of 5 %."
)
NOT_CONCLUSIVE = "This is not conclusive:"
NETWORKS_EXPLAINED = (
    "The first interval is for these networks and more images. The second is for a new network of "
    "the same kind: its mean score is there in 95 % of cases, if these networks were drawn from "
    "that kind at random and their scores are nearly normal. Networks that were chosen, such as "
    "several sizes of one design, are no such draw."
)


def recommendation(
    evidence: Evidence,
    title: Callable[[str], str] = str,
    *,
    guessing: bool = False,
    few: bool = False,
    control: str = "",
    random: bool = False,
) -> str:
    """Say which method to use, or why none can be recommended, in one or two sentences.

    Args:
        evidence: What is known about the methods of a model.
        title: Returns the name of a model as it is shown.
        guessing: Whether the model is not shown to classify better than guessing.
        few: Whether there are too few images for reliable intervals.
        control: A control that the leader is not shown to be better than; empty if there is none.
        random: Whether it is not shown to be better than a random map under some setting.
    """
    place, leader = where(evidence, title), evidence.leader
    if not leader:
        return (
            f"No method can be ranked on {place}: too few images have a score from most methods. "
            "Failures and result.left_out say why scores are missing."
        )
    if guessing:
        return (
            f"No method can be recommended on {place}, which is not shown to classify better than "
            "guessing."
        )
    if few:
        return f"There are too few images to recommend a method on {place}: `{leader}` ranks first."
    if control:
        return (
            f"`{leader}` ranks first on {place}, but is not shown to do better than the control "
            f"`{control}`, which never looks at the model."
        )
    if random:
        return (
            f"Under some setting on {place}, `{leader}`, which ranks first, is not shown to do "
            "better than a random map."
        )
    if len(evidence.real) == 1:
        return f"`{leader}` is the only method that is ranked on {place}."
    if evidence.winner:
        return f"Use `{leader}` on {place}: it wins."
    cheap = evidence.cheapest
    if cheap:
        instead = f"takes {counted(evidence.passes[cheap] or 0, 'pass', 'passes')} instead of"
        more = f"`{cheap}` cannot be told apart from it and {instead} {evidence.passes[leader]}"
    else:
        more = f"{names(evidence.others, 3)} cannot be told apart from it"
    return f"Use `{leader}` on {place}. {more[0].upper()}{more[1:]}."


def badge(evidence: Evidence, doubted: bool) -> str:
    """Return the verdict in two or three words."""
    if len(evidence.real) == 1:
        return "only method"
    if not evidence.winner:
        return f"one of {len(evidence.possible_winners)} possible winners"
    return "not conclusive" if doubted else "wins"


DOUBTS = {  # why no method is recommended, by what `recommendation` is told, in its order
    "guessing": "the model is not shown to classify better than guessing",
    "few": "there are too few images",
    "control": "the method that ranks first is not shown to do better than a control",
    "random": "the method that ranks first is not shown to do better than a random map under "
    "some setting",
}


def across_many(evidences: Sequence[Evidence], doubts: Sequence[str]) -> list[str]:
    """Answer which method is the best on many models or layers together, in sentences.

    Args:
        evidences: One of each model or layer with a verdict.
        doubts: Why no method is recommended on it, a key of `DOUBTS`; empty if one is.
    """
    places = f"{len(evidences)} {_kind_of_places(evidences)}s"
    doubted = [bool(doubt) for doubt in doubts]
    reasons = Counter(filter(None, doubts)).most_common()
    why = ", ".join(f"on {count} {DOUBTS[doubt]}" for doubt, count in reasons)
    if len(reasons) == 1:
        why = DOUBTS[reasons[0][0]]
    if all(doubted):
        found = [f"No method can be recommended on any of {places}: {why}."]
    else:
        found = [across(evidences, doubted)]
    if not _common_winner(evidences, doubted):
        leaders = Counter(_without_layer(e.leader) for e in evidences).most_common()
        (first, times), others = leaders[0], leaders[1:4]
        listed = "".join(f", `{method}` on {count}" for method, count in others)
        more = ", others on the rest" if len(leaders) > 4 else ""
        of = "all" if times == len(evidences) else f"{times} of"
        found.append(f"`{first}` ranks first on {of} {places}{listed}{more}.")
    if any(doubted) and not all(doubted):
        found.append(f"On {sum(doubted)} of {places} no method can be recommended: {why}.")
    return found


def _kind_of_places(evidences: Sequence[Evidence]) -> str:
    return "ranking" if any(e.layer for e in evidences) else "model"


def across(evidences: Sequence[Evidence], doubted: Sequence[bool]) -> str:
    """Say whether one method may be the best on several models or layers, in one sentence."""
    kind = _kind_of_places(evidences)
    places = f"all {len(evidences)} {kind}s" if len(evidences) > 2 else f"both {kind}s"
    if winner := _common_winner(evidences, doubted):
        return f"`{winner}` wins on {places}."
    everywhere = [m for m in evidences[0].possible_winners if _possible_everywhere(m, evidences)]
    if not everywhere:
        return f"The best method depends on the {'layer' if kind == 'ranking' else kind}."
    which = names(everywhere, 4) if len(everywhere) == 1 else f"Each of {names(everywhere, 4)}"
    return f"{which} may be the best on {places}."


def _common_winner(evidences: Sequence[Evidence], doubted: Sequence[bool]) -> str:
    """Return the method that wins everywhere, without a doubt; empty if there is none."""
    winners = {_without_layer(e.winner) for e in evidences}
    return winners.pop() if len(winners) == 1 and not any(doubted) else ""


def _possible_everywhere(method: str, evidences: Sequence[Evidence]) -> bool:
    name = _without_layer(method)
    return all(name in map(_without_layer, e.possible_winners) for e in evidences)


def _without_layer(method: str) -> str:
    """Return a method's name without the layer that it explains: `lrp@middle` is `lrp`."""
    base, at, rest = method.partition("@")
    return base + rest[len(rest.partition("|")[0]) :] if at else method


def certainty(evidence: Evidence, images: str) -> str:
    """Say how sure the verdict is."""
    if len(evidence.real) < 2:
        return "There is no other method to compare it with."
    leader = evidence.leader
    settings = counted(len(evidence.used), "setting")
    if evidence.winner and len(evidence.used) == 1:
        text = f"On {images}, every other method scores significantly worse."
    elif evidence.winner:
        text = (
            f"Whatever order of methods {images} leave open under {settings}, `{leader}` has the "
            "best mean rank."
        )
    else:
        text = (
            f"On {images}, any of {names(evidence.possible_winners)} may be the best"
            f"{'' if len(evidence.used) == 1 else ' by mean rank over ' + settings}."
        )
    share = evidence.first_fraction(leader)
    if math.isfinite(share):
        text += (
            f" When images are drawn anew, `{leader}` comes first in {percent(share)} of the draws."
        )
    return text


def percent(fraction: float) -> str:
    """Format a fraction in whole percent; 0 and 100 only if it is exactly none or all."""
    whole = round(100 * fraction)
    if whole == 100 and fraction < 1:
        return "more than 99 %"
    if whole == 0 and fraction > 0:
        return "less than 1 %"
    return f"{whole} %"


def against(evidence: Evidence, labels: Labels, settings: int) -> list[str]:
    """Say what speaks against the verdict; empty if nothing does."""
    found = []
    leader = evidence.leader
    if evidence.elsewhere:
        listed = ", ".join(f"`{best}` under {labels[key]}" for key, best in evidence.elsewhere[:4])
        found.append(
            f"Under {len(evidence.elsewhere)} of {counted(settings, 'setting')} another method is "
            f"significantly better: {listed}{', …' if len(evidence.elsewhere) > 4 else ''}."
        )
    if evidence.decisive:
        found.append(
            "Mean ranks depend on which other methods take part: without "
            f"{' or '.join(f'`{m}`' for m in evidence.decisive[:4])}"
            f"{' or others' if len(evidence.decisive) > 4 else ''}, another method than `{leader}` "
            "would be named first."
        )
    if evidence.undivided:
        listed = ", ".join(labels[key] for key in evidence.undivided[:3])
        found.append(
            f"No two methods differ significantly under {listed}, which counts as much in a mean "
            "rank as a setting that separates them."
        )
    if evidence.fragile:
        found.append(
            f"That {names(evidence.fragile)} {'does' if len(evidence.fragile) == 1 else 'do'} "
            "better than some other method would not stand if the missing scores were the worst "
            "possible."
        )
    return found


def control(evidence: Evidence) -> str:
    """Say which methods are not above the best control; empty if all are."""
    if not evidence.ranked_controls:
        return (
            "No control was run, so there is no reference for the score of a map that never looks "
            "at the model. Add `random`, `edges` and `center` to the methods."
        )
    best = evidence.ranked_controls[0]
    below = [m for m in evidence.real if evidence.place(m) > evidence.place(best)]
    if not below:
        return ""
    surely = [m for m in below if evidence.surely_better(best, m)]
    how = "significantly" if len(surely) == len(below) else "not significantly"
    if surely and len(surely) < len(below):
        how = f"significantly above {names(surely)}"
    do = "does" if len(evidence.real) == 1 else "do"
    return (
        f"The control `{best}` never looks at the model, yet ranks above {len(below)} of "
        f"{counted(len(evidence.real), 'method')} that {do}: {names(below)} ({how})."
    )


def not_above_guessing(correct: int, labelled: int, chance: float) -> str:
    """Say what a model does that is not shown to classify better than guessing."""
    return (
        f"classifies {correct} of {counted(labelled, 'image')} correctly, which is not shown to be "
        f"better than guessing ({100 * chance:.2g} %): {CHECK_MODEL}"
    )


def low_accuracy(correct: int, labelled: int) -> str:
    """Say what a model does that is wrong on most images."""
    return f"classifies only {correct} of {counted(labelled, 'image')} correctly: {CHECK_MODEL}"


def few(counts: SampleCounts, fewest: int) -> str:
    """Say what few images, or grids, cannot tell.

    Args:
        counts: The images and grids that there are.
        fewest: How many intervals need.
    """
    there = f"there {'is' if counts.independent == 1 else 'are'} only {counts}"
    if counts.independent < fewest:
        return f"{there}, too few for reliable intervals and ranks"
    return f"{there}: small differences cannot be found, and ranks may change with more"


def lost(status: str, scores: int, of: int, methods: Sequence[str]) -> str:
    """Say how many scores failed or are missing.

    Args:
        status: ``failed``, or ``missing`` for want of a saved map.
        scores: How many have this status.
        of: How many rows there are.
        methods: The methods that they are of.
    """
    if status == "missing":
        verb = "has" if len(methods) == 1 else "have"
        return f"{scores} of {of} scores are missing: {names(methods)} {verb} no map for them"
    return f"{scores} of {counted(of, 'score')} failed, of {names(methods)}"


def unfinished(tasks: int, of: int) -> str:
    """Say how much of a run has not been computed."""
    return f"the run is not finished: {tasks} of {counted(of, 'task')} are missing"


def not_above_control(control_name: str) -> str:
    """Say that a leader is not shown to be better than a control."""
    return (
        f"it is not significantly better than the control `{control_name}`, which never looks at "
        "the model"
    )


def not_above_random(listed: str) -> str:
    """Say that a score is not shown to be better than that of a random map."""
    return f"its score is not significantly better than that of a random map {listed}"


def by_protocol(evidence: Evidence, protocol: str, score: Estimate | None) -> str:
    """Say which method is the best by one protocol alone."""
    several = f" ({len(evidence.used)} settings)" if len(evidence.used) > 1 else ""
    number = "" if score is None else f", {estimate(score)}"
    leader = f"{protocol}{several}: `{evidence.leader}`"
    if len(evidence.real) == 1:
        return f"{leader} is the only method that is ranked{number}."
    if evidence.winner:
        return f"{leader} wins{number}."
    return (
        f"{leader} ranks first{number}; it cannot be told apart from {names(evidence.others, 3)}."
    )


def estimate(found: Estimate, digits: int = 2) -> str:
    """Write a number with its interval, with as many digits as tell its ends apart."""
    if not math.isfinite(found.low):
        return f"{found.value:z.{digits}f}"
    width = found.high - found.low
    if 0 < width < 10**-digits:
        digits = min(MOST_DIGITS, math.ceil(-math.log10(width)))
    return f"{found.value:z.{digits}f} ({found.low:z.{digits}f} to {found.high:z.{digits}f})"


NOT_RANKED_MARK = (
    "† not ranked: no score on more than a tenth of the images; the mean is over its own images."
)


def table_note(usual: Sequence[int], letters: bool, unranked: bool) -> str:
    """Say what the numbers and marks of a table mean.

    Args:
        usual: How many images or maps most means of each column are over.
        letters: Whether methods have letters.
        unranked: Whether a mean is of a method that is not ranked.
    """
    counts = sorted(set(usual))
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = [
        f"Means over n = {n} images or maps. Bold: methods that may be the best of their setting "
        "(at a joint level of 5 % for all pairs)."
    ]
    parts += ["Methods that share a letter do not differ significantly."] if letters else []
    return " ".join([*parts, NOT_RANKED_MARK] if unranked else parts)


def not_ranked(reasons: Sequence[NotRanked], labels: Labels) -> list[str]:
    """Say which methods are not ranked, and why: one sentence per method."""
    by_method: dict[str, list[NotRanked]] = {}
    for reason in reasons:
        by_method.setdefault(reason.method, []).append(reason)
    sentences = []
    for method, found in by_method.items():
        first = next((reason for reason in found if reason.failed), found[0])
        more = f" (and under {counted(len(found) - 1, 'more setting')})" if len(found) > 1 else ""
        scores = (
            f"a score on {first.scored} of {first.usual} images" if first.failed else "no score"
        )
        if first.failed and not first.usual:
            scores = "scores on images that most methods have none for,"
        sentences.append(
            f"`{method}` is not ranked: it has {scores} under {labels[first.key]}{more}"
        )
    return sentences


def unused_settings(keys: Sequence[Key], labels: Labels) -> str:
    """Say which settings rank too few methods to count; empty if all count."""
    if not keys:
        return ""
    listed = ", ".join(labels[key] for key in keys[:4])
    return f"Left out of the mean rank, since too few methods have a score: {listed}."


def best_two(tests: PairedTests, i: int, j: int, unit: str, real: str = "") -> str:
    """Say what it takes to tell two methods apart.

    Args:
        tests: The tests of their setting.
        i: Position of the better method.
        j: Position of the other.
        unit: ``images`` or ``grids``.
        real: What sets them apart from other methods, such as "that depend on the model".
    """
    both = f"`{tests.methods[i]}` and `{tests.methods[j]}`, the best two{real and ' ' + real},"
    detectable = tests.detectable(i, j)
    if tests.different[i, j]:
        text = f"{both} differ significantly."
    elif not tests.errors[i, j] > 0 or detectable < 0.0005:
        return f"{both} have practically the same scores on every image."
    else:
        text = f"{both} do not differ significantly."
        needed = tests.needed(i, j)
        if needed < 1_000_000:
            text += (
                f" If the difference seen here is the true one, about {rounded(needed)} {unit} "
                "would show it among all pairs, in four of five data sets; there are "
                f"{tests.count}."
            )
        elif math.isfinite(detectable):
            text += " Their difference is too small to be shown by any number of images."
    if math.isfinite(detectable):
        found = f"a difference of {detectable:.3f} would be found in four of five"
        text += f" With {tests.count} {unit}, {found}."
    return text


def p_value(p: float) -> str:
    """Write a p-value; no test has shown one of 0."""
    if not math.isfinite(p):
        return "–"
    return f"{p:.3f}" if p >= LEAST_P else f"< {LEAST_P}"


def rounded(count: float) -> str:
    """Write a number of images with two significant digits, as it is an estimate."""
    digits = max(0, len(f"{count:.0f}") - 2)
    return f"{round(count, -digits):,.0f}"


def planned(difference: float, methods: int) -> str:
    """Say what numbers of images are for."""
    among = f"among all pairs of {methods} methods" if methods > 2 else "of two methods"
    return f"To find a true difference of {difference:g}, {among}, in four of five data sets:"


def needed(label: str, unit: str, typical: float, most: float | None = None) -> str:
    """Say how many images a difference takes, for a typical pair and for all."""
    if not math.isfinite(typical):
        return f"{label}: not known, since fewer than two methods are ranked on two images or more"
    text = f"{label}: about {rounded(typical)} {unit}"
    if most is None:
        return text
    return f"{text} for a typical pair, {rounded(most)} for the pair that varies most"


def protocols_agree(agreeing: int, contradicting: int, of: int) -> str:
    """Say whether protocols agree about the order of methods.

    Args:
        agreeing: Pairs of protocols whose correlation is surely high.
        contradicting: Pairs whose correlation is surely below 0.
        of: Pairs that have a correlation.
    """
    if not of:
        return "This cannot be told: by one of two protocols, all methods tie."
    if agreeing == of:
        return "Yes: all protocols agree." if of > 1 else "Yes."
    agree = f"{agreeing} {'agrees' if agreeing == 1 else 'agree'}"
    if contradicting and of == 1:
        return "No: they contradict each other."
    if contradicting:
        verb = "contradicts" if contradicting == 1 else "contradict"
        also = f" and {agree}" if agreeing else ""
        return f"No: of {of} pairs of protocols, {contradicting} {verb} each other{also}."
    if agreeing:
        few = agree.replace(" agree", f" of {of} pairs of protocols agree", 1)
        return f"In part: {few}; for the others this run cannot tell."
    return "This run cannot tell: no interval is narrow enough."


AGREEMENT_KINDS = {
    "agreeing": "Agree",
    "contradicting": "Contradict each other",
    "unclear": "Undecided",
    "undefined": "Without a correlation, since all methods tie by one of the two",
}


def agreement_explained(least: float) -> str:
    """Say what it means that protocols agree or contradict each other."""
    return (
        f"Two protocols agree if the whole 95 % interval is above {least:g}, and contradict each "
        "other if it is below 0; each interval is for its pair alone."
    )


def changes_ranking(choice: str, least: Estimate, same_from: float) -> str:
    """Say whether another choice changes the ranking, by the rankings that agree least."""
    if not math.isfinite(least.low):
        return f"Another {choice}: these images cannot tell how far it changes the ranking."
    if least.low >= same_from:
        return f"Another {choice} hardly changes the ranking."
    if least.high < same_from:
        return f"Another {choice} changes the ranking."
    return f"Another {choice} may change the ranking or not, as far as these images can tell."


def counts_of_differences(higher: int, lower: int, of: int, better: str) -> str:
    """Say how many of a family of differences are significant."""
    return (
        f"Of {counted(of, 'method')}, {higher} score significantly higher and {lower} "
        f"significantly lower, at a joint level of 5 %; {better} is better."
    )


def comparison(scores: int, significant: int, alone: Sequence[str], compared: bool) -> str:
    """Say how many scores of two runs were compared, and how many differ."""
    text = ", ".join([f"{counted(scores, 'mean score')} in both", *alone])
    if not compared:
        return (
            f"{text}; nothing can be compared, as no sample has a score in both (another seed, "
            "limit or data set chooses other images)"
        )
    return f"{text}; {significant} differ significantly (b minus a)"


GATE = {
    "worse": "is worse than allowed",
    "lost": "has lost scores",
    "undecided": "may be worse than allowed",
    "kept": "is not worse than allowed",
    "same": "has the same scores in both runs on every image",
}


def gate(line: Mapping[str, Any]) -> str:
    """Word one line of the gate: whether a score is worse than it may be."""
    where = ", ".join(filter(None, (line["protocol"], line["setting"], line["baseline"])))
    what = f"{line['method']} on {line['model']} ({where})"
    lost = f"no score on {counted(line['lost'], 'image')} with one in the first run"
    if line["outcome"] == "lost":
        return f"{what} {GATE['lost']}: it has {lost}, and one on {line['n']} of the others"
    if not line["n"]:
        return f"{what} cannot be compared: no image has a score in both runs"
    ends = f" ({line['low']:+z.3f} to {line['high']:+z.3f})" if math.isfinite(line["low"]) else ""
    return (
        f"{what} {GATE[line['outcome']]}: {line['a']:.3f} → {line['b']:.3f}, "
        f"a difference of {line['difference']:+z.3f}{ends}; allowed "
        f"{line['allowed']:g}, n = {line['n']}{f'; {lost}' if line['lost'] else ''}"
        f"{would_decide(line['outcome'], line['needed'])}"
    )


def gate_lines(lines: pd.DataFrame) -> list[str]:
    """Word a gate: each score that is, or may be, worse than allowed, and how many are not."""
    open_ = (line for line in lines.to_dict("records") if line["outcome"] not in ("kept", "same"))
    return [*map(gate, open_), *gate_counts(list(lines["outcome"]))]


def gate_counts(outcomes: Sequence[str]) -> list[str]:
    """Say how many lines of the gate are not worse than allowed, or the same."""
    scores = counted(len(outcomes), "score")
    words = {"kept": "not worse than allowed", "same": "the same in both runs on every image"}
    return [
        f"{outcomes.count(outcome)} of {scores}: {text}"
        for outcome, text in words.items()
        if outcome == "kept" or outcome in outcomes
    ]


def would_decide(outcome: str, needed: float) -> str:
    """Say how many images would decide what is undecided; empty if it is, or if too many."""
    if outcome != UNDECIDED or not needed < 1_000_000:
        return ""
    return f"; about {rounded(needed)} images would decide"


REPRODUCED = "reproduced"
DIFFERS = "differs"
UNDECIDED = "undecided"
NOT_COMPARABLE = "not comparable"
PUBLISHED_EXPLAINED = (
    "A number is reproduced if the interval of its difference from the published one lies within "
    "the margin, and differs if that interval excludes zero and reaches beyond the margin; "
    "otherwise the run cannot decide. Intervals hold for all numbers of a table together, and "
    "include the sampling error of the paper. There is a verdict only where protocol, method, "
    "network and data are the paper's, as far as a run can tell or its user has said."
)

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"


def of_claim(for_it: bool, against_it: bool) -> str:
    """Return the verdict on a claim by whether something is shown for it, or against it."""
    return HOLDS if for_it else DOES_NOT_HOLD if against_it else UNDECIDED


def claim_counts(verdicts: Sequence[str]) -> str:
    """Say what a claim comes to over all networks and pairs of methods that it was tested on."""
    counts = Counter(verdicts)
    total = len(verdicts)
    if len(counts) == 1:
        return verdicts[0] + (f" ({total} of {total})" if total > 1 else "")
    return ", ".join(f"{word} {count} of {total}" for word, count in counts.most_common())


def not_testable(reason: str) -> str:
    """Say why nothing here can decide a claim."""
    return f"not testable here: {reason}"


def not_run(missing: str) -> str:
    """Say what would have to be run to decide a claim."""
    return f"not run: {missing}"


def said_by(verdict: str, by: str) -> str:
    """Write a verdict beside a publication, and who says that the network is the paper's."""
    return f"{verdict} (by {by})" if by else verdict


def said_network(model: str, network: str, by: str) -> str:
    """Say what network of a paper a model is, and that this was said and not checked."""
    return f"{model} is {network} of the paper: said by {by}, and not checked"


def published_counts(verdicts: Sequence[str]) -> str:
    """Say how often each verdict beside a publication occurs."""
    words = {REPRODUCED: "reproduced", DIFFERS: "different", UNDECIDED: "undecided"}
    parts = [f"{verdicts.count(v)} {word}" for v, word in words.items() if v in verdicts]
    return f"Of {counted(len(verdicts), 'number')}: {', '.join(parts)}." if parts else ""


def tradeoff(correlation: float, p: float, baselines: int, fewest: int) -> str:
    """Say whether baselines trade removing information for staying in distribution."""
    number = f"rank correlation {correlation:.2f} over {counted(baselines, 'baseline')}"
    if baselines < fewest:
        return f"{number}; {fewest} or more are needed to test for a trend"
    if p > 0.05:
        return f"{number}, p = {p:.2f}: no significant trend"
    written = f"p = {p_value(p)}".replace("= <", "<")
    if correlation < 0:
        return f"{number}, {written}: the further out of distribution, the less information is left"
    return f"{number}, {written}: the further out of distribution, the more information is left"


def off_the_line(below: Sequence[str], above: Sequence[str]) -> str:
    """Name baselines that are significantly off the line through the others."""
    if not below and not above:
        return "No baseline is significantly off the line through the others."
    parts = (
        [f"{names(below)} below it (less information left than at this distance)"] if below else []
    )
    parts += [f"{names(above)} above it"] if above else []
    return f"Significantly off the line through the others: {'; '.join(parts)}."


def distinguishes(label: str, distinct: int, of: int) -> str:
    """Say for how many modified maps a metric distinguishes all three curves."""
    if distinct == of:
        return f"{label} distinguishes the modified maps from the original for all {of} maps"
    if distinct == 0:
        return f"{label} does not significantly distinguish them for any of {of} maps"
    return f"{label} distinguishes them significantly for {distinct} of {of} maps"


def retrained(revealing: str, shape: str, differ: bool) -> str:
    """Compare two networks that were retrained with as many pixels removed."""
    if differ:
        return (
            f"Yet a network retrained on the second is significantly more accurate: {revealing} "
            f"against {shape}, since the position of what is removed reveals the class. The "
            "accuracy of a retrained network does not measure how much information was removed."
        )
    return (
        f"Retrained on them, the accuracies are {shape} and {revealing}: on these images, the "
        "second is not significantly higher, although the position of what is removed reveals the "
        "class."
    )
