"""What the pages for readers quote is what heatproof prints, and what they say to run is valid."""

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from printed import same_output
from torch import nn

import heatproof as hp
from heatproof.cli import main
from heatproof.methods import METHODS
from heatproof.plan.spec import make_spec
from heatproof.protocols import PROTOCOLS
from heatproof.report.bibliography import entries, keys_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["installation", "tutorial", "reading-results", "faq", "citing", "method-names"]
SHOWN = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


def read(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_pages_for_readers_are_short(name):
    assert len(read(name).split()) <= 1500


def test_the_tutorial_and_the_page_on_results_show_what_is_printed(tmp_path, monkeypatch):
    """Up to the third digit, in which processors differ, as does then the order of two methods."""
    monkeypatch.chdir(tmp_path)
    found = SHOWN.findall(read("tutorial"))
    last = max(k for k, (_, expected) in enumerate(found) if expected)
    names: dict[str, object] = {}
    for code, expected in found[: last + 1]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "tutorial.md", "exec"), names)
        if expected:
            assert same_output(printed.getvalue(), expected, 0.02, ordered=False), printed
    table = found[0][1].partition("\n")[2]
    assert f"```text\n{table}```" in read("reading-results")


def test_the_tutorial_shows_what_the_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec, _, after = read("tutorial").partition("```yaml\n")[2].partition("```")
    Path("spec.yaml").write_text(spec, encoding="utf-8")
    (command,) = re.findall(r"^heatproof (run .*)$", after, re.M)
    printed = CliRunner().invoke(main, command.split()).output.splitlines()
    shown = after.partition("```text\n")[2].partition("```")[0]
    assert len(shown.splitlines()) > 8
    for line in filter(None, shown.splitlines()):
        assert any(same_output(found, line, 0.02) for found in printed), line


def messages() -> str:
    """Return what heatproof says where the page on messages says that it does."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        birds = ("paperbirds/resnet", "paperbirds:test")
        flat = hp.named("flat", lambda model, x, target: torch.ones_like(x[:, 0]))
        for method, protocol, limit in ((flat, "sds", 4), ("center", "soundness", 16)):
            result = hp.evaluate(*birds, [method], [protocol], limit=limit, backend="eager")
            said += result.caveats
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
        )
        model = hp.Model(net, size=16, mean=[0] * 3, std=[1] * 3)
        images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            wrong = 1 - net(images).argmax(1)
        said += hp.evaluate(model, (images, wrong.tolist()), ["center"], ["sds"]).caveats
    said += [str(warning.message) for warning in caught]
    for arguments in (
        (model, (images, wrong.tolist()), ["center"], ["gridpg"]),
        (model, (images, [0, 1, 0, 5]), ["center"], ["sds"]),
        (model, (images, wrong.tolist()), ["center"], ["idsds"]),
        ("torchvision:vgg19", "paperbirds:test", ["center"], ["sds"]),
    ):
        with pytest.raises(hp.HeatproofError) as refused:
            hp.evaluate(*arguments)
        said.append(str(refused.value))
    return "\n".join(said)


def test_the_page_on_messages_quotes_what_heatproof_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path))
    said = " ".join(messages().split())
    text = read("faq")
    quoted = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    quoted += re.findall(r'^## "(.*)"$', text, re.M)[:-2]  # the last are not heatproof's
    assert len(quoted) >= 12
    for message in quoted:
        for part in message.split("…"):
            assert " ".join(part.split()) in said, message


def test_the_spec_of_the_page_on_messages_is_valid():
    (spec,) = re.findall(r"```yaml\n(.*?)```", read("faq"), re.DOTALL)
    assert make_spec(yaml.safe_load(spec)).expressions()


def test_every_method_has_its_full_name_in_its_family_and_a_link(reference):
    known = entries()
    names = []
    for family, page in reference.METHOD_PAGES.items():
        text = read(f"method-families/{page}")
        for full, name, line in re.findall(r"^- \*\*(.+?)\*\*, `(\S+)`: (.+)$", text, re.M):
            names.append(name)
            assert full != name
            assert METHODS[name].family == family
            for key in keys_of(METHODS[name].paper):
                address = re.search(r"(?:url|doi) = \{(.+?)\}", known[key])
                assert address is not None and f"{address[1]})" in line, name
    assert sorted(names) == sorted(entry.id for entry in METHODS if entry.source is None)


def test_the_tables_of_families_are_those_of_the_registry(reference):
    for page in reference.METHOD_PAGES.values():
        text = read(f"method-families/{page}")
        for row in reference.family_rows(page):
            assert f"\n{row}\n" in text, f"{page}: make methods"
        assert f"](../img/methods/{page}.png)" in text
    for row in reference.rows_of_families(DOCS):
        assert f"\n{row}\n" in read("method-names"), "make methods"


def test_the_links_of_the_page_on_citing_are_those_of_the_bibliography():
    known = "\n".join(entries().values())
    text = read("citing")
    links = re.findall(r"\((https://\S+?)\)", text)
    named = set(re.findall(r"\]\(protocols/([\w-]+)\.md\)", text))
    assert named == {entry.id for entry in PROTOCOLS if entry.cls.source is None}
    assert len(links) == 22
    for link in links:
        assert f"{{{link.removeprefix('https://doi.org/')}}}" in known, link
