# Each target makes its own .venv and installs what it needs, once per change of pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin

# Tests start hundreds of processes: they keep the bytecode of what they import, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

# Options of a pytest run that divides tests by their files (tests/conftest.py).
BOTH_CORES = -n 2 --dist loadgroup --no-loadscope-reorder

# Options of a pytest run whose coverage is reported together with that of the other run.
COVERAGE = --cov --cov-report= --cov-fail-under=0

.PHONY: test lint types docs warm tests test-browser tests-uncompiled tests-bounds tests-oldest test-arm test-torch test-umap test-wheel wheel coverage fuzz bench clean

# What takes one core goes first, side by side: tests take two.
test:
	$(MAKE) -j 2 --output-sync=target test-wheel warm types docs lint
	$(MAKE) coverage tests-bounds

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev
	$(BIN)/mypy

# The documentation, into site/. A broken link, a missing docstring and a request to another host are errors.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Most kernels that tests use. Coverage would trace the compiler: where tests compile, it takes half as long again.
warm: .venv/dev
	$(BIN)/cbeindex warm

tests: .venv/dev
	COVERAGE_FILE=.coverage.compiled $(BIN)/python -m pytest -q $(BOTH_CORES) --durations=15 $(COVERAGE)

# Pages in a real browser. These tests are part of `make tests` too, where they are skipped without Chromium.
test-browser: .venv/dev .venv/docs
	command -v chromium || apt-get install --yes chromium
	$(BIN)/python -m pytest -q tests/test_browser.py

# Files with tests of kernels: reading all others would take longer than many of these tests.
KERNEL_TESTS = $(shell grep -l pytest.mark.kernels tests/test_*.py)

# Kernels as plain Python, which checks every index and lets coverage see the lines.
tests-uncompiled: .venv/dev
	NUMBA_DISABLE_JIT=1 COVERAGE_FILE=.coverage.uncompiled $(BIN)/python -m pytest -q $(BOTH_CORES) -m kernels $(COVERAGE) $(KERNEL_TESTS)

# The compiled kernels, which index arrays of other types and sizes than plain Python does. They do so however much they
# are optimised. What is not optimised at all cannot be kept on disk, and each process would compile everything.
tests-bounds: .venv/dev
	NUMBA_BOUNDSCHECK=1 NUMBA_OPT=1 $(BIN)/python -m pytest -q $(BOTH_CORES) -m kernels $(KERNEL_TESTS)

# Tensors of torch, whose wheel is large, beside the other libraries whose arrays stay on their device.
test-torch: .venv/dev .venv/torch
	$(BIN)/python -m pytest -q tests/test_torch.py tests/test_devices.py

# UMAP, which compiles its own kernels for half a minute when it is imported and used.
test-umap: .venv/dev .venv/umap
	$(BIN)/python -m pytest -q tests/test_umap.py

# The tests with the oldest releases of numpy, scipy and numba that pyproject.toml allows; TESTS=... some tests.
tests-oldest: .venv-oldest/dev
	NUMBA_CACHE_DIR=$(CURDIR)/.venv-oldest/kernels .venv-oldest/bin/python -m pytest -q $(BOTH_CORES) $(TESTS)

.venv-oldest/dev: pyproject.toml tests/oldest.txt
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	HATCH_BUILD_NO_HOOKS=true .venv-oldest/bin/python -m pip install --quiet --constraint tests/oldest.txt --editable ".[dev]"
	touch $@

# The wheel for any system, in an environment that has nothing else: imported with warnings as errors, then the quickstart.
# Then an installation from source, with the kernels of the README's index, which compiles nothing on first use.
test-wheel:
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	CBEINDEX_LEVELS=none .venv-wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir .venv-wheel/dist .
	.venv-wheel/bin/python -m pip install --quiet .venv-wheel/dist/*.whl
	cp examples/quickstart.py .venv-wheel/
	cd .venv-wheel && bin/python -W error -c "import cbeindex, cbeindex.interop" && bin/python -W error quickstart.py
	cd .venv-wheel && bin/cbeindex --version
	CBEINDEX_KINDS=default CBEINDEX_LEVELS=best \
		.venv-wheel/bin/python -m pip install --quiet --force-reinstall --no-deps .
	cp tests/compiled_wheel.py .venv-wheel/
	cd .venv-wheel && bin/python -W error compiled_wheel.py

# A wheel with compiled kernels for all levels of processors whose code runs here, into dist/.
wheel:
	$(PYTHON) -m venv .venv-wheel
	CBEINDEX_LEVELS=all .venv-wheel/bin/python -m pip wheel --no-deps --wheel-dir dist .

# The kernel tests on 64-bit Arm. ARM_PYTHON=... runs another Python for Arm than the emulated one; TESTS=... some tests.
ARM_PYTHON ?= .venv-arm/python
test-arm: $(filter .venv-arm/python,$(ARM_PYTHON))
	PYTHONPATH=. $(ARM_PYTHON) -m pytest -q -p no:cacheprovider -m kernels $(TESTS)

.venv-arm/python: tests/arm_python.sh
	PYTHON=$(PYTHON) tests/arm_python.sh .venv-arm

coverage: tests tests-uncompiled
	$(BIN)/coverage combine --quiet .coverage.compiled .coverage.uncompiled
	$(BIN)/coverage report

# KIND=files (or faults, processes, properties) runs one kind; SEED=... repeats a run, KEEP=folder keeps files that show a finding.
SECONDS ?= 60
fuzz: .venv/dev
	$(BIN)/python -m fuzz $(KIND) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP))

bench: .venv/bench
	$(BIN)/python -m benchmarks recall

.venv/%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

# One installation into an environment at a time.
.venv/docs .venv/torch .venv/umap .venv/bench: | .venv/dev

clean:
	rm -rf .venv .venv-arm .venv-oldest .venv-wheel .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis bench-report site
