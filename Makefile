# One line per target; what needs more is a script in .ci/. `make help` lists the targets.

PYTHON := .venv/bin/python
MODULES := $(wildcard reliable_spark tests jobs benchmarks)
OUTPUT ?= demo
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench crash soak cluster-test format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: .venv/.installed ## make .venv with everything in it, check Java, fetch Delta's jars once
	@.ci/java
	@.venv/bin/reliable-spark jars >/dev/null

.venv/.installed: requirements.lock pyproject.toml
	@.ci/install

demo: setup ## run the flights job by spark-submit and audit its ledger (OUTPUT=demo)
	@.ci/demo "$(OUTPUT)"

test: setup ## run the tests that take seconds (ARGS="-k word")
	@.ci/redis
	@$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not soak and not cluster" $(ARGS)

check: .venv/.installed ## formatting, lint, types, import rules, compose file
	@.venv/bin/ruff format --check --output-format concise --quiet .
	@.venv/bin/ruff check --quiet .
	@$(PYTHON) -m mypy --no-error-summary $(MODULES)
	@.venv/bin/lint-imports >.venv/imports.log || { cat .venv/imports.log; exit 1; }
	@.ci/compose

bench: setup ## measure; prints ratios
	@$(PYTHON) -m benchmarks $(ARGS)

crash: setup ## kill processes at the worst moments and count
	@.ci/redis
	@$(PYTHON) -m pytest -m crash $(ARGS)

soak: setup ## run the tests that take minutes
	@.ci/redis
	@$(PYTHON) -m pytest -m "soak and not crash" $(ARGS)

cluster-test: setup ## run on a standalone cluster of several processes
	@$(PYTHON) -m pytest -m cluster $(ARGS)

format: .venv/.installed ## format and sort what can be
	@.venv/bin/ruff format --quiet .
	@.venv/bin/ruff check --fix --quiet .

lock: ## resolve requirements.lock anew; needs uv
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --generate-hashes --upgrade \
		--no-emit-index-url --no-header --no-annotate --quiet --output-file requirements.lock

clean: ## remove everything that make, the tools and the demo left, .venv too
	@rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -rf build dist demo spark-warehouse metastore_db derby.log artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
