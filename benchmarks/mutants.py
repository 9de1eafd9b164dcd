"""Change the code in one place, and see whether a test fails.

    make soak
    python benchmarks/mutants.py --mutants 150 --limit 300

Every call draws other places, unless ``--seed`` repeats an earlier one. A mutant has one operator,
number, argument or function replaced by another. The tests that are nearest to its file run on a
copy of the package, one file of tests after the other, until one fails: it is killed. One that
survives is printed with its line. It shows a missing test, or it is equivalent: no input can tell
it from the original. Those that were judged so are in ``mutants-equivalent.txt``, with the reason.

cosmic-ray runs one command of tests for all mutants of a session, and mutmut rewrites all functions
at once, whose source is part of keys here; so neither is used.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "src/heatproof"
EQUIVALENT = Path(__file__).with_name("mutants-equivalent.txt")
OUTCOMES = ("killed", "survived", "equivalent", "undecided")
GENERAL = ("execute", "results", "cli")  # folders of tests that use all packages
TEST_LIMIT = 120  # seconds of one test; a loop without an end is a test that fails
OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
FUNCTIONS = {
    "all": "any",
    "any": "all",
    "min": "max",
    "max": "min",
    "sorted": "list",
    "argmin": "argmax",
    "argmax": "argmin",
    "mean": "sum",
    "floor": "ceil",
    "ceil": "floor",
}


@dataclass(frozen=True)
class Mutant:
    """One place of the code, and what stands there instead."""

    file: str  # in the repository
    line: int
    start: int  # of the text that is replaced, in characters from the beginning of the file
    end: int
    before: str
    after: str

    @property
    def package(self) -> str:
        parts = Path(self.file).relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else "(top)"

    @property
    def change(self) -> str:
        """What is changed, without the line, which moves."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}: {before}  ->  {after}"

    def apply(self, source: str) -> str:
        return source[: self.start] + self.after + source[self.end :]


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield all mutants of a file that differ in what is computed."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in _computing(ast.parse(source)):
        start = at(node.lineno, node.col_offset)
        end = at(node.end_lineno or 0, node.end_col_offset or 0)
        for changed in _changes(node):
            after = f"({ast.unparse(changed)})" if _needs_brackets(node) else ast.unparse(changed)
            yield Mutant(file, node.lineno, start, end, source[start:end], after)


def _computing(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions that are neither types nor texts of messages."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [child for child in children if _counts(child)]


def _counts(node: object) -> bool:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return False
    return isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr | ast.Raise)


def _needs_brackets(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what may stand in place of an expression."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            if type(operator) in OPERATORS:
                changed = copy.deepcopy(node)
                changed.ops[i] = OPERATORS[type(operator)]()
                yield changed
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        is_text = any(isinstance(part, ast.JoinedStr) for part in ast.walk(node))
        if not is_text:
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(node.op)]()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        yield ast.Constant(not value if isinstance(value, bool) else _other_number(value))
    elif isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                changed = copy.deepcopy(node)
                del changed.keywords[i]
                yield changed
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        name = function.id if isinstance(function, ast.Name) else name
        if name in FUNCTIONS:
            changed = copy.deepcopy(node)
            if name == "sorted":
                changed.keywords = []  # a list has no order to choose
            if isinstance(changed.func, ast.Attribute):
                changed.func.attr = FUNCTIONS[name]
            else:
                changed.func = ast.Name(FUNCTIONS[name])
            yield changed


def _other_number(value: float) -> float:
    return value + 1 if isinstance(value, int) else value * 1.5 or 0.5


def draw(count: int, rng: random.Random, packages: Sequence[str]) -> list[Mutant]:
    """Draw mutants of all packages, of each in proportion to its places, and at least one."""
    places: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for mutant in mutants_of(file, path.read_text(encoding="utf-8")):
            places[mutant.package].append(mutant)
    chosen = {name: found for name, found in places.items() if not packages or name in packages}
    total = sum(map(len, chosen.values()))
    drawn: list[Mutant] = []
    for found in chosen.values():
        rng.shuffle(found)
        drawn += found[: max(1, round(count * len(found) / total))]
    rng.shuffle(drawn)
    return drawn[:count]


