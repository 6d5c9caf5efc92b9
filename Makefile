# On a fresh Debian or Ubuntu machine `make demo` and `make test` do all set-up themselves, and are quick the second time.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Folders that hold Python, of those that exist.
CODE := $(wildcard dlcp dssync softswitch sim testbed examples benchmarks tests)
PYTEST := $(BIN)/python -m pytest
# One thread a process: the ranks and the tests are the parallelism.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint check-all bench doctor p4 venv system clean

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: venv ## train a model across an emulated network, or loopback without root: gloo against dlcp (3 minutes)
	@$(BIN)/python -m dlcp demo

test: lint ## lint, types and all tests
	@status=0; \
	alone=$$(grep -rlE 'mark\.exclusive' tests --include='*.py'); \
	if [ -n "$$alone" ]; then $(PYTEST) -m exclusive $$alone || status=$$?; fi; \
	$(PYTEST) -n $(JOBS) -m 'not exclusive' || status=$$?; \
	exit $$status

lint: venv ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(CODE)

check-all: test ## everything a release needs: tests, a built package, ten million broken frames, the demo
	@rm -rf build/dist && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/dist . && ls build/dist
	@$(BIN)/python -m dlcp doctor
	@$(BIN)/python -m tests.softswitch.fuzz --frames 1e7
	@$(BIN)/python -m dlcp demo

bench: venv ## dlcp against gloo over loopback, interleaved, without and with loss
	@for loss in 0 0.01 0.05; do \
	  $(BIN)/python -m dlcp bench allreduce --ranks 4 --bytes 25e6 --loss $$loss --iters 20 --baseline gloo || exit $$?; \
	done

doctor: venv ## what this host can do
	@$(BIN)/python -m dlcp doctor

p4: ## compile the switch program into p4/build (needs p4c-bm2-ss)
	@scripts/p4.sh

venv: system $(STAMP) ## the virtual environment, with pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old or missing: Python 3.11 or newer is needed; choose one with make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV) (minutes the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

system: ## missing system packages, when root
	@scripts/system.sh $(PYTHON) $(PURPOSE)

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
