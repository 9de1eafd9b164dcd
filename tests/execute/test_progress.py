"""Progress: lines where there is no terminal, a bar in terminals and notebooks, or a function."""

import io
import re
import time
from collections import Counter

import pytest

import heatproof as hp
from heatproof.execute import progress
from heatproof.execute.progress import Meter, RunWatcher, clock
from heatproof.execute.runner import find_open_tasks
from heatproof.plan.cost import plan_cost
from heatproof.plan.open_spec import open_spec
from heatproof.plan.spec import make_spec
from heatproof.runs.store import Store

ARGUMENTS = ("paperbirds/vgg", "paperbirds:test", ["ixg"], ["sds(patches=4)"])


SPEC = {
    "models": ["paperbirds/vgg"],
    "data": {"name": "paperbirds", "limit": 2},
    "methods": ["ixg"],
    "protocols": ["sds"],
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_run_prints_lines_where_there_is_no_terminal(tmp_path, capsys):
    hp.evaluate(*ARGUMENTS, limit=4, out=tmp_path, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run: 0 %, 1 task, 0:00 elapsed"
    assert re.fullmatch(r"run: 100 %, task 1/1, 0:\d\d elapsed", lines[-1])
    hp.evaluate(*ARGUMENTS, limit=70, out=tmp_path, progress=True)
    assert "2 tasks" in capsys.readouterr().err
    hp.evaluate(*ARGUMENTS, limit=70, out=tmp_path, progress=True)
    assert capsys.readouterr().err == "run: nothing to compute, 2 tasks finished before\n"


def test_a_resumed_run_begins_where_it_stopped(tmp_path, capsys):
    hp.evaluate(*ARGUMENTS, limit=64, out=tmp_path)
    hp.evaluate(*ARGUMENTS, limit=70, out=tmp_path, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("run: 91 %, 2 tasks, 1 of them finished before")


def test_what_an_interrupted_task_has_kept_counts_as_done_but_not_as_fast(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    meter = Meter("run", io.StringIO())
    plan = open_spec(make_spec(SPEC | {"data": {"name": "paperbirds", "limit": 64}}))
    watcher = RunWatcher(meter)
    watcher.begin(plan, find_open_tasks(plan, Store(tmp_path)))
    (task,) = plan.tasks
    watcher.resume(task, Counter(forward=int(meter.total / 2)))
    assert meter.done == 0
    task.model.pass_counts["forward"] += int(meter.total / 4)
    now += 30
    meter.measure()
    assert meter.text().startswith("run: 75 %") and meter.text().endswith("about 0:30 left")


def test_what_a_worker_has_kept_of_a_task_counts_as_done_but_not_as_fast(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    meter = Meter("run", io.StringIO())
    plan = open_spec(make_spec(SPEC | {"data": {"name": "paperbirds", "limit": 64}}))
    watcher = RunWatcher(meter)
    watcher.begin(plan, find_open_tasks(plan, Store(tmp_path)))
    (task,) = plan.tasks
    kept = int(meter.total / 2)
    watcher.advance(task, kept, kept)
    meter.measure()
    assert meter.text().startswith("run: 50 %") and "left" not in meter.text()
    watcher.advance(task, kept + int(meter.total / 4), kept)
    now += 30
    meter.measure()
    assert meter.text().startswith("run: 75 %") and meter.text().endswith("about 0:30 left")


@pytest.mark.parametrize("silent", [False, None])
def test_a_run_is_silent_unless_asked(silent, capsys):
    hp.evaluate(*ARGUMENTS, limit=2, progress=silent)
    assert capsys.readouterr() == ("", "")


def test_a_run_can_be_followed_by_a_function(tmp_path):
    seen = []
    for _ in range(2):
        hp.run(SPEC, tmp_path, progress=lambda task, reused: seen.append(reused))
    assert seen == [False, True]


def test_the_time_that_is_left_follows_from_what_is_done(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    meter = Meter("training", io.StringIO())
    now += 30
    meter.done, meter.total, meter.status = 20, 100, "step 20/100"
    assert meter.text() == "training: 20 %, step 20/100, 0:30 elapsed, about 2:00 left"
    assert clock(3661) == "1:01:01"


def test_lines_come_every_few_seconds_without_updates(monkeypatch):
    monkeypatch.setattr(progress._Display, "interval", 0.01)
    stream = io.StringIO()
    with Meter("run", stream) as meter:
        steps = iter(range(1, 10_000))
        meter.measure = lambda: setattr(meter, "done", next(steps))
        meter.update(0, 10_000)
        while stream.getvalue().count("\n") < 3:
            pass
    assert stream.getvalue().splitlines()[-1].startswith("run: 100 %")


def test_what_is_not_counted_does_not_look_finished(tmp_path, monkeypatch, capsys):
    """A method of one's own may take long after the counted passes are made."""
    monkeypatch.setattr(progress._Display, "interval", 0.01)

    def own(model, x, target):
        model.logits(x.repeat(50, 1, 1, 1))
        time.sleep(0.3)
        return x[:, 0]

    hp.evaluate(*ARGUMENTS[:2], [own], ["sds(patches=4)"], limit=4, progress=True)
    *during, last = capsys.readouterr().err.splitlines()
    behind = [line for line in during if "beyond the passes that were counted" in line]
    assert behind
    assert not any("100 %" in line for line in during)
    assert not any("left" in line for line in behind)
    assert "100 %, task 1/1" in last and "beyond" not in last


def test_passes_that_prepare_a_baseline_are_counted(monkeypatch):
    """An optimised image costs more than the evaluation of a few samples."""
    totals = []

    class Kept(progress.RunWatcher):
        def begin(self, plan, open_tasks):
            super().begin(plan, open_tasks)
            expected = sum(
                cost.forwards + progress.FORWARDS_PER_BACKWARD * cost.backwards
                for cost in plan_cost(plan).values()
            )
            rest = Meter("run", io.StringIO())
            progress.RunWatcher(rest).begin(plan, open_tasks[1:])  # of a run that was resumed
            totals.extend([self._meter.total, expected, rest.total])

    protocol = "deletion(steps=2, baseline=featurevis(steps=30, crops=8))"
    arguments = ("paperbirds/vgg", "paperbirds:test", ["random"], [protocol])
    with pytest.warns(UserWarning, match="near zero"):
        hp.evaluate(*arguments, limit=70, progress=Kept(Meter("run", io.StringIO())))
    total, expected, rest = totals
    assert total == expected and 0 < rest < total - 30 * 8 * progress.FORWARDS_PER_BACKWARD


def test_a_task_is_shown_in_one_line(tmp_path):
    tasks = []
    hp.evaluate(*ARGUMENTS, limit=4, progress=lambda task, reused: tasks.append(task))
    (text,) = map(repr, tasks)
    assert re.fullmatch(r"Task\(\S+: paperbirds/vgg, samples 0 to 3, 1 record\)", text)


def test_a_terminal_has_a_bar():
    stream = Terminal()
    with Meter("run [1]", stream) as meter:
        meter.update(1, 2, "half")
    text = stream.getvalue()
    assert "\x1b" in text and "run [1]: 100 %, half" in text


def test_a_notebook_has_a_bar(monkeypatch):
    pytest.importorskip("IPython")
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content["text/plain"])

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    with Meter("run") as meter:
        meter.update(1, 2)
    assert shown[0].startswith("█" * 15 + "░" * 15 + " run: 50 %")
    assert shown[-1].startswith("█" * 30)
