"""User-defined extensions: objects, file:path.py:name, and packages with entry points."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from report_text import report_text

import heatproof as hp
from heatproof.baselines import BASELINES, Baseline
from heatproof.data.base import code_of
from heatproof.data.catalog import DATA, DataEntry
from heatproof.errors import HeatproofError
from heatproof.methods import METHODS, TRANSFORMS, Expression
from heatproof.models.zoo import MODELS
from heatproof.plan.spec import parse_protocols
from heatproof.protocols import PROTOCOLS
from heatproof.registry import Registry
from heatproof.report.sections import SECTIONS
from heatproof.userfile import from_file, source_hash

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples" / "plugin"
CODE = '''
import torch
import heatproof as hp
from scale import FACTOR


def own_method(model, x, target, *, rng):
    return FACTOR * x.sum(1)


@hp.transform("{prefix}-sharpen")
def sharpen(maps, power: float = 2):
    return maps.sign() * maps.abs() ** power


def {prefix}_square(maps):
    return maps ** 2


@hp.baseline("{prefix}-grey")
def grey(x, *, model, rng, level: float = 0.5):
    """One grey."""
    return torch.full_like(x, FACTOR * level)


def {prefix}_white(x, *, model, rng):
    return torch.ones_like(x)


@hp.protocol
class Mass(hp.Protocol):
    """Mass of a row."""

    id = "{prefix}-mass"
    higher_is_better = False

    row: int = 0

    def score_maps(self, model, batch, shared, maps):
        return hp.Scores(FACTOR * maps[:, self.row].double().sum(1), [""] * len(maps))


class Grey:
    name, has_silhouettes = "{prefix}-greys", False

    def __init__(self, size, count):
        self.size = size
        self.ids = [str(i) for i in range(count)]
        self.labels = [0] * count
        self.fingerprints = ["always the same"] * count

    def load(self, index):
        image = torch.full((3, self.size, self.size), FACTOR * index / 100)
        image[:, : index + 1] = 1
        return hp.Sample(self.ids[index], image, 0)


def greys(*, model, limit=None):
    return Grey(model.size, limit or 4)
'''


STATE = ("_entries", "_objects", "_placeholders")
REGISTRIES = (METHODS, TRANSFORMS, BASELINES, PROTOCOLS, DATA, MODELS, SECTIONS)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Leave the registries as they were: other tests go through all that there is."""
    before = [[copy.copy(getattr(r, name)) for name in STATE] for r in REGISTRIES]
    yield
    for registry, values in zip(REGISTRIES, before, strict=True):
        vars(registry).update(zip(STATE, values, strict=True))


