"""Commands of the pages for users are run, in the order of the page, on a small project."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import heatproof as hp
from heatproof.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOT_RUN = {  # what is in a command, and why it cannot be run here
    "hf:": "downloads a network",
    "--weights download": "downloads weights",
    "imagenet": "needs ImageNet",
    "published:": "needs the run of a whole study",
    "hesse2024/table6": "runs a whole study",
    "--cluster": "needs a cluster",
    "serve": "does not end; it has tests of its own",
    "--decide": "may need more images than the project has; it has tests of its own",
}
HERE = {  # what a page names, and what the project has
    "/data/train": "images",
    "runs/quickstart": "runs/mine",
    "--workers 8": "--workers 2",
    "--workers 4": "--workers 2",
}
QUICK = {"spec-in-an-editor", "shell-completion"}
PAGES = [*sorted((DOCS / "how-to").glob("*.md")), DOCS / "gallery.md", DOCS / "report.md"]
SPEC = """
models: [paperbirds/vgg]
data: {name: paperbirds, split: test, limit: 8}
methods: [ixg, gradcam, random]
protocols: [sds, {name: deletion, steps: 4}]
"""
CLASSES = ("ant", "bee", "cat")


def commands(page: Path) -> list[str]:
    """Return the commands of a page that can be run here."""
    blocks = re.findall(
        r"^( *)```(?:bash|sh)\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    lines = [line.strip() for _, text in blocks for line in text.splitlines()]
    found = [line.removeprefix("heatproof ") for line in lines if line.startswith("heatproof ")]
    return [line for line in found if not any(part in line for part in NOT_RUN)]


def first_code(page: str) -> str:
    text = (DOCS / f"how-to/{page}.md").read_text(encoding="utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with what the pages name: a network, a method, images, maps, specs, runs."""
    folder = tmp_path_factory.mktemp("project")
    net = first_code("own-model").replace("build():\n", "build():\n    torch.manual_seed(0)\n")
    for name in ("net.py", "candidate.py"):
        (folder / name).write_text(net, encoding="utf-8")
    (folder / "mine.py").write_text(first_code("own-method"), encoding="utf-8")
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (folder / "images" / name).mkdir(parents=True)
        (folder / "maps" / name).mkdir(parents=True)
        for k in range(8):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"images/{name}/{k}.png")
            np.save(folder / f"maps/{name}/{k}.npy", rng.normal(size=(32, 32)))
    shutil.copy(folder / "images/ant/0.png", folder / "photo.jpg")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    gate = (DOCS / "how-to/ci-gate.md").read_text(encoding="utf-8")
    (folder / "gate.yaml").write_text(gate.partition("```yaml\n")[2].partition("```")[0])
    (folder / "scores").mkdir()
    result = hp.run(folder / "spec.yaml", folder / "runs/mine")
    for name in ("before", "after"):
        shutil.copytree(folder / "runs/mine", folder / f"runs/{name}")
    assert set(result.scores["status"]) == {"ok"}
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[] if page.stem in QUICK else [pytest.mark.soak])
        for page in PAGES
        if commands(page)
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_a_page_run(page, project, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    shutil.copytree(ROOT / "examples/gallery", folder / "examples/gallery")
    monkeypatch.chdir(folder)
    if page.stem == "ci-gate":  # which compares with an earlier run of the same spec
        command(["run", "gate.yaml", "-o", "runs/released"])
    for line in commands(page):
        text = line
        for there, here in HERE.items():
            text = text.replace(there, here)
        words = shlex.split(text.partition(" > ")[0], comments=True)
        command(words)
        if "--submit" in words:
            shutil.copy(words[words.index("--submit") + 1], "scores")


def command(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, (words, result.output, result.exception)
