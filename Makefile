# `make run` measures this machine and renders the article; `make test` runs the tests,
# `make test-lab` those that need a host of their own, emulated; `make test-lab-all` the long ones too.
# Both set up what they need: system tools (where permitted) and a virtual environment.

PYTHON  ?= python3
PROFILE ?= quick
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
# A file of tests stays in one process: its fixtures are made once. In the order of their names.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: run report test test-lab test-lab-all test-known bench bench-known lint notebooks lock clean help

help:  ## list what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

run: $(READY)  ## measure this machine under every binding and render the article
	@scripts/install-quarto $(BIN)
	$(BIN)/numalab run --all --profile $(PROFILE) $(ARGS)
	$(BIN)/numalab report

report: $(READY)  ## render numalab's own article as it is committed, without measuring
	@scripts/install-quarto $(BIN)
	$(BIN)/numalab report --study

test: $(READY)  ## lint, every test, and every committed notebook against its committed outputs
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest $(PARALLEL)
	$(BIN)/pytest $(PARALLEL) --nbval-lax -p no:cacheprovider notebooks report/index.ipynb report/zh.ipynb

test-lab: $(READY)  ## boot an emulated host of two nodes, prove placements in it, kill it, resume
	-@scripts/install-lab-tools
	$(BIN)/pytest -p no:cacheprovider --durations=0 -m "not long and not known" tests/lab

test-lab-all: $(READY)  ## the same, and every experiment in a guest, a fleet of two: an hour
	-@scripts/install-lab-tools
	$(BIN)/pytest -p no:cacheprovider --durations=0 tests/lab

test-known: $(READY)  ## measure an emulated host whose memory timing is configured: is it found?
	-@scripts/install-lab-tools
	$(BIN)/pytest -p no:cacheprovider --durations=0 -m "known and not long" tests/lab

bench: $(READY)  ## the measured promises: probe, collectors, start-up, store
	$(BIN)/python bench/all.py

bench-known: $(READY)  ## a database server on hosts whose timing is known: is it found? hours
	-@scripts/install-lab-tools
	$(BIN)/python bench/known.py $(ARGS)

notebooks: $(READY)  ## execute the committed notebooks again over their committed runs
	$(BIN)/python scripts/execute-notebooks

lock:  ## resolve requirements.lock again (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras \
	  --generate-hashes --no-header --no-annotate --output-file requirements.lock

$(READY): requirements.lock pyproject.toml scripts/install-system-tools
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "numalab needs Python 3.10 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
	  exit 1; }
	@scripts/install-system-tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

clean:  ## remove the virtual environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build
