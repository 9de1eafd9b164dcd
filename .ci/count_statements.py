"""Count the statements of each package, without docstrings: a measure of how much code there is.

python .ci/count_statements.py [directory]
"""

import ast
import sys
from collections import Counter
from pathlib import Path

BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def statements(path: Path) -> int:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    documented = [n for n in nodes if isinstance(n, BODIES) and ast.get_docstring(n, False)]
    return sum(isinstance(node, ast.stmt) for node in nodes) - len(documented)


def main(root: Path) -> None:
    counts: Counter[str] = Counter()
    paths = sorted(root.rglob("*.py"))
    for path in paths:
        counts[path.relative_to(root).parts[0]] += statements(path)
    for package, count in sorted(counts.items()):
        print(f"{count:7,}  {package}")
    print(f"{counts.total():7,}  in {len(paths)} files")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/heatproof"))
