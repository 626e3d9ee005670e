# make setup   a virtual environment with everything the tests need, in .venv
# make test    all checks: style, types, tests of every layer, notebooks, the panel's JavaScript
# make test-hosts  the kernel tests under other versions of ipykernel and after nest_asyncio.apply()
# make test-windows  the tests of core and engine with Windows' own Python, under Wine
# make demo    a notebook whose kernel is killed in the middle, run again, approved, searched; then how to open it
# make outputs run the notebooks and store what their cells show, which the tests compare
# make bench   the budgets, measured side by side
# make soak    1,000 kills, faults at every write, ten minutes of neighbours; ROUNDS=1 for once

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := test
.PHONY: setup system test style types js tests demo outputs bench soak clean test-hosts test-windows

# The oldest supported Python first: what works there works later.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3; do \
	if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$each; break; fi; done)
BIN := .venv/bin
STAMP := .venv/.installed
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
# What the tests run under, such as `timeout 20m`.
LIMIT ?=
# Two processes, each test file in one of them, the files in order: a browser's loop stays in its process. PARALLEL= for one.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder
# More arguments for pytest, such as ARGS="tests/core -x".
ARGS ?= tests $(NOTEBOOKS)
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
JS_TESTS := $(wildcard tests/js/*.test.mjs tests/js/*.test.js)

setup: $(STAMP)

$(STAMP): pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or later found; set PYTHON=" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --editable '.[test]'
	@touch $@

# What pip cannot install: the browser, and on Debian the parts of Python that make virtual environments.
system:
	@missing=""; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| missing="chromium fonts-dejavu-core"; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || { [ -n "$(PYTHON)" ] && $(PYTHON) -c 'import ensurepip' 2>/dev/null; } \
		|| missing="$$missing python3 python3-venv"; \
	[ -z "$$missing" ] && exit 0; \
	if ! command -v apt-get >/dev/null || ! $(SUDO) true 2>/dev/null; then echo "not installed, and cannot be from here: $$missing" >&2; exit 0; fi; \
	echo "installing $$missing"; \
	DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install --yes -qq --no-install-recommends $$missing </dev/null >/dev/null

test: system setup style types js tests

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

js:
ifneq ($(JS_TESTS),)
	@if command -v node >/dev/null; then set -x; node --test $(JS_TESTS); else echo "node is not installed: the panel's JavaScript is tested in the browser only"; fi
endif

tests: setup
	$(LIMIT) $(BIN)/python -m pytest -p no:cacheprovider --nbval $(PARALLEL) $(ARGS) </dev/null

test-hosts: setup
	$(BIN)/python -m tests.hosts

test-windows: setup
	@command -v wine >/dev/null && command -v x86_64-w64-mingw32-gcc >/dev/null || { echo "installing Wine"; \
	DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install --yes -qq --no-install-recommends wine wine64 gcc-mingw-w64-x86-64 \
		</dev/null >/dev/null; }
	$(BIN)/python -m tests.hosts.windows

demo: setup
	@$(BIN)/python notebooks/demo.py

# After a change of what cells show: look at the difference before you commit it.
outputs: setup
	@$(BIN)/python notebooks/refresh.py

bench: setup
	@$(BIN)/python -m tests.bench

soak: setup
	@$(BIN)/python -m tests.crash.soak $(ROUNDS)

clean:
	rm -rf .demo .hosts .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