@pytest.fixture
def code(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Write a file of extensions, with names that contain the test's, and a module it imports."""
    prefix = re.sub(r"\W", "_", request.node.name)
    path = tmp_path / "mine.py"
    path.write_text(CODE.replace("{prefix}", prefix))
    (tmp_path / "scale.py").write_text("FACTOR = 1\n")
    return path


def edit(code: Path) -> None:
    """Change the results of the file by editing the module it imports."""
    (code.parent / "scale.py").write_text("FACTOR = 2\n")


# Files


def test_a_spec_names_extensions_in_files(code: Path, tmp_path: Path):
    spec = {
        "models": ["paperbirds/vgg"],
        "data": {"name": f"file:{code}:greys", "limit": 3},
        "methods": [
            f"file:{code}:own_method",
            f"ixg|file:{code}:sharpen(power=3)",
            f"ig(steps=2, baseline=file:{code}:grey(level=0.25))",
        ],
        "protocols": [
            f"file:{code}:Mass(row=2)",
            f"sds(baseline=file:{code}:grey)",
            {"name": "sds", "baseline": f"file:{code}:test_a_spec_names_extensions_in_files_white"},
        ],
    }
    result = hp.run(spec, tmp_path / "run")
    scores = result.scores
    assert len(scores) == 3 * 3 * 3 and set(scores["status"]) <= {"ok", "undefined"}
    assert list(dict.fromkeys(scores["method"])) == [
        "own_method",
        "ixg|test_a_spec_names_extensions_in_files-sharpen(3)",
        "ig(steps=2, baseline=test_a_spec_names_extensions_in_files-grey(level=0.25))",
    ]
    assert set(scores["baseline"]) == {
        "",
        "test_a_spec_names_extensions_in_files-grey",
        "test_a_spec_names_extensions_in_files_white",
    }
    mass = scores[scores["protocol"] == "test_a_spec_names_extensions_in_files-mass"]
    assert set(mass["setting"]) == {"row=2"}
    assert "One grey." in report_text(result.report())


def test_transforms_and_baselines_need_no_decorator(code: Path):
    name = "test_transforms_and_baselines_need_no_decorator"
    expression = Expression.parse(f"ixg|file:{code}:{name}_square")
    assert expression.label == f"ixg|{name}_square"
    (entry, _), *_ = expression.transforms
    assert torch.equal(entry.function(torch.tensor([3.0])), torch.tensor([9.0]))
    assert Baseline.parse(f"file:{code}:{name}_white").label == f"{name}_white"


def test_edited_code_is_run_again(code: Path, tmp_path: Path):
    def run() -> list[float]:
        scores = hp.evaluate(
            "paperbirds/vgg",
            f"file:{code}:greys",
            ["saliency", f"saliency|file:{code}:sharpen"],
            [f"file:{code}:Mass", f"sds(baseline=file:{code}:grey)"],
            limit=2,
            out=tmp_path / "run",
        ).scores
        return scores["value"].tolist()

    first = run()
    assert run() == first
    edit(code)
    assert not np.array_equal(run(), first)


@pytest.mark.parametrize(
    "key",
    [
        lambda code: Expression.parse(f"file:{code}:own_method").canonical,
        lambda code: Expression.parse(f"ixg|file:{code}:sharpen").canonical,
        lambda code: Expression.parse(f"ig(baseline=file:{code}:grey)").map_key,
        lambda code: Baseline.parse(f"file:{code}:grey").entry.revision,
        lambda code: parse_protocols([f"file:{code}:Mass"])[0].canonical,
        lambda code: code_of(hp.load_data(f"file:{code}:greys", hp.load_model("paperbirds/vgg"))),
    ],
    ids=["method", "transform", "methods-baseline", "baseline", "protocol", "data"],
)
def test_keys_of_user_code_change_with_it(key, code: Path):
    before = key(code)
    assert key(code) == before
    edit(code)
    assert key(code) != before


def test_keys_of_built_in_components_have_no_hash():
    assert Expression.parse("ig(baseline=blur)|abs").canonical.count("+") == 0
    assert Baseline.parse("blur").entry.revision == 1
    assert code_of(hp.load_data("watermark:paperbirds:test")) is None
    assert parse_protocols(["sds"])[0].canonical == "sds@1(baseline=zero, patches=16, score=logit)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda code: Baseline.parse(f"file:{code}:greyy"), "did you mean grey"),
        (lambda code: Baseline.parse(f"file:{code}:own_method"), "must be callable as own_method"),
        (lambda code: Expression.parse(f"ixg|file:{code}:FACTOR"), "a transform is a function"),
        (lambda code: parse_protocols([f"file:{code}:grey"]), "subclass of heatproof.protocols"),
        (lambda code: parse_protocols([f"file:{code}:Mass(line=1)"]), "has no setting 'line'"),
        (lambda code: hp.load_data(f"file:{code}:FACTOR"), "data is a function that returns"),
        (
            lambda code: hp.load_data(f"file:{code}:greys", split="val"),
            "data greys takes no split; add a parameter split to its function",
        ),
        (lambda code: hp.load_data("file:nowhere.py:x"), "there is no file .*nowhere.py"),
        (lambda code: Baseline.parse(3), "a baseline is a name or a function"),
        (lambda code: parse_protocols([3]), "a protocol is a name or a subclass"),
    ],
)
def test_error_messages_say_what_is_expected(call, message: str, code: Path):
    with pytest.raises(HeatproofError, match=message):
        call(code)


