"""Malformed expressions are errors with a message, whatever they are."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatproof.baselines import Baseline
from heatproof.errors import HeatproofError
from heatproof.expressions import LONGEST_EXPRESSION, parse_call
from heatproof.methods import METHODS, TRANSFORMS, Expression

VALUES = [
    *("---1", "1", "-1", "0", "1e400", "nan", "[1, [2]]", "{[]: 1}", "{1: 2}", "'a'", '"', "None"),
    *("True", "0x" + "f" * 3900, "9" * 4000, "(" * 500, "[" * 900 + "]" * 900, "-" * 3000 + "1"),
    *("1if", "\0", "b'x'", "zero", "uniform(-1, 1)", "()", "...", "1j", "1_0", "10**9", "'\\d'"),
    *("1000000001", "99999999999999999999", "lambda: 0", "ixg", "sum", "x" * 300, "é", "😀"),
]
NAMES = [e.id for e in METHODS] + [e.id for e in TRANSFORMS]
NAMES += ["noise", "group:all", "group:", "file:x.npz", "file:x.py:f", "file:" + "x" * 300, "file:"]
PARAMETERS = [*("steps", "n", "std", "reduce", "baseline", "size", "of", "samples", "kind", "x")]
ARGUMENT = st.builds(
    lambda name, value: name + value,
    st.sampled_from(["", *(f"{p}=" for p in PARAMETERS)]),
    st.sampled_from(VALUES),
)
CALL = st.builds(
    lambda name, arguments: f"{name}({','.join(arguments)})" if arguments else name,
    st.sampled_from(NAMES),
    st.lists(ARGUMENT, max_size=3),
)
LAYER = st.sampled_from(["", "@final", "@all", "@", "@(", "@@", "@\0"])
EXPRESSION = st.builds(
    lambda call, layer, tail: "|".join([call + layer, *tail]),
    CALL,
    LAYER,
    st.lists(CALL, max_size=2),
)
LETTERS = st.text(st.sampled_from("()[]|@,='\" \0-1exig:/{}é😀"), max_size=60)


def parse_quickly(parse, text: str) -> None:
    begin = time.process_time()
    with suppress(HeatproofError):
        parse(text)
    assert time.process_time() - begin < 5


@given(EXPRESSION)
def test_any_arrangement_of_the_grammar_is_parsed_or_reported(text):
    parse_quickly(Expression.parse, text)


@given(st.one_of(LETTERS, st.text(max_size=40), st.builds(str.__add__, EXPRESSION, LETTERS)))
def test_any_text_is_parsed_or_reported(text):
    parse_quickly(Expression.parse, text)
    parse_quickly(parse_call, text)
    parse_quickly(Baseline.parse, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ig(steps=---1)", "steps: found '---1'; input should be a valid integer"),
        ("ig(steps=" + "[" * 3000, "brackets do not match"),
        ("ig(steps=" + "(" * 1000 + ")" * 1000 + ")", "input should be a valid integer"),
        ("ig(steps={[]: 1})", "input should be a valid integer"),
        ("ixg(reduce=[1])", "unknown reduction"),
        ("ixg|smooth(1000000001)", "less than or equal to 65535"),
        ("ixg|pooling(99999999999999999999)", "a number of more than 63 bits"),
        ("ixg" + "|abs" * 2000, f"an expression has at most {LONGEST_EXPRESSION}"),
        ("ixg(" + "x" * 10**6, "1000004 letters"),
        ("file:" + "x" * 300 + ".npz", "there is no file"),
        ("file:\0.npz", "there is no file"),
    ],
)
def test_the_message_says_what_is_wrong(text, message):
    with pytest.raises(HeatproofError, match=message):
        Expression.parse(text)


def test_a_transform_that_fails_at_once_is_reported(tmp_path):
    (tmp_path / "mine.py").write_text("def odd(maps, n=2):\n    return maps[:, n, n + 1]\n")
    with pytest.raises(HeatproofError, match=r"transform .*odd\(n=7\): IndexError"):
        Expression.parse(f"ixg|file:{tmp_path}/mine.py:odd(n=7)")
