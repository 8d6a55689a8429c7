# Every target sets itself up: `make demo` works in a fresh clone.

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.dev
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread for each worker: two workers with all cores each are slower than one.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS)
SANITIZED ?= tests/native
TORCH := $(shell grep '^torch==' constraints.txt)
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

# The native kernels, compiled into src/fedmef/native. FEDMEF_NATIVE=off leaves them out, WERROR=ON is CI's.
FEDMEF_NATIVE ?= on
WERROR ?= OFF
NATIVE := build/native/.ready
CSRC := $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)
CMAKE := $(BIN)/cmake
CONFIGURE = $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DFEDMEF_INSTALL_DIR=. -DFEDMEF_WERROR=$(WERROR) --log-level=NOTICE --no-warn-unused-cli

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo deploy-demo native wheels sanitize test test-slow test-all lint docs bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(NATIVE) ## train a sparse network on the digits with simulated devices, in runs/demo
	$(BIN)/fedmef run configs/demo.toml --out runs/demo --overwrite

deploy-demo: $(DEV) $(NATIVE) ## a federation of real processes with TLS on this machine, in runs/deploy_demo
	rm -rf runs/deploy_demo
	$(BIN)/python scripts/deploy_demo.py runs/deploy_demo

native: $(NATIVE) ## compile the native kernels of csrc/

wheels: $(DEV) ## wheels for this machine and, cross-compiled, for 64-bit ARM, in dist
	PYTHON=$(BIN)/python scripts/wheels.sh dist

test: lint $(NATIVE) ## lint, then every test that is quick
	$(PYTEST) -m "not slow"

# pytest's exit code 5 says that nothing was collected: no slow tests is no failure.
test-slow: $(DEV) $(NATIVE) ## the slow tests only
	$(PYTEST) -m slow || test $$? -eq 5

test-all: test test-slow ## everything

# The preloaded libraries are the compiler's: Python itself is not sanitized, and without libstdc++ the sanitizer finds
# no exceptions. What Python never frees is no leak of ours.
sanitize: $(DEV) ## the tests of the native kernels, under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CONFIGURE) -B build/sanitize -DFEDMEF_SANITIZE=address,undefined
	$(CMAKE) --build build/sanitize
	$(CMAKE) --install build/sanitize --prefix build/sanitize/installed --component kernels >/dev/null
	@ls build/sanitize/installed/_kernels*.so >/dev/null
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 OMP_NUM_THREADS=1 FEDMEF_KERNELS=build/sanitize/installed $(BIN)/pytest -p no:cacheprovider $(SANITIZED)

lint: $(DEV) ## ruff, mypy, the layers and clang-format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(CSRC),$(BIN)/clang-format --dry-run --Werror $(CSRC))

docs: $(DEV) ## the documentation as a site, in build/site; nothing is fetched
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; its search needs a server: python3 -m http.server -d build/site"

bench: $(DEV) $(NATIVE) ## run every benchmark, one after the other
	@for script in $(BENCHMARKS); do echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script || exit 1; done

clean: ## remove caches and build output; .venv and runs stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/fedmef/native/_kernels*.so
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +

# Without a compiler CMake says what is missing and builds nothing; it is asked again each time, for there may be one now.
ifeq ($(FEDMEF_NATIVE),off)
.PHONY: $(NATIVE)
endif
$(NATIVE): $(READY) CMakeLists.txt $(CSRC)
ifeq ($(FEDMEF_NATIVE),off)
	@rm -rf build/native src/fedmef/native/_kernels*.so
	@echo "fedmef: FEDMEF_NATIVE=off, so the native kernels are not built: only PyTorch can train."
else
	@$(CONFIGURE) -B build/native
	@$(CMAKE) --build build/native || \
		{ echo "fedmef: the native kernels do not compile here. FEDMEF_NATIVE=off builds without them." >&2; exit 1; }
	@rm -f src/fedmef/native/_kernels*.so
	@$(CMAKE) --install build/native --prefix src/fedmef/native --component kernels >/dev/null
	@if ls src/fedmef/native/_kernels*.so >/dev/null 2>&1; then touch $@; else rm -rf build/native; fi
endif

# What the demo needs: the extra `train`, and what compiles the kernels.
# torch first and pinned: resolving the range `torch>=2.6` on an empty machine fetches gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt Makefile
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)'. Install Python 3.11 or newer, or say make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedmef needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Say make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' has no venv. On Debian and Ubuntu: apt install python3-venv." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt "$(TORCH)" scikit-build-core
	$(PIP) install -c constraints.txt --no-build-isolation --no-deps -e .
	$(PIP) install -c constraints.txt 'fedmef[train,native]'
	@touch $@

# What changes or tests fedmef needs, too.
$(DEV): $(READY)
	$(PIP) install -c constraints.txt 'fedmef[dev]'
	@touch $@