def test_a_name_defined_in_two_files_is_refused_with_both_paths(code: Path, tmp_path: Path):
    Baseline.parse(f"file:{code}:grey")
    other = tmp_path / "other.py"
    other.write_text(code.read_text())
    with pytest.raises(HeatproofError, match=r"already a .* in .*mine\.py; .*other\.py"):
        Baseline.parse(f"file:{other}:grey")
    with pytest.raises(HeatproofError, match=r'a baseline "blur" in heatproof; give the one in .*'):
        hp.baseline("blur")(lambda x, *, model, rng: x)


# Objects


def test_protocols_and_baselines_can_be_passed_as_objects():
    @hp.protocol
    class Sum(hp.Protocol):
        """Sum of a map."""

        id = "tests-sum"
        higher_is_better = True
        factor: float = 1.0

        def score_maps(self, model, batch, shared, maps):
            return hp.Scores(self.factor * maps.double().sum((1, 2)), [""] * len(maps))

    class Undecorated(Sum):
        id = "tests-undecorated"

    def tests_black(x, *, model, rng):
        return torch.zeros_like(x) + model.input_range[0]

    def run(*protocols: object) -> list[float]:
        scores = hp.evaluate(
            "paperbirds/vgg", "paperbirds:test", ["ixg"], protocols, limit=2
        ).scores
        return scores["value"].tolist()

    once = run(Sum)
    assert run(Sum()) == run("tests-sum") == once
    assert run(Sum(factor=2)) == run({"name": "tests-sum", "factor": 2}) == [2 * v for v in once]
    assert run(Undecorated(factor=2)) == [2 * v for v in once]
    assert run({"name": "sds", "baseline": tests_black}) == run("sds(baseline=tests_black)")
    assert Sum(factor=2).facts()["summary"] == "Sum of a map."


def test_a_protocol_without_required_attributes_is_refused():
    class Empty(hp.Protocol):
        id = "tests-empty"

    with pytest.raises(HeatproofError, match="Empty does not define higher_is_better"):
        hp.protocol(Empty)


def test_a_stored_run_is_read_without_the_users_code(code: Path, tmp_path: Path):
    name = "test_a_stored_run_is_read_without_the_users_code"
    hp.evaluate(
        "paperbirds/vgg",
        "paperbirds:test",
        ["ixg", "saliency"],
        [f"file:{code}:Mass", f"sds(baseline=file:{code}:grey)"],
        limit=3,
        out=tmp_path / "run",
    )
    script = f"""
import heatproof as hp
from heatproof.protocols import PROTOCOLS
result = hp.Result.load({str(tmp_path / "run")!r})
result.report()
print(result.summary().query("protocol == '{name}-mass'").sort_values("rank")["mean"].tolist())
"""
    code.unlink()
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    low, high = json.loads(process.stdout)
    assert low < high  # lower is better, which is stored with the run


# Entry points


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the example package is installed."""
    return install(tmp_path / "site", PLUGIN / "pyproject.toml", PLUGIN / "src")


def install(site: Path, project: Path, source: Path) -> dict[str, str]:
    """Install as pip would: put the package and its metadata into a directory on the path."""
    config = tomllib.loads(project.read_text())["project"]
    info = site / f"{config['name'].replace('-', '_')}-{config['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {config['name']}\nVersion: {config['version']}\n"
    )
    groups = config["entry-points"].items()
    lines = [
        line
        for group, points in groups
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for package in source.iterdir():
        (site / package.name).symlink_to(package)
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def heatproof(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heatproof", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


LIST = """
import json, sys
from click.testing import CliRunner
from heatproof.cli import main
for kind in sys.argv[1:]:
    shown = CliRunner().invoke(main, ["list", kind, "--json"])
    print(json.dumps([kind, shown.stdout, shown.stderr]))
