"""What a release is made of: version, extras, recipe, image and citation say the same."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from heatproof.report.bibliography import entries

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("vision", "hf", "dask", "openvino", "plot", "all")
CONDA_NAMES = {"torch": "pytorch"}


def requirement(text: str) -> tuple[str, str]:
    name, limits = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?\s*(.*)", text).groups()
    return CONDA_NAMES.get(name, name).lower(), limits.replace(" ", "")


def test_the_recipe_has_the_dependencies_of_the_package():
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))
    listed = recipe["requirements"]["run"]
    assert listed[0] == "python >=${{ python_min }}"
    assert f">={recipe['context']['python_min']}" == PROJECT["project"]["requires-python"]
    run = dict(requirement(line) for line in listed[1:])
    assert run == dict(requirement(line) for line in PROJECT["project"]["dependencies"])
    host = {requirement(line)[0] for line in recipe["requirements"]["host"][1:]}
    assert host == {"pip", *(requirement(r)[0] for r in PROJECT["build-system"]["requires"])}
    (command,) = recipe["build"]["python"]["entry_points"]
    name, target = command.split(" = ")
    assert PROJECT["project"]["scripts"] == {name: target}


def test_the_recipe_and_the_citation_have_the_last_version_of_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    last = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.M)[1]
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == last
    assert str(citation["version"]) == last


def test_the_citation_names_the_four_papers_with_links():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    bibliography = re.sub(r"[{}]", "", " ".join(entries().values()))
    first = [paper["authors"][0]["family-names"] for paper in citation["references"]]
    assert first == ["Hesse", "Rao", "Li", "Picard"]
    for paper in citation["references"]:
        assert paper["title"] in bibliography
        assert paper.get("doi", paper.get("url")) in bibliography


def test_the_extras_are_those_of_the_documentation():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(EXTRAS) <= set(extras)
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(EXTRAS) - {"all"}


def test_the_image_installs_the_wheel_and_does_not_run_as_root():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    instructions = [line.split()[0] for line in lines if re.match(r"[A-Z]+ ", line)]
    assert instructions.count("FROM") == 2
    assert 'ENTRYPOINT ["heatproof"]' in lines
    (user,) = (line.split()[1] for line in lines if line.startswith("USER "))
    assert user not in ("0", "root")
    extras = re.search(r'EXTRAS="([\w,]+)"', "\n".join(lines))[1].split(",")
    assert set(extras) <= set(EXTRAS)
    (folder,) = (line.split()[1] for line in lines if line.startswith("WORKDIR /w"))
    (cache,) = (line.partition("CACHE=")[2] for line in lines if line.startswith("ENV HEATPROOF"))
    assert f"install -d -m 1777 {folder} {cache}" in "\n".join(lines)  # WORKDIR makes it root's
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert all((ROOT / path).exists() for path in copied)


def test_the_checklist_names_targets_and_files_that_exist():
    text = (ROOT / "docs/releasing.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", text):
        assert f"\n{target}:" in makefile
    for path in ("CHANGELOG.md", "CITATION.cff", "recipe/recipe.yaml", ".ci/run", "pyproject.toml"):
        assert f"`{path}`" in text
        assert (ROOT / path).exists()
    assert text.count("- [ ]") > 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "commits", "expected"),
    [
        ("", 1, r"0\.1\.0\.dev\d+\+g[0-9a-f]+"),
        ("v0.2.0", 0, r"0\.2\.0"),
        ("v0.2.0", 2, r"0\.2\.1\.dev2\+g[0-9a-f]+"),
        (None, 0, r"0\.1\.0\.dev0"),
    ],
    ids=["no tag", "tag", "after a tag", "no git"],
)
def test_the_version_comes_from_the_tag(tag, commits, expected, tmp_path):
    """Ask the build backend, in a small project with the same settings."""

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "src/heatproof").mkdir(parents=True)
    (tmp_path / "src/heatproof/__init__.py").touch()
    if tag is not None:
        git("init", "-q")
        git("add", ".")
        git("commit", "-qm", "first")
        if tag:
            git("tag", tag)
        for number in range(commits):
            git("commit", "-q", "--allow-empty", "-m", f"{number}")
    code = "from hatchling.metadata.core import ProjectMetadata\n"
    code += "from hatchling.plugin.manager import PluginManager\n"
    code += "print(ProjectMetadata('.', PluginManager()).version)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(expected, process.stdout.strip())
