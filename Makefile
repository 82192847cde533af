# Each target makes its own .venv and installs what it needs, once per change of pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint types tests tests-uncompiled fuzz bench clean

test: lint types tests tests-uncompiled

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev
	$(BIN)/mypy

tests: .venv/dev
	$(BIN)/python -m pytest -q -n 2

tests-uncompiled: .venv/dev
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -n 2

# KIND=files (or faults, processes) runs one kind; SEED=... repeats a run, KEEP=folder keeps files that show a finding.
SECONDS ?= 60
fuzz: .venv/dev
	$(BIN)/python -m fuzz $(KIND) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP))

bench: .venv/bench
	$(BIN)/python -m benchmarks recall

.venv/%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .numba_cache .pytest_cache .ruff_cache .hypothesis bench-report
