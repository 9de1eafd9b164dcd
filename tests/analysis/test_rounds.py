"""Runs that decide: what is computed in each round, what is on record, and what is said of it."""

import numpy as np
import pytest
from small_runs import assert_same, small_data, small_model

import heatproof as hp
from heatproof.analysis import race_wording
from heatproof.analysis.race_forecast import forecast_race
from heatproof.analysis.sequential import t_reach
from heatproof.errors import HeatproofError
from heatproof.methods import parse_methods
from heatproof.plan.make_plan import make_plan
from heatproof.plan.question import Question
from heatproof.plan.spec import parse_protocols
from heatproof.runs.run import Run
from heatproof.runs.store import Store

METHODS = ["ig(steps=8)", "ixg", "ixg|abs", "saliency", "random"]
SDS = "sds(patches=16)"


def ixg(model, x, target):
    x = x.detach().requires_grad_()
    model(x).gather(1, target[:, None]).sum().backward()
    return x.detach() * x.grad


def decided(out, methods=METHODS, protocols=SDS, count=96, decide=True, model=None, **options):
    return hp.evaluate(
        model or small_model(),
        small_data(count),
        methods,
        protocols,
        out=out,
        decide=decide,
        keep_maps=0,
        **options,
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return decided(tmp_path_factory.mktemp("decided") / "run")


def evaluated(result) -> dict[str, int]:
    return result.scores.groupby("method", sort=False)["sample"].nunique().to_dict()


def test_methods_are_dropped_and_not_computed_any_further(result):
    (race,) = result.races.values()
    (contest,) = race.contests
    images = {drop.method: drop.images for drop in contest.drops}
    assert images["saliency"] < 96
    for method, number in evaluated(result).items():
        assert number == images.get(method, contest.images)


def test_what_was_dropped_is_on_record_with_the_numbers_that_decided_it(result):
    record = result.store.race()
    (race,) = record.races
    drop = next(drop for drop in race.contests[0].drops if drop.method == "saliency")
    ahead, behind = (
        result.scores.query("method == @m").set_index("sample")["value"]
        for m in (drop.behind, "saliency")
    )
    assert drop.gap == pytest.approx((ahead - behind).dropna().mean(), abs=1e-9)
    assert 0 < drop.least < drop.gap
    assert record.ends[-1] == race.contests[0].images
    assert Question.model_validate(record.question) == Question()


def test_a_dropped_method_is_ranked_on_its_own_images_and_never_missing(result):
    lines = result.summary().set_index("method")
    assert lines["rank"].notna().all()
    assert lines["missing"].sum() == 0
    assert lines.loc["saliency", "n"] == evaluated(result)["saliency"]
    assert not result.not_ranked
    scores = result.scores.pivot(index="sample", columns="method", values="value")
    assert lines.loc["saliency", "mean"] == pytest.approx(scores["saliency"].mean())
    ranks = lines.loc[["ig(steps=8)", "saliency"], "rank"]
    assert ranks.iloc[0] < ranks.iloc[1]
    assert (lines["rank_low"] <= lines["rank"]).all()
    assert (lines["rank"] <= lines["rank_high"]).all()


def test_a_rank_compares_methods_on_the_images_of_the_one_that_was_dropped(result):
    (scores,) = result.settings
    values = scores.table.values
    seen = np.isfinite(values)
    longest = seen.sum(0) == seen.sum(0).max()
    i = scores.methods.index("saliency")
    own = seen[:, i]
    behind = values[own][:, longest].mean() - values[own, i].mean()
    whole = values[seen[:, longest].all(1)][:, longest].mean()
    assert scores.standing[i] == pytest.approx(whole - behind)


def test_what_is_said_follows_from_the_bounds_of_the_race(result):
    (race,) = result.races.values()
    (evidence,) = result.evidence
    (scores,) = result.settings
    names = scores.pairs.methods
    order = [race.methods.index(method) for method in names]
    assert (scores.pairs.ahead == race.sequences[0].ahead[np.ix_(order, order)]).all()
    assert set(evidence.possible_winners) == set(race.contests[0].left[-1][1])
    text = repr(result)
    assert "Dropped after 16 images: `saliency` (certainly behind `" in text
    assert "missing" not in text


def test_another_batch_size_drops_the_same(result, tmp_path):
    other = decided(tmp_path / "run", batch_size=5)
    assert evaluated(other) == evaluated(result)


def test_a_race_that_is_killed_and_resumed_has_the_same_bytes(result, tmp_path):
    out = tmp_path / "run"
    done = 0

    def stop(task, reused):
        nonlocal done
        done += not reused
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decided(out, progress=stop)
    assert len(Run(Store(out)).tasks) < len(result.plan.tasks)
    resumed = decided(out)
    assert_same(out, result.store.root)
    assert resumed.store.paths.race.read_bytes() == result.store.paths.race.read_bytes()


def test_a_decided_race_computes_nothing_when_it_is_run_again(result, tmp_path):
    out = tmp_path / "run"
    model = small_model()
    decided(out, model=model)
    model.pass_counts.clear()
    decided(out, model=model)
    assert not sum(model.pass_counts.values())


def test_more_images_continue_a_race(tmp_path):
    out = tmp_path / "run"
    few = decided(out, decide={"at_most": 32})
    assert few.store.race().ends[-1] == 32
    more = decided(out)
    assert more.store.race().ends[-1] > 32
    assert_same(out, decided(tmp_path / "at once").store.root)


def test_a_fixed_number_of_images_in_the_directory_of_a_race_is_no_race(tmp_path):
    out = tmp_path / "run"
    decided(out, ["ixg", "saliency"], count=32)
    with pytest.warns(UserWarning, match="holds a run with decide, whose tasks have another size"):
        fixed = hp.evaluate(small_model(), small_data(32), ["ixg", "saliency"], SDS, out=out)
    assert fixed.races == {}
    assert set(evaluated(fixed).values()) == {32}


def test_methods_that_are_added_race_from_the_first_image_and_nothing_is_computed_twice(tmp_path):
    out = tmp_path / "run"
    decided(out, ["ixg", "saliency"])
    model = small_model()
    model.pass_counts.clear()
    grown = decided(out, ["ixg", "saliency", "ig(steps=8)"], model=model)
    (race,) = grown.races.values()
    assert race.contests[0].drops[0].method == "saliency"
    assert evaluated(grown)["ig(steps=8)"] == max(evaluated(grown).values())
    at_once = decided(tmp_path / "at once", ["ixg", "saliency", "ig(steps=8)"])
    assert grown.store.paths.race.read_bytes() == at_once.store.paths.race.read_bytes()


def test_of_a_pair_only_these_two_and_controls_are_computed(tmp_path):
    pair = ("ixg", "saliency")
    result = decided(tmp_path / "run", decide={"what": pair})
    assert set(evaluated(result)) == {*pair, "random"}
    assert "the order of `ixg` and `saliency` is decided" in " ".join(result.race_story)


def test_a_ranking_places_methods(tmp_path):
    result = decided(
        tmp_path / "run", ["ixg", "ig(steps=8)", "saliency"], decide={"what": "ranking"}
    )
    (race,) = result.races.values()
    assert any(drop.reason == "placed" for drop in race.contests[0].drops)
    assert "its place in the order is decided" in repr(result)


def test_methods_that_are_kept_are_computed_to_the_end(tmp_path):
    result = decided(tmp_path / "run", decide={"keep": "saliency"}, count=48)
    assert evaluated(result)["saliency"] == max(evaluated(result).values())


def test_a_method_that_fails_halfway_leaves_and_the_others_go_on(tmp_path):
    explained = 0

    def failing(model, x, target):
        nonlocal explained
        explained += len(x)
        if explained > 20:
            raise RuntimeError("no luck")
        return ixg(model, x, target)

    methods = ["ixg", "ig(steps=8)", ("failing", failing)]
    result = decided(tmp_path / "run", methods, count=64)
    assert evaluated(result) == {"ixg": 32, "ig(steps=8)": 32, "failing": 32}
    assert "`failing` (no score on more than a tenth of the images)" in " ".join(result.race_story)
    assert result.evidence[0].winner == "ig(steps=8)"


def test_equal_methods_race_to_the_end_or_the_margin(tmp_path):
    methods = [("one", ixg), ("two", ixg)]
    undecided = decided(tmp_path / "a", methods, count=40)
    assert "Not decided after 40 images: `one` and `two` remain." in undecided.race_story[0]
    within = decided(tmp_path / "b", methods, count=40, decide={"margin": 0.2})
    assert "`one` and `two` remain, which differ by less than 0.2" in within.race_story[0]


def test_the_lanes_of_a_race_are_in_the_terminal_and_the_report(result, tmp_path, capsys):
    from heatproof.cli.results import print_summary

    print_summary(result)
    shown = capsys.readouterr().out
    assert "net · the race" in shown
    assert "behind ixg" in shown
    page = result.report(tmp_path / "report").parent / "ranking.html"
    text = page.read_text()
    assert "Which methods were dropped when, and why?" in text
    assert text.count("dot lane") == len(result.race_lanes[0].lanes)
    assert result.race_story[-1] in text


def test_a_lane_says_how_many_images_would_tell_those_who_remain_apart(tmp_path):
    result = decided(tmp_path / "run", ["ixg", "ig(steps=8)"], decide={"at_most": 16})
    (lanes,) = result.race_lanes
    needed = lanes.lanes[1].needed
    assert 16 < needed < 200
    sequences = lanes.race.sequences[0]
    variance = sequences.errors[0, 1] ** 2 * (sequences.counts[0, 1] - 1)
    gap = abs(sequences.gaps[0, 1])

    def reach(images: float) -> float:
        return float(t_reach(np.array(images), variance, sequences.scale, sequences.level))

    assert reach(needed) <= gap < reach(needed - 1)


def test_a_pilot_forecasts_a_race(result, tmp_path):
    methods = METHODS
    pilot = hp.evaluate(small_model(), small_data(24), methods, SDS, out=tmp_path / "pilot")
    plan = make_plan(
        [small_model()],
        [small_data(96)],
        parse_methods(methods),
        parse_protocols([SDS]),
        question=Question(),
    )
    found = forecast_race(plan, Question(), pilot)
    assert (found.pilot, found.of_images, found.of_maps) == (24, 96, 96 * len(methods))
    for low, middle, high in (found.images, found.maps, found.passes):
        assert 0 < low <= middle <= high
    (race,) = result.races.values()
    assert found.images[0] <= race.images <= found.images[2]
    assert found.passes[2] <= found.of_passes
    text = " ".join(race_wording.forecast(found))
    assert "24 images of a pilot" in text
    other = hp.evaluate(small_model(), small_data(16), ["ixg"], SDS, out=tmp_path / "other")
    with pytest.raises(HeatproofError, match="the pilot has no ig"):
        forecast_race(plan, Question(), other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["ixg", "random"]}, "nothing to decide, with ixg alone beside controls"),
        ({"methods": ["ixg"]}, "nothing to decide, with ixg alone; add methods"),
        ({"protocols": "soundness(step=0.2, eps=0.2)"}, "soundness computes a score from all"),
        ({"protocols": "complexity"}, "none of the protocols ranks methods"),
        ({"decide": {"margin": 0}}, "margin"),
        ({"decide": {"margin": float("inf")}}, "margin"),
        ({"decide": {"at_most": 8}}, "at_most: 8 is less than at_least: 16"),
        ({"decide": {"what": "worst"}}, "is best, ranking, or two methods"),
        ({"decide": {"what": ["ixg"]}}, "is best, ranking, or two methods"),
        ({"decide": {"what": 3}}, "is best, ranking, or two methods"),
        ({"decide": {"error": 0.2}}, "error"),
        ({"decide": {"marign": 0.1}}, "did you mean margin"),
        ({"decide": {"what": ["ixg", "ixg"]}}, "names the same method twice: ixg"),
        ({"decide": {"what": ["ixg", "gradcamm"]}}, "gradcamm"),
        ({"decide": {"keep": "lime"}}, "lime"),
        ({"decide": 3}, "decide is True, or settings"),
    ],
)
def test_what_cannot_be_decided_is_refused_before_anything_is_computed(
    tmp_path, arguments, message
):
    with pytest.raises(HeatproofError, match=message):
        decided(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_images_in_memory_are_taken_in_a_random_order(tmp_path):
    result = decided(tmp_path / "run", ["ixg", "saliency"], count=64, decide={"at_most": 16})
    numbers = result.scores["sample"].astype(int)
    assert numbers.max() > 16


def test_a_spec_and_a_switch_ask_for_a_race(tmp_path):
    from heatproof.plan.spec import make_spec

    content = {
        "models": "paperbirds/resnet",
        "data": "paperbirds",
        "methods": ["ixg", "ig"],
        "protocols": "sds",
    }
    assert make_spec(content).decide is None
    assert make_spec(content, decide=True).decide == Question()
    given = {**content, "decide": {"margin": 0.02}}
    assert make_spec(given).decide == make_spec(given, decide=True).decide == Question(margin=0.02)
    assert "decide" not in make_spec(given).identity()
    with pytest.raises(HeatproofError, match='"marign"'):
        make_spec({**content, "decide": {"marign": 1}})
