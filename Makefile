# The only way in: a virtual environment made with pip from the constraints file.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: help quickstart test check lint docs setup clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install everything that the other targets need

# torch goes first and alone: asked for together with others, pip may pick a build with CUDA
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,mlflow,figures]" --group dev
	@touch $@

quickstart: $(STAMP) ## run the quickstart study on two CPU cores and print its report
	$(BIN)/paribus run ablations/studies/quickstart.yaml

test: $(STAMP) ## the ordinary test suite
	$(BIN)/python -m pytest

lint: $(STAMP) ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## everything that a change must pass

clean: ## remove what the targets made, but not your runs
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
