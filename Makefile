# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is kept, also where the environment says not to: half of what a process needs to start.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode
# Tests that need no compilation of a training, or next to none.
QUICK := house prose stats quantiles tails multiplier constraints two_path theory_solver

.PHONY: demo check test test-all docs setup format clean

demo: $(VENV)/.ready
	$(BIN)/qcrl train

# In a minute and a half: linter, formatter, types, who may import whom, the site, and the quick tests.
check: lint docs
	$(BIN)/pytest -n 2 $(QUICK:%=tests/test_%.py)

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

# Every algorithm, on the device and in Python, killed and resumed, compiled as for users: the better part of an hour.
test-all: lint
	XLA_FLAGS= $(BIN)/pytest -n 2 --dist worksteal -m ''

# The site, into build/site. A broken link or a missing reference is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: lint
lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("qcrl needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if command -v uv >/dev/null; then \
	  uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else $(BIN)/python -m pip install --quiet -e '.[dev]'; fi
	touch $@

$(VENV)/.docs: $(VENV)/.ready
	if command -v uv >/dev/null; then \
	  uv pip install --quiet --python $(BIN)/python -e '.[docs]'; \
	else $(BIN)/python -m pip install --quiet -e '.[docs]'; fi
	touch $@

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