"""


def list_registries(
    environment: dict[str, str], *kinds: str
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names that `heatproof list` prints, and its warnings, of some registries."""
    process = subprocess.run(
        [sys.executable, "-c", LIST, *kinds],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    names, errors = {}, {}
    for line in process.stdout.splitlines():
        kind, printed, told = json.loads(line)
        names[kind] = [entry["id"] for entry in json.loads(printed)]
        errors[kind] = told
    return names, errors


def test_the_example_package_is_listed_and_run(installed: dict[str, str], tmp_path: Path):
    added = {
        "methods": "gradient-norm",
        "baselines": "checkerboard",
        "protocols": "center-mass",
        "data": "dots",
    }
    listed, _ = list_registries(installed, *added)
    for kind, name in added.items():
        assert name in listed[kind]
    (spec,) = re.findall(r"```yaml\n(.*?)```", (PLUGIN / "README.md").read_text(), re.DOTALL)
    (tmp_path / "spec.yaml").write_text(spec)
    process = heatproof(installed, "run", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "run"))
    assert process.returncode == 0, process.stderr
    rows = hp.Result.load(tmp_path / "run").scores
    assert set(rows["status"]) == {"ok"} and len(rows) == 8 * 2 * 2
    assert set(rows["method"]) == {"gradient-norm", "ig(baseline=checkerboard)"}


def test_the_example_package_is_unknown_if_it_is_not_installed():
    with pytest.raises(HeatproofError, match='unknown data "dots"'):
        hp.load_data("dots")


def test_a_broken_package_is_named_and_skipped(installed: dict[str, str], tmp_path: Path):
    project, source = tmp_path / "broken.toml", tmp_path / "broken"
    (source / "broken_package").mkdir(parents=True)
    (source / "broken_package" / "__init__.py").write_text("import no_such_module\n")
    project.write_text(
        '[project]\nname = "broken-package"\nversion = "1"\n'
        '[project.entry-points."heatproof.methods"]\nlost = "broken_package:lost"\n'
    )
    install(tmp_path / "site", project, source)
    listed, errors = list_registries(installed, "baselines", "methods")
    assert errors["baselines"] == ""
    assert {"ixg", "gradient-norm"} <= set(listed["methods"])
    assert "the package broken-package adds the method lost" in errors["methods"]
    assert "No module named 'no_such_module'" in errors["methods"]


# The registry


def entry(name: str) -> DataEntry:
    return DataEntry(name, lambda: None, "")


def test_every_registry_has_an_entry_point_group():
    assert {r.kind: r.group for r in REGISTRIES} == {
        "method": "heatproof.methods",
        "transform": "heatproof.transforms",
        "baseline": "heatproof.baselines",
        "protocol": "heatproof.protocols",
        "data set": "heatproof.data",
        "model": "heatproof.models",
        "section": "heatproof.sections",
    }


def test_a_definition_can_be_repeated_but_not_replaced():
    registry: Registry[DataEntry] = Registry("thing", lambda thing, name: entry(name))

    def define():
        def same():
            pass

        return same

    def another():
        pass

    registry.add(entry("a"), define())
    registry.add(entry("a"), define())
    with pytest.raises(HeatproofError, match='already a thing "a" in .*test_extending.py'):
        registry.add(entry("a"), another)
    registry.add(entry("b"), define(), placeholder=True)
    registry.add(entry("b"), another)
    assert [e.id for e in registry] == ["a", "b"] and len(registry) == 2


def test_a_lookup_by_name_never_loads_a_file(code: Path):
    with pytest.raises(HeatproofError, match="unknown baseline"):
        BASELINES[f"file:{code}:grey"]
    assert Baseline.find(f"file:{code}:grey") is None
    assert not any(str(code) in name for name in sys.modules)


def test_the_hash_of_code_that_cannot_be_read_is_empty():
    names: dict[str, object] = {"__name__": "typed_in"}
    exec("def f(x):\n    return x\n", names)
    assert source_hash(names["f"]) == ""
    assert source_hash(hp.Model) is None


def test_a_file_that_meets_a_build_of_torchvision_for_another_torch_is_told_the_cure(tmp_path):
    file = tmp_path / "net.py"
    file.write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    with pytest.raises(HeatproofError, match="import_torchvision"):
        from_file(f"file:{file}:build")


def test_a_file_with_the_old_name_of_the_decorator_of_data_sets_is_told_the_new_one(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import heatproof as hp\n@hp.data('noise')\ndef noise():\n    pass\n")
    with pytest.raises(HeatproofError, match="module.*not callable\n.*write @hp.dataset"):
        from_file(f"file:{file}:noise")
