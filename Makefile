# Commands for people. Everything is installed into .venv and nothing outside it.
# `python` in dvc.yaml and in these recipes is the environment's, as it stands first on PATH.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help venv align smoke test parity storm results lint ui clean

TARGET ?= comparison
TESTS ?= tests
KILLS ?= 50
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
STAMP := $(VENV)/.installed
PIP := 26.1.2
PARITY := .parity
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that wait for work sleep; a spinning thread takes a core from the stage's other processes.
export OMP_WAIT_POLICY ?= passive

help:
	@echo 'make align [TARGET=comparison]  run the pipeline to a stage of dvc.yaml, such as TARGET=evaluation@dpo'
	@echo 'make smoke                      run the whole graph with a tiny random model, in .smoke/'
	@echo 'make test [TESTS=tests]         run the tests'
	@echo 'make parity                     compare losses and gradients with TRL, installed into .parity/'
	@echo 'make storm [KILLS=50]           kill a tiny pipeline again and again, and compare with one left in peace'
	@echo 'make results [QUICK=1]          make the studies of docs/studies.md again: about 15 minutes; QUICK=1: about 2'
	@echo 'make lint                       style and types'
	@echo 'make ui                         open the MLflow and Prefect pages'
	@echo 'make venv [PYTHON=python3.12]   install the pinned packages into .venv (the others do it when needed)'
	@echo 'make clean                      remove .smoke/ and the caches of the tools; results stay'

venv: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt constraints.txt
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'error: Python 3.11 or newer is needed (found: $(or $(PYTHON),none)): make venv PYTHON=/path/to/python' >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'error: $(PYTHON) lacks its venv module; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo 'Installing into $(VENV) (once; a few minutes)'
	@[ -x $(VENV)/bin/python ] || "$(PYTHON)" -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet pip==$(PIP)
	@$(VENV)/bin/python -m pip install --quiet -r requirements.txt -r requirements-dev.txt -c constraints.txt
	@touch $@

align: $(STAMP)
	@python -m flows.pipeline $(TARGET)

smoke: $(STAMP)
	@python -m flows.workspace .smoke --overlay profiles/tiny.yaml
	@cd .smoke && python -m flows.pipeline $(TARGET)

test: export OMP_NUM_THREADS = 1
test: export HF_HUB_OFFLINE = 1
# Two processes, each file's tests in one of them, in the order of tests/conftest.py.
test: $(STAMP)
	@python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

# A process for each release of TRL, which has it first on its path.
parity: export OMP_NUM_THREADS = 1
parity: export HF_HUB_OFFLINE = 1
parity: export TRL_EXPERIMENTAL_SILENCE = 1
parity: $(PARITY)/.installed
	@PYTHONPATH=$(PARITY)/trl-1.16.0 python -m pytest parity/trl_1_16
	@PYTHONPATH=$(PARITY)/trl-1.12.0 python -m pytest parity/trl_1_12

$(PARITY)/.installed: requirements-parity.txt | $(STAMP)
	@rm -rf $(PARITY)
	@for pin in $$(sed -n 's/^\(trl==[0-9.]*\).*/\1/p' $<); do \
		python -m pip install --quiet --no-deps --target $(PARITY)/$${pin/==/-} $$pin || exit 1; \
	done
	@touch $@

storm: export OMP_NUM_THREADS = 1
storm: $(STAMP)
	@python -m tests.storm --kills $(KILLS)

results: export OMP_NUM_THREADS = 1
results: export HF_HUB_OFFLINE = 1
# Goes on where it was stopped: finished cells stand in .rlhf/results.
results: $(STAMP)
	@python -m benchmarks.studies $(if $(QUICK),--quick)

lint: $(STAMP)
	@ruff check .
	@ruff format --check .
	@mypy

ui: $(STAMP)
	@python -m flows.ui

clean:
	@rm -rf .smoke .pytest_cache .mypy_cache .ruff_cache .hypothesis
