"""Text from strangers: terminals, XML, spreadsheets and streams that know only ASCII."""

import io
import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from heatproof.errors import join_limited, unknown
from heatproof.text import (
    ENCODE_ERRORS,
    clip,
    counted,
    printable,
    short_titles,
    show,
    unsafe_character,
    with_short_titles,
    without_formulas,
)


@pytest.mark.parametrize("text", ["plain", "a\nb\tc", "naïve – 漢字 עברית ✓", "👩‍🔬"])
def test_text_of_all_languages_is_not_changed(text):
    assert printable(text) == text
    assert unsafe_character(text) == ""


def test_every_character_can_be_printed_and_put_into_xml():
    every = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFF00, 0x10100)]))
    safe = printable(every)
    escaped = safe.replace("&", "&amp;").replace("<", "&lt;")
    assert ET.fromstring(f"<a>{escaped}</a>").text == safe
    assert safe.encode().decode() == safe
    assert not any(mark in safe for mark in "\x1b\x07\x08\r\x9b\u202e\u2066\u2028")
    assert printable("\x1b[2J\ud800") == "\\x1b[2J\\ud800"


def test_messages_quote_the_beginning_of_what_is_long():
    assert clip("x" * 200) == "x" * 200
    assert clip("x" * 201) == "x" * 200 + "… (201 characters)"
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    for value in ("x" * 10**6, list(range(10**5)), nested, dict.fromkeys(range(99), "y" * 999)):
        assert len(show(value)) < 1000
    assert show({"b": [1, "x"]}) == "{'b': [1, 'x']}"
    assert len(join_limited(["x" * 10**6] * 9)) < 1500
    assert len(str(unknown("method", "x" * 10**6, ["ig"]))) < 500


def test_formulas_in_tables_are_text():
    hostile = ["=cmd()", "+1", "-1", "@x", "\tx", "\rx"]
    frame = pd.DataFrame({"name": [*hostile, "a=b", ""], "value": range(-4, 4)})
    safe = without_formulas(frame)
    assert list(safe["name"]) == [*(f"'{text}" for text in hostile), "a=b", ""]
    assert list(safe["value"]) == list(frame["value"])
    assert list(frame["name"])[:6] == hostile
    missing = pd.DataFrame({"name": ["=1", None, float("nan")]})
    assert list(without_formulas(missing)["name"].isna()) == [False, True, True]


def test_a_stream_for_ascii_replaces_what_it_cannot_encode():
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", errors=ENCODE_ERRORS, newline="\n") as stream:
        stream.write("0.1 … 0.2 · 3×3 – é漢\udcff")
        stream.flush()
        assert raw.getvalue() == b"0.1 ... 0.2 - 3x3 - \\xe9\\u6f22\\udcff"


def test_code_in_files_has_a_short_title_unless_two_would_be_the_same():
    first = "file:/home/me/nets/net.py:build"
    assert short_titles([first, "paperbirds/vgg"]) == {first: "net.py:build"}
    assert short_titles([first, first]) == {first: "net.py:build"}
    assert short_titles([r"file:C:\nets\net.py:build"]) == {
        r"file:C:\nets\net.py:build": "net.py:build"
    }
    assert short_titles([first, "file:/home/you/net.py:build"]) == {}
    assert short_titles([first, "net.py:build"]) == {}
    assert with_short_titles(f"{first}, gridpg, cell 1", [first]) == "net.py:build, gridpg, cell 1"


def test_a_very_long_name_has_a_short_title_unless_two_would_be_the_same():
    long = "n" * 10_000
    assert short_titles([long]) == {long: "n" * 60 + "…" + "n" * 20}
    assert short_titles([long, long + "n"]) == {}


def test_one_thing_is_not_called_several():
    assert counted(1, "image") == "1 image"
    assert counted(0, "class", "classes") == "0 classes"
    assert counted(2, "more method") == "2 more methods"
