"""Specs from strangers: whatever they contain, they are read or refused with a short message."""

import time

import pytest
import yaml

from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.plan.changes import Changes
from heatproof.plan.make_plan import _repeated
from heatproof.plan.spec import load_spec, make_spec, parse_protocols
from heatproof.plan.yaml_reader import MAX_FILE_BYTES, parse_yaml

GOOD = {
    "models": ["paperbirds/resnet"],
    "data": "paperbirds:test",
    "methods": ["ixg"],
    "protocols": ["sds"],
}
TEXT = yaml.safe_dump(GOOD)
LONGEST_MESSAGE = 12_000  # 20 problems of at most 600 characters
BOMB = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
)
MERGES = "\n".join(
    [
        "a0: &a0 {x: 1}",
        *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)),
    ]
)


def refused(read, *args, **kwargs) -> str:
    """Return the message of a refusal, which must come soon and be short."""
    started = time.process_time()
    with pytest.raises(HeatproofError) as caught:
        read(*args, **kwargs)
    assert type(caught.value) is HeatproofError
    assert time.process_time() - started < 20
    message = str(caught.value)
    assert len(message) < LONGEST_MESSAGE
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{BOMB}\n{TEXT}", "more than 20,000 values with its aliases expanded"),
        (f"{MERGES}\n{TEXT}", "values with its aliases expanded"),
        (f"about: &a [*a]\n{TEXT}", "a contains itself"),
        (f"about: {'[' * 5000}\n{TEXT}", "more than 20 lists and mappings are nested"),
        (f"{'{a: ' * 5000}", "more than 20 lists and mappings are nested"),
        (f"seed: !!int x\n{TEXT}", "'x' is not of the type int"),
        (f"seed: !!bool 7\n{TEXT}", "'7' is not of the type bool"),
        (f"seed: !!float ''\n{TEXT}", "'' is not of the type float"),
        (
            f"seed: !!python/object/apply:os.system [ls]\n{TEXT}",
            "could not determine a constructor",
        ),
        (f"seed: {'9' * 5000}\n{TEXT}", "a number of more than 100 characters"),
        (f"seed: {'9' * 90}\n{TEXT}", "seed: found a number of more than 63 bits"),
        (f"seed: .nan\n{TEXT}", "seed: found nan; a number must be finite"),
        (f'about: "\\ud800"\n{TEXT}', "the character \\ud800 cannot be shown"),
        (f'about: "\\e[2J"\n{TEXT}', "the character \\x1b cannot be shown"),
        (f'about: "\\U00110000"\n{TEXT}', "not readable as YAML"),
        (f"1: x\n{TEXT}", "the key 1 is not text"),
        (f"? [a]\n: x\n{TEXT}", "a key must be text"),
        (f"about: {'x' * 20_000}\n{TEXT}", "a text of 20,000 characters"),
        ("#" * (MAX_FILE_BYTES + 1), "more than 256 kB"),
        (f"{TEXT}seed: 1\nseed: 2\n", "seed is given twice"),
    ],
)
def test_hostile_yaml_is_refused(tmp_path, text, message):
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    assert message in refused(load_spec, path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_bytes(TEXT.encode("utf-16"))
    assert "not readable as YAML" in refused(load_spec, path)


def test_dates_are_text_and_small_aliases_are_read(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(f"about: 2024-13-01\nreference: &r {{name: paperbirds}}\n{TEXT}")
    assert load_spec(path).about == "2024-13-01"
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}", "it")["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocols": [{"name": "sds", "patches": list(range(3000)), "baseline": ["x"] * 3000}]},
         "9,000,000 protocols; at most 2,000"),
        ({"protocols": [f"sds(patches={i})" for i in range(2500)]}, "patches"),
        ({"models": [{"train": "paperbirds/resnet", "seed": list(range(3000))}]},
         "3,000 models; at most 2,000"),
        ({"models": [{"train": "paperbirds/resnet",
                      "fine_tuning": {"seed": list(range(100)), "lr": list(range(100))}}]},
         "10,000 models"),
        ({"methods": [f"ig(steps={i})" for i in range(1, 3000)]}, "2,999 methods"),
        ({"methods": ["x" * 9000]}, "an expression has at most 4096"),
        ({"methods": list(range(15_000))}, "more problems"),
        ({"models": [[{"a": "b" * 999}] * 999]}, "models.0"),
        ({"models": [{"name": "paperbirds/resnet", "as": "x" * 10_000}]}, "at most 200 characters"),
        ({"models": [{"name": "paperbirds/resnet", "as": "a\nb"}]}, "no line breaks"),
        ({"models": [{"name": "paperbirds/resnet", "as": "\x1b[2J"}]}, "\\x1b cannot be shown"),
        ({"models": [{"name": "paperbirds/resnet", "as": "\ud800"}]}, "\\ud800 cannot be shown"),
        ({"models": [{"name": "paperbirds/resnet", "as": "\u202eabc"}]}, "\\u202e cannot be shown"),
        ({"seed": 10**4000}, "more than 63 bits"),
        ({"data": {None: 3}}, "the key None is not text"),
        ({"methods": [f"file:{'x' * 400}.py:f"]}, "there is no file"),
    ],
)  # fmt: skip
def test_hostile_values_are_refused(change, message):
    assert message in refused(make_spec, {**GOOD, **change})


def test_a_spec_that_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    assert "nested" in refused(make_spec, {**GOOD, "models": loop})
    assert "found 3" in refused(make_spec, 3)


def test_the_limit_of_a_gradient_may_be_infinite():
    model = {"train": "paperbirds/resnet", "trained_on": "plain", "clip": float("inf")}
    assert make_spec({**GOOD, "models": [model]}).models[0].clip == float("inf")
    assert "must be finite" in refused(make_spec, {**GOOD, "models": [{**model, "rate": 1e999}]})


@pytest.mark.parametrize("index", ["²", "٣", "9" * 5000, "-1"])
def test_an_entry_of_a_list_is_named_by_a_plain_number(index):
    changes = Changes(settings=[f"methods.{index}=ig"])
    assert "is not the number of an entry" in refused(changes.apply, GOOD)


@pytest.mark.parametrize(
    "value", ["&a [*a]", "!!int x", "[" * 999, "2024-13-01: {", '"\\U00110000"']
)
def test_hostile_settings_are_refused(value):
    refused(Changes(settings=[f"seed={value}"]).apply, GOOD)


@pytest.mark.parametrize(
    "text",
    [
        "ig(steps=---1)",
        "ig(steps={[]: 1})",
        "ig(steps=1if 1)",
        f"ig(steps={'[' * 900}{']' * 900})",
        f"ixg|smooth({'-' * 1900}1)",
        f"ig(steps=0x{'f' * 1900})",
        "ig(steps=\0)",
        f"file:{' ' * 1900}",
        "x" * 10_000_000,
    ],
)
def test_hostile_expressions_are_refused(text):
    refused(Expression.parse, text)


def test_the_studies_own_lists_are_far_below_the_limits():
    settings = {"name": "sds", "patches": [4, 16, 64], "baseline": ["zero", "blur"]}
    assert len(parse_protocols([settings])) == 6


def test_the_repeated_id_is_found_in_linear_time():
    ids = [str(i) for i in range(300_000)]
    started = time.process_time()
    assert _repeated([*ids, "299999"]) == "299999"
    assert time.process_time() - started < 5
