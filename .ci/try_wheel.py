"""Install the wheel into an empty environment and run the tutorial there, outside of the clone.

    python .ci/try_wheel.py dist [--environment DIRECTORY]

The environment is temporary unless it is named. Everything is read from the wheel: the code of the
tutorial runs in an empty directory, with Python's isolated mode.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--environment", type=Path)
    options = parser.parse_args()
    (wheel,) = options.dist.resolve().glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        environment = options.environment or Path(folder) / "environment"
        work = Path(folder) / "work"
        work.mkdir()
        try_wheel(wheel, environment.absolute(), work)


def try_wheel(wheel: Path, environment: Path, work: Path) -> None:
    """Install a wheel and use it.

    Args:
        wheel: The file.
        environment: The directory of the virtual environment, which is made if it is missing.
        work: An empty directory to work in.
    """
    if not (environment / "pyvenv.cfg").is_file():
        venv.create(environment, with_pip=True)
    bin_folder = environment / ("Scripts" if sys.platform == "win32" else "bin")
    python = bin_folder / "python"
    constraints = ROOT / "constraints.txt"
    install = [python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel]
    run([python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel], work)
    run(install, work)  # this very file, also where one of the same version was installed
    heatproof = bin_folder / "heatproof"
    version = run([heatproof, "--version"], work).split()[-1]
    assert version == wheel.name.split("-")[1], (version, wheel.name)
    assert run([python, "-I", "-m", "heatproof", "--version"], work).split()[-1] == version
    (work / "tutorial.py").write_text("\n".join(blocks("python")), encoding="utf-8")
    print(run([python, "-I", "tutorial.py"], work))
    assert (work / "my-report/index.html").is_file()
    (spec,) = blocks("yaml")
    (work / "spec.yaml").write_text(spec, encoding="utf-8")
    for line in "".join(blocks("bash")).splitlines():
        print(run([bin_folder / line.split()[0], *line.split()[1:]], work))
    assert (work / "runs/tutorial/report/index.html").is_file()
    run([heatproof, "schema", "-o", "heatproof.schema.json"], work)
    run([heatproof, "validate", "hesse2024/table6"], work)
    print(f"heatproof {version} works without the clone")


def run(command: list[object], folder: Path) -> str:
    """Run a command and return what it prints; raises if it fails."""
    print("$", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"{process.stdout}\nthe last command failed")
    return process.stdout


if __name__ == "__main__":
    main()
