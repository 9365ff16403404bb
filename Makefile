# Every target makes its own .venv when there is none and does nothing when it is current.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
unexport PYTHONDONTWRITEBYTECODE  # else each start compiles everything

.PHONY: run test check bench fmt docs screenshots lock clean

run: $(READY)            ## start Hobnob on its defaults
	$(BIN)/hobnob doctor
	$(BIN)/hobnob serve

test: check              ## all tests; includes make check
	$(BIN)/pytest -n 2 --dist loadfile

check: $(READY)          ## lint, types, direction of imports, rules of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit/test_project.py

bench: $(READY)          ## the figures, as ratios to a floor of the same run
	$(BIN)/python -m bench

fmt: $(READY)            ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)           ## write the generated reference pages
	$(BIN)/python docs/generate.py

screenshots: $(READY)    ## take the pictures of the page anew
	$(BIN)/python -m tests.browser.screenshots

lock: $(READY)           ## choose new versions of everything we use
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