def tests_of(mutant: Mutant) -> list[str]:
    """Return files of tests, those that are likely to notice first."""
    module = Path(mutant.file).relative_to("src").with_suffix("")
    package, name = ".".join(module.parts[:-1]), re.escape(module.stem)
    imports = re.compile(rf"{re.escape(package)}(\.{name}\b| import [^\n]*\b{name}\b)")
    own, naming, near, general = [], [], [], []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        if path.parent.name in ("device", "browser", "real", "fuzz"):
            continue  # they need another device, a browser or data, or take long
        if path.stem.removeprefix("test_") in (module.stem, f"{module.stem}s"):
            own.append(file)
        elif imports.search(path.read_text(encoding="utf-8")):
            naming.append(file)
        elif path.parent.name == mutant.package:
            near.append(file)
        elif path.parent.name in GENERAL:
            general.append(file)
    own.sort(key=lambda file: mutant.package not in file)
    naming.sort(key=lambda file: f"/{mutant.package}/" not in file)
    return [*own, *naming, *near, *general]


class Bench:
    """A copy of the package, and processes that test it.

    Args:
        folder: An empty directory.
    """

    def __init__(self, folder: Path):
        self._source = folder / "src"
        self._folder = folder
        shutil.copytree(ROOT / "src", self._source)

    def outcome(self, mutant: Mutant, limit: float) -> str:
        """Run tests on a mutant until one fails, or the time is over."""
        if mutant.change in _known_equivalent():
            return "equivalent"
        path = self._folder / mutant.file
        source = path.read_text(encoding="utf-8")
        changed = mutant.apply(source)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(changed, encoding="utf-8")
        try:
            return self.tested(tests_of(mutant), limit)
        finally:
            path.write_text(source, encoding="utf-8")

    def tested(self, files: Sequence[str], limit: float) -> str:
        """Run files of tests in a new process each."""
        deadline = time.monotonic() + limit
        for file in files:
            code = self._run(file, deadline - time.monotonic())
            if code is None:
                return "undecided"
            if code not in (0, 5):  # 5: no test was chosen
                return "killed"
        return "survived"

    def _run(self, file: str, limit: float) -> int | None:
        """Return the exit code of a file of tests; None if the time is over."""
        if limit <= 0:
            return None
        child = os.fork()
        if child == 0:
            os.setsid()
            self._test(file)
        ends = time.monotonic() + limit
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _test(self, file: str) -> None:
        """Run a file of tests in this process, which ends."""
        import pytest

        log = os.open(self._folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(ROOT)
        os.environ |= {"PYTHONPATH": str(self._source), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(self._source))
        sys.dont_write_bytecode = True
        options = [
            "-x",
            "-q",
            "--timeout",
            str(TEST_LIMIT),
            "-p",
            "no:cacheprovider",
            "--no-header",
        ]
        code: int = 1
        try:
            code = int(pytest.main([*options, "--basetemp", str(self._folder / "tests"), file]))
        finally:
            os._exit(code)


def _known_equivalent() -> set[str]:
    """Return the changes that no input can tell from the original."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def main() -> None:
    """Draw mutants, test them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="by default all")
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None, help="by default another every time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one mutant")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401  what every test needs is loaded once

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for mutant in draw(options.mutants, random.Random(seed), options.packages):
            began = time.monotonic()
            outcome = bench.outcome(mutant, options.limit)
            counts[mutant.package][outcome] += 1
            spent = f"{outcome:10} {time.monotonic() - began:5.0f} s"
            print(f"{spent}  line {mutant.line} of {mutant.change}", flush=True)
    print("".join(f"{name:>12}" for name in ("package", *OUTCOMES)))
    totals = sum(counts.values(), Counter())
    for name, found in [*sorted(counts.items()), ("all", totals)]:
        print("".join(f"{cell:>12}" for cell in (name, *(found[o] for o in OUTCOMES))))
    decided = totals["killed"] + totals["survived"]
    if decided:
        print(f"killed: {totals['killed']} of {decided}, {totals['killed'] / decided:.0%}")


if __name__ == "__main__":
    main()
