# Two commands matter: `make demo` and `make test`. Both make their own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread per process: tiny models run several times faster without a thread pool, and xdist uses the cores.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest
# Waiting threads sleep: on a busy machine those that spin make it ten times slower.
QUIET_THREADS := OMP_WAIT_POLICY=PASSIVE

# `make fuzz SEED=1` repeats a search; COBERT_FUZZ_EXAMPLES says how many examples a test gets.
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
# What the benchmarks measure unless told otherwise: sizes for minutes and 8 GB. Those of EXPERIMENTS.md are 500,000
# documents (an hour), 64 pairs (20 GB), 4 queries of 50 candidates. An empty SELECTOR is the demo's all-MiniLM-L6-v2.
COLLECTION ?= demo
SELECTOR ?=
QUERIES ?= 2
CANDIDATES ?= 10
DOCUMENTS ?= 50000
PAIRS ?= 16
CASES ?= 10000
KILLS ?= 50
CALLS ?= 10000
# The version of torch for `make minimum-versions`: its lowest has no CPU build everywhere.
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
# What these versions could break: the model, its checkpoints, rows, ranking, training, measures.
MINIMUM_TESTS ?= tests/test_configuration.py tests/test_modeling.py tests/test_initialization.py tests/test_selection.py \
	tests/test_passages.py tests/test_reranking.py tests/data/test_rows.py tests/data/test_trec.py \
	tests/evaluation/test_measures.py tests/training/test_training.py tests/training/test_card.py

.DEFAULT_GOAL := help
.PHONY: help install demo test fuzz fuzz-files fuzz-options wheel-test lint format bench bench-retrieval bench-selection bench-training clean invariants fuzz-hostile audit licences minimum-versions kill-anywhere processes help-texts

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 17

$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all]"
	touch $@

install: $(STAMP)  ## make .venv with everything in it

demo: $(STAMP)  ## the whole way on a CPU: retrieve, select, group, train, test, re-rank
	$(QUIET_THREADS) $(BIN)/python data_scripts/demo.py

test: lint  ## lint, then every test, offline, with the same examples each time
	$(PYTEST) -n 2 --dist loadfile tests

fuzz: SEED := $(SEED)
fuzz: $(STAMP)  ## every property test with 20,000 random examples (COBERT_FUZZ_EXAMPLES); SEED repeats a search
	@echo "seed $(SEED); again: make fuzz SEED=$(SEED)"
	$(PYTEST) -n 2 --dist worksteal -m hypothesis --hypothesis-profile fuzz --hypothesis-seed $(SEED) tests

fuzz-files: $(STAMP)  ## files damaged at random: read as they are, or refused in a line; CASES (10000)
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python damaged_files.py --cases $(CASES)

fuzz-options: $(STAMP)  ## every option of every command with values that nobody means
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python odd_options.py

invariants: CASES := 2000
invariants: $(STAMP)  ## random models and texts: what must not change a ranking; memory; CASES (2000), CALLS (10000)
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python invariants.py --cases $(CASES)
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python memory_growth.py --calls $(CALLS)

fuzz-hostile: $(STAMP)  ## files made by an enemy: code, sizes, names that lead out of a folder; all refused in a line
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python hostile_files.py

audit: $(STAMP)  ## known vulnerabilities of what is installed, by pip-audit, which needs a network; fails without one
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; $(PYTHON) -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install --quiet pip-audit; \
	$(BIN)/python tests/audit.py --pip_audit "$$folder/bin/pip-audit" \
		--packages "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

licences: $(STAMP)  ## the licence of every package that is needed to run; fails on one that is not on the list
	$(BIN)/python tests/licences.py

minimum-versions: $(STAMP)  ## the lowest versions that setup.py allows, in a fresh environment, and the tests they concern
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; $(PYTHON) -m venv "$$folder"; \
	$(BIN)/python tests/minimum_versions.py --torch "$(TORCH)" > "$$folder/lowest.txt"; \
	"$$folder/bin/python" -m pip install --quiet -r "$$folder/lowest.txt" -c "$$folder/lowest.txt"; \
	"$$folder/bin/python" -m pip install --quiet -c "$$folder/lowest.txt" pytest hypothesis; \
	"$$folder/bin/python" -m pip list --format freeze | grep -iFf "$$folder/lowest.txt"; \
	PYTHONPATH=. OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$$folder/bin/python" -m pytest -q $(MINIMUM_TESTS)

kill-anywhere: SEED := $(SEED)
kill-anywhere: $(STAMP)  ## the whole way killed at random moments, full disks, changed inputs; KILLS (50), SEED
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python kill_anywhere.py --kills $(KILLS) --seed $(SEED)

processes: $(STAMP)  ## trainings and rankings on 1, 2 and 4 processes, on two machines on loopback, one killed
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python processes.py

# `build` is removed before and after: setuptools would put into the wheel whatever an earlier build left there.
wheel-test:  ## install the wheel without extras in a fresh environment; there prepare, train, evaluate, re-rank
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder" build' EXIT; rm -rf build; \
	$(PYTHON) -m venv "$$folder/venv"; python="$$folder/venv/bin/python"; \
	"$$python" -m pip wheel --quiet --no-deps --wheel-dir "$$folder/wheel" .; \
	"$$python" -m pip install --quiet -c constraints.txt "$$folder"/wheel/*.whl; \
	cp tests/wheel_check.py "$$folder"; source="$$PWD/modeling_cobert"; cd "$$folder"; \
	HF_HUB_OFFLINE=1 $(QUIET_THREADS) "$$python" -I wheel_check.py --source "$$source"

lint: $(STAMP)  ## ruff, and mypy on the package (settings in setup.cfg)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

help-texts: $(STAMP)  ## write anew what `cobert COMMAND --help` prints
	$(BIN)/python -c "from modeling_cobert.cli import write_help_texts; write_help_texts()"

bench: bench-selection bench-training bench-retrieval  ## every benchmark, each a ratio in one run

bench-retrieval: $(STAMP)  ## first stage against bm25s and PISA; DOCUMENTS (50000)
	$(BIN)/python benchmarks/retrieval.py --documents $(DOCUMENTS)

bench-selection: $(STAMP)  ## passages a second against sentence-transformers; SELECTOR, COLLECTION (demo), QUERIES, CANDIDATES
	$(QUIET_THREADS) $(BIN)/python benchmarks/selection.py --collection $(COLLECTION) --queries $(QUERIES) \
		--k $(CANDIDATES) $(if $(SELECTOR),--selector $(SELECTOR))

bench-training: $(STAMP)  ## memory and time of a training step with the encoder in chunks; PAIRS (16)
	$(BIN)/python benchmarks/training_memory.py --pairs $(PAIRS)

clean:  ## remove the virtual environment, caches and what builds leave; outputs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
