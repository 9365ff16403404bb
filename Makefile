# Every target creates .venv if it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
unexport PYTHONDONTWRITEBYTECODE  # without bytecode every start compiles the whole package

.PHONY: run test check bench fmt docs map screenshots lock clean

run: $(READY)            ## check the machine, then start the gateway with the default settings
	$(BIN)/hobnob doctor
	$(BIN)/hobnob serve

test: check              ## run make check and all tests
	$(BIN)/pytest -n 2 --dist loadfile

check: $(READY)          ## lint, type-check, check import layers and repository rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit/test_project.py

bench: $(READY)          ## run the benchmarks; results are ratios to a baseline of the same run
	$(BIN)/python -m bench

fmt: $(READY)            ## format, and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)           ## write the generated pages and the import map
	$(BIN)/python docs/generate.py

map: $(READY)            ## draw the import graph; fails if an import goes up
	$(BIN)/python docs/import_map.py

screenshots: $(READY)    ## take new screenshots of the web page
	$(BIN)/python -m tests.browser.screenshots

lock: $(READY)           ## update all dependencies in requirements.lock
	$(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --allow-unsafe --generate-hashes \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate \
	  --output-file requirements.lock pyproject.toml

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(READY)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
