"""The example notebooks run from the first cell to the last."""

import ast
import linecache
import os
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


@pytest.fixture(scope="module")
def workers():
    """What stands for two worker processes: a cluster of this process, by its address."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        yield f"address={cluster.scheduler_address!r}"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("without_windows")
def test_a_notebook_runs(path, workers):
    """Cell by cell as a kernel does it, but in this process, which has imported everything."""
    names = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code":
            continue
        code = cell.source.replace("limit=24", "limit=4")  # as many images as the figures need
        code = code.replace('"limit": 80', '"limit": 8').replace("workers=2", workers)
        file = f"{path.stem}-{number}.py"
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        *statements, last = ast.parse(code).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            shown.append(value is None or DisplayFormatter().format(value)[0])
    assert shown
    assert all(shown)


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
