# Every target creates .venv if it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LOWEST_BIN := .venv-lowest/bin
LOWEST_READY := .venv-lowest/.ready
# Every module, the limits of connections, a turn, and one use of each extra.
LOWEST_TESTS := tests/unit/test_dependencies.py tests/integration/test_limits.py \
  tests/integration/test_wire.py tests/integration/models/test_pydantic_ai.py \
  tests/acceptance/test_cli.py::test_agent_uses_the_gateway_that_is_running \
  tests/integration/test_acp.py::test_a_harness_does_a_task_and_all_of_it_stands_in_the_transcript \
  tests/integration/test_mcp_tools.py::test_tools_of_a_server_are_listed_under_its_name_and_can_be_called
COMPILE := $(BIN)/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --generate-hashes \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate
unexport PYTHONDONTWRITEBYTECODE  # without bytecode every start compiles the whole package

# On PostgreSQL too: what several transactions at once could break.
POSTGRES_TESTS := $(addprefix tests/integration/test_,$(addsuffix .py,turns sending exchange_edges spawning joins labels \
  deliveries durability))

.PHONY: run test test-postgres test-cluster check lowest bench fmt docs map screenshots servers lock clean

run: $(READY)            ## check the machine, then start the gateway with the default settings
	$(BIN)/hobnob doctor
	$(BIN)/hobnob serve

test: check              ## run make check and all tests
	$(BIN)/pytest -n 3 --dist loadfile $(TEST_FLAGS)
	HOBNOB_TEST_STORE=postgres $(BIN)/pytest -n 3 --dist loadfile -rs $(TEST_FLAGS) $(POSTGRES_TESTS)

test-postgres: $(READY)  ## all integration tests with stores on PostgreSQL, on a server that they start
	HOBNOB_TEST_STORE=postgres $(BIN)/pytest -n 3 --dist loadfile -rs tests/integration

test-cluster: $(READY)   ## the tests of several gateways in their full size, which take hours
	HOBNOB_CLUSTER_FULL=1 $(BIN)/pytest -rs tests/cluster

check: $(READY) lowest   ## lint, type-check, check import layers, repository rules and lowest versions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/unit/test_project.py

lowest: $(LOWEST_READY)  ## some tests with the lowest versions of the dependencies that pyproject.toml allows
	$(LOWEST_BIN)/pytest $(LOWEST_TESTS)

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

servers: .venv-servers/.ready  ## install the Matrix homeserver that tests run

.venv-servers/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-servers
	.venv-servers/bin/pip install --quiet "matrix-synapse>=1.150"
	@touch $@

lock: $(READY)           ## update all dependencies in requirements.lock
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	$(BIN)/python tests/lowest.py | $(COMPILE) --output-file requirements-lowest.lock -

$(READY): requirements.lock requirements-3.13.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock -r requirements-3.13.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src  # else a start compiles all of it where Python may not write bytecode
	@touch $(READY)

$(LOWEST_READY): requirements-lowest.lock pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST_BIN)/pip install --quiet --no-compile --no-deps --require-hashes -r requirements-lowest.lock
	$(LOWEST_BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(LOWEST_READY)

clean:
	rm -rf .venv .venv-lowest .venv-servers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
