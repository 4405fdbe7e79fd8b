# `make help` lists what there is. Every target makes the environment first when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help env demo test all nightly quick golden lint format bench

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: ## make or refresh .venv
	@$(PYTHON) tools/bootstrap.py env

demo: ## profile, plan, prove, simulate, train and compare a small GPT; writes report.html
	@$(PYTHON) tools/bootstrap.py demo

test: ## formatter, linter, types and a fast selection of the tests
	@$(PYTHON) tools/bootstrap.py test

all: ## everything that continuous integration checks
	@$(PYTHON) tools/bootstrap.py test --all

nightly: ## properties with new random examples; prints the seed
	@$(PYTHON) tools/bootstrap.py test --nightly

quick: env ## the fast selection of the tests that need no torch and no workers
	@$(BIN)/pytest -n auto --fast -m unit -q

golden: env ## rewrite the golden files after a wanted change; read the diff before you commit it
	@$(BIN)/pytest -q --update-golden tests
	@git diff --stat -- tests

lint: env ## formatter, linter and type checker, without changing anything
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

format: env ## format, and mend what the linter can mend by itself
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: env ## print the measurements of bench/ one after the other
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done
