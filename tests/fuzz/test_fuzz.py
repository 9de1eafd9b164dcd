"""A short form of benchmarks/fuzz.py: some random cases of every kind."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatproof.errors import HeatproofError
from heatproof.expressions import parse_call
from heatproof.methods import Expression
from heatproof.plan.spec import make_spec
from heatproof.plan.yaml_reader import parse_yaml

FOLDER = Path(__file__).parents[2] / "benchmarks"


def _load():
    sys.path.append(str(FOLDER))  # for the modules beside it
    spec = importlib.util.spec_from_file_location("fuzz_of_input", FOLDER / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FUZZ = _load()
CASES = {"specs": 60, "settings": 100, "expressions": 400, "labels": 200, "weights": 40}
CASES |= {"stores": 30, "images": 40, "runs": 25}


@pytest.mark.parametrize("kind", FUZZ.KINDS)
def test_random_input_is_accepted_or_refused_with_a_short_message(kind, tmp_path):
    count = FUZZ.fuzz(kind, CASES[kind], 1, tmp_path, limit=60)
    assert not count.examples, "\n".join(count.examples.values())
    assert count.refused
    assert count.longest_message <= FUZZ.LONGEST_MESSAGE


BROKEN = """
import itertools
import sys
from pathlib import Path

import fuzz
from heatproof.errors import HeatproofError

numbers = itertools.cycle(range(4))


def case(rng, folder):
    number = next(numbers)

    def run():
        if number == 0:
            raise HeatproofError("no")
        if number == 1:
            raise KeyError("traceback")
        while number == 2:
            pass

    return run


fuzz.KINDS["broken"] = case
count = fuzz.fuzz("broken", 8, 0, Path(sys.argv[1]), limit=1)
print(count.cases, count.refused, count.accepted, count.tracebacks, count.hangs)
print(len(count.examples))
"""


@pytest.mark.skipif(not hasattr(FUZZ.signal, "setitimer"), reason="needs alarms")
def test_the_fuzzer_counts_what_goes_wrong(tmp_path):
    """In a process of its own, which gets the alarms."""
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])}
    shown = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, check=True
    )
    assert shown.stdout.split() == b"8 2 2 2 2 2".split()


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
nested = st.recursive(
    leaves,
    lambda part: st.lists(part) | st.dictionaries(st.text() | st.integers(), part),
    max_leaves=9,
)
KEYS = st.sampled_from(
    ["models", "data", "methods", "protocols", "seed", "about", "lead", "reference"]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, nested))
def test_any_values_make_a_spec_or_an_error(changes):
    try:
        make_spec({**FUZZ.GOOD, **changes})
    except HeatproofError as error:
        str(error)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_is_an_expression_or_an_error(text):
    for read in (parse_call, Expression.parse, lambda content: parse_yaml(content, "text")):
        try:
            read(text)
        except HeatproofError:
            continue
