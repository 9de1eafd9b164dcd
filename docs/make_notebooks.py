"""Run the example notebooks and keep their outputs: ``python docs/make_notebooks.py``."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "examples/notebooks"


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        language = dict(book.metadata.language_info)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(book, timeout=600, resources={"metadata": {"path": folder}}).execute()
        book.metadata.language_info = language  # without the version of this Python
        for cell in book.cells:
            cell.metadata.pop("execution", None)  # times
        nbformat.write(book, path)
        print(path.name)


if __name__ == "__main__":
    main()
