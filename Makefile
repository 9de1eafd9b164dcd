# make quickstart   a first run on the embedded data and models, and its report
# make test         all checks and tests
# Each sets up what it needs in .venv, once.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test check clean

quickstart: .venv/installed
	$(BIN)/heatproof run quickstart

test: .venv/installed-dev check
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
