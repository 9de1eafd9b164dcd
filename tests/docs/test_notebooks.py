"""The example notebooks run from the first cell to the last."""

import ast
import linecache
import os
import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture
def without_windows(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    monkeypatch.chdir(tmp_path)


def test_there_are_five_notebooks():
    assert len(NOTEBOOKS) == 5


NUMBER = re.compile(r"-?\d+\.\d+")


def words(output):
    """Return what a reader sees: of a table that of a page, which has all its columns."""
    return re.sub(
        r"(?s)<style.*?</style>|<[^>]*>", " ", output.get("text/html", output["text/plain"])
    )


def assert_as_stored(shown, cell):
    """Compare what a cell shows with its output in the notebook, but for rounding."""
    text = words(shown)
    if "Figure" in text or "0x" in text:
        return
    stored = words(cell.outputs[-1].data)
    assert NUMBER.sub("#", text).split() == NUMBER.sub("#", stored).split()
    numbers, expected = ([float(n) for n in NUMBER.findall(t)] for t in (text, stored))
    assert numbers == pytest.approx(expected, abs=5e-3)


@pytest.fixture(scope="module")
def workers():
    """What stands for two worker processes: a cluster of this process, by its address."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        yield f"address={cluster.scheduler_address!r}"


def run(path, **replaced):
    """Run a notebook cell by cell as a kernel does it, but in this process.

    Args:
        path: The notebook.
        replaced: What to write in place of what, in the code.

    Returns:
        Its cells that show something, with what they show.
    """
    names = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code":
            continue
        code = cell.source
        for text, other in replaced.items():
            code = code.replace(text, other)
        file = f"{path.stem}-{number}.py"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        *statements, last = ast.parse(code).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            if value is not None:
                shown.append((cell, DisplayFormatter().format(value)[0]))
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
@pytest.mark.usefixtures("without_windows")
def test_a_notebook_runs(path, workers):
    few = {"limit=24": "limit=4", '"limit": 80': '"limit": 8'}  # as many as the figures need
    shown = run(path, **few, **{"workers=2": workers})
    assert shown and all(output for _, output in shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.soak] if n else [])
        for n, path in enumerate(NOTEBOOKS[:-1])
    ],
)
@pytest.mark.usefixtures("without_windows")
def test_a_notebook_shows_what_it_has_stored(path):
    shown = run(path)
    assert shown
    for cell, output in shown:
        assert_as_stored(output, cell)


@pytest.mark.soak
# nbclient starts its own event loop and leaves sockets of the kernel to the garbage collector.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.usefixtures("without_windows")
def test_the_notebook_that_starts_processes_runs_in_a_kernel(tmp_path):
    book = nbformat.read(NOTEBOOKS[-1], as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [cell for cell in book.cells if cell.cell_type == "code" and cell.outputs]
    assert shown
    assert not any(output.output_type == "error" for cell in shown for output in cell.outputs)
