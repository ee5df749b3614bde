# Needs make and Python 3.11 to 3.14; all else goes into .venv (development) and .venv-run (use).
# `make TARGET ARGS='…'` passes arguments on; `make TARGET PYTHON=python3.13` picks another Python.

PYTHON ?= python3
ARGS ?=

RUN := .venv-run
DEV := .venv
EXPORT := .venv-export
LOWEST := .venv-lowest

.DEFAULT_GOAL := help
.PHONY: help serve demo test check style types types-api counters docs format bench lock release test-export test-lowest clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

serve: $(RUN)/.installed  ## run the sidecar on http://127.0.0.1:8080 (ARGS='--upstream URL')
	@$(RUN)/bin/headstart serve $(ARGS)

demo: $(RUN)/.installed  ## watch it work on simulated providers: no key, no network
	@$(RUN)/bin/headstart demo $(ARGS)

# The tests start Python several hundred times. Each start is faster with the compiled files of an earlier one.
test check: export PYTHONDONTWRITEBYTECODE =

# Three processes keep two cores busy, because tests also wait. A file stays in one of them, with its fixtures.
test: $(DEV)/.installed  ## run the tests (ARGS='-k name', ARGS=-n0 for one process)
	$(DEV)/bin/pytest -n 3 --dist loadfile $(ARGS)

check: docs style types types-win32 types-darwin types-api counters  ## format, lint, types, the counters of scripts/house.py, and the documentation (-j2: two at a time)

style: $(DEV)/.installed
	$(DEV)/bin/ruff format --check
	$(DEV)/bin/ruff check

types: $(DEV)/.installed
	$(DEV)/bin/mypy

# Code for one system is unreachable on the others.
types-%: $(DEV)/.installed
	$(DEV)/bin/mypy --platform $* --cache-dir .mypy_cache/$* --disable-error-code unreachable headstart

types-api: $(DEV)/.installed
	$(DEV)/bin/pyright --warnings --pythonpath $(DEV)/bin/python

counters: $(DEV)/.installed
	$(DEV)/bin/python -m scripts.house --check

docs: $(DEV)/.installed  ## build the documentation site and check its links (ARGS=--serve shows it)
	@$(DEV)/bin/python -m scripts.site $(ARGS)

format: $(DEV)/.installed  ## put the code into the house's format
	$(DEV)/bin/ruff format
	$(DEV)/bin/ruff check --fix

bench: $(DEV)/.installed  ## measure the hit path and the miss path against what costs nothing
	@$(DEV)/bin/python -m benchmarks.overhead $(ARGS)

COMPILE = $(DEV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	--no-emit-index-url --no-emit-find-links --no-header

lock: $(DEV)/.installed  ## renew the locks (ARGS=--upgrade takes new versions)
	$(COMPILE) $(ARGS) --extra dev --extra google pyproject.toml --output-file requirements-dev.txt
	echo hatchling | $(COMPILE) --constraint requirements-dev.txt pyproject.toml - --output-file requirements.txt
	echo hatchling | $(COMPILE) --constraint requirements-dev.txt --extra otel --extra google pyproject.toml - \
		--output-file deploy/requirements.txt

release: $(DEV)/.installed  ## build sdist, wheel, SBOM and checksums of the last commit into dist/ (ARGS=--draft)
	$(DEV)/bin/python -m scripts.release $(ARGS)

test-export:  ## export an encoder with torch for real (a large download)
	$(PYTHON) -m venv $(EXPORT)
	$(EXPORT)/bin/pip install --quiet --editable '.[export]' blockbuster hypothesis pytest pytest-timeout safetensors
	$(EXPORT)/bin/pytest tests/embeddings/test_export.py $(ARGS)

test-lowest: $(DEV)/.installed  ## test with the lowest versions that pyproject.toml allows (a download)
	$(DEV)/bin/uv venv --quiet --clear --python $(DEV)/bin/python $(LOWEST)
	$(DEV)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable .
	$(DEV)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --editable '.[dev,google]'
	$(LOWEST)/bin/python -m pytest -n 3 --dist loadfile --ignore tests/structure $(ARGS)

clean:  ## remove the environments, the caches and what was built
	rm -rf $(DEV) $(RUN) $(EXPORT) $(LOWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(RUN)/.installed: requirements.txt pyproject.toml
	$(call install,$(RUN),requirements.txt,--no-compile)

$(DEV)/.installed: requirements-dev.txt pyproject.toml
	$(call install,$(DEV),requirements-dev.txt,--no-compile)
	-@$(DEV)/bin/python -m compileall -q -j 0 $(DEV)/lib  # pip would compile on one core

# $(1) the environment, $(2) its lock, $(3) more for pip. Only what the lock names by version and hash is installed.
define install
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
		{ echo 'Headstart needs Python 3.11 to 3.14 (onnxruntime has no wheels for 3.15 yet):' \
		'make $(MAKECMDGOALS) PYTHON=python3.14' >&2; exit 1; }
	@echo 'Installing $(2) into $(1) (once) …'
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(3) --require-hashes -r $(2)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "Installed: $$(du -sh $(1) | cut -f1)"
	@touch $@
endef
