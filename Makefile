# Each target does its own set-up. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.PHONY: demo test test-fast test-stress release-check test-slice test-again lint docs wheelhouse clean

demo: $(READY)
	$(BIN)/hydragnn-hpo run workflows/quickstart.toml --run runs/quickstart

# Without this, each of the hundreds of processes of the tests compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
# Four workers, as slow tests wait more than they compute; files in the order of tests/conftest.py.
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder
# Slow tests that failed (exit code 1) have a second try.
SECOND_TRY := || { [ $$? = 1 ] && $(MAKE) --no-print-directory test-again; }
# What tests take at most, see tests/README.md; ruff and mypy come on top.
CPU_MINUTES := 20
SLICES := 4
SLICE ?= $(shell $(PYTHON) -c "print(int('$$(git rev-parse HEAD)', 16) % $(SLICES))")

test: lint
	$(PYTEST) $(WORKERS) -m "not stress and not release" --cpu-budget $(CPU_MINUTES) $(SECOND_TRY)

# The quick tests wait little: three workers keep two cores busy.
test-fast: $(READY)
	$(PYTEST) -n 3 --dist loadfile -m "not slow and not gpu"

# What is repeated over every conv, backend, command and surrounding; kills in numbers; Slurm and Ray.
test-stress: $(READY)
	$(PYTEST) $(WORKERS) -m stress $(SECOND_TRY)

# What users get: the wheel, the site, notebooks, tutorials and guides.
release-check: $(READY)
	$(PYTEST) $(WORKERS) -m release $(SECOND_TRY)

# One of the slices of test-stress and release-check, chosen by the commit; SLICE=k chooses by hand.
test-slice: $(READY)
	@echo "==== Slice $(SLICE) of $(SLICES) (from 0) of test-stress and release-check."
	$(PYTEST) $(WORKERS) -m "stress or release" --slice $(SLICE)/$(SLICES) $(SECOND_TRY)

# Slow tests run real processes against real clocks, four workers on what cores there are: those that
# failed are run once more, alone. Those that pass then are listed with their reasons, and more than two
# fail the run (tests/second_try.py). A fast test that failed has failed.
test-again:
	@echo "==== Slow tests that failed run once more, alone: mend those that pass now, too."
	@! $(PYTEST) -q -m "not slow" --last-failed --last-failed-no-failures none --collect-only | grep ::
	$(PYTEST) -v -m slow --last-failed --last-failed-no-failures none --second-try

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, with the pages of all settings and commands, into site/: open site/index.html. Warnings are errors.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# For machines without a network, see launch/offline.md. EXTRAS='[campaign,chem]' adds an extra's wheels.
CONSTRAINTS ?= constraints.txt
EXTRAS ?= [campaign]
WHEELS ?= wheelhouse
PIP ?= $(PYTHON) -m pip

wheelhouse:
	mkdir -p $(WHEELS)
	$(PIP) wheel --quiet --find-links $(WHEELS) -c $(CONSTRAINTS) -w $(WHEELS) '.$(EXTRAS)'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hydragnn-hpo needs Python >= 3.11, '$(PYTHON)' is not: name one, e.g. make PYTHON=python3.12." >&2; \
	  exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[campaign,chem,dev,docs,fast,lmdb,mpi,parquet,pyg,ray,xtb]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist site
	find hydragnn_hpo tests -name __pycache__ -type d -prune -exec rm -rf {} +
