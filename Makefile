# Every target sets up what it needs: `make demo` or `make test` is all that a fresh machine has to run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-all test-apart test-device test-integrations test-browser test-flower test-synth test-pythons test-servers coverage lint bench experiments experiments-quick figures docs clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,lint,docs]"
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

demo: setup
	$(BIN)/dpfy train

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: lint experiments-quick
	.ci/install-servers
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term -m "slow or not slow"

# Pages of the documentation from top to bottom, the self-test of audits, a short hunt for neighbours.
test-apart: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m apart

# The tests that run on any device, on DPFY_TEST_DEVICE=pretend (default) or cuda; see docs/how-to/devices.md.
DPFY_TEST_DEVICE ?= pretend
test-device: setup
	DPFY_TEST_DEVICE=$(DPFY_TEST_DEVICE) $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" \
	  tests/device tests/gradients/test_engines.py tests/run/test_gate.py tests/noise/test_conformance.py \
	  tests/checks/test_probe.py tests/trainer/test_trainer.py

# Hugging Face and Lightning, with their packages in the same environment.
INTEGRATIONS := $(VENV)/.integrations
$(INTEGRATIONS): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[integrations]"
	touch $@

test-integrations: $(INTEGRATIONS)
	DPFY_TEST_INTEGRATIONS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/integrations src/dpfy/integrations

# Budgets of teams on a PostgreSQL and behind a service that the tests start.
test-servers: setup
	.ci/install-servers postgres
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "servers and not slow" tests/servers

# The page in Debian's Chromium. DPFY_SCREENSHOTS=docs/_static/page draws the pictures of its how-to.
BROWSER := $(VENV)/.browser
$(BROWSER): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[browser]"
	touch $@

test-browser: $(BROWSER)
	.ci/install-servers chromium
	$(BIN)/python -m pytest -m browser tests/browser

# Flower pins older versions of what the other tests need: an environment of its own.
FLOWER := .venv-flower
$(FLOWER)/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet -c constraints-flower.txt -e ".[flower]" dp-accounting hypothesis pytest
	touch $@

test-flower: $(FLOWER)/.installed
	DPFY_TEST_FLOWER=1 $(FLOWER)/bin/python -m pytest tests/flower src/dpfy/integrations/flower

# Synthetic tables, with mbi and jax in the same environment.
SYNTH := $(VENV)/.synth
$(SYNTH): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[synth]"
	touch $@

test-synth: $(SYNTH)
	DPFY_TEST_SYNTH=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/synthesis tests/cli/test_synth.py src/dpfy/synthesis

# The tests on every supported Python that this machine has, each in an environment of its own.
PYTHONS := 3.11 3.12 3.13
test-pythons:
	@for version in $(PYTHONS); do \
	  python$$version -c "" 2>/dev/null || { echo "python$$version: not found, left out"; continue; }; \
	  python$$version -m venv .venv-$$version && \
	  .venv-$$version/bin/python -m pip install --quiet -c constraints.txt -e ".[test,lint,docs]" && \
	  .venv-$$version/bin/python -m pytest -n 2 --dist worksteal || exit 1; \
	done

# Tracing lines makes the tests half as long again: a target of its own, and part of test-all.
coverage: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks

experiments: setup
	$(BIN)/python -m experiments run

experiments-quick: setup
	$(BIN)/python -m experiments run --quick

docs: figures
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# A figure is drawn again when its script or its results are newer. After a change of the library: `make -B figures`.
FIGURES := accountants adaptive algorithms budget-curves correlated dpis federated-accuracy federated-clipping individual individual-accuracy one-step-walk planning-batches accuracy
figures: $(FIGURES:%=docs/_static/%.svg) docs/_static/notebook/report.html

docs/_static/one-step-walk.svg: docs/figures/one_step.py src/dpfy/run/step.py src/dpfy/run/run.py
docs/_static/notebook/report.html: docs/figures/notebook.py docs/tutorials/notebook.md | setup
	$(BIN)/python $<
docs/_static/budget-curves.svg: docs/figures/budget_curves.py
docs/_static/planning-batches.svg: docs/figures/planning.py
docs/_static/individual-accuracy.svg: docs/figures/individual_accuracy.py $(wildcard experiments/results/idpsgd-*.json)
docs/_static/federated-clipping.svg: docs/figures/federated_clipping.py
docs/_static/federated-accuracy.svg: docs/figures/federated_accuracy.py experiments/results/federated.json
docs/_static/accuracy.svg: docs/figures/accuracy.py experiments/plots.py $(wildcard experiments/results/*.json)
$(foreach name,accountants adaptive algorithms correlated dpis individual,$(eval docs/_static/$(name).svg: docs/figures/$(name).py))
docs/_static/%.svg: | setup
	PYTHONPATH=. $(BIN)/python $<

clean:
	rm -rf docs/_build $(filter-out %/one-step.svg,$(wildcard docs/_static/*.svg)) docs/_static/notebook build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
