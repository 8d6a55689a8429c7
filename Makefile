# Every target sets itself up: `make demo` works in a fresh clone.

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread for each worker: two workers with all cores each are slower than one.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)
TORCH := $(shell grep '^torch==' constraints.txt)
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo deploy-demo test test-slow test-all lint bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## train a sparse network on the digits with simulated devices, in runs/demo
	$(BIN)/fedmef run configs/demo.toml --out runs/demo --overwrite

deploy-demo: $(READY) ## a federation of real processes with TLS on this machine, in runs/deploy_demo
	rm -rf runs/deploy_demo
	$(BIN)/python scripts/deploy_demo.py runs/deploy_demo

test: lint ## lint, then every test that is quick
	$(PYTEST) -m "not slow"

# pytest's exit code 5 says that nothing was collected: no slow tests is no failure.
test-slow: $(READY) ## the slow tests only
	$(PYTEST) -m slow || test $$? -eq 5

test-all: test test-slow ## everything

lint: $(READY) ## ruff, mypy and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## run every benchmark, one after the other
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean: ## remove caches and build output; .venv and runs stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# torch first and pinned: resolving the range `torch>=2.6` on an empty machine fetches gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt Makefile
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)'. Install Python 3.11 or newer, or say make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedmef needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Say make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' has no venv. On Debian and Ubuntu: apt install python3-venv." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt "$(TORCH)"
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@
