# Everything a user or contributor does. Run `make` for the list.
#
#   PYTHON           the interpreter that makes .venv (3.11 or newer)
#   TORCH_INDEX_URL  package index asked for torch before the usual one. On Linux, PyPI's torch brings gigabytes of
#                    CUDA, so machines without an NVIDIA driver ask for PyTorch's CPU builds; if that index cannot
#                    be reached, the usual one serves. Empty: never ask.
#   PYTEST_ARGS      passed to pytest: make unit PYTEST_ARGS='-k prefix'

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_OUT ?= build/benchmarks/engine.json
ifeq ($(shell uname -s)$(wildcard /dev/nvidiactl),Linux)
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
endif

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CPP_FILES := $(wildcard engine/native/source/*)
INSTALLED := .venv/.installed
# Of its own environment, since it pins older versions of what we use.
CHECKOV := checkov==3.3.30
CHECKOV_HOME := build/checkov

.PHONY: help setup serve test unit integration soak cluster terraform-test check lint types layers format docs bench \
  fuzz fuzztiers

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Make .venv with the tested versions (once; again when they change)

# A stamp newer than both files means that .venv holds what they ask for.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Headwater needs Python 3.11 or newer, and '$(PYTHON)' is not it:" \
	    "install one and run: make setup PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@if [ -n '$(TORCH_INDEX_URL)' ]; then \
	  $(PIP) install --constraint constraints.txt --no-deps --extra-index-url '$(TORCH_INDEX_URL)' \
	    --retries 1 --timeout 15 torch; fi
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: setup ## Fetch the quickstart model and answer on 127.0.0.1 until Ctrl-C
	@exec $(BIN)/headwater serve configs/quickstart.yaml

test: unit integration cluster ## Run all tests

unit: setup ## Run the tests that need neither processes nor network
	$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

integration: setup ## Run the tests with processes, sockets and the real model
	$(BIN)/python -m pytest tests/integration -m "not soak" $(PYTEST_ARGS)

soak: setup ## Run the long forms of tests that CI runs in short
	$(BIN)/python -m pytest tests/integration -m soak $(PYTEST_ARGS)

cluster: setup ## Run the tests on a real Ray cluster
	$(BIN)/python -m pytest tests/cluster -m "not terraform" $(PYTEST_ARGS)

terraform-test: setup $(CHECKOV_HOME)/.installed ## Prove the Terraform code and the scaling loop on a mock AWS
	# The mock's state is its process's: each part has its own.
	$(BIN)/python -m pytest tests/terraform -m terraform $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/cluster -m terraform $(PYTEST_ARGS)

# Its tests are skipped, with the reason, where it can't be installed.
$(CHECKOV_HOME)/.installed: Makefile
	@$(PYTHON) -m venv $(CHECKOV_HOME)
	@if $(CHECKOV_HOME)/bin/python -m pip --disable-pip-version-check install --quiet --retries 1 --timeout 15 \
	  '$(CHECKOV)'; \
	  then touch $@; else echo "Going on without $(CHECKOV), which could not be installed." >&2; fi

check: lint types layers unit ## Check format, lint, types, layers and unit tests

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP_FILES)

docs: setup ## Write the pages of docs/ that come from the code and the results
	$(BIN)/python -m deployments.config_reference > docs/configuration.md
	$(BIN)/python -m benchmarks.capacity > docs/capacity.md
	$(BIN)/python -m benchmarks.cold_start_budget > docs/cold_start_budget.md

bench: setup ## Measure the engine without HTTP
	@mkdir -p $(dir $(BENCH_OUT))
	$(BIN)/python -m benchmarks.engine --out $(BENCH_OUT)

fuzz: setup ## Send the gateway 20,000 requests of all kinds
	$(BIN)/python -m tests.fuzz --requests 20000

fuzztiers: setup ## Damage and kill KV tiers in 10,000 cycles, comparing every token: 15 minutes
	$(BIN)/python -m benchmarks.tier_fuzz --cycles 10000 --out build/benchmarks/tier_fuzz.json
