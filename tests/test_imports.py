"""A package imports only from packages below it in the dependency order."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "heatproof"
ORDER = [
    "text",
    "errors",
    "files",
    "platform",
    "userfile",
    "registry",
    "expressions",
    "tensor",
    "models",
    "data",
    "baselines",
    "methods",
    "protocols",
    "training",
    "scoring",
    "runs",
    "plan",
    "execute",
    "analysis",
    "figures",
    "report",
    "listing",
    "functional",
    "results",
    "evaluation",
    "metrics",
    "quantus",
    "api",
    "cli",
    "__main__",
]


def imports(path: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("heatproof."):
            packages.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "heatproof":
            packages |= {a.name for a in node.names if a.name in ORDER}
        elif isinstance(node, ast.Import):
            packages |= {
                a.name.split(".")[1] for a in node.names if a.name.startswith("heatproof.")
            }
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return packages


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_follow_the_order(path):
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if package == "__init__":
        return
    for other in imports(path):
        assert ORDER.index(other) <= ORDER.index(package), f"{package} imports {other}"


def test_the_order_lists_every_package():
    packages = {
        p.name.removesuffix(".py")
        for p in SOURCE.iterdir()
        if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert packages - {"__init__"} == set(ORDER)
