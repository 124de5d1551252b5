# Every target makes what it needs; a fresh machine has Python 3.11, pip and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
NICE_LOGS := TF_CPP_MIN_LOG_LEVEL=2

.PHONY: help demo test test-all check format notebooks clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed ## the whole road on this machine's own documentation, 5 minutes, no network
	$(BIN)/tfde demo

check: $(VENV)/.installed ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.installed ## tests without torch or a browser
	$(NICE_LOGS) $(BIN)/python -m pytest -n 2 -m "not slow and not peers"

format: $(VENV)/.installed ## let ruff rewrite the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove environments and caches
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache
