"""Files of the repository that no other test reads: workflows, templates, hooks, changelog."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_workflows_are_complete(path):
    workflow = read_yaml(path)
    assert workflow["name"]
    assert workflow[True]  # YAML 1.1 reads the key "on" as a boolean
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"], name
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            assert "@" in step.get("uses", "@"), "an action needs a version"


def test_workflow_expressions_name_keys_of_the_matrix():
    job = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["quick"]
    used = set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", yaml.dump(job)))
    assert used == set(job["strategy"]["matrix"]) - {"exclude"}


def test_the_matrix_covers_the_supported_versions():
    job = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["quick"]
    versions = job["strategy"]["matrix"]["python"]
    project = pyproject()["project"]
    assert project["requires-python"] == f">={versions[0]}"
    prefix = "Programming Language :: Python :: "
    listed = [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix + "3.")]
    assert listed == versions


def test_files_that_workflows_run_exist():
    for path in WORKFLOWS:
        for command in re.findall(r"run: (\.\S+)", path.read_text(encoding="utf-8")):
            assert (ROOT / command).is_file(), command


@pytest.mark.parametrize("path", FORMS, ids=name_of)
def test_issue_forms_are_complete(path):
    form = read_yaml(path)
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in fields)


def test_hooks_run_what_make_check_runs():
    (repository,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = {hook["entry"].removesuffix(" --force-exclude") for hook in repository["hooks"]}
    assert entries == {"ruff check", "ruff format", "mypy"}


def test_tools_of_the_dev_extra_are_pinned():
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.partition("==")[0].lower() for line in constraints.splitlines() if "==" in line}
    project = pyproject()["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}
    assert names - {"heatproof"} <= pinned


def test_the_changelog_has_standard_sections_and_lists_each_rename_once():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (.*)$", unreleased, re.M)
    allowed = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Renamed"}
    assert headings and set(headings) <= allowed
    rows = re.findall(r"^\| (.*?) \| (`.*?) \| .* \|$", unreleased, re.M)
    assert len(rows) == len(set(rows))
