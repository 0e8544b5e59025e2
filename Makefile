# make serve [ARGS="--port 8000 ..."]   install if need be, then serve (the default model unless ARGS names one)
# make install                          only make .venv
# make test                             install with test extras, run the tests
# make check                            all that CI checks: format, lint, types, import contracts, size budgets, tests
# make format                           what `make check` would complain about and a tool can mend

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A host with NVIDIA's driver gets the GPU libraries, and the torch that they were built for.
ifneq ($(wildcard /dev/nvidia0),)
CONSTRAINTS := constraints/cuda.txt
EXTRAS := cuda
TEST_EXTRAS := cuda,test
else
CONSTRAINTS := constraints/cpu.txt
EXTRAS :=
TEST_EXTRAS := test
endif

INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-test
SOURCES := protocol runtime http_frontend tokenizer_manager scheduler model_runner detokenizer function_call launch.py
# pip compiles what it installs, but not what is installed editable: the first start would have to.
COMPILE := $(BIN)/python -m compileall -q $(SOURCES)
CHECKED := $(SOURCES) $(wildcard benchmarks) tests

.PHONY: serve install test check format clean

serve: $(INSTALLED)
	$(BIN)/python launch.py $(ARGS)

install: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Candor needs Python 3.11 or newer; try: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# Stamps: nothing is installed again until pyproject or the constraints change.
$(INSTALLED): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint $(CONSTRAINTS) --editable ".$(if $(EXTRAS),[$(EXTRAS)])"
	$(COMPILE)
	@touch $@

$(TEST_INSTALLED): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --constraint $(CONSTRAINTS) --editable ".[$(TEST_EXTRAS)]"
	$(COMPILE)
	@touch $@ $(INSTALLED)

test: $(TEST_INSTALLED)
	$(BIN)/python -m pytest

check: $(TEST_INSTALLED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy $(CHECKED)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest

format: $(TEST_INSTALLED)
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix $(CHECKED)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
