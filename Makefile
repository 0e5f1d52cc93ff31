# Every target sets up what it needs; the first one takes a few minutes, mostly downloads.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PORT ?= 5000

.DEFAULT_GOAL := help
.PHONY: help study test test-all lint docs ui bench setup clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

study: $(READY) ## Run a real study in a few minutes: tune_configs/quick.yaml
	$(BIN)/flstudy tune tune_configs/quick.yaml

# A hundred processes of the tests import the package: its bytecode is kept, also where the environment says otherwise.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests -n 2 --dist loadfile

test: lint ## Lint, type-check and run the tests that are not slow, in five minutes
	$(PYTEST) -m "not slow" --durations 20

test-all: lint ## Lint, type-check and run all tests
	$(PYTEST) --durations 20

lint: $(READY) ## Ruff and mypy, the same as pre-commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

docs: $(READY) ## Build the docs into build/docs; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

ui: $(READY) ## Browse studies in the MLflow UI on 127.0.0.1
	$(BIN)/flstudy ui --port $(PORT)

bench: $(READY) ## Time the executors beside a plain PyTorch loop
	$(BIN)/flstudy bench

setup: $(READY) ## Only install

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[study,dev]'
	$(BIN)/python -m pip check
	touch $(READY)

clean: ## Remove the environment and caches, keep studies
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info
