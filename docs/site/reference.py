"""Reference pages, generated from the command line, the spec and the registries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

import heatproof.api
import heatproof.functional
from heatproof.baselines import BASELINES
from heatproof.cli import main
from heatproof.data.catalog import DATA
from heatproof.listing import listing
from heatproof.methods import METHODS, TRANSFORMS
from heatproof.methods.base import NEEDS
from heatproof.methods.groups import GROUPS
from heatproof.models.zoo import MODELS
from heatproof.plan.schema import spec_schema
from heatproof.protocols import PROTOCOLS
from heatproof.report.bibliography import entries, keys_of

ORIGIN = "*This page is generated from the code.*"
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example):+\s*$", re.MULTILINE)
ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the text of every page by its path in the site."""
    return {f"reference/{name}.md": make() for name, make in PAGES.items()}


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown; a bar within a cell is escaped."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads)]
    lines += [[str(cell).replace("\n", " ").replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(value: object) -> str:
    return f"`{value}`"


def prose(docstring: str) -> str:
    """Return a docstring without its sections, in Markdown."""
    text = SECTION.split(inspect.cleandoc(docstring))[0].strip()
    return text.replace("``", "`")


def described(function: Callable[..., Any]) -> dict[str, str]:
    """Return what a docstring says about each argument."""
    parts = SECTION.split(inspect.getdoc(function) or "")
    arguments = parts[parts.index("Args") + 1] if "Args" in parts else ""
    return {name: re.sub(r"\s+", " ", text) for name, text in ARGUMENT.findall(arguments)}


def arguments_table(parameters: Mapping[str, inspect.Parameter], about: Mapping[str, str]) -> str:
    """Return a table of what an expression can set; empty if there is nothing."""
    rows = []
    for name, parameter in parameters.items():
        text = about.get(name, COMMON.get(name, "")).replace("``", "`")
        required = parameter.default is parameter.empty
        default = "required" if required else code(parameter.default)
        rows.append([code(name), default, choices(parameter.annotation), text])
    return table(["argument", "default", "values", ""], rows) if rows else ""


def choices(annotation: Any) -> str:
    """Return the values of a Literal within an annotation, or the name of the type."""
    text = re.sub(r"typing\.|<class '|'>", "", str(annotation))
    literal = re.search(r"Literal\[(.*?)\]", text)
    if literal:
        return ", ".join(code(value.strip(" '")) for value in literal[1].split(","))
    for word in ("str", "bool", "float", "int"):
        if re.search(rf"\b{word}\b", text):
            return {"str": "text", "bool": "true, false", "float": "number", "int": "integer"}[word]
    return ""


COMMON = {
    "score": "What is explained of the target.",
    "reduce": "How channels are reduced.",
    "n": "Number of noisy copies.",
    "std": "Standard deviation of the noise, in `unit`.",
    "unit": "What `std` is a fraction of.",
    "compat": "The published code that is followed where it differs.",
}


def cli() -> str:
    text = f"# Command line\n\n{ORIGIN} `heatproof COMMAND --help` prints the same.\n\n"
    text += table(
        ["command", ""], [[f"[{n}](#{n})", c.get_short_help_str(200)] for n, c in COMMANDS]
    )
    for name, command in COMMANDS:
        context = click.Context(command, info_name=f"heatproof {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        text += f"\n## {name}\n\n```text\nheatproof {name} {usage}\n```\n\n"
        paragraphs, _, examples = inspect.cleandoc(command.help or "").partition("\nExample")
        text += f"{paragraphs.strip()}\n\n"
        if examples:
            block = "\n".join(line.removeprefix("  ") for line in examples.splitlines()[1:])
            text += f"```text\n{block.rstrip()}\n```\n\n"
        rows = []
        for parameter in command.params:
            record = (
                parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            )
            if record is not None:
                rows.append([code(record[0]), record[1]])
        text += table(["option", ""], rows) if rows else ""
    return text


COMMANDS = sorted(main.commands.items())


def spec() -> str:
    schema = spec_schema()
    text = f"# Spec\n\n{ORIGIN} A spec is a YAML file, or a dictionary in Python (`hp.run`). "
    text += (
        "`heatproof validate spec.yaml` checks one, and `heatproof schema` writes a JSON Schema "
    )
    text += "of all this [for editors](../how-to/spec-in-an-editor.md).\n\n"
    text += "```yaml\n# yaml-language-server: $schema=heatproof.schema.json\n"
    text += "models: [paperbirds/resnet]\ndata: {name: paperbirds, split: test, limit: 256}\n"
    text += 'methods: [ixg, "ig|abs", gradcam, random]\n'
    text += "protocols: [sds, {name: deletion, baseline: [zero, blur]}]\n```\n\n"
    text += keys_table(schema, schema["properties"])
    keys_of = {"models": "ModelSpec", "data and reference": "DataSpec", "decide": "Question"}
    for title, name in keys_of.items():
        entry = schema["definitions"][name]
        text += f"\n## Keys of {title}\n\n{entry['description']}\n\n"
        text += keys_table(entry, entry["properties"])
    entry = schema["definitions"]["FineTuningSpec"]
    text += f"\n## Keys of fine_tuning\n\n{entry['description']}\n\n"
    text += keys_table(entry, entry["properties"])
    text += "\n## Settings of protocols\n\nA list as a setting stands for one protocol each. See "
    return text + "[protocols](protocols.md).\n"


def keys_table(entry: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    required = entry.get("required", ())
    rows = []
    for key, value in properties.items():
        default = value.get("default")
        shown = (
            "" if default is None else code(str(default).lower() if default is True else default)
        )
        rows.append(
            [code(key), "required" if key in required else shown, value.get("description", "")]
        )
    return table(["key", "default", ""], rows)


def linked(citation: str) -> str:
    """Link the papers that a text names, which semicolons separate, to their DOI or arXiv page."""
    parts = []
    for part in citation.split("; "):
        entry = "".join(entries().get(key, "") for key in keys_of(part))
        address = re.search(r"(url|doi) = \{(.+?)\}", entry)
        base = "https://doi.org/" if address and address[1] == "doi" else ""
        parts.append(f"[{part}]({base}{address[2]})" if address else part)
    return "; ".join(parts)


def methods() -> str:
    text = f"# Methods\n\n{ORIGIN} What each was compared with is in [Methods](../methods.md).\n\n"
    text += "A method is written as an [expression](../glossary.md): "
    text += "`name(arguments)@layer|transform`. "
    text += (
        "Passes are per image, for the method alone at 224 px: `fwd` is a forward pass, `bwd` a "
    )
    text += "backward pass with its forward pass.\n\n"
    listed = listing("methods")
    rows = [
        [
            f"[{m['id']}](#{anchor(m['id'])})",
            m["family"],
            m["cost"],
            yes(m["signed"]),
            linked(m["paper"]),
        ]
        for m in listed
    ]
    text += table(["method", "family", "passes", "signed", "paper"], rows)
    text += "\n## Groups\n\n" + table(
        ["group", "methods"],
        [[code(f"group:{name}"), ", ".join(map(code, group))] for name, group in GROUPS.items()],
    )
    for m in listed:
        entry = METHODS[m["id"]]
        text += f"\n{address(m['id'])}## {m['id']}\n\n"
        text += (
            prose(m["summary"] if entry.noise else inspect.getdoc(entry.function) or "") + "\n\n"
        )
        needs = "; ".join(NEEDS[word] for word in m["needs"])
        layers = f"any layer, by default `{m['layer']}`" if m["layers"] == "any" else "the input"
        text += f"Explains at {layers}." + (f" Needs {needs}." if needs else "") + "\n\n"
        text += arguments_table(entry.parameters, described(entry.function))
    return text


METHOD_PAGES = {  # of docs/method-families, by the family of the registry
    "gradient": "gradients",
    "cam": "class-activation-maps",
    "relevance": "relevance-propagation",
    "perturbation": "perturbations",
    "intrinsic": "self-explaining-networks",
    "attention": "attention",
    "control": "controls",
}
FULL_NAME = re.compile(r"^- \*\*(.+?)\*\*, `(\S+)`: ", re.MULTILINE)


def full_names(page: Path) -> dict[str, str]:
    """Return the full names of the methods of a page on a family, by their short ones."""
    found = FULL_NAME.findall(page.read_text(encoding="utf-8"))
    return {short: full for full, short in found}


def family_rows(page: str) -> list[str]:
    """Return the rows of what the registry has about the methods of a page."""
    rows = []
    for m in listing("methods"):
        if METHOD_PAGES.get(m["family"]) == page and METHODS[m["id"]].source is None:
            needs = "; ".join(NEEDS[word] for word in m["needs"]) or "nothing"
            layer = f"any, by default `{m['layer']}`" if m["layers"] == "any" else "the image"
            rows.append([code(m["id"]), needs, m["cost"], yes(m["signed"]), layer])
    return table([], rows).splitlines()[2:]


def rows_of_families(docs: Path) -> list[str]:
    """Return the rows of docs/method-names.md: every family with its methods."""
    rows = []
    for page in METHOD_PAGES.values():
        path = docs / f"method-families/{page}.md"
        title, idea = path.read_text(encoding="utf-8").split("\n\n")[:2]
        names = [f"{full} `{name}`" for name, full in full_names(path).items()]
        link = f"[{title.removeprefix('# ')}](method-families/{page}.md)"
        rows.append([link, idea.split(". ")[0].rstrip(".") + ".", ", ".join(names)])
    return table([], rows).splitlines()[2:]


def transforms() -> str:
    text = f"# Transforms\n\n{ORIGIN} They follow a method: `ixg|abs`, `ig|smooth(9)`.\n\n"
    text += "`noise(n, std, kind, unit)` is a modifier: it comes first, and runs the method on "
    text += "noisy copies of its input.\n"
    for entry in TRANSFORMS:
        text += f"\n## {entry.id}\n\n{prose(inspect.getdoc(entry.function) or '')}\n\n"
        text += arguments_table(entry.parameters, described(entry.function))
    return text


def protocols() -> str:
    text = f"# Protocols\n\n{ORIGIN} [Which protocol should I use?](../which-protocol.md) helps to "
    text += "choose.\n\n"
    text += protocol_table()
    for entry in PROTOCOLS:
        facts = entry.cls().facts()
        text += f"\n## {entry.id}\n\n{sentence(facts['summary'])}\n\n{protocol_facts(entry.id)}\n\n"
        properties = spec_schema()["definitions"][f"protocol {entry.id}"]["properties"]
        rows = []
        for name, field in entry.cls.model_fields.items():
            values = choices(field.annotation)
            default = (
                ""
                if field.default is None
                else code(
                    str(field.default).lower() if isinstance(field.default, bool) else field.default
                )
            )
            rows.append([code(name), default, values, properties[name].get("description", "")])
        text += (
            table(["setting", "default", "values", ""], rows) if rows else "It has no settings.\n"
        )
        text += f"\n{linked(facts['citation'])}.\n"
    return text


def protocol_table(address: str = "#{}") -> str:
    """Return the facts of all protocols, whose names link to an address of theirs."""
    rows = []
    for entry in PROTOCOLS:
        protocol = entry.cls()
        facts = protocol.facts()
        rows.append(
            [
                f"[{entry.id}]({address.format(entry.id)})",
                "higher" if facts["higher_is_better"] else "lower",
                range_of(facts["range"]),
                "depends" if facts["random_score"] is None else f"{facts['random_score']:.2g}",
                facts["target"],
                passes_of(protocol),
            ]
        )
    heads = ["protocol", "better", "range", "a random map scores", "explains", "passes per image"]
    return table(heads, rows)


def protocol_facts(name: str) -> str:
    """Return the facts that the registry has about a protocol, as a table of one row."""
    protocol = PROTOCOLS[name].cls()
    facts = protocol.facts()
    random = facts["random_score"]
    cells = [
        "higher" if facts["higher_is_better"] else "lower",
        range_of(facts["range"]),
        "depends on the model and the data" if random is None else f"{random:.2g}",
        f"the {facts['target']}",
        passes_of(protocol),
    ]
    return table(
        ["better", "range", "a random map scores", "explains", "forward passes per image"], [cells]
    )


def range_of(limits: tuple[float, float] | None) -> str:
    return (
        "that of the score"
        if limits is None
        else f"{limits[0]:g} … {limits[1]:g}".replace("-", "−")
    )


def passes_of(protocol: Any) -> str:
    """Return the forward passes that a protocol takes with its default settings."""
    shared = 1 + sum(protocol.shared_passes().values())
    own = sum(protocol.passes().values())
    text = f"{shared} for all methods"
    text = f"{text}, {own} per method" if own else text
    maps = sum(protocol.explanations().values())
    return f"{text}; {maps} more {'map' if maps == 1 else 'maps'} per method" if maps else text


def baselines() -> str:
    text = f"# Baselines\n\n{ORIGIN} A baseline says what removed pixels become.\n\n"
    text += table(
        ["baseline", "group", "needs"],
        [[f"[{b['id']}](#{b['id']})", b["group"], b["needs"]] for b in listing("baselines")],
    )
    for entry in BASELINES:
        text += f"\n## {entry.id}\n\n{prose(entry.summary)}\n\n"
        text += arguments_table(entry.parameters, described(entry.function))
    return text


def models() -> str:
    text = f"# Models\n\n{ORIGIN} [Models and image folders](../models.md) has the layers and "
    text += "preprocessing of the networks of the papers, and "
    text += "[your own model](../bring-your-own/models.md) goes in as it is.\n\n"
    text += "## By name\n\n"
    rows = []
    for m in listing("models"):
        fine_tuned = ", ".join(map(code, m.get("fine_tuned", ())))
        rows.append(
            [
                code(m["id"]),
                m.get("size", ""),
                WEIGHTS.get(m["weights"], m["weights"]),
                fine_tuned,
                m.get("papers", ""),
            ]
        )
    text += table(["name", "size", "weights", "fine-tuned for idsds", "papers"], rows)
    text += "\n## Families of names\n\n"
    families = [loader.id for loader in MODELS if loader.id.endswith((":", "/"))]
    return text + table(["name", ""], [[code(name + "…"), FAMILIES[name]] for name in families])


FAMILIES = {
    "paperbirds/": "the embedded models; `heatproof train` makes others",
    "cifar10/": "the networks of the papers' CIFAR-10 studies, with a file of weights",
    "cifar100/": "the same for CIFAR-100",
    "rao2024/": "networks of the paper that differ from the library's",
    "picard2024/": "networks of the paper that differ from the library's",
    "torchvision:": "a network of torchvision (extra `vision`)",
    "timm:": "a network of timm (extra `vision`)",
    "hf:": "an image classifier of Hugging Face, by name or directory (extra `hf`)",
    "file:": "`file:net.py:build`, a function of yours; it runs that file",
}


WEIGHTS = {
    "ship": "ship with the package",
    "train": "trained on demand: `{train: NAME}`",
    "give": "a file, or `download`",
}


def data() -> str:
    text = f"# Data sets\n\n{ORIGIN} Python objects go in as they are: "
    text += "[your own data](../bring-your-own/data.md).\n\n"
    return text + table(["name", ""], [[code(entry.id), entry.summary] for entry in DATA])


def studies() -> str:
    text = f"# Studies\n\n{ORIGIN} `heatproof run NAME` runs a study, and "
    text += "`heatproof study NAME --copy mine.yaml` copies its spec. "
    text += "[Every figure and table](../figures.md) says which study makes it.\n\n"
    rows = [[code(s["id"]), s["about"], ", ".join(s["figures"])] for s in listing("studies")]
    return text + table(["study", "", "figures"], rows)


def sections() -> str:
    text = f"# Sections of the report\n\n{ORIGIN} A section appears in a report if the run has its "
    text += "data.\n\n"
    return text + table(
        ["section", "name", "question"],
        [[code(s["id"]), s["name"], s["question"]] for s in listing("sections")],
    )


def api() -> str:
    text = "# heatproof\n\n```python\nimport heatproof as hp\n```\n"
    for name in sorted(heatproof.api.__all__, key=str.lower):
        thing = getattr(heatproof.api, name)
        text += f"\n::: {thing.__module__}.{name}\n"
    return text


def functional() -> str:
    text = f"# heatproof.functional\n\n{prose(heatproof.functional.__doc__ or '')}\n\n"
    text += "```python\nimport heatproof.functional as F\n```\n"
    for name in heatproof.functional.__all__:
        thing = getattr(heatproof.functional, name)
        text += f"\n::: {thing.__module__}.{name}\n"
    return text


def module(name: str) -> Callable[[], str]:
    def page() -> str:
        options = "    options: {show_root_heading: false, show_root_toc_entry: false}\n"
        return f"# {name}\n\n::: {name}\n{options}"

    return page


def anchor(name: str) -> str:
    return name.replace("++", "-plus-plus")


def address(name: str) -> str:
    """Return a mark for links to the heading that follows, where its text is not the address."""
    return "" if anchor(name) == name else f'<a id="{anchor(name)}"></a>\n\n'


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def yes(value: bool) -> str:
    return "yes" if value else "no"


PAGES = {
    "cli": cli,
    "spec": spec,
    "methods": methods,
    "transforms": transforms,
    "protocols": protocols,
    "baselines": baselines,
    "models": models,
    "data": data,
    "studies": studies,
    "sections": sections,
    "api": api,
    "functional": functional,
    "metrics": module("heatproof.metrics"),
    "quantus": module("heatproof.quantus"),
}
