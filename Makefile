# Two commands matter: `make demo` and `make test`. Both make their own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint bench bench-retrieval bench-selection bench-training format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all]"
	touch $@

install: $(STAMP)  ## make .venv with everything in it

# Waiting threads sleep: on a busy machine those that spin make it ten times slower.
demo: $(STAMP)  ## the whole way on a CPU: retrieve, select, group, train, test, re-rank
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python data_scripts/demo.py

# One thread per process: tiny models run several times faster without a thread pool, and xdist uses the cores.
test: lint  ## lint, then every test, offline
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist loadfile tests

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: bench-retrieval bench-selection bench-training  ## every benchmark, each a ratio in one run; takes an hour

bench-retrieval: $(STAMP)  ## first stage against bm25s and PISA, 500,000 documents
	$(BIN)/python benchmarks/retrieval.py --pisa-python $(BIN)/python

bench-selection: $(STAMP)  ## passages a second against sentence-transformers; SELECTOR and COLLECTION to be given
	$(BIN)/python benchmarks/selection.py --selector $(SELECTOR) --collection $(COLLECTION)

bench-training: $(STAMP)  ## memory and time of a training step with the encoder in chunks
	$(BIN)/python benchmarks/training_memory.py

format: $(STAMP)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist *.egg-info
