# make quickstart   a first run on the embedded data and models, and its report
# make test         all checks and tests
# make coverage     the tests again, with the line coverage
# make docs         the documentation site, site/index.html
# make gallery      the reports of docs/gallery.md, once: docs/gallery/*/index.html
# make dist         wheel and source archive in dist/, tried in an empty environment
# make test-isa     the numeric tests as on processors with AVX2 at most, and with SSE4.1 at most
# make test-device  the tests of other devices on a pretend accelerator, which is compiled first, or on a real one:
#                   HEATPROOF_DEVICE=cuda make test-device
# make methods      docs/methods.md: every method, what it was compared with, and how far it is off
# make models       docs/models.md: the networks of the papers
# make which-methods  docs/which-methods.md: which methods there are for which networks
# make notebooks    the example notebooks, with the outputs of this version
# make engines      a small run on two Dask workers, compared with a local one bit for bit
# make bench        speed beside other libraries and bare passes: docs/benchmarks.md (about 20 minutes)
# make bench-check  the quick form (7 minutes); fails if a committed ratio is more than 15 % worse
# make soak         the coverage of every interval and false statements on simulated data, 105,000 random and hostile
#                   inputs, 2,000 runs of a stranger, 50 kills of runs that are continued, whether tests notice 20
#                   changes of the code, and the longest tests (some hours)
# make audit        sbom.json, a list of what is installed, and the advisories known about it
# make weights      the fine-tuned weights that ship, anew: about half an hour on two cores
# make protocols    docs/protocols: the pictures and the generated tables
# make reference    docs/reference: commands, spec, methods, protocols and others, from the code
# make truth        docs/img/known-truth-*.svg: soundness and completeness where the truth is known
# Each sets up what it needs in .venv, once.

PYTHON ?= python3
BIN := .venv/bin

# Tests whose numbers depend on the kernels of the processor, without those of names, errors and files
NAMES := $(addprefix methods/test_,adapters any_network bad_input expressions notes presets saved_maps) \
  $(addprefix models/test_,families hashes hostile_weights outputs wrapping zoo)
NUMERIC := tests/golden tests/methods tests/models tests/protocols tests/tensor \
  $(NAMES:%=--ignore=tests/%.py)
# Kinds of input that benchmarks/fuzz.py makes up in milliseconds; a run that is used takes half a second
INPUTS := specs settings expressions labels weights stores images
# Reports of docs/gallery.md
REPORTS := $(patsubst examples/%.yaml,docs/%/index.html,$(wildcard examples/gallery/*.yaml))
# Bytecode is kept, also where the environment says otherwise: tests start many processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: quickstart test coverage docs gallery dist test-isa test-device engines bench bench-check soak audit lint check methods \
  truth models notebooks protocols reference weights which-methods clean

quickstart: .venv/installed
	$(BIN)/heatproof run quickstart

# mypy, which has one thread, runs beside the tests
test: .venv/installed-dev lint
	@$(BIN)/mypy & types=$$!; $(PYTEST); tests=$$?; wait $$types && exit $$tests

coverage: .venv/installed-dev
	$(PYTEST) --cov=heatproof --cov-report=term

docs: .venv/installed-dev gallery
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo site/index.html

gallery: $(REPORTS)

docs/gallery/%/index.html: examples/gallery/%.yaml | .venv/installed
	$(BIN)/heatproof run $< -o runs/gallery/$*
	$(BIN)/heatproof report runs/gallery/$* -o docs/gallery/$*

dist: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build
	$(PYTHON) .ci/try_wheel.py dist

test-isa: .venv/installed-dev
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= \
	  $(PYTEST) $(NUMERIC)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= \
	  $(PYTEST) $(NUMERIC)

test-device: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/device

engines: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines.py --check

bench: .venv/installed-dev
	$(BIN)/python benchmarks/bench.py --quick
	$(BIN)/python benchmarks/bench.py

bench-check: .venv/installed-dev
	$(BIN)/python benchmarks/bench.py --quick --check

soak: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/interval_coverage.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/statements.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/race.py errors --worlds 200
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py --cases 15000 $(INPUTS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py --cases 2000 runs
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/kills.py --kills 50
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py --mutants 20
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --soak -m soak

audit: .venv/installed .audit/installed
	.audit/bin/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o sbom.json $(BIN)/python
	.audit/bin/python .ci/audit.py .audit/bin/pip-audit $(BIN)/python

# in its own environment, so that its packages are not part of what is audited
.audit/installed:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check \
	  'pip-audit>=2.9' 'cyclonedx-bom>=7'
	touch $@

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: lint
	$(BIN)/mypy

methods: .venv/installed-dev
	$(BIN)/python -m pytest tests/golden tests/methods --deviations .deviations.json
	$(BIN)/python docs/make_methods.py .deviations.json docs/methods.md
	rm .deviations.json
	$(BIN)/python docs/make_gallery.py docs

truth: .venv/installed-dev
	$(BIN)/heatproof simulate -o docs/img
	rm docs/img/known-truth.csv

protocols: .venv/installed-dev
	$(BIN)/python docs/make_protocol_pictures.py docs

reference: .venv/installed-dev
	$(BIN)/python docs/make_reference.py docs

notebooks: .venv/installed-dev
	$(BIN)/python docs/make_notebooks.py

which-methods: .venv/installed-dev
	$(BIN)/python docs/make_which_methods.py docs/which-methods.md

models: .venv/installed
	$(BIN)/python docs/make_models.py docs/models.md

weights: .venv/installed
	$(BIN)/python -m heatproof.training.embedded

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf docs/gallery .venv .audit sbom.json runs site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
