# Two commands do everything on a machine with only Python and make: `make plan`, `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help plan serve check test lint front web bench accuracy fits lock audit clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

plan: $(VENV)/.installed  ## plan the training of Llama-2-70B on 64 H100
	$(BIN)/astrarium plan llama-2-70b --gpus h100:64 --seq-length 4096 --global-batch 1024 --tokens 2T

serve: $(VENV)/.installed-web  ## show plans on a web page on this machine
	$(BIN)/astrarium serve

check: lint  ## for every edit: style, types, and the tests that finish in a minute
	$(BIN)/python -m pytest -n 2 --dist worksteal --quick -q

test: lint front $(VENV)/.installed-upstream  ## check the code, then run all tests
	$(BIN)/python tools/install_browser.py chromium
	ASTRARIUM_REQUIRE_UPSTREAM=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev  ## style, types, layers, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sizes.py

front: | $(BIN)/pip  ## check the page: types, style, tests, and that its build is committed
	$(BIN)/python tools/check_front.py

web: | $(BIN)/pip  ## build the page into the package
	$(BIN)/python tools/check_front.py --write

bench: $(VENV)/.installed  ## measure the search: time, memory, strategies per second
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/mixed.py
	$(BIN)/python benchmarks/money.py

accuracy: $(VENV)/.installed  ## compare predictions with published measurements: docs/accuracy.md
	$(BIN)/python benchmarks/accuracy.py

fits: $(VENV)/.installed-dev  ## fit how sure predicted memory is to the measurements the project carries
	$(BIN)/python benchmarks/fit_choice.py

lock: $(VENV)/.installed-dev  ## put the newest versions of all packages into constraints.txt
	$(BIN)/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[all,dev,fit]'
	head -n 1 constraints.txt > constraints.new
	$(BIN)/pip freeze --exclude-editable --exclude torch >> constraints.new
	mv constraints.new constraints.txt

audit: $(VENV)/.installed-dev  ## list known vulnerabilities of the packages; write build/sbom.json
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet pip-audit cyclonedx-bom
	mkdir -p build
	$(VENV)/audit/bin/cyclonedx-py environment --output-file build/sbom.json $(BIN)/python
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean:  ## remove everything that can be made again
	rm -rf $(VENV) web/node_modules build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +

# The stamps make a second call start at once; a change of pyproject.toml installs again.

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --editable . --constraint constraints.txt
	touch $@

$(VENV)/.installed-web: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --editable '.[web]' --constraint constraints.txt
	touch $@ $(VENV)/.installed

# torch first, on its own: otherwise transformers may choose another build of it.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $@ $(VENV)/.installed $(VENV)/.installed-web

# The programs whose parsers read what is exported, for tests alone: each in a folder of its own.
$(VENV)/.installed-upstream: tests/upstream/packages.toml tools/install_upstream.py | $(VENV)/.installed-dev
	$(BIN)/python tools/install_upstream.py $(VENV)/upstream
	touch $@
