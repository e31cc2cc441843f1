# make demo and make test do all of their set-up themselves, in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
FOLDERS = src tests benchmarks examples tools

.PHONY: help setup demo test test-core foreign lint format bench results docs tutorials notebooks clean

help:  ## what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with everything needed here

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)  ## train a small network on embedded real digits and write an HTML report
	$(BIN)/vpgcnn demo --out runs/demo

# Two workers of one thread each: on two cores that is faster than threads that wait for each other.
test: $(STAMP) lint  ## lint, types and the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-core: $(STAMP)  ## the tests of the layers alone, in two minutes, without extras
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/core

foreign: $(STAMP)  ## add torchvision and timm, without what they ask for: tests then convert thirty of their networks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torchvision timm

lint: $(STAMP)  ## ruff, mypy, and that imports point one way
	$(BIN)/ruff check $(FOLDERS)
	$(BIN)/ruff format --check $(FOLDERS)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > .lint-imports.log || (cat .lint-imports.log && false)

format: $(STAMP)  ## let ruff rewrite the layout
	$(BIN)/ruff check --fix $(FOLDERS)
	$(BIN)/ruff format $(FOLDERS)

bench: $(STAMP)  ## measure speed ratios and write results/bench.json
	$(BIN)/python benchmarks/run.py

results: $(STAMP)  ## write results/*.json into docs/results.md, docs/architectures.md, docs/when-not.md, docs/curves.svg and README.md
	$(BIN)/python benchmarks/report.py

# (With --quiet, --strict would count no warnings.)
docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

tutorials: $(STAMP)  ## write examples/*.py from the tutorials in docs/, and files shown in pages
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/tutorials.py

notebooks: $(STAMP) tutorials  ## run the notebooks and store their outputs in them
	$(BIN)/python tools/notebooks.py

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
