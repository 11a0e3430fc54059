# Needs python3 >= 3.11 with venv and pip, and nothing else. `make` lists the targets.
#
# No test needs a GPU, so the dev extra asks for a torch release that comes as a CPU build. Where the package index only
# has CUDA builds of it, point PIP_EXTRA_INDEX_URL at PyTorch's index of CPU wheels.

PYTHON ?= python3
BUDGET ?= 60s

FOLDERS := gpu_kernels harness invariants models_under_test fuzz ci cli
BIN := .venv/bin
SMALL_RELEASES := 0.9.2 0.11.2
RELEASES := 0.8.5 0.9.2 0.10.2 0.11.2 0.12.0 0.14.1 0.17.1 0.20.2 0.22.1 0.23.0 0.24.0 0.32.0
DEV := .venv/.dev-installed
ENGINES := .venv/.engines-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help fuzz kernels prove test test-engines quality bench lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

fuzz: $(DEV)  ## fuzz the reference manager for BUDGET (60s)
	$(BIN)/kvsan fuzz --target paged --budget $(BUDGET)

kernels: $(DEV)  ## compile every kernel for every GPU target, without a GPU
	$(BIN)/kvsan kernels compile

prove: $(DEV)  ## prove addresses, kernels and the block pool for all sizes
	$(BIN)/kvsan prove

test: $(ENGINES) lint kernels prove  ## what CI runs: lint, types, the compile gate, proofs, and every test that is neither slow nor needs a GPU
	$(BIN)/kvsan engines add $(SMALL_RELEASES:%=vllm==%)
	$(BIN)/pytest -n 2 -m "not slow and not gpu"

test-engines: $(ENGINES)  ## tests against real engines' releases, all of them
	$(BIN)/kvsan engines add $(RELEASES:%=vllm==%)
	$(BIN)/pytest -m "engines and not gpu"

quality: $(ENGINES)  ## the slow tests: time to bug, reproducer size
	$(BIN)/kvsan engines add $(RELEASES:%=vllm==%)
	$(BIN)/pytest -m "slow and not gpu"

bench: $(DEV)  ## measure throughput
	$(BIN)/python -m kvsan.ci.benchmark

# mypy does not follow the package-dir mapping of an editable install; a tree of links gives it the installed layout.
lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	mkdir -p build/typed/kvsan
	for folder in $(FOLDERS); do ln -sfn ../../../$$folder build/typed/kvsan/$$folder || exit 1; done
	MYPYPATH=build/typed $(BIN)/mypy $(FOLDERS:%=-p kvsan.%)

clean:  ## remove everything that was built or installed
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "KVSan needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-input -e '.[dev]'
	touch $@

$(ENGINES): $(DEV)
	$(BIN)/python -m pip install --quiet --no-input -e '.[dev,engines]'
	touch $@
